"""The numbers a picture of a fit shows: points, median, bands, and the power law's answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from scalerl.curves.fit import fit as fit_run
from scalerl.curves.laws import POWER
from scalerl.curves.laws.power import PowerLaw
from scalerl.curves.prediction import MAX_KNOTS, Prediction, SigmoidPredictive, tails
from scalerl.curves.result import Fit

Array = npt.NDArray[np.float64]
#: Compute and score.
Points = tuple[Array, Array]

#: A curve is drawn at least this far beyond its window, and this far beyond a held-out point.
AHEAD = 2.0
BEYOND_HELD = 1.3
#: Beside longer runs, a short one is drawn at most this many times beyond its own window.
MAX_AHEAD = 8.0
#: A knot at this many times the compute of a break lies after it.
AFTER_BREAK = 1.002
#: Most measured points at which a curve has a knot. Between two points the posterior is nearly
#: straight in ln C, so a curve with a knot at every point does not leave points that stay level.
POINT_KNOTS = 40
#: Evenly spaced knots inside the window: the law bends between points that are far apart.
LAW_KNOTS = 20
#: Knots of the forecast.
AHEAD_KNOTS = 24


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class DrawnCurve:
    """One run, or the mean of the seeds of a variant, as it is drawn."""

    name: str
    x_kind: str
    #: Points that were fitted, and held out.
    used: Points
    held: Points
    #: Compute at the end of the fitted window.
    end: float
    #: Ascending amounts of compute, and the curve there.
    x: Array
    median: Array
    #: (knots, 2): interval of the true pass rate, and of one evaluation.
    band: Array
    seen: Array
    #: The ceiling and its interval, where the points identify it.
    ceiling: tuple[float, float, float] | None
    alarm: str | None = None
    #: Amounts of compute at which the run was changed.
    breaks: tuple[float, ...] = ()
    power: PowerLaw | None = None
    #: The law alone at the knots inside the window: `median` has the run's departure from it as
    #: well, and so bends where the points do. Empty for a law without such a departure.
    law: Array = field(default_factory=lambda: np.empty(0))

    @property
    def inside(self) -> npt.NDArray[np.bool_]:
        """The knots inside the window."""
        return self.x <= self.end

    @property
    def ahead(self) -> npt.NDArray[np.bool_]:
        """The knots of the forecast: those after the window, and the last one inside."""
        ahead = ~self.inside
        ahead[np.flatnonzero(self.inside)[-1]] = True  # without it, the two lines would not meet
        return ahead

    def power_curve(self) -> Array:
        """The power law at `x`; nan where it falls below 0, as it does at small compute."""
        assert self.power is not None
        y = self.power.value(self.x)
        return np.where(y >= 0.0, y, np.nan)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Series(DrawnCurve):
    """The curve of a fit, at the knots of `curve_knots`."""

    fit: Fit


def drawn_until(fit: Fit) -> float:
    """How far a picture of this fit goes."""
    return max(AHEAD * fit.end, BEYOND_HELD * float(fit.run.compute[-1]))


def series(fit: Fit, to: float | None = None, at: Sequence[float] = ()) -> Series:
    """The curve of a fit as it is drawn, up to the compute `to` (by default `drawn_until`).

    The curve has knots at the amounts `at` of a forecast, so that the chart shows there exactly
    what the tables say.
    """
    lo, hi = fit.window
    run, points = fit.run, fit.points
    outside = (run.compute < lo) | (run.compute > hi)
    x = curve_knots(fit, to, at)
    parts = predictions(fit, x)
    ceiling = (fit.params["A"], *fit.interval("A")) if fit.identified else None
    return Series(
        fit=fit,
        name=fit.name,
        x_kind=run.x_kind,
        end=hi,
        ceiling=ceiling,
        alarm=fit.alarm,
        breaks=run.breaks,
        used=(points.compute, points.score),
        held=(run.compute[outside], run.score[outside]),
        x=x,
        median=np.concatenate([p.median for p in parts]),
        band=np.concatenate([p.interval() for p in parts]),
        seen=np.concatenate([p.interval(observed=True) for p in parts]),
        power=None if fit.law is POWER else fit_power_law(fit),
        law=_law_alone(fit, x),
    )


def _law_alone(fit: Fit, x: Array) -> Array:
    if not isinstance(fit.predictive, SigmoidPredictive):
        return np.empty(0)
    return fit.predictive.posterior.median_law(x[x <= fit.end])


def quick_curve(
    fit: Fit, to: float | None = None, at: Sequence[float] = ()
) -> tuple[Array, Array, Array]:
    """Compute, median and band (knots, 2) of what `series` draws, without the rest: for a picture
    that follows a drag."""
    x = curve_knots(fit, to, at)
    levels = (0.5, *tails(fit.level))
    found = np.concatenate([part.quantiles(levels) for part in predictions(fit, x)])
    return x, found[:, 0], found[:, 1:]


def curve_knots(fit: Fit, to: float | None = None, at: Sequence[float] = ()) -> Array:
    """Ascending amounts of compute at which the curve of a fit is drawn, everywhere the same: the
    measured points, and between and after them as many as make a smooth line; the amounts `at` of a
    forecast, so that the chart has exactly the numbers of the tables; both sides of a break, so
    that a jump is drawn upright."""
    points, hi = fit.points, fit.end
    positive = points.compute[points.compute > 0]
    far = max(drawn_until(fit) if to is None else to, 1.01 * hi)
    sides = [c for b in points.breaks for c in (b, AFTER_BREAK * b)]
    # The axis is logarithmic: a curve cannot begin at zero compute.
    extra = np.array([c for c in (*at, *sides) if positive[0] < c <= far])
    return np.unique(np.concatenate([inside_knots(positive), ahead_knots(hi, far), extra]))


def inside_knots(compute: Array) -> Array:
    """Knots from the first to the last of these ascending amounts, above 0."""
    picked, _ = downsample(compute, compute, POINT_KNOTS)
    even = np.geomspace(compute[0], compute[-1], LAW_KNOTS)
    # geomspace rounds its ends: the last knot of the window must not lie beyond it.
    return np.union1d(picked, even[1:-1])


def ahead_knots(end: float, far: float) -> Array:
    """Knots after `end`, closer together near it: the band opens there like a square root."""
    share = np.linspace(0.0, 1.0, AHEAD_KNOTS + 1)[1:]
    return end * np.exp(np.log(far / end) * share**2)


def predictions(fit: Fit, x: Array) -> list[Prediction]:
    """Predictions that hold every one of these amounts as a knot: `Fit.predict` samples at
    MAX_KNOTS amounts of a longer list, and interpolates."""
    return [fit.predict(part) for part in np.array_split(x, -(-len(x) // MAX_KNOTS))]


def fit_power_law(fit: Fit) -> PowerLaw:
    """The power law fitted to the same window."""
    other = fit_run(fit.run, law=POWER, lo=fit.window[0], hi=fit.window[1])
    return PowerLaw(**other.params)


def series_of_runs(
    fits: Sequence[Fit], at: Sequence[Sequence[float]] | None = None
) -> list[Series]:
    """All runs drawn over a common range per kind of compute, as far as their own windows carry;
    `at` are the amounts of each one's forecast."""
    asked = list(zip(fits, [()] * len(fits) if at is None else at, strict=True))
    far: dict[str, float] = {}
    for f, knots in asked:
        far[f.run.x_kind] = max(far.get(f.run.x_kind, 0.0), drawn_until(f), *knots)
    return [
        series(f, max(drawn_until(f), min(far[f.run.x_kind], MAX_AHEAD * f.end)), knots)
        for f, knots in asked
    ]


def downsample(x: Array, y: Array, most: int) -> tuple[Array, Array]:
    """At most `most` of the points, evenly picked, first and last kept."""
    if len(x) <= most:
        return x, y
    keep = np.unique(np.linspace(0, len(x) - 1, most).round().astype(int))
    return x[keep], y[keep]
