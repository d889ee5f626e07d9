"""How fast a run goes and who waits for whom, from the records of its steps."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scalerl.recipe.schema import Recipe

#: Rates and shares are over this many steps: generators report in bursts, not step by step.
STEPS = 5
#: Below this share of its time at work, a side is said to wait.
WAITS = 0.9


@dataclass(frozen=True, slots=True)
class Side:
    """Generators or trainer: tokens a second, and the share of its time it works."""

    tokens: float | None = None
    busy: float | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How much of the budget is used: by the part of it that will end the run first."""

    share: float
    text: str


class Pace:
    """Fed with the records of steps; everything is None until there are enough of them."""

    def __init__(self, recipe: Recipe, clock: Callable[[], float] = time.monotonic) -> None:
        self.recipe = recipe
        self.started = clock()
        self.progress: Progress | None = None
        self._clock = clock
        self._first: tuple[float, float] | None = None
        self._recent: deque[tuple[float, Mapping[str, Any]]] = deque(maxlen=STEPS + 1)

    def add(self, record: Mapping[str, Any]) -> None:
        now = self._clock()
        self._recent.append((now, record))
        self.progress = _progress(self.recipe, record)
        if self._first is None and self.progress is not None:
            self._first = now, self.progress.share

    @property
    def elapsed(self) -> float:
        return self._clock() - self.started

    @property
    def left(self) -> float | None:
        """Seconds to the end of the budget, if it goes on as since the first step seen."""
        if self.progress is None or self._first is None or not self._recent:
            return None
        since, share = self._first
        done = self.progress.share - share
        if done <= 0:
            return 0.0 if self.progress.share >= 1 else None
        last, _ = self._recent[-1]
        left = (last - since) * (1.0 - self.progress.share) / done
        return max(left - (self._clock() - last), 0.0)

    @property
    def generators(self) -> Side:
        return self._side("generated_tokens", ("generate", "load"), "generate_wait", "generators")

    @property
    def trainer(self) -> Side:
        return self._side("trained_tokens", ("train",), "train_wait", "trainers")

    def _side(self, tokens: str, work: tuple[str, ...], wait: str, devices: str) -> Side:
        seconds = self._seconds()
        if not seconds:
            return Side()
        worked = sum(self._grown("ledger", "spent", kind) for kind in work)
        waited = self._grown("ledger", "spent", wait)
        # Without a record of waiting, what was not work was waiting.
        whole = worked + waited if waited else seconds * getattr(self.recipe.placement, devices)
        busy = min(worked / whole, 1.0) if whole > 0 else None
        return Side(self._grown("compute", tokens) / seconds, busy)

    def _seconds(self) -> float:
        """Time on the clock over the recent steps, validation left out."""
        if len(self._recent) < 2:
            return 0.0
        placement = self.recipe.placement
        seconds = self._grown("ledger", "device_seconds")
        if seconds > 0:
            return seconds / (placement.generators + placement.trainers)
        return self._recent[-1][0] - self._recent[0][0]

    def _grown(self, *path: str) -> float:
        """By how much a running total has grown over the recent steps."""
        new, old = (number(self._recent[i][1], *path) or 0.0 for i in (-1, 0))
        return max(new - old, 0.0)


def number(record: Mapping[str, Any], *path: str) -> float | None:
    """A number deep in a record, None where it is missing.

    >>> number({"staleness": {"max": 2}}, "staleness", "max"), number({}, "loss")
    (2.0, None)
    """
    value: Any = record
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, int | float) else None


def _progress(recipe: Recipe, record: Mapping[str, Any]) -> Progress | None:
    budget, placement = recipe.budget, recipe.placement
    found = []
    if budget.steps is not None:
        step = int(record["step"])
        found.append(Progress(step / budget.steps, f"step {step} of {budget.steps}"))
    if budget.minutes is not None:
        devices = placement.generators + placement.trainers
        minutes = (number(record, "ledger", "device_seconds") or 0.0) / devices / 60.0
        text = f"{minutes:.1f} of {budget.minutes:g} minutes"
        found.append(Progress(minutes / budget.minutes, text))
    if budget.gpu_hours is not None:
        hours = number(record, "compute", "device_hours") or 0.0
        text = f"{hours:.3g} of {budget.gpu_hours:g} device-hours"
        found.append(Progress(hours / budget.gpu_hours, text))
    return max(found, key=lambda p: p.share, default=None)


def who_waits(generators: Side, trainer: Side) -> tuple[bool, bool]:
    """Whether the generators wait for the trainer, and the trainer for them: at most one does."""
    g, t = generators.busy, trainer.busy
    if g is None or t is None or min(g, t) >= WAITS:
        return False, False
    return g < t, t <= g


def face(seconds: float) -> str:
    """A span of time as a clock shows it.

    >>> face(75), face(3725)
    ('1:15', '1:02:05')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
