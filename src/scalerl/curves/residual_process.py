"""The residual process u: what the law does not explain, modelled as a random walk in ln C.

From the cut t_c on, u starts at 0 and has variance s2 tau^2 per unit of its clock, which runs fast
at first and slows to one unit of ln C at the end t_n, because a run settles into its law. Before
the cut, u runs backwards from 0 at t_c and is so rough that the points there say little about the
law. (The paper leaves out its first 1.5k GPU-hours; here the size of the cut is a hypothesis.)

    clock(s) = s + EARLY_CLOCK_RATE (s - s^2 / 2 S)       s = t - t_c, S = t_n - t_c
    cov(u_i, u_j) = s2 tau^2   clock(min(t_i, t_j) - t_c) both after the cut
                  = s2 rough^2 (t_c - max(t_i, t_j))      both before it
                  = 0                                     one on either side

At a break (an intervention, `Run.breaks`) the run changes: its level may jump and its slope may
bend, by unknown amounts. Both are added to u *before* the break t_b:

    u(t) = ... + J + K (t_b - t)    t <= t_b,     J ~ N(0, s2 jump^2),  K ~ N(0, s2 bend^2)

So points before a break still inform about noise, roughness, B and the shape of the curve, but no
longer fix its level. u at the end of the window has no jump in it, which a forecast would take for
a departure from the law that fades (paths.py).

Several hypotheses (tau, cut) are kept side by side and weighted by their evidence, so the data
decide how rough a run is and where its law begins.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from scalerl.curves.formula import Array, IntArray
from scalerl.curves.noise import BinnedCurve, is_before

#: Extra speed of the clock at the cut. Values of 4 and 8 fit long healthy curves no better, and
#: intervals of training rewards then hold less often (docs/explanation/calibration.md).
EARLY_CLOCK_RATE = 2.0
#: sd of the jump at a break, in units of the curve's rise: a change of the data or the score may
#: move the level by as much as the run had gained. A wide prior costs little, because the points
#: on either side measure the jump.
BREAK_JUMP = 0.5
#: sd of the change of slope at a break, in units of the curve's rise per unit of ln C. The default
#: sigmoid rises by B / 4 = 0.4 of its gain per unit of ln C at its steepest: half of that.
BREAK_BEND = 0.2


@dataclass(frozen=True, slots=True)
class ResidualCovariance:
    """Covariance of u at the points of one window, for every hypothesis (first axis)."""

    #: ln C of the points.
    t: Array
    #: Variance of u per unit of its clock after the cut, in units of s2, per hypothesis.
    tau2: Array
    #: ln C of the cut, per hypothesis.
    cut: Array
    #: Variance of u per unit of ln C before the cut, in units of s2, the same for all.
    rough2: float
    #: ln C of the breaks.
    breaks: Array
    #: Variance of the jump and of the bend at a break, in units of s2.
    break2: tuple[float, float]
    #: Inverse Cholesky factors of Sigma = diag(D) + cov(u) / s2.
    whiten: Array
    #: ln |Sigma|^(1/2).
    log_det: Array
    #: Weights of y - law in the mean of u at the last point: E[u_n | data] = end @ (y - law).
    end: Array
    #: Variance of u at the last point given the data, in units of s2.
    end_variance: Array

    @staticmethod
    def from_points(
        points: BinnedCurve, tau: Array, cut: Array, rough: float
    ) -> ResidualCovariance:
        """One hypothesis for each pair of `tau` and `cut` (ln C), which have one length."""
        tau2, rough2 = tau * tau, rough * rough
        earlier = np.minimum(points.t[:, None], points.t[None, :])
        later = np.maximum(points.t[:, None], points.t[None, :])
        cov = tau2[:, None, None] * _clock(earlier, cut[:, None, None], points.t[-1])
        cov += rough2 * np.maximum(cut[:, None, None] - later, 0.0)
        break2 = ((BREAK_JUMP * points.scale) ** 2, (BREAK_BEND * points.scale) ** 2)
        cov += _cov_of_breaks(points.t[:, None], points.t[None, :], points.breaks, break2)
        chol = np.linalg.cholesky(np.diag(points.variance) + cov)
        whiten = np.linalg.inv(chol)
        log_det = np.log(np.diagonal(chol, axis1=1, axis2=2)).sum(axis=1)
        w = np.einsum("kij,kj->ki", whiten, cov[:, :, -1])
        end = np.einsum("kij,ki->kj", whiten, w)
        # A difference of nearly equal numbers where the data fix u: rounding can make it negative.
        end_variance = np.maximum(cov[:, -1, -1] - (w * w).sum(axis=1), 0.0)
        return ResidualCovariance(
            points.t, tau2, cut, rough2, points.breaks, break2, whiten, log_det, end, end_variance
        )

    def only(self, chosen: IntArray) -> ResidualCovariance:
        """The chosen hypotheses."""
        each = ("tau2", "cut", "whiten", "log_det", "end", "end_variance")
        return replace(self, **{name: getattr(self, name)[chosen] for name in each})

    def at(self, k: int, t: Array) -> tuple[Array, Array]:
        """u at times inside the window under the k-th hypothesis: the weights of y - law in
        E[u(t) | data], (len(t), n), and the variance of u(t) given the data in units of s2."""
        t = np.clip(t, self.t[0], self.t[-1])
        cross = self._cov(k, t[:, None], self.t[None, :])
        w = cross @ self.whiten[k].T
        return w @ self.whiten[k], np.maximum(self._cov(k, t, t) - (w * w).sum(axis=1), 0.0)

    def _cov(self, k: int, t: Array, s: Array) -> Array:
        after = _clock(np.minimum(t, s), self.cut[k], self.t[-1])
        before = np.maximum(self.cut[k] - np.maximum(t, s), 0.0)
        broken = _cov_of_breaks(t, s, self.breaks, self.break2)
        return np.asarray(self.tau2[k] * after + self.rough2 * before + broken)


def _cov_of_breaks(t: Array, s: Array, breaks: Array, break2: tuple[float, float]) -> Array:
    """Covariance of the jumps and bends at ln C = t and s; 0 unless both lie before a break."""
    cov = np.zeros(np.broadcast_shapes(t.shape, s.shape))
    for at in breaks:
        both = is_before(t, at) & is_before(s, at)
        cov += np.where(both, break2[0] + break2[1] * (at - t) * (at - s), 0.0)
    return cov


def _clock(t: Array, cut: Array, end: float) -> Array:
    """Clock of the process at ln C = t; 0 before the cut."""
    s = np.maximum(t - cut, 0.0)
    # The floor avoids 0 / 0 where the cut is at the last point; s is 0 there.
    return np.asarray(s + EARLY_CLOCK_RATE * (s - 0.5 * s * s / np.maximum(end - cut, 1e-9)))
