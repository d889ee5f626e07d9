"""The back-test on folders of real curves: per class, window and source, with intervals clustered
by run, and on disturbed copies of the curves as a guard against constants that only fit these
files.

python benchmarks/backtest.py DIR [DIR ...]     some ten minutes on two folders

DIR holds runs.csv and index.csv (run_id, cls), and may hold runs_alt_x.csv (other axes of the same
runs) and runs_train_reward.csv. Only error figures are written down, never the curves.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from record import save
from scalerl import Run, load_runs
from scalerl.curves.alarm import alarm_history
from scalerl.curves.backtest import BacktestResult, BacktestScore, backtest
from scalerl.report.progress import ProgressBar

#: Sources that only have a training reward of a few samples: noise controls, reported apart.
CONTROLS = ("arvind", "tathagata")
#: What the folders call their classes, and what the tables do.
CLASSES = {"decline": "declining", "collapse": "declining", "declining": "declining",
           "flat": "flat", "train_reward": "training"}  # fmt: skip
#: Sources whose run names end in the evaluation set: curves of one run are not independent.
MANY_SETS = ("guru", "cse579")
RESAMPLES = 1000
OURS, REFERENCE = "scalerl", "no change"


def classes(folder: Path) -> dict[str, str]:
    with (folder / "index.csv").open(newline="") as file:
        rows = [(row["run_id"], row["cls"]) for row in csv.DictReader(file)]
    return {
        name: "control" if name.startswith(CONTROLS) else CLASSES.get(kind, "healthy")
        for name, kind in rows
    }


def cluster(name: str) -> str:
    """Curves that share it are of one run."""
    return name.rsplit("/", 1)[0] if name.startswith(MANY_SETS) else name


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


def intervals(scores: Iterable[BacktestScore]) -> dict[str, list[float]]:
    """90 % intervals of our CRPS, skill and coverage, with whole runs resampled."""
    pairs: dict[tuple[str, float], dict[str, BacktestScore]] = defaultdict(dict)
    for s in scores:
        pairs[s.run, s.fraction][s.method] = s
    both = [p for p in pairs.values() if OURS in p and REFERENCE in p]
    groups: dict[str, list[int]] = defaultdict(list)
    for i, p in enumerate(both):
        groups[cluster(p[OURS].run)].append(i)
    value = np.array([[p[OURS].crps, p[REFERENCE].crps, p[OURS].in90] for p in both])
    sums = np.array([[*value[rows].sum(axis=0), len(rows)] for rows in groups.values()])
    rng = np.random.default_rng(0)
    drawn = sums[rng.integers(len(sums), size=(RESAMPLES, len(sums)))].sum(axis=1)
    found = {
        "crps": drawn[:, 0] / drawn[:, 3],
        "skill": 1.0 - drawn[:, 0] / drawn[:, 1],
        "cover90": drawn[:, 2] / drawn[:, 3],
    }
    return {k: [float(q) for q in np.quantile(v, [0.05, 0.95])] for k, v in found.items()}


def by_class(result: BacktestResult) -> list[dict[str, object]]:
    """One row a class and method; ours with its intervals."""
    rows: list[dict[str, object]] = []
    for row in result.summary("run_class"):
        if row["method"] == OURS:
            mine = [s for s in result.scores if s.run_class == row["run_class"]]
            row = {**row, "intervals": intervals(mine), "runs": len({cluster(s.run) for s in mine})}
        rows.append(row)
    return rows


def alarms(runs: Sequence[Run], kinds: dict[str, str]) -> list[dict[str, object]]:
    """Looks at the curves as they grew: how often the alarm is on, and in how many runs ever."""
    rows: list[dict[str, object]] = []
    for kind in ("healthy", "flat", "declining", "training", "control"):
        mine = [r for r in runs if kinds.get(r.name) == kind and len(r) >= 6]
        if not mine:
            continue
        spans = [alarm_history(r.compute, r.score, r.n_eval) for r in mine]
        looks = on = 0
        for run, found in zip(mine, spans, strict=True):
            for c in run.compute[5:]:
                looks += 1
                on += any(s.raised <= c and (s.cleared is None or c < s.cleared) for s in found)
        rows.append({"run_class": kind, "runs": len(mine), "looks": looks, "on": on / looks,
                     "runs_ever": sum(bool(s) for s in spans) / len(mine),
                     "on_at_the_end": sum(bool(s) and s[-1].cleared is None for s in spans)
                     / len(mine)})  # fmt: skip
    return rows


def read(folders: Sequence[Path]) -> tuple[list[Run], dict[str, str]]:
    runs: list[Run] = []
    kinds: dict[str, str] = {}
    for folder in folders:
        kinds |= classes(folder)
        runs += load_runs(str(folder / "runs.csv"), group_by="source")
        rewards = folder / "runs_train_reward.csv"
        if rewards.exists():
            for run in load_runs(str(rewards), group_by="source"):
                name = f"{run.name} (training)"
                runs.append(run.replace(name=name))
                kinds[name] = "training"
    return runs, kinds


def main(folders: Sequence[Path]) -> None:
    runs, kinds = read(folders)
    with ProgressBar("back-testing") as tick:
        steps = backtest(runs, classes=kinds, progress=tick)
    result: dict[str, list[dict[str, object]]] = {
        "by_class": by_class(steps),
        "by_class_and_fraction": [
            r for r in steps.summary("run_class", "fraction") if r["method"] == OURS
        ],
        "healthy_by_fraction": steps.summary("fraction", run_class="healthy"),
        "healthy_by_source": [
            r for r in steps.summary("source", run_class="healthy")
            if r["method"] in (REFERENCE, "paper", "ensemble", OURS)
        ],
        "alarms": alarms(runs, kinds),
    }  # fmt: skip
    alt = [
        r
        for folder in folders
        if (folder / "runs_alt_x.csv").exists()
        for r in load_runs(str(folder / "runs_alt_x.csv"), group_by="source")
        if kinds.get(r.name) == "healthy"
    ]
    for kind in sorted({r.x_kind for r in alt}):
        tested = backtest([r for r in alt if r.x_kind == kind], classes=kinds)
        result[f"axis_{kind}"] = tested.summary(run_class="healthy")
    healthy = [r for r in runs if kinds.get(r.name) == "healthy"]
    disturbed = []
    with ProgressBar("on disturbed copies") as tick:
        for i, (name, change) in enumerate(DISTURBED.items()):
            rng = np.random.default_rng(0)
            changed = backtest(
                [change(r, rng) for r in healthy], methods=[REFERENCE, OURS], classes=kinds
            )
            (row,) = [r for r in changed.summary() if r["method"] == OURS]
            disturbed.append({"change": name, **row})
            tick((i + 1) / len(DISTURBED))
    result["disturbed"] = disturbed
    save("backtest", result)
    for rows in ("by_class", "by_class_and_fraction", "healthy_by_fraction", "alarms", "disturbed"):
        print(rows)
        for row in result[rows]:
            print("  ", {k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()})


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main([Path(folder) for folder in sys.argv[1:]])
