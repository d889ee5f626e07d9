"""How much of each force a recipe bears: the studies behind docs/findings, run, thinned, judged.

python benchmarks/forces.py lag noise       run what is left of two forces, keep, judge
python benchmarks/forces.py all             every force of the package
python benchmarks/forces.py lag --collect   run nothing

A run takes about half a minute on one core; two run at once by default, each with one thread. Kill
it whenever you like: the same command goes on. A run whose record is kept is not run again.

Of every run that has ended, docs/findings/records/FORCE/runs keeps its recipe, its validations and
the columns COLUMNS of its steps, rounded; the counters of every tenth step; no checkpoints and no
answers. Verdicts and pictures are made from these records alone: results/forces_FORCE.json,
docs/findings/images/FORCE.svg. `scalerl report docs/findings/records/FORCE` reads them too.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from record import save
from scalerl import Study
from scalerl.report.dose_figure import plot_force
from scalerl.study.force import force_names

ROOT = Path(__file__).parent.parent
FINDINGS = ROOT / "docs" / "findings"
RECORDS = FINDINGS / "records"
KEPT = ("recipe.toml", "recipe.json", "evals.jsonl", "events.jsonl")
#: Columns of a step that are kept of every step: what the rules of stability and the alarms read.
COLUMNS = (
    "step", "loss", "grad_norm", "entropy", "truncated", "length/mean", "ratio/max", "ess",
    "logprob_gap/kl", "pass_rate", "non_finite",
)  # fmt: skip
#: Columns that are kept of one step in COUNTED: the counters of the mechanism.
COUNTERS = (
    "lr", "ratio/truncated", "logprob_gap/mean", "staleness/mean", "staleness/max", "staleness/gap",
    "staleness/kl", "zero_variance", "clipping", "far_gradient", "gradient_chance",
)  # fmt: skip
COUNTED = 10
#: Significant digits of numbers that are kept.
DIGITS = 3


def begin(name: str, out: Path) -> Path:
    """The directory of the study, with the runs whose records are kept."""
    study, kept = out / name, RECORDS / name
    for run in kept.glob("runs/*"):
        to = study / "runs" / run.name
        if not to.exists():
            shutil.copytree(run, to)
    return study


def run(name: str, study: Path, jobs: int) -> int:
    """Run what is left; the exit code of the study."""
    # The first start names the force; after it the directory says everything.
    words = [] if (study / "study.toml").exists() else ["--forces", name]
    command = [sys.executable, "-m", "scalerl", "study", str(study), *words, "--plain"]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, "--jobs", str(jobs)], check=False, cwd=ROOT, env=one_thread
    ).returncode


def keep(name: str, study: Path) -> None:
    """Keep the records of runs that have ended, thinned."""
    to = RECORDS / name
    to.mkdir(parents=True, exist_ok=True)
    if (study / "study.toml").exists():
        for file in (study / "study.toml", study / "force.toml", *study.glob("recipes/*.toml")):
            _copy(file, to / file.relative_to(study), study)
    for run_dir in sorted(study.glob("runs/*")):
        kept = to / "runs" / run_dir.name
        if kept.exists() or not _whole(run_dir):
            continue
        for kind in KEPT:
            _copy(run_dir / kind, kept / kind, study)
        steps = (run_dir / "steps.jsonl").read_text().splitlines()
        (kept / "steps.jsonl").write_text("".join(thinned(steps)))


def _copy(file: Path, to: Path, study: Path) -> None:
    """A text file; in place of this machine's directory it names the one that a reader has."""
    text = file.read_text()
    for place in (str(study.resolve()), str(study)):
        text = text.replace(place, f"out/forces/{study.name}")
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(text)


def _whole(run_dir: Path) -> bool:
    """Whether a run came to the end of its budget."""
    events = run_dir / "events.jsonl"
    if not events.exists():
        return False
    found = [json.loads(line) for line in events.read_text().splitlines()]
    return any(e["event"] == "end" and e["reason"].startswith("budget of") for e in found)


def thinned(lines: Iterable[str]) -> Iterable[str]:
    """The lines of steps.jsonl with the columns that are kept."""
    for i, line in enumerate(lines):
        data, found = json.loads(line), {}
        columns = COLUMNS + (COUNTERS if i % COUNTED == 0 else ())
        for column in columns:
            value: Any = data
            for key in column.split("/"):
                value = value.get(key) if isinstance(value, dict) else None
            # Readers take it for 0 where it is missing.
            if value is not None and not (column == "non_finite" and value == 0):
                _put(found, column.split("/"), _rounded(value))
        yield json.dumps(found, separators=(",", ":")) + "\n"


def _put(into: dict[str, Any], path: list[str], value: Any) -> None:
    for key in path[:-1]:
        into = into.setdefault(key, {})
    into[path[-1]] = value


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return value


def mechanism(study: Study) -> dict[str, dict[str, float | None]]:
    """How the force acts in each cell: means over the steps whose counters are kept. `rare` is of
    tokens that were drawn with a probability below 0.1, `far` of gradient from ratios beyond 2."""
    found = {}
    for variant in study.variants:
        rows = [
            json.loads(line)
            for member in study.members
            if member.variant == variant and (member.path / "steps.jsonl").exists()
            for line in (member.path / "steps.jsonl").read_text().splitlines()
        ]
        counted = [row for row in rows if row.get("clipping")]
        tokens = sum(sum(row["clipping"]["tokens"]) for row in counted)
        rare = sum(row["clipping"]["tokens"][0] for row in counted)
        cut = [
            [n * share for n, share in zip(c["tokens"], c["truncated"], strict=True)]
            for c in (row["clipping"] for row in counted)
        ]
        found[variant] = {
            "truncated": sum(map(sum, cut)) / tokens if tokens else None,
            "rare_truncated": sum(bins[0] for bins in cut) / rare if rare else None,
            "rare_of_truncated": (
                sum(bins[0] for bins in cut) / sum(map(sum, cut)) if sum(map(sum, cut)) else None
            ),
            "ess": _mean(row.get("ess") for row in rows),
            "kl": _mean((row.get("logprob_gap") or {}).get("kl") for row in rows),
            "far_gradient": _mean(row.get("far_gradient") for row in rows),
        }
    return found


def _mean(values: Iterable[Any]) -> float | None:
    known = [v for v in values if v is not None and math.isfinite(v)]
    return math.fsum(known) / len(known) if known else None


def judge(name: str) -> None:
    """Verdicts and picture from the records that are kept."""
    study = Study(RECORDS / name)
    found = study.force_results()
    (FINDINGS / "images").mkdir(parents=True, exist_ok=True)
    plot_force(found, FINDINGS / "images" / f"{name}.svg")
    result = found.to_dict() | {
        "command": f"python benchmarks/forces.py {name}",
        "runs": sum(cell.runs for line in found.lines for cell in line.cells),
        "of": len(study.members),
        "recipe": list(study.definition.recipe),
        "mechanism": _rounded(mechanism(study)),
        "unstable": {name: str(why) for name, why in study.force_unstable().items()},
    }
    (RECORDS / name / "verdict.json").write_text(json.dumps(result, indent=1) + "\n")
    save(f"forces_{name.replace('-', '_')}", result)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("forces", nargs="+", help=f"all, or of {', '.join(force_names())}")
    parser.add_argument("--collect", action="store_true", help="run nothing")
    parser.add_argument("--out", type=Path, default=Path("out/forces"))
    parser.add_argument("--jobs", type=int, default=2, help="runs at once")
    args = parser.parse_args()
    names = force_names() if "all" in args.forces else args.forces
    for name in names:
        study = begin(name, args.out)
        code = 0 if args.collect else run(name, study, args.jobs)
        keep(name, study)
        judge(name)
        if code:
            raise SystemExit(code)


if __name__ == "__main__":
    main()
