"""Verdicts on pairs of runs as their points come in: decided, right, wrong, withdrawn later?

python benchmarks/verdicts.py DIR [DIR ...]     DIR holds runs.csv and index.csv
                                                (about ten minutes on one core)

Real pairs are runs of one source scored on one task, up to PAIRS a source. Simulated pairs have
known ceilings (simulated_pairs.py). Every pair is judged at twenty random shares of its compute and
at all of it. A verdict is withdrawn if the pair is undecided with all points, and reversed if it is
another then. It is judged twice: as `compare` does by default, which knows no budget, and with the
end of the points as budget. "points" is the verdict of the points alone, without a look ahead.

The truth of a real pair is what is seen at the end, the mean of the last tenth of the compute:

- higher ceiling: right if the winner ends above the other by more than two standard errors, wrong
  if it ends below by as much, open in between;
- faster, no difference: right if the two end within the verdict's margin (and two standard errors)
  of each other, wrong otherwise.

The truth of a simulated pair is the ceilings of its laws, without a tolerance. If a run declines,
its level at the end counts as well, and a verdict is wrong if both contradict it. Training rewards
are left out. Only counts are written down, never the curves.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from record import save
from scalerl import InputError, Run, fit
from scalerl.curves.arms import MARGIN, Arm, with_family_prior
from scalerl.curves.decision import KEEP_PROBABILITY, Verdict, current_verdict
from scalerl.curves.noise import mean_variance, score_variance
from scalerl.curves.result import Fit
from scalerl.curves.survival import final_verdict
from scalerl.report.progress import ProgressBar
from simulated_pairs import SimulatedPair, simulated_pair

#: Random shares of the compute at which a pair is judged, and their range.
SHARES = 20
SHARE_RANGE = (0.2, 0.95)
#: Ends of the bins of shares in the tables.
BINS = (0.2, 0.35, 0.5, 0.65, 0.8, 0.95)
#: Most real pairs of one source, at random; more of them would share the same few runs.
PAIRS = 80
#: Simulated pairs.
SIMULATED = 80
#: Ends of the bins in which `survives` is compared with what came.
SURVIVAL_BINS = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0)
#: Sources whose run names end in the evaluation set.
MANY_TASKS = ("llm360-guru", "open-instruct-cse579")
#: Resamples of the runs behind an interval.
RESAMPLES = 400
#: Fits in memory, each about 0.3 MB.
MAX_FITS = 1000
#: The rules that are compared.
RULES = ("unknown budget", "known budget", "points")


@dataclass(frozen=True, slots=True)
class Look:
    """The verdicts on a pair at one share, by rule."""

    verdicts: dict[str, Verdict]
    #: The verdict of the points by the threshold of a verdict that is kept.
    held: Verdict
    alarm: bool


@dataclass(frozen=True, slots=True)
class WatchedPair:
    """A pair: its looks with their shares, the last one, and the truth."""

    source: str
    runs: tuple[str, str]
    looks: list[tuple[float, Look]]
    last: Look
    #: True b - a. Of several, the one that a verdict agrees with counts.
    gaps: tuple[float, ...]
    #: Standard error of the true difference; None: it is exact.
    gap_error: float | None

    def outcome(self, verdict: Verdict) -> str:
        if verdict.name == "undecided":
            return "undecided"
        error = 2.0 * (self.gap_error or 0.0)
        if verdict.name != "higher-ceiling":
            return "right" if min(map(abs, self.gaps)) < MARGIN + error else "wrong"
        side = 1.0 if verdict.winner == self.runs[1] else -1.0
        lead = max(side * gap for gap in self.gaps)
        if self.gap_error is not None and abs(lead) <= error:
            return "open"
        return "right" if lead > 0.0 else "wrong"

    def fate(self, rule: str, verdict: Verdict) -> str:
        """What became of a verdict once all points were there."""
        now = self.last.verdicts[rule]
        if verdict.name == "undecided":
            return "undecided"
        if now.name == "undecided":
            return "withdrawn by alarm" if self.last.alarm else "withdrawn"
        return "kept" if now.agrees(verdict) else "reversed"


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
        task = name.rsplit("/", 1)[1] if source in MANY_TASKS else ""
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
            # Pairs come by source, so old fits are rarely needed again.
            if len(self.kept) >= MAX_FITS:
                self.kept.clear()
            try:
                self.kept[key] = fit(seen)
            except InputError:
                self.kept[key] = None
        return self.kept[key]


def look(fits: Sequence[Fit], budgets: Sequence[float], seed_sd: float) -> Look:
    found = {}
    for rule in RULES:
        known = budgets if rule == "known budget" else (None, None)
        arms = with_family_prior(
            Arm(f.name, (f,), budget=end) for f, end in zip(fits, known, strict=True)
        )
        arms.sort(key=lambda g: -float(np.median(g.ceiling)))
        judge = current_verdict if rule == "points" else final_verdict
        found[rule] = _without_draws(judge(arms[0], arms[1], seed_sd))
    held = current_verdict(arms[0], arms[1], seed_sd, KEEP_PROBABILITY)
    return Look(found, _without_draws(held), any(f.alarm is not None for f in fits))


def _without_draws(verdict: Verdict) -> Verdict:
    """The verdict without its samples, of which thousands of looks would fill the memory."""
    return replace(verdict, delta=np.empty(0), speed=None)


def watch(
    source: str,
    runs: tuple[Run, Run],
    ends: tuple[float, float],
    truth: tuple[tuple[float, ...], float | None],
    seed_sd: float,
    fits: Fits,
    rng: np.random.Generator,
) -> WatchedPair | None:
    """The pair at random shares of these ends, and at the ends."""
    shares = np.sort(rng.uniform(*SHARE_RANGE, SHARES))
    seen: dict[tuple[int, ...], Look] = {}
    looks = []
    for share in (*shares, 1.0):
        pair = [fits(run, share * end) for run, end in zip(runs, ends, strict=True)]
        if pair[0] is None or pair[1] is None:
            continue
        key = tuple(len(f.points) for f in pair if f is not None)
        if key not in seen:
            seen[key] = look([f for f in pair if f is not None], ends, seed_sd)
        looks.append((float(share), seen[key]))
    if not looks or looks[-1][0] < 1.0:
        return None
    names = runs[0].name, runs[1].name
    return WatchedPair(source, names, looks[:-1], looks[-1][1], *truth)


def real_pairs(folders: list[Path], rng: np.random.Generator) -> list[tuple[str, Run, Run]]:
    """Up to PAIRS random pairs of each source."""
    tasks: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for folder in folders:
        for key, runs in read(folder).items():
            tasks[key].extend(runs)
    found: dict[str, list[tuple[str, Run, Run]]] = defaultdict(list)
    for (source, _), runs in tasks.items():
        found[source] += [(source, a, b) for a, b in combinations(runs, 2)]
    chosen = []
    for pairs in found.values():
        order = rng.permutation(len(pairs))[:PAIRS]
        chosen += [pairs[i] for i in order]
    return chosen


def watch_real(
    source: str, a: Run, b: Run, fits: Fits, rng: np.random.Generator
) -> WatchedPair | None:
    end = min(float(a.compute[-1]), float(b.compute[-1]))
    (level_a, var_a), (level_b, var_b) = end_level(a, end), end_level(b, end)
    truth = (level_b - level_a,), float(np.sqrt(var_a + var_b))
    return watch(source, (a, b), (end, end), truth, 0.0, fits, rng)


def watch_simulated(made: SimulatedPair, rng: np.random.Generator) -> WatchedPair | None:
    ends = float(made.runs[0].compute[-1]), float(made.runs[1].compute[-1])
    source = "declining" if any(made.declines) else "recipes" if made.seed_sd else "runs"
    return watch(source, made.runs, ends, (made.gaps, None), made.seed_sd, Fits(), rng)


#: A look at a pair: (pair, share, look).
Seen = tuple[WatchedPair, float, Look]


def row_of(seen: list[Seen], rule: str) -> dict[str, Any]:
    """Counts and shares over these looks, with 90 % intervals of the shares."""
    verdicts = [(p, each.verdicts[rule]) for p, _, each in seen]
    outcome = [p.outcome(v) for p, v in verdicts]
    fate = [p.fate(rule, v) for p, v in verdicts]
    decided = np.array([o != "undecided" for o in outcome])
    hits = {
        "decided": decided,
        "wrong": np.array([o == "wrong" for o in outcome]),
        "withdrawn": np.array([f.startswith("withdrawn") for f in fate]),
        "reversed": np.array([f == "reversed" for f in fate]),
    }
    row: dict[str, Any] = {"looks": len(seen), "pairs": len({p.runs for p, _ in verdicts})}
    row |= {f"n_{k}": int(v.sum()) for k, v in hits.items()}
    row |= {f"n_{k}": Counter(outcome)[k] for k in ("right", "open")}
    row["n_by_alarm"] = Counter(fate)["withdrawn by alarm"]
    row |= {f"n_{k}": sum(v.name == k for _, v in verdicts)
            for k in ("higher-ceiling", "faster", "same")}  # fmt: skip
    for name, hit in hits.items():
        among = np.ones_like(decided) if name == "decided" else decided
        row[name] = float(hit.sum() / among.sum()) if among.any() else None
        row[f"{name}_interval"] = interval([p for p, _ in verdicts], hit, among)
    return row


def interval(pairs: list[WatchedPair], hit: Any, among: Any) -> list[float] | None:
    """90 % interval of the share of hits, with the runs resampled: pairs that share a run are not
    independent, nor are the looks at one pair."""
    names = sorted({name for p in pairs for name in p.runs})
    place = {name: i for i, name in enumerate(names)}
    left, right = (np.array([place[p.runs[i]] for p in pairs]) for i in (0, 1))
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(RESAMPLES):
        times = np.bincount(rng.integers(len(names), size=len(names)), minlength=len(names))
        weight = times[left] * times[right] * among
        if weight.sum():
            shares.append(float((weight * hit).sum() / weight.sum()))
    return [float(v) for v in np.quantile(shares, [0.05, 0.95])] if shares else None


def rows_of(pairs: list[WatchedPair]) -> dict[str, list[dict[str, Any]]]:
    """Tables over all looks, by share and by source, and how well `survives` came true."""
    seen = [(p, share, each) for p in pairs for share, each in p.looks]
    end = [(p, 1.0, p.last) for p in pairs]
    parts: dict[str, list[tuple[dict[str, Any], list[Seen]]]] = {
        "all": [({}, seen)],
        "by_share": [({"from": low, "to": high}, [s for s in seen if low <= s[1] < high])
                     for low, high in pairwise(BINS)],
        "by_source": [({"source": name}, [s for s in seen if s[0].source == name])
                      for name in sorted({p.source for p in pairs})],
        "end": [({}, end)],
    }  # fmt: skip
    tables = {
        part: [head | {"rule": rule} | row_of(found, rule)
               for head, found in groups if found for rule in RULES]
        for part, groups in parts.items()
    }  # fmt: skip
    return tables | {"survives": survival_rows(seen)}


def survival_rows(seen: list[Seen]) -> list[dict[str, Any]]:
    """Of verdicts that the points gave, by `survives` with the budget known: which still held with
    all points?"""
    said: dict[int, list[tuple[float, bool]]] = defaultdict(list)
    for pair, _, each in seen:
        now, given = each.verdicts["points"], each.verdicts["known budget"]
        if now.name != "undecided" and given.survives is not None:
            k = int(np.searchsorted(SURVIVAL_BINS[1:-1], given.survives, side="right"))
            said[k].append((given.survives, pair.last.held.agrees(now)))
    return [
        {"from": SURVIVAL_BINS[k], "to": SURVIVAL_BINS[k + 1], "looks": len(said[k]),
         "said": float(np.mean([s for s, _ in said[k]])),
         "came": float(np.mean([held for _, held in said[k]]))}
        for k in sorted(said)
    ]  # fmt: skip


def measure(
    todo: Sequence[Callable[[], WatchedPair | None]], what: str
) -> dict[str, list[dict[str, Any]]]:
    pairs = []
    with ProgressBar(what) as tick:
        for i, each in enumerate(todo):
            pairs.append(each())
            tick((i + 1) / len(todo))
    tables = rows_of([p for p in pairs if p is not None])
    for part, rows in tables.items():
        print(f"{what}: {part}")
        for row in rows:
            shown = {k: f"{v:.3g}" if isinstance(v, float) else v
                     for k, v in row.items() if not k.endswith("interval")}  # fmt: skip
            print("  " + " ".join(f"{k} {v}" for k, v in shown.items()))
    return tables


def main(folders: list[Path]) -> None:
    rng, fits = np.random.default_rng(25), Fits()
    real = [
        lambda pair=pair, own=own: watch_real(*pair, fits, own)
        for pair, own in _with_streams(real_pairs(folders, rng), rng)
    ]
    simulated = [
        lambda number=number, own=own: watch_simulated(simulated_pair(number), own)
        for number, own in _with_streams(list(range(SIMULATED)), rng)
    ]
    save("verdicts", {"real": measure(real, "real pairs"),
                      "simulated": measure(simulated, "simulated pairs")})  # fmt: skip


def _with_streams(items: list[Any], rng: np.random.Generator) -> list[tuple[Any, Any]]:
    """Each item with random numbers of its own: another item more or less changes no other."""
    return list(zip(items, rng.spawn(len(items)), strict=True))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main([Path(folder) for folder in sys.argv[1:]])
