"""The posterior of the sigmoid law given a curve: exact on a grid of (B, C_mid), then sampled.

    y_i = R_0 (1 - f_i) + A f_i + u(t_i) + e_i,      f_i = logistic(B (t_i - ln C_mid)),  t = ln C

e is the noise of an evaluation, variance s2 D_i. u is what the law does not explain: a random walk
in ln C that starts at 0, with variance s2 tau^2 per unit of ln C at the end of the window and up to
1 + EARLY times that at its start, which trusts the early phase less (a soft form of the paper's cut
at 1.5k GPU-hours). Given B, C_mid and tau the model is linear in (R_0, A), so these and s2 are
integrated out exactly; what remains is a sum over B x C_mid x tau, computed as one batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from scalerl.curves.formula import log_compute, logistic
from scalerl.curves.noise import Points
from scalerl.curves.walk import Walk

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Priors:
    """What is believed of a learning curve before seeing it, with the numbers' reasons.

    The back-test objective is flat around these values (docs/explanation/calibration.md): they are
    round numbers, not optima.
    """

    #: ln B ~ N(ln 1.5, 0.5): the paper's runs lie between 1.1 and 2.4.
    b_median: float = 1.5
    b_log_sd: float = 0.5
    b_range: tuple[float, float] = (0.25, 6.0)
    b_cells: int = 22
    #: ln(C_mid / last C) ~ N(0, 1.4): half of the gain lies behind or ahead, within a factor of 16.
    mid_log_sd: float = 1.4
    mid_cells: int = 48
    mid_below: float = 3.0
    mid_margin: float = 0.5
    mid_above: float = 3.5
    #: R_0 ~ N(first score, 0.5), A ~ N(level now + 0.12, 0.35), then 0 <= R_0 <= A <= 1.
    r0_sd: float = 0.5
    a_step: float = 0.12
    a_sd: float = 0.35
    #: tau in units of the curve's rise, and the weight of each.
    tau: tuple[float, ...] = (0.006, 0.02, 0.06, 0.18)
    tau_weight: tuple[float, ...] = (0.1, 0.25, 0.35, 0.3)
    #: s2 ~ inverse gamma with this many degrees of freedom about 1.
    nu0: float = 6.0
    #: How much faster the walk moves at the start of the window.
    early: float = 4.0


#: Posterior draws behind every interval.
DRAWS = 4000
#: With fewer survivors of 0 <= R_0 <= A <= 1 than this, all draws are projected onto it instead.
MIN_SURVIVORS = 50
#: Cells lighter than this share of the heaviest are left out of the second, finer grid ...
ZOOM_WEIGHT = 1e-4
#: ... which is only worth its time if it covers less than this share of the first.
ZOOM_AREA = 0.35


@dataclass(frozen=True, slots=True)
class Draws:
    """Samples from the posterior, one row each."""

    r0: Array
    a: Array
    log_b: Array
    log_mid: Array
    s2: Array
    tau: IntArray

    @property
    def b(self) -> Array:
        return np.exp(self.log_b)

    def __len__(self) -> int:
        return len(self.a)

    def every(self, k: int) -> Draws:
        """Every k-th draw."""
        return Draws(
            self.r0[::k],
            self.a[::k],
            self.log_b[::k],
            self.log_mid[::k],
            self.s2[::k],
            self.tau[::k],
        )

    def law(self, t: Array) -> Array:
        """The law at ln C = t for every draw: (draws, len(t)). t = -inf is C = 0."""
        f = logistic(self.b[:, None] * (t[None, :] - self.log_mid[:, None]))
        return self.r0[:, None] + (self.a - self.r0)[:, None] * f


@dataclass(frozen=True, slots=True)
class Posterior:
    """Draws and what is needed to continue them beyond the window."""

    points: Points
    walk: Walk
    #: ln of the last compute in the window.
    t_end: float
    draws: Draws
    #: u at the end of the window, per draw.
    u_end: Array
    #: Grid spacing in (ln B, ln C_mid), by which reported values are spread out.
    spacing: tuple[float, float]

    def median_law(self, compute: Array) -> Array:
        """Median of the bare law, from every 16th draw, at up to 64 knots between."""
        t = log_compute(np.maximum(compute, 1e-300))
        knots = t if len(t) <= 64 else np.linspace(max(t[0], t[-1] - 30.0), t[-1], 64)
        return np.interp(t, knots, np.median(self.draws.every(16).law(knots), axis=0))

    def thinned(self, k: int) -> Posterior:
        """The same posterior with every k-th draw."""
        return replace(self, draws=self.draws.every(k), u_end=self.u_end[::k])

    def inside_window(self, t: Array, rng: np.random.Generator) -> Array:
        """The pass rate at ln C = t within the window, (draws, len(t)): law plus u given the data.
        Each column is exact; columns share their random number, as a smooth curve's would."""
        residual = self.points.score - _law_at_points(self.points, self.draws)
        u = np.empty((len(self.draws), len(t)))
        for k in range(len(self.walk.tau2)):
            rows = self.draws.tau == k
            weights, variance = self.walk.at(k, t)
            u[rows] = residual[rows] @ weights.T
            u[rows] += np.sqrt(self.draws.s2[rows, None] * variance) * rng.standard_normal(
                (int(rows.sum()), 1)
            )
        return np.clip(self.draws.law(t) + u, 0.0, 1.0)


def _law_at_points(points: Points, draws: Draws) -> Array:
    law = draws.law(points.t)
    law[:, points.at_zero] = draws.r0[:, None]
    return law


def _fractions(points: Points, b: Array, log_mid: Array) -> Array:
    """f at the points for each (B, C_mid): (n, cells)."""
    f = logistic(b[None, :] * (points.t[:, None] - log_mid[None, :]))
    f[points.at_zero] = 0.0
    return f


@dataclass(frozen=True, slots=True)
class Cells:
    """Per (tau, cell): the linear posterior of (R_0, A) and the cell's log weight."""

    mean_r0: Array
    mean_a: Array
    a11: Array
    a22: Array
    a12: Array
    det: Array
    q: Array
    log_weight: Array


def solve_cells(
    white_score: Array,
    white_one: Array,
    white_f: Array,
    prior_mean: tuple[float, float],
    prior_sd: tuple[float, float],
    log_det: Array,
    nu0: float,
) -> Cells:
    """Bayesian linear regression of the whitened score on (1 - f, f), for every cell at once.

    The last axis of `white_f` runs over cells; the one before over points. Returned weights are the
    marginal likelihood without the priors of B, C_mid and tau. Checked against dense matrices in
    the tests: a slip here would be hidden by the calibration constants.
    """
    n = white_score.shape[-1]
    m1, m2 = prior_mean
    y = white_score - m1 * white_one  # what is left to explain once R_0 = A = m1 ...
    step = m2 - m1  # ... and once f adds the prior gain
    ff = np.einsum("...nc,...nc->...c", white_f, white_f)
    one_f = (white_one[..., None, :] @ white_f)[..., 0, :]
    yf = (y[..., None, :] @ white_f)[..., 0, :]
    one_one = (white_one * white_one).sum(axis=-1)[..., None]
    one_y = (white_one * y).sum(axis=-1)[..., None]
    yy = (y * y).sum(axis=-1)[..., None]
    a11 = one_one - 2.0 * one_f + ff + prior_sd[0] ** -2
    a22 = ff + prior_sd[1] ** -2
    a12 = one_f - ff
    b1 = one_y - yf - step * a12
    b2 = yf - step * ff
    det = a11 * a22 - a12 * a12
    d1 = (a22 * b1 - a12 * b2) / det
    d2 = (a11 * b2 - a12 * b1) / det
    q = np.maximum(yy - 2.0 * step * yf + step * step * ff - b1 * d1 - b2 * d2, 0.0)
    log_weight = -0.5 * (nu0 + n) * np.log(nu0 + q) - 0.5 * np.log(det) - log_det[..., None]
    return Cells(prior_mean[0] + d1, prior_mean[1] + d2, a11, a22, a12, det, q, log_weight)


def sample_posterior(
    points: Points,
    t_end: float,
    r0: float | None,
    rng: np.random.Generator,
    priors: Priors,
    draws: int = DRAWS,
) -> Posterior:
    """Draw from the posterior. `r0` given pins R_0 to it within an evaluation's noise;
    None leaves it free around the first score."""
    walk = Walk.of(points, points.scale * np.asarray(priors.tau), priors.early)
    grid = _Grid.whole(points, t_end, priors)
    cells, f = _weigh(points, walk, grid, t_end, r0, priors)
    finer = grid.zoomed(cells.log_weight)
    if finer is not None:
        grid = finer
        cells, f = _weigh(points, walk, grid, t_end, r0, priors)
    chosen = _systematic(cells.log_weight.ravel(), draws, rng)
    tau, cell = np.divmod(chosen, len(grid.log_b))

    s2 = (priors.nu0 + cells.q[tau, cell]) / rng.chisquare(priors.nu0 + len(points.t), draws)
    a11, a12 = cells.a11[tau, cell], cells.a12[tau, cell]
    step = np.sqrt(s2 * a11 / cells.det[tau, cell]) * rng.standard_normal(draws)
    a = cells.mean_a[tau, cell] + step
    # R_0 given A: mean shifted by cov / var(A) = -a12 / a11, variance s2 / a11.
    r0_draw = cells.mean_r0[tau, cell] - a12 / a11 * step
    r0_draw += np.sqrt(s2 / a11) * rng.standard_normal(draws)
    inside = np.flatnonzero((r0_draw >= 0.0) & (r0_draw <= a) & (a <= 1.0))
    if len(inside) < MIN_SURVIVORS:
        a = np.clip(a, 0.0, 1.0)
        r0_draw = np.clip(r0_draw, 0.0, a)
        inside = np.arange(draws)
    kept = np.concatenate([inside, rng.choice(inside, draws - len(inside))])
    cell, tau = cell[kept], tau[kept]
    sample = Draws(r0_draw[kept], a[kept], grid.log_b[cell], grid.log_mid[cell], s2[kept], tau)
    # u at the end is linear in y - law, and the law is linear in (R_0, A): see Walk.end.
    y_end, one_end, f_end = walk.end @ points.score, walk.end.sum(axis=1), walk.end @ f
    f_end = f_end[tau, cell]
    u_end = y_end[tau] - sample.r0 * (one_end[tau] - f_end) - sample.a * f_end
    u_end += np.sqrt(sample.s2 * walk.end_variance[tau]) * rng.standard_normal(len(sample))
    return Posterior(points, walk, t_end, sample, u_end, grid.spacing)


@dataclass(frozen=True, slots=True)
class _Grid:
    """Cells of (ln B, ln C_mid), flattened, B outermost."""

    log_b: Array
    log_mid: Array
    shape: tuple[int, int]
    spacing: tuple[float, float]

    @staticmethod
    def over(b: tuple[float, float], mid: tuple[float, float], shape: tuple[int, int]) -> _Grid:
        axes = np.linspace(*b, shape[0]), np.linspace(*mid, shape[1])
        log_b, log_mid = (g.ravel() for g in np.meshgrid(*axes, indexing="ij"))
        spacing = (b[1] - b[0]) / (shape[0] - 1), (mid[1] - mid[0]) / (shape[1] - 1)
        return _Grid(log_b, log_mid, shape, spacing)

    @staticmethod
    def whole(points: Points, t_end: float, priors: Priors) -> _Grid:
        low = min(points.t[0], t_end - priors.mid_below) - priors.mid_margin
        high = t_end + priors.mid_above
        lo_b, hi_b = np.log(priors.b_range)
        return _Grid.over((lo_b, hi_b), (low, high), (priors.b_cells, priors.mid_cells))

    def zoomed(self, log_weight: Array) -> _Grid | None:
        """A grid over the part that holds the weight, or None if that is most of this one. A long,
        clean run knows C_mid to a few percent, which the whole grid's cells are too coarse for."""
        weight = np.exp(log_weight - log_weight.max()).sum(axis=0).reshape(self.shape)
        heavy = weight > ZOOM_WEIGHT * weight.max()
        ranges: list[tuple[float, float]] = []
        shrink = 1.0
        for axis, values in enumerate(
            (self.log_b[:: self.shape[1]], self.log_mid[: self.shape[1]])
        ):
            used = np.flatnonzero(heavy.any(axis=1 - axis))
            first, last = max(used[0] - 1, 0), min(used[-1] + 1, len(values) - 1)
            ranges.append((float(values[first]), float(values[last])))
            shrink *= (last - first) / (len(values) - 1)
        if shrink > ZOOM_AREA:
            return None
        return _Grid.over(ranges[0], ranges[1], self.shape)


def _weigh(
    points: Points, walk: Walk, grid: _Grid, t_end: float, r0: float | None, priors: Priors
) -> tuple[Cells, Array]:
    """The linear posterior in every cell and its weight, priors included; and f per cell."""
    prior_mean = (
        float(points.score[0]) if r0 is None else r0,
        float(np.clip(points.level + priors.a_step, 0.0, 1.0)),
    )
    prior_sd = (priors.r0_sd if r0 is None else math.sqrt(points.score_variance), priors.a_sd)
    f = _fractions(points, np.exp(grid.log_b), grid.log_mid)
    white = walk.whiten @ np.column_stack([points.score, np.ones_like(points.score), f])
    cells = solve_cells(
        white[..., 0], white[..., 1], white[..., 2:], prior_mean, prior_sd, walk.log_det, priors.nu0
    )
    log_prior = -0.5 * ((grid.log_b - np.log(priors.b_median)) / priors.b_log_sd) ** 2
    log_prior -= 0.5 * ((grid.log_mid - t_end) / priors.mid_log_sd) ** 2
    log_weight = cells.log_weight + log_prior + np.log(priors.tau_weight)[:, None]
    return replace(cells, log_weight=log_weight), f


def _systematic(log_weight: Array, count: int, rng: np.random.Generator) -> IntArray:
    """Indices drawn in proportion to the weights, with the least possible sampling noise."""
    weight = np.exp(log_weight - log_weight.max())
    total = np.cumsum(weight)
    position = (np.arange(count) + rng.random()) * (total[-1] / count)
    index = np.minimum(np.searchsorted(total, position, side="right"), len(weight) - 1)
    return rng.permutation(index)
