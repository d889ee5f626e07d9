"""Amounts of compute as people write them: `50k`, `300steps`, `2x`, `50%`.

A plain number is in the unit of the run's own axis. One with a unit is converted by what the
record counts beside it. An amount that is far outside of what the run measured is refused: on an
axis of FLOPs `300` is a number of steps that was meant otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from scalerl.errors import InputError
from scalerl.runs.record import Array, ComputeKind, Run
from scalerl.text import listed

SUFFIXES = {
    "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12, "P": 1e15, "E": 1e18, "Z": 1e21,
    "Y": 1e24,
}  # fmt: skip
#: An amount below this share of the first evaluation's compute is refused: nothing was measured
#: near it, so that it is rather a number in another unit.
MIN_SHARE_OF_FIRST = 0.1
#: An amount above this many times the compute spent is refused: forecasts search no further for
#: the compute that reaches a target.
MAX_TIMES_SPENT = 100.0
#: Beyond the end of a run a unit is converted at the mean rate over this share of the points, the
#: last ones, because a step takes longer as answers grow.
RECENT_SHARE = 0.25

_WORDS: dict[str, ComputeKind] = {
    "gpuhours": "gpu_hours", "gpuhour": "gpu_hours", "gpuh": "gpu_hours", "gpuhrs": "gpu_hours",
    "devicehours": "gpu_hours", "hours": "hours", "hour": "hours", "h": "hours", "hrs": "hours",
    "flops": "flops", "flop": "flops", "tokens": "tokens", "token": "tokens", "tok": "tokens",
    "samples": "samples", "sample": "samples", "rollouts": "samples", "rollout": "samples",
    "steps": "steps", "step": "steps",
}  # fmt: skip
_AMOUNT = re.compile(
    r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z_\- ]*|%)\s*", re.ASCII
)

Unit = ComputeKind | Literal["", "times", "percent"]


@dataclass(frozen=True, slots=True)
class Amount:
    """A number and its unit: "" is that of the run's axis, "times" and "percent" are of the compute
    that was spent.

    >>> Amount.parse("50k"), Amount.parse("300steps").unit, Amount.parse("2x").unit
    (Amount(value=50000.0, unit='', text='50k'), 'steps', 'times')
    """

    value: float
    unit: Unit
    text: str

    @staticmethod
    def parse(text: str) -> Amount:
        """The amount in a text, or an InputError."""
        match = _AMOUNT.fullmatch(text)
        rest = "" if match is None else match[2].strip()
        unit, scale = _unit(rest), 1.0
        if unit is None:  # `50ksteps`; but the G of `2GPU-hours` is none
            unit, scale = _unit(rest[1:].strip()), SUFFIXES.get(rest[:1], float("nan"))
        if match is None or unit is None or scale != scale:
            raise InputError(f"{text!r} is not a number (try 50000, 50k, 300steps or 2x)")
        value = float(match[1]) * scale
        if not np.isfinite(value):
            raise InputError(f"{text!r} is not a finite number")
        return Amount(value, unit, text.strip())

    def on(self, run: Run, end: float) -> tuple[float, str]:
        """The amount on the run's axis, `end` being the compute spent, and a line about how it was
        converted; "" where it was not."""
        if self.unit == "percent":
            return self.value / 100.0 * end, ""
        if self.unit == "times":
            return self.value * end, ""
        if self.unit in ("", run.x_kind):
            return self.value, ""
        return self._converted(run)

    def _converted(self, run: Run) -> tuple[float, str]:
        if self.unit not in run.conversions:
            raise InputError(
                f"{self.text}: the record of {run.name} does not count {self.unit}: give an "
                f"amount in {listed([_axis(run), *run.conversions])}"
            )
        compute, amount = run.conversions[self.unit]
        if self.value > amount[-1]:
            first = max(min(int(len(amount) * (1.0 - RECENT_SHARE)), len(amount) - 2), 0)
            start = (compute[first], amount[first]) if len(amount) > 1 else (0.0, 0.0)
            # 1e-300: where the other unit does not change, the result is huge and refused below.
            rate = (compute[-1] - start[0]) / max(amount[-1] - start[1], 1e-300)
            value = float(compute[-1] + rate * (self.value - amount[-1]))
            how = f", at the rate of the last {len(amount) - first} points beyond the end"
        else:
            # Nothing was spent before the beginning, in any unit.
            known = np.maximum.accumulate([0.0, *amount])
            value = float(np.interp(self.value, known, [0.0, *compute]))
            how = ""
        return value, f"{self.text} is read as {value:.4g} {_axis(run)}{how}"

    def checked_on(self, run: Run, end: float, flag: str) -> tuple[float, str]:
        """As `on`; an InputError where the amount lies far outside of what the run measured."""
        value, how = self.on(run, end)
        first = _first(run)
        if value == 0 or MIN_SHARE_OF_FIRST * first <= value <= MAX_TIMES_SPENT * end:
            return value, how
        axis = _axis(run)
        others = [f"{self.value:g}{kind}" for kind in run.conversions if self.unit == ""]
        hint = f", or name another unit: {listed(others, 3)}" if others else ""
        raise InputError(
            f"{flag} {self.text}: {value:.4g} {axis} is far outside of what {run.name} measured, "
            f"{first:.4g} to {end:.4g} {axis}: give an amount in {axis}, or 2x for twice the "
            f"compute{hint}"
        )


def on_axis(at: npt.ArrayLike | Sequence[float | str], run: Run, end: float) -> Array:
    """Amounts of compute as numbers, or as texts with a unit, on the run's axis.

    >>> run = Run("mine", np.array([1.0, 2.0]), np.array([0.1, 0.2]), "gpu_hours",
    ...           conversions={"steps": (np.array([1.0, 2.0]), np.array([100.0, 200.0]))})
    >>> on_axis(["150steps", "2x", 3], run, end=2.0)
    array([1.5, 4. , 3. ])
    """
    items = [at] if isinstance(at, str) else at
    if not isinstance(items, Sequence):
        return np.asarray(items, dtype=np.float64)
    return np.array(
        [
            Amount.parse(each).checked_on(run, end, "at")[0] if isinstance(each, str) else each
            for each in items
        ],
        dtype=np.float64,
    )


def _axis(run: Run) -> str:
    """What the run's compute counts; where that is not known, the column's name."""
    return run.x_kind if run.x_kind != "unknown" else run.x_name or "compute"


def _unit(text: str) -> Unit | None:
    if text in ("", "%"):
        return "percent" if text else ""
    word = re.sub(r"[_\- ]", "", text).lower()
    return "times" if word == "x" else _WORDS.get(word)


def _first(run: Run) -> float:
    """The compute of the first evaluation after the start of training."""
    # An evaluation before training may be logged at a small positive compute: below a hundredth of
    # the mean distance between evaluations it does not count.
    after = run.compute[run.compute > 0.01 * run.compute[-1] / len(run)]
    return float(after[0] if len(after) else run.compute[-1])
