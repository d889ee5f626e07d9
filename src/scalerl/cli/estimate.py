"""What a run will take: for `train --dry-run` and `study --dry-run`.

Sizes (memory, checkpoints) are arithmetic on the model's parameters, where the model is on this
machine. Times are measured, where `--measure-steps` asks for it: the recipe is run for a few steps
in a temporary directory. Both are first estimates: answers grow longer while a model learns to
think, and a step then takes longer, at most by the ratio that is printed.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalerl.cli import options
from scalerl.cli.doctor import size_text
from scalerl.errors import InputError, PipelineError
from scalerl.runs.listener import Listener

if TYPE_CHECKING:
    from scalerl.recipe.schema import Recipe
    from scalerl.runs.lines import EvalLine, StepLine
    from scalerl.study.rates import Rate

#: Held-out prompts that a measurement asks, at most: enough to time an answer.
PROMPTS = 8
#: Bytes that AdamW keeps for a parameter: two moments in FP32.
ADAM_BYTES = 8
#: Bytes of a gradient, and of the FP32 master copy of a parameter that is not FP32 itself.
FP32_BYTES = 4


@dataclass(frozen=True, slots=True)
class MeasuredSteps:
    """What a few steps of a recipe took."""

    recipe: Recipe
    rate: Rate
    steps: int
    #: Mean length of a rollout of the last step, in tokens.
    length: float
    #: Peak resident memory of each process in bytes, by its name; empty where it is not known.
    memory: dict[str, int]


class _Peaks(Listener):
    """Collects what the processes of a run on this machine need, and how long its rollouts are."""

    def __init__(self) -> None:
        self.memory: dict[str, int] = {}
        self.length = 0.0

    def step(self, line: StepLine) -> None:
        self.length = line.length.mean
        self._look()

    def evaluated(self, line: EvalLine, look: object) -> None:
        self._look()

    def _look(self) -> None:
        from scalerl.processes import peak_memory

        children = {part.name: part.pid for part in multiprocessing.active_children()}
        for name, pid in ({"main": os.getpid()} | children).items():
            peak = None if pid is None else peak_memory(pid)
            if peak is not None:
                self.memory[name] = peak  # it never falls


def measure(recipe: Recipe, steps: int) -> MeasuredSteps:
    """Run a few steps of the recipe; nothing of that run is kept. Needs `scalerl[train]`."""
    from scalerl.study.rates import MIN_STEPS, rate_of

    if steps < MIN_STEPS:
        raise InputError(f"--measure-steps {steps}: give {MIN_STEPS} or more")
    with options.required_for("measuring"):
        from scalerl.training import train
    # The decay of the learning rate stays that of the whole budget.
    short = recipe.with_decay_fixed().replace(
        {
            "budget.steps": steps,
            "validation.prompts": min(recipe.validation.prompts, PROMPTS),
            # No further validation and no checkpoint: they would count as time of a step.
            "validation.every": steps + 1,
            "checkpoint.every": steps + 1,
        }
    )
    with tempfile.TemporaryDirectory(prefix="scalerl-measure-") as folder:
        out = Path(folder) / "run"
        peaks = _Peaks()
        try:
            ended = train(short, out, listener=peaks)
        except PipelineError as error:
            raise InputError(f"the measurement failed: {error}") from None
        # The trial run took the Ctrl-C for itself: end this command as well.
        if ended.signal is not None:
            raise KeyboardInterrupt
        rate = rate_of(out, short, f"{ended.steps} steps of {recipe.name}, run just now")
    if rate is None:
        raise InputError(f"the measurement ended after {ended.steps} steps: {ended.reason}")
    return MeasuredSteps(recipe, rate, ended.steps, peaks.length, peaks.memory)


def measure_all(recipes: Iterable[Recipe], steps: int) -> list[MeasuredSteps]:
    """One measurement for each kind of recipe: those that differ in model, lengths, precision or
    placement. A recipe that cannot run yet is left out (its model may still have to be made)."""
    from scalerl.study.rates import alike

    found: list[MeasuredSteps] = []
    problem: InputError | None = None
    for recipe in recipes:
        if not any(alike(recipe, each.recipe) for each in found):
            try:
                found.append(measure(recipe, steps))
            except InputError as error:
                problem = problem or error
    if problem is not None and not found:
        raise problem
    return found


# -- words ----------------------------------------------------------------------------------------


def estimate_lines(
    recipe: Recipe, measured: MeasuredSteps | None, price: float | None
) -> list[str]:
    """What is known before the run begins, a line each."""
    lines = [*_sizes(recipe)]
    if measured is None:
        lines.append("time: not measured; --measure-steps 3 runs three steps to estimate it")
        return lines
    return [*lines, *_times(recipe, measured, price), *_memory(measured)]


def _sizes(recipe: Recipe) -> Iterator[str]:
    """Memory and disk by arithmetic, where the model is on this machine."""
    from scalerl.models.load import model_path

    path = model_path(recipe.model.path)
    if not Path(path).is_dir():
        yield "memory and disk: known once the model is on this machine"
        return
    try:
        from scalerl.models.load import meta_model_fast
        from scalerl.models.meta_model import cache_bytes
    except ModuleNotFoundError as error:
        yield f"memory and disk: not known without {error.name} (pip install 'scalerl[train]')"
        return
    trust = recipe.model.trust_remote_code
    shape = meta_model_fast(path, recipe.model.dtype, trust_remote_code=trust)
    count = sum(p.numel() for p in shape.parameters())
    itemsize = next(shape.parameters()).element_size()
    if recipe.adapter.rank:
        yield from _adapter_sizes(recipe, shape, count, itemsize)
        return
    masters = FP32_BYTES if itemsize < FP32_BYTES else 0
    each = itemsize + masters + FP32_BYTES + ADAM_BYTES
    trainer = size_text(count * each / recipe.placement.trainers)
    cache = cache_bytes(shape.config) * (recipe.sampling.max_prompt_tokens + recipe.length.longest)
    shards = recipe.placement.devices_per_generator
    a_device = " a device" if shards > 1 else ""
    yield (
        f"memory (arithmetic, without activations): {count:,} parameters; trainer {trainer} a rank "
        f"({each} bytes a parameter: weights, masters, gradients, Adam); generator "
        f"{size_text(count * itemsize / shards)}{a_device}, and {size_text(cache / shards)} for "
        "each rollout that is written at once"
    )
    # One more than is kept, since the newest is written before the oldest goes.
    saved, kept = count * (itemsize + masters + ADAM_BYTES), recipe.checkpoint.keep + 1
    yield (
        f"disk (arithmetic): {size_text(saved)} a checkpoint, {size_text(saved * kept)} for the "
        f"{kept} that are kept at most"
    )


def _adapter_sizes(recipe: Recipe, shape: Any, count: int, itemsize: int) -> Iterator[str]:
    """The same with LoRA adapters, and what they change."""
    from scalerl.models.adapter import shapes_of, targets_of
    from scalerl.pipeline.setup import adapter_spec

    spec = adapter_spec(recipe)
    assert spec is not None, "asked only with an adapter"
    targets = targets_of(shape, spec)
    trained = sum(math.prod(s) for s in shapes_of(targets, spec.rank).values())
    adapted = sum(math.prod(t.shape) for t in targets)
    # Merged: the base of every adapted weight is kept, and its whole gradient is formed.
    beside = adapted * (itemsize + FP32_BYTES) if spec.merged else 0
    own = trained * (2 * FP32_BYTES + ADAM_BYTES)
    ranks = recipe.placement.trainers
    yield (
        f"adapter: rank {spec.rank}, alpha {spec.alpha:g}, {spec_words(recipe)}; {trained:,} of "
        f"{count:,} parameters in {len(targets)} weights; {size_text(trained * FP32_BYTES)} a "
        f"publish instead of {size_text(count * itemsize)}"
    )
    yield recipe.learning_rate_text
    generator = count * itemsize + (adapted * itemsize if spec.merged else 0)
    yield (
        f"memory (arithmetic, without activations): trainer "
        f"{size_text((count * itemsize + beside) / ranks + own)} a rank (weights, base and "
        f"gradients of the adapted ones, and {size_text(own)} for the adapter and its Adam state); "
        f"generator {size_text(generator)}"
    )
    saved, kept = trained * (FP32_BYTES + ADAM_BYTES), recipe.checkpoint.keep + 1
    yield (
        f"disk (arithmetic): {size_text(saved)} a checkpoint, {size_text(saved * kept)} for the "
        f"{kept} that are kept at most"
    )


def spec_words(recipe: Recipe) -> str:
    """Where adapters are and how they are computed, in words."""
    asked = recipe.adapter
    where = ", ".join(asked.targets) if asked.targets else "all linear layers"
    more = [name for name in ("experts", "head") if getattr(asked, name)]
    return f"{' and '.join([where, *more])}, {asked.mode}"


def _times(recipe: Recipe, measured: MeasuredSteps, price: float | None) -> Iterator[str]:
    from scalerl.study.rates import answers

    rate, completions = measured.rate, recipe.batch.completions
    step = rate.minutes * completions * 60
    asked = answers(recipe)
    longest = recipe.length.longest
    growth = max(longest / measured.length, 1.0) if measured.length else 1.0
    yield (
        f"time (measured: {rate.source}, the wait for the first batch included): {step:.3g} s a "
        f"step, {rate.answer_minutes * asked * 60:.3g} s a validation of {asked} answers"
    )
    steps, why = _steps(recipe, rate)
    # The first is before the first step.
    validations = 1 + steps // recipe.validation.every
    hours = (step * steps / 60 + rate.answer_minutes * asked * validations) / 60
    devices = rate.device_hours * completions * steps
    kind = "GPU-hours" if recipe.placement.device == "cuda" else "device-hours"
    yield (
        f"whole run (extrapolated): {steps} steps ({why}) take {hours:.3g} hours on the clock and "
        f"{devices:.3g} {kind}, {validations} validations included in the hours"
    )
    yield (
        f"answers had {measured.length:.0f} tokens; if they grow to the longest allowed "
        f"({longest}), up to {growth:.1f} times as much"
    )
    if price is not None:
        cost = devices * price
        yield f"cost: {cost:.3g} to {cost * growth:.3g}, at {price:g} a device-hour"


def _steps(recipe: Recipe, rate: Rate) -> tuple[int, str]:
    """Optimiser steps that the budget allows, and by which limit."""
    budget, completions = recipe.budget, recipe.batch.completions
    found: list[tuple[float, str]] = []
    if budget.steps is not None:
        found.append((budget.steps, "budget.steps"))
    if budget.minutes is not None:
        found.append((budget.minutes / (rate.minutes * completions), "budget.minutes"))
    if budget.gpu_hours is not None:
        found.append((budget.gpu_hours / (rate.device_hours * completions), "budget.gpu_hours"))
    steps, why = min(found, default=(1000.0, "the budget is open: for each 1000"))
    return max(round(steps), 1), why


def _memory(measured: MeasuredSteps) -> Iterator[str]:
    if measured.memory:
        each = ", ".join(f"{name} {size_text(peak)}" for name, peak in measured.memory.items())
        yield f"memory (measured, largest resident size of each process): {each}"
    if measured.recipe.placement.device == "cuda":
        yield "memory of GPUs is not measured"
