"""The numbers a picture of a fit shows: points, median, bands, and the power law's answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from scalerl.curves.fit import fit as fit_run
from scalerl.curves.laws import POWER
from scalerl.curves.laws.power import PowerLaw
from scalerl.curves.prediction import MAX_KNOTS, SigmoidPredictive, tails
from scalerl.curves.result import Fit

Array = npt.NDArray[np.float64]
#: Compute and score.
Points = tuple[Array, Array]

#: A curve is drawn at least this far beyond its window, and this far beyond a held-out point.
AHEAD = 2.0
BEYOND_HELD = 1.3
#: Beside longer runs, a short one is drawn at most this many times beyond its own window.
MAX_AHEAD = 8.0


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
    """The curve of a fit: 2 x MAX_KNOTS knots, and those of the forecast."""

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
    # The axis is logarithmic: a curve cannot begin at zero compute.
    first = float(points.compute[points.compute > 0][0])
    far = max(drawn_until(fit) if to is None else to, 1.01 * hi)
    extra = np.array(sorted({c for c in at if first < c <= far})[:MAX_KNOTS])
    grids = [np.geomspace(first, hi, MAX_KNOTS), np.geomspace(hi, far, MAX_KNOTS + 1)[1:], extra]
    # No more than MAX_KNOTS in one prediction, or its knots are thinned.
    parts = [fit.predict(grid) for grid in grids if len(grid)]
    # The grids may share knots, and those of the forecast lie between the others.
    x, order = np.unique(np.concatenate([p.compute for p in parts]), return_index=True)
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
        median=np.concatenate([p.median for p in parts])[order],
        band=np.concatenate([p.interval() for p in parts])[order],
        seen=np.concatenate([p.interval(observed=True) for p in parts])[order],
        power=None if fit.law is POWER else fit_power_law(fit),
        law=_law_alone(fit, x),
    )


def _law_alone(fit: Fit, x: Array) -> Array:
    if not isinstance(fit.predictive, SigmoidPredictive):
        return np.empty(0)
    return fit.predictive.posterior.median_law(x[x <= fit.end])


def quick_curve(fit: Fit, to: float | None = None) -> tuple[Array, Array, Array]:
    """Compute, median and band (knots, 2) of what `series` draws, in one prediction: for a picture
    that follows a hand."""
    hi = fit.end
    points = fit.points.compute
    first = float(points[points > 0][0])
    far = max(drawn_until(fit) if to is None else to, 1.01 * hi)
    half = MAX_KNOTS // 2
    x = np.concatenate([np.geomspace(first, hi, half), np.geomspace(hi, far, half + 1)[1:]])
    levels = fit.predict(x).quantiles((0.5, *tails(fit.level)))
    return x, levels[:, 0], levels[:, 1:]


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
