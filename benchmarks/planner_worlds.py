"""Simulated truth: random worlds with planted rates. Do the planner's intervals cover as they say?

    python benchmarks/planner_worlds.py [--worlds N]     saves with 200

The planner gets intervals; the truth draws utilisation, lengths, a factor of model error and a
curve from them, and is simulated at those very rates, with a seed of its own and more steps. Then
step time and time to a target are compared with the intervals that the planner prints.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np

from record import save
from scalerl.planner.accelerators import Accelerator
from scalerl.planner.answer import MODEL_SIGMA, planned_step
from scalerl.planner.costs import RooflineCosts
from scalerl.planner.lengths import AnswerLengths
from scalerl.planner.model_shape import ModelShape
from scalerl.planner.normal import Interval
from scalerl.planner.placements import Placement
from scalerl.planner.roofline import Utilisation
from scalerl.planner.simulate import simulate
from scalerl.planner.world import EnvironmentModel
from scalerl.recipe import Recipe

WORLDS = 200
LEVELS = (0.5, 0.8, 0.9)
#: Simulated steps of a plan and of the truth, besides the first k.
STEPS, TRUTH_STEPS = 24, 40


def one(seed: int) -> dict[str, object]:
    rng = np.random.default_rng(seed)
    k = int(rng.choice([1, 2, 4, 8]))
    generators, trainers = int(rng.integers(2, 9)), int(rng.integers(4, 9))
    recipe = Recipe.load("scalerl").replace(
        {"batch.prompts": int(rng.choice([8, 12, 16])), "batch.generations": 8, "schedule.k": k,
         "placement.generators": generators, "placement.trainers": trainers,
         "placement.activations": "recompute"}
    )  # fmt: skip
    middle = float(rng.uniform(1500, 7000))
    mean = Interval(middle / rng.uniform(1.0, 1.4), middle)
    mean = Interval(mean.low, max(mean.high, mean.low))
    use = Utilisation(
        Interval(*np.sort(rng.uniform(0.05, 0.45, 2))),
        Interval(*np.sort(rng.uniform(0.3, 0.7, 2))),
    )
    lengths = AnswerLengths(mean.middle, 0.6, 0.7, 14336, (10240, 12288))
    costs = RooflineCosts(
        Accelerator.named("h100-sxm"), ModelShape.named(recipe.model.path), lengths, mean, use,
        256, 0.7, EnvironmentModel(), 0.0,
    )  # fmt: skip
    placement = Placement(generators, trainers, "pipeline", k)
    planned = planned_step(
        recipe, placement, costs.need(recipe, placement), costs.world(recipe, placement, seed),
        costs.slowness(seed), ratios=3, steps=STEPS, seed=seed,
    )  # fmt: skip
    z = rng.standard_normal(5)
    true_mean = float(mean.draws(z[2:3])[0])
    truth = replace(
        costs,
        use=Utilisation(
            Interval.exactly(float(use.mfu.draws(z[0:1])[0])),
            Interval.exactly(float(use.decode.draws(z[1:2])[0])),
        ),
        lengths=replace(lengths, mean=true_mean), mean_length=Interval.exactly(true_mean),
    )  # fmt: skip
    made = simulate(recipe, truth.world(recipe, placement, seed + 10_000), TRUTH_STEPS + k)
    seconds = made.step_seconds * float(np.exp(MODEL_SIGMA * z[3]))
    # Time to a target: the steps that a curve needs, known up to a factor, times the seconds.
    steps = Interval(800.0, 2000.0)
    days = planned.seconds * steps.draws(np.random.default_rng(seed + 5).standard_normal(
        len(planned.seconds))) / 86400  # fmt: skip
    true_days = seconds * float(steps.draws(z[4:5])[0]) / 86400
    return {
        "step": float(np.mean(planned.seconds <= seconds)),
        "days": float(np.mean(days <= true_days)),
        "median_error": planned.interval()[1] / seconds - 1,
    }  # fmt: skip


def coverage(ranks: list[float], level: float) -> float:
    """Share of truths inside the central interval of this level."""
    low, high = (1 - level) / 2, (1 + level) / 2
    return float(np.mean([low <= rank <= high for rank in ranks]))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--worlds", type=int, default=WORLDS)
    count = options.parse_args().worlds
    found = [one(seed) for seed in range(count)]
    result = {}
    for name in ("step", "days"):
        ranks = [float(row[name]) for row in found]
        result[name] = {f"{level:g}": coverage(ranks, level) for level in LEVELS}
        shares = ", ".join(f"{level:.0%} hold {result[name][f'{level:g}']:.0%}" for level in LEVELS)
        print(f"{name}: intervals of {shares}")
    errors = np.abs([float(row["median_error"]) for row in found])
    print(f"median of a plan against the truth: {np.median(errors):.0%} off in the median")
    if count == WORLDS:
        save("planner_worlds", {"worlds": count, "coverage": result,
                                "median_error": float(np.median(errors))})  # fmt: skip


if __name__ == "__main__":
    main()
