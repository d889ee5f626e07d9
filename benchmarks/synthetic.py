"""Runs of known truth: do ceilings lie in their intervals, and are verdicts right, silent or wrong?

python benchmarks/synthetic.py        (about ten minutes on one core)
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy as np

from record import save

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "curves"))
from simulate import PAPER, curve, random_law

from scalerl import compare, fit
from scalerl.curves.arms import Arm, with_family_prior
from scalerl.curves.decision import Verdict, decide

RUNS = 300
PAIRS = 200
#: High ceilings, and where the windows of two runs end, in C_mid.
CEILINGS = (0.95, 0.97, 0.99)
WINDOWS = ((2.5, 1.0), (4.0, 1.0), (2.0, 0.5), (8.0, 2.0), (8.0, 8.0))
#: Beside 0.97 stands a ceiling lower by these, on the shorter run and on the longer one.
LOWER = (0.03, 0.10, 0.30)


def coverage() -> list[dict[str, float]]:
    rows = []
    for multiple in (0.5, 1, 2, 4, 8):
        held, width = [], []
        for seed in range(RUNS):
            rng = np.random.default_rng((seed, 101))
            law = random_law(rng)
            f = fit(*curve(law, multiple * law.C_mid, rng, n=40, sd=0.008))
            low, high = f.quantiles("A", [0.05, 0.95])
            held.append(low <= law.A <= high)
            width.append(high - low)
        row = {
            "window": multiple,
            "cover90": float(np.mean(held)),
            "width90": float(np.mean(width)),
        }
        rows.append(row)
        print(f"window {multiple:>4} C_mid: 90 % interval holds {row['cover90']:.2f}, "
              f"mean width {row['width90']:.3f}")  # fmt: skip
    return rows


def identification() -> list[dict[str, float]]:
    rows = []
    for multiple in (0.5, 1, 2, 4, 6.2, 12.5):
        ends, known = [], []
        for seed in range(60):
            rng = np.random.default_rng((seed, 102))
            f = fit(*curve(PAPER, multiple * PAPER.C_mid, rng, n=40, rho=0.0))
            ends.append(f.quantiles("A", [0.025, 0.975]))
            known.append(f.identified)
        low, high = np.mean(ends, axis=0)
        rows.append({"window": multiple, "low": float(low), "high": float(high),
                     "identified": float(np.mean(known))})  # fmt: skip
        print(f"window {multiple:>4} C_mid: 95 % [{low:.3f}, {high:.3f}], identified "
              f"{np.mean(known):.2f}")  # fmt: skip
    return rows


def ranking(spread: float) -> list[dict[str, float]]:
    """Two recipes whose ceilings differ by 0.03, or not at all; runs of one differ by `spread`, and
    have ended."""
    options = {"seed_sd": spread} if spread else {}
    rows = []
    for multiple in (1, 2, 4, 8):
        row: dict[str, float] = {"window": multiple, "seed_sd": spread}
        for delta in (0.03, 0.0):
            pairs = []
            for seed in range(PAIRS):
                rng = np.random.default_rng((seed, 103, int(10 * multiple)))
                fits = []
                for name, shift in (("a", 0.0), ("b", delta)):
                    a = PAPER.A + shift + spread * rng.standard_normal()
                    law = dataclasses.replace(PAPER, A=a)
                    fits.append(fit(*curve(law, multiple * PAPER.C_mid, rng), name=name))
                pairs.append(compare(*fits, budget=fits[0].end, **options).pairs[0])
            ceiling = [p for p in pairs if p.verdict == "higher-ceiling"]
            paper = [p for p in pairs if p.paper_verdict == "higher-ceiling"]
            if delta:
                row["right"] = sum(p.winner == "b" for p in ceiling) / PAIRS
                row["wrong"] = sum(p.winner == "a" for p in ceiling) / PAIRS
                row["paper_right"] = sum(p.paper_winner == "b" for p in paper) / PAIRS
                row["paper_wrong"] = sum(p.paper_winner == "a" for p in paper) / PAIRS
            else:
                row["false"] = sum(p.verdict in ("higher-ceiling", "faster") for p in pairs) / PAIRS
                row["same"] = sum(p.verdict == "same" for p in pairs) / PAIRS
                row["paper_false"] = len(paper) / PAIRS
        rows.append(row)
        print(" ".join(f"{k} {v:g}" for k, v in row.items()))
    return rows


def high_ceilings() -> list[dict[str, float]]:
    """Ceilings near 1, where the end of the scale cuts them off, and windows of unequal length:
    equal pairs, and pairs that differ. `long_higher`: the ceiling of the longer run is said to be
    the higher one."""
    rows = []
    laws = [(a, a) for a in CEILINGS]
    laws += [pair for d in LOWER for pair in ((0.97, 0.97 - d), (0.97 - d, 0.97))]
    for windows in WINDOWS:
        for ceilings in laws:
            pairs = [_unequal(seed, windows, ceilings) for seed in range(PAIRS // 2)]
            higher = [p.winner for p in pairs if p.name == "higher-ceiling"]
            row = {
                "long_window": windows[0],
                "short_window": windows[1],
                "long_A": ceilings[0],
                "short_A": ceilings[1],
                "pairs": len(pairs),
                "long_higher": higher.count("long") / len(pairs),
                "short_higher": higher.count("short") / len(pairs),
                "faster": sum(p.name == "faster" for p in pairs) / len(pairs),
                "same": sum(p.name == "same" for p in pairs) / len(pairs),
            }
            rows.append(row)
            print(" ".join(f"{k} {v:g}" for k, v in row.items()))
    return rows


def _unequal(seed: int, windows: tuple[float, float], ceilings: tuple[float, float]) -> Verdict:
    """The verdict alone, four times quicker than `compare` with the paper's rule beside it."""
    rng = np.random.default_rng((seed, 104, *(int(10 * w) for w in windows)))
    arms = []
    for name, window, a in zip(("long", "short"), windows, ceilings, strict=True):
        law = dataclasses.replace(PAPER, A=a)
        arms.append(Arm(name, (fit(*curve(law, window * PAPER.C_mid, rng), name=name),)))
    first, second = sorted(with_family_prior(arms), key=lambda arm: -float(np.median(arm.ceiling)))
    return decide(first, second, seed_sd=0.0)


if __name__ == "__main__":
    save("synthetic", {"coverage": coverage(), "identification": identification(),
                       "ranking": ranking(0.0), "ranking_recipes": ranking(0.01),
                       "high_ceilings": high_ceilings()})  # fmt: skip
