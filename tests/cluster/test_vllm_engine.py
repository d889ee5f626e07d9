"""vLLM behind the engine's protocol: `make vllm`. Every token is replayed by a plain Hugging Face
loop with the weights of its version and the cache that was kept."""

import copy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    LlamaConfig,
    Qwen3MoeConfig,
)

sys.path.insert(0, str(Path(__file__).parents[1] / "end_to_end"))
from test_replay import replay

from scalerl.algorithm.episode import Episode, Group
from scalerl.algorithm.length import EndOfThought, Interruption, Limit
from scalerl.algorithm.options import options_from_recipe
from scalerl.engine.interface import EngineSpec, Request, Sampling
from scalerl.engine.registry import ENGINES
from scalerl.errors import InputError, PipelineError
from scalerl.models.routing import routers_of
from scalerl.models.tokens import token_pieces
from scalerl.recipe import Recipe
from scalerl.recipe.sections_runtime import OptimiserSection
from scalerl.trainer.local import LocalTrainer

#: The options of the default recipe, but for rollouts that are cut off: here all of them are.
SCALERL = replace(options_from_recipe(Recipe()), truncated="keep")
#: What a trainer is made with, where a test says nothing else.
TRAINER = {"head_precision": "fp32", "temperature": 1.0, "token_budget": 8192}

pytestmark = pytest.mark.vllm
TOLERANCE = 1e-3
WORDS = 64
PLAIN = Sampling()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two small models, with a tied head and without."""
    out = tmp_path_factory.mktemp("models")
    for name, tied in (("tied", True), ("untied", False)):
        torch.manual_seed(0)
        config = LlamaConfig(vocab_size=WORDS, hidden_size=64, intermediate_size=128,
                             num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
                             max_position_embeddings=256, initializer_range=0.3,
                             tie_word_embeddings=tied, eos_token_id=None)  # fmt: skip
        AutoModelForCausalLM.from_config(config).save_pretrained(out / name)
    return out


@pytest.fixture(scope="module", params=["tied", "untied"])
def made(request, folder):
    spec = EngineSpec(str(folder / request.param), "float32", "fp32", slots=8, validation_slots=4,
                      columns=128, device="cpu", trust_remote_code=False)  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(spec.model, dtype=torch.float32)
    return ENGINES["vllm"](spec), versions_of(model)


def versions_of(model, count=4):
    """The model as it is, and then with every tensor changed, again and again."""
    generator, found = torch.Generator().manual_seed(1), []
    for _ in range(count):
        found.append(copy.deepcopy(model).eval())
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(1 + 0.2 * torch.randn(p.shape, generator=generator))
    return found


def weights(model):
    return {n: p.detach() for n, p in model.named_parameters()}


def write(engine, models, requests, lane="train", every=4):
    """All rollouts, with the next version loaded every few steps."""
    engine.load(weights(models[0]), 0)
    engine.submit(requests, lane)
    found, steps = [], 0
    while engine.health().busy:
        found += engine.step().written
        steps += 1
        if steps % every == 0 and steps // every < len(models):
            engine.load(weights(models[steps // every]), steps // every)
    return found


PIECES = [bytes([i]) for i in range(60)] + [b"<", b"/", b">", b""]
FORCE = Interruption(phrase_ids=(5, 60, 61, 62), end=EndOfThought.from_text("</>", PIECES),
                     think_min=8,
                     think_max=20, answer_tokens=6, stop_ids=())  # fmt: skip


def requests_of(control, sampling=PLAIN, count=3, each=3):
    return [
        Request(f"q{i}", tuple(range(4 + i, 14 + 2 * i)), control,
                {row: 100 * i + row for row in range(each)}, sampling)
        for i in range(count)
    ]  # fmt: skip


def replayed(models, requests, found, temperature=1.0):
    """The largest difference of a log-prob to the replay."""
    gaps = []
    for w in found:
        r, prompt = w.turn, requests[w.request].prompt_token_ids
        again = replay(models, prompt, r.token_ids.tolist(), r.versions.tolist(), temperature)
        gaps.append(float(np.abs(r.logprobs - again)[~r.forced].max(initial=0.0)))
        assert (r.logprobs[r.forced] == 0).all()
    return max(gaps)


@pytest.mark.parametrize("sampling", [PLAIN, Sampling(0.7)])
def test_every_token_is_replayed_with_its_versions_weights_and_the_kept_cache(made, sampling):
    engine, models = made
    requests = {r.id: r for r in requests_of(FORCE, sampling)}
    found = write(engine, models, requests.values())
    assert len(found) == 9
    assert sum(len(set(w.turn.versions.tolist())) > 1 for w in found) > 3
    assert replayed(models, requests, found, sampling.temperature) < TOLERANCE
    forced = [w for w in found if w.turn.forced.any()]
    assert forced, "nobody was interrupted"
    for w in forced:  # each at the budget that its own seed gives it
        budget = FORCE.start(requests[w.request].seeds[w.row]).budget
        assert int(w.turn.forced.argmax()) == budget
        assert w.turn.token_ids[w.turn.forced].tolist() == list(FORCE.phrase_ids)


def test_a_later_turn_reads_only_what_is_not_in_full_blocks_of_the_cache(made):
    """Blocks of the turn before are found although weights have changed since."""
    engine, models = made
    old, new = models[:2]
    engine.load(weights(old), 0)
    first = Request("e", tuple(range(4, 34)), Limit(40), {0: 1}, one_by_one=True)
    engine.submit([first])
    (written,) = finished(engine)[0]
    ids = (*first.prompt_token_ids, *written.turn.token_ids.tolist(), 7, 8, 9)
    engine.load(weights(new), 1)
    engine.submit([Request("e#0#1", ids, Limit(12), {0: 2}, one_by_one=True, continues="e")])
    (second,), read = finished(engine)
    assert read == len(ids) - 64, "two full blocks of 32 tokens are kept"
    cache = DynamicCache()
    with torch.no_grad():
        old(torch.tensor([ids[:64]]), past_key_values=cache)
        more = torch.tensor([[*ids[64:], *second.turn.token_ids.tolist()]])
        logits = new(more, past_key_values=cache).logits[0, len(ids) - 64 - 1 : -1]
    expected = torch.log_softmax(logits, -1).gather(1, more[0, len(ids) - 64 :, None])[:, 0]
    np.testing.assert_allclose(second.turn.logprobs, expected, atol=TOLERANCE)
    # Another request with the same tokens, which does not continue the episode, shares nothing.
    engine.submit([Request("o", ids, Limit(2), {0: 3}, one_by_one=True, continues="p")])
    assert finished(engine)[1] == len(ids)


def finished(engine):
    """What is written until nothing is left, and the tokens read before later turns."""
    found, read = [], 0
    while engine.health().busy:
        step = engine.step()
        found += step.written
        read += step.read_tokens
    return found, read


def test_a_rollout_follows_from_its_seed_whoever_shares_the_batch(made):
    engine, models = made
    alone = write(engine, models[:1], requests_of(Limit(12, (3,)), count=1, each=1))
    among = write(engine, models[:1], requests_of(Limit(12, (3,)), count=3, each=2))
    same = next(w for w in among if (w.request, w.row) == ("q0", 0))
    assert same.turn.token_ids.tolist() == alone[0].turn.token_ids.tolist()


def test_top_p_and_top_k_give_the_log_prob_of_the_distribution_drawn_from(made):
    engine, models = made
    sampling = Sampling(1.0, top_p=0.7, top_k=5)
    requests = {r.id: r for r in requests_of(Limit(10, (3,)), sampling, count=2, each=2)}
    for w in write(engine, models[:1], requests.values()):
        ids = [*requests[w.request].prompt_token_ids, *w.turn.token_ids.tolist()]
        start = len(requests[w.request].prompt_token_ids)
        with torch.no_grad():
            logits = models[0](torch.tensor([ids])).logits[0, start - 1 : -1]
        for row, token, logprob in zip(logits, ids[start:], w.turn.logprobs, strict=True):
            p = row.softmax(-1)
            order = p.argsort(descending=True)[:5]
            kept = p[order] / p[order].sum()
            inside = kept.cumsum(0) - kept < 0.7
            nucleus = order[inside]
            assert token in nucleus.tolist()
            assert logprob == pytest.approx((p[token] / p[nucleus].sum()).log().item(), abs=1e-3)


def test_validation_holds_training_rollouts_whose_tokens_stay_the_same(made):
    engine, models = made
    quiet = write(engine, models[:1], requests_of(Limit(20, ())))
    engine.submit(requests_of(Limit(20, ())))
    found = []
    for _ in range(5):
        found += engine.step().written
    engine.submit(requests_of(Limit(9, ()), count=1, each=2), "validate")
    lanes = []
    while engine.health().busy:
        step = engine.step()
        lanes.append(step.lane)
        found += [w for w in step.written if step.lane == "train"]
    assert "validate" in lanes and lanes == sorted(lanes, key="validate train".index)
    key = lambda w: (w.request, w.row)  # noqa: E731
    for a, b in zip(sorted(quiet, key=key), sorted(found, key=key), strict=True):
        assert a.turn.token_ids.tolist() == b.turn.token_ids.tolist()


def test_more_prompts_than_one_step_reads_outlive_updates_and_a_validation(folder):
    """6,400 tokens of prompts, of which a step of vLLM's reads about 4,000."""
    spec = EngineSpec(str(folder / "tied"), "float32", "fp32", slots=64, validation_slots=64,
                      columns=128, device="cpu", trust_remote_code=False)  # fmt: skip
    models = versions_of(AutoModelForCausalLM.from_pretrained(spec.model, dtype=torch.float32))
    engine = ENGINES["vllm"](spec)
    rng = np.random.default_rng(0)
    requests = {
        f"{lane}{i}": Request(f"{lane}{i}", tuple(rng.integers(4, WORDS, 100).tolist()),
                              Limit(8, ()), {0: i}, PLAIN)
        for lane in ("train", "validate") for i in range(64)
    }  # fmt: skip
    engine.load(weights(models[0]), 0)
    found = []
    for version, lane in enumerate(("train", "validate"), start=1):
        engine.submit([r for name, r in requests.items() if name.startswith(lane)], lane)
        found += engine.step().written
        engine.load(weights(models[version]), version)
    for _ in range(100):
        found += engine.step().written
    assert not engine.health().busy
    assert len({(w.request, w.row) for w in found}) == len(found) == 128
    assert replayed(models, requests, found) < TOLERANCE


def test_a_rollout_that_is_no_longer_written_is_an_error_and_no_silence(made):
    engine, models = made
    engine.load(weights(models[0]), 0)
    engine.submit(requests_of(Limit(20, ()), count=1, each=2))
    engine.step()
    held, engine._scheduler.running = engine._scheduler.running, []
    with pytest.raises(PipelineError, match="vLLM generates no more tokens for 2 rollouts"):
        for _ in range(1000):
            engine.step()
    engine._scheduler.running = held
    engine.abort(["q0"])


def test_dropped_requests_give_back_what_was_written(made):
    engine, models = made
    engine.load(weights(models[0]), 0)
    engine.submit(requests_of(Limit(20, ()), count=2, each=2))
    for _ in range(4):
        engine.step()
    found = engine.abort(["q0"])
    assert [(w.row, len(w.turn), w.turn.finish) for w in found] == [
        (0, 4, "aborted"), (1, 4, "aborted"),
    ]  # fmt: skip
    assert engine.health().running == 2
    engine.abort(["q1"])
    assert not engine.health().busy


def all_but_one(given, old, kept):
    return {n: old[n] if n == kept else w for n, w in given.items()}


def half_of_one(given, old, kept):
    half = given[kept].clone()
    half[: len(half) // 2] = old[kept][: len(half) // 2]
    return {n: half if n == kept else w for n, w in given.items()}


@pytest.mark.parametrize("left", [all_but_one, half_of_one])
@pytest.mark.parametrize("kept", ["model.layers.1.mlp.up_proj.weight", "model.embed_tokens.weight",
                                  "model.norm.weight"])  # fmt: skip
def test_what_is_left_behind_of_a_tensor_is_found_at_the_first_update(
    made, monkeypatch, left, kept
):
    engine, models = made
    old, reload = weights(models[0]), engine._reload
    monkeypatch.setattr(engine, "_reload", lambda given: reload(left(given, old, kept)))
    engine._perturbation_verified = False
    with pytest.raises(PipelineError, match="does not have the trainer's weights with every"):
        engine.load(old, 0)
    monkeypatch.undo()
    engine.load(old, 0)


def test_a_tied_head_that_stays_as_it_was_is_found_at_the_first_update(made, monkeypatch):
    """What vLLM's own reload does."""
    engine, models = made
    if not engine.probe.tied:
        pytest.skip("not tied")
    engine.load(weights(models[1]), 0)

    def stale(given):
        engine.runner.reload_weights(weights_iterator=iter(given.items()))

    monkeypatch.setattr(engine, "_reload", stale)
    engine._perturbation_verified = False
    with pytest.raises(PipelineError, match="does not have the trainer's weights with every"):
        engine.load(weights(models[0]), 0)
    monkeypatch.undo()
    engine.load(weights(models[0]), 0)


def test_weights_without_one_of_their_tensors_do_not_fit(made):
    engine, models = made
    with pytest.raises(InputError, match=r"weights do not fit the model: model\.norm\.weight"):
        engine.load({n: w for n, w in weights(models[0]).items() if n != "model.norm.weight"}, 1)


def test_a_prefix_is_shared_within_a_version_and_never_with_another(made, monkeypatch):
    engine, models = made
    long = tuple(i % WORDS for i in range(70))
    cached, step = {}, engine.engine.step

    def looked_at():
        found = step()
        cached.update({o.request_id: o.num_cached_tokens or 0 for o in found})
        return found

    monkeypatch.setattr(engine.engine, "step", looked_at)
    for version in (0, 1, 0):  # the last one after the way back to a checkpoint
        engine.load(weights(models[version]), version)
        for number in range(2):
            cached.clear()
            engine.submit([Request(f"long {number}", long, Limit(6), {0: number})])
            found = []
            while engine.health().busy:
                found += engine.step().written
            # Two blocks of 32 tokens, of the request before it at this version.
            assert max(cached.values()) == (64 if number else 0), (version, number)
            r = found[0].turn
            expected = replay(models, long, r.token_ids.tolist(), r.versions.tolist())
            np.testing.assert_allclose(r.logprobs, expected, atol=TOLERANCE)


def test_a_stop_token_ends_a_rollout_and_is_its_last(made):
    engine, models = made
    stops = (3, 9, 27, 40)
    found = write(engine, models[:1], requests_of(Limit(40, stops)))
    ended = [w.turn for w in found if w.turn.finish == "stop"]
    assert len(ended) > 4
    for w in found:
        tokens = w.turn.token_ids.tolist()
        assert not set(tokens[:-1]) & set(stops)
        assert (tokens[-1] in stops) == (w.turn.finish == "stop")


def test_an_emulated_head_and_an_unknown_version_are_one_line(folder, monkeypatch):
    import vllm

    spec = EngineSpec(str(folder / "tied"), "float32", "bf16-emulated", 2, 2, 64, "cpu", False)
    with pytest.raises(InputError, match="cannot emulate a head"):
        ENGINES["vllm"](spec)
    monkeypatch.setattr(vllm, "__version__", "0.18.0")
    with pytest.raises(InputError, match=r"vLLM 0.18.0 is not supported: install vllm .*0.32"):
        ENGINES["vllm"](spec)


def test_an_fp32_head_over_bf16_is_verified_and_refused_where_it_is_none(folder, monkeypatch):
    from vllm.config.model import ModelConfig

    spec = EngineSpec(str(folder / "tied"), "bfloat16", "fp32", 2, 2, 64, "cpu", False)
    ENGINES["vllm"](spec)
    monkeypatch.setattr(ModelConfig, "head_dtype", property(lambda self: self.dtype))
    with pytest.raises(InputError, match=r"does not compute the head of .* in FP32"):
        ENGINES["vllm"](spec)
    ENGINES["vllm"](replace(spec, head="model"))


# -- mixtures of experts --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    """Experts in pairs whose routers are the same to rounding, three of four pairs asked: which of
    a pair is third is chance."""
    torch.manual_seed(0)
    config = Qwen3MoeConfig(vocab_size=WORDS, hidden_size=64, intermediate_size=128,
                            moe_intermediate_size=32, num_hidden_layers=3, num_attention_heads=2,
                            num_key_value_heads=2, head_dim=32, num_experts=8,
                            num_experts_per_tok=3, norm_topk_prob=True, initializer_range=0.3,
                            max_position_embeddings=256, mlp_only_layers=[1],
                            tie_word_embeddings=False, eos_token_id=None, bos_token_id=None,
                            pad_token_id=None)  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for router in routers_of(model):
            noise = 1e-7 * torch.randn(router.weight[::2].shape)
            router.weight[1::2] = router.weight[::2] + noise
    path = tmp_path_factory.mktemp("mixture")
    model.save_pretrained(path)
    spec = EngineSpec(str(path), "float32", "fp32", slots=8, validation_slots=4, columns=128,
                      device="cpu", trust_remote_code=False, record_routing=True)  # fmt: skip
    return ENGINES["vllm"](spec), model


def test_experts_of_a_mixture_are_recorded_and_replayed_in_the_trainer(mixture):
    engine, model = mixture
    requests = requests_of(FORCE)
    written = {(w.request, w.row): w.turn for w in write(engine, [model], requests)}
    groups = [
        Group(q.id, tuple(
            Episode.from_turn(q.prompt_token_ids, written[q.id, i]) for i in q.seeds
        ))
        for q in requests
    ]  # fmt: skip
    for group in groups:
        for e in group.episodes:
            assert e.experts.shape == (len(e.rows[0]) - 1, 2, 3)

    def gaps(**how):
        trainer = LocalTrainer(copy.deepcopy(model), SCALERL, OptimiserSection(), **TRAINER | how)
        scored = zip(trainer.score(groups), groups, strict=True)
        found = []
        for rows, group in scored:
            for logprobs, row in zip(rows, (e.rows[0] for e in group.episodes), strict=True):
                gaps = np.abs(logprobs - row.logprobs[row.written_N])
                found.append(gaps[row.policy_N[row.written_N]])
        return np.concatenate(found)

    assert gaps().max() > 0.05  # the same weights on both sides
    assert gaps(replay=True).max() < TOLERANCE


def test_weights_of_a_mixture_change_in_flight_and_its_experts_are_laid_out_anew(mixture):
    engine, model = mixture
    generator = torch.Generator().manual_seed(2)
    versions = []
    for _ in range(3):  # no pair of experts is alike any more
        model = copy.deepcopy(model).eval()
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(1 + 0.2 * torch.randn(p.shape, generator=generator))
        versions.append(model)
    requests = {r.id: r for r in requests_of(FORCE)}
    found = write(engine, versions, requests.values())
    assert sum(len(set(w.turn.versions.tolist())) > 1 for w in found) > 3
    assert replayed(versions, requests, found) < TOLERANCE


def test_experts_of_a_model_that_has_none_are_refused_in_one_line(folder):
    spec = EngineSpec(str(folder / "tied"), "float32", "fp32", 2, 2, 64, "cpu", False,
                      record_routing=True)  # fmt: skip
    with pytest.raises(InputError, match="vLLM does not report the experts of this model"):
        ENGINES["vllm"](spec)


# -- a pretrained model ---------------------------------------------------------------------------


def test_a_pretrained_model_is_replayed_through_updates_in_flight():
    """SmolLM2-135M, its weights changed twice while its rollouts are written."""
    script = Path(__file__).parents[2] / "examples" / "smollm2.py"
    made = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    path = made.stdout.split()[-1]
    engine = ENGINES["vllm"](EngineSpec(path, "float32", "fp32", slots=4, validation_slots=2,
                                        columns=128, device="cpu",
                                        trust_remote_code=False))  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    generator, models = torch.Generator().manual_seed(1), []
    for _ in range(3):
        models.append(copy.deepcopy(model).eval())
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(1 + 0.02 * torch.randn(p.shape, generator=generator))
    tokenizer = AutoTokenizer.from_pretrained(path)
    asked = ["What is the capital of France?", "Count from one to twenty."]
    close = tuple(tokenizer(" So the answer is", add_special_tokens=False)["input_ids"])
    end = EndOfThought.from_text(" is", token_pieces(tokenizer, frozenset()))
    force = Interruption(phrase_ids=close, end=end, think_min=10, think_max=16, answer_tokens=8,
                         stop_ids=())  # fmt: skip
    requests = {
        q: Request(q, tuple(tokenizer(q)["input_ids"]), force, {0: i, 1: 7 + i})
        for i, q in enumerate(asked)
    }
    found = write(engine, models, requests.values(), every=6)
    assert all(len(set(w.turn.versions.tolist())) > 1 for w in found)
    assert any(w.turn.forced.any() for w in found)
    assert replayed(models, requests, found) < TOLERANCE
