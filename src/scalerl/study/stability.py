"""Is a run stable? Stated rules, each with the step at which it was broken.

A run is unstable by the rule
- non-finite: its loss or gradient is not finite, or tokens without a finite log-prob turn up in
  WINDOW steps in a row;
- gradient: the median norm of WINDOW steps is above 50 times that of the first START steps;
- ratio: the mean effective sample size of the ratios, over WINDOW steps, is below 0.5;
- truncation: the share of rollouts that are cut off (its mean over a SHARE of the run) rose above
  `length.truncation_critical`, 0.10, and stays there to the end; or was above it from the beginning
  and has risen by RISE since;
- collapse: from some validation to its end, the pass rate stays below its best by 0.1 and by 4
  standard errors;
- hold-out: the mean of the validations in the second half of its compute is further below what the
  fit of the first half forecasts (its median) than TWICE the way to the lower end of the 90 %
  interval (3.3 standard deviations, were it normal), and by more than MARGIN.

It is undecided while it is too short for the rules (fewer than START steps or MIN_EVALS
validations), and where truncation is above its limit, but was so from the beginning and has not
risen: that may be the task's own, or on its way down. Else it is stable.

What recovers is not unstable: the rules look at how the record ends. An unstable run is not fitted:
a law of a healthy climb says nothing about it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from scalerl.curves.fit import fit
from scalerl.curves.result import Fit
from scalerl.errors import InputError
from scalerl.pipeline.alarms import FALL, FALL_ERRORS, MAX_GRADIENT, MIN_ESS, START, WINDOW
from scalerl.runs.lines import EvalLine, StepLine
from scalerl.runs.reader import StepHealthRow
from scalerl.runs.record import Run

State = Literal["stable", "unstable", "undecided"]
#: A step: the rules look at fields that both have.
StepHealth = StepLine | StepHealthRow
#: Rules about causes: a run that breaks them may still end well.
SIGNS = ("ratio", "truncation")
#: Validations below which nothing is said about a run's curve.
MIN_EVALS = 5
#: Truncation is averaged over this share of the steps so far.
SHARE = 0.1
#: Growth of a truncation that was too high from the beginning.
RISE = 1.25
#: Points in the first half that the forecast needs.
MIN_FITTED = 6
#: Points in the second half that it is checked on.
MIN_HELD = 3
#: Fall below the forecast that matters: the paper's margin on a ceiling.
MARGIN = 0.02
#: Ways from the forecast's median to the lower end of its 90 % interval that a stable run does not
#: fall. (Not a further quantile: a forecast allows for decline, so its far tail is very far.)
TWICE = 2.0


@dataclass(frozen=True, slots=True)
class Stability:
    """What the rules say of a run; `rule`, `step` and `why` of the first that was broken."""

    state: State
    rule: str | None = None
    step: int | None = None
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        if self.rule is None:
            return self.state + (f": {self.why}" if self.why else "")
        return f"{self.state} since step {self.step}, by the rule {self.rule}: {self.why}"


@dataclass(frozen=True, slots=True)
class HalfCheck:
    """The forecast at half the compute against what came: means over the held-out validations."""

    #: Whether what came lies in the forecast's 90 % interval.
    held: bool
    seen: float
    median: float
    interval: tuple[float, float]
    points: int
    #: The fit of the first half.
    first: Fit | None = field(default=None, repr=False, compare=False)

    @property
    def fell(self) -> bool:
        """Whether it came out far below."""
        fall = self.median - self.seen
        return fall > max(MARGIN, TWICE * (self.median - self.interval[0]))

    def to_dict(self) -> dict[str, Any]:
        return {
            "held": self.held,
            "seen": self.seen,
            "median": self.median,
            "interval": list(self.interval),
            "points": self.points,
        }


def assess_lines(
    steps: Sequence[StepHealth],
    evals: Sequence[EvalLine],
    critical: float = 0.1,
    half: HalfCheck | None = None,
    signs: bool = True,
) -> Stability:
    """The stability of a run by the lines of its record. `critical` is its
    `length.truncation_critical`, `half` what `half_check` found. Without `signs` the rules SIGNS,
    which say that trouble is near and not that it came, are left out."""
    truncation = _truncation(steps, critical) if signs else None
    said = [_non_finite(steps), _gradient(steps), _ratio(steps) if signs else None, truncation]
    said += [_collapse(evals), _hold_out(evals, half)]
    found = [each for each in said if each is not None and each.state == "unstable"]
    if found:
        # The first that was broken: later ones often follow from it.
        return min(found, key=lambda s: s.step or 0)
    points = sum(line.pass_rate is not None for line in evals)
    if len(steps) < START or points < MIN_EVALS:
        short = f"{len(steps)} steps and {points} validations are too few to tell"
        return Stability("undecided", why=short)
    return truncation or Stability("stable")


def _non_finite(steps: Sequence[StepHealth]) -> Stability | None:
    in_a_row = 0
    for line in steps:
        if not (math.isfinite(line.loss) and math.isfinite(line.grad_norm)):
            return Stability("unstable", "non-finite", line.step, "loss or gradient is not finite")
        in_a_row = in_a_row + 1 if line.non_finite else 0
        if in_a_row == WINDOW:
            why = f"tokens without a finite log-prob in {WINDOW} steps in a row"
            return Stability("unstable", "non-finite", line.step, why)
    return None


def _gradient(steps: Sequence[StepHealth]) -> Stability | None:
    norms = [line.grad_norm for line in steps]
    start = [norm for norm in norms[:START] if norm > 0]
    if not start or len(norms) < START + WINDOW:
        return None
    limit = MAX_GRADIENT * statistics.median(start)
    first = _first(norms, WINDOW, statistics.median, lambda norm: norm > limit, since=START)
    if first is None:
        return None
    why = f"the gradient's norm is above {MAX_GRADIENT:.0f} times that of the first steps"
    return Stability("unstable", "gradient", steps[first].step, why)


def _ratio(steps: Sequence[StepHealth]) -> Stability | None:
    # A step without ratios is no sign of trouble.
    ess = [1.0 if math.isnan(line.ess) else line.ess for line in steps]
    first = _first(ess, WINDOW, statistics.fmean, lambda mean: mean < MIN_ESS)
    if first is None:
        return None
    why = f"the effective sample size of the ratios is below {MIN_ESS:.0%}"
    return Stability("unstable", "ratio", steps[first].step, why)


def _first(
    values: Sequence[float],
    width: int,
    middle: Callable[[Sequence[float]], float],
    wrong: Callable[[float], bool],
    since: int = 0,
) -> int | None:
    """The index at which the middle of `width` values first is wrong."""
    for end in range(since + width, len(values) + 1):
        if wrong(middle(values[end - width : end])):
            return end - 1
    return None


def _truncation(steps: Sequence[StepHealth], critical: float) -> Stability | None:
    """Above the limit from some step to the end: unstable where it rose to that."""
    cut = [0.0 if math.isnan(line.truncated) else line.truncated for line in steps]
    width = max(WINDOW, round(SHARE * len(cut)))
    if len(cut) < 2 * width:
        return None
    means = [statistics.fmean(cut[i - width : i]) for i in range(width, len(cut) + 1)]
    if means[-1] <= critical:
        return None
    since = next((i for i in range(len(means) - 1, -1, -1) if means[i] <= critical), -1) + 1
    step, now = steps[since + width - 1].step, means[-1]
    if since == 0 and now < RISE * means[0]:
        why = f"{now:.0%} of rollouts are cut off, and {means[0]:.0%} were at the beginning"
        return Stability("undecided", "truncation", step, why)
    return Stability("unstable", "truncation", step, f"{now:.0%} of rollouts are cut off")


def _collapse(evals: Sequence[EvalLine]) -> Stability | None:
    known = [(e.step, e.pass_rate, e.stderr or 0.0) for e in evals if e.pass_rate is not None]
    best: tuple[float, float] | None = None
    since: tuple[int, str] | None = None
    for step, rate, error in known:
        if best is None or rate > best[0]:
            best = rate, error
        fallen = best[0] - rate > max(FALL, FALL_ERRORS * math.hypot(error, best[1]))
        if not fallen:
            since = None
        elif since is None:
            since = step, f"the pass rate fell to {rate:.3f} from {best[0]:.3f}"
    return None if since is None else Stability("unstable", "collapse", *since)


def _hold_out(evals: Sequence[EvalLine], half: HalfCheck | None) -> Stability | None:
    if half is None or not half.fell:
        return None
    points = [line for line in evals if line.pass_rate is not None]
    step = points[-half.points].step if len(points) >= half.points else 0
    why = (
        f"the second half scores {half.seen:.3f}, and its first half gave "
        f"[{half.interval[0]:.3f}, {half.interval[1]:.3f}]"
    )
    return Stability("unstable", "hold-out", step, why)


def half_check(run: Run) -> HalfCheck | None:
    """Fit the first half of a run's compute, and compare the rest with what it gives; None where
    there are too few points for that."""
    if not len(run):
        return None
    middle = float(run.compute[-1]) / 2
    held = run.window(lo=middle)
    # The window includes its lower end, which is among the fitted points.
    keep = held.compute > middle
    if int((run.compute <= middle).sum()) < MIN_FITTED or int(keep.sum()) < MIN_HELD:
        return None
    try:
        first = fit(run, hi=middle)
    except InputError:
        return None
    ahead = first.predict(held.compute[keep])
    low, median, high = (float(v) for v in ahead.mean_quantiles([0.05, 0.5, 0.95]))
    seen = float(held.score[keep].mean())
    return HalfCheck(low <= seen <= high, seen, median, (low, high), int(keep.sum()), first)
