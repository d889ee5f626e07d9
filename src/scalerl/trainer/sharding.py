"""A model sharded over ranks by FSDP2 (`fully_shard`): one unit per block, and one for the head.

Gradients are *summed* over ranks: the weight of each token was computed for the whole batch, so the
sum of the ranks' gradients is the gradient of the batch. Parameters are FP32 shards, on which the
optimiser steps; a model of another dtype computes in that dtype (`MixedPrecisionPolicy`).

Every rank must issue the same collectives in the same order, or all of them wait until a deadline.
A rank that runs out of memory in the middle of a pass therefore still joins the collectives that
are left of it (`CollectiveTrace`); afterwards the ranks agree on whether any of them was short.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_collectives import (
    DefaultAllGather,
    DefaultReduceScatter,
)
from torch.distributed.tensor import DTensor

from scalerl.models.flat import FlatAttention, flat_hidden, installed
from scalerl.models.head import Head, accumulation_dtype
from scalerl.models.logprobs import chunked_logprobs
from scalerl.models.rows import FlatRows

#: Bytes of gradients that a rank may keep unreduced between micro-batches. One reduction per step
#: was 2.3 times faster on a small model than one per micro-batch, but needs memory for the gradient
#: of the whole model on every rank.
MAX_UNREDUCED_BYTES = 1 << 30


class HeadUnit(nn.Module):
    """Replaces a model's head, with the same parameter names. Its forward pass gives log-probs and
    entropies: FSDP2 gathers a unit's parameters in its forward pass, and reading `lm_head.weight`
    outside raises."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, model: nn.Module, head: Head, temperature: float) -> None:
        super().__init__()
        self.register_parameter("weight", cast(nn.Parameter, head.weight))
        self.register_parameter("bias", cast(nn.Parameter | None, head.bias))
        self.head, self.temperature = replace(head, module=self), temperature
        path = next(name for name, m in model.named_modules() if m is head.module)
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, self)

    def forward(self, hidden_MD: Tensor, target_M: Tensor) -> tuple[Tensor, Tensor]:
        return chunked_logprobs(hidden_MD, self.head, target_M, self.temperature)


class Policy(nn.Module):
    """Body and head in one forward pass. FSDP2 raises if a part of the model is called outside the
    forward pass of the root module."""

    def __init__(self, model: nn.Module, head: HeadUnit, attention: FlatAttention | None) -> None:
        super().__init__()
        self.model, self.attention = model, attention
        self._head = (head,)  # in a tuple: it is registered as a part of the model already

    def forward(self, rows: FlatRows) -> tuple[Tensor, Tensor]:
        hidden = flat_hidden(self.model, rows, self.attention).index_select(0, rows.source_M)
        return cast(tuple[Tensor, Tensor], self._head[0](hidden, rows.target_M))


@dataclass(slots=True)
class CollectiveTrace:
    """Records the collectives of a pass over the model, in order, so that a rank on which the pass
    has failed can join the rest of them. `FsdpTrainer` makes one empty pass of each kind first,
    which records the collectives of that kind."""

    #: Collectives by kind of pass: (name, output shape, input shape, dtype, device).
    known: dict[str, list[tuple[str, torch.Size, torch.Size, torch.dtype, torch.device]]] = field(
        default_factory=dict
    )
    #: Kind of the current pass.
    kind: str = ""
    #: Collectives issued so far in the current pass.
    at: int = 0

    def begin(self, kind: str) -> None:
        """Start a pass of a kind."""
        self.kind, self.at = kind, 0

    def record(self, what: str, output: Tensor, given: Tensor) -> None:
        """Count a collective; on the first pass of a kind, store it."""
        calls = self.known.setdefault(self.kind, [])
        if self.at == len(calls):
            calls.append((what, output.shape, given.shape, output.dtype, output.device))
        self.at += 1

    def replay_rest(self) -> None:
        """Issue the remaining collectives of this pass with zeros. All ranks discard the pass."""
        for what, out, given, dtype, device in self.known.get(self.kind, [])[self.at :]:
            output = torch.zeros(out, dtype=dtype, device=device)
            source = torch.zeros(given, dtype=dtype, device=device)
            if what == "gather":
                dist.all_gather_into_tensor(output, source)
            else:
                dist.reduce_scatter_tensor(output, source)
        self.at = len(self.known.get(self.kind, []))


class _Gather(DefaultAllGather):
    def __init__(self, trace: CollectiveTrace) -> None:
        self.trace = trace

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False
    ) -> Any:
        self.trace.record("gather", output_tensor, input_tensor)
        return super().__call__(output_tensor, input_tensor, group, async_op)


class _Scatter(DefaultReduceScatter):
    def __init__(self, trace: CollectiveTrace) -> None:
        self.trace = trace

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any,
        async_op: bool = False,
    ) -> Any:  # fmt: skip
        self.trace.record("reduce", output_tensor, input_tensor)
        return super().__call__(output_tensor, input_tensor, group, op, async_op)


class ShardedModel:
    """A causal LM with parameters that are sharded over the ranks of a mesh.

    model        with its weights on rank 0; on the others it may be on the meta device
    head         the head of that model
    compute      dtype of the passes
    """

    def __init__(
        self,
        model: nn.Module,
        head: Head,
        mesh: DeviceMesh,
        device: torch.device,
        compute: torch.dtype,
        temperature: float,
        attention: FlatAttention | None,
    ) -> None:
        self.model, self.mesh, self.device, self.compute = model, mesh, device, compute
        self.attention = attention
        self.rank, self.ranks = mesh.get_local_rank(), mesh.size()
        #: dtype of the parameters.
        self.dtype = accumulation_dtype(compute)
        self.width = head.weight.shape[1]
        #: Bytes of the whole model's gradient.
        self.gradient_bytes = self.dtype.itemsize * sum(p.numel() for p in model.parameters())
        self.trace = CollectiveTrace()
        self.head = unit = HeadUnit(model, head, temperature)
        self.policy = self._shard(Policy(model, unit, attention), unit)
        self.units = [m for m in self.policy.modules() if isinstance(m, FSDPModule)]
        for module in self.units:
            # Sum instead of FSDP's average. Both calls are needed on every unit: they are not
            # recursive, on the root alone half of the gradients would be averaged without an error,
            # and gloo raises on the divide factor without the forced sum.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
            module.set_custom_all_gather(_Gather(self.trace))
            module.set_custom_reduce_scatter(_Scatter(self.trace))

    def _shard(self, policy: Policy, unit: HeadUnit) -> Policy:
        """Shard unit by unit, so that no rank but the first ever holds the whole model."""
        lm: Any = self.model
        reduced = compute = None
        # Gradients of low-precision passes are reduced in FP32, in which the optimiser steps.
        if self.compute != self.dtype:
            reduced, compute = self.dtype, self.compute
        policy_of = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=reduced)
        embedding = lm.get_input_embeddings()
        tied = embedding.weight is unit.weight
        first = [embedding, unit] if tied else [unit]
        self._broadcast_from_rank0(nn.ModuleList(first))
        # Tied weights must be one unit (the head alone raises). It is used first and last in a
        # pass, so it stays gathered in between.
        if tied:
            fully_shard(first, mesh=self.mesh, mp_policy=policy_of, reshard_after_forward=False)
        else:
            fully_shard(unit, mesh=self.mesh, mp_policy=policy_of)
        for block in blocks(self.model):
            self._broadcast_from_rank0(block)
            fully_shard(block, mesh=self.mesh, mp_policy=policy_of)
        self._broadcast_from_rank0(policy)
        fully_shard(policy, mesh=self.mesh, mp_policy=policy_of)
        return policy

    @torch.no_grad()
    def _broadcast_from_rank0(self, module: nn.Module) -> None:
        """Replace every tensor of a module that is not sharded yet by rank 0's."""
        # By id, so that tied tensors stay tied. The old tensors are kept too: once one is freed,
        # its id may be given to another.
        moved: dict[int, tuple[Tensor, Tensor]] = {}
        for part in module.modules():
            # vars: some models keep tensors as plain attributes (rotary frequencies).
            stores: tuple[dict[str, Any], ...] = (part._parameters, part._buffers, vars(part))
            for store in stores:
                for name, tensor in store.items():
                    if not isinstance(tensor, Tensor) or isinstance(tensor, DTensor):
                        continue
                    if id(tensor) not in moved:
                        moved[id(tensor)] = (tensor, self._broadcast_tensor(tensor))
                    store[name] = moved[id(tensor)][1]

    def _broadcast_tensor(self, tensor: Tensor) -> Tensor:
        dtype = self.dtype if tensor.dtype == self.compute else tensor.dtype
        if self.rank == 0:
            new = tensor.detach().to(self.device, dtype).contiguous()
        else:
            new = torch.empty(tensor.shape, dtype=dtype, device=self.device)
        dist.broadcast(new, 0)
        if not isinstance(tensor, nn.Parameter):
            return new
        return nn.Parameter(new, requires_grad=tensor.requires_grad)

    # -- passes -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def scoring(self) -> Iterator[None]:
        """A pass without gradients. Afterwards nothing stays gathered: FSDP would use it again
        after the weights have changed."""
        self.trace.begin("score")
        with torch.no_grad(), installed(self.attention, self.model):
            yield
        for module in self.units:
            module.reshard()

    @contextlib.contextmanager
    def learning(self, *, last: bool) -> Iterator[None]:
        """A pass with gradients. The `last` one of a step reduces them, with those before it."""
        sync = last or self.gradient_bytes > MAX_UNREDUCED_BYTES
        cast(FSDPModule, self.policy).set_requires_gradient_sync(sync)
        self.trace.begin("reduce" if sync else "hold")
        with installed(self.attention, self.model):
            yield

    def replay_collectives(self) -> None:
        """Join the remaining collectives of a pass that has failed, so that no rank waits for this
        one."""
        self.trace.replay_rest()
        cast(FSDPModule, self.policy).reset_iter_state()
        # `reset_iter_state` keeps what earlier passes of the step have summed and not reduced. The
        # pass that would have reduced it may be this one: it would be added to the next attempt.
        for module in self.units:
            for group in module._get_fsdp_state()._fsdp_param_groups:
                for parameter in group.fsdp_params:
                    parameter.unsharded_accumulated_grad = None
                    if hasattr(parameter, "_unsharded_param"):
                        parameter._unsharded_param.grad = None

    # -- parameters -------------------------------------------------------------------------------

    def parameters(self) -> dict[str, DTensor]:
        return {name: cast(DTensor, p) for name, p in self.model.named_parameters()}

    def weights(self) -> Mapping[str, Tensor]:
        return Gathered(self.parameters(), self.compute)


class Gathered(Mapping[str, Tensor]):
    """The whole weights as a mapping: each tensor is gathered from all ranks when it is read. All
    ranks must read all tensors in the same order."""

    def __init__(self, parameters: Mapping[str, DTensor], dtype: torch.dtype) -> None:
        self._parameters, self._dtype = parameters, dtype

    @torch.no_grad()
    def __getitem__(self, name: str) -> Tensor:
        return self._parameters[name].full_tensor().to(self._dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)


def blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks of a causal LM: its outermost list of modules."""
    return list(next(m for m in model.modules() if isinstance(m, nn.ModuleList)))


def shard_range(size: int, rank: int, ranks: int) -> tuple[int, int]:
    """First row and end of a rank's shard of a tensor, as `fully_shard` cuts it.

    >>> [shard_range(5, rank, 3) for rank in range(3)]
    [(0, 2), (2, 4), (4, 5)]
    """
    each = -(-size // ranks)
    return min(rank * each, size), min((rank + 1) * each, size)
