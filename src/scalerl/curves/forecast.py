"""Forecasts: scores ahead, compute to a target, gain of the next doubling, stop or continue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from scalerl.curves.fit import MIN_POINTS, fit
from scalerl.curves.formula import Array
from scalerl.curves.noise import sampling_interval
from scalerl.curves.prediction import Prediction, sample_quantiles, tails
from scalerl.curves.result import Fit, finite_or_none
from scalerl.errors import InputError
from scalerl.runs.amounts import on_axis
from scalerl.runs.record import Run

#: Targets are searched up to this multiple of the compute spent so far.
HORIZON = 100.0
#: By default a forecast is made at twice the compute spent; at the last evaluation instead, where
#: that lies after the fitted window and within this share of twice the window: a second forecast
#: so close by, beside the measured score, would read as another number for the same.
NEAR_MEASURED = 0.1
#: Where a recommendation may continue to, in multiples of the compute spent so far.
MULTIPLES = (1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)


@dataclass(frozen=True, slots=True)
class Target:
    """The compute at which a score will be reached; inf where that share of futures never does.

    >>> from scalerl import forecast, load_run
    >>> target = forecast(load_run("example:paper-8b"), target=[0.9]).targets[0]
    >>> target.score, target.median
    (0.9, inf)
    """

    score: float
    #: Probability that the true pass rate reaches it within HORIZON times the compute spent.
    probability: float
    #: Median of the compute.
    median: float
    #: Interval of the compute.
    interval: tuple[float, float]

    def to_dict(self) -> dict[str, Any]:
        return {
            "score": self.score,
            "probability": self.probability,
            "within": HORIZON,
            "compute": {
                "median": finite_or_none(self.median),
                "interval": [finite_or_none(v) for v in self.interval],
            },
        }


@dataclass(frozen=True, slots=True)
class Gain:
    """The gain in pass rate from continuing to an amount of compute.

    >>> from scalerl import forecast, load_run
    >>> gain = forecast(load_run("example:paper-8b")).next_doubling
    >>> round(gain.compute), gain.interval[0] < gain.median < gain.interval[1]
    (178734, True)
    """

    compute: float
    median: float
    interval: tuple[float, float]

    def to_dict(self) -> dict[str, Any]:
        return {"compute": self.compute, "gain": self.median, "interval": list(self.interval)}


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Whether to stop or to continue to `compute`, and the expected value of doing so.

    >>> from scalerl import forecast, load_run
    >>> forecast(load_run("example:paper-8b"), price=2.0, value=1000.0).recommendation.action
    'stop'
    """

    #: "stop" or "continue".
    action: str
    #: Compute to continue to.
    compute: float
    #: Expected value of the gain minus cost, in the currency of the price.
    expected_net: float
    #: Probability that the gain is worth more than it costs.
    probability_pays: float
    reason: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Measured:
    """The last evaluation after the fitted window, with the forecast at its compute.

    >>> from scalerl import forecast, load_run
    >>> end = forecast(load_run("example:paper-8b"), hi=50_000).measured
    >>> round(end.compute), round(end.score, 2), end.inside
    (89367, 0.64, True)
    """

    compute: float
    score: float
    #: Interval of the true pass rate by the sampling error of this evaluation only; None where its
    #: number of samples is not known.
    sampling: tuple[float, float] | None
    #: Forecast of the true pass rate: median.
    median: float
    #: Forecast of the true pass rate: interval.
    interval: tuple[float, float]
    #: Forecast of one evaluation: interval.
    observed: tuple[float, float]

    @property
    def inside(self) -> bool:
        """Whether the score lies in the forecast interval of one evaluation."""
        low, high = self.observed
        return low <= self.score <= high

    def to_dict(self) -> dict[str, Any]:
        return {
            "compute": self.compute,
            "score": self.score,
            "sampling_interval": None if self.sampling is None else list(self.sampling),
            "forecast": {
                "median": self.median,
                "interval": list(self.interval),
                "observed_interval": list(self.observed),
            },
            "inside": self.inside,
        }


@dataclass(frozen=True, slots=True)
class Forecast:
    """The result of `forecast`: scores ahead, targets, the next doubling, a recommendation.

    >>> from scalerl import forecast, load_run
    >>> ahead = forecast(load_run("example:paper-8b"), at=[100_000, 200_000])
    >>> ahead.at.median.round(2).tolist(), round(ahead.next_doubling.median, 2)
    ([0.64, 0.65], 0.01)
    """

    fit: Fit
    at: Prediction
    targets: tuple[Target, ...]
    next_doubling: Gain
    recommendation: Recommendation | None = None
    #: None where the window holds the last evaluation.
    measured: Measured | None = None

    @property
    def if_healthy(self) -> Prediction:
        """`at`, given that the run does not fall."""
        return self.fit.predict(self.at.compute, healthy=True)

    @property
    def fall_probability(self) -> float | None:
        """Probability of a fall before the last of `at`; None for laws that know no falls."""
        return self.fit.fall_probability(float(self.at.compute.max()))

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.at.to_dict(),
            "if_healthy": self.if_healthy.to_dict()["at"],
            "fall_probability": self.fall_probability,
            "x": self.fit.run.x_kind,
            "x_name": self.fit.run.x_name,
            "y_name": self.fit.run.y_name,
            "identified": self.fit.identified,
            "score_kind": self.fit.run.score_kind,
            "breaks": list(self.fit.points.breaks),
            "notes": list(self.fit.run.notes),
            "targets": [t.to_dict() for t in self.targets],
            "next_doubling": self.next_doubling.to_dict(),
            "recommendation": None
            if self.recommendation is None
            else self.recommendation.to_dict(),
            "measured": None if self.measured is None else self.measured.to_dict(),
            "warnings": list(self.fit.warnings),
        }

    def plot(self, path: str | None = None) -> Any:
        """Draw the run, its fit and what is ahead; returns the matplotlib figure."""
        from scalerl.report.figures import plot_fit

        return plot_fit(self.fit, path, to=float(self.at.compute.max()))

    def __repr__(self) -> str:
        gain = self.next_doubling
        text = [
            repr(self.at),
            f"  the next doubling, to {gain.compute:.5g}, buys {gain.median:+.3f} "
            f"[{gain.interval[0]:+.3f}, {gain.interval[1]:+.3f}]",
        ]
        text += [
            f"  score {t.score:g}: probability {t.probability:.2f}, compute {t.median:.5g}"
            for t in self.targets
        ]
        if self.measured is not None:
            end = self.measured
            text.append(
                f"  measured at {end.compute:.5g}: {end.score:.3f}, forecast {end.median:.3f} "
                f"[{end.observed[0]:.3f}, {end.observed[1]:.3f}]"
            )
        if self.recommendation is not None:
            text.append(f"  {self.recommendation.action}: {self.recommendation.reason}")
        return "\n".join(text)

    def _repr_html_(self) -> str:
        from scalerl.report.notebook import forecast_html

        return forecast_html(self)


def forecast(
    run: Fit | Run,
    at: npt.ArrayLike | Sequence[float | str] | None = None,
    target: Sequence[float] = (),
    price: float | None = None,
    value: float | None = None,
    **options: Any,
) -> Forecast:
    """Everything `scalerl forecast` prints, for a run or a fit of it.

    at      amounts of compute, as numbers or as texts: "300steps", "2x"; by default twice what
            was spent, or the last evaluation where it was held out and lies near that
    target  scores to find the compute for
    price, value   cost of a unit of compute and worth of one point (0.01) of pass rate, in the
            same currency: adds a recommendation to stop or continue

    >>> from scalerl import load_run
    >>> ahead = forecast(load_run("example:paper-8b"), target=[0.6, 0.9])
    >>> ahead.targets[0].probability > 0.9, ahead.targets[1].probability < 0.2
    (True, True)
    """
    f = run if isinstance(run, Fit) else fit(run, **options)
    compute = [default_compute(f)] if at is None else on_axis(at, f.run, f.end)
    advice = None
    if (price is None) != (value is None):
        raise InputError(
            "a recommendation needs both a price per unit of compute and a value per point"
        )
    if price is not None and value is not None:
        advice = recommend(f, price, value)
    ahead = f.predict(compute)
    return Forecast(f, ahead, reach(f, target), gain(f, 2.0), advice, measured(f))


def default_compute(f: Fit) -> float:
    """The compute of a forecast where none is asked for.

    >>> from scalerl import fit, load_run
    >>> default_compute(fit(load_run("example:paper-8b"), hi=50_000))
    89367.0
    """
    twice, last = 2.0 * f.end, float(f.run.compute[-1])
    return last if last > f.end and abs(last / twice - 1.0) <= NEAR_MEASURED else twice


def measured(f: Fit) -> Measured | None:
    """The last evaluation of the run, where it lies after the fitted window."""
    at, score = float(f.run.compute[-1]), float(f.run.score[-1])
    if at <= f.end:
        return None
    there = f.predict([at])
    (low, high), (seen_low, seen_high) = there.interval()[0], there.interval(observed=True)[0]
    sampling = None
    if f.run.n_eval is not None and f.run.n_eval[-1] > 0:
        sampling = sampling_interval(score, float(f.run.n_eval[-1]), f.level)
    return Measured(
        at,
        score,
        sampling,
        float(there.median[0]),
        (float(low), float(high)),
        (float(seen_low), float(seen_high)),
    )


def reach(f: Fit, scores: Sequence[float]) -> tuple[Target, ...]:
    """Compute at which the true pass rate first reaches each score, with its probability."""
    if not len(scores):
        return ()
    for score in scores:
        if not 0.0 < score <= 1.0:
            raise InputError(f"a target is a score in (0, 1], not {score:g}")
    first = f.points.compute[f.points.compute > 0][0]
    knots = np.concatenate(
        [np.geomspace(first, f.end, 24)[:-1], np.geomspace(f.end, HORIZON * f.end, 40)]
    )
    levels = f.predictive.levels(knots)
    return tuple(reached(levels, np.log(knots), float(s), f.level) for s in scores)


def reached(levels: Array, log_knots: Array, score: float, level: float) -> Target:
    """The compute at which paths of the pass rate, (draws, knots), first reach a score."""
    above = levels >= score
    ever = above.any(axis=1)
    i = np.maximum(np.argmax(above, axis=1), 1)
    rows = np.arange(len(levels))
    before, after = levels[rows, i - 1], levels[rows, i]
    share = np.clip((score - before) / np.where(after > before, after - before, 1.0), 0.0, 1.0)
    when = np.exp(log_knots[i - 1] + share * (log_knots[i] - log_knots[i - 1]))
    # Reached before the first knot: the first compute is an upper bound.
    when = np.where(above[:, 0], np.exp(log_knots[0]), when)
    when = np.where(ever, when, np.inf)
    low, mid, high = quantiles_with_inf(when, (tails(level)[0], 0.5, tails(level)[1]))
    return Target(score, float(ever.mean()), mid, (low, high))


def quantiles_with_inf(values: Array, levels: Sequence[float]) -> list[float]:
    """Quantiles of values that may be infinite."""
    # Order statistics without interpolation, which towards inf would give nan.
    ordered = np.sort(values)
    index = [min(int(np.ceil(p * (len(ordered) - 1))), len(ordered) - 1) for p in levels]
    return [float(ordered[i]) for i in index]


def gain(f: Fit, multiple: float) -> Gain:
    """The gain in pass rate from continuing to `multiple` times the compute spent."""
    levels = f.predictive.levels(np.array([f.end, multiple * f.end]))
    low, mid, high = sample_quantiles(
        levels[:, 1] - levels[:, 0], (tails(f.level)[0], 0.5, tails(f.level)[1])
    )
    return Gain(multiple * f.end, float(mid), (float(low), float(high)))


def beats(a: Fit, b: Fit, compute: float) -> float:
    """Probability that run `a` scores higher than run `b` at this compute."""
    at = np.array([float(compute)])
    la, lb = a.predictive.levels(at)[:, 0], b.predictive.levels(at)[:, 0]
    # Methods may have different numbers of draws.
    n = min(len(la), len(lb))
    return float((la[:n] > lb[:n]).mean() + 0.5 * (la[:n] == lb[:n]).mean())


def recommend(f: Fit, price: float, value: float) -> Recommendation:
    """Stop, or continue to the compute with the best expected value of gain minus cost."""
    if price < 0 or value < 0:
        raise InputError("price and value must be 0 or more")
    if f.alarm is not None:
        return Recommendation("stop", f.end, 0.0, 0.0, f"{f.alarm}: find the cause first")
    ends = f.end * np.array((1.0, *MULTIPLES))
    levels = f.predictive.levels(ends)
    net = 100.0 * value * (levels[:, 1:] - levels[:, :1]) - price * (ends[1:] - f.end)
    expected = net.mean(axis=0)
    best = int(np.argmax(expected))
    pays = float((net[:, best] > 0).mean())
    more = ends[1:][best]
    if expected[best] <= 0:
        return Recommendation(
            "stop", f.end, 0.0, pays, "no amount of further compute is expected to pay for itself"
        )
    return Recommendation(
        "continue",
        float(more),
        float(expected[best]),
        pays,
        f"going on to {more:.4g} is expected to be worth {expected[best]:.4g} more than it costs",
    )


@dataclass(frozen=True, slots=True)
class WindowCeiling:
    """The ceiling that another window of the same run gives."""

    window: tuple[float, float]
    a: float
    interval: tuple[float, float]

    def to_dict(self) -> dict[str, Any]:
        return {"window": list(self.window), "A": self.a, "interval": list(self.interval)}


def sensitivity(f: Fit) -> list[WindowCeiling]:
    """The ceiling when the first or the last 10 % or 25 % of the points are left out; empty for a
    law without a ceiling."""
    if "A" not in f.params:
        return []
    points = f.points
    found = []
    for first, last in ((0.1, 0.0), (0.25, 0.0), (0.0, 0.1), (0.0, 0.25)):
        lo = points.compute[int(first * len(points))]
        hi = points.compute[len(points) - 1 - int(last * len(points))]
        if len(points.window(lo, hi)) <= MIN_POINTS:
            continue
        again = fit(points, law=f.law, r0=f.r0, level=f.level, lo=float(lo), hi=float(hi))
        found.append(WindowCeiling(again.window, again.params["A"], again.interval("A")))
    return found
