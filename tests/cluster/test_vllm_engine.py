"""vLLM behind the engine's protocol: `make vllm`. Every token is replayed by a plain Hugging Face
loop with the weights of its version and the cache that was kept."""

import copy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

sys.path.insert(0, str(Path(__file__).parents[1] / "end_to_end"))
from test_replay import replay

from scalerl.algorithm.length import EndOfThought, Interruption, Limit
from scalerl.engine.interface import EngineSpec, Request, Sampling
from scalerl.engine.registry import ENGINES
from scalerl.errors import InputError, PipelineError

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
                      columns=128)  # fmt: skip
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
FORCE = Interruption(phrase_ids=(5, 60, 61, 62), end=EndOfThought.of("</>", PIECES), think_min=8,
                     think_max=20, answer_tokens=6, stop_ids=())  # fmt: skip


def requests_of(control, sampling=PLAIN, count=3, each=3):
    return [
        Request(f"q{i}", tuple(range(4 + i, 14 + 2 * i)), control,
                {row: 100 * i + row for row in range(each)}, sampling)
        for i in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("sampling", [PLAIN, Sampling(0.7)])
def test_every_token_is_replayed_with_its_versions_weights_and_the_kept_cache(made, sampling):
    engine, models = made
    requests = {r.id: r for r in requests_of(FORCE, sampling)}
    found = write(engine, models, requests.values())
    assert len(found) == 9
    assert sum(len(set(w.rollout.versions.tolist())) > 1 for w in found) > 3
    for w in found:
        r = w.rollout
        prompt = requests[w.request].prompt_token_ids
        expected = replay(models, prompt, r.token_ids.tolist(), r.versions.tolist(),
                          sampling.temperature)  # fmt: skip
        free = ~r.forced
        np.testing.assert_allclose(r.logprobs[free], np.asarray(expected)[free], atol=TOLERANCE)
        assert (r.logprobs[r.forced] == 0).all()
    assert any(r.rollout.forced.any() for r in found), "nobody was interrupted"


def test_a_rollout_follows_from_its_seed_whoever_shares_the_batch(made):
    engine, models = made
    alone = write(engine, models[:1], requests_of(Limit(12, (3,)), count=1, each=1))
    among = write(engine, models[:1], requests_of(Limit(12, (3,)), count=3, each=2))
    same = next(w for w in among if (w.request, w.row) == ("q0", 0))
    assert same.rollout.token_ids.tolist() == alone[0].rollout.token_ids.tolist()


def test_top_p_and_top_k_give_the_log_prob_of_the_distribution_drawn_from(made):
    engine, models = made
    sampling = Sampling(1.0, top_p=0.7, top_k=5)
    requests = {r.id: r for r in requests_of(Limit(10, (3,)), sampling, count=2, each=2)}
    for w in write(engine, models[:1], requests.values()):
        ids = [*requests[w.request].prompt_token_ids, *w.rollout.token_ids.tolist()]
        start = len(requests[w.request].prompt_token_ids)
        with torch.no_grad():
            logits = models[0](torch.tensor([ids])).logits[0, start - 1 : -1]
        for row, token, logprob in zip(logits, ids[start:], w.rollout.logprobs, strict=True):
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
        assert a.rollout.token_ids.tolist() == b.rollout.token_ids.tolist()


def test_dropped_requests_give_back_what_was_written(made):
    engine, models = made
    engine.load(weights(models[0]), 0)
    engine.submit(requests_of(Limit(20, ()), count=2, each=2))
    for _ in range(4):
        engine.step()
    found = engine.abort(["q0"])
    assert [(w.row, len(w.rollout), w.rollout.finish) for w in found] == [
        (0, 4, "aborted"), (1, 4, "aborted"),
    ]  # fmt: skip
    assert engine.health().running == 2
    engine.abort(["q1"])
    assert not engine.health().busy


def test_a_tensor_that_is_left_behind_is_found_at_the_first_update(made, monkeypatch):
    engine, models = made
    reload, kept = engine._reload, "model.layers.1.mlp.up_proj.weight"
    if engine.probe.tied:
        kept = "model.embed_tokens.weight"

    def all_but_one(given):
        reload({n: w if n != kept else weights(models[0])[kept] for n, w in given.items()})

    monkeypatch.setattr(engine, "_reload", all_but_one)
    engine._proven = False
    with pytest.raises(PipelineError, match="does not have the trainer's weights with every"):
        engine.load(weights(models[0]), 0)
    monkeypatch.undo()
    engine.load(weights(models[0]), 0)
    with pytest.raises(InputError, match="weights do not fit the model"):
        engine.load({n: w for n, w in weights(models[0]).items() if n != kept}, 1)


def test_an_emulated_head_and_an_unknown_version_are_one_line(folder, monkeypatch):
    import vllm

    spec = EngineSpec(str(folder / "tied"), "float32", "bf16-emulated", 2, 2, 64)
    with pytest.raises(InputError, match="cannot emulate a BF16 head"):
        ENGINES["vllm"](spec)
    monkeypatch.setattr(vllm, "__version__", "0.18.0")
    with pytest.raises(InputError, match=r"vLLM 0.18.0 is not supported: install vllm .*0.32"):
        ENGINES["vllm"](spec)
