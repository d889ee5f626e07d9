"""Masters of adapters over the ranks of a sharded trainer.

Each rank has some rows of W (of experts: some experts). Merged, it has the same rows of B, and all
of A (of experts: both of its own): dB needs no communication, and dA is a sum over ranks. Unmerged,
every rank has all of A and B, and both gradients are sums over ranks. What all ranks have, they
step alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from scalerl.models.adapter import AdaptedWeight, AdapterSpec, Applied, Merged, Unmerged
from scalerl.trainer.low_rank import LowRankMasters
from scalerl.trainer.sharding import ShardedModel, shard_range


class ShardedLowRank(LowRankMasters):
    """One rank's part of the masters A and B."""

    def __init__(
        self, sharded: ShardedModel, spec: AdapterSpec, targets: Sequence[AdaptedWeight]
    ) -> None:
        self.sharded = sharded
        experts = [t for t in targets if len(t.shape) == 3]
        #: Names of the tensors of which each rank has some rows.
        self.by_rows = (
            {t.b for t in targets} | {t.a for t in experts} if spec.merged else frozenset[str]()
        )
        super().__init__(sharded.model, spec, targets)

    def _applied(self, model: nn.Module) -> Applied:
        if not self.spec.merged:
            return Unmerged(model, self.targets, self.spec)
        own = {name: self.rows(p.detach()) for name, p in self.trained.items()}
        # The base has the precision of the passes already: its copy needs no more.
        return Merged(own, self.targets, self.spec, self.sharded.compute)

    def part(self, name: str, whole: Tensor) -> Tensor:
        if name not in self.by_rows:
            return whole
        start, stop = shard_range(len(whole), self.sharded.rank, self.sharded.ranks)
        return whole[start:stop].contiguous()

    @torch.no_grad()
    def whole(self, name: str, part: Tensor) -> Tensor:
        if name not in self.by_rows:
            return part
        shape = torch.Size(self.shapes[name])
        stride = torch.empty(shape, device="meta").stride()
        mesh = self.sharded.mesh
        return DTensor.from_local(
            part, mesh, [Shard(0)], run_check=False, shape=shape, stride=stride
        ).full_tensor()

    def rows(self, tensor: Tensor) -> Tensor:
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor

    def complete(self) -> None:
        super().complete()
        mine = [t for n, t in self.by_name.items() if n not in self.by_rows]
        if not mine:
            return
        # One collective for all of them: each is small.
        whole = torch.cat(
            [(torch.zeros_like(t) if t.grad is None else t.grad).flatten() for t in mine]
        )
        dist.all_reduce(whole)
        at = 0
        for t in mine:
            t.grad = whole[at : at + t.numel()].view(t.shape)
            at += t.numel()
