"""Reward functions as one meets them, and worse."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path


def hangs(prompts, completions, **columns):
    time.sleep(3600)


def raises(prompts, completions, **columns):
    raise ZeroDivisionError("no gold answer")


def odd(prompts, completions, **columns):
    """Everything that is not a number, beside one that is."""
    return ([float("nan"), None, "1.0", float("inf"), [1], 1.0] * len(completions))[
        : len(completions)
    ]


def moody(prompts, completions, kind=None, **columns):
    """Prompts that hang, crash, raise or get no number; the rest have answers of two kinds."""
    if "hangs" in kind:
        time.sleep(3600)
    if "crashes" in kind:
        os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(3600)  # the signal may reach another thread
    if "raises" in kind:
        raise ValueError("bad day")
    if "odd" in kind:
        return odd(prompts, completions)
    return [1.0 if len(c) % 2 else -1.0 for c in completions]


def stubborn(prompts, completions, kind=None, **columns):
    """Starts a program that no signal but the last ends, and waits for it."""
    if "hangs" in kind:
        subprocess.run(["sh", "-c", "trap '' INT TERM HUP; sleep 3600; :"], check=False)
    return moody(prompts, completions, kind)


def greedy(prompts, completions, kind=None, **columns):
    """Never lets go of the interpreter."""
    if "hangs" in kind:
        re.match(r"(a+)+$", "a" * 60 + "b")
    return moody(prompts, completions, kind)


def chatty(prompts, completions, **columns):
    """Prints all it sees, to both streams."""
    for text in completions:
        print(text, flush=True)
        print(text, file=sys.stderr, flush=True)
    return [1.0 if len(c) % 2 else -1.0 for c in completions]


def wants_more(prompts, completions, gold_standard, **columns):
    """A column that the dataset does not have."""
    return [1.0] * len(completions)


def leaves(prompts, completions, **columns):
    sys.exit("no judge today")


async def leaves_later(prompts, completions, **columns):
    async def inner():
        raise SystemExit("no judge today")

    await asyncio.gather(asyncio.sleep(0.01), inner())


def interrupts(prompts, completions, **columns):
    raise KeyboardInterrupt("no judge today")


async def blocks(prompts, completions, kind=None, **columns):
    """Async in name only."""
    if kind and "hangs" in kind:
        time.sleep(3600)
    await asyncio.sleep(0.01)
    return [1.0 if len(c) % 2 else -1.0 for c in completions]


def flaky(prompts, completions, **columns):
    """Out of order for a while: the first calls of all processes, counted in a file."""
    with Path(os.environ["FLAKY"]).open("a") as file:
        file.write("x")
        if file.tell() <= int(os.environ["FLAKY_CALLS"]):
            raise ConnectionError("the judge is out of order")
    return [1.0 if len(c) % 2 else -1.0 for c in completions]
