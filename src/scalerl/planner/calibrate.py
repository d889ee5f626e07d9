"""Calibration: the rates, lengths and pass rates of a recorded run (`--like RUN`).

    decode step   a + b × rows + c × new rows, by least squares over all decode steps (sums in the
                  record)
    shared cores  clock over CPU seconds of the trainer, where all workers are on one machine
    loop          CPU seconds of its process
    batch         a + b × tokens, over the recorded steps
    lengths       mean, spread, share between prompts, those of kept groups
    hand-over     seconds of publishing and of loading

All come from the clock of that run, so they hold for its hardware, model and precision; another
batch, k, schedule, split or number of generators may be planned with them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from scalerl.errors import InputError
from scalerl.planner.lengths import AnswerLengths
from scalerl.planner.normal import Interval
from scalerl.planner.rates import (
    GeneratorRates,
    LoopRates,
    Rates,
    SharedCores,
    TrainerRates,
    sharing,
)
from scalerl.planner.simulate import SKIP
from scalerl.planner.world import EnvironmentModel, PassRates, PlannedWorld, RunPart
from scalerl.recipe import Recipe
from scalerl.runs.lines import StepLine
from scalerl.runs.reader import RunReader

Array = npt.NDArray[np.float64]
#: Steps of a record that a calibration needs.
MIN_STEPS = 8
#: Rollouts that an engine of scalerl's own writes at once, at most (pipeline/setup.py).
MAX_SLOTS = 512
#: Share of its time that a process must have had a processor for; below, the clock of a record says
#: more about other programs.
BUSY = 0.85
#: 90 % interval of a calibrated rate as a factor: other settings of lab runs were predicted within
#: 10 % from one calibration, runs of the same setting differ by 6 % (planner.md, 2.3).
CALIBRATED = 1.10
#: Simulated steps by which a calibration reproduces its own run, and the ratios that are believed:
#: beyond, the record and its recipe do not belong together.
OWN_STEPS = 80
OWN_RATIO = (0.7, 1.5)
#: Parts of a record that are simulated each for itself.
PARTS = 4
#: Quantile of the trainer's waits that is taken for those in which a batch was ready. At the median
#: the rest of the first lab runs was predicted with staleness 0.6 too high.
SHORT_WAITS = 0.25
#: Most of these waits, over the CPU seconds of the loop between two steps: messages take time, too.
TURN_SHARE = 2.0
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
    #: Parts of the run, in which other shares of groups were kept.
    parts: tuple[RunPart, ...] = ()
    notes: tuple[str, ...] = ()

    def world(self, recipe: Recipe, seed: int = 0) -> PlannedWorld:
        """The world of another recipe on the same hardware."""
        slots = max(min(recipe.batch.completions, MAX_SLOTS), 1)
        generator = replace(self.rates.generator, slots=slots)
        trainer = replace(self.rates.trainer, ranks=recipe.placement.trainers)
        limit, budgets = self.environment.limits(recipe)

        def cut(lengths: AnswerLengths) -> AnswerLengths:
            return lengths.cut(limit, budgets)

        parts = tuple(replace(part, lengths=cut(part.lengths)) for part in self.parts)
        return PlannedWorld(
            replace(self.rates, generator=generator, trainer=trainer), cut(self.lengths),
            self.prompt_tokens, self.pass_rates, self.environment, self.check_seconds, seed=seed,
            parts=parts,
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


def reproduced(calibration: Calibration, steps: int = OWN_STEPS) -> Calibration:
    """The calibration with rates that give the run its own step time in a simulation: what the
    model leaves out costs about as much in other settings."""
    from scalerl.planner.simulate import simulate

    recipe = calibration.recipe
    found = simulate(recipe, calibration.world(recipe), steps)
    ratio = calibration.measured["step_seconds"] / found.step_seconds
    return replace(calibration, rates=calibration.rates.scaled(float(np.clip(ratio, *OWN_RATIO))))


def _from_lines(folder: Path, recipe: Recipe, lines: list[StepLine], skip: int) -> Calibration:
    first, after = lines[skip - 1], lines[skip:]
    n = len(after)
    spent = _spent(lines, skip - 1)
    notes: list[str] = []
    generator, known = _generator(lines, skip - 1, spent, notes)
    where = recipe.placement
    trained = np.array([line.forward_tokens for line in after], np.float64)
    publish = float(np.mean([line.publish_seconds for line in after]))
    measured = _measured(lines, skip, spent, recipe)
    loop = _loop(lines, skip, recipe)
    shared, beside = _shared_cores(recipe, lines, skip, measured, loop)
    # Rates are those of a worker alone: what it lost by the others is added by the simulation.
    fixed, token = affine(
        trained, _train_seconds((first, *after), where.trainers, beside) - publish
    )
    step, row, admit = (rate / beside.generator for rate in generator)
    rates = Rates(
        GeneratorRates(
            step, 0.0, row, context=0.0, admit_token=0.0, admit_row=admit,
            load=spent["hand_over"] / n / where.generators,
        ),
        # Seconds of one device per token: the ranks share the tokens.
        TrainerRates(where.trainers, fixed, token * where.trainers, publish=publish),
        loop, shared,
    )  # fmt: skip
    return Calibration(
        folder, recipe, rates, _lengths(recipe, after, notes),
        prompt_tokens=_prompt_tokens(after), pass_rates=_pass_rates(recipe, after),
        environment=_environment(after), check_seconds=_check_seconds(spent, after),
        factor=CALIBRATED if known else WITHOUT_DECODE, steps=n,
        measured=measured, parts=_parts(recipe, after), notes=(*notes, *_busy(lines)),
    )  # fmt: skip


@dataclass(frozen=True)
class Slowdowns:
    """Time of a worker of the record over its time alone."""

    trainer: float = 1.0
    generator: float = 1.0


def _train_seconds(lines: Sequence[StepLine], ranks: int, beside: Slowdowns) -> Array:
    """Seconds of each step of a trainer that is alone.

    Where others slowed it down, these are its CPU seconds. The clock over the mean slowdown has the
    same mean, but what others took differs from step to step: in the first lab runs the fixed part
    of a step came out two to three times too large by it, and steps of half the batch were
    predicted a tenth too slow.
    """
    if beside.trainer > 1:
        whole = [line.ledger.cpu_seconds.get("train", 0.0) for line in lines]
    else:
        whole = [line.ledger.spent.train for line in lines]
    return np.asarray(np.diff(whole) / ranks)


def _shared_cores(
    recipe: Recipe, lines: list[StepLine], skip: int, measured: dict[str, float], loop: LoopRates
) -> tuple[SharedCores | None, Slowdowns]:
    """How workers that share cores slow each other down, from the seconds of the trainer and those
    for which it had a processor."""
    first, last = lines[skip - 1].ledger, lines[-1].ledger
    cpu = last.cpu_seconds.get("train", 0.0) - first.cpu_seconds.get("train", 0.0)
    if last.cores is None or set(last.by_kind) != {"cpu"} or not cpu:
        return None, Slowdowns()
    generating, training = 1 - measured["generator_wait"], 1 - measured["trainer_wait"]
    used = loop.beside / measured["step_seconds"]
    generators = recipe.placement.generators
    alone, busy = sharing(last.cores, [used, *[generating] * generators])
    clock = (last.spent.train - first.spent.train) / recipe.placement.trainers
    slower = max(clock / cpu, 1.0)
    # Beyond one worker a core they take turns; what is lost besides is learned here.
    shared = SharedCores(last.cores, float(np.clip((slower - alone) / max(busy, 0.1), 1.0, 1.5)))
    others = [generating] * (generators - 1)
    return shared, Slowdowns(slower, shared.slowdown([training, used, *others]))


def _loop(lines: list[StepLine], skip: int, recipe: Recipe) -> LoopRates:
    """The loop's seconds a step: between two steps, from the short waits of the trainer, in which a
    batch was ready; and its other CPU seconds."""
    n = len(lines) - skip
    waits = np.diff([line.ledger.spent.train_wait for line in lines[skip - 1 :]])
    first, last = lines[skip - 1].ledger.cpu_seconds, lines[-1].ledger.cpu_seconds
    if not last.get("loop"):
        return LoopRates()
    used = (last["loop"] - first["loop"]) / n
    turn = float(np.quantile(waits, SHORT_WAITS)) / recipe.placement.trainers
    # Where generators are slow, the trainer always waits for them, not for the loop.
    most = used
    if "turn" in last:
        most = min(used, TURN_SHARE * (last["turn"] - first.get("turn", 0.0)) / n)
    turn = min(turn, most)
    batch = recipe.batch
    return LoopRates(turn, used - turn, batch.prompts, batch.completions)


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
    """Seconds of a decode step, of a row and of a new row; whether steps were recorded."""
    last, first = lines[-1].ledger, lines[since].ledger
    d = {k: v - getattr(first.decode, k) for k, v in last.decode.to_dict().items()}
    tokens = last.generated_tokens - first.generated_tokens
    if d.get("steps", 0) < 2:
        notes.append(
            "the record has no decode steps (it is of an earlier version): tokens a second are "
            "taken as they were, whatever the rows"
        )
        return (0.0, spent["generate"] / max(tokens, 1), 0.0), False
    # What generators did besides decode steps (weights arriving, reports) is spread over the steps.
    scale = spent["generate"] / d["seconds"] if d["seconds"] > 0 else 1.0
    step, row, admit = (scale * rate for rate in decode_rates(d))
    return (step, row, admit), True


def decode_rates(sums: Mapping[str, float]) -> tuple[float, float, float]:
    """(a, b, c) of a decode step's seconds, a + b × rows + c × new rows, by least squares from the
    sums of a record, all 0 or more."""
    n, rows, new = sums["steps"], sums["rows"], sums.get("admitted", 0.0)
    squares, cross = sums["squares"], sums.get("row_admitted", 0.0)
    a = np.array([[n, rows, new], [rows, squares, cross],
                  [new, cross, sums.get("admitted_squares", 0.0)]])  # fmt: skip
    b = np.array([sums["seconds"], sums["row_seconds"], sums.get("admitted_seconds", 0.0)])
    # Terms that come out negative are left out, the new rows first, then the fixed part.
    for kept in ([0, 1, 2], [0, 1], [1, 2], [1]):
        part = a[np.ix_(kept, kept)]
        if np.linalg.matrix_rank(part) < len(kept):
            continue
        found = np.linalg.solve(part, b[kept])
        if np.all(found >= 0):
            rates = dict(zip(kept, found.tolist(), strict=True))
            return rates.get(0, 0.0), rates.get(1, 0.0), rates.get(2, 0.0)
    return sums["seconds"] / n, 0.0, 0.0


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
    trained = kept / max(
        sum(line.filtered.effective_prompts for line in lines) * recipe.batch.generations, 1
    )
    context = sum(line.context_tokens / max(line.filtered.prompts, 1) for line in lines)
    context /= max(len(lines), 1)
    tokens = sum(line.forward_tokens for line in lines)
    # Prompts of kept groups went through the trainer too, each once.
    per_rollout = (tokens - context * kept / recipe.batch.generations) / max(kept, 1)
    limit, _ = _environment(lines).limits(recipe)
    # Those that are left out were cut off at the limit: the others are shorter than the mean.
    others = mean
    if trained < 1:
        rollouts = sum(line.filtered.rollouts for line in lines)
        cut = sum(line.filtered.truncated for line in lines) / max(rollouts, 1)
        others = max((mean - cut * limit) / max(1 - cut, 1e-6), 1.0)
    return AnswerLengths(
        min(mean, 0.98 * limit),
        float(np.mean(spreads)) if spreads else 0.6,
        float(np.clip(np.mean(shares), 0.0, 1.0)) if shares else 0.7,
        limit,
        # The lengths are those after interruption: nothing more is cut.
        None,
        kept_ratio=float(np.clip(per_rollout / others, 0.3, 3.0)),
        trained=min(trained, 1.0),
    )


def _prompt_tokens(lines: list[StepLine]) -> int:
    found = [line.context_tokens / max(line.filtered.prompts, 1) for line in lines]
    return round(float(np.mean(found)))


def _pass_rates(recipe: Recipe, lines: list[StepLine]) -> PassRates:
    mean = float(np.clip(np.mean([line.pass_rate for line in lines]), 0.02, 0.98))
    kept = 1 - float(np.mean([line.zero_variance for line in lines]))
    return PassRates.from_kept(min(max(kept, 0.02), 0.999), recipe.batch.generations, mean)


def _parts(recipe: Recipe, lines: list[StepLine]) -> tuple[RunPart, ...]:
    """The pass rates and lengths of equal parts of the recorded steps."""
    count = min(PARTS, len(lines) // MIN_STEPS)
    cuts = [round(i * len(lines) / count) for i in range(count + 1)]
    pieces = [lines[a:b] for a, b in itertools.pairwise(cuts)]
    return tuple(RunPart(_pass_rates(recipe, p), _lengths(recipe, p, [])) for p in pieces)


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
