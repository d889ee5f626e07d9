"""Quantiles of the standard normal distribution, and intervals of quantities above zero."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from scalerl.errors import InputError

Array = npt.NDArray[np.float64]
#: Standard deviations from the middle to an end of a 90 % interval.
Z90 = NormalDist().inv_cdf(0.95)


@lru_cache(maxsize=8)
def grid(n: int) -> Array:
    """The n equally likely quantiles of the standard normal distribution."""
    inverse = NormalDist().inv_cdf
    found = np.array([inverse((i + 0.5) / n) for i in range(n)])
    found.setflags(write=False)  # the cached array is shared by all callers
    return found


@dataclass(frozen=True, slots=True)
class Interval:
    """A quantity above 0 that is known up to a factor: log-normal between two ends.

    >>> Interval.parse("0.1-0.4", "--mfu").middle
    0.2
    """

    #: Ends of the 90 % interval; equal where the quantity is known.
    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high < float("inf"):
            raise InputError(
                f"{self.low:g}-{self.high:g} is no interval: give two numbers above 0, the lower "
                "first"
            )

    @property
    def middle(self) -> float:
        """The median."""
        return float(np.sqrt(self.low * self.high))

    @property
    def sigma(self) -> float:
        """Standard deviation of the logarithm."""
        return float(np.log(self.high / self.low) / (2 * Z90))

    def draws(self, z: Array) -> Array:
        """Samples for standard normal numbers."""
        return np.asarray(self.middle * np.exp(self.sigma * z))

    def times(self, other: Interval) -> Interval:
        """The product with an independent quantity."""
        middle = self.middle * other.middle
        sigma = float(np.hypot(self.sigma, other.sigma))
        return Interval(middle * np.exp(-Z90 * sigma), middle * np.exp(Z90 * sigma))

    @staticmethod
    def exactly(value: float) -> Interval:
        """A quantity that is known."""
        return Interval(value, value)

    @staticmethod
    def parse(text: str, option: str) -> Interval:
        """The interval of an option: `0.3`, or `0.1-0.4`."""
        parts = text.split("-") if not text.startswith("-") else [text]
        try:
            numbers = [float(part) for part in parts]
        except ValueError:
            numbers = []
        if len(numbers) not in (1, 2):
            raise InputError(f"{option} {text!r}: give a number, or LOW-HIGH such as 0.1-0.4")
        try:
            return Interval(numbers[0], numbers[-1])
        except InputError as error:
            raise InputError(f"{option}: {error}") from None
