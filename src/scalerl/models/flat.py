"""A model's own forward pass over rows in one flat sequence (`FlatRows`), for any Hugging Face
causal language model with layers that see other tokens through attention only.

The sequence has the position of every token, and an attention function of ours (registered with
Transformers' `AttentionInterface`) that lets each row attend to its parent and to itself: nothing
is padded, and a prompt is computed once for all rows that continue it. Whether a model can be
computed so is found by comparison with its plain forward pass on a few rows. Others (state-space
models, linear attention, ALiBi) go row by row.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scalerl.errors import is_out_of_memory
from scalerl.models.head import final_hidden
from scalerl.models.rows import FlatRows

#: Kinds of layers that see exactly what `FlatAttention` lets them see.
ATTENTION_LAYERS = {"full_attention", "sliding_attention"}
#: Largest relative difference of a token's hidden state that is taken for rounding, in units of the
#: dtype's precision. A token that sees a wrong row, or has a wrong position, differs by about all
#: of its size: in BF16 16 units are an eighth of it.
ROUNDING_UNITS = 16
#: The same for FP32 and FP64, where models round some parts to FP32: a hundred times what is seen.
ROUNDING = 1e-4
#: Two prompts, of four tokens with rows of three, one and five, and of two with a row of six.
EXAMPLE = FlatRows.from_tokens(
    ids_N=(np.arange(21) * 7) + 1,
    position_N=np.array([*range(4), *range(2), *range(4, 7), 4, *range(4, 9), *range(2, 8)]),
    row_N=np.repeat(range(6), [4, 2, 3, 1, 5, 6]),
    parent_R=np.array([-1, -1, 0, 0, 0, 1]),
    scored_N=np.arange(21) >= 6,
)
_numbers = count()


class FlatAttention:
    """The attention of flat rows, in place of a model's own (`installed`)."""

    def __init__(self) -> None:
        from transformers import AttentionInterface

        #: Rows of the current pass. They hold until the next one, since a backward pass may compute
        #: the forward pass again.
        self.rows: FlatRows | None = None
        # A name of its own: the policy and its reference are two models, each with its own rows.
        self.name = f"scalerl_flat_{next(_numbers)}"
        AttentionInterface.register(self.name, self.attend)

    @staticmethod
    def from_model(model: nn.Module) -> FlatAttention | None:
        """The attention for a model, or None for a model that must go row by row."""
        lm: Any = model
        if not hasattr(lm, "set_attn_implementation"):
            return None
        kinds = getattr(lm.config.get_text_config(), "layer_types", None) or ()
        made = FlatAttention()
        return made if ATTENTION_LAYERS.issuperset(kinds) and made._agrees(model) else None

    @contextmanager
    def installed(self, model: nn.Module) -> Iterator[None]:
        """Make the model use this attention, in forward and backward passes."""
        config: Any = model.config
        before = config._attn_implementation
        config._attn_implementation = self.name
        try:
            yield
        finally:
            config._attn_implementation = before

    def hidden(self, model: nn.Module, rows: FlatRows) -> Tensor:
        """The hidden states F x D of a model in which it is installed."""
        self.rows = rows
        return final_hidden(model, rows.ids_F[None], position_ids=rows.position_F[None])[0]

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        """Attention of 1 x heads x F x size, as Transformers calls it."""
        assert self.rows is not None, "set by `hidden`"
        window = options.get("sliding_window", _window(module))
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        cap, sinks = options.get("softcap"), options.get("s_aux")
        out = []
        for first, n, before, known in self.rows.spans.tolist():
            own = slice(first, first + n)
            k, v = key[:, :, own], value[:, :, own]
            if known:
                parent = slice(before, before + known)
                k = torch.cat([key[:, :, parent], k], dim=2)
                v = torch.cat([value[:, :, parent], v], dim=2)
            q = query[:, :, own]
            seen = torch.ones(n, known + n, dtype=torch.bool, device=q.device).tril(known)
            if window is not None:
                seen = seen.triu(known - window + 1)
            if cap is None and sinks is None:
                found = F.scaled_dot_product_attention(
                    q, k, v, seen, dropout, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
                )
            else:
                found = _eager(q, k, v, seen, dropout, scale, cap, sinks)
            out.append(found)
        return torch.cat(out, dim=2).transpose(1, 2).contiguous(), None

    @torch.no_grad()
    def _agrees(self, model: nn.Module) -> bool:
        """Whether hidden states are those of the plain forward pass."""
        weight = next(model.parameters())
        words = model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
        rows = EXAMPLE.within(words).to(weight.device)
        modes = {module: module.training for module in model.modules()}
        model.eval()
        try:
            # Not in the inner try: a model that fails in its own pass cannot be trained at all.
            theirs = row_by_row(model, rows).float()
            try:
                with self.installed(model):
                    ours = self.hidden(model, rows).float()
            except (TypeError, ValueError, RuntimeError) as error:
                if is_out_of_memory(error):
                    raise
                # An architecture that takes no positions, or has no pluggable attention.
                return False
        finally:
            for module, training in modes.items():
                module.training = training
        # The median token: rounding may send one to other experts of a mixture.
        gap = (ours - theirs).norm(dim=1) / theirs.norm(dim=1)
        # Without the first prompt and row, which any attention computes right.
        allowed = max(ROUNDING, ROUNDING_UNITS * torch.finfo(weight.dtype).eps)
        return bool(gap[len(gap) // 2 :].median() <= allowed)


def flat_hidden(model: nn.Module, rows: FlatRows, attention: FlatAttention | None) -> Tensor:
    """The hidden states F x D: with the model's attention replaced, or row by row."""
    return row_by_row(model, rows) if attention is None else attention.hidden(model, rows)


def installed(attention: FlatAttention | None, model: nn.Module) -> Any:
    """A context for passes with `flat_hidden`, around forward and backward."""
    return nullcontext() if attention is None else attention.installed(model)


def row_by_row(model: nn.Module, rows: FlatRows) -> Tensor:
    """The hidden states F x D by the plain forward pass, each row with its parent before it."""
    found: dict[int, Tensor] = {}
    # Backwards, so that a prompt is computed alone only where no row continues it.
    for first, n, before, known in rows.spans[::-1].tolist():
        if first in found:
            continue
        ids = torch.cat([rows.ids_F[before : before + known], rows.ids_F[first : first + n]])
        hidden = final_hidden(model, ids[None])[0]
        found[first] = hidden[known:]
        if known:
            found.setdefault(before, hidden[:known])
    return torch.cat([found[first] for first in sorted(found)])


def _window(module: nn.Module) -> int | None:
    """The window of a layer that is not given one with each call."""
    config: Any = getattr(module, "config", None)
    kinds, layer = getattr(config, "layer_types", None), getattr(module, "layer_idx", None)
    if kinds and layer is not None and kinds[layer] == "sliding_attention":
        return int(config.sliding_window)
    return None


def _eager(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seen: Tensor,
    dropout: float,
    scale: float,
    cap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention with a cap on the scores (Gemma 2), or with a learnt score per head that takes
    probability from all tokens (gpt-oss)."""
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
    scores = q @ k.transpose(2, 3) * scale
    if cap is not None:
        scores = torch.tanh(scores / cap) * cap
    scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
    if sinks is not None:
        column = sinks.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, column], dim=-1)
    p = torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)[..., : seen.shape[1]]
    return F.dropout(p, dropout) @ v
