"""The compute that a run has used, where it went, and how much of the budget that is.

All numbers are running totals from the beginning of the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING

from scalerl.runs.fields import Record, about, record

if TYPE_CHECKING:
    from scalerl.recipe.sections_runtime import BudgetSection


@record
class Compute(Record):
    """Compute so far, in every unit that a point of the curve can be plotted against. A resumed run
    continues from the totals of its checkpoint."""

    device_hours: float = about(
        "hours of training times devices. Validation and the time between a stop and a resume are "
        "left out (`compute.count_validation` counts validation in)",
        default=0.0,
    )
    flops: float = about(
        "2 N × generated tokens + 6 N × trained tokens; N: parameters in a token's matrix products "
        "(without an embedding that is only looked up; of a mixture's experts only those asked)",
        default=0.0,
    )
    generated_tokens: int = about("tokens written for training", default=0)
    trained_tokens: int = about("tokens that went through the trainer", default=0)
    samples: int = about("rollouts taken by the trainer", default=0)
    steps: int = about("optimiser steps", default=0)
    minutes: float = about(
        "minutes on the clock, of training and of validation; the time between a stop and a resume "
        "is left out. `budget.minutes` is a limit to it",
        default=0.0,
    )


@record
class DeviceSeconds(Record):
    """Device-seconds by what they were used for."""

    generate: float = about("generators writing rollouts", default=0.0)
    hand_over: float = about("generators loading new weights", default=0.0)
    train: float = about("the trainer's steps", default=0.0)
    check: float = about(
        "seconds that checks of answers or environments took; on processors, so in no sum of "
        "device-seconds",
        default=0.0,
    )
    judge: float = about(
        "a judge model's work on answers, where it reports its time (`scalerl host`); its devices "
        "are not the run's, so in no sum of device-seconds",
        default=0.0,
    )
    validate: float = about(
        "generators' work on validation; part of `validation_seconds`", default=0.0
    )
    generate_wait: float = about("the rest of the generators' time", default=0.0)
    train_wait: float = about("the rest of the trainer's time", default=0.0)
    check_wait: float = about(
        "the part of `train_wait` in which the trainer waited for checks or environments and for "
        "nothing else",
        default=0.0,
    )


@record
class WasteCount(Record):
    """Rollouts that were generated and not trained on, and their tokens."""

    rollouts: int = about("rollouts", default=0)
    tokens: int = about("their tokens, as far as they are known", default=0)


@record
class Wasted(Record):
    """Rollouts that were generated and not trained on, by reason."""

    stale: WasteCount = about(
        "too old to be trained on: under way when a run went on with other knobs, else 0",
        default=WasteCount(),
    )
    filtered: WasteCount = about("no variance, cut off, or unscored", default=WasteCount())
    failed: WasteCount = about(
        "begun in a process that died, or in a batch with a gradient that was not finite",
        default=WasteCount(),
    )


@record
class DecodeWork(Record):
    """Sums over the decode steps of all generators, of training turns: enough to find the seconds
    of a step as a linear function of its rows."""

    steps: float = about("decode steps", default=0.0)
    rows: float = about("rows of these steps", default=0.0)
    squares: float = about("squares of the rows", default=0.0)
    seconds: float = about("seconds of these steps", unit="seconds", default=0.0)
    row_seconds: float = about("rows times seconds", default=0.0)
    admitted: float = about("rows that were new in these steps, and read first", default=0.0)
    admitted_squares: float = about("squares of the new rows", default=0.0)
    row_admitted: float = about("rows times new rows", default=0.0)
    admitted_seconds: float = about("new rows times seconds", default=0.0)


@record
class LedgerLine(Record):
    """Where compute went, since the beginning. `device_seconds` = `spent.generate` +
    `spent.hand_over` + `spent.train` + `spent.generate_wait` + `spent.train_wait`."""

    steps: int = about("optimiser steps", default=0)
    samples: int = about("rollouts taken by the trainer", default=0)
    generated_tokens: int = about("tokens written for training", default=0)
    trained_tokens: int = about("tokens that went through the trainer", default=0)
    reread_tokens: int = about(
        "tokens that generators read before later turns of an episode", default=0
    )
    judge_read_tokens: int = about("tokens that a judge model has read", default=0)
    judge_written_tokens: int = about("tokens that a judge model has written", default=0)
    device_seconds: float = about(
        "seconds of training times devices, without validation", default=0.0
    )
    validation_seconds: float = about("seconds of validation times devices", default=0.0)
    lost_device_seconds: float = about(
        "spent between a checkpoint and a crash; in no other number, so that a resume counts "
        "nothing twice",
        default=0.0,
    )
    spent: DeviceSeconds = about(
        "device-seconds by what they were used for", default=DeviceSeconds()
    )
    wasted: Wasted = about("rollouts that were not trained on", default=Wasted())
    by_kind: dict[str, float] = about(
        "`device_seconds` by kind of device: cpu, or the name of a GPU", default_factory=dict
    )
    decode: DecodeWork = about("sums over decode steps", default=DecodeWork())
    cpu_seconds: dict[str, float] = about(
        "CPU seconds of the generators' processes (`generate`), of the trainer's first rank in its "
        "steps (`train`), of the process that runs the loop (`loop`), and of that between the end "
        "of a step and the next batch (`turn`): on a busy machine the clock says more about other "
        "programs",
        default_factory=dict,
    )
    cores: int | None = about(
        "cores that all workers of a local run share; null where they have machines of their own",
        default=None,
    )


# -- how much of the budget is used ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BudgetUse:
    """How much of a budget is used, by the limit that will end the run first."""

    #: Used share of that limit, from 0; at 1 or above the run ends.
    share: float
    #: The same in words: "step 20 of 100".
    text: str
    #: Why the run is over; None while the share is below 1.
    reason: str | None


def budget_use(budget: BudgetSection | SimpleNamespace, compute: Compute) -> BudgetUse | None:
    """The used share of a budget; None for a budget without limits. (The live page reads recipes
    without checking them, so that it has the three limits only.)

    Of several limits the one with the largest used share counts, because it will end the run: of 20
    steps and 4 minutes, 5 steps and 2 minutes are one half, by the minutes.

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
