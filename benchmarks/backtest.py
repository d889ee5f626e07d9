"""The back-test on a folder of real curves, per source and class, on several axes, and on disturbed
copies of the curves as a guard against constants that only fit these files.

python benchmarks/backtest.py DIR     DIR holds runs.csv, index.csv and (optional) runs_alt_x.csv

Only error figures are written down, never the curves.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from record import save
from scalerl import Run, load_runs
from scalerl.curves.backtest import BacktestResult, backtest
from scalerl.report.progress import progress

#: Sources that only have a training reward: noise controls, reported apart.
CONTROLS = ("arvind", "tathagata")


def classes(folder: Path) -> dict[str, str]:
    with (folder / "index.csv").open(newline="") as file:
        rows = [(row["run_id"], row["cls"]) for row in csv.DictReader(file)]
    return {
        name: "control"
        if name.startswith(CONTROLS)
        else ("declining" if kind in ("decline", "collapse") else "healthy")
        for name, kind in rows
    }


def every_second(run: Run, rng: np.random.Generator) -> Run:
    keep = np.arange(len(run)) % 2 == (len(run) - 1) % 2
    return run.replace(compute=run.compute[keep], score=run.score[keep],
                       n_eval=None if run.n_eval is None else run.n_eval[keep])  # fmt: skip


def warped(power: float) -> Callable[[Run, np.random.Generator], Run]:
    return lambda run, rng: run.replace(compute=run.compute**power)


def noisier(run: Run, rng: np.random.Generator) -> Run:
    extra = 0.01 * rng.standard_normal(len(run))
    return run.replace(score=np.clip(run.score + extra, 0.0, 1.0))


DISTURBED: dict[str, Callable[[Run, np.random.Generator], Run]] = {
    "every second point": every_second,
    "compute ^ 0.7": warped(0.7),
    "compute ^ 1.4": warped(1.4),
    "noise sd .01 added": noisier,
    "no evaluation sizes": lambda run, rng: run.replace(n_eval=None),
    "without C = 0": lambda run, rng: run.window(1e-12),
}


def table(result: BacktestResult, *by: str, **only: str) -> list[dict[str, object]]:
    return result.summary(*by, **only)


def main(folder: Path) -> None:
    kinds = classes(folder)
    runs = load_runs(str(folder / "runs.csv"), group_by="source")
    with progress("back-testing") as tick:
        steps = backtest(runs, classes=kinds, progress=tick)
    result: dict[str, object] = {
        "by_class": table(steps, "run_class"),
        "healthy_by_fraction": table(steps, "fraction", run_class="healthy"),
        "healthy_by_source": table(steps, "source", run_class="healthy"),
    }
    other = folder / "runs_alt_x.csv"
    if other.exists():
        alt = [
            r for r in load_runs(str(other), group_by="source") if kinds.get(r.name) == "healthy"
        ]
        for kind in sorted({r.x_kind for r in alt}):
            tested = backtest([r for r in alt if r.x_kind == kind], classes=kinds)
            result[f"axis_{kind}"] = table(tested, run_class="healthy")
    healthy = [r for r in runs if kinds.get(r.name) == "healthy"]
    disturbed = []
    for name, change in DISTURBED.items():
        rng = np.random.default_rng(0)
        changed = [change(r, rng) for r in healthy]
        (row,) = [
            r
            for r in backtest(changed, methods=["no change", "scalerl"], classes=kinds).summary()
            if r["method"] == "scalerl"
        ]
        disturbed.append({"change": name, **row})
    result["disturbed"] = disturbed
    alarms = {
        kind: [
            sum(s.alarm for s in steps.scores if s.run_class == kind and s.method == "scalerl"),
            sum(1 for s in steps.scores if s.run_class == kind and s.method == "scalerl"),
        ]
        for kind in ("healthy", "declining", "control")
    }
    result["alarms"] = alarms
    save("backtest", result)
    for rows in (result["by_class"], result["healthy_by_fraction"], disturbed):
        for row in rows:  # type: ignore[attr-defined]
            print({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()})
    print("alarms", alarms)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
