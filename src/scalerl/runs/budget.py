"""How much of a run's budget is used: the one definition, for the loop, the views and the forecast.

A budget may have several limits; the one that is nearest to being reached will end the run, so it
is the one that counts. A budget of 20 steps and 4 minutes, after 5 steps and 2 minutes, is half
used, by its minutes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from scalerl.runs.compute import Compute


class BudgetLimits(Protocol):
    """A recipe's `budget`."""

    @property
    def steps(self) -> int | None: ...

    @property
    def gpu_hours(self) -> float | None: ...

    @property
    def minutes(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class BudgetUse:
    """How much is used, by the limit that will end the run first."""

    share: float
    text: str
    #: Why the run is over; None while the share is below 1.
    reason: str | None


def budget_use(budget: BudgetLimits, compute: Compute) -> BudgetUse | None:
    """What is used of a budget; None for one without limits.

    >>> from types import SimpleNamespace
    >>> budget_use(SimpleNamespace(steps=20, gpu_hours=None, minutes=4.0), Compute(steps=20))
    BudgetUse(share=1.0, text='step 20 of 20', reason='budget of 20 steps')
    """
    hours, minutes = compute.device_hours, compute.minutes
    found = []
    if budget.steps is not None:
        text = f"step {compute.steps} of {budget.steps}"
        found.append(_use(compute.steps / budget.steps, text, f"{budget.steps} steps"))
    if budget.gpu_hours is not None:
        limit = f"{budget.gpu_hours:g} device-hours"
        found.append(_use(hours / budget.gpu_hours, f"{hours:.3g} of {limit}", limit))
    if budget.minutes is not None:
        limit = f"{budget.minutes:g} minutes"
        found.append(_use(minutes / budget.minutes, f"{minutes:.1f} of {limit}", limit))
    return max(found, key=lambda use: use.share, default=None)


def _use(share: float, text: str, limit: str) -> BudgetUse:
    return BudgetUse(share, text, f"budget of {limit}" if share >= 1 else None)
