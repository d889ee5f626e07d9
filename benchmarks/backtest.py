"""The back-test on folders of real curves: how often the alarm is on, and how forecasts fare on
disturbed copies of the curves, as a guard against constants that only fit these files.

python benchmarks/backtest.py DIR [DIR ...]     some three minutes on one core

DIR holds runs.csv and index.csv (run_id, cls), and may hold runs_train_reward.csv. Only error
figures are written down, never the curves. The errors by class, with the priors learned without
each source, are those of calibration.py.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from record import save
from scalerl import Run, load_runs
from scalerl.curves.alarm import alarm_history
from scalerl.curves.backtest import backtest
from scalerl.report.progress import ProgressBar

#: Sources that only have a training reward of a few samples: noise controls, reported apart.
CONTROLS = ("arvind", "tathagata")
#: What the folders call their classes, and what the tables do.
CLASSES = {"decline": "declining", "collapse": "declining", "declining": "declining",
           "flat": "flat", "train_reward": "training"}  # fmt: skip
#: Sources whose run names end in the evaluation set: curves of one run are not independent.
MANY_SETS = ("guru", "cse579")
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
    healthy = [r for r in runs if kinds.get(r.name) == "healthy"]
    disturbed: list[dict[str, object]] = []
    with ProgressBar("on disturbed copies") as tick:
        for i, (name, change) in enumerate(DISTURBED.items()):
            rng = np.random.default_rng(0)
            changed = backtest(
                [change(r, rng) for r in healthy], methods=[REFERENCE, OURS], classes=kinds
            )
            (row,) = [r for r in changed.summary() if r["method"] == OURS]
            disturbed.append({"change": name, **row})
            tick((i + 1) / len(DISTURBED))
    result = {"alarms": alarms(runs, kinds), "disturbed": disturbed}
    save("backtest", result)
    for title, rows in result.items():
        print(title)
        for row in rows:
            print("  ", {k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()})


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main([Path(folder) for folder in sys.argv[1:]])
