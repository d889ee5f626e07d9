"""The trainer of several ranks (`placement.trainer = "fsdp"`): the steps of the one-process trainer
on a sharded model (sharding.py). Every rank makes every call with the same batch:

- rows are divided by work (micro.py); a rank with fewer micro-batches than another makes empty
  passes for the rest, because a missing collective would stall all ranks until the deadline;
- gradients are summed over ranks and log-probs gathered; the norm, whether it is finite, and
  whether memory ran out are reduced over ranks first, so that all ranks decide the same;
- each rank writes and reads its own shard of a checkpoint (shards.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from scalerl.algorithm.batch import LossBatch
from scalerl.errors import is_out_of_memory
from scalerl.models.cpu.packed import PassWeights
from scalerl.models.head import Precision, head_of
from scalerl.models.load import load_model
from scalerl.models.meta_model import meta_model
from scalerl.models.routing import ExpertReplay
from scalerl.models.rows import PromptRows
from scalerl.trainer import shards
from scalerl.trainer.interface import TrainerSpec
from scalerl.trainer.local import GradientStats, LocalTrainer, enable_recompute
from scalerl.trainer.micro import MicroBatch, balanced_shares, micro_batches, row_work
from scalerl.trainer.rendezvous import join_process_group
from scalerl.trainer.scorer import ScoredTokens, Scorer
from scalerl.trainer.sharding import ShardedModel

#: The input of an empty pass: two tokens with weight 0.
EMPTY_ROW = PromptRows(np.zeros(1, dtype=np.int64), (np.zeros(1, dtype=np.int64),))


def fsdp_trainer(spec: TrainerSpec) -> FsdpTrainer:
    """One rank of the trainer "fsdp", in this process. Without `spec.ranks` it is the only one."""
    torch.set_num_threads(spec.threads)
    device = join_process_group(spec)
    trust = spec.trust_remote_code
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))

    def load() -> ShardedModel:
        # Only rank 0 reads the weights from disk; the others receive their shards from it.
        if dist.get_rank() == 0:
            model = load_model(spec.model, spec.dtype, "cpu", trust_remote_code=trust)
        else:
            model = meta_model(spec.model, spec.dtype, trust_remote_code=trust)
        if spec.recompute:
            enable_recompute(model)
        head = head_of(model, spec.head, verify=dist.get_rank() == 0)
        dtype = getattr(torch, spec.dtype)
        return ShardedModel(model, head, mesh, device, dtype, spec.temperature)

    frozen = spec.options.kl_coefficient != 0
    made = FsdpTrainer(spec, load(), load() if frozen else None)
    if spec.checkpoint is not None:
        made.load(Path(spec.checkpoint))
    return made


class ShardedScorer(Scorer):
    """Log-probs under a sharded model: each rank scores a share of the rows, and the results are
    summed over ranks."""

    def __init__(self, sharded: ShardedModel, *, replay: bool = False) -> None:
        self.sharded = sharded
        self.model, self.device = sharded.model, sharded.device
        # The packed pass reads parameters directly, which FSDP2 forbids.
        self.packed = None
        self.replay = ExpertReplay(self.model) if replay else None
        self.out_of_memory = False

    def micro_batches(self, groups: Sequence[PromptRows], token_budget: int) -> list[MicroBatch]:
        """This rank's micro-batches, padded with empty ones to the number of the busiest rank."""
        flat = [g.only([i]) for g in groups for i in range(len(g))]
        work = [row_work(row.longest, self.sharded.width) for row in flat]
        found = []
        for mine in balanced_shares(work, self.sharded.ranks):
            parts = micro_batches([flat[i] for i in mine], token_budget, packed=False)
            found.append([MicroBatch([mine[r] for r in p.rows], p.groups) for p in parts])
        longest = max(map(len, found))
        ours = found[self.sharded.rank]
        return ours + [MicroBatch([], [])] * (longest - len(ours))

    def score(
        self, groups: Sequence[PromptRows], weights: PassWeights | None = None
    ) -> ScoredTokens:
        groups = groups or [EMPTY_ROW]
        ids, mask, rows, columns, place = self._padded(groups)
        target = ids[rows, columns + 1]
        logprobs, entropy = self.sharded.policy(ids, mask, rows, columns, target)
        return ScoredTokens(logprobs, entropy, place, ids.numel())

    @torch.no_grad()
    def logprobs(
        self, groups: Sequence[PromptRows], token_budget: int
    ) -> list[npt.NDArray[np.float32]]:
        self.model.eval()
        lengths = [len(c) for group in groups for c in group.completions]
        ends = np.cumsum([0, *lengths])
        whole = torch.zeros(int(ends[-1]))
        for part in self.micro_batches(groups, token_budget):
            with self.sharded.scoring():
                scored = self.attempt(lambda part=part: self.score(part.groups).logprobs_M)  # type: ignore[misc]
            if not part.rows or scored is None:
                continue
            at = np.concatenate([np.arange(ends[i], ends[i + 1]) for i in part.rows])
            whole[torch.from_numpy(at)] = scored.float().cpu()
        self.agree_on_oom()
        dist.all_reduce(whole)
        return [whole[a:b].numpy() for a, b in pairwise(ends)]

    def attempt(self, work: Callable[[], Tensor | None]) -> Tensor | None:
        """Run a pass that may run out of memory. If it does, the remaining collectives are
        replayed, and `agree_on_oom` informs the other ranks."""
        try:
            return work()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        self.out_of_memory = True
        self.sharded.replay_collectives()
        return None

    def agree_on_oom(self) -> None:
        """Raise MemoryError on all ranks if any of them ran out of memory."""
        any_rank = torch.tensor(float(self.out_of_memory))
        self.out_of_memory = False
        dist.all_reduce(any_rank, dist.ReduceOp.MAX)
        if any_rank:
            raise MemoryError("a rank ran out of memory")


class FsdpTrainer(LocalTrainer):
    """One rank of the sharded trainer. All ranks are called with the same arguments."""

    scorer: ShardedScorer

    def __init__(
        self, spec: TrainerSpec, sharded: ShardedModel, reference: ShardedModel | None
    ) -> None:
        self.spec, self.sharded = spec, sharded
        self._sharded = {s.model: s for s in (sharded, reference) if s is not None}
        super().__init__(
            sharded.model,
            spec.options,
            spec.optimiser,
            head_precision=spec.head,
            temperature=spec.temperature,
            token_budget=spec.token_budget,
            reference=None if reference is None else reference.model,
            replay=spec.replay,
        )
        self._record_collectives()

    def _scorer(
        self, model: nn.Module, precision: Precision, temperature: float, *, replay: bool
    ) -> Scorer:
        return ShardedScorer(self._sharded[model], replay=replay)

    def _record_collectives(self) -> None:
        """Make each kind of pass once with an empty row, to record its collectives
        (`CollectiveTrace`)."""
        for scorer in (self.scorer, self.reference):
            if scorer is not None:
                scorer.logprobs([], self.token_budget)
        self.model.train()
        for last in (False, True):
            with self.sharded.learning(last=last):
                self._empty_pass()
        self.masters.clear()

    def weights(self) -> Mapping[str, Tensor]:
        return self.sharded.weights()

    def save(self, path: Path) -> None:
        shards.save(path, self.spec, self.sharded, self.optimiser, self._version)

    def load(self, path: Path) -> None:
        self._version = shards.load(path, self.spec, self.sharded, self.optimiser)

    def _gradient(self, rows: Sequence[PromptRows], batch: LossBatch) -> GradientStats:
        self.masters.clear()
        self.model.train()
        shape = batch.mask_BT.shape
        stats = GradientStats(torch.zeros(shape), torch.zeros(shape))
        parts = self.scorer.micro_batches(rows, self.token_budget) if rows else []
        for i, part in enumerate(parts):
            with self.sharded.learning(last=i == len(parts) - 1):
                self.scorer.attempt(lambda part=part: self._backward(part, batch, stats))  # type: ignore[misc]
        self.scorer.agree_on_oom()
        # Rows of other ranks are zero here, so that a sum over ranks puts the matrices together.
        counts = torch.tensor([stats.loss, stats.tokens, stats.micro_batches], dtype=torch.float64)
        for tensor in (counts, stats.logprobs_BT, stats.entropy_BT):
            dist.all_reduce(tensor)
        stats.loss, stats.tokens = counts[0].item(), int(counts[1])
        stats.micro_batches = int(counts[2])
        return stats

    def _backward(
        self,
        part: MicroBatch,
        batch: LossBatch,
        stats: GradientStats,
        weights: PassWeights | None = None,
    ) -> None:
        if part.rows:
            super()._backward(part, batch, stats, weights)
        else:
            self._empty_pass()

    def _empty_pass(self) -> None:
        """A forward and backward pass with the same collectives as any, adding 0 to every
        gradient."""
        logprobs = self.scorer.score([]).logprobs_M
        # Finite values only: inf * 0 is NaN.
        nothing = torch.where(logprobs.isfinite(), logprobs, 0.0).sum() * 0.0
        nothing.backward()  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def _clip_to(self, longest: float) -> float:
        """Clip by the norm over all ranks. Torch's `clip_grad_norm_` would give a DTensor; here
        every rank adds the same squares in the same order, in float64, and finds the same norm."""
        mine = [local(m.grad) for m in self.masters.tensors() if m.grad is not None]
        square = sum(
            (g.double().square().sum().cpu() for g in mine), torch.zeros((), dtype=torch.double)
        )
        norm = all_gather_stack(square).sum().sqrt().item()
        if norm > longest:
            for gradient in mine:
                gradient.mul_(longest / (norm + 1e-6))
        return norm

    @torch.no_grad()
    def _non_finite(self) -> str | None:
        norms = [torch.linalg.vector_norm(local(p)).cpu() for p in self.masters.tensors()]
        wrong = all_gather_stack((~torch.stack(norms).isfinite()).double()).any(0).nonzero()
        return list(self.masters.by_name)[int(wrong[0])] if len(wrong) else None


def local(tensor: Tensor) -> Tensor:
    """This rank's shard of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def all_gather_stack(tensor: Tensor) -> Tensor:
    """A small tensor of every rank, stacked in the order of ranks."""
    found = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(found, tensor)
    return torch.stack(found)
