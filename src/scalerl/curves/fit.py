"""fit: check the points of a run, cut them to a window and fit a law to them.

How a law is fitted is up to its methods (laws/).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from scalerl.curves import paper
from scalerl.curves.breaks import suspected_break
from scalerl.curves.formula import Array
from scalerl.curves.laws import LAWS, Law
from scalerl.curves.priors import CurvePriors
from scalerl.curves.result import Fit, R0Choice, Window
from scalerl.errors import InputError
from scalerl.runs.record import ComputeKind, Run

#: Fewest points of a fit: fewer cannot separate the law's parameters from noise.
MIN_POINTS = 5


class TooFewPoints(InputError):
    """A run, or a window of it, has fewer points than a fit needs."""

    def __init__(self, run: str, points: int, message: str) -> None:
        super().__init__(message)
        self.run = run
        self.points = points


def fit(
    compute: Run | npt.ArrayLike,
    score: npt.ArrayLike | None = None,
    n_eval: npt.ArrayLike | None = None,
    r0: R0Choice = None,
    *,
    law: str | Law = "sigmoid",
    method: str | None = None,
    level: float = 0.9,
    lo: float | None = None,
    hi: float | None = None,
    breaks: Iterable[float] = (),
    name: str = "run",
    x_kind: ComputeKind = "unknown",
    a_grid: npt.ArrayLike | None = None,
    mid_grid: npt.ArrayLike | None = None,
    progress: Callable[[float], None] | None = None,
    priors: CurvePriors | None = None,
) -> Fit:
    """Fit a law to one run: `fit(run)`, or `fit(compute, score, n_eval)` with plain arrays.

    law     "sigmoid", "power", "line", "ensemble", "no-change", one that was added to `LAWS`,
            `package.module:NAME`, or a Law
    method  by default the law's first; the sigmoid has "posterior" (ours) and "paper" (the
            published procedure, to check published numbers)
    r0      a number: the score at zero compute is known; "first": it is the first score of the
            window; "fit": it is a free parameter. By default free, steadied by an evaluation at
            C = 0 where there is one (method "paper": what the source states, or that evaluation,
            or first)
    lo, hi  use only the points with lo <= compute <= hi
    breaks  amounts of compute at which the run was changed, beside `Run.breaks`: points before one
            inform about the shape and noise of the curve, but do not fix its level
    a_grid, mid_grid   the grids of method "paper", else the paper's own or rescaled ones
    priors  other priors of method "posterior" than the learned ones (`curves/priors.py`)

    >>> import numpy as np
    >>> c = np.linspace(500, 60000, 40)
    >>> f = fit(c, 0.3 + 0.345 / (1 + (8000 / c) ** 1.7))
    >>> round(f.params["A"], 2)
    0.65
    """
    run = compute if isinstance(compute, Run) else _as_run(compute, score, n_eval, name, x_kind)
    run = run.with_breaks([*run.breaks, *breaks])
    _check_options(r0, level)
    chosen = law if isinstance(law, Law) else LAWS[law]
    used = next(iter(chosen.methods)) if method is None else method
    if used not in chosen.methods:
        raise InputError(
            f"the {chosen.title} has no method {used!r}, only {', '.join(chosen.methods)}: "
            "drop --law or --method"
        )
    notes: list[str] = []
    if lo is None and used == "paper" and len(run):
        lo = paper.cut(run.compute, run.score, run.x_kind)
        if lo is not None:
            notes.append(
                f"points below {lo:g} GPU-hours left out, as in the paper (--from 0 keeps them)"
            )
    inside = run.window(lo, hi)
    if inside.breaks and used != "posterior":
        notes.append(
            f"the {chosen.title} ({used}) does not re-base at {inside.breaks[-1]:g}, where the run "
            f"was changed: --from {inside.breaks[-1]:g} leaves out the points before"
        )
    if inside.n_eval is not None:
        inside = inside.replace(n_eval=_known_sizes(inside.n_eval))
    _check_points(inside, run, lo, hi)
    if used == "posterior" and (jump := suspected_break(inside)) is not None:
        notes.append(
            f"the curve jumps by {jump.height:+.2f} near {jump.at:g}: if something was changed "
            f"there, --event {jump.at:g} fits what came before without its level"
        )
    window = Window(
        run, inside, chosen, used, level, r0, tuple(notes), a_grid, mid_grid, progress, priors
    )
    return chosen.methods[used](window)


def fit_all(
    runs: Iterable[Run], progress: Callable[[float], None] | None = None, **options: Any
) -> list[Fit]:
    """`fit` for many runs, with the same options. Cost: about 5 ms a run.

    >>> from scalerl import load_runs
    >>> [f.identified for f in fit_all(load_runs("example:paper-8b", "example:paper-moe"))]
    [True, True]
    """
    items = list(runs)
    fits = []
    for i, run in enumerate(items):
        fits.append(fit(run, **options))
        if progress is not None:
            progress((i + 1) / len(items))
    return fits


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
    # Trackers log nan for steps without an evaluation.
    keep = np.isfinite(x) & np.isfinite(y)
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


def _known_sizes(n: Array) -> Array | None:
    """Evaluation sizes with the median in place of unknown ones (nan); None if all are unknown."""
    if (n <= 0).any():
        raise InputError("n_eval must be positive: the number of samples behind each score")
    known = np.isfinite(n)
    return np.where(known, n, np.median(n[known])) if known.any() else None


def _check_options(r0: R0Choice, level: float) -> None:
    if isinstance(r0, str) and r0 not in ("first", "fit"):
        raise InputError(f"r0 must be a number, 'first' or 'fit', not {r0!r}")
    if isinstance(r0, int | float) and not 0.0 <= r0 <= 1.0:
        raise InputError(f"r0 is a score: it must lie in [0, 1], not {r0:g}")
    if not 0.0 < level < 1.0:
        raise InputError(f"level must lie between 0 and 1 (0.9 for 90 %), not {level:g}")


def _check_points(inside: Run, run: Run, lo: float | None, hi: float | None) -> None:
    if len(inside) >= MIN_POINTS and int((inside.compute > 0).sum()) >= MIN_POINTS - 1:
        return
    where = ""
    if len(run):
        where = f" (the run has {len(run)}, at {run.compute[0]:g} to {run.compute[-1]:g})"
    window = "" if lo is None and hi is None else " in this window"
    more = next(iter(run.training_scores.items()), None)
    also = f"; or fit its {more[1]} training scores: --y {more[0]}" if more else ""
    raise TooFewPoints(
        run.name,
        len(inside),
        f"run {run.name!r} has {len(inside)} points{window}{where}: a fit needs at least "
        f"{MIN_POINTS}; evaluate more often or widen --from/--to{also}",
    )
