"""Forecasters from the literature and ours on the same back-test: CRPS and coverage by class, with
intervals from resampling whole runs and whole sources.

python benchmarks/rivals.py DIR [DIR ...] [--scores FILE]     some twenty minutes on three folders

DIR is as for benchmarks/backtest.py. Ours has the priors that were learned without the source of
the run (results/learn_priors.json), because the rivals have seen none of these curves. Only
summaries are written to benchmarks/results. `--scores` keeps the score of every task in a file
elsewhere, to see where a method wins; methods that the file has already are not repeated.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from backtest import OURS, REFERENCE, cluster, read
from calibration import priors_without
from forecasters import forecasters
from record import RESULTS, save
from scalerl import Run, fit
from scalerl.curves.backtest import METHODS, BacktestResult, BacktestScore, backtest
from scalerl.curves.result import Fit
from scalerl.report.progress import ProgressBar

RESAMPLES = 2000
#: What is averaged over the tasks of a class, and resampled.
FIGURES: dict[str, Callable[[BacktestScore, BacktestScore], float]] = {
    "crps": lambda mine, ours: mine.crps,
    "cover50": lambda mine, ours: mine.in50,
    "cover90": lambda mine, ours: mine.in90,
    "behind": lambda mine, ours: mine.crps - ours.crps,
    "better": lambda mine, ours: mine.crps < ours.crps,
}


#: Situations in which the models differ most, known when the forecast is made: (our score, that of
#: "no change", number of points seen) -> whether a task is one of them.
SITUATIONS: dict[str, Callable[[BacktestScore, BacktestScore, int], bool]] = {
    "our alarm is on": lambda ours, last, n: ours.alarm,
    "at most 10 points, we expect a rise of .03 or more": lambda ours, last, n: (
        n <= 10 and ours.median - last.median >= 0.03
    ),
    "at most 10 points, we expect less": lambda ours, last, n: (
        n <= 10 and ours.median - last.median < 0.03
    ),
    "more than 40 points": lambda ours, last, n: n > 40,
}
#: Classes that the situations are taken from: the noise controls are left out.
REAL = ("healthy", "flat", "declining", "training")


def by_run(score: BacktestScore) -> str:
    return cluster(score.run)


def by_source(score: BacktestScore) -> str:
    return score.source


def resampled(values: np.ndarray, groups: Sequence[str]) -> dict[str, list[float]]:
    """90 % intervals of the column means, with whole groups resampled."""
    members: dict[str, list[int]] = defaultdict(list)
    for i, group in enumerate(groups):
        members[group].append(i)
    sums = np.array([[*values[rows].sum(axis=0), len(rows)] for rows in members.values()])
    rng = np.random.default_rng(0)
    drawn = sums[rng.integers(len(sums), size=(RESAMPLES, len(sums)))].sum(axis=1)
    ends = np.quantile(drawn[:, :-1] / drawn[:, -1:], [0.05, 0.95], axis=0).T
    return dict(zip(FIGURES, ends.tolist(), strict=True))


def summary(scores: Sequence[BacktestScore], name: str = "") -> list[dict[str, Any]]:
    """One row a class (or the given name) and method. `behind` is the CRPS minus that of ours,
    `better` the share of tasks with a smaller CRPS than ours, `below` the share of outcomes below
    the median."""
    ours = {(s.run, s.fraction): s for s in scores if s.method == OURS}
    rows: dict[tuple[str, str], list[BacktestScore]] = defaultdict(list)
    for s in scores:
        rows[name or s.run_class, s.method].append(s)
    out = []
    for (kind, method), found in rows.items():
        pairs = [(s, ours[s.run, s.fraction]) for s in found]
        values = np.array([[float(f(*pair)) for f in FIGURES.values()] for pair in pairs])
        groups = {name: [key(s) for s in found] for name, key in
                  (("runs", by_run), ("sources", by_source))}  # fmt: skip
        out.append({
            "situation" if name else "run_class": kind,
            "method": method,
            "tasks": len(found),
            **{name: len(set(keys)) for name, keys in groups.items()},
            **dict(zip(FIGURES, values.mean(axis=0).tolist(), strict=True)),
            "width90": float(np.mean([s.width90 for s in found])),
            "bias": float(np.mean([s.median - s.truth for s in found])),
            "below": float(np.mean([s.truth < s.median for s in found])),
            **{f"intervals_by_{name}": resampled(values, keys) for name, keys in groups.items()},
        })  # fmt: skip
    return out


def situations(runs: Sequence[Run], scores: Sequence[BacktestScore]) -> list[dict[str, Any]]:
    """The summary of the tasks of each situation."""
    compute = {run.name: run.compute for run in runs}
    tasks: dict[tuple[str, float], dict[str, BacktestScore]] = defaultdict(dict)
    for s in scores:
        if s.run_class in REAL:
            tasks[s.run, s.fraction][s.method] = s
    rows = []
    for name, applies in SITUATIONS.items():
        chosen = []
        for (run, fraction), found in tasks.items():
            seen = int((compute[run] <= fraction * compute[run][-1]).sum())
            if applies(found[OURS], found[REFERENCE], seen):
                chosen += found.values()
        rows += summary(chosen, name)
    return rows


def fit_without_source(run: Run, learned: dict[str, Any]) -> Fit:
    """Our fit with the priors learned without the run's source; with all where it was not used."""
    if run.group not in learned["without"]:
        return fit(run)
    return fit(run, priors=priors_without(run.group, run, learned))


def measured(
    runs: Sequence[Run], kinds: dict[str, str], file: Path | None
) -> tuple[list[BacktestScore], dict[str, float]]:
    """The score of every method on every task, and CPU milliseconds a task by method."""
    learned = json.loads((RESULTS / "learn_priors.json").read_text())
    others = {name: method for name, method in METHODS.items() if name != OURS}
    methods = others | forecasters(runs) | {OURS: lambda run: fit_without_source(run, learned)}
    known = json.loads(file.read_text()) if file is not None and file.exists() else {}
    with ProgressBar("back-testing") as tick:
        for i, (name, method) in enumerate(methods.items()):
            if name not in known:
                start = time.process_time()
                found = backtest(runs, methods={name: method}, classes=kinds).scores
                cost = 1e3 * (time.process_time() - start) / len(found)
                known[name] = {"cpu_ms": cost, "scores": [asdict(s) for s in found]}
                if file is not None:
                    file.write_text(json.dumps(known))
            tick((i + 1) / len(methods))
    scores = [BacktestScore(**s) for name in methods for s in known[name]["scores"]]
    return scores, {name: known[name]["cpu_ms"] for name in methods}


def main(folders: Sequence[Path], scores_file: Path | None) -> None:
    runs, kinds = read(folders)
    scores, cost = measured(runs, kinds, scores_file)
    fractions = BacktestResult(tuple(scores), ()).summary("run_class", "fraction")
    kept = ("run_class", "fraction", "method", "tasks", "crps", "cover50", "cover90", "width90")
    result = {
        "by_class": summary(scores),
        "by_situation": situations(runs, scores),
        "by_class_and_fraction": [{k: row[k] for k in kept} for row in fractions],
        "cpu_milliseconds_a_task": cost,
    }
    save("rivals", result, options=" ".join(folder.name for folder in folders))
    for row in result["by_class"]:
        low, high = row["intervals_by_runs"]["behind"]
        print(f"{row['run_class']:10s} {row['method']:16s} CRPS {row['crps']:.4f} "
              f"behind {row['behind']:+.4f} [{low:+.4f}, {high:+.4f}]  50 % {row['cover50']:.2f}  "
              f"90 % {row['cover90']:.2f}")  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--scores", type=Path)
    given = parser.parse_args()
    main(given.folders, given.scores)
