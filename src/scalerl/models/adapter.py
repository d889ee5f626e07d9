"""LoRA adapters: W = base + scale · B A for some of a model's weights.

An adapter is a parametrisation of weights here, and not another kind of layer. The merged weight is
written into the model, so that every model and every pass runs unchanged; the gradients of A and B
follow from that of W by the chain rule (trainer/low_rank.py). W is always computed from the base:
in BF16 a sum of a thousand small changes loses all of them.

`Unmerged` adds scale · B (A x) to the output of a layer instead (`adapter.mode = "unmerged"`): the
gradient of W is never formed, but only the model's own forward pass can be used.

    model.layers.0.mlp.up_proj.weight (out, in)      lora_A (rank, in), lora_B (out, rank)
    ...mlp.experts.down_proj (experts, out, in)      the same with `experts` in front
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scalerl.errors import InputError
from scalerl.models.head import accumulation_dtype

#: Tokens of the probe that shows which adapter a model has.
PROBE_TOKENS = 16

#: Name under which the proof travels beside the tensors of an adapter.
PROOF = "proof"
#: Numbers before the log-probs: version, the checksum in two halves, and the size of the rehearsal;
#: all are exact in FP32.
HEADER = 4


@dataclass(frozen=True, slots=True)
class AdapterSpec:
    """Which weights have an adapter, and of what kind: plain data that can be sent elsewhere."""

    rank: int
    alpha: float
    #: Last parts of the names of adapted layers; empty: all linear layers.
    targets: tuple[str, ...] = ()
    #: Whether the experts of a mixture have adapters.
    experts: bool = False
    #: Whether the head has one.
    head: bool = False
    #: Whether W is computed (True), or B (A x) added to a layer's output.
    merged: bool = True
    #: Seed of A.
    seed: int = 0
    #: Tokens of the probe.
    probe: tuple[int, ...] = ()
    #: Adapters that a generator loads from one proof to the next.
    proof_every: int = 1

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


@dataclass(frozen=True, slots=True)
class AdapterProbe:
    """Log-probs of the probe's tokens after the first, at temperature 1, by the trainer."""

    #: With the current adapter.
    current: tuple[float, ...]
    #: With none.
    base: tuple[float, ...]
    #: With that of the rehearsal.
    rehearsal: tuple[float, ...]
    #: Size of the rehearsal (`rehearsal`).
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class AdaptedWeight:
    """A weight with an adapter."""

    #: Name of the parameter.
    weight: str
    shape: tuple[int, ...]
    #: Whether the layer multiplies x W and not W x, so that its first axis is the input.
    transposed: bool = False

    @property
    def home(self) -> str:
        """What the names of A and B begin with: the layer, or the parameter of the experts."""
        return self.weight.removesuffix(".weight")

    @property
    def a(self) -> str:
        return f"{self.home}.lora_A.weight"

    @property
    def b(self) -> str:
        return f"{self.home}.lora_B.weight"

    def shapes(self, rank: int) -> dict[str, tuple[int, ...]]:
        """The shapes of A and B, by name."""
        *experts, out, into = self.shape
        return {self.a: (*experts, rank, into), self.b: (*experts, out, rank)}


def targets_of(model: nn.Module, spec: AdapterSpec) -> tuple[AdaptedWeight, ...]:
    """The adapted weights of a model, which may be on the meta device; raises InputError where the
    recipe asks for what the model does not have."""
    lm: Any = model
    head, found, seen = lm.get_output_embeddings(), [], set[str]()
    for name, module in model.named_modules():
        leaf = name.rpartition(".")[2]
        if isinstance(module, nn.Linear) and module is not head and _wanted(leaf, spec, seen):
            found.append(AdaptedWeight(f"{name}.weight", tuple(module.weight.shape)))
        for own, p in module.named_parameters(recurse=False):
            if p.ndim == 3 and spec.experts and _wanted(own, spec, seen):
                turned = bool(getattr(module, "is_transposed", False))
                found.append(AdaptedWeight(f"{name}.{own}", tuple(p.shape), turned))
        if module is head and spec.head:
            found.append(_head_target(name, lm))
    missing = [t for t in spec.targets if t not in seen]
    if missing:
        linear = {
            n.rpartition(".")[2] for n, m in model.named_modules() if isinstance(m, nn.Linear)
        }
        raise InputError(
            f"adapter.targets names {missing[0]}, which is no linear layer of a "
            f"{type(model).__name__}: choose from {', '.join(sorted(linear))}"
        )
    if spec.experts and not any(len(t.shape) == 3 for t in found):
        raise InputError(
            f"adapter.experts is for mixtures of experts, and a {type(model).__name__} has none: "
            "leave it out"
        )
    if not found:
        raise InputError(
            f"a {type(model).__name__} has no linear layers that an adapter could be added to: "
            "leave [adapter] out"
        )
    return tuple(found)


def _wanted(leaf: str, spec: AdapterSpec, seen: set[str]) -> bool:
    if spec.targets and leaf not in spec.targets:
        return False
    seen.add(leaf)
    return True


def _head_target(name: str, lm: Any) -> AdaptedWeight:
    weight = lm.get_output_embeddings().weight
    if weight is lm.get_input_embeddings().weight:
        raise InputError(
            "adapter.head: the head of this model is its embedding (tied weights), and an adapter "
            "would change both: leave adapter.head out"
        )
    return AdaptedWeight(f"{name}.weight", tuple(weight.shape))


def freeze(model: nn.Module, targets: Sequence[AdaptedWeight], spec: AdapterSpec) -> None:
    """Give gradients to the adapted weights only; unmerged, to none."""
    adapted = {t.weight for t in targets} if spec.merged else set[str]()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in adapted)


def shapes_of(targets: Sequence[AdaptedWeight], rank: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of an adapter's tensors, in order."""
    return {name: shape for t in targets for name, shape in t.shapes(rank).items()}


def initial(targets: Sequence[AdaptedWeight], spec: AdapterSpec) -> dict[str, Tensor]:
    """The adapter that training starts with: A uniform as in PEFT, B zero."""
    found = {}
    for t in targets:
        a, b = t.shapes(spec.rank).values()
        # 1 / sqrt(in): what PEFT's kaiming_uniform_(a=sqrt(5)) gives.
        bound = t.shape[-1] ** -0.5
        found[t.a] = (torch.rand(a, generator=_generator(t.a, spec.seed)) * 2 - 1) * bound
        found[t.b] = torch.zeros(b)
    return found


def rehearsal(
    targets: Sequence[AdaptedWeight], spec: AdapterSpec, share: float = 1.0
) -> dict[str, Tensor]:
    """An adapter for the proof, whose every tensor shows in log-probs. The one that training starts
    with does not show at all: its B is 0. `share` is the standard deviation of scale · B A by
    1 / sqrt(in), which is about that of a trained weight."""
    found = {}
    for t in targets:
        a, b = t.shapes(spec.rank).values()
        size = share / (spec.scale * spec.rank**0.5)
        # Another seed than that of `initial`, and the same in every process.
        found[t.a] = torch.randn(a, generator=_generator(t.a, -1)) * t.shape[-1] ** -0.5
        found[t.b] = torch.randn(b, generator=_generator(t.b, -1)) * size
    return found


def _generator(name: str, seed: int) -> torch.Generator:
    # By name, so that the choice of other targets changes nothing.
    return torch.Generator().manual_seed(zlib.crc32(f"{seed}/{name}".encode()))


def probe_tokens(words: int, columns: int) -> tuple[int, ...]:
    """Distinct tokens in no particular order: 31 shares no factor with usual vocabulary sizes."""
    return tuple((7 + 31 * i) % words for i in range(min(PROBE_TOKENS, columns - 1)))


def proof_size(spec: AdapterSpec) -> int:
    """Numbers in a proof."""
    return HEADER + 3 * (len(spec.probe) - 1)


def check_names(tensors: Mapping[str, Tensor], wanted: Mapping[str, tuple[int, ...]]) -> None:
    """Raise InputError unless names and shapes are those of the adapter."""
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    wrong = [n for n in {**wanted, **found} if found.get(n) != wanted.get(n)]
    if not wrong:
        return
    missing = [n for n in wrong if n not in found]
    if missing:
        raise InputError(
            f"{len(missing)} of {len(wanted)} tensors of the adapter are missing: "
            f"{', '.join(missing[:3])} ..."
        )
    raise InputError(f"the adapter is of another model: {', '.join(wrong[:3])} ...")


def merged(base: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """base + scale · B A in FP32 (or wider), of one weight or of all experts of a layer."""
    wide = base.to(accumulation_dtype(base.dtype))
    a, b = a.to(wide), b.to(wide)
    product = torch.addmm if base.ndim == 2 else torch.baddbmm
    return product(wide, b, a, alpha=scale)


class Merged:
    """The model's weights as base + scale · B A. Keeps a copy of the base of every adapted weight.

    own     the adapted parameters by name, or this rank's rows of them
    stored  dtype of the copies, where parameters are wider than what they were loaded as
    """

    def __init__(
        self,
        own: Mapping[str, Tensor],
        targets: Sequence[AdaptedWeight],
        spec: AdapterSpec,
        stored: torch.dtype | None = None,
    ) -> None:
        self.own, self.targets, self.spec = own, targets, spec
        self.base = {t.weight: own[t.weight].detach().to(stored, copy=True) for t in targets}

    @torch.no_grad()
    def write(self, tensors: Mapping[str, Tensor]) -> None:
        for t in self.targets:
            base = self.base[t.weight]
            self.own[t.weight].copy_(merged(base, tensors[t.a], tensors[t.b], self.spec.scale))

    @torch.no_grad()
    def write_base(self) -> None:
        for t in self.targets:
            self.own[t.weight].copy_(self.base[t.weight])


class Unmerged:
    """scale · B (A x) added to the output of each adapted layer."""

    def __init__(
        self, model: nn.Module, targets: Sequence[AdaptedWeight], spec: AdapterSpec
    ) -> None:
        for t in targets:
            if len(t.shape) != 2:
                raise InputError(
                    f"adapter.mode=unmerged adapts linear layers only, and {t.weight} holds "
                    "experts: set adapter.mode=merged, or leave adapter.experts out"
                )
        self.targets, self.spec = targets, spec
        self.tensors: Mapping[str, Tensor] | None = None
        for t in targets:
            model.get_submodule(t.home).register_forward_hook(self._hook(t))

    def _hook(self, target: AdaptedWeight) -> Any:
        def add(module: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
            if self.tensors is None:
                return output
            a, b = self.tensors[target.a], self.tensors[target.b]
            low = F.linear(F.linear(given[0].to(a.dtype), a), b)
            return (output + self.spec.scale * low).to(output.dtype)

        return add

    def write(self, tensors: Mapping[str, Tensor]) -> None:
        # These very tensors and no copies: gradients reach the masters.
        self.tensors = tensors

    def write_base(self) -> None:
        self.tensors = None


class Applied(Protocol):
    """How a model computes with an adapter."""

    def write(self, tensors: Mapping[str, Tensor]) -> None:
        """Make the model compute with this adapter."""
        ...

    def write_base(self) -> None:
        """Make the model compute without an adapter."""
        ...


def apply_adapter(model: nn.Module, targets: Sequence[AdaptedWeight], spec: AdapterSpec) -> Applied:
    """The way in which this model computes with an adapter."""
    if spec.merged:
        return Merged(dict(model.named_parameters()), targets, spec)
    return Unmerged(model, targets, spec)


class EngineAdapter:
    """The adapter of a model that generates: checked and applied as a whole."""

    def __init__(self, model: nn.Module, spec: AdapterSpec) -> None:
        targets = targets_of(model, spec)
        self.shapes = shapes_of(targets, spec.rank)
        self.applied = apply_adapter(model, targets, spec)
        self.device = next(model.parameters()).device

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Make the model compute with this adapter, of which a copy is kept where it is needed."""
        check_names(tensors, self.shapes)
        # Copies: the channel writes the next adapter into the memory of this one.
        self.applied.write({n: t.detach().to(self.device, copy=True) for n, t in tensors.items()})
