"""Each variant of a study against the reference: compute to a target, crossing, speed by axis.

- *Compute to a target*: the compute at which the mean curve of a variant's runs reaches a score (by
  default TARGET of the reference's ceiling), and the probability that it ever does.
- *Crossing*: whether the curve that leads early is behind in the end, and where the curves cross. A
  lead is LEAD or more. The end is given by the two ceilings, so that a run that may collapse later
  does not count as overtaken:

      gap  -.03  -.01  +.00  +.02 | heading for +.03      crosses, inside the budget
      gap  -.03  -.02  -.02  -.01 | heading for +.03      crosses, beyond it
      gap  -.004 +.003 -.002 +.00 | heading for +.03      never led by LEAD: no crossing

- *Fixed A*: B of both curves when they are fitted with one ceiling, as the paper does.
- *Axes*: the compute to one score in device-hours, in tokens and in FLOPs. Nothing is fitted again:
  each draw's compute on one axis is interpolated to the other axis from the run's own record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from scalerl.curves.arms import WINNER_PROBABILITY, Arm
from scalerl.curves.compare import Pair
from scalerl.curves.decision import SEED_LOG_COMPUTE_SD, seed_noise
from scalerl.curves.forecast import HORIZON, Target, quantiles_with_inf, reached
from scalerl.curves.prediction import sample_quantiles, tails
from scalerl.errors import InputError
from scalerl.runs.lines import EvalLine

Array = npt.NDArray[np.float64]
#: Probability of the intervals.
LEVEL = 0.9
#: Default target as a share of the reference's ceiling.
TARGET = 0.9
#: Smallest difference in pass rate that counts as a lead.
LEAD = 0.01
#: Amounts of compute at which curves are compared, up to the budget.
KNOTS = 32
#: Amounts of compute beyond the budget.
KNOTS_BEYOND = 24
#: Kinds of compute that are compared, and their names in texts.
AXES = {"gpu_hours": "device-hours", "tokens": "tokens", "flops": "FLOPs"}


@dataclass(frozen=True, slots=True)
class CurveCrossing:
    """Where two curves cross."""

    #: Probability that the curves cross before the end of the budget.
    within_budget: float
    #: Probability that they cross at all.
    at_all: float
    #: Name of the arm that leads in the end in most draws with a crossing.
    overtakes: str | None
    #: Median compute of the crossing, over the draws that have one; inf: beyond the last knot.
    compute: float | None
    #: Central interval of that compute.
    interval: tuple[float, float] | None

    def to_dict(self) -> dict[str, Any]:
        return {
            "probability": self.at_all,
            "probability_within_budget": self.within_budget,
            "overtakes": self.overtakes,
            "compute": None if self.compute is None else _finite(self.compute),
            "interval": None if self.interval is None else [_finite(v) for v in self.interval],
        }


@dataclass(frozen=True, slots=True)
class AxisSpeed:
    """Compute of a variant over that of the reference, to one score, on one axis."""

    ratio: float
    interval: tuple[float, float]
    p_faster: float

    @property
    def side(self) -> str:
        """`faster` or `slower`, where that is as sure as a verdict has to be; else `no side`."""
        if self.p_faster > WINNER_PROBABILITY:
            return "faster"
        return "slower" if self.p_faster < 1.0 - WINNER_PROBABILITY else "no side"

    def to_dict(self) -> dict[str, Any]:
        return {
            "compute_ratio": {"median": self.ratio, "interval": list(self.interval)},
            "p_faster": self.p_faster,
            "side": self.side,
        }


@dataclass(frozen=True, slots=True)
class PairwiseSummary:
    """The comparison of one variant with the reference; fields are None where unknown."""

    target: Target | None = None
    crossing: CurveCrossing | None = None
    #: The common ceiling, and B of the reference and of the variant with it.
    fixed_a: tuple[float, float, float] | None = None
    axes: Mapping[str, AxisSpeed] | None = None

    @property
    def disagree(self) -> str | None:
        """Where the axes do not agree, in words: `faster on device-hours, not on tokens`."""
        return None if self.axes is None else disagreement(self.axes)

    def fixed_a_dict(self) -> dict[str, float] | None:
        """`fixed_a` with the names that JSON has."""
        if self.fixed_a is None:
            return None
        return dict(zip(("A", "B_reference", "B"), self.fixed_a, strict=True))


def disagreement(axes: Mapping[str, AxisSpeed]) -> str | None:
    """
    >>> fast, same = AxisSpeed(.7, (.6, .8), .999), AxisSpeed(1.02, (.9, 1.1), .4)
    >>> disagreement({"gpu_hours": fast, "tokens": same, "flops": same})
    'faster on device-hours, not on tokens and FLOPs'
    >>> disagreement({"gpu_hours": fast, "tokens": AxisSpeed(1.5, (1.3, 1.7), .001)})
    'faster on device-hours, slower on tokens'
    """
    sides: dict[str, list[str]] = {}
    for kind, speed in axes.items():
        sides.setdefault(speed.side, []).append(AXES[kind])
    taken = [side for side in ("faster", "slower") if side in sides]
    if not taken or len(sides) == 1:
        return None
    parts = [f"{side} on {' and '.join(sides[side])}" for side in taken]
    if "no side" in sides:
        parts.append(f"not on {' and '.join(sides['no side'])}")
    return ", ".join(parts)


def pairwise_summaries(
    arms: Mapping[str, Arm],
    evals: Mapping[str, Sequence[EvalLine]],
    pairs: Mapping[str, Pair],
    reference: str,
    budget: float,
    target: float | None = None,
) -> dict[str, PairwiseSummary]:
    """The summary of every arm of a study, the reference included. `evals` holds the validations of
    each run by the name of its fit, `budget` is the compute of the reference's whole budget."""
    main = arms.get(reference)
    score = target
    if score is not None and not 0.0 < score <= 1.0:
        raise InputError(f"a target is a score in (0, 1], not {score:g}")
    if score is None and main is not None:
        score = TARGET * float(np.median(main.ceiling))
    places = {name: [_kinds(evals.get(f.name, ())) for f in arm.fits] for name, arm in arms.items()}
    found = {}
    for name, arm in arms.items():
        aim = None if score is None else compute_to(arm, score)
        if main is None or arm is main or name not in pairs:
            found[name] = PairwiseSummary(aim)
            continue
        axes = _axes(main, arm, places[reference], places[name], pairs[name])
        found[name] = PairwiseSummary(
            aim, curve_crossing(main, arm, budget), _fixed(pairs[name], reference), axes
        )
    return found


def compute_to(arm: Arm, score: float) -> Target:
    """The compute at which the mean curve of an arm reaches a score."""
    first = min(float(f.points.compute[f.points.compute > 0][0]) for f in arm.fits)
    # The second part begins with the end of the first: no knot twice.
    knots = np.concatenate(
        [np.geomspace(first, arm.end, KNOTS)[:-1], np.geomspace(arm.end, HORIZON * arm.end, 40)]
    )
    return reached(arm.levels(knots), np.log(knots), score, LEVEL)


def curve_crossing(reference: Arm, variant: Arm, budget: float) -> CurveCrossing:
    """Whether and where the mean curves of two arms cross."""
    # Knots of the reference alone: its curve is then worked out once for all variants.
    first = max(float(f.points.compute[f.points.compute > 0][0]) for f in reference.fits)
    # A run of one validation would have no range of compute.
    budget = max(budget, 1.01 * first)
    inside = np.geomspace(first, budget, KNOTS)
    beyond = np.geomspace(budget, HORIZON * budget, KNOTS_BEYOND)[1:]
    knots = np.concatenate([inside, beyond])
    gap = variant.levels(knots) - reference.levels(knots)
    # Curves are computed for fewer draws than ceilings: every so many-th.
    thin = max(len(variant.ceiling) // len(gap), 1)
    heading = (variant.ceiling - reference.ceiling)[::thin]
    last = np.where(np.abs(gap[:, KNOTS - 1]) >= LEAD, gap[:, KNOTS - 1], 0.0)
    # The side that leads in the end: by the ceilings, or where these tie, by the last gap.
    end = np.sign(np.where(np.abs(heading) >= LEAD, heading, last))
    before = gap[:, :KNOTS] * end[:, None]
    behind = before <= -LEAD
    crosses = behind.any(axis=1) & (end != 0.0)
    within = crosses & (last * end > 0.0)
    if not crosses.any():
        return CurveCrossing(0.0, 0.0, None, None, None)
    since = KNOTS - 1 - np.argmax(behind[:, ::-1], axis=1)
    where = _first_above(gap * end[:, None], np.log(knots), since)[crosses]
    low, middle, high = quantiles_with_inf(where, (tails(LEVEL)[0], 0.5, tails(LEVEL)[1]))
    winner = variant.name if float(end[crosses].mean()) > 0 else reference.name
    return CurveCrossing(float(within.mean()), float(crosses.mean()), winner, middle, (low, high))


def _first_above(gap: Array, log_knots: Array, since: npt.NDArray[np.intp]) -> Array:
    """Compute at which each row first rises above 0 after the knot `since`; inf where it never
    does."""
    later = np.arange(gap.shape[1])[None, :] > since[:, None]
    above = later & (gap > 0.0)
    i = np.maximum(np.argmax(above, axis=1), 1)
    rows = np.arange(len(gap))
    below, over = gap[rows, i - 1], gap[rows, i]
    share = np.clip(-below / np.where(over > below, over - below, 1.0), 0.0, 1.0)
    place = np.exp(log_knots[i - 1] + share * (log_knots[i] - log_knots[i - 1]))
    return np.where(above.any(axis=1), place, np.inf)


def _fixed(pair: Pair, reference: str) -> tuple[float, float, float] | None:
    if pair.fixed_a is None:
        return None
    mine = "B_a" if pair.a == reference else "B_b"
    other = "B_b" if mine == "B_a" else "B_a"
    return pair.fixed_a["A"], pair.fixed_a[mine], pair.fixed_a[other]


# -- both axes ------------------------------------------------------------------------------------

#: For each run: kind of compute → ln C of each validation.
Places = list[dict[str, Array]]


def _kinds(lines: Sequence[EvalLine]) -> dict[str, Array]:
    """ln C of a run's validations by kind. A kind that does not grow from one validation to the
    next is left out, because it cannot be inverted."""
    spent = [line.compute for line in lines if line.pass_rate is not None]
    columns = {
        "gpu_hours": [c.device_hours for c in spent],
        "tokens": [float(c.generated_tokens) for c in spent],
        "flops": [c.flops for c in spent],
    }
    found = {}
    for kind, values in columns.items():
        positive = np.array([v for v in values if v > 0])
        if len(positive) > 1 and (np.diff(positive) > 0).all():
            found[kind] = np.log(positive)
    return found


def _axes(
    reference: Arm, variant: Arm, of_reference: Places, of_variant: Places, pair: Pair
) -> dict[str, AxisSpeed] | None:
    """The speed on every axis that all runs have; None where there is no score to compare at, or
    one axis alone."""
    if pair.speed_score is None:
        return None
    kind = reference.fits[0].run.x_kind
    kinds = [k for k in AXES if all(k in each for each in (*of_reference, *of_variant))]
    if kind not in kinds or len(kinds) < 2:
        return None
    base = _log_compute(reference, of_reference, kind, kinds, pair.speed_score)
    mine = _log_compute(variant, of_variant, kind, kinds, pair.speed_score)
    log_sd = SEED_LOG_COMPUTE_SD if pair.scope == "recipes" else 0.0
    found = {}
    for other in kinds:
        draws = mine[other] - base[other]
        # The same noise on every axis, so that axes differ by their compute alone.
        draws = draws + seed_noise(reference, variant, log_sd, len(draws), 42)
        low, middle, high = np.exp(sample_quantiles(draws, (tails(LEVEL)[0], 0.5, tails(LEVEL)[1])))
        faster = float((draws < 0).mean())
        found[other] = AxisSpeed(float(middle), (float(low), float(high)), faster)
    return found


def _log_compute(
    arm: Arm, places: Places, kind: str, kinds: Sequence[str], score: float
) -> dict[str, Array]:
    """ln C to the score on every axis, per draw: read off on each of its runs, and averaged."""
    found: dict[str, list[Array]] = {other: [] for other in kinds}
    draws = arm.log_compute_to(score)
    for at in places:
        for other in kinds:
            # A kind may lack the first validations, where it was 0: align the ends.
            count = min(len(at[kind]), len(at[other]))
            found[other].append(np.interp(draws, at[kind][-count:], at[other][-count:]))
    return {other: np.asarray(np.mean(each, axis=0)) for other, each in found.items()}


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
