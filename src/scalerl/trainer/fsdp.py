"""The trainer of several ranks (`placement.trainer = "fsdp"`): the steps of the one-process trainer
on a sharded model (sharding.py). Every rank makes every call with the same batch:

- groups are divided by work (micro.py); a rank with fewer micro-batches than another makes empty
  passes for the rest, because a missing collective would stall all ranks until the deadline;
- gradients are summed over ranks and log-probs gathered; the norm, whether it is finite, and
  whether memory ran out are reduced over ranks first, so that all ranks decide the same;
- each rank writes and reads its own shard of a checkpoint (shards.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from scalerl.algorithm.batch import TokenBatch
from scalerl.errors import InputError, is_out_of_memory
from scalerl.models.adapter import AdaptedWeight, AdapterSpec, freeze, targets_of
from scalerl.models.cpu.packed import PassWeights
from scalerl.models.flat import FlatAttention
from scalerl.models.head import Precision, head_of
from scalerl.models.load import load_model
from scalerl.models.meta_model import meta_model
from scalerl.models.routing import ExpertReplay
from scalerl.models.rows import FlatRows
from scalerl.trainer import adapter_checkpoint, shards
from scalerl.trainer.interface import TrainerSpec
from scalerl.trainer.local import GradientStats, LocalTrainer, enable_recompute
from scalerl.trainer.low_rank_shards import ShardedLowRank
from scalerl.trainer.micro import Episodes, Sizes
from scalerl.trainer.rendezvous import join_process_group
from scalerl.trainer.scorer import Scorer
from scalerl.trainer.sharding import ShardedModel

#: The input of an empty pass: a prompt of one token, and one to score.
EMPTY_ROWS = FlatRows.from_tokens(
    ids_N=np.zeros(2, np.int64),
    position_N=np.arange(2),
    row_N=np.arange(2),
    parent_R=np.array([-1, 0]),
    scored_N=np.array([False, True]),
)


def fsdp_trainer(spec: TrainerSpec) -> FsdpTrainer:
    """One rank of the trainer "fsdp", in this process. Without `spec.ranks` it is the only one."""
    torch.set_num_threads(spec.threads)
    device = join_process_group(spec)
    trust = spec.trust_remote_code
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))

    targets: tuple[AdaptedWeight, ...] = ()

    def load() -> ShardedModel:
        nonlocal targets
        # Only rank 0 reads the weights from disk; the others receive their shards from it.
        if dist.get_rank() == 0:
            model = load_model(spec.model, spec.dtype, "cpu", trust_remote_code=trust)
        else:
            model = meta_model(spec.model, spec.dtype, trust_remote_code=trust)
        if spec.recompute:
            enable_recompute(model)
        if spec.adapter is not None:
            # Before sharding, which replaces the head and makes units of what is frozen or not.
            targets = targets_of(model, spec.adapter)
            freeze(model, targets, spec.adapter)
        head = head_of(model, spec.head, verify=dist.get_rank() == 0)
        dtype = getattr(torch, spec.dtype)
        attention = agreed_attention(model, device)
        return ShardedModel(model, head, mesh, device, dtype, spec.temperature, attention)

    # With an adapter, the model without it is the starting model.
    frozen = spec.options.kl_coefficient != 0 and spec.adapter is None
    made = FsdpTrainer(spec, load(), load() if frozen else None, targets)
    if spec.checkpoint is not None:
        made.load(Path(spec.checkpoint))
    return made


def agreed_attention(model: nn.Module, device: torch.device) -> FlatAttention | None:
    """The attention of flat rows, if rank 0, which has the weights, finds that it suits the
    model."""
    mine = FlatAttention.from_model(model) if dist.get_rank() == 0 else None
    suits = torch.tensor(float(mine is not None), device=device)
    dist.broadcast(suits, 0)
    return (mine or FlatAttention()) if suits else None


class ShardedScorer(Scorer):
    """Log-probs under a sharded model: each rank scores a share of the episodes, and the results
    are summed over ranks."""

    def __init__(self, sharded: ShardedModel, *, replay: bool = False) -> None:
        self.sharded = sharded
        self.model, self.device = sharded.model, sharded.device
        # The packed pass reads parameters directly, which FSDP2 forbids.
        self.packed = None
        self.attention = sharded.attention
        self.replay = ExpertReplay(self.model) if replay else None
        self.out_of_memory = False

    def micro_batches(self, batch: TokenBatch, token_budget: int) -> list[Episodes]:
        """This rank's micro-batches, and empty ones up to the number of the busiest rank."""
        sizes, ranks = Sizes(batch), self.sharded.ranks
        if self.attention is None and int((batch.episode_R >= 0).sum()) > len(batch):
            raise InputError(
                f"a {type(self.model).__name__} goes through FSDP one row at a time, and an episode"
                " here has several (its history was rewritten): set placement.trainer=local"
            )
        found = [
            self._cut(sizes, mine, batch, token_budget)
            for mine in sizes.divide(batch.prompt_E.tolist(), ranks, self.sharded.width)
        ]
        ours = found[self.sharded.rank]
        nothing = np.zeros(0, np.int64)
        return ours + [nothing] * (max(map(len, found)) - len(ours))

    def score_rows(
        self, rows: FlatRows, weights: PassWeights | None = None
    ) -> tuple[Tensor, Tensor]:
        return cast(tuple[Tensor, Tensor], self.sharded.policy(rows))

    def score_probe(self, tokens: Sequence[int]) -> tuple[float, ...]:
        # Rank 0's, so that all ranks decide the same by them.
        found = torch.tensor(super().score_probe(tokens), dtype=torch.float64)
        dist.broadcast(found, 0)
        return tuple(found.tolist())

    @contextmanager
    def _scoring_probe(self) -> Iterator[None]:
        unit = self.sharded.head
        given, unit.temperature = unit.temperature, 1.0
        try:
            with self.sharded.scoring():
                yield
        finally:
            unit.temperature = given

    def empty_pass(self) -> Tensor:
        """A forward pass with the same collectives as any."""
        if self.replay is not None:
            self.replay.give([], 0, self.device)
        return self.score_rows(EMPTY_ROWS.to(self.device))[0]

    @torch.no_grad()
    def logprobs(self, batch: TokenBatch, token_budget: int) -> Tensor:
        self.model.eval()
        out_N = torch.zeros(len(batch.ids_N))

        def score(episodes: Episodes) -> None:
            if not len(episodes):
                self.empty_pass()
                return
            part, at_N = batch.take(episodes)
            out_N[at_N] += self.score(part).logprobs_N.float().cpu()

        for episodes in self.micro_batches(batch, token_budget):
            with self.sharded.scoring():
                self.attempt(lambda episodes=episodes: score(episodes))  # type: ignore[misc]
        self.agree_on_oom()
        dist.all_reduce(out_N)
        return out_N

    def attempt(self, work: Callable[[], None]) -> None:
        """Run a pass that may run out of memory. If it does, the remaining collectives are
        replayed, and `agree_on_oom` informs the other ranks."""
        try:
            work()
            return
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        self.out_of_memory = True
        self.sharded.replay_collectives()

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
    adapter: ShardedLowRank | None

    def __init__(
        self,
        spec: TrainerSpec,
        sharded: ShardedModel,
        reference: ShardedModel | None,
        adapted: Sequence[AdaptedWeight] = (),
    ) -> None:
        self.spec, self.sharded, self._adapted = spec, sharded, adapted
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
            adapter=spec.adapter,
            model_name=spec.model,
        )
        self._record_collectives()

    def _low_rank(self, model: nn.Module, adapter: AdapterSpec) -> ShardedLowRank:
        return ShardedLowRank(self.sharded, adapter, self._adapted)

    def _scorer(
        self, model: nn.Module, precision: Precision, temperature: float, *, replay: bool
    ) -> Scorer:
        return ShardedScorer(self._sharded[model], replay=replay)

    def _record_collectives(self) -> None:
        """Make each kind of pass once with an empty row, to record its collectives
        (`CollectiveTrace`)."""
        for scorer in (self.scorer, self.reference):
            if scorer is not None:
                assert isinstance(scorer, ShardedScorer)
                with scorer.sharded.scoring():
                    scorer.empty_pass()
        self.model.train()
        for last in (False, True):
            with self.sharded.learning(last=last):
                self._empty_pass()
        self.masters.clear()

    def weights(self) -> Mapping[str, Tensor]:
        return self.sharded.weights() if self.adapter is None else self.adapter.weights()

    def save(self, path: Path) -> None:
        if self.adapter is not None:
            saved = self._saved_adapter()
            shards.write_on_rank0(path, lambda: adapter_checkpoint.save(path, saved))
            return
        shards.save(path, self.spec, self.sharded, self.optimiser, self._version)

    def load(self, path: Path) -> None:
        if self.adapter is not None:
            super().load(path)
            return
        self._version = shards.load(path, self.spec, self.sharded, self.optimiser)

    def _gradient(self, batch: TokenBatch) -> GradientStats:
        self.masters.clear()
        self.model.train()
        stats = GradientStats(torch.zeros(len(batch.ids_N)), torch.zeros(len(batch.ids_N)))
        parts = self.scorer.micro_batches(batch, self.token_budget) if len(batch) else []
        for i, part in enumerate(parts):
            with self.sharded.learning(last=i == len(parts) - 1):
                self.scorer.attempt(lambda part=part: self._backward(part, batch, stats))  # type: ignore[misc]
        self.scorer.agree_on_oom()
        # Tokens of other ranks are zero here, so that a sum over ranks puts the batch together.
        counts = torch.tensor([stats.loss, stats.tokens, stats.micro_batches], dtype=torch.float64)
        for tensor in (counts, stats.logprobs_N, stats.entropy_N):
            dist.all_reduce(tensor)
        stats.loss, stats.tokens = counts[0].item(), int(counts[1])
        stats.micro_batches = int(counts[2])
        self.masters.complete()
        return stats

    def _backward(
        self,
        episodes: Episodes,
        batch: TokenBatch,
        stats: GradientStats,
        weights: PassWeights | None = None,
    ) -> None:
        if len(episodes):
            super()._backward(episodes, batch, stats, weights)
        else:
            self._empty_pass()

    def _empty_pass(self) -> None:
        """A forward and backward pass with the same collectives as any, adding 0 to every
        gradient."""
        logprobs = self.scorer.empty_pass()
        # Finite values only: inf * 0 is NaN.
        nothing = torch.where(logprobs.isfinite(), logprobs, 0.0).sum() * 0.0
        nothing.backward()  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def _clip_to(self, longest: float) -> float:
        """Clip by the norm over all ranks. Torch's `clip_grad_norm_` would give a DTensor; here
        every rank adds the same squares in the same order, in float64, and finds the same norm."""
        by_rows = None if self.adapter is None else self.adapter.by_rows
        mine: list[Tensor] = []
        everywhere: list[Tensor] = []  # what every rank has all of
        for name, master in self.masters.by_name.items():
            if master.grad is not None:
                shared = by_rows is not None and name not in by_rows
                (everywhere if shared else mine).append(local(master.grad))
        square = all_gather_stack(_square(mine)).sum() + _square(everywhere)
        norm = square.sqrt().item()
        if norm > longest:
            for gradient in (*mine, *everywhere):
                gradient.mul_(longest / (norm + 1e-6))
        return norm

    @torch.no_grad()
    def _non_finite(self) -> str | None:
        norms = [torch.linalg.vector_norm(local(p)).cpu() for p in self.masters.tensors()]
        wrong = all_gather_stack((~torch.stack(norms).isfinite()).double()).any(0).nonzero()
        return list(self.masters.by_name)[int(wrong[0])] if len(wrong) else None


def _square(tensors: Sequence[Tensor]) -> Tensor:
    """The sum of squares of all elements."""
    zero = torch.zeros((), dtype=torch.double)
    return sum((t.double().square().sum().cpu() for t in tensors), zero)


def local(tensor: Tensor) -> Tensor:
    """This rank's shard of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def all_gather_stack(tensor: Tensor) -> Tensor:
    """A small tensor of every rank, stacked in the order of ranks."""
    found = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(found, tensor)
    return torch.stack(found)
