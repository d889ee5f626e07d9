"""The trainer of one process: micro-batches, gradient accumulation, clipping, checkpoints."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from scalerl.algorithm.batch import TokenBatch
from scalerl.algorithm.diagnostics import diagnose
from scalerl.algorithm.episode import Episode, Group
from scalerl.algorithm.learning_rate import LearningRate
from scalerl.algorithm.objective import objective, prepare, token_slopes
from scalerl.algorithm.options import Options
from scalerl.algorithm.packing import pack
from scalerl.errors import is_out_of_memory
from scalerl.models.adapter import AdapterProbe, AdapterSpec
from scalerl.models.cpu.packed import PassWeights
from scalerl.models.head import Precision
from scalerl.models.load import load_model_fast
from scalerl.recipe.sections_runtime import OptimiserSection
from scalerl.trainer import adapter_checkpoint, checkpoint
from scalerl.trainer.interface import (
    NonFiniteGradient,
    NonFiniteWeights,
    StepReport,
    TokenStats,
    TrainerSpec,
)
from scalerl.trainer.low_rank import LowRankMasters, rehearsed
from scalerl.trainer.masters import Masters
from scalerl.trainer.micro import Episodes, Sizes
from scalerl.trainer.optimisers import OPTIMISERS
from scalerl.trainer.scorer import Scorer


def local_trainer(spec: TrainerSpec) -> LocalTrainer:
    """The trainer "local": in this process, on one device."""
    torch.set_num_threads(spec.threads)
    # The KL term is taken towards the starting model, so a second copy of it stays in memory; with
    # an adapter, the model without it is the starting model.
    frozen = spec.options.kl_coefficient != 0 and spec.adapter is None

    def load() -> Any:
        return load_model_fast(
            spec.model,
            spec.dtype,
            spec.device,
            trust_remote_code=spec.trust_remote_code,
            # Neither is part of the bare model.
            bare=not spec.recompute and (spec.adapter is None or spec.adapter.merged),
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
        adapter=spec.adapter,
        model_name=spec.model,
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

    logprobs_N: Tensor
    entropy_N: Tensor
    loss: float = 0.0
    #: Tokens that went through the model.
    tokens: int = 0
    micro_batches: int = 0
    #: First episode and loss of each micro-batch.
    _losses: list[tuple[int, float]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, first: int, loss: float, tokens: int) -> None:
        """Count one more micro-batch. Threads may call this in any order."""
        with self._lock:
            self._losses.append((first, loss))
            # Summed in the order of episodes, not of threads, so that all runs give the same bits.
            self.loss = sum(loss for _, loss in sorted(self._losses))
            self.tokens += tokens
            self.micro_batches += 1


class LocalTrainer:
    """A Trainer over a model in this process.

    temperature   temperature of the sampler: log-probs are those of the distribution sampled from
    token_budget  largest number of tokens in a micro-batch; lowered when memory runs out
    reference     the frozen model that a KL term is taken to
    step_threads  worker threads that process packed micro-batches in parallel
    replay        whether tokens go to the experts that the generator chose (mixtures of experts)
    adapter       train LoRA adapters of this kind, and no other weights
    model_name    what the model was loaded from, for the checkpoints of adapters
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
        adapter: AdapterSpec | None = None,
        model_name: str = "",
    ) -> None:
        self.model, self.model_name = model, model_name
        self.adapter = None if adapter is None else self._low_rank(model, adapter)
        # Before the scorer, which looks at what is trained.
        self.masters = self.adapter or Masters(model)
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
        #: Episodes, batch and statistics of the last step, until they are asked for.
        self._stepped: tuple[Sequence[Episode], TokenBatch, GradientStats] | None = None
        #: What of a probe does not depend on the current adapter.
        self._rehearsal: AdapterProbe | None = None
        self.optimiser = OPTIMISERS[optimiser.name](self.masters.tensors(), optimiser)

    def _low_rank(self, model: nn.Module, adapter: AdapterSpec) -> LowRankMasters:
        return LowRankMasters(model, adapter)

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
        self._stepped = None
        prepared = prepare(groups, self.options)
        batch, stats = self._gradient_within_memory(prepared.batch)
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
        whole = objective(stats.logprobs_N, batch, self.options)
        diagnostics = diagnose(
            stats.logprobs_N,
            batch,
            whole.tokens,
            self._version,
            stats.entropy_N,
            token_slopes(stats.logprobs_N, batch, self.options),
        )
        self._version += 1
        self._stepped = prepared.episodes, batch, stats
        note = f"memory ran out: micro-batches of {self.token_budget} tokens from now"
        return StepReport(
            version=self._version,
            loss=stats.loss,
            kl=whole.kl,
            grad_norm=norm,
            lr=lr,
            forward_tokens=stats.tokens,
            loss_tokens=int(batch.in_loss_N.sum()),
            kept_tokens=int(batch.written_N.sum()),
            context_tokens=int((~batch.written_N).sum()),
            forks=int((batch.episode_R >= 0).sum()) - len(batch),
            micro_batches=stats.micro_batches,
            seconds=time.perf_counter() - start,
            diagnostics=diagnostics,
            filtered=prepared.filtered.tally(),
            metrics=dict(getattr(whole.tokens, "metrics", {})),
            notes=() if self.token_budget == budget else (note,),
        )

    def token_stats(self, episodes: Sequence[Episode]) -> tuple[TokenStats | None, ...]:
        stepped, self._stepped = self._stepped, None
        if stepped is None or not episodes:
            return (None,) * len(episodes)
        kept, batch, stats = stepped
        written = [each[batch.written_N].numpy() for each in (stats.logprobs_N, stats.entropy_N)]
        ends = np.cumsum([0, *(len(e) for e in kept)])
        # By identity: two episodes of a group may be equal.
        numbers = {id(e): i for i, e in enumerate(kept)}
        found: list[TokenStats | None] = []
        for each in episodes:
            i = numbers.get(id(each))
            # Copies, which do not hold the arrays of the whole batch.
            parts = [] if i is None else [w[ends[i] : ends[i + 1]].copy() for w in written]
            found.append(TokenStats(*parts) if parts else None)
        return tuple(found)

    def score(self, groups: Sequence[Group]) -> list[list[npt.NDArray[np.float32]]]:
        episodes = [e for group in groups for e in group.episodes]
        prompts = np.repeat(np.arange(len(groups)), [len(g.episodes) for g in groups])
        batch = pack(episodes, prompts)
        written = self.scorer.logprobs(batch, self.token_budget)[batch.written_N].numpy()
        found = iter(np.split(written, np.cumsum([len(e) for e in episodes])))
        return [[next(found) for _ in group.episodes] for group in groups]

    def probe(self, tokens: Sequence[int]) -> AdapterProbe:
        adapter = self.adapter
        assert adapter is not None, "only adapters are probed"
        score = partial(self.scorer.score_probe, tokens)
        if self._rehearsal is None:
            with adapter.base():
                base = score()
            self._rehearsal = rehearsed(adapter, score, base)
        return replace(self._rehearsal, current=score())

    def weights(self) -> Mapping[str, Tensor]:
        if self.adapter is not None:
            return self.adapter.weights()
        return {name: p.detach() for name, p in self.model.named_parameters()}

    def save(self, path: Path) -> None:
        if self.adapter is not None:
            adapter_checkpoint.save(path, self._saved_adapter())
            return
        checkpoint.save(path, self.model, self.masters, self.optimiser, self._version)

    def _saved_adapter(self) -> adapter_checkpoint.Saved:
        assert self.adapter is not None
        return adapter_checkpoint.gather(
            self.adapter,
            self.optimiser,
            model=self.model_name,
            version=self._version,
            base=self.probe(self.adapter.spec.probe).base,
        )

    def load(self, path: Path) -> None:
        if self.adapter is not None:
            base = self.probe(self.adapter.spec.probe).base
            self._version = adapter_checkpoint.load(path, self.adapter, self.optimiser, base)
            return
        self._version = checkpoint.load(path, self.model, self.masters, self.optimiser)

    def _gradient_within_memory(self, batch: TokenBatch) -> tuple[TokenBatch, GradientStats]:
        """Compute the gradient; returns the batch with reference log-probs, and the statistics.
        Where memory runs out, micro-batches are smaller from then on: only gradients have changed
        so far, so the attempt can be repeated."""
        while True:
            try:
                whole = self._with_reference(batch)
                return whole, self._gradient(whole)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
            # Outside the except block: inside, the error would still hold the tensors of the
            # failed attempt.
            self._shrink_micro_batches(batch)

    def _gradient(self, batch: TokenBatch) -> GradientStats:
        """Sum the gradient over micro-batches."""
        self.masters.clear()
        self.model.train()
        stats = GradientStats(torch.zeros(len(batch.ids_N)), torch.zeros(len(batch.ids_N)))
        parts = self.scorer.micro_batches(batch, self.token_budget)
        # Which accumulator takes a micro-batch depends on its number alone, never on the number of
        # threads: the sums, and so the weights, are the same bit for bit with any of them.
        with self.scorer.learning(batch) as accumulators:
            n = len(accumulators)
            self._in_threads([parts[i::n] for i in range(n)], accumulators, batch, stats)
        self.masters.complete()
        return stats

    def _in_threads(
        self,
        shares: Sequence[Sequence[Episodes]],
        accumulators: Sequence[PassWeights | None],
        batch: TokenBatch,
        stats: GradientStats,
    ) -> None:
        """Process each accumulator's share of the micro-batches in a thread of its own. On two
        cores the second thread uses the generator's core while that one waits."""

        def work(share: Sequence[Episodes], accumulator: PassWeights | None) -> None:
            for episodes in share:
                self._backward(episodes, batch, stats, accumulator)

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
        episodes: Episodes,
        batch: TokenBatch,
        stats: GradientStats,
        weights: PassWeights | None = None,
    ) -> None:
        """Add the gradient of one micro-batch, and its statistics."""
        part, at_N = batch.take(episodes)
        scored = self.scorer.score(part, weights)
        loss = objective(scored.logprobs_N, part.to(self.device), self.options).loss
        loss.backward()  # type: ignore[no-untyped-call]
        self.masters.collect()
        # Added, since a prompt is in several parts; it has no log-probs in any.
        stats.logprobs_N[at_N] += scored.logprobs_N.detach().float().cpu()
        stats.entropy_N[at_N] += scored.entropy_N.float().cpu()
        stats.add(int(episodes[0]), loss.item(), scored.tokens)

    def _with_reference(self, batch: TokenBatch) -> TokenBatch:
        """The batch with the log-probs of the starting model, where the loss has a KL term."""
        if self.adapter is not None and self.options.kl_coefficient:
            with self.adapter.base():
                found_N = self.scorer.logprobs(batch, self.token_budget)
        elif self.reference is not None:
            found_N = self.reference.logprobs(batch, self.token_budget)
        else:
            return batch
        return replace(batch, reference_logprobs_N=found_N)

    def _clip(self, groups: Sequence[Group], batch: TokenBatch) -> float:
        longest = self.settings.grad_clip or math.inf  # 0: not clipped
        norm = self._clip_to(longest)
        if math.isfinite(norm):
            return norm
        self.masters.clear()
        kept = sorted(set(batch.prompt_E.tolist()))
        names = [groups[p].prompt_id for p in kept[:4]] + ["..."] * (len(kept) > 4)
        raise NonFiniteGradient(
            f"the gradient of step {self._version + 1} is {norm} ({len(batch)} episodes of "
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

    def _shrink_micro_batches(self, batch: TokenBatch) -> None:
        """Halve the micro-batches, from now on."""
        longest = Sizes(batch).longest
        budget = self.scorer.budget(batch, self.token_budget)
        if budget <= longest:
            raise MemoryError(
                f"one episode of {longest} tokens does not fit this device's memory: "
                "lower length.max_tokens, take a smaller model, or more memory"
            )
        self.token_budget = max(budget // 2, longest)
