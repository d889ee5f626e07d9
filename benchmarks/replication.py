"""The paper's claims at laptop scale: the studies of docs/replication, run, collected, and judged.

python benchmarks/replication.py                     runs what is left, then collects
python benchmarks/replication.py --collect           only collects what is there

Three studies of the default task: 61 runs of 300 steps (69 members; eight of them are members of
two studies and run once), some two and a half minutes each on two idle cores, so under three hours
in all. Kill it whenever you like: the same command goes on. A run that was collected is not run
again, also on another machine.

Of every member that has ended, docs/replication/STUDY/runs keeps its validations, its recipe, every
tenth step, and the per-prompt outcomes of its last validation; no checkpoints.
`make replication` writes the reports. Every variant's ceiling is known by construction, so that
false verdicts can be counted.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from learning import ceiling_of, ended
from record import save
from scalerl import Study
from scalerl.curves.arms import MARGIN
from scalerl.recipe import Recipe, diff
from scalerl.study.definition import read_definition
from scalerl.study.members import ELSEWHERE

HOME = Path(__file__).parent.parent / "docs" / "replication"
STUDIES = ("recipes", "heads", "axes")
KEPT = ("recipe.toml", "recipe.json", "evals.jsonl", "events.jsonl", "status.json")
#: Steps that are kept: one in so many.
EVERY = 10


def begin(name: str, out: Path) -> Path:
    """The study's directory, with the recipes and members that were collected before."""
    study, collected = out / name, HOME / name
    if collected.exists() and not study.exists():
        shutil.copytree(collected, study)
    for run in (collected / "runs").glob("*"):
        if not (study / "runs" / run.name).exists():
            shutil.copytree(run, study / "runs" / run.name)
    return study


def opened(name: str, study: Path) -> Study:
    """The study that is there, whose recipes are kept as they were begun, or the one asked for."""
    if (study / "study.toml").exists():
        return Study(study)
    return Study(study, **read_definition(HOME / f"{name}.toml").given())


def share(name: str, study: Study) -> None:
    """Members that another study has run: the same recipe with the same seed is the same run."""
    for member in study.members:
        for run in HOME.glob(f"*/runs/{member.name}"):
            other = {d.path for d in diff(Recipe.load(run / "recipe.toml"), member.recipe)}
            if not member.path.exists() and all(p.partition(".")[0] in ELSEWHERE for p in other):
                for to in (member.path, HOME / name / "runs" / member.name):
                    shutil.copytree(run, to, dirs_exist_ok=True)


def collect(name: str, study: Path) -> None:
    if not (HOME / name / "study.toml").exists():  # the recipes as they were run
        shutil.copytree(study / "recipes", HOME / name / "recipes", dirs_exist_ok=True)
        shutil.copy(study / "study.toml", HOME / name)
    for run in sorted(study.glob("runs/*")):
        to = HOME / name / "runs" / run.name
        if to.exists() or not _whole(run):
            continue
        (to / "evals").mkdir(parents=True)
        for file in KEPT:
            # Advice in the record names the directory it ran in: here the one that a reader has.
            text = (run / file).read_text()
            (to / file).write_text(text.replace(str(study.resolve()), f"out/replication/{name}"))
        lines = (run / "steps.jsonl").read_text().splitlines(keepends=True)
        (to / "steps.jsonl").write_text("".join(lines[EVERY - 1 :: EVERY]))
        last = max(run.glob("evals/step_*.json"), key=lambda p: int(p.stem.split("_")[1]))
        shutil.copy(last, to / "evals" / last.name)


def _whole(run: Path) -> bool:
    """Whether it came to an end of its own: one that was interrupted has ended as well."""
    if not ended(run):
        return False
    events = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    return [e["reason"] for e in events if e["event"] == "end"][-1] != "interrupted"


def judged(name: str) -> dict[str, Any]:
    """The study's table beside what is true by construction."""
    study = opened(name, HOME / name)
    study.write()
    found = study.to_dict()
    # Without forced interruption how long a thought may be is not given, and no ceiling follows.
    truth = {
        variant: ceiling_of(recipe) if recipe.length.control == "interruption" else None
        for variant, recipe in study.variants.items()
    }
    rows = []
    for row in found["table"]:
        low, high = row["intervals"]["A"] or (None, None)
        true = truth[row["variant"]]
        rows.append(
            {
                **{k: row[k] for k in ("variant", "seeds", "A", "B", "C_mid", "intervals")},
                "identified": row["identified"],
                "verdict": row["verdict"],
                "winner": row["winner"],
                "words": row["words"],
                "stability": row["stability"]["state"],
                "true_A": true,
                "holds": None if low is None or true is None else low <= true <= high,
                "false": _false(row, truth, study.reference),
            }
        )
    return {
        "reference": study.reference,
        "runs": sum(row["seeds"] for row in rows),
        "of": len(study.members),
        "seed_sd": found["seed_sd"],
        "table": rows,
        "knobs": found["knobs"],
    }


def _false(row: dict[str, Any], truth: dict[str, float | None], reference: str) -> bool:
    """Whether the verdict on the ceilings is not what they are by construction."""
    mine, other = truth[row["variant"]], truth[reference]
    if mine is None or other is None:
        return False
    difference = mine - other
    if row["verdict"] == "higher-ceiling":
        winner = row["variant"] if difference > 0 else reference
        return abs(difference) < 1e-9 or row["winner"] != winner
    return row["verdict"] in ("same", "faster") and abs(difference) > MARGIN


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--collect", action="store_true", help="run nothing")
    parser.add_argument("--out", type=Path, default=Path("out/replication"))
    parser.add_argument("--jobs", type=int, help="members at once")
    args = parser.parse_args()
    found = {}
    for name in STUDIES:
        study = begin(name, args.out)
        if not args.collect:
            begun = opened(name, study)
            share(name, begun)
            begun.write()
            words = [sys.executable, "-m", "scalerl", "study", str(study), "--plain"]
            words += [] if args.jobs is None else ["--jobs", str(args.jobs)]
            subprocess.run(words, check=True)
        collect(name, study)
        if any((HOME / name / "runs").glob("*")):
            found[name] = judged(name)
    save("replication", {"studies": found})


if __name__ == "__main__":
    main()
