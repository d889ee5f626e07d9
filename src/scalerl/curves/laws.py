"""The laws a learning curve may follow, as pure functions of compute.

    sigmoid        R(C) = R_0 + (A - R_0) / (1 + (C_mid / C)^B)        (Equation 1 of the paper)
    power law      R(C) = A - D / C^B                                  (its large-C limit)
    no change      R(C) = A

Everything is computed in log space: the sigmoid's fraction of the gain is
f = 1 / (1 + exp(-B (ln C - ln C_mid))), which is safe for C = 0, tiny and huge C.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

#: exp(700) is near the largest float64: powers of compute saturate there.
MAX_EXPONENT = 700.0


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


def _power(exponent: Array) -> Array:
    """exp() that saturates at 0 and at a huge finite number."""
    with np.errstate(under="ignore"):
        return np.exp(np.clip(exponent, -MAX_EXPONENT, MAX_EXPONENT))


class Law(Protocol):
    """A curve with a ceiling, its slope in every parameter, and its inverse."""

    names: ClassVar[tuple[str, ...]]

    @property
    def ceiling(self) -> float: ...
    def value(self, compute: npt.ArrayLike) -> Array: ...
    def gradient(self, compute: npt.ArrayLike) -> Array: ...
    def inverse(self, score: npt.ArrayLike) -> Array: ...
    def params(self) -> dict[str, float]: ...


@dataclass(frozen=True, slots=True)
class Sigmoid:
    """Equation 1. `gradient` columns are in the order of `names`.

    >>> law = Sigmoid(R_0=0.30, A=0.645, B=1.70, C_mid=8000)
    >>> law.value([2000, 8000, 20000, 50000]).round(4).tolist()
    [0.3299, 0.4725, 0.585, 0.6303]
    >>> round(float(law.compute_at_fraction(0.9)))
    29135
    """

    R_0: float
    A: float
    B: float
    C_mid: float

    names: ClassVar[tuple[str, ...]] = ("R_0", "A", "B", "C_mid")

    @property
    def ceiling(self) -> float:
        return self.A

    def fraction(self, compute: npt.ArrayLike) -> Array:
        """Share of the gain A - R_0 reached at this compute."""
        return logistic(self.B * (log_compute(compute) - np.log(self.C_mid)))

    def value(self, compute: npt.ArrayLike) -> Array:
        f = self.fraction(compute)
        return self.R_0 * (1.0 - f) + self.A * f

    def gradient(self, compute: npt.ArrayLike) -> Array:
        c = np.asarray(compute, dtype=np.float64)
        f = self.fraction(c)
        slope = (self.A - self.R_0) * f * (1.0 - f)
        distance = np.where(slope != 0.0, log_compute(c) - np.log(self.C_mid), 0.0)
        return np.stack(
            [
                1.0 - f,
                f,
                slope * np.where(slope != 0.0, distance, 0.0),
                -slope * self.B / self.C_mid,
            ],
            axis=-1,
        )

    def compute_at_fraction(self, fraction: npt.ArrayLike) -> Array:
        """Compute at which this share of the gain is reached: C_mid (f / (1 - f))^(1/B)."""
        f = np.asarray(fraction, dtype=np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            z = np.log(f) - np.log1p(-f)
        c = np.where(f <= 0.0, 0.0, np.where(f >= 1.0, np.inf, self.C_mid * _power(z / self.B)))
        return np.where(np.isnan(f), np.nan, c)

    def inverse(self, score: npt.ArrayLike) -> Array:
        """Compute at which the score is reached; inf where it never is, 0 at or below R_0."""
        gain = self.A - self.R_0
        s = np.asarray(score, dtype=np.float64)
        if gain <= 0.0:
            return np.where(s <= self.R_0, 0.0, np.inf)
        return self.compute_at_fraction(np.clip((s - self.R_0) / gain, 0.0, 1.0))

    def limit(self) -> PowerLaw:
        """The power law it turns into when C is much larger than C_mid: D = (A - R_0) C_mid^B."""
        scale = (self.A - self.R_0) * float(_power(np.asarray(self.B * np.log(self.C_mid))))
        return PowerLaw(A=self.A, D=scale, B=self.B)

    def efficiency(self, compute: npt.ArrayLike, score: npt.ArrayLike) -> tuple[Array, Array]:
        """The paper's efficiency re-plot: (ln C, ln F) with F = C_mid^B / ((A-R_0)/(R-R_0) - 1),
        which is the straight line ln F = B ln C. Points outside R_0 < R < A have no F: dropped."""
        c = np.asarray(compute, dtype=np.float64)
        s = np.asarray(score, dtype=np.float64)
        keep = (c > 0) & (s > self.R_0) & (s < self.A)
        f = (s[keep] - self.R_0) / (self.A - self.R_0)
        return np.log(c[keep]), self.B * np.log(self.C_mid) + np.log(f) - np.log1p(-f)

    def params(self) -> dict[str, float]:
        return {"R_0": self.R_0, "A": self.A, "B": self.B, "C_mid": self.C_mid}

    @staticmethod
    def starting_values(compute: npt.ArrayLike, score: npt.ArrayLike) -> Sigmoid:
        """Where a search may begin: first level, a ceiling a little above the last, and the compute
        at which the curve is half way between the two."""
        c, s = positive_points(compute, score)
        tail = max(1, len(s) // 5)
        r0, last = float(s[0]), float(s[-tail:].mean())
        a = min(1.0, last + 0.1 * max(abs(last - r0), 0.02))
        half = int(np.argmin(np.abs(s - (r0 + a) / 2)))
        return Sigmoid(R_0=min(r0, a), A=a, B=1.5, C_mid=float(c[half]))


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """R = A - D / C^B, the law the paper measured the sigmoid against. It diverges at small C.

    >>> law = PowerLaw(A=0.7, D=10.0, B=0.5)
    >>> round(float(law.value(2500.0)), 6), round(float(law.inverse(0.5)), 6)
    (0.5, 2500.0)
    """

    A: float
    D: float
    B: float

    names: ClassVar[tuple[str, ...]] = ("A", "D", "B")

    @property
    def ceiling(self) -> float:
        return self.A

    def _distance(self, compute: npt.ArrayLike) -> Array:
        if self.D == 0.0:
            return np.zeros_like(np.asarray(compute, dtype=np.float64))
        log_d = np.log(abs(self.D))
        distance: Array = np.sign(self.D) * _power(log_d - self.B * log_compute(compute))
        return distance

    def value(self, compute: npt.ArrayLike) -> Array:
        return self.A - self._distance(compute)

    def gradient(self, compute: npt.ArrayLike) -> Array:
        c = np.asarray(compute, dtype=np.float64)
        per_d = _power(-self.B * log_compute(c))
        finite_log = np.where(c > 0, log_compute(np.maximum(c, 1e-300)), np.log(1e-300))
        return np.stack([np.ones_like(c), -per_d, self._distance(c) * finite_log], axis=-1)

    def inverse(self, score: npt.ArrayLike) -> Array:
        s = np.asarray(score, dtype=np.float64)
        if self.D <= 0.0:
            return np.where(s <= self.A, 0.0, np.inf)
        gap = np.maximum(self.A - s, 1e-300)
        c = _power((np.log(self.D) - np.log(gap)) / self.B)
        return np.where(s >= self.A, np.inf, c)

    def params(self) -> dict[str, float]:
        return {"A": self.A, "D": self.D, "B": self.B}

    @staticmethod
    def starting_values(compute: npt.ArrayLike, score: npt.ArrayLike) -> PowerLaw:
        """The large-C limit of the sigmoid's starting values, with a gentle slope."""
        c, s = positive_points(compute, score)
        a = min(1.0, float(s[-max(1, len(s) // 5) :].mean()) + 0.05)
        b = 0.5
        return PowerLaw(A=a, D=max(a - float(s[0]), 1e-3) * float(c[0]) ** b, B=b)


@dataclass(frozen=True, slots=True)
class NoChange:
    """The level seen last, for ever: the reference every forecast has to beat.

    >>> NoChange.starting_values([1, 2, 3, 4], [0.1, 0.2, 0.3, 0.3]).value(99.0).item()
    0.26666666666666666
    """

    A: float

    names: ClassVar[tuple[str, ...]] = ("A",)

    @property
    def ceiling(self) -> float:
        return self.A

    def value(self, compute: npt.ArrayLike) -> Array:
        return np.full_like(np.asarray(compute, dtype=np.float64), self.A)

    def gradient(self, compute: npt.ArrayLike) -> Array:
        return np.ones((*np.shape(compute), 1))

    def inverse(self, score: npt.ArrayLike) -> Array:
        return np.where(np.asarray(score, dtype=np.float64) <= self.A, 0.0, np.inf)

    def params(self) -> dict[str, float]:
        return {"A": self.A}

    @staticmethod
    def starting_values(compute: npt.ArrayLike, score: npt.ArrayLike) -> NoChange:
        """Mean of the last 15 % of the points, at least 3 and at most 10 of them."""
        s = np.asarray(score, dtype=np.float64)
        return NoChange(A=float(s[-tail_length(len(s)) :].mean()))


LAWS: dict[str, type[Any]] = {"sigmoid": Sigmoid, "power": PowerLaw, "no-change": NoChange}


def tail_length(n: int) -> int:
    """How many of the last points make up "the level now"."""
    return int(min(max(round(0.15 * n), 3), 10, n))


def positive_points(compute: npt.ArrayLike, score: npt.ArrayLike) -> tuple[Array, Array]:
    """The points with C > 0, by ascending compute."""
    c, s = np.asarray(compute, dtype=np.float64), np.asarray(score, dtype=np.float64)
    order = np.argsort(c, kind="stable")
    c, s = c[order], s[order]
    return c[c > 0], s[c > 0]
