"""A model's own forward pass over flat rows: the log-probs and gradients of one row at a time."""

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Gemma2Config,
    GPT2Config,
    GptOssConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    MixtralConfig,
    Qwen3MoeConfig,
)

from scalerl.algorithm.episode import Episode, TokenRow, Turn
from scalerl.algorithm.packing import pack
from scalerl.models.flat import FlatAttention, flat_hidden, installed, row_by_row
from scalerl.trainer.local import enable_recompute
from scalerl.trainer.micro import flat_rows

WORDS = 40
SIZES = {"vocab_size": WORDS, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3,
         "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}  # fmt: skip
MIXTURE = SIZES | {"num_experts_per_tok": 2}
#: Windows shorter than the rows, capped scores, sinks, two kinds of layers, learnt positions.
FLAT = {
    "llama": LlamaConfig(**SIZES),
    "llama, tied": LlamaConfig(**SIZES, tie_word_embeddings=True),
    "mistral, window": MistralConfig(**SIZES, sliding_window=4),
    "gpt2": GPT2Config(vocab_size=WORDS, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0,
                       embd_pdrop=0.0, attn_pdrop=0.0, initializer_range=0.3),
    "mixtral, window": MixtralConfig(**MIXTURE, num_local_experts=4, sliding_window=5),
    "qwen3-moe": Qwen3MoeConfig(**MIXTURE, moe_intermediate_size=24, num_experts=4, head_dim=8),
    "gemma2": Gemma2Config(**SIZES, head_dim=8, sliding_window=4, query_pre_attn_scalar=8,
                           attn_logit_softcapping=2.0),
    "gpt-oss": GptOssConfig(**MIXTURE, head_dim=8, num_local_experts=4, sliding_window=4),
}  # fmt: skip
ROW_BY_ROW = {
    "mamba": MambaConfig(vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, state_size=4),
    "bloom": BloomConfig(vocab_size=WORDS, hidden_size=32, n_layer=2, n_head=4),
}


def model_of(config):
    torch.manual_seed(0)
    # Eager: other attention leaves out caps and sinks, other experts have no FP64.
    how = {"attn_implementation": "eager"}
    if hasattr(config, "num_experts_per_tok"):
        how["experts_implementation"] = "eager"
    return AutoModelForCausalLM.from_config(config, **how).double()


def rows():
    """Two groups, of one turn and of several with observations and a fork."""
    rng = np.random.default_rng(0)

    def turn(n):
        return Turn.from_lists(rng.integers(0, WORDS, n))

    episodes = [Episode.from_turn([1, 2, 3, 4, 5], turn(n)) for n in (7, 1, 4)]
    row = TokenRow.from_context([6, 7]).with_turn(turn(4)).with_context([8, 9]).with_turn(turn(5))
    fork = TokenRow.from_context([6, 7, 8, 9]).with_turn(turn(6))
    episodes += [Episode((row, fork), "stop"), Episode.from_turn([6, 7], turn(3))]
    return flat_rows(pack(episodes, np.array([0, 0, 0, 1, 1])))


def learnt(model, attention, given):
    """Hidden states, and gradients of those that predict a scored token."""
    model.train()
    weight = torch.randn(len(given.source_M), 32, generator=torch.Generator().manual_seed(1))
    with installed(attention, model):
        hidden = flat_hidden(model, given, attention)
        (hidden[given.source_M] * weight).sum().backward()
    return hidden.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def apart(found, expected):
    """The largest difference, by the size of the largest number."""
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("name", FLAT)
def test_hidden_states_and_gradients_are_those_of_one_row_at_a_time(name, again):
    model, plain = model_of(FLAT[name]), model_of(FLAT[name])
    before = model.config._attn_implementation
    attention = FlatAttention.from_model(model)
    assert attention is not None
    if again:
        enable_recompute(model)
    found, gradients = learnt(model, attention, rows())
    expected, right = learnt(plain, None, rows())
    assert model.config._attn_implementation == before
    # Rounding: some models compute norms and angles in FP32 whatever their dtype.
    assert apart(found, expected) < 1e-6
    assert gradients.keys() == right.keys()
    assert max(apart(gradients[n], right[n]) for n in right) < 1e-5


@pytest.mark.parametrize("name", ROW_BY_ROW)
def test_models_that_see_other_tokens_in_other_ways_go_row_by_row(name):
    model = model_of(ROW_BY_ROW[name]).float().eval()
    assert FlatAttention.from_model(model) is None
    given = rows()
    with torch.no_grad():
        found = row_by_row(model, given)
        for first, n, before, known in given.spans.tolist():
            ids = torch.cat([given.ids_F[before : before + known], given.ids_F[first : first + n]])
            expected = model.base_model(ids[None]).last_hidden_state[0, known:]
            torch.testing.assert_close(found[first : first + n], expected, atol=1e-5, rtol=1e-4)


def test_the_plain_forward_pass_is_as_before_after_a_flat_one():
    model = model_of(FLAT["mistral, window"]).eval()
    ids = torch.arange(12)[None]
    before = model(ids).logits
    attention = FlatAttention.from_model(model)
    with attention.installed(model), torch.no_grad():
        attention.hidden(model, rows())
    assert torch.equal(model(ids).logits, before)
