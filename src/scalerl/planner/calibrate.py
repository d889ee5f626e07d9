"""Calibration: the rates, lengths and pass rates of a recorded run (`--like RUN`).

    decode step   a + b × rows, by least squares over all decode steps (sums in the record)
    batch         a + b × tokens, over the recorded steps
    lengths       mean, spread, share between prompts, those of kept groups
    hand-over     seconds of publishing and of loading

All come from the clock of that run, so they hold for its hardware, model and precision; another
batch, k, schedule, split or number of generators may be planned with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from scalerl.errors import InputError
from scalerl.planner.lengths import AnswerLengths
from scalerl.planner.normal import Interval
from scalerl.planner.rates import GeneratorRates, Rates, TrainerRates
from scalerl.planner.world import EnvironmentModel, PassRates, PlannedWorld
from scalerl.recipe import Recipe
from scalerl.runs.lines import StepLine
from scalerl.runs.reader import RunReader

Array = npt.NDArray[np.float64]
#: Steps of a record that a calibration needs.
MIN_STEPS = 8
#: Steps at the beginning that are left out, at least: the first batches are written with caches,
#: kernels and lengths of their own.
SKIP = 4
#: Rollouts that an engine of scalerl's own writes at once, at most (pipeline/setup.py).
MAX_SLOTS = 512
#: Share of its time that a process must have had a processor for; below, the clock of a record says
#: more about other programs.
BUSY = 0.85
#: 90 % interval of a calibrated rate as a factor: other settings of lab runs were predicted within
#: 10 % from one calibration, runs of the same setting differ by 6 % (planner.md, 2.3).
CALIBRATED = 1.10
#: ... and where the record has no decode steps: predictions of other batches were 24 % off.
WITHOUT_DECODE = 1.25


@dataclass(frozen=True)
class Calibration:
    """What a recorded run says about its costs."""

    path: Path
    recipe: Recipe
    rates: Rates
    lengths: AnswerLengths
    prompt_tokens: int
    pass_rates: PassRates
    environment: EnvironmentModel
    check_seconds: float
    #: Factor to either side of the 90 % interval of the rates.
    factor: float
    #: Steps that it rests on.
    steps: int
    #: Measured step: seconds, staleness, waits as shares of a side's time.
    measured: dict[str, float]
    notes: tuple[str, ...] = ()

    def world(self, recipe: Recipe, seed: int = 0) -> PlannedWorld:
        """The world of another recipe on the same hardware."""
        from dataclasses import replace

        slots = max(min(recipe.batch.completions, MAX_SLOTS), 1)
        generator = replace(self.rates.generator, slots=slots)
        trainer = replace(self.rates.trainer, ranks=recipe.placement.trainers)
        return PlannedWorld(
            Rates(generator, trainer), self.lengths, self.prompt_tokens, self.pass_rates,
            self.environment, self.check_seconds, seed=seed,
        )  # fmt: skip

    @property
    def slowness(self) -> Interval:
        """Interval of a rate over its calibrated value."""
        return Interval(1 / self.factor, self.factor)


def calibrate(path: str | Path, skip: int = SKIP) -> Calibration:
    """The calibration of a run directory."""
    folder = Path(path)
    reader = RunReader(folder)
    try:
        recipe = Recipe.load(folder / "recipe.toml")
    except InputError as error:
        raise InputError(f"--like {path}: {error}") from None
    lines = reader.read(StepLine)
    skip = max(skip, recipe.schedule.k + 1)
    if len(lines) < skip + MIN_STEPS:
        raise InputError(
            f"--like {path}: {len(lines)} recorded steps, and {skip + MIN_STEPS} are needed: let "
            "it run longer"
        )
    return _from_lines(folder, recipe, lines, skip)


def _from_lines(folder: Path, recipe: Recipe, lines: list[StepLine], skip: int) -> Calibration:
    first, after = lines[skip - 1], lines[skip:]
    n = len(after)
    spent = _spent(lines, skip - 1)
    notes: list[str] = []
    generator, known = _generator(lines, skip - 1, spent, notes)
    where = recipe.placement
    trained = np.array([line.forward_tokens for line in after], np.float64)
    publish = float(np.mean([line.publish_seconds for line in after]))
    seconds = np.diff([line.ledger.spent.train for line in (first, *after)]) / where.trainers
    fixed, token = affine(trained, seconds - publish)
    rates = Rates(
        GeneratorRates(
            *generator, context=0.0, admit_token=0.0, admit_row=0.0,
            load=spent["hand_over"] / n / where.generators,
        ),
        # Seconds of one device per token: the ranks share the tokens.
        TrainerRates(where.trainers, fixed, token * where.trainers, publish=publish),
    )  # fmt: skip
    return Calibration(
        folder, recipe, rates, _lengths(recipe, after, notes),
        prompt_tokens=_prompt_tokens(after), pass_rates=_pass_rates(recipe, after),
        environment=_environment(after), check_seconds=_check_seconds(spent, after),
        factor=CALIBRATED if known else WITHOUT_DECODE, steps=n,
        measured=_measured(lines, skip, spent, recipe), notes=(*notes, *_busy(lines)),
    )  # fmt: skip


def _busy(lines: list[StepLine]) -> list[str]:
    """A warning if the processes of the run waited for a processor."""
    ledger = lines[-1].ledger
    cpu, clock = ledger.cpu_seconds.get("train", 0.0), ledger.spent.train
    if set(ledger.by_kind) != {"cpu"} or not cpu or cpu > BUSY * clock:
        return []
    return [
        f"the machine was busy: the trainer had a processor for {cpu / clock:.0%} of its time, so "
        "the rates are those of a busy machine"
    ]


def _spent(lines: list[StepLine], since: int) -> dict[str, float]:
    """Device-seconds since a step, by use."""
    last, first = lines[-1].ledger.spent.to_dict(), lines[since].ledger.spent.to_dict()
    return {name: last[name] - first[name] for name in last}


def _generator(
    lines: list[StepLine], since: int, spent: dict[str, float], notes: list[str]
) -> tuple[tuple[float, float, float], bool]:
    """(step, stream, row) of a decode step, and whether its steps were recorded."""
    last, first = lines[-1].ledger, lines[since].ledger
    d = {k: v - getattr(first.decode, k) for k, v in last.decode.to_dict().items()}
    tokens = last.generated_tokens - first.generated_tokens
    if d.get("steps", 0) < 2:
        notes.append(
            "the record has no decode steps (it is of an earlier version): tokens a second are "
            "taken as they were, whatever the rows"
        )
        return (0.0, 0.0, spent["generate"] / max(tokens, 1)), False
    mean = d["rows"] / d["steps"]
    variance = d["squares"] / d["steps"] - mean**2
    covariance = d["row_seconds"] / d["steps"] - mean * d["seconds"] / d["steps"]
    whole = d["seconds"] / d["steps"]
    row = min(max(covariance / variance, 0.0), whole / mean) if variance > 0 else 0.0
    # What generators did besides decode steps (weights arriving, reports) is spread over the steps.
    scale = spent["generate"] / d["seconds"] if d["seconds"] > 0 else 1.0
    return (scale * (whole - row * mean), 0.0, scale * row), True


def affine(x: Array, y: Array) -> tuple[float, float]:
    """(a, b) of y = a + b x by least squares, both 0 or more.

    >>> affine(np.array([1.0, 2.0, 3.0]), np.array([3.0, 5.0, 7.0]))
    (1.0, 2.0)
    """
    variance = float(np.var(x))
    b = float(np.mean((x - x.mean()) * (y - y.mean()))) / variance if variance > 0 else 0.0
    b = min(max(b, 0.0), float(y.mean() / x.mean()) if x.mean() > 0 else 0.0)
    return round(float(y.mean() - b * x.mean()), 12), b


def _lengths(recipe: Recipe, lines: list[StepLine], notes: list[str]) -> AnswerLengths:
    mean = float(np.mean([line.length.mean for line in lines]))
    spreads = [line.length.sd / line.length.mean for line in lines if line.length.sd is not None]
    shares = [line.length.alike for line in lines if line.length.alike is not None]
    if not spreads:
        notes.append("the record has no spread of lengths: 0.6 is assumed, 0.7 of it by prompt")
    kept = sum(line.filtered.effective_rollouts for line in lines)
    context = sum(line.context_tokens / max(line.filtered.prompts, 1) for line in lines)
    context /= max(len(lines), 1)
    tokens = sum(line.forward_tokens for line in lines)
    # Prompts of kept groups went through the trainer too, each once.
    per_rollout = (tokens - context * kept / recipe.batch.generations) / max(kept, 1)
    limit = recipe.length.longest
    return AnswerLengths(
        min(mean, 0.98 * limit),
        float(np.mean(spreads)) if spreads else 0.6,
        float(np.clip(np.mean(shares), 0.0, 1.0)) if shares else 0.7,
        limit,
        # The lengths are those after interruption: nothing more is cut.
        None,
        kept_ratio=float(np.clip(per_rollout / mean, 0.3, 3.0)),
    )


def _prompt_tokens(lines: list[StepLine]) -> int:
    found = [line.context_tokens / max(line.filtered.prompts, 1) for line in lines]
    return round(float(np.mean(found)))


def _pass_rates(recipe: Recipe, lines: list[StepLine]) -> PassRates:
    mean = float(np.clip(np.mean([line.pass_rate for line in lines]), 0.02, 0.98))
    kept = 1 - float(np.mean([line.zero_variance for line in lines]))
    return PassRates.from_kept(min(max(kept, 0.02), 0.999), recipe.batch.generations, mean)


def _environment(lines: list[StepLine]) -> EnvironmentModel:
    plays = [line.play for line in lines if line.play is not None]
    if not plays:
        return EnvironmentModel()
    turns = max(round(float(np.mean([p.turns for p in plays]))), 1)
    seconds = float(np.mean([p.environment_seconds for p in plays]))
    return EnvironmentModel(turns, seconds / turns)


def _check_seconds(spent: dict[str, float], lines: list[StepLine]) -> float:
    if any(line.play is not None for line in lines):
        return 0.0  # the environment scores, and its seconds are those of turns
    return spent["check"] / max(sum(line.filtered.rollouts for line in lines), 1)


def _measured(
    lines: list[StepLine], skip: int, spent: dict[str, float], recipe: Recipe
) -> dict[str, float]:
    """The run's own steps, for comparison with a prediction."""
    first, after, where = lines[skip - 1], lines[skip:], recipe.placement
    devices = where.generators + where.trainers
    last = lines[-1].ledger
    whole = (last.device_seconds - first.ledger.device_seconds) / devices
    waits: dict[str, Any] = {
        "generator_wait": spent["generate_wait"] / (where.generators * whole),
        "trainer_wait": spent["train_wait"] / (where.trainers * whole),
    }
    stale = float(np.mean([line.staleness.mean for line in after]))
    return {"step_seconds": whole / len(after), "staleness": stale} | waits
