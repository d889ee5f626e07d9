"""Breaks on real curves: how often a jump is suspected where there is none, how often one that was
put there is found, and what an announced one does to the forecast.

python benchmarks/breaks.py DIR [DIR ...]     a minute

DIR holds runs.csv and index.csv (run_id, cls). A jump is put into a curve by shifting all scores
before a place inside it; scores are clipped to [0, 1].
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from backtest import classes
from record import save
from scalerl import Run, fit, load_runs
from scalerl.curves.breaks import MIN_LOG_FACTOR, suspected_break

#: Shares of a run at which it is looked at.
LOOKS = (0.5, 0.75, 1.0)
#: Heights of the jumps that are put into healthy curves.
HEIGHTS = (0.05, 0.1, 0.2)
#: Places of a jump are drawn from these shares of the points.
PLACES = (0.3, 0.85)
#: A jump counts as found this many points from its place.
NEAR = 2
#: A forecast is made from this share of the run for its end; the jump lies before it.
WINDOW = 0.7


def shifted(run: Run, i: int, height: float) -> Run:
    """The run with the scores before point i shifted."""
    score = run.score + np.where(np.arange(len(run)) < i, height, 0.0)
    return run.replace(score=np.clip(score, 0.0, 1.0))


def fired(runs: dict[str, list[Run]]) -> list[dict[str, object]]:
    """How often a break is suspected in curves as they are."""
    rows: list[dict[str, object]] = []
    for kind, members in sorted(runs.items()):
        windows = [run.window(hi=share * run.compute[-1]) for run in members for share in LOOKS]
        looks = [w for w in windows if len(w) >= 12]
        rows.append({"class": kind, "looks": len(looks),
                     "suspected": sum(suspected_break(w) is not None for w in looks)})  # fmt: skip
    return rows


def found(healthy: list[Run]) -> list[dict[str, object]]:
    """How often a jump that was put into a healthy curve is found."""
    rng = np.random.default_rng(0)
    rows: list[dict[str, object]] = []
    for height in HEIGHTS:
        near = away = 0
        for run in healthy:
            low, high = (int(share * len(run)) for share in PLACES)
            i = int(rng.integers(low, high))
            jump = suspected_break(shifted(run, i, height * rng.choice([-1.0, 1.0])))
            if jump is not None:
                off = abs(int((run.compute <= jump.at).sum()) - i)
                near, away = near + (off <= NEAR), away + (off > NEAR)
        rows.append({"height": height, "curves": len(healthy), "found": near, "elsewhere": away})
    return rows


def forecasts(healthy: list[Run]) -> list[dict[str, object]]:
    """Forecasts of the end of healthy curves with a jump, with its event and without, and of the
    curves as they are."""
    rng = np.random.default_rng(1)
    rows: dict[str, list[tuple[float, bool, float]]] = {"event": [], "no event": [], "no jump": []}
    for run in healthy:
        inside = run.window(hi=WINDOW * run.compute[-1])
        end = float(run.score[-max(len(run) // 10, 1) :].mean())
        i = int(rng.integers(int(0.3 * len(inside)), int(0.8 * len(inside))))
        at = float(inside.compute[i - 1])
        jumped = shifted(inside, i, 0.15 * rng.choice([-1.0, 1.0]))
        if at <= 0:
            continue
        for name, points, breaks in (
            ("event", jumped, (at,)), ("no event", jumped, ()), ("no jump", inside, ())
        ):  # fmt: skip
            ahead = fit(points, breaks=breaks).predict([float(run.compute[-1])])
            low, high = ahead.interval()[0]
            rows[name].append((abs(float(ahead.median[0]) - end), low <= end <= high, high - low))
    return [
        {"fitted": name, "curves": len(each), "mean_error": round(float(np.mean(values[0])), 4),
         "holds90": round(float(np.mean(values[1])), 3),
         "width90": round(float(np.mean(values[2])), 3)}
        for name, each in rows.items()
        for values in [tuple(zip(*each, strict=True))]
    ]  # fmt: skip


def main(folders: list[Path]) -> None:
    runs: dict[str, list[Run]] = {}
    for folder in folders:
        kinds = classes(folder)
        for run in load_runs(folder / "runs.csv", run="run_id"):
            if len(run) >= 12:
                runs.setdefault(kinds.get(run.name, "healthy"), []).append(run)
    healthy = [run for run in runs["healthy"] if len(run) >= 20]
    parts = {"suspected": fired(runs), "found": found(healthy), "forecasts": forecasts(healthy)}
    for part, rows in parts.items():
        for row in rows:
            print(part, row)
    save("breaks", {"min_log_factor": MIN_LOG_FACTOR, **parts})


if __name__ == "__main__":
    main([Path(each) for each in sys.argv[1:]])
