"""The local engine: greedy equals transformers.generate, whoever joins and leaves; sampling is
reproducible and says the truth about its probabilities; weights change in flight."""

import copy

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MixtralConfig,
    Qwen2Config,
)

from scalerl.algorithm.length import EndOfThought, Interruption, Limit
from scalerl.engine.interface import Request, Sampling
from scalerl.engine.local import LocalEngine
from scalerl.engine.sampling import sample, uniform
from scalerl.errors import InputError
from scalerl.models.cpu.library import library

VOCABULARY = 40
SMALL = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2,
         "num_attention_heads": 4, "max_position_embeddings": 256, "initializer_range": 0.3,
         "pad_token_id": None, "eos_token_id": None, "bos_token_id": None}  # fmt: skip
CONFIGS = {
    "llama": LlamaConfig(**SMALL, intermediate_size=64, num_key_value_heads=2),
    "qwen2": Qwen2Config(**SMALL, intermediate_size=64, num_key_value_heads=2),
    "gpt2": GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=256,
                       initializer_range=0.3, bos_token_id=None, eos_token_id=None),
    "mixtral": MixtralConfig(**SMALL, intermediate_size=48, num_key_value_heads=2,
                             num_local_experts=4, num_experts_per_tok=2, sliding_window=None),
}  # fmt: skip


def model_of(name, seed=0):
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(CONFIGS[name]).eval()


def prompts(n, seed=0):
    rng = np.random.default_rng(seed)
    return [tuple(rng.integers(0, VOCABULARY, rng.integers(1, 12)).tolist()) for _ in range(n)]


def request(name, prompt, control, sampling=None, *, seed=0, rows=1):
    """A group of rollouts with seeds of their own."""
    seeds = {row: seed + 1000 * row for row in range(rows)}
    return Request(name, prompt, control, seeds, sampling or Sampling())


def finish_all(engine, limit=2000):
    """Rollouts by the name of their request; of groups by (name, row)."""
    done = {}
    for _ in range(limit):
        done |= {(w.request, w.row): w.turn for w in engine.step().written}
        if not engine.health().busy:
            only = {name for name, row in done} if all(row == 0 for _, row in done) else ()
            return {name: done[name, 0] for name in only} or done
    raise AssertionError("the engine did not finish")


GREEDY = Sampling(temperature=0.0)


@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_equals_transformers_generate_with_requests_joining_and_leaving(name):
    model = model_of(name)
    engine = LocalEngine(model, slots=3, columns=64)
    rng = np.random.default_rng(1)
    asked = {f"r{i}": (p, int(rng.integers(1, 25))) for i, p in enumerate(prompts(10))}
    for key, (prompt, n) in asked.items():
        engine.submit([request(key, prompt, Limit(n), GREEDY)])
    done = finish_all(engine)
    assert set(done) == set(asked)
    for key, (prompt, n) in asked.items():
        ids = torch.tensor([prompt])
        expected = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=n,
                                  do_sample=False, eos_token_id=None, pad_token_id=0)  # fmt: skip
        assert done[key].token_ids.tolist() == expected[0, len(prompt) :].tolist()
        assert done[key].finish == "length"


def test_logprobs_are_those_of_the_distribution_drawn_from():
    """Scored again in one forward pass, with the same temperature."""
    model = model_of("llama")
    engine = LocalEngine(model, slots=4, columns=64)
    how = Sampling(temperature=0.7)
    asked = {f"r{i}": p for i, p in enumerate(prompts(6))}
    engine.submit([request(k, p, Limit(15), how, seed=i) for i, (k, p) in enumerate(asked.items())])
    for key, written in finish_all(engine).items():
        ids = torch.tensor([[*asked[key], *written.token_ids.tolist()]])
        logits = model(ids).logits[0, len(asked[key]) - 1 : -1].detach()
        expected = torch.log_softmax(logits / 0.7, -1)
        expected = expected.gather(1, ids[0, len(asked[key]) :, None])
        np.testing.assert_allclose(written.logprobs, expected[:, 0], atol=2e-5)


def test_a_rollout_depends_on_its_seed_and_not_on_its_neighbours():
    model = model_of("qwen2")
    mine = request("mine", (3, 4, 5), Limit(20), seed=77)
    alone = LocalEngine(model, slots=1, columns=64)
    alone.submit([mine])
    crowd = LocalEngine(model, slots=4, columns=64)
    crowd.submit(request(f"o{i}", p, Limit(9), seed=i) for i, p in enumerate(prompts(5)))
    crowd.submit([mine])
    tokens = finish_all(crowd)["mine"].token_ids.tolist()
    assert tokens == finish_all(alone)["mine"].token_ids.tolist()
    other = LocalEngine(model, slots=1, columns=64)
    other.submit([request("mine", (3, 4, 5), Limit(20), seed=78)])
    assert finish_all(other)["mine"].token_ids.tolist() != tokens


def test_weights_change_in_flight_and_the_cache_is_kept():
    """Tokens before the change come from the old weights; those after it equal a replay that reads
    the old keys and values with the new weights."""
    old, new = model_of("llama", 0), model_of("llama", 1)
    engine = LocalEngine(copy.deepcopy(old), slots=2, columns=64, version=5)
    prompt = (1, 2, 3, 4)
    engine.submit([request("a", prompt, Limit(12), GREEDY)])
    for _ in range(4):
        engine.step()
    engine.load(dict(new.named_parameters()), version=6)
    written = finish_all(engine)["a"]
    assert written.versions.tolist() == [5] * 5 + [6] * 7

    from transformers import DynamicCache

    cache, tokens = DynamicCache(), []
    with torch.no_grad():
        logits = old(torch.tensor([prompt]), past_key_values=cache).logits[0, -1]
        for i in range(12):
            tokens.append(int(logits.argmax()))
            model = old if i < 4 else new
            logits = model(torch.tensor([[tokens[-1]]]), past_key_values=cache).logits[0, -1]
    assert written.token_ids.tolist() == tokens


def test_forced_interruption_writes_the_phrase_flagged_and_goes_on():
    model = model_of("llama")
    phrase, end = (7, 8, 9), EndOfThought.from_text("</>", [b"x"] * 9 + [b"</>"])
    control = Interruption(phrase, end, think_min=4, think_max=4, answer_tokens=3, stop_ids=())
    engine = LocalEngine(model, slots=2, columns=64)
    engine.submit([request(f"r{i}", p, control, seed=i) for i, p in enumerate(prompts(4))])
    interrupted = 0
    for written in finish_all(engine).values():
        if written.forced.any():
            interrupted += 1
            assert written.token_ids[4:7].tolist() == list(phrase)
            assert written.forced.tolist() == [False] * 4 + [True] * 3 + [False] * 3
            assert (written.logprobs[written.forced] == 0).all()
            assert len(written.token_ids) == 10
    assert interrupted >= 2


def test_tokens_after_the_phrase_are_drawn_given_the_phrase():
    model = model_of("llama")
    end = EndOfThought.from_text("</>", [b"x"] * 9 + [b"</>"])
    control = Interruption((7, 8, 9), end, 3, 3, answer_tokens=4)
    engine = LocalEngine(model, slots=1, columns=64)
    engine.submit([request("r", (1, 2), control, GREEDY)])
    written = finish_all(engine)["r"]
    if written.forced.any():
        prefix = torch.tensor([[1, 2, *written.token_ids[:6].tolist()]])
        expected = model.generate(prefix, attention_mask=torch.ones_like(prefix),
                                  max_new_tokens=4, do_sample=False, pad_token_id=0)  # fmt: skip
        assert written.token_ids[6:].tolist() == expected[0, 8:].tolist()


def test_stop_tokens_end_a_rollout_and_belong_to_it():
    model = model_of("llama")
    greedy = LocalEngine(model, slots=1, columns=64)
    greedy.submit([request("r", (5, 6), Limit(10), GREEDY)])
    tokens = finish_all(greedy)["r"].token_ids.tolist()
    stop = tokens[3]
    engine = LocalEngine(model, slots=1, columns=64)
    engine.submit([request("r", (5, 6), Limit(10, stop_ids=(stop,)), GREEDY)])
    written = finish_all(engine)["r"]
    assert written.finish == "stop"
    assert written.token_ids.tolist() == tokens[: tokens.index(stop) + 1]


def test_abort_returns_what_was_written_and_frees_the_row():
    engine = LocalEngine(model_of("llama"), slots=1, columns=64)
    engine.submit([request("a", (1,), Limit(20)), request("b", (2,), Limit(2))])
    engine.step()
    engine.step()
    (partial,) = engine.abort(["a"])
    assert (partial.request, partial.row) == ("a", 0)
    assert partial.turn.finish == "aborted" and len(partial.turn) >= 2
    assert set(finish_all(engine)) == {"b"}
    assert engine.health().running == 0


def test_columns_are_reused_when_they_run_out():
    """Many more tokens pass through than there are columns."""
    model = model_of("llama")
    engine = LocalEngine(model, slots=2, columns=24)
    engine.submit(request(f"r{i}", p[:4], Limit(15), GREEDY) for i, p in enumerate(prompts(12)))
    for key, written in finish_all(engine).items():
        ids = torch.tensor([prompts(12)[int(key[1:])][:4]])
        expected = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=15,
                                  do_sample=False, pad_token_id=0)  # fmt: skip
        assert written.token_ids.tolist() == expected[0, ids.shape[1] :].tolist()


def test_requests_that_cannot_fit_and_wrong_weights_are_refused():
    engine = LocalEngine(model_of("llama"), slots=1, columns=16)
    with pytest.raises(InputError, match="do not fit"):
        engine.submit([request("a", (1,) * 10, Limit(7))])
    with pytest.raises(InputError, match="empty prompt"):
        engine.submit([request("a", (), Limit(7))])
    with pytest.raises(InputError, match="do not fit the model"):
        engine.load({"nothing": torch.zeros(1)}, 1)


# -- groups and lanes -----------------------------------------------------------------------------


def same(found, expected):
    """Bit for bit, tokens and log-probs."""
    assert found.keys() == expected.keys()
    for key, rollout in expected.items():
        assert found[key].token_ids.tolist() == rollout.token_ids.tolist(), key
        assert found[key].logprobs.tolist() == rollout.logprobs.tolist(), key
        assert found[key].finish == rollout.finish


def steps(engine, count):
    """What so many steps gave, lane by lane."""
    done = {"train": {}, "validate": {}}
    for _ in range(count):
        step = engine.step()
        done[step.lane] |= {(w.request, w.row): w.turn for w in step.written}
    return done


def rest(engine):
    """All that is left of both lanes."""
    done = {"train": {}, "validate": {}}
    while engine.health().busy:
        for lane, found in steps(engine, 1).items():
            done[lane] |= found
    return done


def test_the_rollouts_of_a_group_have_seeds_of_their_own_and_are_told_apart():
    engine = LocalEngine(model_of("llama"), slots=3, columns=64)
    group = request("g", (3, 4, 5), Limit(12), seed=7, rows=5)
    engine.submit([group])
    done = finish_all(engine)
    assert set(done) == {("g", row) for row in range(5)}
    assert len({tuple(r.token_ids.tolist()) for r in done.values()}) == 5
    again = LocalEngine(model_of("llama"), slots=3, columns=64)
    again.submit([group.only([1, 4])])
    alone = finish_all(again)
    assert set(alone) == {("g", 1), ("g", 4)}
    for key, rollout in alone.items():
        assert rollout.token_ids.tolist() == done[key].token_ids.tolist()


def test_a_step_counts_the_tokens_it_wrote():
    engine = LocalEngine(model_of("llama"), slots=4, columns=64)
    engine.submit([request("a", (1, 2), Limit(6), rows=3), request("b", (3,), Limit(9))])
    counted, written = 0, 0
    while engine.health().busy:
        step = engine.step()
        counted += step.tokens
        written += sum(len(w.turn) for w in step.written)
    assert counted == written == 3 * 6 + 9


#: The fast path of Llama-shaped models, and the plain one through the model's own forward pass.
LANES = pytest.mark.parametrize("name", ["llama", "llama by torch", "gpt2"], indirect=True)


@pytest.fixture
def name(request, monkeypatch):
    """Of a model; one of them twice, the second time without the decoder in C."""
    if request.param.endswith(" by torch"):
        monkeypatch.setenv("SCALERL_CPU", "torch")
    return request.param.removesuffix(" by torch")


def training(n=6):
    """More than there are rows for, of many lengths."""
    return [request(f"t{i}", p, Limit(9 + 7 * (i % 3)), seed=i, rows=2)
            for i, p in enumerate(prompts(n))]  # fmt: skip


def validating(n=4):
    return [request(f"v{i}", p, Limit(5 + 9 * (i % 2)), seed=50 + i, rows=2)
            for i, p in enumerate(prompts(n, seed=9))]  # fmt: skip


def test_every_decoder_is_looked_at(monkeypatch):
    def kind(name):
        return type(LocalEngine(model_of(name), slots=2, columns=32).decoder).__name__

    assert kind("llama") == ("LlamaDecoder" if library() is None else "CDecoder")
    monkeypatch.setenv("SCALERL_CPU", "torch")
    assert (kind("llama"), kind("gpt2")) == ("LlamaDecoder", "ModelDecoder")
    monkeypatch.setenv("SCALERL_CPU", "off")
    assert kind("llama") == "ModelDecoder"
    monkeypatch.delenv("SCALERL_CPU")
    monkeypatch.setenv("SCALERL_NATIVE", "0")  # the switch of version 0.1
    assert kind("llama") == "LlamaDecoder"
    monkeypatch.setenv("SCALERL_CPU", "fast")
    with pytest.raises(InputError, match="set auto, torch or off"):
        kind("llama")


@LANES
@pytest.mark.parametrize("at", [1, 8, 20])
def test_a_validation_between_training_rollouts_changes_nothing_of_either(name, at):
    """Not one token and not one bit of a log-prob, wherever it comes in between."""
    model = model_of(name)
    alone = {}
    for lane, asked in (("train", training()), ("validate", validating())):
        engine = LocalEngine(model, slots=4, validation_slots=3, columns=64)
        engine.submit(asked, lane)
        alone[lane] = rest(engine)[lane]
    engine = LocalEngine(model, slots=4, validation_slots=3, columns=64)
    engine.submit(training())
    before = steps(engine, at)
    running = engine.health().running
    assert running, "rollouts are in flight"
    engine.submit(validating(), "validate")
    assert engine.health().lane == "validate"
    during = {}
    while engine.health().lane == "validate":
        step = engine.step()
        assert step.lane == "validate", "training stands still"
        during |= {(w.request, w.row): w.turn for w in step.written}
    assert engine.health().running == running
    after = rest(engine)
    assert before["validate"] == after["validate"] == {}
    same(during, alone["validate"])
    same(before["train"] | after["train"], alone["train"])


@LANES
def test_training_that_is_asked_for_during_a_validation_waits_for_its_end(name):
    engine = LocalEngine(model_of(name), slots=4, validation_slots=3, columns=64)
    engine.submit(validating(2), "validate")
    steps(engine, 2)
    engine.submit(training(2))
    assert engine.health().lane == "validate"
    done = rest(engine)
    alone = LocalEngine(model_of(name), slots=4, validation_slots=3, columns=64)
    alone.submit(training(2))
    same(done["train"], rest(alone)["train"])
    assert len(done["validate"]) == 4


@LANES
def test_one_set_of_weights_answers_a_whole_validation_and_rollouts_go_on_with_theirs(name):
    """Weights stay put unless somebody loads others; the cache of what stands still is kept."""
    old, new = model_of(name, 0), model_of(name, 1)
    engine = LocalEngine(copy.deepcopy(old), slots=4, validation_slots=3, columns=64, version=5)
    engine.submit([request("t", (1, 2, 3), Limit(12), GREEDY)])
    steps(engine, 3)
    engine.submit(validating(), "validate")
    weights = {k: v.clone() for k, v in engine.model.named_parameters()}
    during = {}
    while engine.health().lane == "validate":
        during |= {(w.request, w.row): w.turn for w in engine.step().written}
    assert all((r.versions == 5).all() for r in during.values())
    assert all(torch.equal(v, weights[k]) for k, v in engine.model.named_parameters())
    engine.load(dict(new.named_parameters()), version=6)
    rollout = rest(engine)["train"]["t", 0]
    assert rollout.versions.tolist() == [5] * 4 + [6] * 8
    plain = LocalEngine(copy.deepcopy(old), slots=4, columns=64, version=5)
    plain.submit([request("t", (1, 2, 3), Limit(12), GREEDY)])
    steps(plain, 3)
    plain.load(dict(new.named_parameters()), version=6)
    assert rollout.token_ids.tolist() == rest(plain)["train"]["t", 0].token_ids.tolist()


@LANES
def test_abort_works_in_the_lane_that_stands_still(name):
    """The others go on as if it had been done without a validation."""
    model = model_of(name)
    engine = LocalEngine(model, slots=4, validation_slots=3, columns=64)
    engine.submit(training())
    before = steps(engine, 4)["train"]
    engine.submit(validating(), "validate")
    steps(engine, 2)
    gone = engine.abort(["t0", "t5"])  # one in flight, one that waits
    assert {(w.request, w.row) for w in gone} == {("t0", 0), ("t0", 1)}
    assert all(w.turn.finish == "aborted" and len(w.turn) == 5 for w in gone)
    done = rest(engine)
    alone = LocalEngine(model, slots=4, validation_slots=3, columns=64)
    alone.submit(training())
    assert steps(alone, 4)["train"] == before == {}
    alone.abort(["t0", "t5"])
    same(done["train"], rest(alone)["train"])
    assert {name for name, _ in done["train"]} == {"t1", "t2", "t3", "t4"}
    other = LocalEngine(model, slots=4, validation_slots=3, columns=64)
    other.submit(validating(), "validate")
    same(done["validate"], rest(other)["validate"])


@LANES
def test_abort_in_the_lane_that_works_lets_the_other_go_on(name):
    engine = LocalEngine(model_of(name), slots=4, validation_slots=3, columns=64)
    engine.submit(training(2))
    before = steps(engine, 3)["train"]
    engine.submit(validating(), "validate")
    steps(engine, 2)
    gone = engine.abort([f"v{i}" for i in range(4)])
    assert len(gone) == 3 and engine.health().lane == "train"
    alone = LocalEngine(model_of(name), slots=4, validation_slots=3, columns=64)
    alone.submit(training(2))
    same(before | rest(engine)["train"], rest(alone)["train"])


# -- sampling -------------------------------------------------------------------------------------


def test_uniform_numbers_are_uniform_and_independent_of_order():
    seeds = torch.arange(2000)
    u = uniform(seeds, torch.zeros(2000, dtype=torch.long))
    assert u.min() >= 0 and u.max() < 1
    histogram = torch.histc(u, 20, 0, 1)
    assert ((histogram - 100) ** 2 / 100).sum() < 45  # chi-square, 19 degrees, p about 0.001
    next_ones = uniform(seeds, torch.ones(2000, dtype=torch.long))
    assert abs(np.corrcoef(u, next_ones)[0, 1]) < 0.06
    assert uniform(seeds[5:6], torch.zeros(1, dtype=torch.long)) == u[5]


def test_sampling_frequencies_follow_the_probabilities():
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))
    n = 20000
    u = uniform(torch.arange(n), torch.zeros(n, dtype=torch.long))
    ones = torch.ones(n)
    tokens, logprobs = sample(logits.expand(n, -1), ones, ones, torch.zeros(n).long(), u)
    shares = torch.bincount(tokens, minlength=4) / n
    np.testing.assert_allclose(shares, [0.5, 0.3, 0.15, 0.05], atol=0.012)
    np.testing.assert_allclose(logprobs.exp(), logits[0].exp()[tokens], rtol=1e-5)


@pytest.mark.parametrize(
    ("top_p", "top_k", "kept"), [(0.75, 0, 2), (1.0, 3, 3), (0.6, 3, 2), (0.01, 0, 1)]
)
def test_top_p_and_top_k_cut_and_renormalise(top_p, top_k, kept):
    probabilities = torch.tensor([0.3, 0.5, 0.05, 0.15])
    n = 4000
    u = uniform(torch.arange(n), torch.zeros(n, dtype=torch.long))
    tokens, logprobs = sample(
        probabilities.log().expand(n, -1),
        torch.ones(n),
        torch.full((n,), top_p),
        torch.full((n,), top_k),
        u,
    )
    best = probabilities.sort(descending=True).indices[:kept]
    assert set(tokens.tolist()) == set(best.tolist())
    expected = probabilities / probabilities[best].sum()
    np.testing.assert_allclose(logprobs.exp(), expected[tokens], rtol=1e-5)


@pytest.mark.skipif(library() is None, reason="no C compiler here")
def test_a_validation_has_threads_of_its_own():
    model = model_of("llama")
    engine = LocalEngine(model, slots=4, columns=64, validation_threads=2)
    engine.submit(training(2))
    assert engine.decoder.threads == 1
    engine.submit(validating(2), "validate")
    engine.step()
    assert (engine.lane, engine.decoder.threads) == ("validate", 2)
    while engine.health().busy:
        step = engine.step()
    assert (step.lane, engine.decoder.threads) == ("train", 1)
