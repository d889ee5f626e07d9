"""Which models the fast passes accept: Llama, Qwen2, Qwen3, Mistral and SmolLM, and no model that
differs from them in any respect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from scalerl.models.cpu import cpu_mode

#: Model type -> accepted classes. A subclass may compute something else and is refused.
KINDS = {
    "llama": ("LlamaForCausalLM", "BareLlama"),
    "qwen2": ("Qwen2ForCausalLM",),
    "qwen3": ("Qwen3ForCausalLM",),
    "mistral": ("MistralForCausalLM",),
}
#: Added to masked scores: exp gives 0, and the sum stays finite (−inf would give NaN for a row
#: with no key at all).
MASKED = -1e30
#: Types of rotary embedding with angles that depend on the position only, not on the length.
ROTARY = {"default", "linear", "llama3", "yarn"}


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """The sizes that the passes need."""

    heads: int
    kv_heads: int
    #: Channels of a head.
    size: int
    #: Epsilon of the norms.
    eps: float

    @staticmethod
    def from_model(model: nn.Module) -> LlamaShape | None:
        """The sizes, or None for a model that is not Llama-shaped in every respect."""
        config: Any = getattr(model, "config", None)
        kind = getattr(config, "model_type", None)
        if (
            cpu_mode() == "off"
            or kind not in KINDS
            or type(model).__name__ not in KINDS[kind]
            or not _plain(model, config)
        ):
            return None
        heads = int(config.num_attention_heads)
        size = getattr(config, "head_dim", None) or config.hidden_size // heads
        kv_heads = int(config.num_key_value_heads)
        return LlamaShape(heads, kv_heads, int(size), float(config.rms_norm_eps))


def agrees(ours: Tensor, theirs: Tensor) -> bool:
    """Whether the hidden states of a fast pass equal the model's own, to rounding."""
    # Sums in another order differ by about 1e-6 of the largest number; a weight in a wrong place by
    # about as much as the numbers themselves.
    return bool((ours - theirs).abs().max() <= 1e-4 * theirs.abs().max().clamp(min=1.0))


def _plain(model: nn.Module, config: Any) -> bool:
    """No window, no unknown rotary embedding or activation, no adapters, hooks or quantisation."""
    rotary: Any = getattr(config, "rope_parameters", None) or {}
    windowed = getattr(config, "sliding_window", None) and getattr(
        config, "use_sliding_window", True
    )
    layers: Any = getattr(config, "layer_types", None) or ()
    return (
        config.hidden_act == "silu"
        and not windowed
        and all(kind == "full_attention" for kind in layers)
        and rotary.get("rope_type", "default") in ROTARY
        and not getattr(config, "mlp_bias", False)
        and all(p.dtype == torch.float32 for p in model.parameters())
        and all(_known(module) for module in model.modules())
    )


def _known(module: nn.Module) -> bool:
    hooked = bool(module._forward_hooks or module._forward_pre_hooks)
    linear = type(module).__name__ in ("Linear", "HeadLinear", "BareLinear")
    return (linear or not isinstance(module, nn.Linear)) and not hooked
