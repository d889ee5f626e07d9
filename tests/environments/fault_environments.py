"""Environments that go wrong at random, and in the same way again: what happens in a call follows
from the prompt, the seed and the actions so far.

    task.name = "environment:fault_environments:Faulty"
    task.options.settings = {"hangs": 0.02, "crashes": 0.01, "turns": 3}

The game: guess a digit in `turns` turns. Without faults the reply to a turn is "no N", where N is
the number of the turn.
"""

import asyncio
import os
import time
from pathlib import Path

from scalerl.environments.interface import Environment, Observation, Outcome
from scalerl.tasks.task import AnswerScore, seed_from

#: What can go wrong in a call, in the order in which the shares are added up.
FAULTS = (
    "slow",  # waits for `slow_seconds`
    "hangs",  # waits for ever
    "blocks",  # blocks the event loop for ever
    "clings",  # waits for ever, and ignores that it is cancelled
    "crashes",  # ends the process
    "exits",  # raises SystemExit
    "raises",
    "returns_bytes",
    "nan",  # gives a reward that is not a number
    "talks",  # returns WORDS words
    "ends_early",  # is over after this turn
    "never_ends",  # is not over after its last turn
    "differs",  # replies otherwise in a replay
)
SLOW_SECONDS = 0.3
WORDS = 50_000


def fault(shares, question, seed, *texts):
    """What goes wrong in the turn after these texts; empty for nothing."""
    draw = seed_from(question, seed, *texts) / 2**64
    for name in FAULTS:
        draw -= shares.get(name, 0.0)
        if draw < 0:
            return name
    return ""


def digit(question, seed):
    """The digit to guess."""
    return seed_from("digit", question, seed) % 10


class Notes:
    """What has happened to an environment, in a file of its own in the directory `log`."""

    def __init__(self, log):
        self.path = Path(log) / f"{os.getpid()}-{id(self)}-{time.monotonic_ns()}" if log else None

    def add(self, line):
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(line + "\n")

    @staticmethod
    def read(log):
        """The lines of each environment that was reset."""
        return [path.read_text().splitlines() for path in Path(log).iterdir()]


class Faulty(Environment):
    """The game with faults: each is the share of the calls of `step` that have it. `closing` names
    one that `close` always has."""

    @classmethod
    def prompts(cls):
        return [{"prompt": f"Guess digit {i}.", "answer": i % 10} for i in range(400)]

    def __init__(self, turns=3, closing="", log="", slow_seconds=SLOW_SECONDS, **shares):
        assert not shares.keys() - set(FAULTS), shares
        self.turns, self.closing, self.shares = turns, closing, shares
        self.slow_seconds = slow_seconds
        self.notes = Notes(log)

    async def reset(self, prompt, seed):
        self.question, self.seed, self.texts = prompt.question, seed, []
        self.notes.add("reset")
        return _said("begin")

    async def step(self, action):
        self.texts.append(action.text)
        self.notes.add(f"turn {len(self.texts)}")
        found = fault(self.shares, self.question, self.seed, *self.texts)
        reply = await self._go_wrong(found)
        if reply is not None:
            return reply
        right = str(digit(self.question, self.seed)) in action.text
        last = len(self.texts) >= self.turns and found != "never_ends"
        if right or last or found == "ends_early":
            return Outcome(AnswerScore(right, 1.0 if right else -1.0, "guessed"))
        return _said(f"no {len(self.texts)}")

    async def cut_off(self):
        return Outcome(AnswerScore(False, -1.0, "cut off"))

    async def close(self):
        self.notes.add("closed")
        await self._go_wrong(self.closing)

    async def _go_wrong(self, name):
        """The reply of a fault that has one; None otherwise."""
        if name == "slow":
            await asyncio.sleep(self.slow_seconds)
        elif name == "hangs":
            await asyncio.sleep(1e9)
        elif name == "clings":
            await _cling()
        elif name == "exits":
            raise SystemExit("no game today")
        elif name == "returns_bytes":
            return b"no"
        elif name == "nan":
            return Observation(reward=float("nan"))
        elif name == "talks":
            return _said("word " * WORDS)
        elif name == "differs":
            return _said(f"it is {time.monotonic_ns()}")
        else:
            _go_wrong_at_once(name)
        return None


class BlockingFaulty:
    """The same game as a plain class, which blocks; of the faults it has slow, hangs, crashes and
    raises."""

    prompts = Faulty.prompts

    def __init__(self, turns=3, log="", slow_seconds=SLOW_SECONDS, **shares):
        self.turns, self.shares, self.slow_seconds = turns, shares, slow_seconds
        self.notes = Notes(log)

    def reset(self, prompt, seed):
        self.question, self.seed, self.texts = prompt, seed, []
        self.notes.add("reset")
        return "begin"

    def step(self, text):
        self.texts.append(text)
        self.notes.add(f"turn {len(self.texts)}")
        found = fault(self.shares, self.question, self.seed, *self.texts)
        if found == "slow":
            time.sleep(self.slow_seconds)
        _go_wrong_at_once("blocks" if found == "hangs" else found)
        right = str(digit(self.question, self.seed)) in text
        return f"no {len(self.texts)}", float(right), right or len(self.texts) >= self.turns

    def close(self):
        self.notes.add("closed")


class Spawns(Environment):
    """Starts a program, notes its process id, and never ends it."""

    prompts = Faulty.prompts

    def __init__(self, log):
        self.log = log

    async def reset(self, prompt, seed):
        program = await asyncio.create_subprocess_exec("sleep", "100000")
        (Path(self.log) / "pid").write_text(str(program.pid))
        return Observation()

    async def step(self, action):
        return Observation()


def _said(text):
    return Observation(({"role": "user", "content": text},))


def _go_wrong_at_once(name):
    if name == "blocks":
        time.sleep(1e6)
    elif name == "crashes":
        os._exit(3)
    elif name == "raises":
        raise ZeroDivisionError("no\ngame today")


async def _cling():
    while True:
        try:
            await asyncio.sleep(1e9)
        except BaseException:  # also the cancellation
            continue
