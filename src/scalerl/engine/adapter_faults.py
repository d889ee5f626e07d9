"""The fault of an adapter in an engine: its log-probs are compared with those that the model gives
under each known fault. Only used when a proof has failed; the model is loaded for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from scalerl.engine.interface import EngineSpec
from scalerl.models.adapter import AdaptedWeight, AdapterSpec, Merged
from scalerl.models.head import use_head_precision
from scalerl.models.load import load_model

#: A fault in words, and the adapter that an engine with it would compute with.
Fault = tuple[str, Mapping[str, Tensor]]


@torch.no_grad()
def name_fault(
    spec: EngineSpec,
    targets: Sequence[AdaptedWeight],
    tensors: Mapping[str, Tensor],
    scored: Sequence[float],
    allowed: float,
) -> str:
    """The fault under which the model gives the log-probs that the engine gave, in words."""
    assert spec.adapter is not None
    model: Any = load_model(
        spec.model, spec.dtype, "cpu", trust_remote_code=spec.trust_remote_code
    ).eval()
    use_head_precision(model, spec.head)
    applied = Merged(dict(model.named_parameters()), targets, spec.adapter)
    ids = torch.tensor([spec.adapter.probe])
    found = torch.tensor(scored)
    for words, faulty in faults(targets, tensors, spec.adapter):
        applied.write(faulty)
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
        ours = torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None])[:, 0]
        if float((ours - found).abs().mean()) <= allowed:
            return words
    return "the cause is none of the known ones"


def faults(
    targets: Sequence[AdaptedWeight], tensors: Mapping[str, Tensor], spec: AdapterSpec
) -> Iterator[Fault]:
    """The known faults, the most common first."""
    yield "it generates with the base model", _only(targets, tensors, ())
    for one, other in _exchangeable(targets):
        yield f"{one} and {other} are exchanged", _exchanged(targets, tensors, one, other)
    wrong = {
        1.0: "alpha / rank is left out",
        spec.alpha: "the division by the rank is left out",
        1.0 / spec.rank: "alpha is left out",
        spec.scale**2: "alpha / rank is applied twice",
        spec.alpha / spec.rank**0.5: "alpha is divided by the root of the rank",
        2 * spec.scale: "it is applied twice",
        spec.scale / 2: "half of it is applied",
        -spec.scale: "its sign is wrong",
    }
    for scale, why in wrong.items():
        if scale != spec.scale:
            yield f"its scale is wrong: {why}", _scaled(targets, tensors, scale / spec.scale)
    leaves = sorted({t.home.rpartition(".")[2] for t in targets})
    for leaf in leaves:
        others = [t for t in targets if t.home.rpartition(".")[2] != leaf]
        yield f"the tensors of {leaf} are missing", _only(targets, tensors, others)
    half = len(targets) // 2
    for kept in (targets[:half], targets[half:], targets[::2], targets[1::2]):
        words = f"{len(targets) - len(kept)} of {len(targets)} adapted layers are missing"
        yield words, _only(targets, tensors, kept)


def _only(
    targets: Sequence[AdaptedWeight], tensors: Mapping[str, Tensor], kept: Sequence[AdaptedWeight]
) -> dict[str, Tensor]:
    """The adapter without the targets that are not kept."""
    names = {t.b for t in kept}
    gone = {t.b: torch.zeros_like(tensors[t.b]) for t in targets if t.b not in names}
    return {**tensors, **gone}


def _scaled(
    targets: Sequence[AdaptedWeight], tensors: Mapping[str, Tensor], factor: float
) -> dict[str, Tensor]:
    return {**tensors, **{t.b: tensors[t.b] * factor for t in targets}}


def _exchangeable(targets: Sequence[AdaptedWeight]) -> list[tuple[str, str]]:
    """Pairs of layers with weights of the same shape, by the last parts of their names."""
    shapes: dict[str, set[tuple[int, ...]]] = {}
    for t in targets:
        shapes.setdefault(t.home.rpartition(".")[2], set()).add(t.shape)
    names = sorted(shapes)
    return [(a, b) for a in names for b in names if a < b and shapes[a] == shapes[b]]


def _exchanged(
    targets: Sequence[AdaptedWeight], tensors: Mapping[str, Tensor], one: str, other: str
) -> dict[str, Tensor]:
    homes = {t.home: t for t in targets}
    out = dict(tensors)
    for home, t in homes.items():
        parent, _, leaf = home.rpartition(".")
        partner = homes.get(f"{parent}.{other}")
        if leaf == one and partner is not None and partner.shape == t.shape:
            out[t.a], out[partner.a] = tensors[partner.a], tensors[t.a]
            out[t.b], out[partner.b] = tensors[partner.b], tensors[t.b]
    return out
