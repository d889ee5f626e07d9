"""Kill anything at any moment: does the run go on, and is its record as if nothing had happened?

python benchmarks/faults.py             50 generators and 20 others; saves
python benchmarks/faults.py --quick     a dozen, for CI; saves nothing

Real runs of `scalerl train scalerl tiny` with small settings; every strike is a kill -9. A dead
generator, checker or trainer must be made good by the run itself; a dead main process by
`scalerl train --resume`. At the end of every run its record is checked (see `problems`).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from record import save

K, PROMPTS, GENERATIONS, EVERY = 3, 4, 8, 5
SMALL = [
    f"batch.prompts={PROMPTS}", f"batch.generations={GENERATIONS}", f"schedule.k={K}",
    "validation.prompts=16", "validation.k=2", "validation.every=40",
    "placement.generators=2", f"checkpoint.every={EVERY}",
    "filter.empty_steps=0",  # so few prompts a batch are soon all answered right
]  # fmt: skip
#: More prompts than a run asks, so that it stays in its first epoch; games have enough.
MANY_PROMPTS = {"tiny": ["task.options.prompts=20000"]}
#: Nothing here should take so long, even on a machine that has other work.
LIMIT = 600.0
#: Set for every process of a run, so that those it leaves behind can be found.
MARK = "SCALERL_FAULTS"


@dataclass
class Strike:
    """One kill and what came of it."""

    who: str
    how: str
    by_itself: bool = False
    by_resume: bool = False
    #: Until the next line of steps.jsonl, and until all processes were there again.
    next_step: float | None = None
    whole_again: float | None = None
    #: What the run's record says of it.
    events: tuple[str, ...] = ()


@dataclass
class Victim:
    """A run, as its files and processes show it."""

    out: Path
    settings: list[str]
    #: The overlay of the recipe.
    overlay: str = "tiny"
    seen: set[int] = field(default_factory=set)
    strikes: list[Strike] = field(default_factory=list)

    def start(self, *arguments: str) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", MARK: str(self.out)}
        command = [sys.executable, "-m", "scalerl", "train", *arguments]
        with self.out.with_suffix(".log").open("a") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def begin(self) -> None:
        self.start(
            "scalerl", self.overlay, *self.settings, "--steps", "1000000", "--out", str(self.out)
        )
        self.wait(lambda: self.step >= 1, "the first step")

    def resume(self) -> None:
        self.start("--resume", str(self.out))

    def end(self) -> None:
        """Ctrl-C: the run ends with a checkpoint."""
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(LIMIT)
        assert code == 130, f"Ctrl-C ended with exit code {code}"

    def wait(self, until: Callable[[], bool], what: str, pause: float = 0.02) -> float:
        """Seconds until it was true. A run that ends meanwhile has failed."""
        start = time.monotonic()
        while not until():
            if self.process.poll() is not None:
                log = self.out.with_suffix(".log").read_text()[-2000:]
                raise AssertionError(f"the run ended while waiting for {what}:\n{log}")
            if time.monotonic() - start > LIMIT:
                raise AssertionError(f"waited {LIMIT:.0f} s for {what}: {self.status}")
            time.sleep(pause)
        return time.monotonic() - start

    @property
    def status(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.out / "status.json").read_text())
        except FileNotFoundError:
            return {"pids": {}, "starting": []}
        self.seen |= {p for p in found["pids"].values() if p}
        return found

    @property
    def step(self) -> int:
        """The last step in the record, 0 before any."""
        last = tail(self.out / "steps.jsonl")
        return 0 if last is None else int(last["step"])

    @property
    def resumes(self) -> list[int]:
        """The step that each resumption went on from."""
        return [e["step"] for e in lines(self.out / "events.jsonl") if e["event"] == "resume"]

    def pid(self, name: str) -> int:
        self.wait(lambda: name in self.status["pids"], f"the number of {name}")
        return int(self.status["pids"][name])

    def is_up(self, name: str, not_pid: int) -> bool:
        status = self.status
        number = int(name.removeprefix("generator "))
        return status["pids"][name] != not_pid and number not in status["starting"]


def lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file that is being written."""
    if not path.exists():
        return []
    text = path.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def tail(path: Path, size: int = 16_384) -> dict[str, Any] | None:
    """The last whole line."""
    if not path.exists():
        return None
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - size, 0))
        whole = file.read().rpartition(b"\n")[0].rpartition(b"\n")[2]
    return json.loads(whole) if whole else None


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


# -- strikes --------------------------------------------------------------------------------------


def strike_generators(run: Victim, rng: random.Random, how: str) -> None:
    """One generator, both at once, or one and its successor while that starts."""
    run.wait(lambda: not run.status["starting"], "all generators")
    time.sleep(rng.uniform(0.0, 2.0))
    names = ["generator 0", "generator 1"]
    if how != "both at once":
        names = [rng.choice(names)]
    old = {name: run.pid(name) for name in names}
    before, start = run.step, time.monotonic()
    for pid in old.values():
        kill(pid)
    if how == "again while it starts":
        name, pid = next(iter(old.items()))
        run.wait(lambda: run.pid(name) != pid, "the successor")
        old[name] = run.pid(name)
        time.sleep(rng.uniform(0.0, 3.0))
        kill(old[name])
    run.wait(lambda: run.step > before, "the next step")
    next_step = time.monotonic() - start
    run.wait(lambda: all(run.is_up(n, p) for n, p in old.items()), "the new generator")
    whole = time.monotonic() - start
    kills = 1 if how == "any moment" else 2
    run.strikes += [Strike("generator", how, True, False, next_step, whole)] * kills


def scale(run: Victim, count: int) -> None:
    """Ask for so many generators, and see them take part, or be gone."""
    from scalerl.cli import main

    assert main(["scale", str(run.out), "--generators", str(count)]) == 0
    there = [f"generator {i}" for i in range(count)]

    def settled() -> bool:
        status = run.status
        names = sorted(n for n in status["pids"] if n.startswith("generator "))
        return names == there and len(status["rollouts"]) == count and not status["starting"]

    run.wait(settled, f"{count} generators")
    before = run.step
    run.wait(lambda: run.step > before + 1, "two steps")
    run.wait(lambda: min(run.status["rollouts"], default=0) > 0, "rollouts of all of them")


def one_of(run: Victim, rng: random.Random, kind: str) -> str:
    """The name of a part of this kind. A run may be at work before it says who its parts are."""

    def there() -> list[str]:
        return [n for n in run.status["pids"] if n.startswith(kind)]

    run.wait(lambda: bool(there()), f"the number of a {kind}")
    return rng.choice(there())


def strike_checker(run: Victim, rng: random.Random, how: str) -> None:
    """What it was checking is checked again: nobody loses a verdict."""
    time.sleep(rng.uniform(0.0, 2.0))
    name = one_of(run, rng, "checker ")
    pid, before, start = run.pid(name), run.step, time.monotonic()
    kill(pid)
    run.wait(lambda: run.step > before, "the next step")
    next_step = time.monotonic() - start
    run.wait(lambda: run.pid(name) != pid, "the new checker")
    whole = time.monotonic() - start
    run.strikes.append(Strike("checker", how, True, False, next_step, whole))


def aim(run: Victim, rng: random.Random, how: str) -> None:
    """Wait for the moment to strike."""
    if how == "inside a checkpoint":
        folder = run.out / "checkpoints"
        run.wait(lambda: any(folder.glob("step_*.tmp")), "a checkpoint", pause=0.001)
        time.sleep(rng.uniform(0.0, 0.05))
    elif how == "right after a step":
        before = run.step
        run.wait(lambda: run.step > before, "a step", pause=0.001)
    else:
        before = run.step + rng.randrange(8)
        run.wait(lambda: run.step > before, "some steps")
        time.sleep(rng.uniform(0.0, 1.0))


def strike_trainer(run: Victim, rng: random.Random, how: str) -> None:
    """The run goes back to its last checkpoint by itself."""
    aim(run, rng, how)
    before, start = len(run.resumes), time.monotonic()
    kill(run.pid(one_of(run, rng, "trainer")))
    run.wait(lambda: len(run.resumes) > before, "the way back")
    back = run.resumes[-1]
    run.wait(lambda: run.step > back, "the next step")
    seconds = time.monotonic() - start
    run.strikes.append(Strike("trainer", how, True, False, seconds, seconds))


def strike_main(run: Victim, rng: random.Random, how: str) -> None:
    """Its processes end with it; --resume goes on."""
    aim(run, rng, how)
    start = time.monotonic()
    kill(run.process.pid)
    run.process.wait(LIMIT)
    gone(run)
    before = len(run.resumes)
    run.resume()
    if how == "again while it starts":
        time.sleep(rng.uniform(0.3, 10.0))
        kill(run.process.pid)
        run.process.wait(LIMIT)
        gone(run)
        before = len(run.resumes)
        run.resume()
        run.strikes.append(Strike("main", how, False, True))
    run.wait(lambda: len(run.resumes) > before, "the way back")
    back = run.resumes[-1]
    run.wait(lambda: run.step > back, "the next step")
    seconds = time.monotonic() - start
    run.strikes.append(Strike("main", how, False, True, seconds, seconds))


def gone(run: Victim) -> None:
    """No process of the run is left, a moment after its main one ended."""
    start = time.monotonic()
    while left := list(marked(run.out)):
        assert time.monotonic() - start < 60, f"processes {left} outlive the main one"
        time.sleep(0.02)


def marked(out: Path) -> Iterator[int]:
    """Processes that were started for this run, or for one in this folder."""
    mark = f"{MARK}={out}".encode()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            values = (path / "environ").read_bytes().split(b"\0")
            if any(value.startswith(mark) for value in values):
                yield int(path.name)
        except OSError:  # it ended meanwhile, or is somebody else's
            continue


# -- what must hold at the end --------------------------------------------------------------------


def problems(run: Victim) -> list[str]:
    """Everything that is wrong with a run's record after all these strikes."""
    steps = lines(run.out / "steps.jsonl")
    found = []
    if [s["step"] for s in steps] != list(range(1, len(steps) + 1)):
        found.append("step numbers are not 1, 2, 3, ...")
    if max(s["staleness"]["max"] for s in steps) > K:
        found.append(f"a token was more than {K} versions old")
    return found + prompts_of(run, steps) + ledger_of(steps) + checkpoints_of(run) + leftovers(run)


def prompts_of(run: Victim, steps: list[dict[str, Any]]) -> list[str]:
    """Trained on once, and every prompt drawn is either trained on or still under way."""
    asked = Counter(p for s in steps for p in s["prompts"])
    newest = max((run.out / "checkpoints").glob("step_*"), key=lambda p: int(p.name[5:]))
    state = json.loads((newest / "run.json").read_text())["curriculum"]
    under_way = Counter(g["prompt"] for g in json.loads((newest / "groups.json").read_text()))
    drawn = Counter(drawn_by(run, state))
    found = [f"prompt {p} was trained on {n} times" for p, n in asked.items() if n > 1]
    if state["epoch"] != 0:
        found.append("the run left its first epoch: give it more prompts")
    found += [f"prompt {p} was lost" for p in drawn - (asked + under_way)]
    found += [f"prompt {p} was asked too often" for p in (asked + under_way) - drawn]
    return found


def drawn_by(run: Victim, state: dict[str, Any]) -> list[str]:
    """The prompts that a curriculum has handed out in its first epoch."""
    from scalerl.algorithm.curriculum import epoch_order
    from scalerl.recipe import Recipe
    from scalerl.tasks.registry import task_of

    recipe = Recipe.load(str(run.out / "recipe.toml"))
    with task_of(recipe.task) as task:
        known = [p.id for p in task.train_prompts(recipe.seed)]
    return [str(p) for p in epoch_order(recipe.seed, 0, known)[: state["position"]]]


def ledger_of(steps: list[dict[str, Any]]) -> list[str]:
    """Compute only grows, and what it went to adds up."""
    kinds = ("generate", "hand_over", "train", "generate_wait", "train_wait")
    found = []
    before: dict[str, float] = {}
    for s in steps:
        ledger, at = s["ledger"], f"step {s['step']}"
        spent = {k: ledger["spent"][k] for k in kinds}
        total = ledger["device_seconds"]
        if abs(sum(spent.values()) - total) > 1e-6 * total:
            found.append(f"{at}: {spent} does not add up to {total}")
        waits = min(spent["generate_wait"], spent["train_wait"])
        if waits < -0.01 * total / 3:
            found.append(f"{at}: somebody waited for {waits:.3f} s")
        if ledger["spent"]["check_wait"] > spent["train_wait"] + 1e-6:
            found.append(f"{at}: the trainer waited for checks longer than it waited")
        if s["compute"]["samples"] != s["step"] * PROMPTS * GENERATIONS:
            found.append(f"{at}: {s['compute']['samples']} samples")
        found += [f"{at}: {k} fell" for k, v in before.items() if s["compute"][k] < v]
        before = s["compute"]
    return found


def checkpoints_of(run: Victim) -> list[str]:
    """The last one is whole, of the last step, and a model that transformers reads."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    from scalerl.cli.export import export
    from scalerl.pipeline import checkpoints

    found: list[str] = []
    newest = checkpoints.latest(run.out, found.append)
    if newest is None or checkpoints.step_of(newest) != run.step:
        return [*found, f"the newest whole checkpoint is {newest}, the last step {run.step}"]
    left = list((run.out / "checkpoints").glob("*.tmp"))
    logging.disable_progress_bar()
    AutoTokenizer.from_pretrained(newest)
    if (newest / "adapter_config.json").exists():
        # transformers reads an adapter only where peft is installed: read what a user exports.
        newest = run.out.parent / f"{run.out.name}-merged"
        export(run.out, None, newest, merge=True)
    AutoModelForCausalLM.from_pretrained(newest)
    return found + [f"{path.name} was left behind" for path in left]


def leftovers(run: Victim) -> list[str]:
    """Processes, and shared memory that carries the number of one of them."""
    gone(run)
    names = [p.name for p in Path("/dev/shm").iterdir()]
    return [f"/dev/shm/{n}" for n in names for p in run.seen if f"_{p}_" in f"_{n}_"]


# -- the plan -------------------------------------------------------------------------------------

GENERATOR_WAYS = ["any moment"] * 3 + ["both at once", "again while it starts"]
OTHER_WAYS: list[tuple[Callable[[Victim, random.Random, str], None], str]] = [
    (strike_trainer, "any moment"),
    (strike_main, "any moment"),
    (strike_checker, "any moment"),
    (strike_trainer, "inside a checkpoint"),
    (strike_main, "inside a checkpoint"),
    (strike_trainer, "right after a step"),
    (strike_main, "right after a step"),
    (strike_trainer, "any moment"),
    (strike_main, "again while it starts"),
]


def kill_generators(run: Victim, rng: random.Random, kills: int) -> None:
    until = len(run.strikes) + kills
    while (left := until - len(run.strikes)) > 0:
        strike_generators(run, rng, rng.choice(GENERATOR_WAYS) if left > 1 else "any moment")
        show(run)


def kill_others(run: Victim, rng: random.Random, kills: int) -> None:
    until = len(run.strikes) + kills
    for strike, how in OTHER_WAYS * (kills // len(OTHER_WAYS) + 1):
        if len(run.strikes) >= until:
            return
        strike(run, rng, how)
        show(run)


def show(run: Victim) -> None:
    last = run.strikes[-1]
    took = f"next step after {last.next_step:.1f} s, whole after {last.whole_again:.1f} s"
    print(f"{len(run.strikes):>3} {last.who}: {last.how}: {took} (step {run.step})", flush=True)


def run_under_faults(
    out: Path, strikes: Callable[[Victim], None], *settings: str, overlay: str = "tiny"
) -> Victim:
    """A run under these strikes, ended by Ctrl-C and checked."""
    run = Victim(out, [*SMALL, *MANY_PROMPTS.get(overlay, []), *settings], overlay)
    run.begin()
    try:
        strikes(run)
        run.end()
    finally:
        run.process.kill()
        run.process.wait()
    wrong = problems(run)
    assert not wrong, "\n".join(wrong)
    return run


def rows(strikes: list[Strike]) -> list[dict[str, Any]]:
    """One per kind of fault."""
    found = []
    for who, how in dict.fromkeys((s.who, s.how) for s in strikes):
        these = [s for s in strikes if (s.who, s.how) == (who, how)]
        times = {
            name: [getattr(s, name) for s in these if getattr(s, name) is not None]
            for name in ("next_step", "whole_again")
        }
        found.append(
            {
                "fault": f"{who}: {how}",
                "count": len(these),
                "by_itself": sum(s.by_itself for s in these),
                "by_resume": sum(s.by_resume for s in these),
                "lost": sum(not (s.by_itself or s.by_resume) for s in these),
                **{name: statistics.median(values) for name, values in times.items()},
            }
        )
    return found


def table(found: list[dict[str, Any]]) -> str:
    head = (
        f"{'kill -9':<33}{'count':>6}{'itself':>7}{'resume':>7}{'lost':>5}{'step':>8}{'whole':>8}"
    )
    body = [
        f"{r['fault']:<33}{r['count']:>6}{r['by_itself']:>7}{r['by_resume']:>7}{r['lost']:>5}"
        f"{r['next_step']:>8.1f}{r['whole_again']:>8.1f}"
        for r in found
    ]
    return "\n".join([head, *body])


def full(folder: Path, rng: random.Random, args: argparse.Namespace) -> list[Victim]:
    """Generators in one run, the others in another."""
    return [
        run_under_faults(
            folder / "one", lambda run: kill_generators(run, rng, args.generator_kills)
        ),
        run_under_faults(folder / "two", lambda run: kill_others(run, rng, args.other_kills)),
    ]


def quick(folder: Path, rng: random.Random) -> list[Victim]:
    """All in one run, since most of the time goes to starting."""

    def strikes(run: Victim) -> None:
        kill_generators(run, rng, 4)
        kill_others(run, rng, 4)

    return [run_under_faults(folder / "run", strikes)]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--generator-kills", type=int, default=50)
    options.add_argument("--other-kills", type=int, default=20)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--quick", action="store_true", help="4 generators, 4 others, not saved")
    args = options.parse_args()
    rng = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        runs = quick(Path(folder), rng) if args.quick else full(Path(folder), rng, args)
        found = rows([strike for run in runs for strike in run.strikes])
        steps = sum(run.step for run in runs)
    print(table(found))
    print(
        "step: median seconds until the next step; whole: until all processes were up again;\n"
        f"recovered by itself, by --resume, lost; the records of {steps} steps were checked"
    )
    if not args.quick:
        save("faults", {"seed": args.seed, "steps": steps, "settings": SMALL, "faults": found})


if __name__ == "__main__":
    main()
