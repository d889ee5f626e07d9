"""Runs with a known shape, for pictures and pages."""

from __future__ import annotations

import numpy as np

from scalerl.curves.fit import fit
from scalerl.curves.result import Fit
from scalerl.runs.record import ComputeKind, Run

HOSTILE = (
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "../../../etc/passwd",
    "line\u2028separator\u2029and\nbreak\ttab",
    "</noscript></svg><!-- & ]]> $title ${css}",
    "$x_1^2$ \\frac{a}{b}",
    "名前 🚀 " + "long/" * 40,
    "",
)


def climbing(
    name: str = "climbing",
    n: int = 40,
    last: float = 60_000.0,
    ceiling: float = 0.64,
    seed: int = 0,
    x_kind: ComputeKind = "gpu_hours",
    notes: tuple[str, ...] = (),
) -> Run:
    """A sigmoid with C_mid 8,000 and a little noise."""
    c = np.geomspace(500.0, last, n)
    noise = 0.004 * np.random.default_rng(seed).standard_normal(n)
    score = 0.3 + (ceiling - 0.3) / (1.0 + (8000.0 / c) ** 1.7) + noise
    return Run(name, compute=c, score=np.clip(score, 0.0, 1.0), x_kind=x_kind, notes=notes)


def known(name: str = "climbing", seed: int = 0) -> Fit:
    """A fit with an identified ceiling and held-out points."""
    return fit(climbing(name, seed=seed, last=120_000.0), hi=90_000.0)


def unknown(name: str = "early") -> Fit:
    """A fit that has seen too little to say where the run ends."""
    return fit(climbing(name, n=16, last=5_000.0))


def declining(name: str = "falling") -> Fit:
    """A fit whose run has collapsed."""
    c = np.linspace(10.0, 600.0, 60)
    score = np.where(c < 350.0, 0.2 + 0.4 * c / 350.0, 0.6 - 0.5 * (c - 350.0) / 250.0)
    noise = 0.004 * np.random.default_rng(3).standard_normal(len(c))
    return fit(Run(name, compute=c, score=score + noise, x_kind="steps"))
