"""A plan as text of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from scalerl.planner.answer import PlannedStep
from scalerl.planner.arms import ArmRace
from scalerl.planner.outlook import Outlook, TargetCost
from scalerl.planner.pilot import MULTIPLES, PilotPlan

if TYPE_CHECKING:
    from scalerl.planner.plan import Plan

WIDTH = 80
#: Splits that do not fit and are named.
MAX_MISFITS = 3
#: Share of the time that validations take from which on it is said.
VALIDATION_SHARE = 0.1
#: A further trainer that shortens a step by less than this buys nothing.
BUYS = 0.01


def plan_text(plan: Plan) -> str:
    """The whole plan."""
    parts = [_head(plan), _table(plan), _advice(plan)]
    if plan.days is not None:
        parts.append(_budget(plan))
    if plan.outlook is not None:
        parts.append(_outlook(plan, plan.outlook))
    if plan.race is not None:
        parts.append(_race(plan.race))
    if plan.pilot is not None:
        parts.append(_pilot(plan, plan.pilot))
    return "\n\n".join(part for part in parts if part)


def number(value: float) -> str:
    """A number to three digits, with commas.

    >>> number(2713.6), number(0.9876), number(12.34), number(0)
    ('2,710', '0.988', '12.3', '0')
    """
    if value == 0 or not np.isfinite(value):
        return "0" if value == 0 else "never"
    digits = int(np.floor(np.log10(abs(value))))
    rounded = round(value, 2 - digits)
    return f"{rounded:,.{max(2 - digits, 0)}f}"


def span(low: float, high: float) -> str:
    """Two ends: 170-610."""
    return f"{number(low)}-{number(high)}"


def _wrap(text: str, indent: str = "  ") -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def _head(plan: Plan) -> str:
    batch, middle = plan.recipe.batch, plan.best.middle
    lines = [
        f"{plan.recipe.name}: {batch.prompts} x {batch.generations} rollouts a step",
        *plan.costs.lines(),
        f"simulated: {middle.steps} steps of each placement, {middle.start_up} of them start-up; "
        f"standard error {middle.step_error / middle.step_seconds:.0%}",
        *plan.notes,
    ]
    return "\n".join(_wrap(line) for line in lines)


def _table(plan: Plan) -> str:
    rows = [
        " split     schedule       step s (90 %)         waits g/t  stale  GB g/t  dev-h",
    ]
    for step in plan.steps:
        rows.append(_row(step, step is plan.best))
    for split, why in list(plan.searched.misfits.items())[:MAX_MISFITS]:
        rows.append(_wrap(f" {split:<9} does not fit: {why}", " " * 11))
    if len(plan.searched.misfits) > MAX_MISFITS:
        rows.append(f" {len(plan.searched.misfits) - MAX_MISFITS} further splits do not fit")
    return "\n".join(rows)


def _row(step: PlannedStep, best: bool) -> str:
    low, mid, high = step.interval()
    p, mark = step.placement, ">" if best else " "
    waits = f"{np.median(step.generator_wait):4.0%}/{np.median(step.trainer_wait):4.0%}"
    memory = f"{step.memory.generator:3.0f}/{step.memory.trainer:3.0f}"
    if not step.memory.trainer:
        memory = "      -"  # a record does not say
    seconds = f"{number(mid):>6} {'(' + span(low, high) + ')':<15}"
    return (
        f"{mark}{p.split:<9} {p.schedule_text:<13} {seconds} {waits}  "
        f"{np.median(step.staleness):5.1f} {memory} {number(step.device_hours):>7}"
    ).rstrip()


def _advice(plan: Plan) -> str:
    best = plan.best
    waits = (float(np.median(best.generator_wait)), float(np.median(best.trainer_wait)))
    if waits[0] > waits[1] + 0.05:
        text = "the trainer is what the run waits for"
    elif waits[1] > waits[0] + 0.05:
        text = "the generators are what the run waits for"
    else:
        text = "both sides wait about equally"
    mid = best.interval()[1]
    one = 1 - best.with_more_trainers(1, plan.slowness) / mid
    double = 1 - best.with_more_trainers(best.placement.trainers, plan.slowness) / mid
    text += (
        f": beside the same generators one more trainer buys {_bought(one)}, twice as many "
        f"{_bought(double)}"
    )
    lines = [_wrap(text)]
    every = plan.recipe.validation.every
    seconds = plan.searched.validation_seconds
    share = seconds / (seconds + every * mid)
    if share > VALIDATION_SHARE:
        lines.append(
            _wrap(
                f"validations take {share:.0%} of the time ({number(seconds / 60)} minutes every "
                f"{every} steps): lower validation.prompts or validation.k, or raise "
                "validation.every"
            )
        )
    return "\n".join(lines)


def _bought(share: float) -> str:
    return f"{share:.0%}" if share > BUYS else "nothing"


def _money(plan: Plan, device_hours: float) -> str:
    return "" if plan.price is None else f", ${number(device_hours * plan.price)}"


def _budget(plan: Plan) -> str:
    assert plan.days is not None
    low, mid, high = plan.steps_in(plan.days)
    hours = plan.days * 24 * plan.best.placement.devices
    text = (
        f"{number(plan.days)} days ({number(hours)} device-hours{_money(plan, hours)}): "
        f"{number(mid)} steps ({span(low, high)}), validations included"
    )
    return _wrap(text)


def _outlook(plan: Plan, outlook: Outlook) -> str:
    lines = [f"by the curve of {outlook.curve.name}:"]
    if outlook.reached is not None:
        low, mid, high = outlook.reached
        lines.append(f"  at the end: pass rate {mid:.3f} ({low:.3f}-{high:.3f})")
    for target in outlook.targets:
        lines.append(_wrap(_target(plan, target), "    "))
    lines += [_wrap(f"  {note}", "    ") for note in outlook.notes]
    return "\n".join(lines)


def _race(race: ArmRace) -> str:
    width = min(max(len(arm.name) for arm in race.arms), 28)
    lines = [
        f"first at {race.target:g}, by the curves of a study:",
        f"  {'arm':<{width}} {'P(first)':>8} {'reaches':>8} {'step s':>7}  days (90 %)",
    ]
    for arm in race.arms:
        low, mid, high = arm.days
        lines.append(
            f"  {arm.name[:width]:<{width}} {arm.first:>8.2f} {arm.reaches:>8.2f} "
            f"{number(arm.step.interval()[1]):>7}  {number(mid)} ({span(low, high)})"
        )
    if race.none > 0:
        lines.append(f"  none of them: {race.none:.2f}")
    return "\n".join([*lines, *[_wrap(f"  {note}", "    ") for note in race.notes]])


def _target(plan: Plan, t: TargetCost) -> str:
    if not np.isfinite(t.steps[1]):
        return (
            f"  to {t.score:g}: not reached in most futures (probability {t.probability:.2f}, "
            "however long)"
        )
    within = (
        "" if t.in_budget is None else f"; within the budget with probability {t.in_budget:.2f}"
    )
    return (
        f"  to {t.score:g}: {number(t.steps[1])} steps, {number(t.days[1])} days "
        f"({span(t.days[0], t.days[2])}), {number(t.device_hours[1])} device-hours"
        f"{_money(plan, t.device_hours[1])}{within}"
    )


def _pilot(plan: Plan, pilot: PilotPlan) -> str:
    return "\n".join(_pilot_lines(plan, pilot))


def _pilot_lines(plan: Plan, pilot: PilotPlan) -> Iterator[str]:
    yield "share of simulated pilots with an identified ceiling, by length in C_mid:"
    width = max(len(row.design.text) for row in pilot.rows)
    yield " " * (width + 3) + "".join(f"{m:>7g}x" for m in MULTIPLES)
    for row in pilot.rows:
        cells = "".join(f"{share:>8.0%}" for share in row.identified)
        yield f"  {row.design.text:<{width}} {cells}"
    for row in pilot.rows:
        steps = row.enough()
        if steps is not None:
            days = float(np.median(plan.seconds_per_step)) * steps / 86400
            yield _wrap(
                f"  {row.design.text}: {number(steps)} steps identify it in 80 % of pilots "
                f"({number(days)} days here)", "    "
            )  # fmt: skip
        else:
            yield _wrap(f"  {row.design.text}: {MULTIPLES[-1]:g} x C_mid are not enough", "    ")
