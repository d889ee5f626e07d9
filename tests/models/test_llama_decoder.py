"""The fast decoders of Llama-shaped models, by torch and in C: the model's own numbers, live
weights, and refusal of everything they do not know."""

import copy

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Qwen2Config,
    Qwen3Config,
)

from scalerl.algorithm.length import Limit
from scalerl.engine.interface import Request, Sampling
from scalerl.engine.local import LocalEngine
from scalerl.engine.model_decoder import ModelDecoder
from scalerl.models.cpu.c_decode import CDecoder
from scalerl.models.cpu.decode import LlamaDecoder
from scalerl.models.cpu.library import library
from scalerl.models.head import use_head_precision
from scalerl.models.rows import Compaction

VOCABULARY = 40
SMALL = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2,
         "num_attention_heads": 4, "max_position_embeddings": 256, "initializer_range": 0.3,
         "intermediate_size": 64, "num_key_value_heads": 2,
         "pad_token_id": None, "eos_token_id": None, "bos_token_id": None}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 64}  # fmt: skip
KNOWN = {
    "llama": LlamaConfig(**SMALL),
    "llama, one head per query": LlamaConfig(**SMALL | {"num_key_value_heads": 4}),
    "llama, biases": LlamaConfig(**SMALL, attention_bias=True),
    "llama, tied": LlamaConfig(**SMALL, tie_word_embeddings=True),
    "llama, wide heads": LlamaConfig(**SMALL, head_dim=12),
    "llama 3": LlamaConfig(**SMALL, rope_parameters=LLAMA3),
    "qwen2": Qwen2Config(**SMALL),
    "qwen3": Qwen3Config(**SMALL, head_dim=16),
    "mistral": MistralConfig(**SMALL, sliding_window=None),
}
UNKNOWN = {
    "a window": MistralConfig(**SMALL, sliding_window=8),
    "another activation": LlamaConfig(**SMALL, hidden_act="gelu"),
    "angles that depend on the length": LlamaConfig(
        **SMALL, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    ),
    "biases in the MLP": LlamaConfig(**SMALL, mlp_bias=True),
    "experts": MixtralConfig(**SMALL, num_local_experts=4, num_experts_per_tok=2),
    "gpt2": GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=256),
}
DECODERS = [LlamaDecoder] + [CDecoder] * (library() is not None)
PROMPTS = [(1, 2, 3), (4,), (1, 2, 3), (5, 6, 7, 8, 9, 10, 11), (12, 13)]


def model_of(config, seed=0):
    """With norms and biases that are not the ones and zeros they are initialised to."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return model


def last_logits(model, sequences):
    with torch.no_grad():
        return torch.stack([model(torch.tensor([s])).logits[0, -1] for s in sequences])


@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.parametrize("name", KNOWN)
def test_logits_are_the_models_own_while_rows_join_and_leave(name, kind):
    """Against FP64, no worse than thrice the model's own pass in FP32: rounding, and no more."""
    model = model_of(KNOWN[name])
    exact = copy.deepcopy(model).double()
    decoder = kind.from_model(model, rows_max=6, columns=32)
    assert decoder is not None
    rng = np.random.default_rng(0)
    sequences = list(PROMPTS)
    ours, own = [], []

    def compare(logits, sequences):
        truth = last_logits(exact, sequences)
        ours.append(float((logits - truth).abs().max()))
        own.append(float((last_logits(model, sequences) - truth).abs().max()))

    compare(decoder.prefill(PROMPTS, range(len(PROMPTS))), sequences)
    for step in range(12):
        tokens = rng.integers(0, VOCABULARY, len(sequences))
        sequences = [(*s, int(t)) for s, t in zip(sequences, tokens, strict=True)]
        compare(decoder.decode(torch.from_numpy(tokens)), sequences)
        if step in (3, 7):
            gone = np.array([i in (0, 3) for i in range(len(sequences))])
            compaction = Compaction.from_mask(gone)
            decoder.drop_rows(compaction)
            for into, out_of in zip(compaction.into, compaction.out_of, strict=True):
                sequences[into] = sequences[out_of]
            sequences = sequences[: compaction.rows]
            sequences += [(3, 1, 4, 1), (3, 1, 4, 1)]
            compare(decoder.prefill(sequences[-1:], [0, 0]), sequences[-2:])
    assert max(own) < 1e-4
    assert max(ours) < 3 * max(own)


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_known_goes_through_the_models_own_forward_pass(name):
    assert isinstance(LocalEngine(model_of(UNKNOWN[name])).decoder, ModelDecoder)


@pytest.mark.parametrize("kind", DECODERS)
def test_hooks_and_other_dtypes_are_left_to_the_model(kind):
    hooked = model_of(KNOWN["llama"])
    hooked.model.layers[0].mlp.register_forward_hook(lambda *_: None)
    assert kind.from_model(hooked, 2, 8) is None
    assert kind.from_model(model_of(KNOWN["llama"]).bfloat16(), 2, 8) is None


@pytest.mark.parametrize("kind", DECODERS)
def test_a_model_that_only_looks_like_a_llama_is_found_out(kind):
    """By comparing numbers: the embedding is changed where no attribute shows it."""
    model = model_of(KNOWN["llama"])
    model.model.embed_tokens.forward = lambda ids: 2 * model.model.embed_tokens.weight[ids]
    assert kind.from_model(model, 2, 8) is None


@pytest.mark.parametrize("name", ["llama", "llama, tied", "llama, biases", "qwen2", "qwen3"])
def test_new_weights_reach_every_copy_in_all_engines_over_a_model(name):
    """Every tensor differs between the two models."""
    model, new = model_of(KNOWN[name], 0), model_of(KNOWN[name], 1)
    first, second = (LocalEngine(model, slots=2, columns=32) for _ in range(2))
    for engine in (first, second):
        engine.submit([Request("old", (1, 2, 3), Limit(3), {0: 0}, Sampling(temperature=0.0))])
        while engine.health().busy:
            engine.step()
    first.load(dict(new.named_parameters()), version=1)
    for engine in (first, second):
        found = engine.decoder.prefill(PROMPTS[:2], [0, 1])
        torch.testing.assert_close(found, last_logits(new, PROMPTS[:2]), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.parametrize("token", [-1, VOCABULARY])
def test_a_token_that_the_model_does_not_know_is_an_error(kind, token):
    decoder = kind.from_model(model_of(KNOWN["llama"]), rows_max=4, columns=32)
    decoder.prefill(PROMPTS[:2], [0, 1])
    with pytest.raises(IndexError):
        decoder.decode(torch.tensor([1, token]))


@pytest.mark.parametrize("kind", DECODERS)
def test_a_changed_parameter_alone_is_noticed(kind):
    """Whichever it is, and however it was changed."""
    model = model_of(KNOWN["qwen3"])
    decoder = kind.from_model(model, rows_max=4, columns=32)
    for p in model.parameters():
        with torch.no_grad():
            p.mul_(1.1)
        torch.testing.assert_close(
            decoder.prefill(PROMPTS[:1], [0]), last_logits(model, PROMPTS[:1]), atol=5e-5, rtol=1e-4
        )
        after = decoder.decode(torch.tensor([5]))
        expected = last_logits(model, [(*PROMPTS[0], 5)])
        torch.testing.assert_close(after, expected, atol=5e-5, rtol=1e-4)
        decoder.drop_rows(Compaction.from_mask(np.array([True])))


@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.parametrize("precision", ["fp32", "bf16-emulated"])
def test_the_heads_precision_is_the_models(precision, kind):
    model = model_of(KNOWN["llama"])
    use_head_precision(model, precision)
    decoder = kind.from_model(model, rows_max=4, columns=32)
    found = decoder.prefill(PROMPTS[:2], [0, 1])
    torch.testing.assert_close(found, last_logits(model, PROMPTS[:2]), atol=0.02, rtol=1e-2)
    assert (found.bfloat16().float() == found).all() == (precision == "bf16-emulated")


@pytest.mark.skipif(library() is None, reason="no C compiler here")
def test_threads_and_company_do_not_change_a_bit():
    """Many rows by one thread, by three, and a few of them alone."""
    model = model_of(KNOWN["qwen2"])
    prompts = [tuple(range(1, 2 + i % 7)) for i in range(30)]
    which = [i % 30 for i in range(300)]
    tokens = torch.from_numpy(np.random.default_rng(0).integers(0, VOCABULARY, (9, 300)))
    found = []
    for threads, rows in ((1, 300), (3, 300), (1, 7)):
        decoder = CDecoder.from_model(model, rows_max=300, columns=32)
        decoder.threads = threads
        decoder.prefill(prompts, which[:rows])
        with torch.inference_mode():
            found.append([decoder._decode(t[:rows].contiguous()) for t in tokens])
    for one, three, few in zip(*found, strict=True):
        assert torch.equal(one, three)
        assert torch.equal(one[:7], few)


def test_the_same_requests_give_the_same_bits():
    def write():
        engine = LocalEngine(copy.deepcopy(model), slots=3, columns=32)
        engine.submit(Request(f"{i}", p, Limit(5 + i), {0: i}) for i, p in enumerate(PROMPTS))
        done = {}
        while engine.health().busy:
            done |= {w.request: w.turn for w in engine.step().written}
        return done

    model = model_of(KNOWN["llama"])
    first, second = write(), write()
    for key, written in first.items():
        assert written.token_ids.tolist() == second[key].token_ids.tolist()
        assert written.logprobs.tobytes() == second[key].logprobs.tobytes()
