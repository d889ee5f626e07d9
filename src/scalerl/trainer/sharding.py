"""A model over many ranks: FSDP2 (`fully_shard`), a unit per block, the head a unit of its own.

Gradients are *summed* over ranks: what each token counts was settled for the whole batch, so the
sum of the ranks' parts is the gradient of the batch. Parameters are FP32 shards, the masters that
the optimiser steps on; a model of another dtype is computed in that dtype (`MixedPrecisionPolicy`).

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

from scalerl.models.head import Head, final_hidden, wide
from scalerl.models.logprobs import chunked_logprobs

#: Bytes of gradients that a rank may keep unreduced between micro-batches: one reduction a step is
#: faster than one per micro-batch, but needs the gradient of the whole model on every rank.
HELD_GRADIENT = 1 << 30


class HeadUnit(nn.Module):
    """In the place of a model's head, with its parameters under their names: a module with a
    forward pass of its own, which gives log-probs and entropies."""

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
    """Body and head in one forward pass: a sharded parameter may only be used inside it."""

    def __init__(self, model: nn.Module, head: HeadUnit) -> None:
        super().__init__()
        self.model = model
        self._head = (head,)  # part of the model already

    def forward(
        self, ids: Tensor, mask: Tensor, rows: Tensor, columns: Tensor, target: Tensor
    ) -> tuple[Tensor, Tensor]:
        hidden = final_hidden(self.model, ids, attention_mask=mask)[rows, columns]
        return cast(tuple[Tensor, Tensor], self._head[0](hidden, target))


@dataclass(slots=True)
class CollectiveTrace:
    """The collectives of one pass over the model, in order, so that a rank whose pass has failed
    can take part in the rest of it. A pass of each kind is made once with nothing in it, which
    writes down what a pass of that kind does."""

    known: dict[str, list[tuple[str, torch.Size, torch.Size, torch.dtype, torch.device]]] = field(
        default_factory=dict
    )
    kind: str = ""
    at: int = 0

    def begin(self, kind: str) -> None:
        self.kind, self.at = kind, 0

    def note(self, what: str, output: Tensor, given: Tensor) -> None:
        calls = self.known.setdefault(self.kind, [])
        if self.at == len(calls):
            calls.append((what, output.shape, given.shape, output.dtype, output.device))
        self.at += 1

    def finish(self) -> None:
        """Take part in the rest of this pass, with nothing: its result is thrown away."""
        for what, out, given, dtype, device in self.known.get(self.kind, [])[self.at :]:
            output = torch.zeros(out, dtype=dtype, device=device)
            source = torch.zeros(given, dtype=dtype, device=device)
            if what == "gather":
                dist.all_gather_into_tensor(output, source)
            else:
                dist.reduce_scatter_tensor(output, source)
        self.at = len(self.known.get(self.kind, []))


class _Gather(DefaultAllGather):
    def __init__(self, traffic: CollectiveTrace) -> None:
        self.traffic = traffic

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False
    ) -> Any:
        self.traffic.note("gather", output_tensor, input_tensor)
        return super().__call__(output_tensor, input_tensor, group, async_op)


class _Scatter(DefaultReduceScatter):
    def __init__(self, traffic: CollectiveTrace) -> None:
        self.traffic = traffic

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any,
        async_op: bool = False,
    ) -> Any:  # fmt: skip
        self.traffic.note("reduce", output_tensor, input_tensor)
        return super().__call__(output_tensor, input_tensor, group, op, async_op)


class ShardedModel:
    """A causal LM whose parameters are spread over the ranks of a mesh.

    model        whole on rank 0; on the others it may be on the meta device
    head         of that model
    compute      dtype that the passes are made in
    """

    def __init__(
        self,
        model: nn.Module,
        head: Head,
        mesh: DeviceMesh,
        device: torch.device,
        compute: torch.dtype,
        temperature: float,
    ) -> None:
        self.model, self.mesh, self.device, self.compute = model, mesh, device, compute
        self.rank, self.ranks = mesh.get_local_rank(), mesh.size()
        #: What the parameters are kept in, whatever is computed in.
        self.dtype = wide(compute)
        self.width = head.weight.shape[1]
        self.held = self.dtype.itemsize * sum(p.numel() for p in model.parameters())
        self.traffic = CollectiveTrace()
        unit = HeadUnit(model, head, temperature)
        self.policy = self._shard(Policy(model, unit), unit)
        self.units = [m for m in self.policy.modules() if isinstance(m, FSDPModule)]
        for module in self.units:
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
            module.set_custom_all_gather(_Gather(self.traffic))
            module.set_custom_reduce_scatter(_Scatter(self.traffic))

    def _shard(self, policy: Policy, unit: HeadUnit) -> Policy:
        """Unit by unit: of more than one, no rank but the first ever holds the whole."""
        lm: Any = self.model
        reduced = compute = None
        if self.compute != self.dtype:
            reduced, compute = self.dtype, self.compute
        policy_of = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=reduced)
        embedding = lm.get_input_embeddings()
        tied = embedding.weight is unit.weight
        first = [embedding, unit] if tied else [unit]
        self._broadcast_from_rank0(nn.ModuleList(first))
        if tied:  # used first and last: kept in between
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
        """Everything in a module that is not there yet, from rank 0."""
        moved: dict[int, tuple[Tensor, Tensor]] = {}  # the old ones too: an id lives as long
        for part in module.modules():
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
        return nn.Parameter(new) if isinstance(tensor, nn.Parameter) else new

    # -- passes -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def scoring(self) -> Iterator[None]:
        """A pass without gradients. Afterwards nothing stays gathered: it would be used again when
        the weights have changed."""
        self.traffic.begin("score")
        with torch.no_grad():
            yield
        for module in self.units:
            module.reshard()

    @contextlib.contextmanager
    def learning(self, *, last: bool) -> Iterator[None]:
        """A pass with gradients; those of the `last` one of a step are reduced with all before."""
        sync = last or self.held > HELD_GRADIENT
        cast(FSDPModule, self.policy).set_requires_gradient_sync(sync)
        self.traffic.begin("reduce" if sync else "hold")
        yield

    def replay_collectives(self) -> None:
        """After a pass that has failed in its middle: the others are not left waiting."""
        self.traffic.finish()
        cast(FSDPModule, self.policy).reset_iter_state()

    # -- parameters -------------------------------------------------------------------------------

    def parameters(self) -> dict[str, DTensor]:
        return {name: cast(DTensor, p) for name, p in self.model.named_parameters()}

    def weights(self) -> Mapping[str, Tensor]:
        return Gathered(self.parameters(), self.compute)


class Gathered(Mapping[str, Tensor]):
    """The whole weights, one tensor at a time: each is put together when it is looked at, by all
    ranks at once. All must look at all of them, in order."""

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
    """The layers of a causal LM: its outermost list of modules."""
    return list(next(m for m in model.modules() if isinstance(m, nn.ModuleList)))


def shard_range(size: int, rank: int, ranks: int) -> tuple[int, int]:
    """Rows of a tensor that a rank holds, from and to, as `fully_shard` cuts it.

    >>> [shard_range(5, rank, 3) for rank in range(3)]
    [(0, 2), (2, 4), (4, 5)]
    """
    each = -(-size // ranks)
    return min(rank * each, size), min((rank + 1) * each, size)
