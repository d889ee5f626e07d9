"""The ways to fit a window of points, each ending in a Fit."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

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
from scalerl.curves.forecast import tails
from scalerl.curves.laws import Law, NoChange, PowerLaw, Sigmoid
from scalerl.curves.noise import prepare
from scalerl.curves.paths import Future
from scalerl.curves.posterior import DRAWS, Priors, sample_posterior
from scalerl.curves.result import Fit, LawName, MethodName, R0Choice
from scalerl.curves.threads import one_thread
from scalerl.errors import InputError
from scalerl.runs.record import Run

Array = npt.NDArray[np.float64]

#: The ceiling counts as identified when its 90 % interval is no wider than this.
IDENTIFIED_WIDTH = 0.10


@dataclass(frozen=True, slots=True)
class Window:
    """The points to fit, and what every method needs to know of them."""

    run: Run
    inside: Run
    window: tuple[float, float]
    level: float
    r0: R0Choice
    notes: tuple[str, ...]

    @property
    def seed(self) -> int:
        """From the data: the same points give the same answer, other points other luck."""
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


@one_thread
def fit_posterior(c: Window) -> Fit:
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
    """A given R_0 is an evaluation at C = 0, as noisy as the others, in place of any there."""
    positive = run.compute > 0
    n_eval = run.n_eval
    if n_eval is not None:
        n_eval = np.concatenate([[np.median(n_eval)], n_eval[positive]])
    return run.replace(
        compute=np.concatenate([[0.0], run.compute[positive]]),
        score=np.concatenate([[r0], run.score[positive]]),
        n_eval=n_eval,
    )


def fit_paper_cells(
    c: Window,
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
    c = Window(run, run, window, 0.9, "first", ())
    r0 = float(run.score[0])
    grids = paper.grids(run.compute, run.score, r0, paper_scale=False)
    return _paper_result(c, paper.fit_paper_fast(run.compute, run.score, r0, *grids), "first", [])


def _paper_result(c: Window, found: paper.PaperFit, source: str, warnings: list[str]) -> Fit:
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


def fit_power_law(c: Window) -> Fit:
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


def fit_no_change(c: Window) -> Fit:
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
