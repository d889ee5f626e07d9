"""Learning curves whose truth is known, for tests and benchmarks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from scalerl.curves.formula import Sigmoid

Array = npt.NDArray[np.float64]

#: The paper's flagship run, as its unit tests have it.
PAPER = Sigmoid(R_0=0.30, A=0.645, B=1.70, C_mid=8000.0)


def noise(n: int, sd: float, rho: float, rng: np.random.Generator) -> Array:
    """AR(1) noise with this standard deviation and lag-1 correlation."""
    e = rng.standard_normal(n) * sd
    for i in range(1, n):
        e[i] = rho * e[i - 1] + np.sqrt(1.0 - rho**2) * e[i]
    return e


def curve(
    law: Sigmoid,
    end: float,
    rng: np.random.Generator,
    n: int = 60,
    sd: float = 0.005,
    rho: float = 0.4,
) -> tuple[Array, Array]:
    """n equally spaced evaluations of the law up to `end`, with correlated noise."""
    c = np.linspace(end / n, end, n)
    return c, np.clip(law.value(c) + noise(n, sd, rho, rng), 0.0, 1.0)


def random_law(rng: np.random.Generator) -> Sigmoid:
    """A law from the range that real runs show."""
    r0 = rng.uniform(0.05, 0.5)
    return Sigmoid(
        R_0=r0,
        A=r0 + rng.uniform(0.1, 0.95 - r0),
        B=float(np.exp(rng.normal(np.log(1.7), 0.25))),
        C_mid=1000.0,
    )
