"""Writes the two exports of the tutorial: simulated runs, in the layout of W&B's CSV export.

python docs/tutorial/make_export.py
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

#: R_0, A, B, C_mid in optimiser steps: the truth that the tutorial's reader does not know.
RUNS = {"grpo-baseline": (0.30, 0.58, 1.8, 400.0), "cispo-fp32": (0.30, 0.66, 1.6, 900.0)}
METRIC = "eval/math/mean@16"
NOISE = 0.006
HERE = Path(__file__).parent


def write(path: Path, last: int) -> None:
    rng = np.random.default_rng(7)
    steps = np.arange(50, 6001, 50)
    columns = {}
    for name, (r0, a, b, mid) in RUNS.items():
        truth = r0 + (a - r0) / (1 + (mid / steps) ** b)
        columns[name] = truth + NOISE * rng.standard_normal(len(steps))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        heads = [f"{name} - {METRIC}{end}" for name in RUNS for end in ("", "__MIN", "__MAX")]
        writer.writerow(["Step", *heads])
        for i, step in enumerate(steps):
            if step <= last:
                values = [f"{columns[name][i]:.4f}" for name in RUNS for _ in range(3)]
                writer.writerow([step, *values])
    print(path.name)


if __name__ == "__main__":
    write(HERE / "wandb_export.csv", 1500)
    write(HERE / "wandb_export_later.csv", 6000)
