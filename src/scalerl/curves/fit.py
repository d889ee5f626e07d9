"""fit: from the points of a run to a Fit, which knows its law, how sure it is, and what comes next.

Two methods. "posterior" (ours, the default) gives the exact posterior of the sigmoid with honest
noise (posterior.py). "paper" is the paper's own procedure (paper.py), to check published numbers.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from scalerl.curves import least_squares as lsq
from scalerl.curves import paper
from scalerl.curves.alarm import Decline, find_decline
from scalerl.curves.beliefs import (
    Belief,
    NoChangeBelief,
    PointBelief,
    SigmoidBelief,
    normal_quantiles,
    sample_quantiles,
)
from scalerl.curves.forecast import Forecast, forecast_at, tails
from scalerl.curves.laws import Law, NoChange, PowerLaw, Sigmoid
from scalerl.curves.noise import prepare
from scalerl.curves.paths import Future
from scalerl.curves.posterior import DRAWS, Priors, sample_posterior
from scalerl.errors import InputError
from scalerl.runs.record import ComputeKind, Run

Array = npt.NDArray[np.float64]
LawName = Literal["sigmoid", "power", "no-change"]
MethodName = Literal["posterior", "paper"]
R0Choice = float | Literal["first", "fit"] | None

#: Fewer points than this cannot tell a law from noise.
MIN_POINTS = 5
#: The ceiling counts as identified when its 90 % interval is no wider than this.
IDENTIFIED_WIDTH = 0.10
#: An upper end of C_mid beyond this many times the window is set by the prior, not by the data.
OPEN_MID = 12.0


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """A law fitted to a run.

    >>> from scalerl import fit, load_run
    >>> f = fit(load_run("example:paper-8b"), lo=1500)
    >>> f.identified, f.law
    (True, 'sigmoid')
    >>> low, high = f.quantiles("A", [0.05, 0.95])
    >>> bool(low < 0.645 < high)
    True
    """

    #: The whole run; the fit used only the points inside `window`.
    run: Run
    window: tuple[float, float]
    law: LawName
    method: MethodName
    level: float
    #: "measured" (an evaluation at C = 0), "given", "first" (score of the window) or "fitted".
    r0_source: str
    params: dict[str, float]
    identified: bool
    alarm: str | None
    rmse: float
    warnings: tuple[str, ...]
    belief: Belief = field(repr=False)
    seed: int = field(repr=False, default=0)
    decline: Decline | None = field(repr=False, default=None)
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

    def quantiles(self, name: str, levels: npt.ArrayLike) -> Array:
        """Quantiles of "A" (where the run is heading), "B", "C_mid" or "R_0"."""
        if name not in self.params:
            raise InputError(f"no parameter {name!r}: choose one of {', '.join(self.params)}")
        return sample_quantiles(self.belief.parameter(name), levels)

    def interval(self, name: str, level: float | None = None) -> tuple[float, float]:
        """Central interval of a parameter; its upper end is inf where the data do not bound it."""
        low, high = self.quantiles(name, tails(self.level if level is None else level))
        if name == "C_mid" and high > OPEN_MID * self.end:
            high = np.inf
        return float(low), float(high)

    def forecast(self, at: npt.ArrayLike) -> Forecast:
        """The pass rate at these amounts of compute, inside the window or beyond it."""
        compute = np.atleast_1d(np.asarray(at, dtype=np.float64))
        if compute.size == 0 or not np.isfinite(compute).all() or (compute < 0).any():
            raise InputError("forecast needs one or more finite amounts of compute, 0 or more")
        return forecast_at(
            self.belief,
            compute,
            self.end,
            run=self.name,
            level=self.level,
            seed=self.seed,
            alarm=self.alarm,
        )

    def least_squares(self) -> lsq.PointFit:
        """The law with the smallest sum of squares on the window, R_0 as in the fit."""
        points = self.points
        if self.law == "power":
            return lsq.fit_power(points.compute, points.score)
        fixed = self.params["R_0"] if self.r0_source in ("given", "first") else None
        return lsq.fit_sigmoid(points.compute, points.score, r0=fixed)

    def to_dict(self) -> dict[str, Any]:
        bounds = {
            k: [_finite(v) for v in self.interval(k)]
            for k in ("A", "B", "C_mid")
            if k in self.params
        }
        return {
            "run": self.name,
            "law": self.law,
            "method": self.method,
            "x": self.run.x_kind,
            "n_points": len(self.points),
            "window": list(self.window),
            "params": dict(self.params),
            "intervals": bounds,
            "level": self.level,
            "identified": self.identified,
            "alarm": self.alarm,
            "rmse": self.rmse,
            "warnings": list(self.warnings),
            "r0_source": self.r0_source,
            "group": self.run.group,
            "notes": list(self.run.notes),
        }

    def plot(self, path: str | None = None) -> Any:
        """Draw points, fit, band and ceiling; returns the matplotlib figure."""
        from scalerl.report.figures import plot_fit

        return plot_fit(self, path)

    def __repr__(self) -> str:
        text = [f"Fit of {self.name!r}: {self.law}, {len(self.points)} points, {self.run.x_kind}"]
        for name, value in self.params.items():
            low, high = self.interval(name)
            text.append(f"  {name:6s} {value:10.5g}  {self.level:.0%} [{low:.5g}, {high:.5g}]")
        if not self.identified:
            text.append("  the ceiling is not identified by these points")
        return "\n".join(text)


def _finite(value: float) -> float | None:
    """JSON has no infinity: an open end is null."""
    return float(value) if np.isfinite(value) else None


@overload
def fit(
    compute: Run,
    score: None = None,
    n_eval: None = None,
    r0: R0Choice = None,
    *,
    law: LawName = ...,
    method: MethodName = ...,
    level: float = ...,
    lo: float | None = ...,
    hi: float | None = ...,
    a_grid: npt.ArrayLike | None = ...,
    mid_grid: npt.ArrayLike | None = ...,
    progress: Callable[[float], None] | None = ...,
) -> Fit: ...
@overload
def fit(
    compute: npt.ArrayLike,
    score: npt.ArrayLike,
    n_eval: npt.ArrayLike | None = None,
    r0: R0Choice = None,
    *,
    law: LawName = ...,
    method: MethodName = ...,
    level: float = ...,
    lo: float | None = ...,
    hi: float | None = ...,
    name: str = ...,
    x_kind: ComputeKind = ...,
    a_grid: npt.ArrayLike | None = ...,
    mid_grid: npt.ArrayLike | None = ...,
    progress: Callable[[float], None] | None = ...,
) -> Fit: ...
def fit(
    compute: Any,
    score: npt.ArrayLike | None = None,
    n_eval: npt.ArrayLike | None = None,
    r0: R0Choice = None,
    *,
    law: LawName = "sigmoid",
    method: MethodName = "posterior",
    level: float = 0.9,
    lo: float | None = None,
    hi: float | None = None,
    name: str = "run",
    x_kind: ComputeKind = "unknown",
    a_grid: npt.ArrayLike | None = None,
    mid_grid: npt.ArrayLike | None = None,
    progress: Callable[[float], None] | None = None,
) -> Fit:
    """Fit a law to one run: `fit(run)`, or `fit(compute, score, n_eval)` with plain arrays.

    r0     a number: the score at zero compute is known; "first": it is the first score of the
           window; "fit": it is a free parameter. By default free, steadied by an evaluation at C = 0
           where there is one (method "paper": that evaluation, or what the source states, or first).
    lo, hi use only the points with lo <= compute <= hi.
    a_grid, mid_grid   the grids of method "paper", else the paper's own or rescaled ones.

    >>> import numpy as np
    >>> c = np.linspace(500, 60000, 40)
    >>> f = fit(c, 0.3 + 0.345 / (1 + (8000 / c) ** 1.7))
    >>> round(f.params["A"], 2)
    0.64
    """
    run = compute if isinstance(compute, Run) else _as_run(compute, score, n_eval, name, x_kind)
    _check_options(r0, level, law, method)
    if method == "paper" and law != "sigmoid":
        raise InputError("method 'paper' fits the sigmoid only: drop --law or --method")
    paper_scale = len(run) > 0 and paper.is_paper_scale(run.compute, run.score, run.x_kind)
    notes: list[str] = []
    if lo is None and method == "paper" and paper_scale:
        lo = paper.PAPER_CUT
        notes.append(
            f"points below {lo:g} GPU-hours left out, as in the paper (--from 0 keeps them)"
        )
    inside = run.window(lo, hi)
    _check_points(inside, run, lo, hi)
    window = (float(inside.compute[0]), float(inside.compute[-1]))
    common = _Common(run, inside, window, level, r0, tuple(notes))
    if law == "power":
        return _fit_power(common)
    if law == "no-change":
        return _fit_no_change(common)
    if method == "paper":
        return _fit_paper(common, paper_scale, a_grid, mid_grid, progress)
    return _fit_posterior(common)


def fit_all(
    runs: Iterable[Run], progress: Callable[[float], None] | None = None, **options: Any
) -> list[Fit]:
    """`fit` for many runs, with the same options. Cost: about 5 ms a run."""
    items = list(runs)
    fits = []
    for i, run in enumerate(items):
        fits.append(fit(run, **options))
        if progress is not None:
            progress((i + 1) / len(items))
    return fits


@dataclass(frozen=True, slots=True)
class _Common:
    """What every method needs."""

    run: Run
    inside: Run
    window: tuple[float, float]
    level: float
    r0: R0Choice
    notes: tuple[str, ...]

    @property
    def seed(self) -> int:
        """From the data, so that the same points give the same answer and other points other luck."""
        return zlib.crc32(self.inside.compute.tobytes() + self.inside.score.tobytes())

    def decline(self) -> Decline | None:
        points = prepare(self.inside.compute, self.inside.score, self.inside.n_eval)
        return find_decline(self.inside.compute, self.inside.score, points)

    def build(
        self,
        law: LawName,
        method: MethodName,
        belief: Belief,
        params: dict[str, float],
        curve: Array,
        decline: Decline | None,
        r0_source: str,
        identified: bool,
        warnings: Iterable[str] = (),
    ) -> Fit:
        found = [*self.notes, *warnings]
        if decline is not None:
            found.append(
                "the law describes healthy runs; do not read a ceiling off a declining one"
            )
        if len(self.inside) < 10:
            found.append(
                f"only {len(self.inside)} points: intervals rest on the prior more than usual"
            )
        return Fit(
            run=self.run,
            window=self.window,
            law=law,
            method=method,
            level=self.level,
            r0_source=r0_source,
            params=params,
            identified=identified,
            alarm=None if decline is None else str(decline),
            rmse=float(np.sqrt(np.mean((curve - self.inside.score) ** 2))),
            warnings=tuple(found),
            belief=belief,
            seed=self.seed,
            decline=decline,
            r0=self.r0,
        )


def _fit_posterior(c: _Common) -> Fit:
    inside = c.inside
    fixed: float | None = None
    source = "measured" if inside.compute[0] == 0 else "fitted"
    warnings = []
    if c.r0 == "first":
        fixed, source = float(inside.score[0]), "first"
    elif isinstance(c.r0, int | float):
        inside, source = _with_r0(inside, float(c.r0)), "given"
    elif source == "fitted" and c.run.r0 is not None:
        warnings.append(f"R_0 fitted; the source states {c.run.r0:g} (--r0 {c.run.r0:g} uses it)")
    points = prepare(inside.compute, inside.score, inside.n_eval)
    rng = np.random.default_rng((c.seed, 0))
    posterior = sample_posterior(
        points, float(np.log(inside.compute[-1])), fixed, rng, Priors(), DRAWS
    )
    decline = find_decline(c.inside.compute, c.inside.score, points)
    belief = SigmoidBelief(posterior, decline, Future(), c.seed)
    samples = {k: belief.parameter(k) for k in Sigmoid.names}
    params = {k: float(np.median(v)) for k, v in samples.items()}
    low, high = sample_quantiles(samples["A"], tails(0.9))
    identified = bool(high - low <= IDENTIFIED_WIDTH) and decline is None
    if not identified and decline is None:
        warnings.append(
            f"ceiling not identified: 90 % interval [{low:.2f}, {high:.2f}] is wider than "
            f"{IDENTIFIED_WIDTH:g}; train longer before quoting it"
        )
    curve = posterior.median_law(c.inside.compute)
    return c.build(
        "sigmoid", "posterior", belief, params, curve, decline, source, identified, warnings
    )


def _with_r0(run: Run, r0: float) -> Run:
    """A given R_0 is an evaluation at C = 0, as noisy as the others; it replaces one that is there."""
    positive = run.compute > 0
    n_eval = run.n_eval
    if n_eval is not None:
        n_eval = np.concatenate([[np.median(n_eval)], n_eval[positive]])
    return run.replace(
        compute=np.concatenate([[0.0], run.compute[positive]]),
        score=np.concatenate([[r0], run.score[positive]]),
        n_eval=n_eval,
    )


def _fit_paper(
    c: _Common,
    paper_scale: bool,
    a_grid: npt.ArrayLike | None,
    mid_grid: npt.ArrayLike | None,
    progress: Callable[[float], None] | None,
) -> Fit:
    inside = c.inside
    warnings = []
    if isinstance(c.r0, int | float):
        r0, source = float(c.r0), "given"
    elif c.r0 == "fit":
        raise InputError("method 'paper' takes R_0 as known: give --r0 a number, or 'first'")
    elif c.r0 is None and c.run.r0 is not None:
        r0, source = c.run.r0, "given"
    elif c.r0 is None and c.run.compute[0] == 0:
        r0, source = float(c.run.score[0]), "measured"
    else:
        r0, source = float(inside.score[0]), "first"
        warnings.append(f"R_0 taken from the first score ({r0:.3f}): the ceiling depends on it")
    default_a, default_mid = paper.grids(inside.compute, inside.score, r0, paper_scale)
    if not paper_scale and a_grid is None:
        warnings.append("the paper's grids are for its own scale: rescaled to these points")
    a_values = default_a if a_grid is None else np.asarray(a_grid, dtype=np.float64)
    mids = default_mid if mid_grid is None else np.asarray(mid_grid, dtype=np.float64)
    found = paper.fit_paper(inside.compute, inside.score, r0, a_values, mids, progress)
    return _paper_result(c, found, source, warnings)


def fit_paper_run(run: Run) -> Fit:
    """The rival of the back-tests: the paper's cells by the fast search, R_0 = first evaluation."""
    window = (float(run.compute[0]), float(run.compute[-1]))
    c = _Common(run, run, window, 0.9, "first", ())
    r0 = float(run.score[0])
    grids = paper.grids(run.compute, run.score, r0, paper_scale=False)
    return _paper_result(c, paper.fit_paper_fast(run.compute, run.score, r0, *grids), "first", [])


def _paper_result(c: _Common, found: paper.PaperFit, source: str, warnings: list[str]) -> Fit:
    inside = c.inside
    degrees = max(len(inside) - 3, 1)
    sd = float(np.sqrt(found.sse / degrees))
    # A cell is as plausible as its sum of squares says, were the noise independent.
    excess = (found.sse_grid - found.sse) / max(found.sse / degrees, 1e-12)
    weight = np.exp(-0.5 * np.minimum(excess, 1400.0)).ravel()
    total = np.cumsum(weight)
    n = len(normal_quantiles())
    cells = np.minimum(np.searchsorted(total, (np.arange(n) + 0.5) / n * total[-1]), len(total) - 1)
    i, j = np.unravel_index(cells, found.sse_grid.shape)
    law = found.law
    samples = {
        "R_0": np.full(n, law.R_0),
        "A": found.a_grid[i],
        "B": found.b_grid[i, j],
        "C_mid": found.mid_grid[j],
    }
    if law.A in (found.a_grid[0], found.a_grid[-1]) or law.C_mid in (
        found.mid_grid[0],
        found.mid_grid[-1],
    ):
        warnings.append("the best cell lies on the edge of the grid: the optimum may be outside")
    low, high = np.quantile(samples["A"], tails(0.9))
    # The paper's own practice: its fits end at 1.4 to 4.6 C_mid, and 3 is where A can be quoted.
    identified = bool(high - low <= IDENTIFIED_WIDTH and c.window[1] >= 3.0 * law.C_mid)
    if not identified:
        warnings.append(
            f"ceiling not identified: the window ends at {c.window[1] / law.C_mid:.1f} C_mid"
        )
    return c.build(
        "sigmoid",
        "paper",
        PointBelief(law, sd, samples),
        law.params(),
        law.value(inside.compute),
        c.decline(),
        source,
        identified,
        warnings,
    )


def _fit_power(c: _Common) -> Fit:
    inside = c.inside
    found = lsq.fit_power(inside.compute, inside.score)
    law = found.law
    assert isinstance(law, PowerLaw)
    positive = inside.compute > 0
    sd = float(np.sqrt(found.sse / max(int(positive.sum()) - 3, 1)))
    n = len(normal_quantiles())
    samples = {k: np.full(n, v) for k, v in law.params().items()}
    warnings = ["the power law's ceiling comes without an honest interval: compare the sigmoid's"]
    if law.A >= 1.0 - 1e-9:
        warnings.append("the power law's ceiling ran into 1: not identified")
    return c.build(
        "power",
        "posterior",
        PointBelief(law, sd, samples),
        law.params(),
        _value_from_positive(law, inside.compute),
        c.decline(),
        "none",
        False,
        warnings,
    )


def _value_from_positive(law: Law, compute: Array) -> Array:
    """The law's values, with that of the first positive compute standing in at C = 0."""
    return law.value(np.maximum(compute, compute[compute > 0][0]))


def _fit_no_change(c: _Common) -> Fit:
    inside = c.inside
    law = NoChange.starting_values(inside.compute, inside.score)
    points = prepare(inside.compute, inside.score, inside.n_eval)
    belief = NoChangeBelief(law, points, float(np.log(inside.compute[-1])))
    return c.build(
        "no-change",
        "posterior",
        belief,
        law.params(),
        law.value(inside.compute),
        c.decline(),
        "none",
        False,
        ["a reference, not a forecast"],
    )


def _as_run(
    compute: npt.ArrayLike,
    score: npt.ArrayLike | None,
    n_eval: npt.ArrayLike | None,
    name: str,
    x_kind: ComputeKind,
) -> Run:
    if score is None:
        raise InputError("fit needs scores beside the compute: fit(compute, score), or fit(run)")
    try:
        x = np.asarray(compute, dtype=np.float64).ravel()
        y = np.asarray(score, dtype=np.float64).ravel()
        n = None if n_eval is None else np.asarray(n_eval, dtype=np.float64).ravel()
    except (TypeError, ValueError):
        raise InputError("compute, score and n_eval must be numbers") from None
    if n is not None and n.size == 1:
        n = np.full(len(x), float(n[0]))
    if len(x) != len(y) or (n is not None and len(n) != len(x)):
        raise InputError(f"compute has {len(x)} values and score {len(y)}: they must pair up")
    keep = np.isfinite(x) & np.isfinite(y)
    if n is not None and not (n[keep] > 0).all():
        raise InputError("n_eval must be positive: the number of samples behind each score")
    notes = () if keep.all() else (f"{int((~keep).sum())} points without a finite value dropped",)
    x, y = x[keep], y[keep]
    n = None if n is None else n[keep]
    if (x < 0).any():
        raise InputError("compute must be 0 or more")
    if len(y) and (y.min() < -1e-9 or y.max() > 1.0 + 1e-9):
        raise InputError(
            f"scores must lie in [0, 1], these reach {y.min():g}..{y.max():g}: "
            "divide percent by 100, map a +-1 reward by (r + 1) / 2"
        )
    # For equal compute the later value counts: a resumed run logs the same step again.
    last = {float(v): i for i, v in enumerate(x)}
    order = np.array([last[v] for v in sorted(last)], dtype=np.intp)
    return Run(
        name,
        compute=x[order],
        score=np.clip(y[order], 0.0, 1.0),
        n_eval=None if n is None else n[order],
        x_kind=x_kind,
        notes=notes,
    )


def _check_options(r0: R0Choice, level: float, law: str, method: str) -> None:
    if isinstance(r0, str) and r0 not in ("first", "fit"):
        raise InputError(f"r0 must be a number, 'first' or 'fit', not {r0!r}")
    if isinstance(r0, int | float) and not 0.0 <= r0 <= 1.0:
        raise InputError(f"r0 is a score: it must lie in [0, 1], not {r0:g}")
    if not 0.0 < level < 1.0:
        raise InputError(f"level must lie between 0 and 1 (0.9 for 90 %), not {level:g}")
    if law not in ("sigmoid", "power", "no-change"):
        raise InputError(f"law must be sigmoid, power or no-change, not {law!r}")
    if method not in ("posterior", "paper"):
        raise InputError(f"method must be posterior or paper, not {method!r}")


def _check_points(inside: Run, run: Run, lo: float | None, hi: float | None) -> None:
    if len(inside) >= MIN_POINTS and int((inside.compute > 0).sum()) >= MIN_POINTS - 1:
        return
    where = ""
    if len(run):
        where = f" (the run has {len(run)}, at {run.compute[0]:g} to {run.compute[-1]:g})"
    window = "" if lo is None and hi is None else " in this window"
    raise InputError(
        f"run {run.name!r} has {len(inside)} points{window}{where}: a fit needs at least "
        f"{MIN_POINTS}; evaluate more often or widen --from/--to"
    )
