"""Studies with their whole future: a race against fixed budgets, halving and uniform.

python benchmarks/race.py --studies 20        simulated, truth known (about 15 s of a core each)
python benchmarks/race.py --replay DIR        the recorded runs of a study, as if they grew

A simulated study has a reference and twelve variants, three seeds each. Variants, in random order:

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

And curves: what is decided, and what is wrong, after so much compute, of the race as it goes and of
budgets that are fixed at less; from them, the compute at which both decide equally many.

Fits have 1,000 draws here instead of 4,000 (--draws): half the time, and a probability is known to
.005.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "curves"))

from race_studies import (
    KINDS,
    POINTS,
    REFERENCE,
    SEEDS,
    Given,
    Recorded,
    Simulated,
    StudyFuture,
)
from record import RESULTS, save
from scalerl.curves.arms import Arm, with_family_prior
from scalerl.curves.laws import sigmoid
from scalerl.study.members import CHUNKS, FIRST_VALIDATIONS
from scalerl.study.race import race

METHODS = ("fixed", "race", "third", "one-seed", "uniform", "halving")
#: Shares that budgets are fixed at, and compute at which the race is looked at.
SHARES = (0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0)
LEVELS = tuple(round(0.05 * i, 2) for i in range(4, 21))
#: Shares of all verdicts at which the two are compared.
DECIDED = (0.15, 0.25, 0.35, 0.45, 0.55, 0.65)

Verdicts = dict[str, tuple[str, str | None]]


# -- allocations ----------------------------------------------------------------------------------


def run_race(study: StudyFuture) -> list[tuple[Given, Verdicts]]:
    """What had been given and was known, look by look."""
    given = study.none_given()
    places = {f"{name}-s{s}": (name, s) for name, s in given}
    looks: list[tuple[Given, Verdicts]] = []
    while True:
        state = race(study.racers(given), study.reference, study.foresight)
        looks.append((dict(given), dict(state.verdicts)))
        if not state.order:
            return looks
        place = places[state.order[0]]
        given[place] = study.after(place, given[place])


def at(study: StudyFuture, looks: Sequence[tuple[Given, Verdicts]], level: float) -> int:
    """The last look at which no more than this was spent."""
    return max(i for i, (given, _) in enumerate(looks) if study.spent(given) <= level + 1e-9)


def to_level(
    study: StudyFuture, level: float, names: Iterable[str], given: Given, seeds: int = SEEDS
) -> None:
    """These variants go on to a share of their budget; members stop where they become unstable."""
    chosen = set(names)
    for place in study.curves:
        if place[0] in chosen and place[1] < seeds:
            while given[place] < round(level * study.end(place)):
                if study.unstable(place, given[place]):
                    break
                given[place] += 1


def run_fixed(study: StudyFuture, level: float = 1.0, seeds: int = SEEDS) -> Given:
    given = study.none_given()
    to_level(study, level, study.variants, given, seeds)
    return given


def run_halving(study: StudyFuture) -> tuple[Given, set[str]]:
    """Also: who was left at the end."""
    given = study.none_given()
    left = [name for name in study.variants if name != study.reference]
    for level in (FIRST_VALIDATIONS / POINTS, 0.25, 0.5, 1.0):
        to_level(study, level, {*left, study.reference}, given)
        if level < 1.0:
            left = sorted(left, key=lambda name: -_score(study, name, given))
            left = left[: math.ceil(len(left) / 2)]
    return given, {*left, study.reference}


def _score(study: StudyFuture, name: str, given: Given) -> float:
    """What halving goes by: mean of the last two validations of its seeds; unstable ones last."""
    last = []
    for place, points in given.items():
        if place[0] == name:
            score = study.curves[place].score[points - 1 : points + 1].mean()
            last.append(-1.0 if study.unstable(place, points) else score)
    return float(np.mean(last))


# -- what they found ------------------------------------------------------------------------------


def verdicts_of(study: StudyFuture, given: Given) -> Verdicts:
    """With nothing to be given, the race only says what the verdicts are."""
    closed = [replace(r, closed=True) for r in study.racers(given)]
    return dict(race(closed, study.reference, study.foresight).verdicts)


def rows_of(study: Simulated, verdicts: Verdicts) -> list[dict[str, Any]]:
    rows = []
    for name, kind in study.kinds.items():
        if name != REFERENCE:
            verdict, winner = verdicts.get(name, ("undecided", None))
            wrong = _wrong(kind, name, verdict, winner)
            rows.append({"kind": kind, "verdict": verdict, "wrong": wrong})
    return rows


def judged(study: Simulated, given: Given, left: set[str]) -> dict[str, Any]:
    """Each comparison: decided, wrong; and what became of the best."""
    verdicts = verdicts_of(study, given)
    members = study.racers(given)
    arms = [
        Arm(name, fits)
        for name in study.variants
        if (fits := tuple(r.fit for r in members if r.variant == name and r.fit is not None))
    ]
    ceilings = {arm.name: float(np.median(arm.ceiling)) for arm in with_family_prior(arms)}
    best = max(study.truth, key=lambda name: study.truth[name])
    verdict, winner = verdicts.get(best, ("undecided", None))
    return {
        "rows": rows_of(study, verdicts),
        "compute": study.spent(given),
        "thrown_away": best not in left or verdict == "unstable" or winner == REFERENCE,
        "not_named": max(ceilings, key=lambda name: ceilings[name]) != best,
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
    began = time.process_time()
    study = Simulated(seed)
    everyone = set(study.kinds)
    looks = run_race(study)
    raced, third = looks[-1][0], looks[at(study, looks, 1.0 / 3.0)][0]
    halved, left = run_halving(study)
    cut = {share: run_fixed(study, share) for share in SHARES}
    found = {
        "fixed": judged(study, cut[1.0], everyone),
        "race": judged(study, raced, everyone),
        "third": judged(study, third, everyone),
        "one-seed": judged(study, run_fixed(study, seeds=1), everyone),
        "uniform": judged(study, run_fixed(study, study.spent(raced)), everyone),
        "halving": judged(study, halved, left),
    }
    shares = {k: f"{v['compute']:.2f}" for k, v in found.items()}
    counts = {k: sum(r["verdict"] != "undecided" for r in v["rows"]) for k, v in found.items()}
    wrong = {k: [f"{r['kind']}:{r['verdict']}" for r in v["rows"] if r["wrong"]]
             for k, v in found.items()}  # fmt: skip
    print(f"study {seed}: compute {shares} decided {counts} wrong {wrong} "
          f"({len(looks)} looks, {time.process_time() - began:.0f} s)", flush=True)  # fmt: skip
    found["cut"] = {
        share: {"compute": study.spent(given), "rows": rows_of(study, verdicts_of(study, given))}
        for share, given in cut.items()
    }
    found["course"] = {}
    for level in LEVELS:
        given, verdicts = looks[at(study, looks, level)]
        found["course"][level] = {
            "compute": study.spent(given), "rows": rows_of(study, verdicts)
        }  # fmt: skip
    return found


# -- over studies ---------------------------------------------------------------------------------


def summary(studies: list[dict[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for method in METHODS:
        rows = [r for study in studies for r in study[method]["rows"]]
        healthy = [r for r in rows if r["kind"] != "unstable"]
        by_kind = {k: [r for r in rows if r["kind"] == k] for k in dict.fromkeys(KINDS)}
        out[method] = {
            "comparisons": len(rows),
            "compute": _mean(s[method]["compute"] for s in studies),
            "decided": _mean(map(_decided, rows)),
            "wrong": _mean(r["wrong"] for r in rows),
            "wrong_healthy": _mean(r["wrong"] for r in healthy),
            "collapses_missed": _mean(r["verdict"] != "unstable" for r in by_kind["unstable"]),
            "best_thrown_away": _mean(s[method]["thrown_away"] for s in studies),
            "best_not_named": _mean(s[method]["not_named"] for s in studies),
            "decided_by_kind": {k: _mean(map(_decided, mine)) for k, mine in by_kind.items()},
            "wrong_by_kind": {k: _mean(r["wrong"] for r in mine) for k, mine in by_kind.items()},
        }
    return out


def course(studies: list[dict[str, Any]], which: str) -> list[dict[str, float]]:
    """Compute, decided and wrong, along the way."""
    found = []
    for key in studies[0][which]:
        rows = [r for study in studies for r in study[which][key]["rows"]]
        found.append({
            "compute": _mean(study[which][key]["compute"] for study in studies),
            "decided": _mean(map(_decided, rows)),
            "wrong": _mean(r["wrong"] for r in rows),
        })  # fmt: skip
    return found


def equally(
    fixed: Sequence[dict[str, float]], raced: Sequence[dict[str, float]]
) -> list[dict[str, float]]:
    """The compute at which each has decided a share of all verdicts, between the points of its
    curve, and what was wrong by then; only shares that both come to."""
    out = []
    for decided in DECIDED:
        ours, theirs = _reaches(raced, decided), _reaches(fixed, decided)
        if ours is not None and theirs is not None:
            out.append({
                "decided": decided,
                "fixed": theirs[0], "fixed_wrong": theirs[1],
                "race": ours[0], "race_wrong": ours[1],
                "ratio": ours[0] / theirs[0],
            })  # fmt: skip
    return out


def _reaches(curve: Sequence[dict[str, float]], decided: float) -> tuple[float, float] | None:
    """Compute and wrong verdicts where the curve first comes to this share."""
    for before, after in pairwise(curve):
        if before["decided"] < decided <= after["decided"]:
            share = (decided - before["decided"]) / (after["decided"] - before["decided"])
            compute, wrong = (
                before[k] + share * (after[k] - before[k]) for k in ("compute", "wrong")
            )
            return compute, wrong
    return None


def _decided(row: dict[str, Any]) -> bool:
    return bool(row["verdict"] != "undecided")


def _mean(values: Iterable[Any]) -> float:
    found = [float(v) for v in values]
    return float(np.mean(found)) if found else math.nan


# -- recorded runs --------------------------------------------------------------------------------


def replay(path: Path) -> dict[str, Any]:
    """What a race of these runs would have spent and decided, beside all of them in full."""
    study = Recorded(path)
    looks = run_race(study)
    raced, fixed = looks[-1][0], run_fixed(study)
    told, whole = looks[-1][1], verdicts_of(study, fixed)
    seeds = {v: sum(place[0] == v for place in study.curves) for v in study.variants}
    rows = [
        {
            "variant": v,
            "runs": seeds[v],
            "given": [round(n / study.end(p), 3) for p, n in raced.items() if p[0] == v],
            "race": list(told.get(v, ("undecided", None))),
            "fixed": list(whole.get(v, ("undecided", None))),
        }
        for v in study.variants
    ]
    others = [row for row in rows if row["variant"] != study.reference]
    return {
        "runs": len(study.curves),
        "reference": study.reference,
        "compute": {"race": study.spent(raced), "fixed": study.spent(fixed)},
        "comparisons": len(others),
        "decided": {k: sum(r[k][0] != "undecided" for r in others) for k in ("race", "fixed")},
        "differ": [r["variant"] for r in others if r["race"] != r["fixed"]],
        "rows": rows,
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--studies", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, metavar="N", help="seed of the first one")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin none after these")
    parser.add_argument("--draws", type=int, default=1000, help="of each posterior")
    parser.add_argument("--replay", type=Path, metavar="DIR", help="of a study with its runs")
    parser.add_argument("-o", "--out", type=Path)
    args = parser.parse_args(argv)
    if args.replay is not None:
        found = replay(args.replay)
        for row in found["rows"]:
            print(f"{row['variant']}: {row['given']} race {row['race']} fixed {row['fixed']}")
        print({k: found[k] for k in ("runs", "compute", "decided", "differ")})
        save("race", found, args.out or RESULTS / "race_replay.json", f"--replay {args.replay}")
        return
    sigmoid.DRAWS = args.draws
    began, studies = time.monotonic(), list[dict[str, Any]]()
    while len(studies) < args.studies and time.monotonic() - began < 60 * args.minutes:
        studies.append(one(args.first + len(studies)))
    found = summary(studies)
    for method, row in found.items():
        print(method, " ".join(f"{k} {v:.3f}" for k, v in row.items() if isinstance(v, float)))
    curves = {"fixed": course(studies, "cut"), "race": course(studies, "course")}
    equal = equally(curves["fixed"], curves["race"])
    for point in equal:
        print("equally many:", " ".join(f"{k} {v:.3f}" for k, v in point.items()))
    save("race", {"studies": len(studies), "first": args.first, "variants": len(KINDS),
                  "seeds": SEEDS, "points": POINTS, "first_points": FIRST_VALIDATIONS,
                  "chunks": CHUNKS,
                  "draws": args.draws, "methods": found, "curves": curves, "equally": equal},
         args.out, f"--studies {len(studies)}")  # fmt: skip


if __name__ == "__main__":
    main()
