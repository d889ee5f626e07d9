"""The posterior of the sigmoid law given a curve: exact on a grid of (B, C_mid), then sampled.

    y_i = R_0 (1 - f_i) + A f_i + u(t_i) + e_i,      f_i = logistic(B (t_i - ln C_mid)),  t = ln C

e is the noise of one evaluation, with variance s2 D_i. u is the residual process: a random walk in
ln C of unknown size tau, and before an unknown cut an early phase that the law does not describe
(residual_process.py). Given B, C_mid, tau and cut the model is linear in (R_0, A), so these and s2
are integrated out exactly; what remains is a sum over B x C_mid x (tau, cut), computed as one
batch. No optimiser and no starting values: the same points always give the same posterior.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import numpy as np

from scalerl.curves.formula import Array, Flags, IntArray, log_compute, logistic
from scalerl.curves.noise import SAME_LOG_COMPUTE, BinnedCurve
from scalerl.curves.priors import Priors
from scalerl.curves.residual_process import ResidualCovariance

#: Posterior draws behind every interval: 90 % limits are known to about 0.03 posterior sd.
DRAWS = 4000
#: With fewer draws than this inside 0 <= R_0 <= A <= 1, all are projected onto it instead of
#: resampled from so few.
MIN_SURVIVORS = 50
#: Cells below this share of the heaviest are left out of the second, finer grid.
ZOOM_WEIGHT = 1e-4
#: (tau, cut) hypotheses below this share of the total weight are left out of the second grid.
HYPOTHESIS_WEIGHT = 1e-3


def fraction(t: Array, log_b: Array, log_mid: Array, shape: float) -> Array:
    """Share of the gain reached at ln C = t: half of it at C_mid, with a sigmoid's slope B there.

        f = (1 + (2^(1/v) - 1) e^(-r (t - ln C_mid)))^-v,      r = B / (2 v (1 - 2^(-1/v)))

    v = 1 is the sigmoid. The ceiling is neared at rate r and the start was left at rate r v, so
    v < 1 nears it sharply after a slow start, and v > 1 slowly after a sharp one.

    >>> import numpy as np
    >>> z = np.zeros(3)
    >>> fraction(np.array([-2.0, 0.0, 2.0]), z, z, shape=0.5).round(3).tolist()
    [0.15, 0.5, 0.91]
    >>> fraction(np.array([-2.0, 0.0, 2.0]), z, z, shape=1.0).round(3).tolist()
    [0.119, 0.5, 0.881]
    """
    half = 2.0 ** (1.0 / shape) - 1.0
    rate = np.exp(log_b) / (2.0 * shape * (1.0 - 2.0 ** (-1.0 / shape)))
    f = logistic(rate * (t - log_mid) - math.log(half))
    return f if shape == 1.0 else f**shape


def time_to_fraction(share: float, log_b: Array, shape: Array) -> Array:
    """ln(C / C_mid) at which this share of the gain is reached: the inverse of `fraction`.

    >>> import numpy as np
    >>> float(time_to_fraction(0.5, np.zeros(1), np.ones(1))[0])
    0.0
    """
    half = 2.0 ** (1.0 / shape) - 1.0
    rate = np.exp(log_b) / (2.0 * shape * (1.0 - 2.0 ** (-1.0 / shape)))
    return np.asarray(np.log(half / (share ** (-1.0 / shape) - 1.0)) / rate)


@dataclass(frozen=True, slots=True)
class Draws:
    """Samples of the law's parameters from the posterior; all arrays have one value per draw."""

    r0: Array
    a: Array
    #: ln B.
    log_b: Array
    #: ln C_mid.
    log_mid: Array
    #: Factor on the variance of evaluations and residuals.
    s2: Array
    #: Exponent v of `fraction`.
    shape: Array
    #: Index of the (tau, cut) hypothesis of each draw (residual_process.py).
    hypothesis: IntArray
    #: True where no gain is under way: A = R_0.
    flat: Flags

    @property
    def b(self) -> Array:
        return np.exp(self.log_b)

    def __len__(self) -> int:
        return len(self.a)

    def only(self, chosen: slice | IntArray) -> Draws:
        """The chosen draws."""
        return Draws(*(getattr(self, f.name)[chosen] for f in fields(self)))

    def law(self, t: Array) -> Array:
        """The law at ln C = t for every draw: (draws, len(t)); t may also have a row for each draw.
        t = -inf is C = 0."""
        t = np.broadcast_to(t, (len(self), t.shape[-1]))
        f = np.empty(t.shape)
        # By shape: the sigmoid, most of the draws, needs no power, which is the slow part.
        for shape in np.unique(self.shape):
            rows = self.shape == shape
            f[rows] = fraction(
                t[rows], self.log_b[rows, None], self.log_mid[rows, None], float(shape)
            )
        return np.asarray(self.r0[:, None] + (self.a - self.r0)[:, None] * f)


@dataclass(frozen=True, slots=True)
class Posterior:
    """Posterior draws of one curve, with what is needed to continue them beyond the window."""

    points: BinnedCurve
    covariance: ResidualCovariance
    #: ln of the last compute in the window.
    t_end: float
    draws: Draws
    #: u at the end of the window, per draw.
    u_end: Array
    #: Grid spacing in (ln B, ln C_mid), by which reported values are spread out.
    spacing: tuple[float, float]

    @property
    def no_gain(self) -> float:
        """Probability that no gain is under way."""
        return float(self.draws.flat.mean())

    @property
    def tail(self) -> float:
        """Probability that a gain under way nears its ceiling faster than a sigmoid, minus the
        probability that it does so more slowly: 0 where the points do not decide."""
        shape = self.draws.shape[~self.draws.flat]
        return float((shape < 1.0).mean() - (shape > 1.0).mean()) if len(shape) else 0.0

    @property
    def plateau(self) -> Array:
        """ln C since nine tenths of the gain were reached, per draw; where no gain is under way,
        since the first point."""
        rise = time_to_fraction(0.9, self.draws.log_b, self.draws.shape)
        since = np.where(self.draws.flat, self.points.t[0], self.draws.log_mid + rise)
        return np.maximum(self.t_end - since, 0.0)

    @property
    def on_rise(self) -> int:
        """Number of points between a tenth and nine tenths of the gain: the median over draws."""
        rising = self.only(np.flatnonzero(~self.draws.flat)).draws
        if not len(rising):
            return 0
        first, last = (
            rising.log_mid + time_to_fraction(share, rising.log_b, rising.shape)
            for share in (0.1, 0.9)
        )
        t = self.points.t[~self.points.at_zero]
        inside = np.searchsorted(t, last) - np.searchsorted(t, first)
        return int(np.median(inside))

    @property
    def early(self) -> tuple[tuple[float, float], ...]:
        """Where the law begins: (share of the compute before the cut, probability) per cut."""
        cut, count = np.unique(self.covariance.cut[self.draws.hypothesis], return_counts=True)
        share = np.where(cut > self.points.t[0], np.exp(cut - self.t_end), 0.0)
        return tuple(zip(share.tolist(), (count / len(self.draws)).tolist(), strict=True))

    def median_law(self, compute: Array) -> Array:
        """Median of the law without residuals, for drawing."""
        # Every 16th draw and 64 knots are enough for a picture, and take a millisecond.
        t = log_compute(np.maximum(compute, 1e-300))
        knots = t if len(t) <= 64 else np.linspace(max(t[0], t[-1] - 30.0), t[-1], 64)
        few = self.draws.only(slice(None, None, 16))
        return np.interp(t, knots, np.median(few.law(knots), axis=0))

    def only(self, chosen: slice | IntArray) -> Posterior:
        """The posterior made of the chosen draws."""
        return replace(self, draws=self.draws.only(chosen), u_end=self.u_end[chosen])

    def inside_window(self, t: Array, rng: np.random.Generator) -> Array:
        """The pass rate at ln C = t within the window, (draws, len(t)): law plus u given the data.
        Each column is exact; columns share their random number, as a smooth curve's would."""
        residual = self.points.score - _law_at_points(self.points, self.draws)
        u = np.empty((len(self.draws), len(t)))
        for k in np.unique(self.draws.hypothesis):
            rows = self.draws.hypothesis == k
            weights, variance = self.covariance.at(k, t)
            u[rows] = residual[rows] @ weights.T
            u[rows] += np.sqrt(self.draws.s2[rows, None] * variance) * rng.standard_normal(
                (int(rows.sum()), 1)
            )
        return np.clip(self.draws.law(t) + u, 0.0, 1.0)


def _law_at_points(points: BinnedCurve, draws: Draws) -> Array:
    law = draws.law(points.t)
    # Points at C = 0 have a made-up place on the ln C axis (noise.bin_curve).
    law[:, points.at_zero] = draws.r0[:, None]
    return law


@dataclass(frozen=True, slots=True)
class Cells:
    """Posterior of (R_0, A) in every grid cell under every (tau, cut) hypothesis, without s2:
    precision matrix [[a11, a12], [a12, a22]], its determinant, the residual sum q, log weight."""

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
    marginal likelihood without the priors of B, C_mid and tau.
    """
    # The tests check this against dense matrices: calibration constants would hide a slip here (a
    # swapped variance once survived a thousand tuning runs).
    n = white_score.shape[-1]
    m1, m2 = prior_mean
    y = white_score - m1 * white_one  # residual of R_0 = A = m1
    step = m2 - m1  # prior gain, which multiplies f
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
    # A sum of squares by differences of products: rounding may take it below 0.
    q = np.maximum(yy - 2.0 * step * yf + step * step * ff - b1 * d1 - b2 * d2, 0.0)
    log_weight = -0.5 * (nu0 + n) * np.log(nu0 + q) - 0.5 * np.log(det) - log_det[..., None]
    return Cells(prior_mean[0] + d1, prior_mean[1] + d2, a11, a22, a12, det, q, log_weight)


def sample_posterior(
    points: BinnedCurve,
    t_end: float,
    r0: float | None,
    rng: np.random.Generator,
    priors: Priors,
    draws: int = DRAWS,
) -> Posterior:
    """Draw from the posterior. A number for `r0` pins R_0 to it within an evaluation's noise; None
    leaves it free around the first score."""
    # Two passes: a coarse grid over everything finds the region and the hypotheses that hold the
    # weight, then a finer grid covers only that region.
    covariance, hypothesis_prior = _hypotheses(points, t_end, priors)
    grid = _Grid.whole(points, t_end, priors)
    cells, _ = _weigh(points, covariance, hypothesis_prior, grid, t_end, r0, priors)
    likely = _likely(cells.log_weight)
    covariance, hypothesis_prior = covariance.only(likely), hypothesis_prior[likely]
    grid = grid.zoomed(cells.log_weight[likely], priors.shapes)
    cells, f = _weigh(points, covariance, hypothesis_prior, grid, t_end, r0, priors)
    weight = np.exp(cells.log_weight - cells.log_weight.max())
    chosen = systematic(weight.ravel(), draws, rng)
    k, cell = np.divmod(chosen, len(grid))
    flat = cell == len(grid) - 1

    # Given its cell, s2 is inverse gamma, and (R_0, A) is normal given s2: A first, then R_0.
    s2 = (priors.nu0 + cells.q[k, cell]) / rng.chisquare(priors.nu0 + len(points.t), draws)
    a11, a12 = cells.a11[k, cell], cells.a12[k, cell]
    step = np.sqrt(s2 * a11 / cells.det[k, cell]) * rng.standard_normal(draws)
    a = cells.mean_a[k, cell] + step
    # R_0 given A: mean shifted by cov / var(A) = -a12 / a11, variance s2 / a11.
    r0_draw = cells.mean_r0[k, cell] - a12 / a11 * step
    r0_draw += np.sqrt(s2 / a11) * rng.standard_normal(draws)
    # The flat cell has f = 0, so its A is the prior's: no gain means A = R_0.
    a = np.where(flat, r0_draw, a)
    inside = np.flatnonzero((r0_draw >= 0.0) & (r0_draw <= a) & (a <= 1.0))
    if len(inside) < MIN_SURVIVORS:
        a = np.clip(a, 0.0, 1.0)
        r0_draw = np.clip(r0_draw, 0.0, a)
        inside = np.arange(draws)
    # Draws outside the truncation are replaced by copies of draws inside it.
    kept = np.concatenate([inside, rng.choice(inside, draws - len(inside))])
    cell, k, flat = cell[kept], k[kept], flat[kept]
    log_b, log_mid, shape = grid.at(cell)
    sample = Draws(r0_draw[kept], a[kept], log_b, log_mid, s2[kept], shape, k, flat)
    # u at the end is linear in y - law, and the law is linear in (R_0, A).
    y_end, one_end = covariance.end @ points.score, covariance.end.sum(axis=1)
    f_end = (covariance.end @ f)[k, cell]
    u_end = y_end[k] - sample.r0 * (one_end[k] - f_end) - sample.a * f_end
    u_end += np.sqrt(sample.s2 * covariance.end_variance[k]) * rng.standard_normal(len(sample))
    return Posterior(points, covariance, t_end, sample, u_end, grid.spacing)


def log_evidence(points: BinnedCurve, t_end: float, priors: Priors) -> float:
    """ln of the probability of the points under the model, up to a constant that depends on their
    number: by the coarse grid, which is enough to compare two models of the same points."""
    covariance, hypothesis_prior = _hypotheses(points, t_end, priors)
    grid = _Grid.whole(points, t_end, priors)
    cells, _ = _weigh(points, covariance, hypothesis_prior, grid, t_end, None, priors)
    top = cells.log_weight.max()
    return float(top + np.log(np.exp(cells.log_weight - top).sum()))


def _hypotheses(
    points: BinnedCurve, t_end: float, priors: Priors
) -> tuple[ResidualCovariance, Array]:
    """Every tau with every cut, and the log prior of each pair."""
    tau, cut = points.scale * np.asarray(priors.tau), cuts(points, t_end, priors)
    cut_weight = np.ones(len(cut))
    cut_weight[0] = priors.no_cut_weight
    covariance = ResidualCovariance.from_points(
        points, np.repeat(tau, len(cut)), np.tile(cut, len(tau)), priors.rough * points.scale
    )
    weight = np.asarray(priors.tau_weight)[:, None] * (cut_weight / cut_weight.sum())
    return covariance, np.log(weight).ravel()


def cuts(points: BinnedCurve, t_end: float, priors: Priors) -> Array:
    """ln C at which the law may begin: the first point, then those of `priors.cuts` that leave
    enough points, each at the first point it keeps; two cuts at one point count once."""
    start = np.searchsorted(points.t, t_end + np.log(priors.cuts) - SAME_LOG_COMPUTE)
    most = len(points.t) - max(priors.cut_leaves, len(points.t) // 4)
    inside = sorted({int(i) for i in start if 0 < i <= most})
    return points.t[[0, *inside]]


@dataclass(frozen=True, slots=True)
class _Grid:
    """Grid cells of (shape, ln B, ln C_mid), flattened, and one more cell for a flat run."""

    shapes: tuple[float, ...]
    log_b: Array
    log_mid: Array
    axes: tuple[Array, Array]

    def __len__(self) -> int:
        return len(self.shapes) * len(self.log_b) + 1

    @property
    def spacing(self) -> tuple[float, float]:
        b, mid = self.axes
        return float(b[1] - b[0]), float(mid[1] - mid[0])

    @staticmethod
    def over(axes: tuple[Array, Array], shapes: tuple[float, ...]) -> _Grid:
        log_b, log_mid = (g.ravel() for g in np.meshgrid(*axes, indexing="ij"))
        return _Grid(shapes, log_b, log_mid, axes)

    @staticmethod
    def whole(points: BinnedCurve, t_end: float, priors: Priors) -> _Grid:
        """The coarse grid, of the first shapes only."""
        low = min(points.t[0], t_end - priors.mid_below) - priors.mid_margin
        low_b, high_b = np.log(priors.b_range)
        b = np.linspace(low_b, high_b, priors.b_cells)
        mid = np.linspace(low, t_end + priors.mid_above, priors.mid_cells)
        return _Grid.over((b, mid), priors.shapes[: priors.coarse_shapes])

    def zoomed(self, log_weight: Array, shapes: tuple[float, ...]) -> _Grid:
        """A finer grid of all shapes over the part that holds the weight: a long, clean run knows
        C_mid to a few percent, and the cells of the whole grid are too coarse for that."""
        weight = np.exp(log_weight[:, :-1] - log_weight[:, :-1].max()).sum(axis=0)
        weight = weight.reshape([len(self.shapes), *(len(a) for a in self.axes)]).sum(axis=0)
        heavy = weight > ZOOM_WEIGHT * weight.max()
        finer: list[Array] = []
        for axis, values in enumerate(self.axes):
            used = np.flatnonzero(heavy.any(axis=1 - axis))
            first, last = max(used[0] - 1, 0), min(used[-1] + 1, len(values) - 1)
            finer.append(np.linspace(values[first], values[last], len(values)))
        return _Grid.over((finer[0], finer[1]), shapes)

    def at(self, cell: IntArray) -> tuple[Array, Array, Array]:
        """ln B, ln C_mid and shape of these cells; the flat cell, where they do not matter, has
        those of the first."""
        shape, place = np.divmod(cell % (len(self) - 1), len(self.log_b))
        return self.log_b[place], self.log_mid[place], np.asarray(self.shapes)[shape]

    def fractions(self, points: BinnedCurve) -> Array:
        """f at the points in each cell, (n, cells); 0 in the last, flat one."""
        t = points.t[:, None]
        each = [fraction(t, self.log_b, self.log_mid, shape) for shape in self.shapes]
        f = np.column_stack([*each, np.zeros(len(t))])
        f[points.at_zero] = 0.0
        return f

    def log_prior(self, t_end: float, priors: Priors) -> Array:
        """ln of the prior mass of each cell."""
        # Density times area, so that a finer grid over part of the plane weighs as much against the
        # flat cell as the coarse one did.
        b = (self.log_b - np.log(priors.b_median)) / priors.b_log_sd
        mid = (self.log_mid - t_end) / priors.mid_log_sd
        norm = math.prod(self.spacing) / (2.0 * math.pi * priors.b_log_sd * priors.mid_log_sd)
        place = math.log(norm * (1.0 - priors.flat_weight)) - 0.5 * (b * b + mid * mid)
        share = priors.shape_weight[: len(self.shapes)]
        rising = np.log(share / share.sum())[:, None] + place
        return np.append(rising.ravel(), math.log(priors.flat_weight))


def _weigh(
    points: BinnedCurve,
    covariance: ResidualCovariance,
    hypothesis_prior: Array,
    grid: _Grid,
    t_end: float,
    r0: float | None,
    priors: Priors,
) -> tuple[Cells, Array]:
    """The posterior of (R_0, A) in every cell with its weight, priors included; and f per cell."""
    start = float(points.score[0]) if r0 is None else r0
    gained = max(points.level - start, 0.0)
    prior_mean = start, min(points.level + priors.a_step + priors.a_share * gained, 1.0)
    a_sd = priors.a_sd + priors.a_sd_share * gained
    prior_sd = (priors.r0_sd if r0 is None else math.sqrt(points.score_variance), a_sd)
    f = grid.fractions(points)
    white = covariance.whiten @ np.column_stack([points.score, np.ones_like(points.score), f])
    cells = solve_cells(
        white[..., 0],
        white[..., 1],
        white[..., 2:],
        prior_mean,
        prior_sd,
        covariance.log_det,
        priors.nu0,
    )
    log_weight = cells.log_weight + grid.log_prior(t_end, priors) + hypothesis_prior[:, None]
    return replace(cells, log_weight=log_weight), f


def _likely(log_weight: Array) -> IntArray:
    """The (tau, cut) hypotheses that hold nearly all of the weight."""
    weight = np.exp(log_weight - log_weight.max()).sum(axis=1)
    return np.flatnonzero(weight > HYPOTHESIS_WEIGHT * weight.sum())


def systematic(weight: Array, count: int, rng: np.random.Generator) -> IntArray:
    """Indices drawn in proportion to the weights by systematic resampling, which has the least
    sampling noise. In random order: draws of different runs are paired by index, and sorted ones
    would correlate."""
    total = np.cumsum(weight)
    position = (np.arange(count) + rng.random()) * (total[-1] / count)
    index = np.minimum(np.searchsorted(total, position, side="right"), len(weight) - 1)
    return rng.permutation(index)
