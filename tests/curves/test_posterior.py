"""The posterior against slow, obvious matrices: a slip here hides behind calibrated constants."""

import numpy as np
import pytest
from simulate import PAPER, curve

from scalerl.curves.formula import logistic
from scalerl.curves.noise import prepare
from scalerl.curves.posterior import Priors, sample_posterior, solve_cells
from scalerl.curves.walk import Walk

PRIORS = Priors()


def window(n=25, end=20000.0, seed=0, with_zero=False):
    c, y = curve(PAPER, end, np.random.default_rng(seed), n=n)
    if with_zero:
        c, y = np.concatenate([[0.0], c]), np.concatenate([[0.301], y])
    return prepare(c, y, None)


def dense_sigma(points, tau):
    """Sigma entry by entry: noise on the diagonal, tau^2 min(V_i, V_j) everywhere."""
    t, early = points.t, PRIORS.early
    span = t[-1] - t[0]

    def clock(x):  # the integral of 1 + early (1 - s/span), numerically
        s = np.linspace(0, x - t[0], 20001)
        return np.trapezoid(1 + early * (1 - s / span), s)

    v = [clock(x) for x in t]
    n = len(t)
    sigma = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            sigma[i, j] = tau**2 * min(v[i], v[j]) + (points.variance[i] if i == j else 0.0)
    return sigma


def test_walk_covariance_equals_the_dense_one():
    points = window()
    tau = points.scale * np.asarray(PRIORS.tau)
    walk = Walk.of(points, tau, PRIORS.early)
    for k, value in enumerate(tau):
        sigma = dense_sigma(points, value)
        inverse = walk.whiten[k].T @ walk.whiten[k]
        np.testing.assert_allclose(inverse @ sigma, np.eye(len(sigma)), atol=1e-6)
        assert walk.log_det[k] == pytest.approx(0.5 * np.linalg.slogdet(sigma)[1], rel=1e-6)


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
    """An independent route to the same posterior: draw (B, C_mid, tau, s2, R_0, A) from the prior,
    weigh by the likelihood with dense matrices, and compare the moments of A and of u's end."""
    c, y = curve(PAPER, 12000.0, np.random.default_rng(3), n=7, sd=0.02)
    points = prepare(c, y, np.full(7, 400.0))
    t_end = float(np.log(c[-1]))
    posterior = sample_posterior(points, t_end, None, np.random.default_rng(0), PRIORS, 20000)

    rng = np.random.default_rng(1)
    n = 400_000
    taus = points.scale * np.asarray(PRIORS.tau)
    k = rng.choice(len(taus), n, p=PRIORS.tau_weight)
    log_b = rng.normal(np.log(PRIORS.b_median), PRIORS.b_log_sd, n)
    log_mid = rng.normal(t_end, PRIORS.mid_log_sd, n)
    s2 = PRIORS.nu0 / rng.chisquare(PRIORS.nu0, n)
    level = float(np.clip(points.level + PRIORS.a_step, 0, 1))
    r0 = rng.normal(points.score[0], PRIORS.r0_sd * np.sqrt(s2))
    a = rng.normal(level, PRIORS.a_sd * np.sqrt(s2))
    low = min(points.t[0], t_end - PRIORS.mid_below) - PRIORS.mid_margin
    ok = (r0 >= 0) & (r0 <= a) & (a <= 1)
    ok &= (log_b > np.log(0.25)) & (log_b < np.log(6))
    ok &= (log_mid > low) & (log_mid < t_end + PRIORS.mid_above)
    log_w = np.full(n, -np.inf)
    for i, tau in enumerate(taus):
        rows = np.flatnonzero(ok & (k == i))
        whiten = np.linalg.inv(np.linalg.cholesky(dense_sigma(points, tau)))
        f = logistic(np.exp(log_b[rows])[:, None] * (points.t[None, :] - log_mid[rows, None]))
        e = points.score - r0[rows, None] * (1 - f) - a[rows, None] * f
        z2 = ((e @ whiten.T) ** 2).sum(axis=1)
        half_log_det = np.log(np.diag(np.linalg.cholesky(dense_sigma(points, tau)))).sum()
        log_w[rows] = -0.5 * z2 / s2[rows] - 0.5 * len(points.t) * np.log(s2[rows]) - half_log_det
    w = np.exp(log_w - log_w.max())
    w /= w.sum()
    effective = 1.0 / (w**2).sum()
    assert effective > 800
    mean = float(w @ a)
    sd = float(np.sqrt(w @ (a - mean) ** 2))
    error = sd / np.sqrt(effective)
    assert posterior.draws.a.mean() == pytest.approx(mean, abs=5 * error)
    assert posterior.draws.a.std() == pytest.approx(sd, rel=0.12)
    log_mid_mean = float(w @ log_mid)
    assert posterior.draws.log_mid.mean() == pytest.approx(log_mid_mean, abs=0.12)


def test_grid_zooms_in_on_a_sharp_posterior():
    points = window(n=40, end=100_000.0)
    sharp = sample_posterior(points, np.log(1e5), None, np.random.default_rng(0), PRIORS)
    whole = (np.log(6) - np.log(0.25)) / (PRIORS.b_cells - 1)
    assert sharp.spacing[0] < 0.7 * whole
    assert len(np.unique(sharp.draws.log_mid)) > 12
