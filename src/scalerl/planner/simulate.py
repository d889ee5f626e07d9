"""Simulates a run: the very loop of a training run, on a virtual clock, with workers that only
take time.

>>> from scalerl.planner.rates import GeneratorRates, Rates, TrainerRates
>>> from scalerl.planner.lengths import AnswerLengths
>>> from scalerl.planner.world import PlannedWorld
>>> from scalerl.recipe import Recipe
>>> recipe = Recipe.load("scalerl", overrides=["placement.generators=2"])
>>> rates = Rates(GeneratorRates(0.01, 0.0, 0.0, 0.0, 0.0), TrainerRates(1, 10.0, 0.0))
>>> world = PlannedWorld(rates, AnswerLengths(100, 0.0, 0.0, 1000))
>>> round(simulate(recipe, world, steps=12).step_seconds, 2)    # the trainer is never kept waiting
10.0
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scalerl.errors import InputError
from scalerl.planner.world import PlannedWorld
from scalerl.recipe import Recipe
from scalerl.runs.lines import StepLine
from scalerl.runs.listener import Listener

if TYPE_CHECKING:
    from scalerl.planner.crew import PlannedCrew

Array = npt.NDArray[np.float64]
#: New objects after which cyclic garbage is collected; Python's own number is 700.
COLLECT_AFTER = 200_000
#: Simulated steps of each part of a run, at least, besides the first k.
MIN_STEPS = 20
#: Short simulations until the slowdown of workers that share cores has settled: each halves what is
#: left. Later parts of a run begin with the slowdown of the part before, which is close.
SHARING_ROUNDS = 6
SHARING_ROUNDS_LATER = 2
#: Steps of such a short simulation, besides the first k.
SHARING_STEPS = 12
#: Steps of a run up to which its start counts: it is simulated as it will be, from the first step.
SHORT_RUN = 200
#: Steps at the beginning of a run that are left out of its mean, at least: the first batches are
#: written with caches, kernels and lengths of their own.
SKIP = 4


@dataclass(frozen=True)
class Simulation:
    """What a simulated run took, after its start-up."""

    #: Steps that were simulated, and those at the beginning that are left out.
    steps: int
    start_up: int
    #: Mean seconds from the end of one step to the end of the next, without validation.
    step_seconds: float
    #: Standard error of it.
    step_error: float
    #: Seconds that the trainer works in a step, publishing included.
    train_seconds: float
    #: Share of its time that the trainer waits.
    trainer_wait: float
    #: Share of their time that generators wait.
    generator_wait: float
    #: Mean staleness of a token in steps, and the share of tokens of each staleness.
    staleness: float
    histogram: dict[int, float]
    #: Tokens written and tokens trained on in a step.
    generated_tokens: float
    trained_tokens: float
    #: Groups of a batch that were trained on.
    kept: float
    #: Mean rows of a generator in a decode step.
    rows: float
    #: Rows that were pushed out of a full cache, a step.
    preempted: float
    #: Seconds of a validation.
    validation_seconds: float
    #: Time at which each step ended, in seconds, validations included.
    ends: tuple[float, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        names = [n for n in self.__dataclass_fields__ if n != "ends"]
        return {name: getattr(self, name) for name in names}


def simulate(
    recipe: Recipe, world: PlannedWorld, steps: int, *, validate: bool = False
) -> Simulation:
    """Simulate `steps` optimiser steps of a recipe. Needs `scalerl[train]`, as the loop does."""
    found: list[Simulation] = []
    slow = Slowdown()
    for one, n in _worlds(recipe, world, steps):
        rounds = SHARING_ROUNDS_LATER if found else SHARING_ROUNDS
        result, slow = _simulate_part(recipe, one, n, slow, rounds, validate=validate)
        found.append(result)
    return found[0] if len(found) == 1 else _mean(found)


def _worlds(recipe: Recipe, world: PlannedWorld, steps: int) -> Iterator[tuple[PlannedWorld, int]]:
    """The worlds that are simulated, each with its number of steps.

    A short run is simulated whole and several times, its parts one after the other: batches that
    wait for the trainer take a good part of such a run to build up. Of a long run each part is
    simulated for itself, in the state in which it spends nearly all its time.
    """
    parts, budget = world.parts, recipe.budget.steps
    if not parts:
        yield world, steps
    elif budget is not None and budget <= SHORT_RUN:
        whole = replace(world, part_steps=max(budget // len(parts), 1))
        for i in range(max(round(steps / budget), 1)):
            yield replace(whole, seed=world.seed + i), budget
    else:
        for part in parts:
            yield world.of_part(part), max(steps // len(parts), recipe.schedule.k + MIN_STEPS)


class Slowdown(NamedTuple):
    """Seconds of a worker beside the others over its seconds alone."""

    generator: float = 1.0
    trainer: float = 1.0


def _simulate_part(
    recipe: Recipe, world: PlannedWorld, steps: int, slow: Slowdown, rounds: int, *, validate: bool
) -> tuple[Simulation, Slowdown]:
    """A simulation without parts, and how slow workers are that share cores."""
    if world.rates.shared is not None:
        slow = _beside_each_other(recipe, world, slow, rounds)
        world = _slowed(world, slow)
    lines, crew = simulated_record(recipe, world, steps, validate=validate)
    return _summary(lines, crew), slow


def _mean(parts: Sequence[Simulation]) -> Simulation:
    """The mean of simulations of the parts of a run; they have equally many steps."""
    names = [f for f in Simulation.__dataclass_fields__ if f not in ("histogram", "ends")]
    mean = {name: float(np.mean([getattr(p, name) for p in parts])) for name in names}
    histogram: dict[int, float] = {}
    for part in parts:
        for age, share in part.histogram.items():
            histogram[age] = histogram.get(age, 0.0) + share / len(parts)
    # Waits are shares of time: longer steps count more.
    weights = [p.step_seconds for p in parts]
    for name in ("trainer_wait", "generator_wait"):
        mean[name] = float(np.average([getattr(p, name) for p in parts], weights=weights))
    error = float(np.sqrt(np.mean([p.step_error**2 for p in parts]) / len(parts)))
    sums = {name: sum(getattr(p, name) for p in parts) for name in ("steps", "start_up")}
    return Simulation(**mean | sums | {"step_error": error, "histogram": dict(histogram)})


def _slowed(world: PlannedWorld, slow: Slowdown) -> PlannedWorld:
    rates = world.rates
    generator, trainer = rates.generator.scaled(slow.generator), rates.trainer.scaled(slow.trainer)
    return replace(world, rates=replace(rates, generator=generator, trainer=trainer))


def _beside_each_other(
    recipe: Recipe, world: PlannedWorld, slow: Slowdown, rounds: int
) -> Slowdown:
    """How slow workers are while they share cores. How much they slow each other down depends on
    how long they work at the same time, and that on their rates: so it is simulated a few times."""
    shared = world.rates.shared
    assert shared is not None
    steps = recipe.schedule.k + SHARING_STEPS
    if world.part_steps:
        steps = max(steps, world.part_steps * len(world.parts))
    for _ in range(rounds):
        _, crew = simulated_record(recipe, _slowed(world, slow), steps)
        overlap, seconds = crew.overlap, crew.clock.time
        assert overlap is not None
        generate, generators = overlap.generate, len(crew.generators)
        if not generate or not overlap.train:
            break
        turns = recipe.batch.completions * world.environment.turns
        loop = crew.rollout_seconds * turns * steps / seconds
        generating = generate / generators / seconds
        beside_trainer = overlap.both / overlap.train / generators
        found = Slowdown(
            shared.slowdown([overlap.both / generate, loop, *[generating] * (generators - 1)]),
            shared.slowdown([loop, *[beside_trainer] * generators]),
        )
        # Halfway: a slower trainer leaves generators more time to wait, and the other way round.
        slow = Slowdown((slow.generator + found.generator) / 2, (slow.trainer + found.trainer) / 2)
    return slow


def simulated_record(
    recipe: Recipe, world: PlannedWorld, steps: int, *, validate: bool = False,
    listener: Listener | None = None,
) -> tuple[list[StepLine], PlannedCrew]:  # fmt: skip
    """The lines of the steps that a simulated run records, and its crew."""
    try:
        from scalerl.pipeline.loop import Loop
        from scalerl.pipeline.worker_watch import WorkerWatch
        from scalerl.planner.crew import PlannedCrew
        from scalerl.planner.setup import MemoryStore, planned_recipe, planned_setup
    except ModuleNotFoundError as error:
        raise InputError(
            f"planning runs the training loop, which needs {error.name}: "
            "pip install 'scalerl[train]'"
        ) from None

    class Unwatched(WorkerWatch):
        """Simulated workers are never silent, and looking at thousands each second takes long."""

        def tick(self, waits_for: str) -> None:
            self.supervisor.recorder.drain(self.supervisor.pool.notes)

    changes: dict[str, Any] = {"placement.trainers": world.rates.trainer.ranks}
    if not validate:
        changes |= {"validation.every": steps + 1, "validation.prompts": 1, "validation.k": 1}
    setup = planned_setup(planned_recipe(recipe.replace(changes), steps))
    crew, store = PlannedCrew(setup, world), MemoryStore()
    loop = Loop(setup, crew, crew.clock, store, listener or Listener())
    loop.watch = Unwatched(loop.supervisor, loop.intake, loop.scaling)
    with _collecting_rarely():
        loop.run()
    return [line for line in store.lines if isinstance(line, StepLine)], crew


@contextmanager
def _collecting_rarely() -> Iterator[None]:
    """Collect cyclic garbage less often: the loop makes millions of small objects and hardly any
    cycle, and looking through them takes a third of the time."""
    before = gc.get_threshold()
    gc.set_threshold(COLLECT_AFTER, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _summary(lines: list[StepLine], crew: PlannedCrew) -> Simulation:
    batchings = [g.batching for g in crew.generators]
    decoded = sum(b.steps for b in batchings)
    minutes = np.array([line.compute.minutes for line in lines])
    validated = np.array([line.ledger.validation_seconds for line in lines])
    devices = len(crew.generators) + crew.world.rates.trainer.ranks
    # The ledger counts validation by device-seconds; here the clock without it is wanted.
    ends = 60 * minutes - validated / devices
    # The first k + 1 batches were begun together, before the first step.
    least = crew.setup.recipe.schedule.k + 1
    if crew.world.part_steps:
        # Seconds of steps change from part to part: that is no start-up.
        cut = min(max(SKIP, least), len(lines) - 1)
    else:
        cut = start_up(np.diff(ends, prepend=0.0), least)
    first, last = lines[cut - 1] if cut else None, lines[-1]
    n = len(lines) - cut
    seconds = float(ends[-1] - (ends[cut - 1] if cut else 0.0)) / n
    durations = np.diff(ends)[max(cut - 1, 0) :]
    after = lines[cut:]

    def spent(name: str) -> float:
        whole = getattr(last.ledger.spent, name)
        return float(whole - (getattr(first.ledger.spent, name) if first else 0.0))

    def per_step(name: str) -> float:
        whole = getattr(last.ledger, name)
        return float(whole - (getattr(first.ledger, name) if first else 0)) / n

    ranks = crew.world.rates.trainer.ranks
    histogram: Counter[int] = Counter()
    for line in after:
        histogram.update(line.staleness.histogram)
    total = max(histogram.total(), 1)
    busy = spent("generate") + spent("hand_over")
    return Simulation(
        steps=len(lines),
        start_up=cut,
        step_seconds=seconds,
        step_error=_standard_error(durations),
        train_seconds=spent("train") / ranks / n,
        trainer_wait=max(spent("train_wait") / (ranks * n * seconds), 0.0),
        generator_wait=max(1 - busy / (len(crew.generators) * n * seconds), 0.0),
        staleness=sum(age * count for age, count in histogram.items()) / total,
        histogram={age: count / total for age, count in sorted(histogram.items())},
        generated_tokens=per_step("generated_tokens"),
        trained_tokens=per_step("trained_tokens"),
        kept=float(np.mean([1 - line.zero_variance for line in after])),
        rows=sum(b.row_steps for b in batchings) / decoded if decoded else 0.0,
        preempted=sum(b.preempted for b in batchings) / len(lines),
        validation_seconds=_validation_seconds(lines, crew),
        ends=tuple((60 * minutes).tolist()),
    )


def _validation_seconds(lines: list[StepLine], crew: PlannedCrew) -> float:
    whole = lines[-1].ledger.validation_seconds - lines[0].ledger.validation_seconds
    count = (len(lines) - 1) // crew.setup.recipe.validation.every
    devices = len(crew.generators) + crew.world.rates.trainer.ranks
    return float(whole) / devices / count if count else 0.0


def start_up(durations: Array, least: int = 1) -> int:
    """Steps at the beginning that do not belong to the steady state: the cut that minimises the
    standard error of what is left (MSER; White 1997), `least` or more, and at most half of them.

    >>> start_up(np.array([9.0, 5.0, 2.0, 1.0, 1.1, 0.9, 1.0, 1.1, 0.9, 1.0]))
    3
    """
    n = len(durations)
    cuts = range(min(least, n // 2), max(n // 2, 1) + 1)
    errors = [float(np.var(durations[c:])) / (n - c) for c in cuts]
    return cuts[int(np.argmin(errors))]


def _standard_error(durations: Array) -> float:
    """Standard error of the mean of correlated durations, by means of batches of five."""
    size = 5 if len(durations) >= 20 else 1
    usable = len(durations) // size * size
    if usable < 2 * size:
        return float("nan")
    means = durations[-usable:].reshape(-1, size).mean(axis=1)
    return float(np.std(means, ddof=1) / np.sqrt(len(means)))
