"""Simulated studies of known truth: a race against fixed budgets, halving and uniform.

python benchmarks/race.py --studies 40        (about 25 s of one core a study)

A study has a reference and twelve variants, three seeds each. Variants, in random order:

    4 as the reference          recipes that do the same
    2 higher, 2 lower           ceilings apart by .03
    2 slower                    the same ceiling, C_mid times 1.6
    1 that crosses              a ceiling higher by .05, C_mid times 2: behind for most of the way
    1 that collapses            healthy at first; falls to its start at 10 to 60 % of its budget

Budgets end at 6 to 10 C_mid of the reference, with 24 validations on the way. Seeds move the
ceiling by sd .01 and ln C_mid by sd .1, as the verdicts assume; a validation has sd .01,
with a lag-1 correlation of .4.

Allocations, each on the same curves, and each judged by the same fits and verdicts:

    fixed       every member gets all of its budget (unstable ones stop where they are seen to be)
    race        study/race.py
    third       the same race, stopped when a third of all budgets is spent
    one-seed    one seed of every variant gets all of its budget: a third as well
    uniform     every member gets the share of its budget that the race of this study spent
    halving     all get 1/8; the better half by score gets 1/4, half of these 1/2, and so on; the
                reference stays in, since it is what all are compared with
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from record import save

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "curves"))
from simulate import noise

from scalerl.curves.arms import Arm, akin
from scalerl.curves.fit import fit
from scalerl.curves.formula import Sigmoid
from scalerl.curves.result import Fit
from scalerl.runs.lines import EvalLine
from scalerl.runs.record import Run
from scalerl.study.race import Foresight, Racer, race
from scalerl.study.stability import judge_lines

SEEDS, POINTS = 3, 24
KINDS = (
    ("same",) * 4 + ("higher",) * 2 + ("lower",) * 2 + ("slower",) * 2 + ("crossing", "unstable")
)
DELTA, SLOWER, CROSSING = 0.03, 1.6, (0.05, 2.0)
SEED_SD, SEED_LOG_SD, NOISE_SD, NOISE_RHO = 0.01, 0.1, 0.01, 0.4
#: Validations that every member of a race gets first, and those of a chunk.
FIRST, CHUNK = 6, 3
REFERENCE = "reference"
METHODS = ("fixed", "race", "third", "one-seed", "uniform", "halving")


@dataclass
class Simulated:
    """A study with its whole future; what is seen of it is fitted once per number of points."""

    seed: int
    kinds: dict[str, str] = field(default_factory=dict)
    truth: dict[str, float] = field(default_factory=dict)
    curves: dict[tuple[str, int], Run] = field(default_factory=dict)
    seen: dict[tuple[str, int, int], tuple[Fit | None, bool]] = field(default_factory=dict)
    foresight: Foresight = field(default_factory=Foresight)

    def __post_init__(self) -> None:
        rng = np.random.default_rng((self.seed, 1201))
        r0 = rng.uniform(0.1, 0.4)
        base = Sigmoid(R_0=r0, A=rng.uniform(r0 + 0.25, 0.85), B=rng.uniform(1.2, 2.2), C_mid=1.0)
        end = rng.uniform(6.0, 10.0)
        kinds = list(rng.permutation(KINDS))
        self.kinds = {REFERENCE: "same"} | {f"v{i:02d}": str(k) for i, k in enumerate(kinds)}
        for name, kind in self.kinds.items():
            law = _law(base, kind)
            self.truth[name] = law.A if kind != "unstable" else -1.0
            onset = rng.uniform(0.1, 0.6) * end
            for s in range(SEEDS):
                own = replace(
                    law,
                    A=law.A + SEED_SD * rng.standard_normal(),
                    C_mid=law.C_mid * math.exp(SEED_LOG_SD * rng.standard_normal()),
                )
                self.curves[name, s] = _curve(own, end, onset if kind == "unstable" else None, rng)

    def look(self, name: str, s: int, points: int) -> tuple[Fit | None, bool]:
        """The fit of a member after so many validations (none if unstable), and whether it is."""
        key = name, s, points
        if key not in self.seen:
            whole = self.curves[name, s]
            run = whole.replace(
                name=f"{name}-s{s}", group=name, compute=whole.compute[: points + 1],
                score=whole.score[: points + 1],
            )  # fmt: skip
            unstable = _unstable(run)
            self.seen[key] = (None if unstable else fit(run)), unstable
        return self.seen[key]


def _law(base: Sigmoid, kind: str) -> Sigmoid:
    add, times = {
        "higher": (DELTA, 1.0), "lower": (-DELTA, 1.0), "slower": (0.0, SLOWER),
        "crossing": CROSSING,
    }.get(kind, (0.0, 1.0))  # fmt: skip
    return replace(base, A=base.A + add, C_mid=base.C_mid * times)


def _curve(law: Sigmoid, end: float, onset: float | None, rng: np.random.Generator) -> Run:
    c = np.linspace(0.0, end, POINTS + 1)
    level = np.append(law.R_0, law.value(c[1:]))
    if onset is not None:
        fall = np.clip((c - onset) / (0.1 * end), 0.0, 1.0)
        level = level - fall * (level - law.R_0)
    score = np.clip(level + noise(len(c), NOISE_SD, NOISE_RHO, rng), 0.0, 1.0)
    return Run("run", compute=c, score=score, x_kind="steps")


def _unstable(run: Run) -> bool:
    """By the rule of study/stability.py that a simulated collapse breaks first."""
    lines = [
        EvalLine.from_dict(
            {
                "step": i,
                "compute": {},
                "pass_rate": float(y),
                "stderr": NOISE_SD,
                "n_prompts": 200,
                "k": 4,
            }
        )
        for i, y in enumerate(run.score)
    ]
    return judge_lines([], lines).state == "unstable"


Given = dict[tuple[str, int], int]


def racers(study: Simulated, given: Given) -> list[Racer]:
    """The members as a race sees them, after these numbers of validations."""
    found = []
    for (name, s), points in given.items():
        f, unstable = study.look(name, s, points) if points >= FIRST else (None, False)
        share = points / POINTS
        found.append(
            Racer(f"{name}-s{s}", name, f, share, FIRST / POINTS, CHUNK / POINTS, unstable=unstable)
        )
    return found


def run_race(study: Simulated) -> tuple[Given, Given]:
    """What the race gave, and what it had given when a third of all budgets was spent."""
    given = dict.fromkeys(study.curves, 0)
    places = {f"{name}-s{s}": (name, s) for name, s in given}
    third = dict(given)
    while order := race(racers(study, given), REFERENCE, study.foresight).order:
        place = places[order[0]]
        given[place] = min(max(given[place] + CHUNK, FIRST), POINTS)
        if spent(given) <= 1.0 / 3.0:
            third = dict(given)
    return given, third


def spent(given: Given) -> float:
    return sum(given.values()) / (POINTS * len(given))


def to_level(
    study: Simulated, level: float, names: Iterable[str], given: Given, seeds: int = SEEDS
) -> None:
    """These variants go on to a share of their budget; members stop where they become unstable."""
    for name, s in study.curves:
        if name in names and s < seeds:
            while given[name, s] < min(round(level * POINTS), POINTS):
                if given[name, s] >= FIRST and study.look(name, s, given[name, s])[1]:
                    break
                given[name, s] += 1


def run_fixed(study: Simulated, level: float = 1.0, seeds: int = SEEDS) -> Given:
    given = dict.fromkeys(study.curves, 0)
    to_level(study, level, study.kinds, given, seeds)
    return given


def run_halving(study: Simulated) -> tuple[Given, set[str]]:
    """Also: who was left at the end."""
    given = dict.fromkeys(study.curves, 0)
    left = [name for name in study.kinds if name != REFERENCE]
    for level in (0.125, 0.25, 0.5, 1.0):
        to_level(study, max(level, FIRST / POINTS) if level < 0.2 else level,
                 {*left, REFERENCE}, given)  # fmt: skip
        if level == 1.0:
            break
        left = sorted(left, key=lambda name: -_score(study, name, given))[
            : math.ceil(len(left) / 2)
        ]
    return given, {*left, REFERENCE}


def _score(study: Simulated, name: str, given: Given) -> float:
    """What halving goes by: mean of the last two validations of its seeds; unstable ones last."""
    last = []
    for s in range(SEEDS):
        points = given[name, s]
        unstable = study.look(name, s, points)[1]
        last.append(
            -1.0 if unstable else study.curves[name, s].score[points - 1 : points + 1].mean()
        )
    return float(np.mean(last))


def judged(study: Simulated, given: Given, left: set[str]) -> dict[str, Any]:
    """Each comparison: decided, wrong; and what became of the best."""
    members = racers(study, given)
    # With nothing to be given, the race only says what the verdicts are.
    state = race([replace(r, closed=True) for r in members], REFERENCE, study.foresight)
    arms = {}
    for name in study.kinds:
        fits = tuple(r.fit for r in members if r.variant == name and r.fit is not None)
        if fits:
            arms[name] = Arm(name, fits)
    arms = {arm.name: arm for arm in akin(arms.values())}
    rows = []
    for name, kind in study.kinds.items():
        if name == REFERENCE:
            continue
        verdict, winner = state.verdicts.get(name, ("undecided", None))
        wrong = _wrong(kind, name, verdict, winner)
        rows.append({"kind": kind, "verdict": verdict, "wrong": wrong})
    best = max(study.truth, key=lambda name: study.truth[name])
    named = max(arms, key=lambda name: float(np.median(arms[name].ceiling)))
    verdict, winner = state.verdicts.get(best, ("undecided", None))
    return {
        "rows": rows,
        "compute": spent(given),
        "thrown_away": best not in left or verdict == "unstable" or winner == REFERENCE,
        "not_named": named != best,
    }


def _wrong(kind: str, name: str, verdict: str, winner: str | None) -> bool:
    """A side that is not there, or the wrong one; "same" of what differs; a collapse that was not
    seen, where the variant is not said to be the worse one; a healthy one called unstable."""
    if verdict == "undecided":
        return False
    if verdict == "unstable" or kind == "unstable":
        return verdict != "unstable" and winner != REFERENCE if kind == "unstable" else True
    right = {
        "same": ("same", None), "higher": ("higher-ceiling", name), "slower": ("faster", REFERENCE),
        "lower": ("higher-ceiling", REFERENCE), "crossing": ("higher-ceiling", name),
    }[kind]  # fmt: skip
    return (verdict, winner) != right


def one(seed: int) -> dict[str, Any]:
    began = time.monotonic()
    study = Simulated(seed)
    everyone = set(study.kinds)
    raced, third = run_race(study)
    halved, left = run_halving(study)
    found = {
        "fixed": judged(study, run_fixed(study), everyone),
        "race": judged(study, raced, everyone),
        "third": judged(study, third, everyone),
        "one-seed": judged(study, run_fixed(study, seeds=1), everyone),
        "uniform": judged(study, run_fixed(study, spent(raced)), everyone),
        "halving": judged(study, halved, left),
    }
    shares = {k: f"{v['compute']:.2f}" for k, v in found.items()}
    counts = {k: sum(r["verdict"] != "undecided" for r in v["rows"]) for k, v in found.items()}
    wrong = {k: [f"{r['kind']}:{r['verdict']}" for r in v["rows"] if r["wrong"]]
             for k, v in found.items()}  # fmt: skip
    print(f"study {seed}: compute {shares} decided {counts} wrong {wrong} "
          f"({time.monotonic() - began:.0f} s)", flush=True)  # fmt: skip
    return found


def summary(studies: list[dict[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for method in METHODS:
        rows = [r for study in studies for r in study[method]["rows"]]
        healthy = [r for r in rows if r["kind"] != "unstable"]
        out[method] = {
            "comparisons": len(rows),
            "compute": _mean(s[method]["compute"] for s in studies),
            "decided": _mean(r["verdict"] != "undecided" for r in rows),
            "wrong": _mean(r["wrong"] for r in rows),
            "wrong_healthy": _mean(r["wrong"] for r in healthy),
            "collapses_missed": _mean(r["verdict"] != "unstable" for r in rows if r not in healthy),
            "best_thrown_away": _mean(s[method]["thrown_away"] for s in studies),
            "best_not_named": _mean(s[method]["not_named"] for s in studies),
            "decided_by_kind": {
                kind: _mean(r["verdict"] != "undecided" for r in rows if r["kind"] == kind)
                for kind in dict.fromkeys(KINDS)
            },
            "wrong_by_kind": {
                kind: _mean(r["wrong"] for r in rows if r["kind"] == kind)
                for kind in dict.fromkeys(KINDS)
            },
        }
    return out


def _mean(values: Iterable[Any]) -> float:
    found = [float(v) for v in values]
    return float(np.mean(found)) if found else math.nan


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--studies", type=int, default=40)
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin none after these")
    parser.add_argument("-o", "--out", type=Path)
    args = parser.parse_args(argv)
    began, studies = time.monotonic(), list[dict[str, Any]]()
    while len(studies) < args.studies and time.monotonic() - began < 60 * args.minutes:
        studies.append(one(len(studies)))
    found = summary(studies)
    for method, row in found.items():
        print(method, " ".join(f"{k} {v:.3f}" for k, v in row.items() if isinstance(v, float)))
    save("race", {"studies": len(studies), "variants": len(KINDS), "seeds": SEEDS,
                  "points": POINTS, "methods": found}, args.out,
         f"--studies {len(studies)}")  # fmt: skip


if __name__ == "__main__":
    main()
