"""Reward functions for benchmarks/checks.py: the default task's own check, at once or slowly."""

from __future__ import annotations

import time
import zlib
from typing import Any

from scalerl.tasks.running_sums import Sum, score_answer

SLEEP = 0.5
#: One call in so many never comes back.
NEVER = 100


def at_once(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
    pairs = zip(prompts, completions, strict=True)
    return [1.0 if score_answer(Sum.parse(p), c)[0] else -1.0 for p, c in pairs]


def slow(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
    """As slow as a service that is asked over a network."""
    time.sleep(SLEEP)
    return at_once(prompts, completions, **columns)


def sometimes_never(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
    """The call about 1 group in a hundred hangs, always the same ones."""
    if zlib.crc32(prompts[0].encode()) % NEVER == 0:
        time.sleep(1e6)
    return at_once(prompts, completions, **columns)
