"""Does the interval of the ceiling hold the one that is known by construction?

python benchmarks/ceilings.py [DIR ...]     DIR holds run directories of the default task

The runs of learning.py, whose curves are in results/learning.json and results/learning_noisy.json,
and finished runs of `scalerl train` on the default task in DIR, whatever else was changed (learning
rate, thinking budget, batch, start): fitted on half, three quarters and all of their compute. For
each the ceiling, its 90 % interval, whether it was called identified, and whether it holds the
truth.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from learning import ceiling_of, ended
from record import RESULTS, save
from scalerl import Run, fit, load_run
from scalerl.recipe import Recipe

FRACTIONS = (0.5, 0.75, 1.0)


def recorded() -> list[tuple[Run, float]]:
    """The curves that learning.py wrote down, and their constructed ceilings."""
    found = []
    for name in ("learning", "learning_noisy"):
        for kind, runs in json.loads((RESULTS / f"{name}.json").read_text())["runs"].items():
            for seed, r in enumerate(runs):
                compute, score = (np.array(v) for v in r["curve"])
                run = Run(f"{name}: {kind} {seed}", compute, score, x_kind="flops")
                found.append((run, float(r["truth"])))
    return found


def look(run: Run, truth: float) -> list[dict[str, Any]]:
    rows = []
    for fraction in FRACTIONS:
        f = fit(run, hi=fraction * float(run.compute[-1]))
        low, high = f.interval("A", 0.9)
        rows.append(
            {"run": run.name, "fraction": fraction, "truth": truth, "A": f.params["A"],
             "interval": [low, high], "identified": f.identified,
             "holds": low <= truth <= high, "early": f.early, "alarm": f.alarm is not None}
        )  # fmt: skip
    return rows


def main(folders: list[Path]) -> None:
    runs = recorded()
    for path in (p for folder in folders for p in sorted(folder.iterdir()) if ended(p)):
        truth = ceiling_of(Recipe.load(path / "recipe.toml"))
        runs.append((load_run(str(path)), truth))
    rows = [row for run, truth in runs for row in look(run, truth)]
    summary = []
    for fraction in FRACTIONS:
        mine = [r for r in rows if r["fraction"] == fraction]
        sure = [r for r in mine if r["identified"]]
        summary.append(
            {"fraction": fraction, "runs": len(mine), "holds": sum(r["holds"] for r in mine),
             "identified": len(sure), "identified_and_holds": sum(r["holds"] for r in sure)}
        )  # fmt: skip
    for r in rows:
        low, high = r["interval"]
        print(f"{r['run'][:44]:44s} {r['fraction']:4g}  {r['A']:.3f} [{low:.3f}, {high:.3f}]  "
              f"truth {r['truth']:.3f} {'identified' if r['identified'] else ''}"
              f"{'' if r['holds'] else ' missed'}")  # fmt: skip
    for s in summary:
        print(s)
    save("ceilings", {"summary": summary, "runs": rows})


if __name__ == "__main__":
    main([Path(folder) for folder in sys.argv[1:]])
