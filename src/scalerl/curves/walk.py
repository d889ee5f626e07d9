"""What the law does not explain: a random walk in ln C, and an early phase that is not the law's.

From the cut t_c on, u is a walk that starts at 0 with variance s2 tau^2 per unit of its clock,
which runs fast at first and slows to one unit of ln C at the end t_n: a run settles into its law.
Before it, u leads backwards from 0 at t_c, so rough that the points there say little about the law
(the paper leaves out its first 1.5k GPU-hours; here the size of the cut is itself a hypothesis):

    clock(s) = s + EARLY (s - s^2 / 2 S)                  s = t - t_c, S = t_n - t_c
    cov(u_i, u_j) = s2 tau^2   clock(min(t_i, t_j) - t_c) both after the cut
                  = s2 rough^2 (t_c - max(t_i, t_j))      both before it
                  = 0                                     one on either side

Several (tau, cut) are kept side by side and weighed by the evidence: the data decide how rough a
run is and where its law begins.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scalerl.curves.noise import Points

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]


#: How much faster the clock runs at the cut than at the end.
EARLY = 2.0


@dataclass(frozen=True, slots=True)
class Walk:
    """Covariances of one window's points, for every hypothesis (first axis)."""

    t: Array
    #: Variance per unit of ln C after the cut, and the cut, of each hypothesis.
    tau2: Array
    cut: Array
    #: The same before the cut, for all.
    rough2: float
    #: Inverse Cholesky factors of Sigma = diag(D) + cov(u) / s2, and ln |Sigma|^(1/2).
    whiten: Array
    log_det: Array
    #: E[u_n | data] = end @ (y - law), and its variance in units of s2.
    end: Array
    end_variance: Array

    @staticmethod
    def of(points: Points, tau: Array, cut: Array, rough: float) -> Walk:
        """One hypothesis for each pair of `tau` and `cut` (ln C), which are of one length."""
        tau2, rough2 = tau * tau, rough * rough
        shared = np.minimum(points.t[:, None], points.t[None, :])
        later = np.maximum(points.t[:, None], points.t[None, :])
        cov = tau2[:, None, None] * _clock(shared, cut[:, None, None], points.t[-1])
        cov += rough2 * np.maximum(cut[:, None, None] - later, 0.0)
        chol = np.linalg.cholesky(np.diag(points.variance) + cov)
        whiten = np.linalg.inv(chol)
        log_det = np.log(np.diagonal(chol, axis1=1, axis2=2)).sum(axis=1)
        w = np.einsum("kij,kj->ki", whiten, cov[:, :, -1])
        end = np.einsum("kij,ki->kj", whiten, w)
        end_variance = np.maximum(cov[:, -1, -1] - (w * w).sum(axis=1), 0.0)
        return Walk(points.t, tau2, cut, rough2, whiten, log_det, end, end_variance)

    def only(self, chosen: IntArray) -> Walk:
        """Some of the hypotheses."""
        return Walk(
            self.t,
            self.tau2[chosen],
            self.cut[chosen],
            self.rough2,
            self.whiten[chosen],
            self.log_det[chosen],
            self.end[chosen],
            self.end_variance[chosen],
        )

    def at(self, k: int, t: Array) -> tuple[Array, Array]:
        """For the k-th hypothesis and times inside the window: the weights of y - law in
        E[u(t) | data], (len(t), n), and the variance of u(t) given the data in units of s2."""
        t = np.clip(t, self.t[0], self.t[-1])
        cross = self._cov(k, t[:, None], self.t[None, :])
        w = cross @ self.whiten[k].T
        return w @ self.whiten[k], np.maximum(self._cov(k, t, t) - (w * w).sum(axis=1), 0.0)

    def _cov(self, k: int, t: Array, s: Array) -> Array:
        after = _clock(np.minimum(t, s), self.cut[k], self.t[-1])
        before = np.maximum(self.cut[k] - np.maximum(t, s), 0.0)
        return np.asarray(self.tau2[k] * after + self.rough2 * before)


def _clock(t: Array, cut: Array, end: float) -> Array:
    """Time of the walk at ln C = t; 0 before the cut."""
    s = np.maximum(t - cut, 0.0)
    return np.asarray(s + EARLY * (s - 0.5 * s * s / np.maximum(end - cut, 1e-9)))
