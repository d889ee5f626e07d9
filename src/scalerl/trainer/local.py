"""The trainer in one process: micro-batches, accumulation, clipping, checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from scalerl.algorithm.diagnostics import diagnose
from scalerl.algorithm.objective import Options, Prepared, objective, prepare
from scalerl.algorithm.rollout import Group
from scalerl.models.head import Precision
from scalerl.models.load import load_model
from scalerl.models.rows import PromptRows
from scalerl.trainer import checkpoint
from scalerl.trainer.interface import NonFiniteGradient, StepReport, TrainerSpec
from scalerl.trainer.masters import Masters
from scalerl.trainer.micro import MicroBatch, kept_rows
from scalerl.trainer.optimisers import OPTIMISERS, Optimiser
from scalerl.trainer.scorer import Scorer

#: What allocators say when they have nothing left.
FULL = ("out of memory", "t allocate memory", "not enough memory")


def local_trainer(spec: TrainerSpec) -> LocalTrainer:
    """The trainer `local`: in this process, on one device."""
    torch.set_num_threads(spec.threads)
    # A KL term is taken to the starting model, which stays as it is.
    frozen = spec.options.kl_coefficient != 0
    made = LocalTrainer(
        load_model(spec.model, spec.dtype, spec.device),
        spec.options,
        spec.optimiser,
        head_precision=spec.head,
        temperature=spec.temperature,
        token_budget=spec.token_budget,
        reference=load_model(spec.model, spec.dtype, spec.device) if frozen else None,
    )
    if spec.checkpoint is not None:
        made.load(Path(spec.checkpoint))
    return made


class LocalTrainer:
    """A Trainer over a model in this process.

    temperature   of the sampler: log-probs are taken under the distribution it drew from
    token_budget  tokens of a micro-batch, padding included, at most; lowered when memory is short
    reference     what a KL term is taken to
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
    ) -> None:
        self.model = model
        self.options = options
        self.settings = optimiser
        self.token_budget = token_budget
        self.scorer = Scorer(model, head_precision, temperature)
        self.reference = (
            None if reference is None else Scorer(reference, head_precision, temperature)
        )
        self.device = self.scorer.device
        self._version = 0
        self.masters = Masters(model)
        self.optimiser = OPTIMISERS[optimiser.name](self.masters.tensors(), optimiser)

    @property
    def version(self) -> int:
        return self._version

    @property
    def lr(self) -> float:
        """Linear warm-up, then constant."""
        share = (self._version + 1) / max(self.settings.warmup_steps, 1)
        return self.settings.lr * min(share, 1.0)

    def step(self, groups: Sequence[Group]) -> StepReport:
        start, budget = time.perf_counter(), self.token_budget
        prepared = prepare(groups, self.options)
        rows = kept_rows(groups, prepared)
        while True:
            try:
                report = self._step(rows, prepared, start)
                break
            except NonFiniteGradient as error:
                kept = sorted(set(prepared.batch.prompt_B.tolist()))
                names = [groups[p].prompt_id for p in kept[:4]] + ["..."] * (len(kept) > 4)
                raise NonFiniteGradient(f"{error}; prompts {', '.join(names)}") from None
            except (RuntimeError, MemoryError) as error:
                if not _is_full(error):
                    raise
            # Out here, where the failed attempt's tensors are no longer held by its error.
            self._take_smaller(rows)
        if self.token_budget == budget:
            return report
        note = f"memory was short: micro-batches of {self.token_budget} tokens from now"
        return replace(report, notes=(note,))

    def score(self, groups: Sequence[Group]) -> list[list[npt.NDArray[np.float32]]]:
        rows = [
            PromptRows(g.prompt_token_ids, tuple(r.token_ids for r in g.rollouts)) for g in groups
        ]
        found = iter(self.scorer.logprobs(rows, self.token_budget))
        return [[next(found) for _ in group.rollouts] for group in groups]

    def weights(self) -> Mapping[str, Tensor]:
        return {name: p.detach() for name, p in self.model.named_parameters()}

    def save(self, path: Path) -> None:
        checkpoint.save(path, self.model, self.masters, self.optimiser, self._version)

    def load(self, path: Path) -> None:
        self._version = checkpoint.load(path, self.model, self.masters, self.optimiser)

    def _step(self, rows: Sequence[PromptRows], prepared: Prepared, start: float) -> StepReport:
        """One optimiser step, unless memory or the gradient is against it."""
        self.masters.clear()
        prepared = self._with_reference(rows, prepared)
        parts = self.scorer.micro_batches(rows, self.token_budget)
        self.model.train()
        shape = prepared.batch.mask_BT.shape
        scored_BT, entropy_BT = torch.zeros(shape), torch.zeros(shape)
        total, tokens = 0.0, 0
        packed = self.scorer.packed
        with nullcontext() if packed is None else packed.accumulating():
            for part in parts:
                loss, went = self._backward(part, prepared, scored_BT, entropy_BT)
                total += loss
                tokens += went
        norm = self._clip(prepared)
        lr = self.lr
        for group in self.optimiser.param_groups:
            group["lr"] = lr
        if parts:
            self.optimiser.step()
            self.masters.round_into_model()
        found = objective(scored_BT, prepared.batch, self.options)
        seen = diagnose(scored_BT, prepared.batch, found.tokens, self._version, entropy_BT)
        self._version += 1
        return StepReport(
            version=self._version,
            loss=total,
            kl=found.kl,
            grad_norm=norm,
            lr=lr,
            forward_tokens=tokens,
            loss_tokens=int(prepared.batch.mask_BT.sum()),
            kept_tokens=sum(len(r) for r in prepared.rollouts),
            micro_batches=len(parts),
            seconds=time.perf_counter() - start,
            diagnostics=seen,
            filtered=prepared.filtered,
            metrics=dict(getattr(found.tokens, "metrics", {})),
        )

    def _with_reference(self, rows: Sequence[PromptRows], prepared: Prepared) -> Prepared:
        """The batch with the log-probs of the starting model, where a KL term asks for them."""
        if self.reference is None:
            return prepared
        found_BT = torch.zeros(prepared.batch.mask_BT.shape)
        for i, row in enumerate(self.reference.logprobs(rows, self.token_budget)):
            found_BT[i, : len(row)] = torch.from_numpy(row)
        return replace(prepared, batch=replace(prepared.batch, reference_logprobs_BT=found_BT))

    def _backward(
        self, part: MicroBatch, prepared: Prepared, scored_BT: Tensor, entropy_BT: Tensor
    ) -> tuple[float, int]:
        """Add the gradient of some rows; note their log-probs and entropies for the diagnostics.
        Gives their loss, and the tokens that went through the model."""
        found = self.scorer.score(part.groups)
        width = max(len(c) for group in part.groups for c in group.completions)
        logprobs_BT = found.logprobs_BT(len(part.rows), width)
        index = torch.tensor(part.rows)
        batch = prepared.batch.rows(index).columns(width).to(self.device)
        loss = objective(logprobs_BT, batch, self.options).loss
        loss.backward()  # type: ignore[no-untyped-call]
        self.masters.collect()
        row, column = found.place_M[0].cpu(), found.place_M[1].cpu()
        scored_BT[index, :width] = logprobs_BT.detach().float().cpu()
        entropy_BT[index[row], column] = found.entropy_M.float().cpu()
        return loss.item(), found.tokens

    def _clip(self, prepared: Prepared) -> float:
        longest = self.settings.grad_clip or math.inf  # 0: not clipped
        norm = nn.utils.clip_grad_norm_(self.masters.tensors(), longest).item()
        if not math.isfinite(norm):
            self.masters.clear()
            rows, prompts = len(prepared.rollouts), len(set(prepared.batch.prompt_B.tolist()))
            raise NonFiniteGradient(
                f"the gradient of step {self._version + 1} is {norm} ({rows} rollouts of "
                f"{prompts} prompts): nothing was changed"
            )
        return norm

    def _take_smaller(self, rows: Sequence[PromptRows]) -> None:
        """Micro-batches of half the size, from now on."""
        longest = max(group.longest for group in rows)
        budget = self.scorer.budget(rows, self.token_budget)
        if budget <= longest:
            raise MemoryError(
                f"one rollout of {longest} tokens does not fit this device's memory: "
                "lower length.max_tokens, take a smaller model, or more memory"
            )
        self.token_budget = max(budget // 2, longest)


def _is_full(error: Exception) -> bool:
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(words in text for words in FULL)
