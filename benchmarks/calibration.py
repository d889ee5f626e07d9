"""Are the intervals honest for curves that the priors have not seen? The back-test with whole
sources left out: each curve is fitted with the priors that were learned without its source.

python benchmarks/calibration.py DIR [DIR ...] [--against NAME=CHECKOUT ...]

about five minutes on one core, and as long again for every checkout. DIR holds runs.csv and
index.csv; results/learn_priors.json has the priors (learn_priors.py). Each curve is cut at SHARES
random shares of its compute, and the mean of its last tenth is predicted. A CHECKOUT of an earlier
commit predicts the same tasks, by a process of its own. Our own runs of known ceilings stand apart:
there the ceiling is judged. Only errors are written down, never curves.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

if __name__ == "__main__" and "--predict" in sys.argv:
    # A process that predicts with the sources of another checkout: tasks in, quantiles out. Only
    # what every version has is imported.
    from scalerl import fit

    for line in sys.stdin:
        task = json.loads(line)
        size = None if task["n_eval"] is None else np.array(task["n_eval"])
        f = fit(np.array(task["x"]), np.array(task["y"]), size)
        ahead = getattr(f, "predict", None) or f.forecast
        q = ahead(np.array(task["at"])).mean_quantiles(np.arange(1, 20) / 20.0)
        known = {"identified": bool(f.identified), "a": [float(v) for v in f.interval("A", 0.9)]}
        print(json.dumps({"q": [float(v) for v in q], **known}), flush=True)
    sys.exit()

from backtest import cluster
from learn_priors import Curve, curves
from record import RESULTS, save
from scalerl import Run, fit
from scalerl.curves.backtest import LEVELS, METHODS, classify, crps
from scalerl.curves.noise import bin_curve
from scalerl.curves.priors import CurvePriors, prior_kind
from scalerl.curves.result import Fit
from scalerl.report.progress import ProgressBar

#: Random shares of the compute at which each curve is cut.
SHARES = 5
OURS, REFERENCE = "scalerl", "no change"
RIVALS = (REFERENCE, "paper", "ensemble")
RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Task:
    """The first part of a curve, and what came of it."""

    run: str
    cluster: str
    source: str
    run_class: str
    share: float
    seen: Run
    at: np.ndarray
    truth: float


@dataclass(frozen=True, slots=True)
class Scored:
    """One method on one task."""

    crps: float
    in50: bool
    in90: bool
    #: Whether the truth lies below the 90 % interval.
    below: bool
    width90: float
    identified: bool
    #: Whether the truth lies below the interval of a ceiling that was called identified.
    missed: bool


def cut(found: Sequence[Curve]) -> list[Task]:
    """Every curve of the folders at random shares of its compute."""
    rng = np.random.default_rng(20)
    made = []
    for curve in found:
        run, end = curve.run, float(curve.run.compute[-1])
        kind = "training" if curve.kind == "training" else classify(run)
        for share in np.sort(rng.uniform(0.2, 0.95, SHARES)):
            seen = run.window(None, share * end)
            if len(seen) < 6 or (seen.compute > 0).sum() < 5 or len(seen) == len(run):
                continue
            last = min(max(1, round(0.1 * len(run))), len(run) - len(seen))
            made.append(
                Task(run.name, cluster(run.name), curve.source, kind, float(share), seen,
                     run.compute[-last:], float(run.score[-last:].mean()))
            )  # fmt: skip
    return made


def priors_without(source: str, seen: Run, learned: dict[str, Any]) -> CurvePriors:
    """The priors that were learned without this source, for the kind of score of a window."""
    kind = prior_kind(seen, bin_curve(seen.compute, seen.score, seen.n_eval))
    table = learned["without"][source]
    return CurvePriors.from_dict({**table["both"], **table[kind]})


def judged(task: Task, q: np.ndarray, identified: bool, a: Sequence[float]) -> Scored:
    y = task.truth
    return Scored(
        crps=float(crps(q, y)),
        in50=bool(q[4] <= y <= q[14]),
        in90=bool(q[0] <= y <= q[18]),
        below=bool(y < q[0]),
        width90=float(q[18] - q[0]),
        identified=identified,
        # Half of the width of the present level's noise is in q already: no further allowance.
        missed=identified and y < min(a[0], q[0]),
    )


def of_fit(task: Task, f: Fit) -> Scored:
    a = f.interval("A", 0.9) if "A" in f.params else (0.0, 1.0)
    return judged(task, f.predict(task.at).mean_quantiles(LEVELS), f.identified, a)


def of_checkout(made: Sequence[Task], checkout: Path) -> list[Scored]:
    """The tasks, predicted by the sources of another checkout."""
    lines = [
        json.dumps({
            "x": t.seen.compute.tolist(), "y": t.seen.score.tolist(),
            "n_eval": None if t.seen.n_eval is None else t.seen.n_eval.tolist(),
            "at": t.at.tolist(),
        })
        for t in made
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, __file__, "--predict"], input="\n".join(lines), text=True, check=True,
        stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(checkout / "src")},
    )  # fmt: skip
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return [
        judged(t, np.array(r["q"]), r["identified"], r["a"])
        for t, r in zip(made, rows, strict=True)
    ]


def summary(made: Sequence[Task], scores: dict[str, list[Scored]]) -> list[dict[str, Any]]:
    """One row a class and method, with 90 % intervals from resampling whole runs."""
    rows = []
    for kind in ("healthy", "flat", "declining", "training"):
        chosen = [i for i, t in enumerate(made) if t.run_class == kind]
        reference = _column(scores[REFERENCE], chosen, "crps")
        for method, all_scores in scores.items():
            value = {
                name: _column(all_scores, chosen, name) for name in Scored.__dataclass_fields__
            }
            rows.append({
                "run_class": kind, "method": method, "tasks": len(chosen),
                "runs": len({made[i].cluster for i in chosen}),
                **{name: float(v.mean()) for name, v in value.items()},
                "skill": float(1.0 - value["crps"].mean() / reference.mean()),
                "intervals": _intervals([made[i].cluster for i in chosen], value, reference),
            })  # fmt: skip
    return rows


def _column(scores: Sequence[Scored], rows: Sequence[int], name: str) -> np.ndarray:
    return np.array([float(getattr(scores[i], name)) for i in rows])


def _intervals(
    runs: Sequence[str], value: dict[str, np.ndarray], reference: np.ndarray
) -> dict[str, list[float]]:
    groups = defaultdict(list)
    for i, run in enumerate(runs):
        groups[run].append(i)
    sums = np.array([
        [value["crps"][g].sum(), reference[g].sum(), value["in90"][g].sum(), len(g)]
        for g in groups.values()
    ])  # fmt: skip
    rng = np.random.default_rng(0)
    drawn = sums[rng.integers(len(sums), size=(RESAMPLES, len(sums)))].sum(axis=1)
    found = {"crps": drawn[:, 0] / drawn[:, 3], "skill": 1.0 - drawn[:, 0] / drawn[:, 1],
             "in90": drawn[:, 2] / drawn[:, 3]}  # fmt: skip
    return {k: [float(q) for q in np.quantile(v, [0.05, 0.95])] for k, v in found.items()}


def by_share(made: Sequence[Task], scores: Sequence[Scored]) -> list[dict[str, Any]]:
    """Our coverage by class and by the share of the run that was seen."""
    rows = []
    for kind in ("healthy", "flat", "declining", "training"):
        for low, high in ((0.2, 0.5), (0.5, 0.75), (0.75, 1.0)):
            mine = [s for t, s in zip(made, scores, strict=True)
                    if t.run_class == kind and low <= t.share < high]  # fmt: skip
            if mine:
                rows.append({"run_class": kind, "from": low, "to": high, "tasks": len(mine),
                             **{name: float(np.mean([getattr(s, name) for s in mine]))
                                for name in ("in90", "crps", "identified")}})  # fmt: skip
    return rows


def ceilings(found: Sequence[Curve], learned: dict[str, Any]) -> list[dict[str, Any]]:
    """Runs whose ceiling is known: is it in the interval, at random shares and at the end?"""
    rng = np.random.default_rng(21)
    rows = []
    for curve in (c for c in found if c.ceiling is not None):
        for share in (*rng.uniform(0.4, 1.0, 3), 1.0):
            seen = curve.run.window(None, share * float(curve.run.compute[-1]))
            f = fit(seen, priors=priors_without(curve.source, seen, learned))
            low, high = f.interval("A", 0.9)
            rows.append({"run": curve.run.name, "source": curve.source, "share": float(share),
                         "truth": curve.ceiling, "A": f.params["A"], "interval": [low, high],
                         "identified": f.identified,
                         "holds": low <= curve.ceiling <= high})  # fmt: skip
    return rows


def main(folders: Sequence[Path], against: dict[str, Path]) -> None:
    learned = json.loads((RESULTS / "learn_priors.json").read_text())
    found = curves(folders)
    made = cut([c for c in found if c.ceiling is None])
    methods: dict[str, Callable[[Task], Fit]] = {
        **{name: lambda t, name=name: METHODS[name](t.seen) for name in RIVALS},
        OURS: lambda t: fit(t.seen, priors=priors_without(t.source, t.seen, learned)),
    }
    scores: dict[str, list[Scored]] = {name: [] for name in methods}
    with ProgressBar("back-testing") as tick:
        for i, task in enumerate(made):
            for name, method in methods.items():
                scores[name].append(of_fit(task, method(task)))
            tick((i + 1) / len(made))
    for name, checkout in against.items():
        scores[name] = of_checkout(made, checkout)
    known = ceilings(found, learned)
    result = {
        "by_class": summary(made, scores),
        "by_share": by_share(made, scores[OURS]),
        "ceilings": known,
    }
    save("calibration", result)
    for r in result["by_class"]:
        low, high = r["intervals"]["in90"]
        print(f"{r['run_class']:10s} {r['method']:10s} {r['runs']:3d} runs {r['tasks']:4d} tasks  "
              f"CRPS {r['crps']:.4f}  skill {r['skill']:+.2f}  90 % holds {r['in90']:.2f} "
              f"[{low:.2f}, {high:.2f}]  width {r['width90']:.3f}  identified "
              f"{r['identified']:.2f}, missed {r['missed']:.2f}")  # fmt: skip
    for end in (False, True):
        mine = [r for r in known if (r["share"] == 1.0) == end]
        sure = [r for r in mine if r["identified"]]
        print(f"known ceilings {'at the end' if end else 'before'}: {len(mine)}, held "
              f"{sum(r['holds'] for r in mine)}; identified {len(sure)}, of which held "
              f"{sum(r['holds'] for r in sure)}")  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR")
    parser.add_argument("--against", action="append", default=[], metavar="NAME=CHECKOUT")
    given = parser.parse_args()
    main(given.folders, {a.partition("=")[0]: Path(a.partition("=")[2]) for a in given.against})
