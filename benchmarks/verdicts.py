"""Verdicts on pairs of real runs as their points come in: decided, right, wrong, withdrawn later?

python benchmarks/verdicts.py DIR [DIR ...]     DIR holds runs.csv and index.csv

Pairs are runs of one source scored on one task, each seen to a quarter, a half, three quarters and
all of the compute that both have spent. What counts as the truth is what is seen at the end: the
mean of the last tenth of that compute, run against run.

- higher ceiling: right if the winner ends above the other by more than two standard errors, wrong
  if it ends below by as much, open in between;
- faster, no difference: right if the two end within the verdict's margin (and two standard errors)
  of each other, wrong otherwise.

A verdict is withdrawn if the pair is undecided with all points, and reversed if it is another then.
Training rewards are left out. Only counts are written down, never the curves.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from record import save
from scalerl import InputError, Run, fit
from scalerl.curves.arms import MARGIN, Arm, with_family_prior
from scalerl.curves.decision import final_verdict
from scalerl.curves.noise import mean_variance, score_variance
from scalerl.curves.result import Fit
from scalerl.report.progress import ProgressBar

FRACTIONS = (0.25, 0.5, 0.75, 1.0)
#: Sources whose run names end in the evaluation set.
MANY_TASKS = ("llm360-guru", "open-instruct-cse579")
#: Resamples of the runs behind an interval.
RESAMPLES = 400


@dataclass(frozen=True, slots=True)
class Look:
    """The verdict on a pair at one fraction: its name, its winner, why there is none."""

    name: str
    winner: str | None
    alarm: bool
    #: Median and spread of A_b - A_a.
    delta: float
    spread: float


@dataclass(frozen=True, slots=True)
class Seen:
    """A pair: its looks by fraction, and the difference of the two at the end (b - a)."""

    source: str
    runs: tuple[str, str]
    looks: dict[float, Look]
    gap: float
    gap_error: float

    def outcome(self, look: Look) -> str:
        if look.name == "undecided":
            return "undecided"
        if look.name != "higher-ceiling":
            return "right" if abs(self.gap) < MARGIN + 2.0 * self.gap_error else "wrong"
        lead = self.gap if look.winner == self.runs[1] else -self.gap
        if abs(lead) <= 2.0 * self.gap_error:
            return "open"
        return "right" if lead > 0.0 else "wrong"


def read(folder: Path) -> dict[tuple[str, str], list[Run]]:
    """(source, task) -> its runs."""
    with (folder / "index.csv").open(newline="") as file:
        rewards = {
            row["run_id"]
            for row in csv.DictReader(file)
            if "train" in row["cls"] or "train" in row.get("metric", "")
        }
    rows = defaultdict(list)
    with (folder / "runs.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["run_id"] not in rewards:
                rows[row["source"], row["run_id"]].append(row)
    tasks: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for (source, name), lines in rows.items():
        task = name.rsplit("/", 1)[1] if source in MANY_TASKS else lines[0].get("metric", "")
        # A repeated step counts once, the later value.
        points = {float(r["x"]): (float(r["y"]), float(r["n_eval"] or "nan")) for r in lines}
        x = np.array(sorted(points))
        y, n = np.array([points[v] for v in x]).T
        size = n if np.isfinite(n).all() else None
        tasks[source, task].append(Run(name, x, y, n_eval=size, x_kind="steps"))
    return tasks


def end_level(run: Run, end: float) -> tuple[float, float]:
    """Mean of the scores in the last tenth of the compute up to `end` (two at least), and the
    variance of that mean."""
    seen = run.window(None, end)
    last = seen.score[-max(int((seen.compute > 0.9 * end).sum()), 2) :]
    variance = score_variance(seen.score, seen.n_eval) * float(mean_variance(len(last)))
    return float(last.mean()), variance


class Fits:
    """Fits of runs cut at some compute, each made once; None where the points are too few."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, int], Fit | None] = {}

    def __call__(self, run: Run, end: float) -> Fit | None:
        seen = run.window(None, end)
        key = (run.name, len(seen))
        if key not in self.kept:
            try:
                self.kept[key] = fit(seen)
            except InputError:
                self.kept[key] = None
        return self.kept[key]


def look(a: Fit, b: Fit) -> Look:
    arms = with_family_prior(Arm(f.name, (f,)) for f in (a, b))
    arms.sort(key=lambda g: -float(np.median(g.ceiling)))
    found = final_verdict(arms[0], arms[1], 0.0)
    alarm = a.alarm is not None or b.alarm is not None
    delta = found.delta if arms[0].fits[0] is a else -found.delta
    low, middle, high = np.quantile(delta, [0.16, 0.5, 0.84])
    return Look(found.name, found.winner, alarm, float(middle), float(high - low) / 2.0)


def watch(a: Run, b: Run, source: str, fits: Fits) -> Seen | None:
    end = min(float(a.compute[-1]), float(b.compute[-1]))
    looks = {}
    for fraction in FRACTIONS:
        pair = [fits(run, fraction * end) for run in (a, b)]
        if pair[0] is not None and pair[1] is not None:
            looks[fraction] = look(pair[0], pair[1])
    if 1.0 not in looks:
        return None
    (level_a, var_a), (level_b, var_b) = end_level(a, end), end_level(b, end)
    return Seen(source, (a.name, b.name), looks, level_b - level_a, float(np.sqrt(var_a + var_b)))


def later(pair: Seen, fraction: float) -> str | None:
    """What became of a verdict once all points were there."""
    then, now = pair.looks[fraction], pair.looks[1.0]
    if then.name == "undecided":
        return None
    if now.name == "undecided":
        return "withdrawn by alarm" if now.alarm else "withdrawn"
    return "kept" if (now.name, now.winner) == (then.name, then.winner) else "reversed"


def rows_of(pairs: list[Seen]) -> list[dict[str, float]]:
    """One row a fraction, over the pairs that could be looked at there."""
    rows = []
    for fraction in FRACTIONS:
        seen = [p for p in pairs if fraction in p.looks]
        if not seen:
            continue
        count = Counter(p.outcome(p.looks[fraction]) for p in seen)
        fate = Counter(later(p, fraction) for p in seen)
        names = Counter(p.looks[fraction].name for p in seen)
        rows.append(
            {
                "fraction": fraction,
                "pairs": len(seen),
                "decided": len(seen) - count["undecided"],
                **{k: count[k] for k in ("right", "wrong", "open")},
                **{k: names[k] for k in ("higher-ceiling", "faster", "same")},
                "alarm": sum(p.looks[fraction].alarm for p in seen),
                **{k: fate[k] for k in ("kept", "reversed", "withdrawn", "withdrawn by alarm")},
                "spread": float(np.median([p.looks[fraction].spread for p in seen])),
            }
        )
    return rows


def interval(pairs: list[Seen], fraction: float, top: str) -> list[float]:
    """90 % interval of a share of the decided, with the runs resampled: pairs that share a run
    are not independent."""
    names = sorted({name for p in pairs for name in p.runs})
    place = {name: i for i, name in enumerate(names)}
    decided = [p for p in pairs if fraction in p.looks and p.looks[fraction].name != "undecided"]
    hit = np.array(
        [
            p.outcome(p.looks[fraction]) == top or (later(p, fraction) or "").startswith(top)
            for p in decided
        ]
    )
    left, right = (np.array([place[p.runs[i]] for p in decided]) for i in (0, 1))
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(RESAMPLES):
        times = np.bincount(rng.integers(len(names), size=len(names)), minlength=len(names))
        weight = times[left] * times[right]
        if weight.sum():
            shares.append(float((weight * hit).sum() / weight.sum()))
    return [float(v) for v in np.quantile(shares, [0.05, 0.95])]


def measure(folders: list[Path]) -> list[Seen]:
    tasks: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for folder in folders:
        for (source, task), runs in read(folder).items():
            # The second folder does not name the metric: a source with one task has one.
            tasks[source, task if source in MANY_TASKS else ""].extend(runs)
    fits = Fits()
    todo = [(s, a, b) for (s, _), runs in tasks.items() for a, b in combinations(runs, 2)]
    pairs = []
    with ProgressBar("comparing") as tick:
        for i, (source, a, b) in enumerate(todo):
            pairs.append(watch(a, b, source, fits))
            tick((i + 1) / len(todo))
    return [p for p in pairs if p is not None]


def main(folders: list[Path]) -> None:
    pairs = measure(folders)
    full = [p for p in pairs if len(p.looks) == len(FRACTIONS)]
    sources = sorted({p.source for p in pairs})
    result = {
        "all": rows_of(pairs),
        "seen at every fraction": rows_of(full),
        "by_source": [{"source": s, **row} for s in sources
                      for row in rows_of([p for p in pairs if p.source == s])],
        "intervals": [{"fraction": f, **{k: interval(pairs, f, k) for k in ("wrong", "withdrawn")}}
                      for f in FRACTIONS],
    }  # fmt: skip
    for part in ("all", "seen at every fraction", "by_source", "intervals"):
        print(part)
        for row in result[part]:
            print("  " + " ".join(f"{k} {v}" for k, v in row.items()))
    save("verdicts", result)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main([Path(folder) for folder in sys.argv[1:]])
