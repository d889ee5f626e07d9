"""Public runs, predicted by the planner from the inputs in benchmarks/planner/public_cases.toml.

    python benchmarks/planner_public.py             saves
    python benchmarks/planner_public.py --quick     short simulations; saves nothing

Refuses to run while the inputs differ from their last commit: they must be fixed first.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from record import save
from scalerl.planner.accelerators import Accelerator
from scalerl.planner.answer import planned_step
from scalerl.planner.calibrate import affine
from scalerl.planner.costs import RooflineCosts
from scalerl.planner.lengths import AnswerLengths
from scalerl.planner.model_shape import ModelShape
from scalerl.planner.normal import Interval
from scalerl.planner.placements import Placement
from scalerl.planner.roofline import Utilisation
from scalerl.planner.world import EnvironmentModel, PlannedWorld
from scalerl.recipe import Recipe

INPUTS = Path(__file__).parent / "planner" / "public_cases.toml"
#: Simulated steps besides the first k.
STEPS = 40
#: Rollouts of a simulation, about: large batches get fewer steps.
ROLLOUTS = 80_000


class ScaledPasses(RooflineCosts):
    """Costs with another number of products a parameter and token."""

    passes: float

    def world(self, recipe: Recipe, placement: Placement, seed: int) -> PlannedWorld:
        made = super().world(recipe, placement, seed)
        own = 8.0 if recipe.placement.activations == "recompute" else 6.0
        trainer = replace(made.rates.trainer, token=made.rates.trainer.token * self.passes / own)
        return replace(made, rates=replace(made.rates, trainer=trainer))


def case_recipe(case: dict[str, Any]) -> Recipe:
    changes = {
        "model.path": case["model"], "batch.prompts": case["prompts"],
        "batch.generations": case["generations"], "placement.generators": case["generators"],
        "placement.trainers": case["trainers"], "schedule.name": case["schedule"],
        "schedule.k": case["k"],
        "placement.activations": "recompute" if case["passes"] == 8 else "keep",
        "filter.zero_variance": "keep" if case["kept"] == 1.0 else "drop",
    }  # fmt: skip
    head = "fp32" if case.get("fp32_head") else "model"
    changes |= {"precision.trainer_head": head, "precision.generator_head": head}
    if "budgets" not in case:
        changes |= {"length.control": "none", "length.max_tokens": case["limit"]}
    return Recipe.load("scalerl").replace(changes)


def costs_of(case: dict[str, Any]) -> ScaledPasses:
    mean = Interval(*map(float, case["mean_length"]))
    lengths = AnswerLengths(
        mean.middle, case["length_spread"], case["length_alike"], case["limit"],
        tuple(case["budgets"]) if "budgets" in case else None,
    )  # fmt: skip
    made = ScaledPasses(
        Accelerator.named(case["accelerator"]), ModelShape.named(case["model"]), lengths, mean,
        Utilisation(Interval(*case["mfu"]), Interval(*case["decode"])), case["prompt_tokens"],
        case["kept"], EnvironmentModel(), 0.0,
    )  # fmt: skip
    object.__setattr__(made, "passes", float(case["passes"]))
    return made


def predict(case: dict[str, Any], steps: int) -> dict[str, Any]:
    recipe, costs = case_recipe(case), costs_of(case)
    placement = Placement(
        case["generators"], case["trainers"], case["schedule"], case["k"],
        case["devices_per_generator"],
    )  # fmt: skip
    steps = max(min(steps, ROLLOUTS // recipe.batch.completions), 8)
    found = planned_step(
        recipe, placement, costs.need(recipe, placement), costs.world(recipe, placement, 0),
        costs.slowness(0), ratios=3, steps=steps,
    )  # fmt: skip
    low, mid, high = found.interval(0.8)
    published = case["published"]["step_seconds"]
    return {
        "about": case["about"], "source": case["source"], "published": published, "median": mid,
        "interval_80": [low, high], "error": mid / published - 1,
        "inside": low <= published <= high, "middle": found.middle.to_dict(),
    }  # fmt: skip


def scaling(case: dict[str, Any]) -> dict[str, Any]:
    """The middle of three update times from the outer two, by a + b / n."""
    n, seconds = np.array(case["trainers"], float), np.array(case["published"]["seconds"], float)
    a, b = affine(1 / n[[0, 2]], seconds[[0, 2]])
    predicted = a + b / n[1]
    linear = seconds[0] * n[0] / n[1]
    return {
        "about": case["about"], "source": case["source"], "a": a, "b": b,
        "published": float(seconds[1]), "predicted": float(predicted),
        "error": float(predicted / seconds[1] - 1), "linear_error": float(linear / seconds[1] - 1),
    }  # fmt: skip


def decomposed(case: dict[str, Any], steps: int) -> list[dict[str, Any]]:
    """The paper's step, one assumption after the other: each row adds one to those above."""
    rows = []
    easy = case | {"mfu": [0.4, 0.4], "mean_length": [4000, 4000], "fp32_head": False}
    for what, changes in (
        ("peak use .40, 4,000 tokens, BF16 head", {}),
        ("7,000 tokens", {"mean_length": [7000, 7000]}),
        ("FP32 head", {"fp32_head": True}),
        ("peak use .20", {"mfu": [0.2, 0.2]}),
        ("peak use .10", {"mfu": [0.1, 0.1]}),
        ("10,000 tokens", {"mean_length": [10000, 10000]}),
    ):
        easy = easy | changes
        found = predict(easy, steps)
        rows.append({"with": what, "step_seconds": found["median"],
                     "gpu_hours": found["median"] * 80 / 3600})  # fmt: skip
    return rows


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--quick", action="store_true")
    quick = options.parse_args().quick
    if subprocess.run(["git", "diff", "--quiet", "HEAD", "--", str(INPUTS)]).returncode:
        sys.exit(f"{INPUTS} has changes that are not committed: commit the inputs first")
    cases = tomllib.loads(INPUTS.read_text())
    steps = 10 if quick else STEPS
    update = scaling(cases.pop("verl-update"))
    found = {}
    for name, case in cases.items():
        row = found[name] = predict(case, steps)
        low, high = row["interval_80"]
        print(
            f"{name:<11} published {row['published']:6.1f} s, predicted {row['median']:6.1f} "
            f"({row['error']:+.0%}), 80 % {low:.1f}-{high:.1f}: "
            f"{'inside' if row['inside'] else 'outside'}"
        )
    print(
        f"verl update {update['published']} s, {update['predicted']:.0f} ({update['error']:+.0%})"
    )
    paper = decomposed(cases["paper"], steps)
    for row in paper:
        print(
            f"  paper, {row['with']:<40} {row['step_seconds']:6.1f} s {row['gpu_hours']:.2f} GPU-h"
        )
    if not quick:
        inputs = subprocess.run(
            ["git", "log", "-1", "--format=%h", "--", str(INPUTS)], capture_output=True, text=True
        ).stdout.strip()
        save("planner_public", {"inputs_commit": inputs, "cases": found, "verl_update": update,
                                "paper": paper})  # fmt: skip


if __name__ == "__main__":
    main()
