"""CPU of the loop itself: per message with few and many generators, and per step of a large batch.

Everything is real but engines, trainer and time: the loop runs on the virtual clock, and only the
seconds between two polls are counted, which are the loop's own. Run it on an idle machine: the
clock of CPU seconds is too slow to be read twice a message, so that elapsed ones are counted.

    python benchmarks/loop_cost.py
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "pipeline"))

from worlds import RandomWorld, WatchedCrew

from record import save
from scalerl.placement.inline import InlineCrew
from scalerl.placement.world import Duration, World

#: Numbers of generators that are compared per message.
FEW, MANY = 64, 4096
#: Generators of the run with the paper's batch, 48 prompts × 16.
LARGE = 512


class MeasuredCrew(WatchedCrew):
    """Counts the CPU seconds that the loop spends between polls, and its messages."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.cpu, self.messages, self._since = 0.0, 0, None

    def poll(self, seconds):
        now = time.perf_counter()
        if self._since is not None:
            self.cpu += now - self._since
        if self.loop is None:
            self.loop = sys._getframe(1).f_locals["self"]
        events = InlineCrew.poll(self, seconds)
        self.messages += len(events)
        self._since = time.perf_counter()
        return events


class LargeRun(RandomWorld):
    """A run without faults on many generators."""

    def __init__(self, generators: int, prompts: int, generations: int, steps: int) -> None:
        super().__init__(
            3,
            **{
                "schedule.name": "pipeline", "schedule.k": 4, "batch.prompts": prompts,
                "batch.generations": generations, "filter.zero_variance": "drop",
                "curriculum.name": "uniform", "placement.generators": generators,
                "placement.deterministic": False, "placement.checkers": 16,
                "validation.every": 10_000, "checkpoint.every": 10_000, "budget.steps": steps,
            },
        )  # fmt: skip
        self.uniform, self.plays, self.steps = True, False, steps
        self.prompts, self.generations = prompts, generations
        self.max_tokens, self.slots = 40, 64
        self.world = World(decode=Duration(0.05, 0.3), train=Duration(1.0))

    def begin(self, recipe, checkpoint, survivors=None):
        setup, crew, _ = super().begin(recipe, checkpoint, survivors)
        crew.stop()
        self.crew = MeasuredCrew(setup, checkpoint, self.world)
        return setup, self.crew, self.crew.clock

    def check(self) -> None:
        """Nothing: the random worlds check the loop, this measures it."""


def measure(generators: int, prompts: int, generations: int, steps: int) -> dict[str, float]:
    run = LargeRun(generators, prompts, generations, steps)
    with tempfile.TemporaryDirectory() as folder:
        run.live(Path(folder) / "run")
    crew = run.crew
    return {
        "generators": generators, "messages": crew.messages,
        "microseconds_per_message": 1e6 * crew.cpu / crew.messages,
        "cpu_seconds_per_step": crew.cpu / steps,
    }  # fmt: skip


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--repeats", type=int, default=3)
    repeats = options.parse_args().repeats
    rows = []
    for generators, prompts, generations, steps in (
        (FEW, 24, 4, 8), (MANY, 24 * MANY // FEW, 4, 4), (LARGE, 48, 16, 8),
    ):  # fmt: skip
        found = [measure(generators, prompts, generations, steps) for _ in range(repeats)]
        row = {k: statistics.median(f[k] for f in found) for k in found[0]}
        rows.append(row)
        print(
            f"{generators:5} generators: {row['microseconds_per_message']:6.0f} µs a message, "
            f"{row['cpu_seconds_per_step']:.3f} s of CPU a step ({row['messages']:.0f} messages)"
        )
    few, many, large = rows
    ratio = many["microseconds_per_message"] / few["microseconds_per_message"]
    print(f"{MANY} against {FEW} generators: {ratio:.2f} times the CPU of a message (at most 2)")
    print(f"a step of 48 × 16 with {LARGE}: {large['cpu_seconds_per_step']:.3f} s (at most 0.3)")
    save("loop_cost", {"rows": rows, "ratio": ratio, "repeats": repeats})


if __name__ == "__main__":
    main()
