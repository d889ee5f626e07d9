"""Each variant beside the reference, for the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scalerl.report.terminal import wrap
from scalerl.report.words import compute as amount
from scalerl.report.words import shorten
from scalerl.study.table import StudyRow

#: Longest name of a variant that is shown whole.
NAME = 28
#: Crossings less likely than this are none.
UNLIKELY = 0.05


def beside_text(rows: Sequence[StudyRow]) -> str:
    """Same prompts, compute to the target and crossing of every variant; what the axes disagree
    about below. "" where there is nothing."""
    target = next((row.beside.target.score for row in rows if row.beside.target), None)
    if target is None:
        return ""
    head = ("variant", "on the same prompts", f"compute to {target:.3f}", "crosses, P")
    body = [(shorten(row.variant, NAME), _paired(row), _target(row), _crossing(row))
            for row in rows]  # fmt: skip
    widths = [max(len(line[i]) for line in (head, *body)) for i in range(len(head))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip()
             for line in (head, *body)]  # fmt: skip
    lines.insert(1, "-" * max(map(len, lines)))
    gains = sorted(row.paired.narrower for row in rows if row.paired is not None)
    if gains:
        note = f"same prompts: {gains[len(gains) // 2]:.1f} times narrower than unpaired"
        lines.append(wrap(note, "  ", ""))
    for row in rows:
        if row.beside.disagree is not None:
            lines.append(wrap(f"{row.variant} is {row.beside.disagree}", "  ", ""))
    return "\n" + "\n".join(lines)


def _paired(row: StudyRow) -> str:
    if row.paired is None:
        return "-"
    low, high = row.paired.interval
    return f"{row.paired.difference:+.3f} [{low:+.3f}, {high:+.3f}]"


def _target(row: StudyRow) -> str:
    found = row.beside.target
    if found is None:
        return "-"
    if math.isinf(found.median):
        return f"not reached, P {found.probability:.2f}"
    return f"{amount(found.median)} [{amount(found.interval[0])}, {amount(found.interval[1])}]"


def _crossing(row: StudyRow) -> str:
    found = row.beside.crossing
    if found is None or found.at_all < UNLIKELY or found.compute is None:
        return "-"
    where = "far ahead" if math.isinf(found.compute) else f"at {amount(found.compute)}"
    return f"{where}, {found.at_all:.2f}"
