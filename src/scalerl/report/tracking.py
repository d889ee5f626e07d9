"""How well a downstream set follows validation over a run: a number with an interval, and a flag.

Two curves that both rise are correlated whatever they have to do with each other, so a correlation
of their levels says nothing. What says something is the exchange rate: how much downstream score a
point of validation score has bought. It is the slope of downstream on validation over the run, with
two corrections.

- Neighbouring evaluations of one run are alike beyond the line: its ups and downs last. The
  interval counts such points as fewer (Newey and West's standard error, with Student's quantile for
  as many degrees of freedom as there are stretches that are not alike).
- Validation is measured with noise, which makes any slope on it too flat: it is divided by the
  share of validation's movement that is no noise. Where less than three quarters of it is real,
  validation has hardly moved and there is no number.

Worked through: validation .10 .30 .50 .60 .65 .70 .75 .80 .82 .84, downstream .05 .15 .25 .30 .33
.35 .35 .35 .35 .35. Over the run a point of validation bought .43 of downstream. In the last third
(.80 .82 .84 against .35 .35 .35) validation still rises and downstream does not: what it bought
before, .5 of a point each, would have been .02 there. With 3 evaluations that is no proof; with 10
it would be flagged. The flag needs all of these, so that it is wrong in under 5 % of the runs in
which downstream goes on as before:

- downstream followed validation over the first two thirds (the interval lies above 0);
- validation surely rises over the last third;
- downstream surely rises there by less than half of what its earlier exchange rate promises.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from scalerl.runs.lines import EvalLine, SetScore

Array = npt.NDArray[np.float64]

#: Evaluations that an exchange rate needs.
MIN_POINTS = 8
#: Evaluations that the last third needs for the flag.
MIN_LATE = 5
#: Share of validation's movement that must be real.
MIN_REAL = 0.75
LEVEL = 0.9

TrackingRelation = Literal["follows", "falls", "unclear"]


@dataclass(frozen=True, slots=True)
class Tracking:
    """How a downstream set followed validation over a run."""

    name: str
    #: Evaluations that have both scores.
    points: int
    #: Downstream score bought by one point of validation score; None where it is unclear.
    slope: float | None
    interval: tuple[float, float] | None
    level: float
    #: `follows`: the interval lies above 0. `falls`: below 0.
    relation: TrackingRelation
    #: From the first evaluation to the last.
    validation: tuple[float, float]
    downstream: tuple[float, float]
    #: Downstream stalls while validation still rises, since about this step.
    stalled: bool
    since: int | None
    #: In one sentence.
    why: str

    def to_dict(self) -> dict[str, Any]:
        """The fields by name; `relation` has the name and values of earlier releases there."""
        relation = "cannot be told" if self.relation == "unclear" else self.relation
        found = asdict(self) | {"relation": relation}
        return {"verdict" if k == "relation" else k: v for k, v in found.items()}


@dataclass(frozen=True, slots=True)
class _Line:
    """A straight line through points: its slope, the slope's standard error and its degrees of
    freedom."""

    slope: float
    error: float
    freedom: float

    def bound(self, share: float) -> float:
        from scipy.special import stdtrit  # scipy.stats would take longer than all the rest

        return self.slope + float(stdtrit(self.freedom, share)) * self.error


def track(
    name: str,
    steps: Sequence[int],
    validation: Sequence[float],
    downstream: Sequence[float],
    n_validation: Sequence[float],
    n_downstream: Sequence[float],
    level: float = LEVEL,
) -> Tracking:
    """Compare two curves of one run, point by point; `n_…` are the answers behind each score.

    >>> v = [0.1 + 0.04 * i for i in range(20)]
    >>> d = [0.5 * x + (0.01, -0.01)[i % 2] for i, x in enumerate(v)]
    >>> found = track("aime", range(20), v, d, [1000] * 20, [1000] * 20)
    >>> found.relation, round(found.slope, 2), found.stalled
    ('follows', 0.5, False)
    """
    v, d = np.asarray(validation, float), np.asarray(downstream, float)
    ends = (float(v[0]), float(v[-1])), (float(d[0]), float(d[-1]))
    noise_v, noise_d = _noise(v, n_validation), _noise(d, n_downstream)

    def unclear(why: str) -> Tracking:
        return Tracking(name, len(v), None, None, level, "unclear", *ends, False, None, why)

    if len(v) < MIN_POINTS:
        return unclear(f"{len(v)} evaluations of both: it takes {MIN_POINTS}")
    found = _exchange(v, d, noise_v)
    if found is None:
        return unclear("validation has hardly moved beyond the noise of its evaluations")
    low, high = found.bound((1 - level) / 2), found.bound((1 + level) / 2)
    relation: TrackingRelation = "follows" if low > 0 else "falls" if high < 0 else "unclear"
    since = _stalled(v, d, noise_v, noise_d)
    step = None if since is None else int(steps[since])
    bought = f"a point of validation bought {found.slope:.2f} ({low:.2f} to {high:.2f})"
    if step is not None:
        why = f"{bought} over the run, but since about step {step} it buys less than half of that"
    elif relation == "unclear":
        why = f"{bought}, which may be nothing"
    else:
        why = bought
    return Tracking(
        name, len(v), found.slope, (low, high), level, relation, *ends, step is not None, step, why
    )


#: Name of a downstream set → step → its pass rate, and the answers behind it.
DownstreamScores = Mapping[str, Mapping[int, tuple[float, float]]]


def downstream_scores(
    evals: Sequence[EvalLine], further: Mapping[str, Sequence[EvalLine]] | None = None
) -> DownstreamScores:
    """Every downstream set of a run's record, and of further evaluations of its checkpoints
    (`scalerl eval`)."""
    sets: dict[str, dict[int, tuple[float, float]]] = {}
    for line in evals:
        for name, score in (line.downstream or {}).items():
            if score.pass_rate is not None:
                sets.setdefault(name, {})[line.step] = (score.pass_rate, _size(score))
    for name, lines in (further or {}).items():
        scored = {x.step: (x.pass_rate, float(x.n_eval)) for x in lines if x.pass_rate is not None}
        sets.setdefault(name, {}).update(scored)
    return sets


def trackings(evals: Sequence[EvalLine], sets: DownstreamScores) -> list[Tracking]:
    """Every downstream set against validation at the same steps."""
    found = []
    for name, scores in sets.items():
        both = [x for x in evals if x.step in scores and x.pass_rate is not None]
        if both:
            found.append(
                track(
                    name,
                    [x.step for x in both],
                    [x.pass_rate or 0.0 for x in both],
                    [scores[x.step][0] for x in both],
                    [x.n_eval for x in both],
                    [scores[x.step][1] for x in both],
                )
            )
    return found


def _size(score: SetScore) -> float:
    return float(score.n_prompts * score.k if score.scored is None else score.scored)


def _noise(score: Array, answers: Sequence[float]) -> Array:
    """Variance of each evaluation around the true score of its prompts, which are the same ones
    every time; never quite 0."""
    n = np.maximum(np.asarray(answers, float), 1.0)
    return np.asarray((score * (1 - score) + 1 / n) / n)


def _exchange(v: Array, d: Array, noise: Array) -> _Line | None:
    """Downstream on validation."""
    moved = float(np.var(v))
    real = 1.0 - float(np.mean(noise)) / moved if moved > 0 else 0.0
    if real < MIN_REAL:
        return None
    line = _line(v, d)
    # Noise in validation makes the slope too flat by this share (attenuation).
    return _Line(line.slope / real, line.error / real, line.freedom)


def _line(x: Array, y: Array) -> _Line:
    """Least squares, with Newey and West's standard error."""
    n = len(x)
    c = x - x.mean()
    slope = float(c @ y / (c @ c))
    scores = c * (y - y.mean() - slope * c)
    reach = max(1, round(math.sqrt(n)))
    total = float(scores @ scores)
    for lag in range(1, reach + 1):
        total += 2 * (1 - lag / (reach + 1)) * float(scores[lag:] @ scores[:-lag])
    total = max(total, float(scores @ scores))  # ups and downs that cancel prove nothing
    # n - 2: two parameters are fitted.
    error = math.sqrt(total * n / (n - 2)) / float(c @ c)
    # Neighbours within `reach` are alike, so that only n / reach stretches count.
    return _Line(slope, error, max(n / reach - 1.0, 1.0))


def _stalled(v: Array, d: Array, noise_v: Array, noise_d: Array) -> int | None:
    """Where the stall begins, if there is one."""
    late = len(v) // 3
    if late < MIN_LATE:
        return None
    cut = len(v) - late
    early = _exchange(v[:cut], d[:cut], noise_v[:cut])
    if early is None or early.bound(0.05) <= 0:
        return None
    rising = _trend(v[cut:], noise_v[cut:])
    if rising.bound(0.05) <= 0:
        return None
    # Downstream minus half of its promise, point by point: below zero, surely.
    behind = d[cut:] - 0.5 * early.slope * v[cut:]
    noise = noise_d[cut:] + (0.5 * early.slope) ** 2 * noise_v[cut:]
    return cut if _trend(behind, noise).bound(0.95) < 0 else None


def _trend(y: Array, noise: Array) -> _Line:
    """Over time; its error is at least that of evaluations of this size."""
    x = np.arange(len(y), dtype=float)
    line = _line(x, y)
    c = x - x.mean()
    return _Line(
        line.slope, max(line.error, math.sqrt(float(np.mean(noise) / (c @ c)))), len(y) - 2.0
    )
