"""The posterior against slow, obvious matrices: a slip here hides behind calibrated constants."""

import numpy as np
import pytest
from simulate import PAPER, curve

from scalerl.curves.formula import logistic
from scalerl.curves.noise import bin_curve
from scalerl.curves.posterior import cuts, fraction, sample_posterior, solve_cells
from scalerl.curves.priors import learned_priors
from scalerl.curves.residual_process import EARLY_CLOCK_RATE, ResidualCovariance

PRIORS = learned_priors("validation").window


def window(n=25, end=20000.0, seed=0, with_zero=False):
    c, y = curve(PAPER, end, np.random.default_rng(seed), n=n)
    if with_zero:
        c, y = np.concatenate([[0.0], c]), np.concatenate([[0.301], y])
    return bin_curve(c, y, None)


def dense_sigma(points, tau, cut=None):
    """Sigma entry by entry: noise on the diagonal, and a walk on either side of the cut."""
    t = points.t
    cut = t[0] if cut is None else cut
    n = len(t)
    sigma = np.diag(points.variance.copy())
    for i in range(n):
        for j in range(n):
            if min(t[i], t[j]) > cut:
                s, span = min(t[i], t[j]) - cut, t[-1] - cut
                sigma[i, j] += tau**2 * (s + EARLY_CLOCK_RATE * (s - s**2 / (2 * span)))
            if max(t[i], t[j]) < cut:
                sigma[i, j] += (PRIORS.rough * points.scale) ** 2 * (cut - max(t[i], t[j]))
    return sigma


def test_residual_covariance_equals_the_dense_one():
    points = window()
    tau = points.scale * np.asarray(PRIORS.tau)
    for cut in (points.t[0], points.t[4], 0.5 * (points.t[4] + points.t[5])):
        covariance = ResidualCovariance.from_points(
            points, tau, np.full(len(tau), cut), PRIORS.rough * points.scale
        )
        for k, value in enumerate(tau):
            sigma = dense_sigma(points, value, cut)
            inverse = covariance.whiten[k].T @ covariance.whiten[k]
            np.testing.assert_allclose(inverse @ sigma, np.eye(len(sigma)), atol=1e-6)
            assert covariance.log_det[k] == pytest.approx(
                0.5 * np.linalg.slogdet(sigma)[1], rel=1e-6
            )


def test_residual_inside_the_window_equals_dense_regression_on_either_side_of_the_cut():
    points = window()
    cut, tau = float(points.t[6]), 0.1 * points.scale
    covariance = ResidualCovariance.from_points(
        points, np.array([tau]), np.array([cut]), PRIORS.rough * points.scale
    )
    sigma = dense_sigma(points, tau, cut)
    noiseless = sigma - np.diag(points.variance)
    weights, variance = covariance.at(0, points.t)
    expected = noiseless @ np.linalg.inv(sigma)
    np.testing.assert_allclose(weights, expected, atol=1e-8)
    left = np.diag(noiseless - expected @ noiseless)
    np.testing.assert_allclose(variance, np.maximum(left, 0.0), atol=1e-10)
    np.testing.assert_allclose(covariance.end[0], expected[-1], atol=1e-8)


@pytest.mark.parametrize("with_zero", [False, True])
def test_cell_equals_dense_bayesian_regression(with_zero):
    points = window(with_zero=with_zero)
    tau = 0.06 * points.scale
    sigma = dense_sigma(points, tau)
    b, mid = 1.4, np.log(9000.0)
    f = logistic(b * (points.t - mid))
    f[points.at_zero] = 0.0
    mean, sd = np.array([0.3, 0.7]), np.array([0.5, 0.35])

    # The textbook: prior N(mean, s2 diag(sd^2)), noise N(0, s2 Sigma), s2 ~ IG(nu0/2, nu0/2).
    x = np.column_stack([1 - f, f])
    precision = np.linalg.inv(sigma)
    m = x.T @ precision @ x + np.diag(sd**-2.0)
    post_mean = np.linalg.solve(m, x.T @ precision @ points.score + np.diag(sd**-2.0) @ mean)
    covariance = np.linalg.inv(m)
    marginal = sigma + x @ np.diag(sd**2) @ x.T
    e = points.score - x @ mean
    q = e @ np.linalg.solve(marginal, e)
    nu = PRIORS.nu0 + len(e)
    # Multivariate Student density, constants shared by all cells left out.
    log_weight = -0.5 * nu * np.log(PRIORS.nu0 + q) - 0.5 * np.linalg.slogdet(marginal)[1]
    log_weight += 0.5 * np.linalg.slogdet(np.diag(sd**2))[1]

    whiten = np.linalg.inv(np.linalg.cholesky(sigma))
    cells = solve_cells(
        (whiten @ points.score)[None],
        whiten.sum(axis=1)[None],
        (whiten @ f)[None, :, None],
        (0.3, 0.7),
        (0.5, 0.35),
        np.array([0.5 * np.linalg.slogdet(sigma)[1]]),
        PRIORS.nu0,
    )
    assert cells.mean_r0[0, 0] == pytest.approx(post_mean[0], abs=1e-7)
    assert cells.mean_a[0, 0] == pytest.approx(post_mean[1], abs=1e-7)
    assert cells.a22[0, 0] / cells.det[0, 0] == pytest.approx(covariance[0, 0], rel=1e-6)  # var R_0
    assert cells.a11[0, 0] / cells.det[0, 0] == pytest.approx(covariance[1, 1], rel=1e-6)  # var A
    assert -cells.a12[0, 0] / cells.det[0, 0] == pytest.approx(covariance[0, 1], rel=1e-6)
    assert cells.q[0, 0] == pytest.approx(q, rel=1e-6)
    assert cells.log_weight[0, 0] == pytest.approx(log_weight, abs=1e-5)


def test_draws_have_the_mean_and_variance_of_importance_sampling():
    """An independent route to the same posterior: draw (B, C_mid, shape, tau, cut, s2, R_0, A)
    from the prior, weigh by the likelihood with dense matrices, and compare the moments."""
    c, y = curve(PAPER, 12000.0, np.random.default_rng(3), n=7, sd=0.02)
    points = bin_curve(c, y, np.full(7, 400.0))
    t_end = float(np.log(c[-1]))
    posterior = sample_posterior(points, t_end, None, np.random.default_rng(0), PRIORS, 20000)

    rng = np.random.default_rng(1)
    n = 1_500_000
    taus = points.scale * np.asarray(PRIORS.tau)
    starts = cuts(points, t_end, PRIORS)
    assert len(starts) > 1
    cut_weight = np.array([PRIORS.no_cut_weight, *[1.0] * (len(starts) - 1)])
    k = rng.choice(len(taus), n, p=PRIORS.tau_weight)
    cut = rng.choice(len(starts), n, p=cut_weight / cut_weight.sum())
    shape = rng.choice(PRIORS.shapes, n, p=PRIORS.shape_weight)
    flat = rng.random(n) < PRIORS.flat_weight
    log_b = rng.normal(np.log(PRIORS.b_median), PRIORS.b_log_sd, n)
    log_mid = rng.normal(t_end, PRIORS.mid_log_sd, n)
    s2 = PRIORS.nu0 / rng.chisquare(PRIORS.nu0, n)
    gained = max(points.level - points.score[0], 0.0)
    level = min(points.level + PRIORS.a_step + PRIORS.a_share * gained, 1.0)
    r0 = rng.normal(points.score[0], PRIORS.r0_sd * np.sqrt(s2))
    a_sd = PRIORS.a_sd + PRIORS.a_sd_share * gained
    a = np.where(flat, r0, rng.normal(level, a_sd * np.sqrt(s2)))
    low = min(points.t[0], t_end - PRIORS.mid_below) - PRIORS.mid_margin
    ok = (r0 >= 0) & (r0 <= a) & (a <= 1)
    ok &= (log_b > np.log(0.25)) & (log_b < np.log(6))
    ok &= (log_mid > low) & (log_mid < t_end + PRIORS.mid_above)
    log_w = np.full(n, -np.inf)
    for i, j in np.ndindex(len(taus), len(starts)):
        chol = np.linalg.cholesky(dense_sigma(points, taus[i], starts[j]))
        for v in PRIORS.shapes:
            rows = np.flatnonzero(ok & (k == i) & (cut == j) & (shape == v))
            half = 2 ** (1 / v) - 1  # f = 1/2 at C_mid, with a slope of B / 4 there
            rate = np.exp(log_b[rows]) / (2 * v * (1 - 2 ** (-1 / v)))
            f = (1 + half * np.exp(-rate[:, None] * (points.t - log_mid[rows, None]))) ** -v
            e = points.score - r0[rows, None] * (1 - f) - a[rows, None] * f
            z2 = (np.linalg.solve(chol, e.T) ** 2).sum(axis=0)
            log_w[rows] = -0.5 * z2 / s2[rows] - 0.5 * len(points.t) * np.log(s2[rows])
            log_w[rows] -= np.log(np.diag(chol)).sum()
    w = np.exp(log_w - log_w.max())
    w /= w.sum()
    effective = 1.0 / (w**2).sum()
    assert effective > 800
    mean = float(w @ a)
    sd = float(np.sqrt(w @ (a - mean) ** 2))
    error = sd / np.sqrt(effective)
    assert posterior.draws.a.mean() == pytest.approx(mean, abs=5 * error)
    assert posterior.draws.a.std() == pytest.approx(sd, rel=0.12)
    rising, w_rising = ~posterior.draws.flat, w * ~flat
    log_mid_mean = float(w_rising @ log_mid / w_rising.sum())
    assert posterior.draws.log_mid[rising].mean() == pytest.approx(log_mid_mean, abs=0.12)
    assert posterior.no_gain == pytest.approx(float(w @ flat), abs=0.03)
    begins = sum(p for share, p in posterior.early if share > 0)
    assert begins == pytest.approx(float(w @ (cut > 0)), abs=0.03)
    assert (posterior.draws.shape[rising] == 0.5).mean() == pytest.approx(
        float(w_rising @ (shape == 0.5) / w_rising.sum()), abs=0.03
    )


def test_grid_zooms_in_on_a_sharp_posterior():
    points = window(n=40, end=100_000.0)
    sharp = sample_posterior(points, np.log(1e5), None, np.random.default_rng(0), PRIORS)
    whole = (np.log(6) - np.log(0.25)) / (PRIORS.b_cells - 1)
    assert sharp.spacing[0] < 0.7 * whole
    assert len(np.unique(sharp.draws.log_mid)) > 12


@pytest.mark.parametrize("shape", PRIORS.shapes)
def test_every_shape_is_half_way_at_c_mid_with_the_slope_of_a_sigmoid(shape):
    b, mid, d = np.log(1.7), 3.0, 1e-5
    below, at, above = fraction(np.array([mid - d, mid, mid + d]), b, mid, shape)
    assert at == pytest.approx(0.5)
    assert (above - below) / (2 * d) == pytest.approx(1.7 / 4, rel=1e-6)
    assert fraction(np.array([-np.inf]), b, mid, shape)[0] == 0.0
