"""What is known of a model before its weights are: names, sizes, and what a token of it costs."""

from __future__ import annotations

from typing import Any

import torch

from scalerl.errors import InputError
from scalerl.models.files import check_shapes
from scalerl.models.load import check_before, one_line

#: Keys and values of a token are counted in FP32, which the fast decoder keeps them in; a model in
#: BF16 that decodes by its own forward pass needs half.
CACHE_ITEM_BYTES = 4


def meta_model(path: str, dtype: str, *, trust_remote_code: bool = False) -> Any:
    """The model without its weights: names and shapes only. Refuses what no engine here can
    continue."""
    from transformers import AutoConfig, AutoModelForCausalLM

    weights = check_before(path, trust_remote_code)
    with one_line(f"model {path}", trust_remote_code):
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
        with torch.device("meta"):
            shape = AutoModelForCausalLM.from_config(
                config, dtype=getattr(torch, dtype), trust_remote_code=trust_remote_code
            )
    _check_cached(path, shape)
    shape.tie_weights()
    if weights is not None and not getattr(config, "quantization_config", None):
        check_shapes(shape, weights, f"model {path}")
    return shape


def _check_cached(path: str, model: Any) -> None:
    """All that a token leaves behind must be keys and values, in every layer: rollouts join and
    leave a batch by their rows of that cache."""
    config = model.config
    kinds = getattr(config, "layer_types", None) or ()
    others = {k for k in kinds if k == "linear_attention" or not k.endswith("attention")}
    attends = getattr(config, "num_attention_heads", None)
    if getattr(model, "_is_stateful", False) or others or not attends:
        raise InputError(
            f"model {path} is a {type(model).__name__}, which keeps a recurrent state instead of "
            "(or beside) keys and values: only models with attention in every layer can be "
            "trained, such as Llama, Qwen2, Qwen3, Mistral, Gemma or Mixtral"
        )


def matmul_parameters(model: Any) -> int:
    """Parameters in the matrix products of a token: an embedding that is only looked up has none,
    and of a mixture's experts only those that are asked."""
    config = model.config
    experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None)
    share = getattr(config, "num_experts_per_tok", 1) / experts if experts else 1.0
    embedding = model.get_input_embeddings().weight
    if embedding is model.get_output_embeddings().weight:
        embedding = None  # tied: used by the head
    total = 0.0
    for name, parameter in model.named_parameters():
        if parameter is not embedding:
            total += parameter.numel() * (share if ".experts." in name else 1.0)
    return round(total)


def cache_bytes(config: Any) -> int:
    """Bytes of keys and values for one token of context."""
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return int(2 * CACHE_ITEM_BYTES * config.num_hidden_layers * kv_heads * size)


def context_length(config: Any) -> int | None:
    """Tokens the model can read, prompt and answer together; None where it does not say."""
    found = getattr(config, "max_position_embeddings", None)
    return None if found is None else int(found)
