"""The trainer's own way through Llama-shaped models: the log-probs and gradients of the model's own
forward pass, whichever rows share a prompt."""

import copy

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from scalerl.algorithm.objective import Options
from scalerl.trainer import local
from scalerl.trainer.llama import LlamaBody, groups_of
from scalerl.trainer.local import LocalTrainer, Optimiser

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
}


def model_of(config):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return model


def rows(seed=0, prompts=3, generations=4):
    rng = np.random.default_rng(seed)
    asked, written = [], []
    for _ in range(prompts):
        prompt = rng.integers(0, VOCABULARY, int(rng.integers(1, 7)))
        for _ in range(generations):
            asked.append(prompt)
            written.append(rng.integers(0, VOCABULARY, int(rng.integers(1, 9))))
    return asked, written


def trainer(model, *, own_way=True):
    t = LocalTrainer(model, Options(), Optimiser())
    assert (t.body is not None) == own_way
    return t


@pytest.mark.parametrize("name", KNOWN)
def test_logprobs_and_every_gradient_are_the_models_own(name, monkeypatch):
    ours = trainer(model_of(KNOWN[name]))
    monkeypatch.setattr(local.LlamaBody, "of", staticmethod(lambda model: None))
    theirs = trainer(copy.deepcopy(ours.model), own_way=False)
    asked, written = rows()
    weight = torch.randn(len(asked), max(len(c) for c in written))
    for t in (ours, theirs):
        found, entropy = t.logprobs(asked, written)
        (found * weight).sum().backward()
        t.seen = found.detach(), entropy
    torch.testing.assert_close(ours.seen, theirs.seen, atol=1e-5, rtol=1e-5)
    expected = dict(theirs.model.named_parameters())
    for key, p in ours.model.named_parameters():
        torch.testing.assert_close(p.grad, expected[key].grad, atol=2e-5, rtol=2e-4, msg=key)


@pytest.mark.parametrize("name", KNOWN)
def test_gradients_summed_over_micro_batches_are_the_same(name):
    whole, parts = trainer(model_of(KNOWN[name])), trainer(model_of(KNOWN[name]))
    asked, written = rows()
    whole.logprobs(asked, written)[0].sum().backward()
    with parts.body.accumulating():
        for part in groups_of(asked, written, 20):
            found, _ = parts.logprobs([asked[i] for i in part], [written[i] for i in part])
            found.sum().backward()
    expected = dict(whole.model.named_parameters())
    for key, p in parts.model.named_parameters():
        torch.testing.assert_close(p.grad, expected[key].grad, atol=2e-5, rtol=2e-4, msg=key)


def test_single_tokens_and_rows_without_company():
    t = trainer(model_of(KNOWN["llama"]))
    asked, written = [np.array([3]), np.array([4, 5])], [np.array([6]), np.array([7])]
    found, _ = t.logprobs(asked, written)
    for p, c, row in zip(asked, written, found, strict=True):
        logits = t.model(torch.from_numpy(p)[None]).logits[0, -1]
        expected = torch.log_softmax(logits, -1)[int(c[0])]
        torch.testing.assert_close(row[0], expected, atol=1e-5, rtol=1e-5)


def test_long_rows_go_through_the_models_own_forward_pass(monkeypatch):
    t = trainer(model_of(KNOWN["llama"]))
    asked, written = rows()
    short, _ = t.logprobs(asked, written)
    monkeypatch.setattr(local, "LONGEST", 4)
    monkeypatch.setattr(LlamaBody, "hidden", None)
    long, _ = t.logprobs(asked, written)
    torch.testing.assert_close(short, long, atol=1e-5, rtol=1e-5)


def test_what_would_be_computed_differently_is_refused():
    frozen = model_of(KNOWN["llama"])
    frozen.model.embed_tokens.weight.requires_grad_(False)
    assert LlamaBody.of(frozen) is None
    assert LlamaBody.of(model_of(LlamaConfig(**SMALL, attention_dropout=0.1))) is None
    assert LlamaBody.of(model_of(LlamaConfig(**SMALL, hidden_act="gelu"))) is None
    assert LlamaBody.of(model_of(MistralConfig(**SMALL, sliding_window=8))) is None


def test_micro_batches_hold_every_row_once_and_keep_groups_together():
    asked, written = rows(prompts=8)
    parts = groups_of(asked, written, 40)
    assert sorted(i for part in parts for i in part) == list(range(len(asked)))
    prompts_of = [len({asked[i].tobytes() for i in part}) for part in parts]
    assert sum(prompts_of) <= len(parts) + 8
    assert groups_of([], [], 40) == []


def test_weights_that_change_between_calls_are_seen():
    t = trainer(model_of(KNOWN["llama"]))
    asked, written = rows()
    with torch.no_grad():
        before, _ = t.logprobs(asked, written)
        for p in t.model.parameters():
            p.mul_(1.1)
        after, _ = t.logprobs(asked, written)
    assert (before - after).abs().max() > 1e-3


def test_the_same_batch_gives_the_same_bits():
    grads = []
    for _ in range(2):
        t = trainer(model_of(KNOWN["llama"]))
        t.logprobs(*rows())[0].sum().backward()
        grads.append([p.grad.clone() for p in t.model.parameters()])
    for a, b in zip(*grads, strict=True):
        assert torch.equal(a, b)
