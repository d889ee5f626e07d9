"""The trainer of one process: micro-batches, gradient accumulation, clipping, checkpoints."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from scalerl.algorithm.batch import LossBatch
from scalerl.algorithm.diagnostics import diagnose
from scalerl.algorithm.learning_rate import LearningRate
from scalerl.algorithm.objective import objective, prepare
from scalerl.algorithm.options import Options
from scalerl.algorithm.rollout import Group
from scalerl.errors import is_out_of_memory
from scalerl.models.cpu.packed import PassWeights
from scalerl.models.head import Precision
from scalerl.models.load import load_model_fast
from scalerl.models.rows import PromptRows
from scalerl.recipe.sections_runtime import OptimiserSection
from scalerl.trainer import checkpoint
from scalerl.trainer.interface import NonFiniteGradient, NonFiniteWeights, StepReport, TrainerSpec
from scalerl.trainer.masters import Masters
from scalerl.trainer.micro import MicroBatch, kept_rows, prompt_rows
from scalerl.trainer.optimisers import OPTIMISERS
from scalerl.trainer.scorer import Scorer


def local_trainer(spec: TrainerSpec) -> LocalTrainer:
    """The trainer "local": in this process, on one device."""
    torch.set_num_threads(spec.threads)
    # The KL term is taken towards the starting model, so a second copy of it stays in memory.
    frozen = spec.options.kl_coefficient != 0

    def load() -> Any:
        return load_model_fast(
            spec.model,
            spec.dtype,
            spec.device,
            trust_remote_code=spec.trust_remote_code,
            bare=not spec.recompute,
        )

    model = load()
    if spec.recompute:
        enable_recompute(model)
    made = LocalTrainer(
        model,
        spec.options,
        spec.optimiser,
        head_precision=spec.head,
        temperature=spec.temperature,
        token_budget=spec.token_budget,
        reference=load() if frozen else None,
        step_threads=spec.step_threads,
        replay=spec.replay,
    )
    if spec.checkpoint is not None:
        made.load(Path(spec.checkpoint))
    return made


def enable_recompute(model: Any) -> None:
    """Make the model store only the inputs of its blocks while it trains, and recompute the
    rest."""
    # The reentrant variant gives a block no gradients if none of its inputs requires one.
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


@dataclass(slots=True, eq=False)
class GradientStats:
    """What was computed along with the gradient of a batch."""

    logprobs_BT: Tensor
    entropy_BT: Tensor
    loss: float = 0.0
    #: Tokens that went through the model, padding included.
    tokens: int = 0
    micro_batches: int = 0
    #: First row and loss of each micro-batch.
    _losses: list[tuple[int, float]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, part: MicroBatch, loss: float, tokens: int) -> None:
        """Count one more micro-batch. Threads may call this in any order."""
        with self._lock:
            self._losses.append((part.rows[0], loss))
            # Summed in the order of rows, not of threads, so that every run gives the same bits.
            self.loss = sum(loss for _, loss in sorted(self._losses))
            self.tokens += tokens
            self.micro_batches += 1


class LocalTrainer:
    """A Trainer over a model in this process.

    temperature   temperature of the sampler: log-probs are those of the distribution sampled from
    token_budget  largest number of tokens in a micro-batch, padding included; lowered when memory
                  runs out
    reference     the frozen model that a KL term is taken to
    step_threads  worker threads that process packed micro-batches in parallel
    replay        whether tokens go to the experts that the generator chose (mixtures of experts)
    """

    def __init__(
        self,
        model: nn.Module,
        options: Options,
        optimiser: OptimiserSection,
        *,
        head_precision: Precision,
        temperature: float,
        token_budget: int,
        reference: nn.Module | None = None,
        step_threads: int = 1,
        replay: bool = False,
    ) -> None:
        self.model = model
        self.step_threads = step_threads
        self.options = options
        self.settings = optimiser
        self.rate = LearningRate.from_recipe(optimiser)
        self.token_budget = token_budget
        how = (head_precision, temperature)
        self.scorer = self._scorer(model, *how, replay=replay)
        self.reference = None if reference is None else self._scorer(reference, *how, replay=False)
        self.device = self.scorer.device
        self._version = 0
        self.masters = Masters(model)
        self.optimiser = OPTIMISERS[optimiser.name](self.masters.tensors(), optimiser)

    def _scorer(
        self, model: nn.Module, precision: Precision, temperature: float, *, replay: bool
    ) -> Scorer:
        return Scorer(model, precision, temperature, replay=replay)

    @property
    def version(self) -> int:
        return self._version

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        return self.rate.after(self._version)

    def step(self, groups: Sequence[Group]) -> StepReport:
        start, budget = time.perf_counter(), self.token_budget
        prepared = prepare(groups, self.options)
        batch, stats = self._gradient_within_memory(kept_rows(groups, prepared), prepared.batch)
        norm = self._clip(groups, batch)
        lr = self.lr
        for group in self.optimiser.param_groups:
            group["lr"] = lr
        # A batch without a gradient must leave the weights alone: weight decay and the momentum of
        # earlier steps would move them all the same.
        if norm > 0.0:
            self.optimiser.step()
            self._check_weights(lr)
            self.masters.round_into_model()
        whole = objective(stats.logprobs_BT, batch, self.options)
        diagnostics = diagnose(
            stats.logprobs_BT, batch, whole.tokens, self._version, stats.entropy_BT
        )
        self._version += 1
        note = f"memory ran out: micro-batches of {self.token_budget} tokens from now"
        return StepReport(
            version=self._version,
            loss=stats.loss,
            kl=whole.kl,
            grad_norm=norm,
            lr=lr,
            forward_tokens=stats.tokens,
            loss_tokens=int(batch.mask_BT.sum()),
            kept_tokens=sum(len(r) for r in prepared.rollouts),
            micro_batches=stats.micro_batches,
            seconds=time.perf_counter() - start,
            diagnostics=diagnostics,
            filtered=prepared.filtered.tally(),
            metrics=dict(getattr(whole.tokens, "metrics", {})),
            notes=() if self.token_budget == budget else (note,),
        )

    def score(self, groups: Sequence[Group]) -> list[list[npt.NDArray[np.float32]]]:
        rows = [prompt_rows(g.prompt_token_ids, g.rollouts) for g in groups]
        found = iter(self.scorer.logprobs(rows, self.token_budget))
        return [[next(found) for _ in group.rollouts] for group in groups]

    def weights(self) -> Mapping[str, Tensor]:
        return {name: p.detach() for name, p in self.model.named_parameters()}

    def save(self, path: Path) -> None:
        checkpoint.save(path, self.model, self.masters, self.optimiser, self._version)

    def load(self, path: Path) -> None:
        self._version = checkpoint.load(path, self.model, self.masters, self.optimiser)

    def _gradient_within_memory(
        self, rows: Sequence[PromptRows], batch: LossBatch
    ) -> tuple[LossBatch, GradientStats]:
        """Compute the gradient; returns the batch with reference log-probs, and the statistics.
        Where memory runs out, micro-batches are smaller from then on: only gradients have changed
        so far, so the attempt can be repeated."""
        while True:
            try:
                whole = self._with_reference(rows, batch)
                return whole, self._gradient(rows, whole)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
            # Outside the except block: inside, the error would still hold the tensors of the
            # failed attempt.
            self._shrink_micro_batches(rows)

    def _gradient(self, rows: Sequence[PromptRows], batch: LossBatch) -> GradientStats:
        """Sum the gradient over micro-batches."""
        self.masters.clear()
        self.model.train()
        shape = batch.mask_BT.shape
        stats = GradientStats(torch.zeros(shape), torch.zeros(shape))
        parts = self.scorer.micro_batches(rows, self.token_budget)
        packed = self.scorer.packed
        if packed is not None and self.scorer.packs(rows):
            # Which accumulator takes a micro-batch depends on its number alone, never on the number
            # of threads: the sums, and so the weights, are the same bit for bit with any of them.
            with packed.accumulating() as accumulators:
                n = len(accumulators)
                self._in_threads([parts[i::n] for i in range(n)], accumulators, batch, stats)
        else:
            for part in parts:
                self._backward(part, batch, stats)
        return stats

    def _in_threads(
        self,
        shares: Sequence[Sequence[MicroBatch]],
        accumulators: Sequence[PassWeights],
        batch: LossBatch,
        stats: GradientStats,
    ) -> None:
        """Process each accumulator's share of the micro-batches in a thread of its own. On two
        cores the second thread uses the generator's core while that one waits."""

        def work(share: Sequence[MicroBatch], accumulator: PassWeights) -> None:
            for part in share:
                self._backward(part, batch, stats, accumulator)

        threads = min(self.step_threads, sum(map(bool, shares)))
        if threads <= 1:
            for share, accumulator in zip(shares, accumulators, strict=True):
                work(share, accumulator)
            return
        # New threads would use all cores for a matrix product, which changes the order of its sums.
        each = (torch.get_num_threads(),)
        with ThreadPoolExecutor(threads, "learn", torch.set_num_threads, each) as pool:
            list(pool.map(work, shares, accumulators))  # list() raises what a thread raised

    def _backward(
        self,
        part: MicroBatch,
        batch: LossBatch,
        stats: GradientStats,
        weights: PassWeights | None = None,
    ) -> None:
        """Add the gradient of one micro-batch, and its statistics."""
        scored = self.scorer.score(part.groups, weights)
        width = max(len(c) for group in part.groups for c in group.completions)
        logprobs_BT = scored.logprobs_BT(len(part.rows), width)
        index = torch.tensor(part.rows)
        ours = batch.rows(index).columns(width).to(self.device)
        loss = objective(logprobs_BT, ours, self.options).loss
        loss.backward()  # type: ignore[no-untyped-call]
        self.masters.collect()
        row, column = scored.place_M[0].cpu(), scored.place_M[1].cpu()
        stats.logprobs_BT[index, :width] = logprobs_BT.detach().float().cpu()
        stats.entropy_BT[index[row], column] = scored.entropy_M.float().cpu()
        stats.add(part, loss.item(), scored.tokens)

    def _with_reference(self, rows: Sequence[PromptRows], batch: LossBatch) -> LossBatch:
        """The batch with the log-probs of the starting model, where the loss has a KL term."""
        if self.reference is None:
            return batch
        found_BT = torch.zeros(batch.mask_BT.shape)
        for i, row in enumerate(self.reference.logprobs(rows, self.token_budget)):
            found_BT[i, : len(row)] = torch.from_numpy(row)
        return replace(batch, reference_logprobs_BT=found_BT)

    def _clip(self, groups: Sequence[Group], batch: LossBatch) -> float:
        longest = self.settings.grad_clip or math.inf  # 0: not clipped
        norm = self._clip_to(longest)
        if math.isfinite(norm):
            return norm
        self.masters.clear()
        kept = sorted(set(batch.prompt_B.tolist()))
        names = [groups[p].prompt_id for p in kept[:4]] + ["..."] * (len(kept) > 4)
        raise NonFiniteGradient(
            f"the gradient of step {self._version + 1} is {norm} ({len(batch)} rollouts of "
            f"{len(kept)} prompts): nothing was changed; prompts {', '.join(names)}"
        )

    def _clip_to(self, longest: float) -> float:
        """Scale the gradient down to this norm; returns the norm that it had."""
        return nn.utils.clip_grad_norm_(self.masters.tensors(), longest).item()

    def _non_finite(self) -> str | None:
        """Name of a parameter that the step has made useless; None without one."""
        return self.masters.non_finite()

    def _check_weights(self, lr: float) -> None:
        wrong = self._non_finite()
        if wrong is not None:
            raise NonFiniteWeights(
                f"step {self._version + 1}, with a learning rate of {lr:g}, made the weights "
                f"useless ({wrong} is not finite, or as good as): they were not published; lower "
                "optimiser.lr and go on from the last checkpoint, if there is one"
            )

    def _shrink_micro_batches(self, rows: Sequence[PromptRows]) -> None:
        """Halve the micro-batches, from now on."""
        longest = max(group.longest for group in rows)
        budget = self.scorer.budget(rows, self.token_budget)
        if budget <= longest:
            raise MemoryError(
                f"one rollout of {longest} tokens does not fit this device's memory: "
                "lower length.max_tokens, take a smaller model, or more memory"
            )
        self.token_budget = max(budget // 2, longest)
