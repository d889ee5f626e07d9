"""What a run has used up so far, and where it went: running totals, from its beginning."""

from __future__ import annotations

from scalerl.runs.fields import Record, about, record


@record
class Compute(Record):
    """Compute so far, in every kind: what a point of the curve is plotted against. A run that is
    resumed goes on from what it had spent."""

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
        "minutes on the clock, of training and of validation; the time between two parts of a run "
        "is left out. `budget.minutes` is a limit to it",
        default=0.0,
    )


@record
class Spent(Record):
    """Device-seconds by what they went to."""

    generate: float = about("generators writing rollouts", default=0.0)
    hand_over: float = about("generators loading new weights", default=0.0)
    train: float = about("the trainer's steps", default=0.0)
    check: float = about(
        "seconds that checks of answers took; on processors, so in no sum of device-seconds",
        default=0.0,
    )
    validate: float = about(
        "generators' work on validation; part of `validation_seconds`", default=0.0
    )
    generate_wait: float = about("the rest of the generators' time", default=0.0)
    train_wait: float = about("the rest of the trainer's time", default=0.0)
    check_wait: float = about(
        "the part of `train_wait` in which the trainer waited for checks and for nothing else",
        default=0.0,
    )


@record
class WasteCount(Record):
    """Rollouts that were written and not learnt from, and their tokens."""

    rollouts: int = about("rollouts", default=0)
    tokens: int = about("their tokens, as far as they are known", default=0)


@record
class Wasted(Record):
    """What was written and not learnt from, by reason."""

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
class LedgerLine(Record):
    """Where compute went, since the beginning. `device_seconds` = `spent.generate` +
    `spent.hand_over` + `spent.train` + `spent.generate_wait` + `spent.train_wait`."""

    steps: int = about("optimiser steps", default=0)
    samples: int = about("rollouts taken by the trainer", default=0)
    generated_tokens: int = about("tokens written for training", default=0)
    trained_tokens: int = about("tokens that went through the trainer", default=0)
    device_seconds: float = about(
        "seconds of training times devices, without validation", default=0.0
    )
    validation_seconds: float = about("seconds of validation times devices", default=0.0)
    lost_device_seconds: float = about(
        "spent between a checkpoint and a crash; in no other number, so that a resume counts "
        "nothing twice",
        default=0.0,
    )
    spent: Spent = about("device-seconds by what they went to", default=Spent())
    wasted: Wasted = about("rollouts that were not learnt from", default=Wasted())
    by_kind: dict[str, float] = about(
        "`device_seconds` by kind of device: cpu, or the name of a GPU", default_factory=dict
    )
