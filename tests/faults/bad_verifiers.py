"""Reward functions as one meets them, and worse."""

import os
import signal
import time


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
