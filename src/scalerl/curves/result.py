"""Fit, the result of fitting a law to a run, and Window, the input of a fitting method."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from scalerl.curves.alarm import AlarmSpan, Fall, alarm_history, find_fall
from scalerl.curves.formula import Array, Formula, PointFit
from scalerl.curves.identified import NO_GAIN
from scalerl.curves.noise import BinnedCurve, bin_curve
from scalerl.curves.posterior import DRAWS
from scalerl.curves.prediction import (
    MAX_KNOTS,
    Prediction,
    Predictive,
    SigmoidPredictive,
    choose_knots,
    levels_apart,
    sample_quantiles,
    tails,
)
from scalerl.curves.priors import CurvePriors
from scalerl.curves.warning_signs import WarningSign
from scalerl.errors import InputError
from scalerl.renamed import renamed_attributes
from scalerl.runs.record import Run

if TYPE_CHECKING:
    from scalerl.curves.laws.law import Law

R0Choice = float | Literal["first", "fit"] | None

#: An upper end of C_mid beyond this many times the window comes from the prior, not from the data,
#: and is reported as unbounded.
OPEN_MID = 12.0
#: A fit of fewer points than this carries a warning.
FEW_POINTS = 10


#: Parts of the points in which the curve through them is evaluated for its RMSE.
RMSE_PARTS = 8
#: Most points at which it is evaluated; between them it is interpolated.
RMSE_POINTS = RMSE_PARTS * MAX_KNOTS


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """A law fitted to a run.

    >>> from scalerl import fit, load_run
    >>> f = fit(load_run("example:paper-8b"), lo=1500)
    >>> f.identified, f.law.name
    (True, 'sigmoid')
    >>> low, high = f.quantiles("A", [0.05, 0.95])
    >>> bool(0.62 < low < high < 0.70)
    True
    """

    #: The whole run; the fit used only the points inside `window`.
    run: Run
    #: First and last compute of the fitted points.
    window: tuple[float, float]
    law: Law
    #: Name of the method, one of `law.methods`.
    method: str
    #: Probability of the intervals, 0.9 by default.
    level: float
    #: "measured" (an evaluation at C = 0), "given", "first" (score of the window) or "fitted".
    r0_source: str
    #: Median of each parameter.
    params: dict[str, float]
    #: Whether the ceiling A may be quoted.
    identified: bool
    #: Why the decline alarm is on; None: it is off.
    alarm: str | None
    #: RMSE of the points about the law, without residuals.
    law_rmse: float
    #: Caveats, as sentences.
    warnings: tuple[str, ...]
    #: Where the law begins: (share of the compute before it, probability), the smallest share
    #: first; empty for methods that assume it begins at the first point.
    early: tuple[tuple[float, float], ...] = ()
    #: Probability that no gain is under way.
    no_gain: float = 0.0
    #: Side metrics that have left their usual range: a fall is likelier.
    signs: tuple[WarningSign, ...] = ()
    predictive: Predictive = field(repr=False, kw_only=True)
    seed: int = field(repr=False, default=0)
    r0: R0Choice = field(repr=False, default=None)

    @property
    def name(self) -> str:
        return self.run.name

    @property
    def points(self) -> Run:
        """The points the fit used."""
        return self.run.window(*self.window)

    @property
    def end(self) -> float:
        """The last compute of the fitted window."""
        return self.window[1]

    @property
    def law_begins(self) -> float:
        """Compute at which the law begins: the likeliest of `early`."""
        return max(self.early, key=lambda cut: cut[1])[0] * self.end if self.early else 0.0

    @property
    def alarms(self) -> tuple[AlarmSpan, ...]:
        """Every time the alarm was on while the points came in."""
        points = self.points
        return alarm_history(points.compute, points.score, points.n_eval, points.breaks)

    @property
    def rmse(self) -> float:
        """RMSE of the points above C = 0 about the curve drawn through them: the median of
        `predict`."""
        points = self.points
        shown = points.compute > 0
        compute, score = points.compute[shown], points.score[shown]
        # `predict` samples at MAX_KNOTS amounts of a longer list, and interpolates: in parts of
        # that size the median is exact at each point, as in the pictures.
        parts = np.array_split(compute[:: -(-len(compute) // RMSE_POINTS)], RMSE_PARTS)
        known = [(part, self.predict(part).median) for part in parts if len(part)]
        x, median = (np.concatenate(each) for each in zip(*known, strict=True))
        gap = np.interp(np.log(compute), np.log(x), median) - score
        return float(np.sqrt(np.mean(gap**2)))

    def quantiles(self, name: str, levels: npt.ArrayLike) -> Array:
        """Quantiles of "A" (the ceiling if the run stays healthy), "B", "C_mid" or "R_0"."""
        if name not in self.params:
            raise InputError(f"no parameter {name!r}: choose one of {', '.join(self.params)}")
        return sample_quantiles(self.predictive.parameter(name), levels)

    def interval(self, name: str, level: float | None = None) -> tuple[float, float]:
        """Central interval of a parameter; its upper end is inf where the data do not bound it."""
        low, high = self.quantiles(name, tails(self.level if level is None else level))
        if name == "C_mid" and high > OPEN_MID * self.end:
            high = np.inf
        return float(low), float(high)

    def predict(self, compute: npt.ArrayLike, *, healthy: bool = False) -> Prediction:
        """The pass rate at these amounts of compute, inside the window or beyond it. All things
        considered, it includes runs that fall; `healthy` leaves these out."""
        at = np.atleast_1d(np.asarray(compute, dtype=np.float64))
        if at.size == 0 or not np.isfinite(at).all() or (at < 0).any():
            raise InputError("predict needs one or more finite amounts of compute, 0 or more")
        knots = choose_knots(at)
        predictive = self.predictive
        if healthy and isinstance(predictive, SigmoidPredictive):
            predictive = predictive.healthy()
        return Prediction(
            run=self.name,
            compute=at,
            level=self.level,
            knots=knots,
            samples=levels_apart(predictive, knots),
            noise_sd=predictive.noise(),
            seed=self.seed,
            predictive=predictive,
            end=self.end,
            alarm=self.alarm,
        )

    def fall_probability(self, compute: float) -> float | None:
        """Probability that the run falls before this compute, or has fallen already; None for laws
        that know no falls."""
        if not isinstance(self.predictive, SigmoidPredictive):
            return None
        return self.predictive.fall_probability(compute)

    if not TYPE_CHECKING:  # type checkers would take any attribute for an old name
        __getattr__ = renamed_attributes({"forecast": "predict", "belief": "predictive"}, "0.4")

    def least_squares(self) -> PointFit[Formula]:
        """The least-squares curve of the law on the window, with R_0 as in the fit."""
        points = self.points
        known = self.params["R_0"] if self.r0_source in ("given", "first") else None
        return self.law.least_squares(points.compute, points.score, known)

    def to_dict(self) -> dict[str, Any]:
        bounds = {
            k: [finite_or_none(v) for v in self.interval(k)]
            for k in ("A", "B", "C_mid")
            if k in self.params
        }
        return {
            "run": self.name,
            "law": self.law.name,
            "method": self.method,
            "x": self.run.x_kind,
            "x_name": self.run.x_name,
            "y_name": self.run.y_name,
            "n_points": len(self.points),
            "window": list(self.window),
            "params": dict(self.params),
            "intervals": bounds,
            "level": self.level,
            "identified": self.identified,
            "alarm": self.alarm,
            "alarms": [span.to_dict() for span in self.alarms],
            "no_gain": self.no_gain,
            "signs": [sign.to_dict() for sign in self.signs],
            "early": [{"share": share, "probability": p} for share, p in self.early],
            "rmse": self.rmse,
            "law_rmse": self.law_rmse,
            "warnings": list(self.warnings),
            "breaks": list(self.points.breaks),
            "r0_source": self.r0_source,
            "group": self.run.group,
            "score_kind": self.run.score_kind,
            "notes": list(self.run.notes),
        }

    def plot(self, path: str | None = None) -> Any:
        """Draw points, fit, band and ceiling; returns the matplotlib figure."""
        from scalerl.report.figures import plot_fit

        return plot_fit(self, path)

    def _repr_html_(self) -> str:
        from scalerl.report.notebook import fit_html

        return fit_html(self)

    def __repr__(self) -> str:
        count = f"{len(self.points)} points"
        text = [f"Fit of {self.name!r}: {self.law.name}, {count}, {self.run.x_kind}"]
        for name, value in self.params.items():
            low, high = self.interval(name)
            text.append(f"  {name:6s} {value:10.5g}  {self.level:.0%} [{low:.5g}, {high:.5g}]")
        if self.no_gain >= NO_GAIN:
            text.append("  no gain seen; a rise cannot be excluded")
        elif not self.identified:
            text.append("  the ceiling is not identified by these points")
        return "\n".join(text)


def finite_or_none(value: float) -> float | None:
    """The value, or None if it is infinite or nan, which JSON does not have."""
    return float(value) if np.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class Window:
    """The points and options that a method fits with."""

    #: The whole run.
    run: Run
    #: The points to fit.
    inside: Run
    law: Law
    method: str
    #: Probability of the intervals.
    level: float
    #: R_0 as `fit` was given it.
    r0: R0Choice = None
    #: Caveats found before fitting.
    notes: tuple[str, ...] = ()
    #: Grid over A, for method "paper" only.
    a_grid: npt.ArrayLike | None = None
    #: Grid over C_mid, for method "paper" only.
    mid_grid: npt.ArrayLike | None = None
    #: Called with the share done, by method "paper" only: the others take milliseconds.
    progress: Callable[[float], None] | None = None
    #: Other priors than the learned ones, for calibration.
    priors: CurvePriors | None = None
    #: Number of posterior draws.
    draws: int = DRAWS
    #: Seed of the draws; None: derived from the scores.
    fixed_seed: int | None = None

    @property
    def ends(self) -> tuple[float, float]:
        """First and last compute of the points."""
        return float(self.inside.compute[0]), float(self.inside.compute[-1])

    @property
    def seed(self) -> int:
        """Seed of the draws: `fixed_seed`, or a checksum of the scores to nine digits."""
        if self.fixed_seed is not None:
            return self.fixed_seed
        # The compute is left out, so that a curve has the same draws in every unit of compute. Runs
        # must have different seeds: their draws are paired by index and must be independent.
        return zlib.crc32(np.round(self.inside.score, 9).tobytes())

    def fall(self, points: BinnedCurve | None = None) -> Fall | None:
        """The fall of the last points since the last break, if there are enough of them."""
        run = self.inside
        points = points or bin_curve(run.compute, run.score, run.n_eval, run.breaks)
        since = run.compute > (run.breaks[-1] if run.breaks else -1.0)
        return find_fall(run.compute[since], run.score[since], points)

    def build(
        self,
        predictive: Predictive,
        params: dict[str, float],
        curve: Array,
        fall: Fall | None,
        r0_source: str = "none",
        identified: bool = False,
        warnings: Iterable[str] = (),
        early: tuple[tuple[float, float], ...] = (),
        no_gain: float = 0.0,
        signs: tuple[WarningSign, ...] = (),
    ) -> Fit:
        """The Fit; `curve` is the law at the points, for its RMSE."""
        found = [*self.notes, *warnings]
        alarm = fall is not None and fall.alarm
        if alarm:
            found.append(
                "the law describes healthy runs; do not read a ceiling off a declining one"
            )
        if signs:
            found.append(
                f"signs of trouble: {'; '.join(map(str, signs))}: a fall is likelier than usual"
            )
        if len(self.inside) < FEW_POINTS:
            found.append(
                f"only {len(self.inside)} points: intervals rest on the prior more than usual"
            )
        return Fit(
            run=self.run,
            window=self.ends,
            law=self.law,
            method=self.method,
            level=self.level,
            r0_source=r0_source,
            params=params,
            identified=identified,
            alarm=str(fall) if alarm else None,
            law_rmse=float(np.sqrt(np.mean((curve - self.inside.score) ** 2))),
            warnings=tuple(found),
            early=early,
            no_gain=no_gain,
            signs=signs,
            predictive=predictive,
            seed=self.seed,
            r0=self.r0,
        )
