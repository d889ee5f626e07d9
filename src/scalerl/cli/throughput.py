"""Tokens per second of the generators and of the trainer, and which waits for which."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from scalerl.runs.compute import BudgetUse, DeviceSeconds, budget_use
from scalerl.text import clock_text

if TYPE_CHECKING:
    from scalerl.recipe.schema import Recipe
    from scalerl.runs.lines import StepLine

#: Rates and shares are over this many steps: generators report in bursts, not step by step.
STEPS = 5
#: Below this share of its time at work, a side is said to wait.
WAITS = 0.9
#: Seconds of a validation before a log mentions it.
PATIENCE = 2.0
#: Seconds between two lines of a log about one validation.
EVERY = 10.0
#: From this share of its waiting on, the trainer is said to wait for the checks.
FOR_CHECKS = 0.5


WaitsFor = Literal["trainer", "generators", "checks", "environments"]


@dataclass(frozen=True, slots=True)
class SideThroughput:
    """Generators or trainer: tokens per second, share of time at work, what it waits for."""

    tokens: float | None = None
    busy: float | None = None
    waits_for: WaitsFor | None = None


class RunThroughput:
    """Fed with the lines of steps; everything is None until there are enough of them."""

    def __init__(self, recipe: Recipe, clock: Callable[[], float] = time.monotonic) -> None:
        self.recipe = recipe
        self.started = clock()
        self.use: BudgetUse | None = None
        self._clock = clock
        self._first: tuple[float, float] | None = None
        self._recent: deque[tuple[float, StepLine]] = deque(maxlen=STEPS + 1)

    def add(self, line: StepLine) -> None:
        now = self._clock()
        self._recent.append((now, line))
        self.use = budget_use(self.recipe.budget, line.compute)
        # From the first step on: loading would make the run look slow.
        if self._first is None and self.use is not None:
            self._first = now, self.use.share

    @property
    def elapsed(self) -> float:
        return self._clock() - self.started

    @property
    def left(self) -> float | None:
        """Seconds to the end of the budget, if it goes on as since the first step seen."""
        if self.use is None or self._first is None or not self._recent:
            return None
        since, share = self._first
        done = self.use.share - share
        if done <= 0:
            return 0.0 if self.use.share >= 1 else None
        last, _ = self._recent[-1]
        left = (last - since) * (1.0 - self.use.share) / done
        # Counts down between two steps.
        return max(left - (self._clock() - last), 0.0)

    def sides(self) -> tuple[SideThroughput, SideThroughput]:
        """Generators and trainer over the recent steps. Both wait a little for each other: the one
        that waits more has power to spare, and only it is said to wait. But a trainer that waits
        for checks is always said to: neither side can help there."""
        if len(self._recent) < 2:
            return SideThroughput(), SideThroughput()
        (_, old), (_, new) = self._recent[0], self._recent[-1]
        a, b = old.ledger.spent, new.ledger.spent
        written = b.generate + b.hand_over - a.generate - a.hand_over
        writes = _share(written, b.generate_wait - a.generate_wait)
        trains = _share(b.train - a.train, b.train_wait - a.train_wait)
        for_trainer, for_generators = which_waits(writes, trains)
        checks = trains is not None and trains < WAITS and _for_checks(a, b)
        seconds = self._seconds(old, new)
        tokens = new.compute.generated_tokens - old.compute.generated_tokens
        learnt = new.compute.trained_tokens - old.compute.trained_tokens
        # With an environment, what the ledger calls a check is a call of it.
        scoring: WaitsFor = "checks" if new.play is None else "environments"
        reason: WaitsFor = scoring if checks else "generators"
        return (
            SideThroughput(_rate(tokens, seconds), writes, "trainer" if for_trainer else None),
            SideThroughput(
                _rate(learnt, seconds), trains, reason if checks or for_generators else None
            ),
        )

    def _seconds(self, old: StepLine, new: StepLine) -> float:
        """Time on the clock between two lines, validation left out. The ledger counts every device
        that took part, also where generators come and go; a recipe only knows what was asked."""
        a, b = old.ledger, new.ledger
        trained = b.device_seconds - a.device_seconds
        validated = b.validation_seconds - a.validation_seconds
        clock = 60.0 * (new.compute.minutes - old.compute.minutes)
        if clock > 0 and trained > 0:
            return clock * trained / (trained + validated)
        where = self.recipe.placement
        return trained / where.devices


class ValidationProgress:
    """How far the validation that is under way has come."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began: float | None = None
        self._said = 0.0
        self.step = self.written = self.checked = self.total = 0

    def add(self, step: int, written: int, checked: int, total: int) -> None:
        if self._began is None or written < self.written:  # (asked again after a loss)
            self._began = self._clock()
            # So that the first line is due after PATIENCE.
            self._said = self._began + PATIENCE - EVERY
        self.step, self.written, self.checked, self.total = step, written, checked, total

    def over(self) -> None:
        self._began, self.written = None, 0

    @property
    def under_way(self) -> bool:
        return self._began is not None

    @property
    def share(self) -> float:
        """Of the work, half of which is writing and half checking."""
        return (self.written + self.checked) / (2 * self.total) if self.total else 0.0

    @property
    def left(self) -> float | None:
        """Seconds, if it goes on as since its start."""
        if self._began is None or self.share <= 0:
            return None
        return (self._clock() - self._began) * (1.0 - self.share) / self.share

    def due(self) -> bool:
        """Whether a log should have a line now; it is taken to write one."""
        now = self._clock()
        if self._began is None or now - self._said < EVERY:
            return False
        self._said = now
        return True

    def __str__(self) -> str:
        left = "" if self.left is None else f", {clock_text(self.left)} left"
        return (
            f"validating at step {self.step}: {self.written} of {self.total} answers written, "
            f"{self.checked} checked{left}"
        )


def _share(worked: float, waited: float) -> float | None:
    whole = max(worked, 0.0) + max(waited, 0.0)
    return max(worked, 0.0) / whole if whole > 0 else None


def _rate(tokens: float, seconds: float) -> float | None:
    return max(tokens, 0) / seconds if seconds > 0 else None


def _for_checks(old: DeviceSeconds, new: DeviceSeconds) -> bool:
    waited = new.train_wait - old.train_wait
    return new.check_wait - old.check_wait > FOR_CHECKS * waited


def which_waits(generators: float | None, trainer: float | None) -> tuple[bool, bool]:
    """Whether the generators wait for the trainer, and the trainer for them, from the shares of
    their time that they work: at most one does."""
    if generators is None or trainer is None or min(generators, trainer) >= WAITS:
        return False, False
    return generators < trainer, trainer <= generators
