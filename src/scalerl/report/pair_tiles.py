"""The numbers at the top of a page that compares two runs or recipes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from scalerl.curves.compare import Comparison, Pair
from scalerl.curves.forecast import Forecast, Target, reach
from scalerl.curves.verdict import VERDICT_WORDS
from scalerl.report import words
from scalerl.report.blocks import Tile

#: Characters of a name in a tile.
NAME = 24


def common_target(
    forecasts: Sequence[Forecast], comparison: Comparison | None
) -> list[tuple[str, Target]]:
    """The compute of each of two runs to one score: the first target asked that both will probably
    reach, else a score that both have reached. Empty where there is no such score."""
    if comparison is None or len(comparison.pairs) != 1 or len(forecasts) != 2:
        return []
    asked = zip(forecasts[0].targets, forecasts[1].targets, strict=True)
    found = next((both for both in asked if all(math.isfinite(t.median) for t in both)), None)
    if found is None:
        score = comparison.pairs[0].speed_score
        if score is None:
            return []
        first, second = (reach(ahead.fit, [score])[0] for ahead in forecasts)
        found = first, second
    return [(ahead.fit.name, t) for ahead, t in zip(forecasts, found, strict=True)]


def tiles(comparison: Comparison, common: Sequence[tuple[str, Target]]) -> list[Tile]:
    """Name, value and note of each number: the verdict, the difference of the ceilings, the ratio
    of compute to one score, and the compute of each run to it."""
    if len(comparison.pairs) != 1:
        return []
    pair = comparison.pairs[0]
    found = [_verdict(pair), _ceilings(pair)]
    if pair.speed is not None and pair.speed_score is not None:
        found.append(_efficiency(pair))
    unit = words.KIND[comparison.fits[0].run.x_kind]
    for name, t in common:
        low, high = (words.compute(v) for v in t.interval)
        note = f"{unit} of {_short(name)}, {low} to {high}"
        found.append((f"Compute to {words.score(t.score)}", words.compute(t.median), note))
    return found


def common_dict(common: Sequence[tuple[str, Target]]) -> dict[str, Any] | None:
    """For report.json."""
    if not common:
        return None
    runs = [{"run": name, **t.to_dict()} for name, t in common]
    return {"score": common[0][1].score, "runs": runs}


def _verdict(pair: Pair) -> Tile:
    if pair.verdict == "undecided":
        why = words.verdict(pair).removeprefix("undecided").lstrip(": ")
        return "Verdict", "undecided", why or f"{_short(pair.a)} and {_short(pair.b)}"
    return "Verdict", VERDICT_WORDS[pair.verdict], _short(pair.winner or "")


def _ceilings(pair: Pair) -> Tile:
    """The higher ceiling minus the lower, by the median of the difference."""
    higher, lower, delta, ends = pair.b, pair.a, pair.delta_a, pair.delta_a_interval
    if delta < 0:
        higher, lower, delta, ends = lower, higher, -delta, (-ends[1], -ends[0])
    low, high = (words.signed(v) for v in ends)
    note = f"{_short(higher)} minus {_short(lower)}, {low} to {high}"
    return "Difference of ceilings ΔA", words.signed(delta), note


def _efficiency(pair: Pair) -> Tile:
    """Compute of the slower to one score over that of the faster."""
    assert pair.speed is not None and pair.speed_score is not None
    slower, faster, logs = pair.b, pair.a, pair.speed
    if logs[1] < 0:
        slower, faster = faster, slower
        logs = (-logs[2], -logs[1], -logs[0])
    low, mid, high = (f"{math.exp(v):.2f}" for v in logs)
    note = f"compute of {_short(slower)} over that of {_short(faster)}, {low} to {high}"
    return f"Efficiency, to {words.score(pair.speed_score)}", f"{mid} ×", note


def _short(name: str) -> str:
    return words.shorten(name, NAME)
