"""Each variant beside the reference, on the page of a study: on the same prompts, to one target,
where the curves cross, with one ceiling, on every axis of compute."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from scalerl.report import words
from scalerl.report.markup import Keyed, items, table, text, with_range

Row = Mapping[str, Any]
LEVEL = 0.9
#: Crossings less likely than the first are none, and of those below the second no place is told.
UNLIKELY, LIKELY = 0.05, 0.5
HEAD = ("Variant", "On the same prompts", "Compute to the target", "B with one ceiling", "Crossing")
AXES = {"gpu_hours": "device-hours", "tokens": "tokens", "flops": "FLOPs"}


def section(rows: Sequence[Row], reference: str) -> str:
    """The table, with what the axes disagree about above it; "" where there is nothing."""
    if not any(_known(row) for row in rows):
        return ""
    body = [
        (text(words.shorten(row["variant"], 40)), _same_prompts(row), _target(row), _fixed(row),
         _crossing(row, reference))
        for row in rows
    ]  # fmt: skip
    target = next((row["target"]["score"] for row in rows if row["target"]), None)
    aim = "" if target is None else f"; the target is a pass rate of {target:.3f}"
    caption = f"Against the reference, with {words.percent(LEVEL)} intervals{aim}"
    return (
        f"<h3>Beside the reference</h3>{table(caption, HEAD, body)}{_explained(rows)}{_axes(rows)}"
    )


def _small(html: str) -> str:
    return f'<span class="range">{html}</span>'


def _known(row: Row) -> bool:
    return any(row[key] for key in ("paired", "target", "crossing"))


def _explained(rows: Sequence[Row]) -> str:
    gains = [row["paired"]["narrower"] for row in rows if row["paired"]]
    said = ""
    if gains:
        middle = sorted(gains)[len(gains) // 2]
        said = (
            "On the same prompts: the difference in pass rate at the last compute that both have "
            "reached, prompt by prompt, so that what makes a prompt hard cancels; its interval is "
            f"{middle:.1f} times narrower (the middle of all variants) than without that. "
        )
    said += (
        "Compute to the target is that of the mean curve. B with one ceiling is as the paper has "
        "it, and is shown beside the reference’s. A crossing is of curves that each lead by 0.01 "
        "or more somewhere: before the end of the reference’s budget, and at all."
    )
    return f'<p class="small">{text(said)}</p>'


def _same_prompts(row: Row) -> str:
    found = row["paired"]
    if not found:
        return Keyed("", None)
    shown = with_range(words.signed(found["difference"]), *map(words.signed, found["interval"]))
    more = f"{found['n_prompts']} prompts, ×{found['narrower']:.1f} narrower"
    return Keyed(shown + _small(text(more)), found["difference"])


def _target(row: Row) -> str:
    found = row["target"]
    if not found:
        return Keyed("", None)
    middle, ends = found["compute"]["median"], found["compute"]["interval"]
    if middle is None:
        chance = f"probability {found['probability']:.2f}"
        return Keyed(f"not reached{_small(chance)}", math.inf)
    low, high = ("never" if v is None else words.compute(v) for v in ends)
    return Keyed(with_range(words.compute(middle), low, high), middle)


def _fixed(row: Row) -> str:
    found = row["fixed_A"]
    if not found:
        return Keyed("", None)
    beside = f"{found['B_reference']:.2f} with A = {found['A']:.3f}"
    return Keyed(f"{found['B']:.2f}{_small(f'reference {beside}')}", found["B"])


def _crossing(row: Row, reference: str) -> str:
    found = row["crossing"]
    if not found or found["probability"] < UNLIKELY:
        return Keyed("" if not found else "none", 0.0 if found else None)
    who = "the reference" if found["overtakes"] == reference else "it"
    within = found["probability_within_budget"]
    chance = f"P {found['probability']:.2f}, in budget {within:.2f}"
    shown = "unlikely"
    if found["probability"] >= LIKELY:
        where = "far ahead" if found["compute"] is None else words.compute(found["compute"])
        low, high = ("later" if v is None else words.compute(v) for v in found["interval"])
        shown = with_range(where, low, high)
    return Keyed(shown + _small(f"{chance}<br>{who} overtakes"), found["probability"])


def _axes(rows: Sequence[Row]) -> str:
    """Compute to one score over the reference's, on every axis of the record; what they disagree
    about in words, above."""
    known = [row for row in rows if row["axes"]]
    if not known:
        return ""
    kinds = [kind for kind in AXES if any(kind in row["axes"] for row in known)]
    body = []
    for row in known:
        cells = [_ratio(row["axes"].get(kind)) for kind in kinds]
        body.append((text(words.shorten(row["variant"], 40)), *cells))
    head = ("Variant", *(AXES[kind][:1].upper() + AXES[kind][1:] for kind in kinds))
    caption = "Compute to one score over that of the reference, on every axis of the record"
    said = [
        f"{words.shorten(row['variant'], 40)} is {row['axes_disagree']}."
        for row in rows
        if row["axes_disagree"]
    ]
    return (items(said) if said else "") + table(caption, head, body)


def _ratio(found: Row | None) -> str:
    if found is None:
        return Keyed("", None)
    ratio, (low, high) = found["compute_ratio"]["median"], found["compute_ratio"]["interval"]
    return Keyed(with_range(f"×{ratio:.2f}", f"{low:.2f}", f"{high:.2f}"), ratio)
