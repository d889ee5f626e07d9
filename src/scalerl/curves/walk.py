"""What the law does not explain: a random walk in ln C, faster in the early phase.

u starts at 0 and has variance s2 tau^2 V(t), where the clock V runs at rate 1 at the end of the
window and 1 + early at its start: cov(u_i, u_j) = s2 tau^2 min(V_i, V_j). Several tau are kept side
by side, since the data decide how rough a run is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scalerl.curves.noise import Points

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Walk:
    """Covariances of one window's points, for every tau (first axis)."""

    start: float
    span: float
    early: float
    clock: Array
    tau2: Array
    #: Inverse Cholesky factors of Sigma = diag(D) + tau^2 min(V, V), and ln |Sigma|^(1/2).
    whiten: Array
    log_det: Array
    #: E[u_n | data] = end @ (y - law), and its variance in units of s2.
    end: Array
    end_variance: Array

    @staticmethod
    def of(points: Points, tau: Array, early: float) -> Walk:
        start, span = float(points.t[0]), max(float(points.t[-1] - points.t[0]), 1e-9)
        clock = _clock(points.t - start, span, early)
        tau2 = tau * tau
        shared = np.minimum(clock[:, None], clock[None, :])
        chol = np.linalg.cholesky(np.diag(points.variance) + tau2[:, None, None] * shared)
        whiten = np.linalg.inv(chol)
        log_det = np.log(np.diagonal(chol, axis1=1, axis2=2)).sum(axis=1)
        w = np.einsum("kij,kj->ki", whiten, tau2[:, None] * clock)
        end = np.einsum("kij,ki->kj", whiten, w)
        end_variance = np.maximum(tau2 * clock[-1] - (w * w).sum(axis=1), 0.0)
        return Walk(start, span, early, clock, tau2, whiten, log_det, end, end_variance)

    def at(self, k: int, t: Array) -> tuple[Array, Array]:
        """For the k-th tau and times inside the window: the weights of y - law in E[u(t) | data],
        (len(t), n), and the variance of u(t) given the data in units of s2."""
        clock = _clock(np.clip(t - self.start, 0.0, self.span), self.span, self.early)
        cross = self.tau2[k] * np.minimum(clock[:, None], self.clock[None, :])
        w = cross @ self.whiten[k].T
        return w @ self.whiten[k], np.maximum(self.tau2[k] * clock - (w * w).sum(axis=1), 0.0)


def _clock(since: Array, span: float, early: float) -> Array:
    return since + early * (since - since * since / (2.0 * span))
