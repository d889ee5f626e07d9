"""Back-test: fit the first part of finished runs, predict the rest, and score the predictions.

For each run of at least MIN_RUN points and each fraction f: fit on compute <= f x the last compute
(at least MIN_WINDOW points), predict the mean score of the last tenth of the points. Scores:
absolute error of the median; CRPS as the mean of 2 x pinball loss over the levels 0.05 ... 0.95;
coverage of the 50 % and 90 % intervals; their width; skill = 1 - CRPS / CRPS of "no change". Where
a ceiling was called identified: whether the ceiling of the whole run, identified too, lies in its
interval. Whether the alarm was on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scalerl.curves import paper
from scalerl.curves.fit import fit
from scalerl.curves.formula import Array
from scalerl.curves.laws import ENSEMBLE, LINE, NO_CHANGE, POWER, SIGMOID
from scalerl.curves.noise import score_variance
from scalerl.curves.paper import fit_from_cells
from scalerl.curves.result import Fit, Window
from scalerl.errors import InputError
from scalerl.runs.record import Run

#: Fewest points of a run: enough to hold some back at every fraction.
MIN_RUN = 9
#: Fewest points of a window; see fit.MIN_POINTS, plus one.
MIN_WINDOW = 6
#: Quantile levels 0.05, 0.10 ... 0.95.
LEVELS = np.arange(1, 20) / 20.0


def _fit_paper_fast(run: Run) -> Fit:
    """The paper's procedure by its fast search, with R_0 = first evaluation."""
    r0 = float(run.score[0])
    grids = paper.grids(run.compute, run.score, r0, paper_scale=False)
    cells = paper.fit_paper_fast(run.compute, run.score, r0, *grids)
    return fit_from_cells(Window(run, run, SIGMOID, "paper", 0.9, "first"), cells, "first", [])


#: A method of the back-test: the points seen so far -> a Fit that can predict.
Forecaster = Callable[[Run], Fit]

#: Name of each method in the tables, ours last.
METHODS: dict[str, Forecaster] = {
    "no change": lambda run: fit(run, law=NO_CHANGE),
    "paper": _fit_paper_fast,
    "power law": lambda run: fit(run, law=POWER),
    "line in ln C": lambda run: fit(run, law=LINE),
    "ensemble": lambda run: fit(run, law=ENSEMBLE),
    "scalerl": lambda run: fit(run),
}


@dataclass(frozen=True, slots=True)
class BacktestScore:
    """One method on one run and fraction.

    >>> from scalerl import backtest, load_runs
    >>> score = backtest(load_runs("example:paper-8b"), [0.5], methods=["scalerl"]).scores[0]
    >>> score.fraction, score.in90, round(score.error, 2)
    (0.5, True, 0.0)
    """

    run: str
    #: Group of the run.
    source: str
    #: healthy, declining or flat.
    run_class: str
    #: Share of the compute that was fitted.
    fraction: float
    method: str
    #: Mean score of the last tenth of the points.
    truth: float
    #: Median of its prediction.
    median: float
    crps: float
    #: Whether the 50 % interval holds the truth.
    in50: bool
    #: Whether the 90 % interval holds the truth.
    in90: bool
    #: Width of the 90 % interval.
    width90: float
    #: Mean CRPS over the held-out points, one by one.
    point_crps: float
    #: Share of the held-out points inside their 90 % interval.
    point_in90: float
    #: Whether the decline alarm was on.
    alarm: bool
    #: Whether the ceiling was called identified.
    identified: bool
    #: Whether the ceiling of the whole run lies in the interval; None where either is not
    #: identified.
    ceiling_agrees: bool | None

    @property
    def error(self) -> float:
        """Absolute error of the median."""
        return abs(self.truth - self.median)


@dataclass(frozen=True, slots=True, eq=False)
class BacktestResult:
    """The result of `backtest`: one score per run, fraction and method, and summaries of them.

    >>> from scalerl import backtest, load_runs
    >>> runs = load_runs("example:paper-8b")
    >>> backtest(runs, methods=["no change", "scalerl"])  # doctest: +ELLIPSIS
    BacktestResult: 3 tasks, 0 runs skipped
      no change     median error 0.029...  CRPS 0.02...  90 % holds 1.00
      scalerl       median error 0.00...  CRPS 0.00...  90 % holds 1.00
    """

    scores: tuple[BacktestScore, ...]
    skipped: tuple[str, ...]

    def summary(self, *by: str, **only: Any) -> list[dict[str, Any]]:
        """One row per method and combination of the fields in `by`, for the scores that match
        `only`: summary("fraction", run_class="healthy")."""
        rows: dict[tuple[Any, ...], list[BacktestScore]] = {}
        for s in self.scores:
            if all(getattr(s, k) == v for k, v in only.items()):
                rows.setdefault((*(getattr(s, k) for k in by), s.method), []).append(s)
        base = {k[:-1]: _mean(v, "crps") for k, v in rows.items() if k[-1] == "no change"}
        out = []
        for key, found in rows.items():
            reference = base.get(key[:-1], float("nan"))
            crps = _mean(found, "crps")
            out.append(
                {
                    **dict(zip((*by, "method"), key, strict=True)),
                    "tasks": len(found),
                    "median_error": float(np.median([s.error for s in found])),
                    "mean_error": _mean(found, "error"),
                    "crps": crps,
                    "skill": 1.0 - crps / reference if reference > 0 else None,
                    "cover50": _mean(found, "in50"),
                    "cover90": _mean(found, "in90"),
                    "width90": _mean(found, "width90"),
                    "point_crps": _mean(found, "point_crps"),
                    "point_cover90": _mean(found, "point_in90"),
                    "identified": _mean(found, "identified"),
                    "ceiling_agrees": _share([s.ceiling_agrees for s in found]),
                    "alarms": _mean(found, "alarm"),
                }
            )
        return out

    def to_dict(self) -> dict[str, Any]:
        return {
            "overall": self.summary(),
            "by_class": self.summary("run_class"),
            "by_class_and_fraction": self.summary("run_class", "fraction"),
            "by_class_and_source": self.summary("run_class", "source"),
            "skipped": list(self.skipped),
            "scores": [
                {f: getattr(s, f) for f in BacktestScore.__dataclass_fields__} | {"error": s.error}
                for s in self.scores
            ],
        }

    def plot(self, path: str | None = None) -> Any:
        """Draw predictions against what was measured; returns the matplotlib figure."""
        from scalerl.report.comparison_figures import plot_backtest

        return plot_backtest(self, path)

    def __repr__(self) -> str:
        rows = self.summary()
        tasks = max((row["tasks"] for row in rows), default=0)
        lines = [
            f"  {row['method']:12s}  median error {row['median_error']:.4f}  "
            f"CRPS {row['crps']:.4f}  90 % holds {row['cover90']:.2f}"
            for row in rows
        ]
        head = f"BacktestResult: {tasks} tasks, {len(self.skipped)} runs skipped"
        return "\n".join([head, *lines])

    def _repr_html_(self) -> str:
        from scalerl.report.notebook import backtest_html

        return backtest_html(self)


def _mean(scores: Sequence[BacktestScore], name: str) -> float:
    return float(np.mean([getattr(s, name) for s in scores]))


def _share(found: Sequence[bool | None]) -> float | None:
    known = [v for v in found if v is not None]
    return float(np.mean(known)) if known else None


def classify(run: Run) -> str:
    """The class of a whole run: "declining" if its last tenth lies more than 4 standard errors and
    0.02 below its best tenth, "flat" if it never rose by more, otherwise "healthy"."""
    k = max(2, len(run) // 10)
    sums = np.concatenate([[0.0], np.cumsum(run.score)])
    means = (sums[k:] - sums[:-k]) / k
    # The variance of a mean of k neighbouring scores is about 2 / k, since they are correlated.
    margin = max(0.02, 4.0 * float(np.sqrt(2.0 * score_variance(run.score, run.n_eval) * 2.0 / k)))
    rise = float(means.max() - means[0])
    if means.max() - means[-1] > max(margin, 0.25 * max(rise, 0.0)):
        return "declining"
    return "healthy" if rise > margin else "flat"


def backtest(
    runs: Iterable[Run],
    fractions: Sequence[float] = (0.25, 0.5, 0.75),
    methods: Sequence[str] | Mapping[str, Forecaster] | None = None,
    classes: dict[str, str] | None = None,
    progress: Callable[[float], None] | None = None,
) -> BacktestResult:
    """Back-test the methods on these runs: names from METHODS, or forecasters of your own by the
    name that the tables give them. `classes` gives each run's class by name where it is known;
    otherwise `classify` finds it from the whole run.

    >>> from scalerl import load_runs
    >>> result = backtest(load_runs("example:paper-8b"), methods=["no change", "scalerl"])
    >>> [row["method"] for row in result.summary()]
    ['no change', 'scalerl']
    >>> from scalerl import fit
    >>> mine = {"late": lambda run: fit(run, lo=1500.0)}
    >>> backtest(load_runs("example:paper-8b"), methods=mine).summary()[0]["method"]
    'late'
    """
    forecasters = methods if isinstance(methods, Mapping) else _named(methods)
    for f in fractions:
        if not 0.0 < f < 1.0:
            raise InputError(f"a fraction of the run must lie between 0 and 1, not {f:g}")
    tasks: list[tuple[Run, float, Run, Run]] = []
    skipped = []
    for run in runs:
        before = len(tasks)
        if len(run) >= MIN_RUN:
            for f in fractions:
                window = run.window(None, f * run.compute[-1])
                if len(window) >= MIN_WINDOW:
                    rest = run.compute > f * run.compute[-1]
                    tasks.append((run, f, window, run.window(run.compute[rest][0])))
        if len(tasks) == before:
            skipped.append(f"{run.name}: {len(run)} points are too few to hold some back")
    if not tasks:
        raise InputError(
            f"nothing to back-test: a run needs {MIN_RUN} points, {MIN_WINDOW} in the window"
        )
    scores = []
    # Fits of whole runs by (run, method), since several fractions need the same one.
    wholes: dict[tuple[str, str], Fit] = {}
    for i, (run, f, window, rest) in enumerate(tasks):
        kind = (classes or {}).get(run.name) or classify(run)
        last = min(max(1, round(0.1 * len(run))), len(rest))
        scores += [
            _score(name, forecaster, run, kind, f, window, rest, last, wholes)
            for name, forecaster in forecasters.items()
        ]
        if progress is not None:
            progress((i + 1) / len(tasks))
    return BacktestResult(tuple(scores), tuple(skipped))


def _named(names: Sequence[str] | None) -> dict[str, Forecaster]:
    """The built-in methods of these names; all of them without names."""
    for name in names or ():
        if name not in METHODS:
            raise InputError(f"no method {name!r} to back-test: choose from {', '.join(METHODS)}")
    return {name: METHODS[name] for name in (METHODS if names is None else names)}


def _score(
    method: str,
    forecaster: Forecaster,
    run: Run,
    kind: str,
    fraction: float,
    window: Run,
    rest: Run,
    last: int,
    wholes: dict[tuple[str, str], Fit],
) -> BacktestScore:
    """One method fitted to `window` and scored on the `last` points of `rest`."""
    fitted = forecaster(window)
    agrees = None
    if fitted.identified:
        whole = wholes.get((run.name, method)) or forecaster(run)
        wholes[run.name, method] = whole
        low, high = fitted.interval("A", 0.9)
        agrees = low <= whole.params["A"] <= high if whole.identified else None
    truth = rest.score[-last:]
    q = fitted.predict(rest.compute[-last:]).mean_quantiles(LEVELS)
    each = fitted.predict(rest.compute).quantiles(LEVELS, observed=True)
    inside = (each[:, 0] <= rest.score) & (rest.score <= each[:, -1])
    y = float(truth.mean())
    return BacktestScore(
        run=run.name,
        source=run.group or "",
        run_class=kind,
        fraction=fraction,
        method=method,
        truth=y,
        # Indices into LEVELS: 9 is the median, 4 and 14 end the 50 %, 0 and 18 the 90 % interval.
        median=float(q[9]),
        crps=float(crps(q, y)),
        in50=bool(q[4] <= y <= q[14]),
        in90=bool(q[0] <= y <= q[18]),
        width90=float(q[18] - q[0]),
        point_crps=float(np.mean([crps(row, v) for row, v in zip(each, rest.score, strict=True)])),
        point_in90=float(inside.mean()),
        alarm=fitted.alarm is not None,
        identified=fitted.identified,
        ceiling_agrees=agrees,
    )


def crps(quantiles: Array, truth: float) -> Array:
    """CRPS of a forecast given by its quantiles at LEVELS: the mean of twice the pinball loss."""
    e = truth - quantiles
    return np.asarray(np.mean(2.0 * np.maximum(LEVELS * e, (LEVELS - 1.0) * e), axis=-1))
