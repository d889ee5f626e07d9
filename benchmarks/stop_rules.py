"""What the stopping rules do to runs of known truth: who is stopped, when, and wrongly?

python benchmarks/stop_rules.py       (about two minutes on one core)
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from record import save

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "curves"))
from simulate import curve

from scalerl import fit
from scalerl.curves.formula import Sigmoid
from scalerl.curves.rules import parse_rule
from scalerl.report.progress import ProgressBar

LAW = Sigmoid(R_0=0.1, A=0.6, B=1.7, C_mid=100.0)
EVALUATIONS = 60
RUNS = 20
PATIENCE = 2
FIRST = 6
BOUND = 0.02


def one(end: float, noise: float, seed: int) -> dict[str, int | None]:
    """The evaluation at which each rule stops this run, or None."""
    rng = np.random.default_rng((seed, 201))
    c, y = curve(LAW, end * LAW.C_mid, rng, n=EVALUATIONS, sd=noise, rho=0.0)
    rules = {"upper": parse_rule(f"gain < {BOUND} per doubling"),
             "median": parse_rule(f"median gain < {BOUND} per doubling")}  # fmt: skip
    stopped: dict[str, int | None] = dict.fromkeys(rules)
    held = dict.fromkeys(rules, 0)
    for n in range(FIRST, EVALUATIONS + 1):
        f = fit(c[:n], y[:n])
        for name, rule in rules.items():
            held[name] = held[name] + 1 if rule.check(f) else 0
            if held[name] == PATIENCE and stopped[name] is None:
                stopped[name] = n
        if all(v is not None for v in stopped.values()):
            break
    return stopped


def scenario(end: float, noise: float) -> dict[str, Any]:
    found = [one(end, noise, seed) for seed in range(RUNS)]
    row: dict[str, Any] = {"end": end, "noise": noise}
    for name in ("upper", "median"):
        at = [r[name] for r in found if r[name] is not None]
        spent = [n / EVALUATIONS * end * LAW.C_mid for n in at]
        gains = [float(LAW.value(2 * s) - LAW.value(s)) for s in spent]
        row[name] = {
            "stopped": len(at),
            "wrong": sum(g >= BOUND for g in gains),
            "typical": float(np.median(at)) if at else None,
        }
    print(row)
    return row


if __name__ == "__main__":
    cases = [(20.0, 0.01), (3.0, 0.01), (3.0, 0.03), (1.0, 0.01)]
    rows = []
    with ProgressBar("stopping rules") as tick:
        for i, case in enumerate(cases):
            rows.append(scenario(*case))
            tick((i + 1) / len(cases))
    save("stop_rules", {"bound": BOUND, "patience": PATIENCE, "runs": RUNS, "scenarios": rows})
