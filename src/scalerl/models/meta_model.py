"""A model without its weights: names, shapes, and the cost of a token."""

from __future__ import annotations

from typing import Any

import torch

from scalerl.errors import InputError
from scalerl.models.load import check_before, loading_errors
from scalerl.models.model_files import check_shapes

#: Bytes of a number in the KV cache. The fast decoder keeps FP32; a BF16 model that decodes by its
#: own forward pass needs half.
CACHE_ITEM_BYTES = 4


def meta_model(path: str, dtype: str, *, trust_remote_code: bool = False) -> Any:
    """The model on the meta device: names and shapes only. Refuses models that no engine here can
    decode."""
    from transformers import AutoConfig, AutoModelForCausalLM

    weights = check_before(path, trust_remote_code)
    with loading_errors(f"model {path}", trust_remote_code):
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
    """Refuse models with a recurrent state: rollouts join and leave a batch by rows of the KV
    cache, so keys and values must be all that a token leaves behind."""
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
    """Parameters in the matrix products of a token: without an embedding that is only looked up,
    and with only the active experts of a mixture."""
    config = model.config
    experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None)
    # All experts have the same size, and a token goes through this share of them.
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
    """Bytes of the KV cache for one token of context."""
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return int(2 * CACHE_ITEM_BYTES * config.num_hidden_layers * kv_heads * size)


def context_length(config: Any) -> int | None:
    """Longest context of the model in tokens; None where its config does not say."""
    found = getattr(config, "max_position_embeddings", None)
    return None if found is None else int(found)
