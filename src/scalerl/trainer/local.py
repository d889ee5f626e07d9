"""The trainer in one process: micro-batches, accumulation, clipping, checkpoints."""

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
from scalerl.algorithm.objective import objective, prepare
from scalerl.algorithm.options import Options
from scalerl.algorithm.rollout import Group
from scalerl.errors import is_out_of_memory
from scalerl.models.cpu.packed import PassWeights
from scalerl.models.head import Precision
from scalerl.models.quick import quick_model
from scalerl.models.rows import PromptRows
from scalerl.trainer import checkpoint
from scalerl.trainer.interface import NonFiniteGradient, NonFiniteWeights, StepReport, TrainerSpec
from scalerl.trainer.masters import Masters
from scalerl.trainer.micro import MicroBatch, kept_rows, prompt_rows
from scalerl.trainer.optimisers import OPTIMISERS, Optimiser
from scalerl.trainer.scorer import Scorer


def local_trainer(spec: TrainerSpec) -> LocalTrainer:
    """The trainer `local`: in this process, on one device."""
    torch.set_num_threads(spec.threads)
    # A KL term is taken to the starting model, which stays as it is.
    frozen = spec.options.kl_coefficient != 0

    def load() -> Any:
        return quick_model(
            spec.model,
            spec.dtype,
            spec.device,
            trust_remote_code=spec.trust_remote_code,
            bare=not spec.recompute,
        )

    model = load()
    if spec.recompute:
        recompute(model)
    made = LocalTrainer(
        model,
        spec.options,
        spec.optimiser,
        head_precision=spec.head,
        temperature=spec.temperature,
        token_budget=spec.token_budget,
        reference=load() if frozen else None,
        threads=spec.step_threads,
        replay=spec.replay,
    )
    if spec.checkpoint is not None:
        made.load(Path(spec.checkpoint))
    return made


def recompute(model: Any) -> None:
    """From now on the model keeps only what goes into each of its blocks, while it trains."""
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


@dataclass(slots=True, eq=False)
class Gradient:
    """What was seen while the gradient of a batch was summed up."""

    scored_BT: Tensor
    entropy_BT: Tensor
    loss: float = 0.0
    #: That went through the model.
    tokens: int = 0
    micro_batches: int = 0
    #: First row and loss of each micro-batch: added up in the order of rows, whoever was first.
    _losses: list[tuple[int, float]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, part: MicroBatch, loss: float, tokens: int) -> None:
        """One micro-batch more; several threads may say so."""
        with self._lock:
            self._losses.append((part.rows[0], loss))
            self.loss = sum(loss for _, loss in sorted(self._losses))
            self.tokens += tokens
            self.micro_batches += 1


class LocalTrainer:
    """A Trainer over a model in this process.

    temperature   of the sampler: log-probs are taken under the distribution it drew from
    token_budget  tokens of a micro-batch, padding included, at most; lowered when memory is short
    reference     what a KL term is taken to
    threads       that share the micro-batches of a step, where they are packed
    replay        whether a mixture's tokens go to the experts that the sampler took
    """

    def __init__(
        self,
        model: nn.Module,
        options: Options,
        optimiser: Optimiser,
        *,
        head_precision: Precision = "fp32",
        temperature: float = 1.0,
        token_budget: int = 8192,
        reference: nn.Module | None = None,
        threads: int = 1,
        replay: bool = False,
    ) -> None:
        self.model = model
        self.threads = threads
        self.options = options
        self.settings = optimiser
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
        """Learning rate of the next step."""
        return self.settings.rate.after(self._version)

    def step(self, groups: Sequence[Group]) -> StepReport:
        start, budget = time.perf_counter(), self.token_budget
        prepared = prepare(groups, self.options)
        batch, found = self._gradient_in_memory(kept_rows(groups, prepared), prepared.batch)
        norm = self._clip(groups, batch)
        lr = self.lr
        for group in self.optimiser.param_groups:
            group["lr"] = lr
        # Without a gradient there is nothing to learn: weight decay and the momentum of earlier
        # steps would move the weights all the same.
        if norm > 0.0:
            self.optimiser.step()
            self._check_weights(lr)
            self.masters.round_into_model()
        whole = objective(found.scored_BT, batch, self.options)
        seen = diagnose(found.scored_BT, batch, whole.tokens, self._version, found.entropy_BT)
        self._version += 1
        note = f"memory was short: micro-batches of {self.token_budget} tokens from now"
        return StepReport(
            version=self._version,
            loss=found.loss,
            kl=whole.kl,
            grad_norm=norm,
            lr=lr,
            forward_tokens=found.tokens,
            loss_tokens=int(batch.mask_BT.sum()),
            kept_tokens=sum(len(r) for r in prepared.rollouts),
            micro_batches=found.micro_batches,
            seconds=time.perf_counter() - start,
            diagnostics=seen,
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

    def _gradient_in_memory(
        self, rows: Sequence[PromptRows], batch: LossBatch
    ) -> tuple[LossBatch, Gradient]:
        """The batch as it was learnt from, and its gradient; in smaller micro-batches from now on
        where memory does not suffice. Nothing but gradients has changed when that shows."""
        while True:
            try:
                whole = self._with_reference(rows, batch)
                return whole, self._gradient(rows, whole)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
            # Out here, where the failed attempt's tensors are no longer held by its error.
            self._shrink_micro_batches(rows)

    def _gradient(self, rows: Sequence[PromptRows], batch: LossBatch) -> Gradient:
        """Summed over micro-batches."""
        self.masters.clear()
        self.model.train()
        shape = batch.mask_BT.shape
        found = Gradient(torch.zeros(shape), torch.zeros(shape))
        parts = self.scorer.micro_batches(rows, self.token_budget)
        packed = self.scorer.packed
        if packed is not None and self.scorer.packs(rows):
            with packed.accumulating() as lanes:
                shares = [parts[i :: len(lanes)] for i in range(len(lanes))]
                self._in_threads(shares, lanes, batch, found)
        else:
            for part in parts:
                self._backward(part, batch, found)
        return found

    def _in_threads(
        self,
        shares: Sequence[Sequence[MicroBatch]],
        lanes: Sequence[PassWeights],
        batch: LossBatch,
        found: Gradient,
    ) -> None:
        """Each lane's share of the micro-batches, by as many threads as there are: while the
        generator waits, its core is free. Who computes a lane does not change a bit of it."""

        def work(share: Sequence[MicroBatch], lane: PassWeights) -> None:
            for part in share:
                self._backward(part, batch, found, lane)

        threads = min(self.threads, sum(map(bool, shares)))
        if threads <= 1:
            for share, lane in zip(shares, lanes, strict=True):
                work(share, lane)
            return
        each = (torch.get_num_threads(),)  # a product by more threads is added up otherwise
        with ThreadPoolExecutor(threads, "learn", torch.set_num_threads, each) as pool:
            list(pool.map(work, shares, lanes))  # raises what any of them raised

    def _backward(
        self,
        part: MicroBatch,
        batch: LossBatch,
        found: Gradient,
        weights: PassWeights | None = None,
    ) -> None:
        """Add the gradient of some rows, and note what was seen."""
        scored = self.scorer.score(part.groups, weights)
        width = max(len(c) for group in part.groups for c in group.completions)
        logprobs_BT = scored.logprobs_BT(len(part.rows), width)
        index = torch.tensor(part.rows)
        ours = batch.rows(index).columns(width).to(self.device)
        loss = objective(logprobs_BT, ours, self.options).loss
        loss.backward()  # type: ignore[no-untyped-call]
        self.masters.collect()
        row, column = scored.place_M[0].cpu(), scored.place_M[1].cpu()
        found.scored_BT[index, :width] = logprobs_BT.detach().float().cpu()
        found.entropy_BT[index[row], column] = scored.entropy_M.float().cpu()
        found.add(part, loss.item(), scored.tokens)

    def _with_reference(self, rows: Sequence[PromptRows], batch: LossBatch) -> LossBatch:
        """With the log-probs of the starting model, where a KL term asks for them."""
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
        """Scale the gradient down to this norm; the norm it had."""
        return nn.utils.clip_grad_norm_(self.masters.tensors(), longest).item()

    def _non_finite(self) -> str | None:
        """A parameter that a step has made useless."""
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
        """Micro-batches of half the size, from now on."""
        longest = max(group.longest for group in rows)
        budget = self.scorer.budget(rows, self.token_budget)
        if budget <= longest:
            raise MemoryError(
                f"one rollout of {longest} tokens does not fit this device's memory: "
                "lower length.max_tokens, take a smaller model, or more memory"
            )
        self.token_budget = max(budget // 2, longest)
