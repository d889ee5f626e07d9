"""Are the verdicts of a dose axis right? Simulated studies whose thresholds and slopes are known.

python benchmarks/forces_truth.py                all, about ten minutes on one core
python benchmarks/forces_truth.py --studies 5    fewer

Nothing is trained: a run is drawn from the law, with the noise of its validations, what a seed does
to its ceiling, and planted collapses. Each study has a line that a dose does nothing to, lines that
fall from some dose on (slowly, fast), one that only collapses; or lines that break at doses that go
with a key by a known power. A verdict is wrong if it says that a line falls that does not up to the
largest dose, or the other way round; or that a law holds (does not hold) that does not (does).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from record import save
from scalerl.curves.arms import MARGIN
from scalerl.curves.fit import fit
from scalerl.curves.formula import logistic
from scalerl.recipe import Recipe
from scalerl.runs.lines import EvalLine, StepLine
from scalerl.runs.record import Run
from scalerl.study.dose_draws import positions
from scalerl.study.dose_results import END_POINTS, END_SHARE, ForceResults, force_results
from scalerl.study.force import ForceDefinition, parse_force
from scalerl.study.members import Member
from scalerl.study.stability import assess_lines, half_check
from scalerl.study.table import MemberFinding

#: Steps of a run, and from one validation to the next: those of the short bench.
STEPS = 120
EVERY = 10
#: Answers of a validation.
ANSWERS = 504
#: sd of a ceiling between seeds.
SEED_SD = 0.01
START = 0.15
CEILING = 0.8
SLOPE = 2.0
#: Step at which half of the gain is made.
MIDDLE = 22.0
DOSES = (1.0, 2.0, 4.0, 8.0, 16.0)
SEEDS = 3
LAW_KEYS = (1, 2, 4, 8, 16)
#: Learning rates, in multiples of the smallest.
LAW_DOSES = (1.0, 2.0, 4.0, 8.0, 16.0)
#: True slopes of the simulated laws; the claimed one is the first.
LAW_SLOPES = (-1.0, -0.5, 0.0, -1.5)


@dataclass(frozen=True, slots=True)
class Truth:
    """What growing doses truly do to a line; places are on an axis from 0 to 1."""

    #: Place from which on its ceiling falls; inf: never.
    begins: float = math.inf
    #: Fall of the ceiling per unit of the axis.
    rate: float = 0.0
    #: Place at which half of its runs collapse, and the width of that rise.
    half: float = math.inf
    width: float = 0.05

    def ceiling(self, place: float) -> float:
        return max(CEILING - self.rate * max(place - self.begins, 0.0), START + 0.05)

    def unstable(self, place: float) -> float:
        return 0.0 if math.isinf(self.half) else float(logistic((place - self.half) / self.width))

    def threshold(self, kind: str) -> float:
        """Place at which its level has fallen by MARGIN, or half of its runs collapse; inf: beyond
        the largest dose."""
        share = 1.0 if kind == "ceiling" else _gained()
        fall = self.begins + MARGIN / self.rate / share if self.rate else math.inf
        found = min(fall, self.half)
        return found if found < 1.0 else math.inf


def _gained() -> float:
    """Share of its gain that a run has at the end of the budget, as END_SHARE reads it."""
    steps = np.arange(0, STEPS + 1, EVERY)
    count = max(END_POINTS, round(END_SHARE * len(steps)))
    return float(np.mean(1 / (1 + (MIDDLE / steps[-count:]) ** SLOPE)))


def planted(rng: np.random.Generator) -> dict[str, Truth]:
    """The lines of one study."""
    return {
        "nothing": Truth(),
        "slow": Truth(begins=float(rng.uniform(0.0, 0.6)), rate=float(rng.uniform(0.1, 0.3))),
        "fast": Truth(begins=float(rng.uniform(0.0, 0.8)), rate=float(rng.uniform(0.5, 1.5))),
        "collapses": Truth(half=float(rng.uniform(0.15, 0.85))),
        "late": Truth(begins=float(rng.uniform(1.0, 1.3)), rate=1.0),
    }


def force_text(lines: Sequence[str], doses: Sequence[float], law: str = "") -> str:
    values = ", ".join(f'{{ dose = {d}, "optimiser.lr" = {1e-4 * d} }}' for d in doses)
    head = f'question = "simulated"\nrecipe = ["scalerl", "tiny"]\ndose = "rate"\n{law}'
    return f"{head}\nvalues = [{values}]\nseeds = {SEEDS}\n" + "\n".join(lines)


def findings(
    force: ForceDefinition,
    truths: dict[str, Truth],
    rng: np.random.Generator,
    fitted: bool = True,
) -> Iterator[MemberFinding]:
    """The runs of a study as its members would be found; without fits where only their ends
    matter, as for a law."""
    recipe = Recipe.load("scalerl", "tiny").replace(
        {"budget.steps": STEPS, "validation.every": EVERY}
    )
    places = positions([dose.value for dose in force.doses])
    at = {dose.label: float(p) for dose, p in zip(force.doses, places, strict=True)}
    for cell in force.cells():
        truth, place = truths[cell.line], at[cell.dose.label]
        for seed in range(force.seeds_of().get(cell.name, force.seeds)):
            ceiling = truth.ceiling(place) + SEED_SD * rng.standard_normal()
            falls = rng.random() < truth.unstable(place)
            run, evals = _curve(ceiling, falls, rng)
            half = half_check(run) if fitted else None
            stability = assess_lines(_steps(), evals, half=half)
            law = fit(run) if fitted and stability.state != "unstable" else None
            path = Path("nowhere") / f"{cell.name}-s{seed}"
            member = Member(path.name, cell.name, seed, recipe, Path("nowhere"), path)
            yield MemberFinding(member, stability, law, half, run, evals)


def _curve(ceiling: float, falls: bool, rng: np.random.Generator) -> tuple[Run, list[EvalLine]]:
    steps = np.arange(0, STEPS + 1, EVERY)
    with np.errstate(divide="ignore"):
        true = START + (ceiling - START) / (1 + (MIDDLE / steps) ** SLOPE)
    if falls:
        since = rng.uniform(0.4, 0.75) * STEPS
        true = np.where(steps > since, 0.02 + 0.2 * np.exp(-(steps - since) / 10), true)
    score = rng.binomial(ANSWERS, np.clip(true, 0, 1)) / ANSWERS
    run = Run("simulated", steps.astype(float), score, "steps", np.full(len(steps), ANSWERS))
    return run, [
        EvalLine.from_dict(
            {
                "step": int(s), "pass_rate": float(p), "compute": {"steps": int(s)},
                "stderr": math.sqrt(max(p * (1 - p), 0.01) / ANSWERS),
            }
        )
        for s, p in zip(steps, score, strict=True)
    ]  # fmt: skip


def _steps() -> list[StepLine]:
    """Steps without any sign of trouble."""
    return _HEALTHY


_HEALTHY: list[StepLine] = [
    line
    for step in range(1, STEPS + 1)
    if (
        line := StepLine.from_dict(
            {"step": step, "loss": 0.0, "grad_norm": 1.0, "ess": 0.99, "truncated": 0.0}
        )
    )
    is not None
]


def dose_study(seed: int) -> tuple[dict[str, Truth], ForceResults]:
    """One simulated study of a force."""
    rng = np.random.default_rng((71, seed))
    truths = planted(rng)
    force = parse_force(force_text([f"[lines.{name}]" for name in truths], DOSES), "simulated")
    return truths, force_results(force, list(findings(force, truths, rng)))


def dose_rows(seed: int) -> list[dict[str, Any]]:
    """The verdict of each line against the truth."""
    truths, found = dose_study(seed)
    rows = []
    for line in found.lines:
        truth = truths[line.name].threshold(line.kind)
        said = line.verdict
        assert said is not None
        low, _, high = said.at
        falls = math.isfinite(truth)
        wrong = said.verdict == ("holds" if falls else "falls")
        rows.append(
            {
                "study": seed, "line": line.name, "kind": line.kind, "verdict": said.verdict,
                "truth": truth if falls else None, "falls": falls, "wrong": wrong,
                "covered": low <= truth <= high,
                "width": high - low if math.isfinite(high) else None,
            }
        )  # fmt: skip
    return rows


def law_rows(seed: int) -> list[dict[str, Any]]:
    """The verdict on a law of each true slope."""
    rows = []
    for slope in LAW_SLOPES:
        rng = np.random.default_rng((73, seed, round(10 * (2 + slope))))
        span = math.log(LAW_DOSES[-1] / LAW_DOSES[0])
        # At the middle key somewhere around the middle of the doses.
        middle = rng.uniform(0.35, 0.65) * span
        truths = {}
        for key in LAW_KEYS:
            half = middle + slope * math.log(key / LAW_KEYS[2])
            truths[f"k{key}"] = Truth(half=half / span, width=0.3 / span)
        lines = [f'[lines.k{key}]\n"schedule.k" = {key}' for key in LAW_KEYS]
        law = f'law = {{ over = "schedule.k", slope = {LAW_SLOPES[0]} }}'
        force = parse_force(force_text(lines, LAW_DOSES, law), "simulated")
        found = force_results(force, list(findings(force, truths, rng, fitted=False))).law
        assert found is not None
        low, median, high = found.slope
        wrong = found.verdict == ("does not hold" if slope == LAW_SLOPES[0] else "holds")
        rows.append(
            {
                "study": seed, "true": slope, "slope": median, "interval": [low, high],
                "covered": low <= slope <= high, "verdict": found.verdict, "wrong": wrong,
            }
        )  # fmt: skip
    return rows


def summary(rows: Sequence[dict[str, Any]], by: str) -> dict[str, Any]:
    """Coverage and wrong verdicts of all rows, and of each kind of line."""

    def of(some: Sequence[dict[str, Any]]) -> dict[str, Any]:
        names = sorted({row["verdict"] for row in some})
        return {
            "n": len(some),
            "covered": float(np.mean([row["covered"] for row in some])),
            "wrong": float(np.mean([row["wrong"] for row in some])),
            "verdicts": {name: sum(row["verdict"] == name for row in some) for name in names},
        }

    groups = {str(row[by]): [r for r in rows if r[by] == row[by]] for row in rows}
    return of(rows) | {"each": {name: of(some) for name, some in groups.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--studies", type=int, default=60, help="simulated studies of doses")
    args = parser.parse_args()
    doses = [row for seed in range(args.studies) for row in dose_rows(seed)]
    laws = [row for seed in range(args.studies) for row in law_rows(seed)]
    result = {"doses": summary(doses, "line"), "laws": summary(laws, "true")}
    print(result)
    save(
        "forces_truth", {"studies": args.studies, **result, "rows": {"doses": doses, "laws": laws}}
    )


if __name__ == "__main__":
    main()
