"""A Llama without Transformers, which takes seconds to import in every process of a run.

It has the parameters of `LlamaForCausalLM` under the same names and in the same order, and a
forward pass in plain torch. The faster passes (decode.py, packed.py and their C versions) are
compared with this one before they are used, and tests compare this one with Transformers' own.

A model that is not plain in every respect is left to Transformers: `BareConfig.from_directory`
returns None.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from scalerl.errors import InputError
from scalerl.models.cpu import cpu_mode
from scalerl.models.cpu.shape import MASKED
from scalerl.models.model_files import CONFIG, INDEX, WEIGHTS, weight_files

#: Files that a checkpoint copies from the model's directory.
COPIED = (CONFIG, "generation_config.json")
#: Keys of config.json besides the sizes, with the values that a plain Llama may have.
PLAIN: dict[str, tuple[Any, ...]] = {
    "model_type": ("llama",),
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "attention_dropout": (0, 0.0),
    "pretraining_tp": (1,),
    "sliding_window": (None,),
    "quantization_config": (None,),
    "auto_map": (None,),
}


@dataclass(frozen=True, slots=True)
class BareConfig:
    """The fields of config.json, under their names there."""

    folder: Path
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    eos_token_id: Any = None
    model_type: str = "llama"
    hidden_act: str = "silu"
    attention_dropout: float = 0.0

    @staticmethod
    def from_directory(path: str) -> BareConfig | None:
        """The config of a plain Llama; None for anything else, which Transformers has to load."""
        folder = Path(path)
        if cpu_mode() == "off" or not any((folder / name).is_file() for name in (WEIGHTS, INDEX)):
            return None
        try:
            fields = json.loads((folder / CONFIG).read_text())
            plain = fields["architectures"] == ["LlamaForCausalLM"] and all(
                fields.get(key, values[0]) in values for key, values in PLAIN.items()
            )
            rope = fields.get("rope_parameters") or {
                "rope_theta": fields.get("rope_theta", 10_000.0)
            }
            plain = plain and rope.get("rope_type", "default") == "default"
            if not plain or fields.get("rope_scaling") is not None:
                return None
            heads = fields["num_attention_heads"]
            sizes: dict[str, Any] = {name: int(fields[name]) for name in (
                "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                "num_attention_heads", "max_position_embeddings")}  # fmt: skip
            return BareConfig(
                folder=folder,
                **sizes,
                num_key_value_heads=int(fields.get("num_key_value_heads") or heads),
                head_dim=int(fields.get("head_dim") or sizes["hidden_size"] // heads),
                rms_norm_eps=float(fields["rms_norm_eps"]),
                rope_theta=float(rope["rope_theta"]),
                tie_word_embeddings=bool(fields["tie_word_embeddings"]),
                eos_token_id=fields.get("eos_token_id"),
            )
        except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError):
            return None  # Transformers knows defaults, and names what is wrong

    def get_text_config(self) -> BareConfig:
        return self


class BareLinear(nn.Linear):
    """A linear layer without bias and without initialisation: weights come from a file, and drawing
    numbers on the meta device would import torch's compiler."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__(width, out, bias=False)

    def reset_parameters(self) -> None:
        return


class BareEmbedding(nn.Embedding):
    def reset_parameters(self) -> None:
        return


class BareNorm(nn.Module):
    def __init__(self, c: BareConfig) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(c.hidden_size)), c.rms_norm_eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class BareAttention(nn.Module):
    def __init__(self, c: BareConfig) -> None:
        super().__init__()
        self.size = c.head_dim
        inner, few = c.num_attention_heads * self.size, c.num_key_value_heads * self.size
        self.q_proj = BareLinear(c.hidden_size, inner)
        self.k_proj = BareLinear(c.hidden_size, few)
        self.v_proj = BareLinear(c.hidden_size, few)
        self.o_proj = BareLinear(inner, c.hidden_size)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (
            p(x).view(*x.shape[:2], -1, self.size).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = (t * cos[:, None] + _rotate_half(t) * sin[:, None] for t in (q, k))
        grouped = q.shape[1] != k.shape[1]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped)
        return cast(Tensor, self.o_proj(out.transpose(1, 2).flatten(2)))


def _rotate_half(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


class BareMlp(nn.Module):
    def __init__(self, c: BareConfig) -> None:
        super().__init__()
        self.gate_proj = BareLinear(c.hidden_size, c.intermediate_size)
        self.up_proj = BareLinear(c.hidden_size, c.intermediate_size)
        self.down_proj = BareLinear(c.intermediate_size, c.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x)))


class BareLayer(nn.Module):
    def __init__(self, c: BareConfig) -> None:
        super().__init__()
        self.self_attn = BareAttention(c)
        self.mlp = BareMlp(c)
        self.input_layernorm = BareNorm(c)
        self.post_attention_layernorm = BareNorm(c)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        return x + cast(Tensor, self.mlp(self.post_attention_layernorm(x)))


class BareBody(nn.Module):
    """The layers before the head."""

    def __init__(self, c: BareConfig) -> None:
        super().__init__()
        self.embed_tokens = BareEmbedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(BareLayer(c) for _ in range(c.num_hidden_layers))
        self.norm = BareNorm(c)
        self.theta, self.size = c.rope_theta, c.head_dim

    def rotary_emb(self, like: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin (B, T, size) of the angles at these positions (B, T)."""
        channel = torch.arange(0, self.size, 2, dtype=torch.int64, device=like.device).float()
        angles = positions[..., None].float() * (1.0 / self.theta ** (channel / self.size))
        both = torch.cat([angles, angles], dim=-1)
        return both.cos().to(like.dtype), both.sin().to(like.dtype)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        use_cache: bool = False,
    ) -> SimpleNamespace:
        x = self.embed_tokens(input_ids)
        place = torch.arange(input_ids.shape[1], device=x.device)
        cos, sin = self.rotary_emb(x, place[None] if position_ids is None else position_ids)
        unseen = (place[None, :] > place[:, None])[None]
        if attention_mask is not None:
            unseen = unseen | ~attention_mask.bool()[:, None]
        mask = unseen[:, None].to(x.dtype) * MASKED
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        return SimpleNamespace(last_hidden_state=self.norm(x))


class BareLlama(nn.Module):
    """A causal LM with the part of Transformers' interface that a run uses."""

    def __init__(self, config: BareConfig) -> None:
        super().__init__()
        self.config = config
        self.model = BareBody(config)
        self.lm_head: nn.Linear = BareLinear(config.hidden_size, config.vocab_size)
        self.tie_weights()

    @staticmethod
    def load(config: BareConfig) -> BareLlama:
        """The model with its weights in FP32."""
        with torch.device("meta"):
            made = BareLlama(config)
        # `assign` replaces the parameters of the meta device, which unties the head.
        made.load_state_dict(made.weights_in(config.folder), assign=True)
        made.tie_weights()
        return made.requires_grad_()

    def weights_in(self, folder: Path) -> dict[str, Tensor]:
        """The weights of this model in a directory of its kind, by name, in FP32."""
        own = {name: p.shape for name, p in self.state_dict().items()}
        # A tied head is not stored: it is the embedding.
        if self.config.tie_word_embeddings:
            del own["lm_head.weight"]
        try:
            found = dict(_read(folder, frozenset(own)))
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise InputError(f"{folder} is no whole checkpoint: {error}") from None
        if {name: t.shape for name, t in found.items()} != own:
            raise InputError(f"{folder} is a checkpoint of another model")
        if self.config.tie_word_embeddings:
            found["lm_head.weight"] = found["model.embed_tokens.weight"]
        return found

    @property
    def base_model(self) -> nn.Module:
        return self.model

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed_tokens

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, head: nn.Linear) -> None:
        self.lm_head = head

    def tie_weights(self) -> None:
        if self.config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, input_ids: Tensor, use_cache: bool = False) -> SimpleNamespace:
        return SimpleNamespace(logits=self.lm_head(self.model(input_ids).last_hidden_state))

    def save_pretrained(self, folder: Path) -> None:
        """Save in Hugging Face layout, with config.json copied unchanged."""
        # Named parameters: tied weights are in them once, as Transformers writes them.
        tensors = {name: p.detach().contiguous() for name, p in self.named_parameters()}
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
        for name in COPIED:
            if (self.config.folder / name).is_file():
                shutil.copyfile(self.config.folder / name, folder / name)


def _read(folder: Path, names: frozenset[str]) -> Iterator[tuple[str, Tensor]]:
    """The tensors of these names that the files hold."""
    for file in weight_files(folder) or [folder / WEIGHTS]:
        with cast(Any, safe_open)(file, "pt") as tensors:
            for name in names & frozenset(tensors.keys()):
                yield name, tensors.get_tensor(name).float()
