"""The trainer's own way through Llama-shaped models: the log-probs and gradients of the model's own
forward pass, whichever rows share a prompt."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from scalerl.algorithm.episode import Episode, Turn
from scalerl.algorithm.packing import pack
from scalerl.models.cpu.library import library
from scalerl.models.cpu.packed import C_KERNELS, TORCH_KERNELS, PackedLlama
from scalerl.models.cpu.packing import PackedRows
from scalerl.models.cpu.shape import LlamaShape
from scalerl.models.rows import FlatRows
from scalerl.trainer import scorer
from scalerl.trainer.scorer import Scorer

VOCABULARY = 30
SMALL = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2,
         "num_attention_heads": 4, "intermediate_size": 64, "num_key_value_heads": 2,
         "max_position_embeddings": 256, "initializer_range": 0.2, "pad_token_id": None,
         "eos_token_id": None, "bos_token_id": None}  # fmt: skip
KNOWN = {
    "llama": LlamaConfig(**SMALL),
    "llama, biases": LlamaConfig(**SMALL, attention_bias=True),
    "llama, tied": LlamaConfig(**SMALL, tie_word_embeddings=True),
    "qwen2": Qwen2Config(**SMALL),
    "qwen3": Qwen3Config(**SMALL, head_dim=16),
    "mistral": MistralConfig(**SMALL, sliding_window=None),
    "llama, wide heads": LlamaConfig(**SMALL, head_dim=12),
}
#: By torch, and in C where there is a compiler.
WAYS = ["torch"] if library() is None else ["torch", "auto"]


def model_of(config):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return model


def batch_of(*groups):
    """From (prompt, what followed it) of each group."""
    episodes = [Episode.from_turn(prompt, Turn.from_lists(ids))
                for prompt, written in groups for ids in written]  # fmt: skip
    return pack(episodes, np.repeat(range(len(groups)), [len(written) for _, written in groups]))


def batch(seed=0, prompts=3, generations=4):
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(prompts):
        prompt = rng.integers(0, VOCABULARY, int(rng.integers(1, 7)))
        written = [rng.integers(0, VOCABULARY, int(rng.integers(1, 9))) for _ in range(generations)]
        out.append((prompt, written))
    return batch_of(*out)


def scorer_of(model, *, packed=True):
    made = Scorer(model, "fp32", 1.0)
    assert (made.packed is not None) == packed
    return made


def exact_of(model):
    """In FP64, by the plain forward pass of one row after the other."""
    made = scorer_of(model.double(), packed=False)
    made.attention = None
    return made


def errors(scored, expected):
    """The largest error of log-probs and of every gradient, each by the size of what it is of."""
    (found, model), (truth, exact) = scored, expected
    right = dict(exact.named_parameters())
    pairs = [(found, truth)] + [(p.grad, right[n].grad) for n, p in model.named_parameters()]
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


def learnt(s, whole, parts=None):
    """Log-probs and gradients, of all episodes at once or summed over micro-batches."""
    # What a loss might give each token: both signs, several sizes.
    weight_N = torch.randn(len(whole.ids_N), generator=torch.Generator().manual_seed(0))
    found_N = torch.zeros(len(whole.ids_N), dtype=torch.float64)
    # Without accumulators gradients go to the parameters, in one sum or in several.
    for episodes in [np.arange(len(whole))] if parts is None else parts:
        part, at_N = whole.take(episodes)
        with s.learning(whole):
            logprobs_N = s.score(part).logprobs_N
            (logprobs_N * weight_N[at_N]).sum().backward()
        found_N[at_N] += logprobs_N.detach()
    return found_N, s.model


@pytest.mark.parametrize("mode", WAYS)
@pytest.mark.parametrize("name", KNOWN)
def test_logprobs_and_every_gradient_are_the_models_own(name, mode, monkeypatch):
    """Against FP64, no worse than thrice the model's own forward pass in FP32: rounding, not more.
    All rows at once, and in micro-batches that cut through groups."""
    monkeypatch.setenv("SCALERL_CPU", mode)
    whole, cut = scorer_of(model_of(KNOWN[name])), scorer_of(model_of(KNOWN[name]))
    assert whole.packed.kernels is (C_KERNELS if mode == "auto" else TORCH_KERNELS)
    parts = cut.micro_batches(batch(), 20)
    assert len(parts) == 3
    monkeypatch.setattr(scorer.PackedLlama, "from_model", staticmethod(lambda model: None))
    own = scorer_of(model_of(KNOWN[name]), packed=False)
    exact = learnt(exact_of(model_of(KNOWN[name])), batch())
    rounding = errors(learnt(own, batch()), exact)
    assert rounding < 1e-5
    assert errors(learnt(whole, batch()), exact) < 3 * rounding
    assert errors(learnt(cut, batch(), parts), exact) < 3 * rounding


@pytest.mark.parametrize("mode", WAYS)
def test_gradients_of_longer_rows_too(mode, monkeypatch):
    """Several tiles in both directions, rows of many lengths."""
    monkeypatch.setenv("SCALERL_CPU", mode)
    rng = np.random.default_rng(3)
    sizes = (23, (61, 1, 40, 2)), (5, (17, 70)), (40, (33,))
    long = batch_of(
        *(
            (rng.integers(0, VOCABULARY, p), [rng.integers(0, VOCABULARY, n) for n in lengths])
            for p, lengths in sizes
        )
    )
    packed = scorer_of(model_of(KNOWN["llama"]))
    monkeypatch.setattr(scorer.PackedLlama, "from_model", staticmethod(lambda model: None))
    own = scorer_of(model_of(KNOWN["llama"]), packed=False)
    exact = exact_of(model_of(KNOWN["llama"]))
    found = [learnt(s, long) for s in (packed, own, exact)]
    assert errors(found[0], found[2]) < 3 * errors(found[1], found[2])


def test_spans_are_prompts_and_rows_without_padding():
    """Tokens of a row, of its prompt, and where its probabilities are kept; a row of one token
    predicts from its prompt alone and has none."""
    shape = LlamaShape(heads=2, kv_heads=1, size=2, eps=1e-6)
    row_N = np.repeat(range(5), [3, 1, 3, 1, 2])
    flat = FlatRows.from_tokens(
        row_N, row_N, row_N, parent_R=np.array([-1, -1, 0, 0, 1]), scored_N=row_N > 1
    )
    spans, room = PackedRows(flat, shape).spans
    assert spans.tolist() == [
        [0, 3, 0, 0, 0],
        [3, 1, 0, 0, 2 * 3 * 32],
        [4, 2, 0, 3, 2 * 4 * 32],
        [6, 1, 3, 1, 2 * 6 * 32],
    ]
    assert room == 2 * 7 * 32


def test_single_tokens_and_rows_without_company():
    s = scorer_of(model_of(KNOWN["llama"]))
    alone = batch_of(([3], [[6]]), ([4, 5], [[7]]))
    found = s.score(alone).logprobs_N[alone.written_N]
    for prompt, token, logprob in zip(([3], [4, 5]), (6, 7), found, strict=True):
        logits = s.model(torch.tensor([prompt])).logits[0, -1]
        expected = torch.log_softmax(logits, -1)[token]
        torch.testing.assert_close(logprob, expected, atol=1e-5, rtol=1e-5)


def test_a_prompt_is_computed_once_for_its_rows_and_last_tokens_not_at_all():
    s = scorer_of(model_of(KNOWN["llama"]))
    assert s.score(batch_of((range(5), [range(3), range(4), range(1)]))).tokens == 5 + 2 + 3 + 0


def test_long_rows_go_through_the_models_own_forward_pass(monkeypatch):
    s = scorer_of(model_of(KNOWN["llama"]))
    short = s.logprobs(batch(), 4096)
    monkeypatch.setattr(scorer, "LONGEST", 4)
    monkeypatch.setattr(PackedLlama, "hidden", None)
    long = s.logprobs(batch(), 4096)
    torch.testing.assert_close(short, long, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("mode", WAYS)
def test_frozen_weights_get_no_gradient_and_the_others_the_same(mode, monkeypatch):
    """As with an adapter: only some of the weights are trained."""
    monkeypatch.setenv("SCALERL_CPU", mode)
    frozen = model_of(KNOWN["llama"])
    for name, parameter in frozen.named_parameters():
        parameter.requires_grad_("proj" in name)
    s, own = scorer_of(frozen), scorer_of(model_of(KNOWN["llama"]))
    for each in (s, own):
        with each.learning(batch()) as accumulators:
            each.score(batch(), accumulators[0]).logprobs_N.sum().backward()
    for (name, found), right in zip(frozen.named_parameters(), own.model.parameters(), strict=True):
        if "proj" in name:
            torch.testing.assert_close(found.grad, right.grad, rtol=0, atol=0)
        else:
            assert found.grad is None


def test_what_would_be_computed_differently_is_refused():
    assert PackedLlama.from_model(model_of(LlamaConfig(**SMALL, attention_dropout=0.1))) is None
    assert PackedLlama.from_model(model_of(LlamaConfig(**SMALL, hidden_act="gelu"))) is None
    assert PackedLlama.from_model(model_of(MistralConfig(**SMALL, sliding_window=8))) is None


def test_weights_that_change_between_calls_are_seen():
    s = scorer_of(model_of(KNOWN["llama"]))
    with torch.no_grad():
        before = s.score(batch()).logprobs_N
        for p in s.model.parameters():
            p.mul_(1.1)
        after = s.score(batch()).logprobs_N
    assert (before - after).abs().max() > 1e-3


def test_the_same_batch_gives_the_same_bits():
    grads = []
    for _ in range(2):
        s = scorer_of(model_of(KNOWN["llama"]))
        s.score(batch()).logprobs_N.sum().backward()
        grads.append([p.grad.clone() for p in s.model.parameters()])
    for a, b in zip(*grads, strict=True):
        assert torch.equal(a, b)
