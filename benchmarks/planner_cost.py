"""CPU of a simulated run by the planner, against devices and rollouts.

python benchmarks/planner_cost.py             saves
python benchmarks/planner_cost.py --quick     a tenth of the steps; saves nothing
"""

from __future__ import annotations

import argparse
import time

from record import save
from scalerl.planner.lengths import AnswerLengths
from scalerl.planner.rates import GeneratorRates, Rates, TrainerRates
from scalerl.planner.simulate import simulate
from scalerl.planner.world import PlannedWorld
from scalerl.recipe import Recipe

#: (generators, prompts of 16 rollouts, steps); the second and the last but one have a limit.
SETTINGS = ((16, 48, 200), (64, 48, 200), (512, 48, 200), (3277, 48, 200), (512, 384, 50))
LIMIT_SECONDS = 30.0


def measure(generators: int, prompts: int, steps: int) -> dict[str, float]:
    recipe = Recipe.load("scalerl").replace(
        {"placement.generators": generators, "batch.prompts": prompts}
    )
    rates = Rates(
        # An 8B model on an H100: 2 ms, 16 GB of weights, 128 KiB of cache a token.
        GeneratorRates(0.002, 0.0068, 30e-6, 5.6e-8, 28e-6, load=1.0),
        TrainerRates(max(generators // 4, 1), 0.5, 1.6e-4, publish=1.0),
    )
    world = PlannedWorld(rates, AnswerLengths(5000, 0.6, 0.6, 14336, (10240, 12288)))
    simulate(recipe, world, 2)  # imports, and the prompts of the task
    began = time.process_time()
    simulate(recipe, world, steps)
    spent = time.process_time() - began
    rollouts = steps * prompts * 16
    return {
        "generators": generators, "rollouts_a_step": prompts * 16, "steps": steps,
        "cpu_seconds": spent, "ms_a_step": 1e3 * spent / steps,
        "us_a_rollout": 1e6 * spent / rollouts,
    }  # fmt: skip


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--quick", action="store_true")
    quick = options.parse_args().quick
    rows = []
    for generators, prompts, steps in SETTINGS:
        row = measure(generators, prompts, max(steps // 10, 4) if quick else steps)
        rows.append(row)
        print(
            f"{generators:5} generators, {row['rollouts_a_step']:5} rollouts a step, "
            f"{row['steps']:3} steps: {row['cpu_seconds']:5.1f} s of CPU, "
            f"{row['us_a_rollout']:.0f} µs a rollout"
        )
    if not quick:
        save("planner_cost", {"rows": rows, "limit_seconds": LIMIT_SECONDS})


if __name__ == "__main__":
    main()
