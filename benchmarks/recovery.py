"""How soon a run is at work: at its start, and after a kill -9 of its generator or trainer.

python benchmarks/recovery.py [--rounds 5]

The default run (`scalerl train scalerl tiny`). `start` is from the command to the first line of
`steps.jsonl`, the first validation included. `generator` is from the kill of the only generator to
the first rollout that its successor has written; `trainer` from the kill to the next step in the
record, which is one that was made before: the run goes back to its last checkpoint (here one for
every step) first. For a machine that does nothing else: its load before is in the result.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from record import save
from scalerl import train
from scalerl.runs.lines import EventLine, StepLine
from scalerl.runs.listener import Listener


def start(folder: Path) -> float:
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "scalerl", "train", "scalerl", "tiny", "--steps", "2", "--out",
         str(folder), "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    first = 0.0
    for line in process.stdout:
        if not first and json.loads(line)["kind"] == "step":
            first = time.perf_counter() - began
    if process.wait() or not first:
        raise SystemExit("the run failed")
    return first


class Killer(Listener):
    """Kills the generator and the trainer in turn, some steps apart, and takes the time."""

    def __init__(self, folder: Path, rounds: int) -> None:
        self.folder = folder
        self.victims = ["generator 0", "trainer"] * rounds
        self.found: dict[str, list[float]] = {"generator 0": [], "trainer": []}
        #: Who was killed when, and whether the run has noticed.
        self.killed: tuple[str, float] | None = None
        self.noticed = False
        self.calm = 0

    def _kill(self, name: str) -> None:
        pids = json.loads((self.folder / "status.json").read_text())["pids"]
        self.killed, self.noticed = (name, time.perf_counter()), False
        os.kill(pids[name], signal.SIGKILL)

    def noted(self, line: EventLine) -> None:
        self.noticed = self.noticed or self.killed is not None

    def _back(self, name: str) -> None:
        if self.killed is not None and self.noticed and self.killed[0] == name:
            self.found[name].append(time.perf_counter() - self.killed[1])
            print(f"{name}: {self.found[name][-1]:.2f} s", flush=True)
            self.killed, self.calm = None, 0

    def wrote(self, at: float, version: int, rollouts: Sequence[tuple[str, Any]]) -> None:
        if rollouts:
            self._back("generator 0")

    def step(self, line: StepLine) -> None:
        self._back("trainer")
        self.calm += 1
        if self.killed is None and self.calm > 6 and self.victims:
            # Later, in the middle of a step; status.json then has everybody's number.
            threading.Timer(1.1, self._kill, (self.victims.pop(0),)).start()
            self.calm = -20


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        starts = [start(folder / f"start-{i}") for i in range(rounds + 1)][1:]  # the first is cold
        killer = Killer(folder / "killed", rounds)
        changes = [f"budget.steps={40 * rounds}", "checkpoint.every=1", "validation.every=1000"]
        train(["scalerl", "tiny", *changes], folder / "killed", listener=killer)
    found = {"start": starts, "generator": killer.found["generator 0"],
             "trainer": killer.found["trainer"]}  # fmt: skip
    for name, seconds in found.items():
        print(f"{name:<10} median {median(seconds):.2f} s of {len(seconds)}")
    save("recovery", {"rounds": rounds, "seconds": found,
                      "median": {name: median(s) for name, s in found.items()}})  # fmt: skip


if __name__ == "__main__":
    main()
