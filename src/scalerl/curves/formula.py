"""Formulas of learning curves: a law with its parameters, as a pure function of compute.

    R(C) = R_0 + (A - R_0) / (1 + (C_mid / C)^B)                       (Equation 1 of the paper)

Everything is computed in log space: the sigmoid's fraction of the gain is
f = 1 / (1 + exp(-B (ln C - ln C_mid))), which is safe for C = 0, tiny and huge C. Formulas that
only one law needs are beside that law, in laws/. Numerical helpers of all fits are here too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]

P = ParamSpec("P")
T = TypeVar("T")

#: exp(700) is near the largest float64: powers of compute saturate there.
MAX_EXPONENT = 700.0


@functools.cache
def _blas_controller() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def one_thread(function: Callable[P, T]) -> Callable[P, T]:
    """The function run with one BLAS thread, whatever the process is set to."""

    # Fits solve many small matrices, for which a second thread costs time, and far more of it when
    # other processes keep the cores busy (measured: 5 ms a fit became 120 ms).
    @functools.wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> T:
        with _blas_controller().limit(limits=1, user_api="blas"):
            return function(*args, **kwargs)

    return limited


def logistic(z: npt.ArrayLike) -> Array:
    """1 / (1 + exp(-z)) without overflow.

    >>> logistic([-1e9, 0.0, 1e9]).tolist()
    [0.0, 0.5, 1.0]
    """
    out = np.negative(np.asarray(z, dtype=np.float64))
    with np.errstate(over="ignore", under="ignore"):  # exp(-z) = inf gives exactly 0
        out = np.exp(out)
        out += 1.0
        return np.asarray(np.reciprocal(out))


def log_compute(compute: npt.ArrayLike) -> Array:
    """ln C, with ln 0 = -inf and no warning."""
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(compute, dtype=np.float64))


def saturating_exp(exponent: Array) -> Array:
    """exp() that saturates at 0 and at a huge finite number."""
    with np.errstate(under="ignore"):
        return np.exp(np.clip(exponent, -MAX_EXPONENT, MAX_EXPONENT))


class Formula(Protocol):
    """A law with its parameters: a score for every compute."""

    def value(self, compute: npt.ArrayLike) -> Array: ...
    def params(self) -> dict[str, float]: ...


F_co = TypeVar("F_co", bound=Formula, covariant=True)


@dataclass(frozen=True, slots=True)
class PointFit(Generic[F_co]):
    """A formula and the sum of squared residuals it leaves."""

    formula: F_co
    sse: float


@dataclass(frozen=True, slots=True)
class Sigmoid:
    """The sigmoid, Equation 1 of the paper.

    >>> sigmoid = Sigmoid(R_0=0.30, A=0.645, B=1.70, C_mid=8000)
    >>> sigmoid.value([2000, 8000, 20000, 50000]).round(4).tolist()
    [0.3299, 0.4725, 0.585, 0.6303]
    """

    R_0: float
    A: float
    B: float
    C_mid: float

    def fraction(self, compute: npt.ArrayLike) -> Array:
        """Share of the gain A - R_0 reached at this compute."""
        return logistic(self.B * (log_compute(compute) - np.log(self.C_mid)))

    def value(self, compute: npt.ArrayLike) -> Array:
        f = self.fraction(compute)
        return self.R_0 * (1.0 - f) + self.A * f

    def efficiency(self, compute: npt.ArrayLike, score: npt.ArrayLike) -> tuple[Array, Array]:
        """The paper's efficiency re-plot: (ln C, ln F) with F = C_mid^B / ((A-R_0)/(R-R_0) - 1),
        which is the straight line ln F = B ln C. Points outside R_0 < R < A have no F: dropped."""
        c = np.asarray(compute, dtype=np.float64)
        s = np.asarray(score, dtype=np.float64)
        keep = (c > 0) & (s > self.R_0) & (s < self.A)
        f = (s[keep] - self.R_0) / (self.A - self.R_0)
        return np.log(c[keep]), self.B * np.log(self.C_mid) + np.log(f) - np.log1p(-f)

    def params(self) -> dict[str, float]:
        return asdict(self)
