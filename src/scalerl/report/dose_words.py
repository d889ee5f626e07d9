"""The results of a force as text: a table of at most 80 columns, a sentence for each verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from scalerl.report.table import ReportTable, columns, row
from scalerl.report.terminal import wrap
from scalerl.report.words import compute, shorten

if TYPE_CHECKING:
    from scalerl.study.dose_draws import Interval
    from scalerl.study.dose_results import CellContrast, CellResult, ForceResults

#: Longest name of a line in the terminal's table.
NAME = 16
HEAD = ("line", "dose", "n", "at the end [90 %]", "ceiling A", "C_mid", "P(unstable)")


def force_text(found: ForceResults) -> str:
    """What `scalerl study` prints of a force."""
    parts = [wrap(found.force.question), "\n".join(_table(found))]
    parts += [wrap(f"{line.name}: {line.words}", "  ", "") for line in found.lines]
    said = [contrast_words(each) for each in shown_contrasts(found)]
    parts += [wrap(text, "  ", "") for text in said if text]
    if found.law is not None:
        parts.append(wrap(law_words(found), "  ", ""))
    return "\n".join(parts)


def _table(found: ForceResults) -> list[str]:
    body = [
        (shorten(line.name, NAME), cell.cell.dose.label, *cells_of(cell))
        for line in found.lines
        for cell in line.cells
    ]
    widths = [max(map(len, column)) for column in zip(HEAD, *body, strict=True)]
    return (
        ReportTable("", columns(*HEAD), [row(*c) for c in body]).to_text(widths, "  ").splitlines()
    )


def cells_of(cell: CellResult) -> tuple[str, str, str, str, str]:
    """Runs, level at the end, ceiling, C_mid and P(unstable) of a cell."""
    a = "-" if cell.ceiling is None else f"{cell.ceiling[1]:.3f}" if cell.identified else "open"
    mid = "-" if cell.c_mid is None else compute(cell.c_mid[1])
    return str(cell.runs), interval_text(cell.end), a, mid, unstable_text(cell)


def unstable_text(cell: CellResult) -> str:
    if not cell.runs:
        return "-"
    low, _, high = cell.p_unstable
    return f"{cell.unstable}/{cell.runs} [{low:.2f}, {high:.2f}]"


def interval_text(ends: Interval | None) -> str:
    return "-" if ends is None else f"{ends[1]:.3f} [{ends[0]:.3f}, {ends[2]:.3f}]"


def shown_contrasts(found: ForceResults) -> Sequence[CellContrast]:
    """The comparisons that answer the question: doses of a line where that is asked, and lines at
    one dose."""
    return (*(found.within if found.force.asked == "differs" else ()), *found.between)


def contrast_words(each: CellContrast) -> str:
    """A comparison of two cells that was decided, as a sentence; "" of one that was not."""
    less = each.found.p_less_stable
    said = []
    if each.found.difference is not None and each.found.verdict != "undecided":
        low, middle, high = each.found.difference
        what = "no different" if each.found.verdict == "no difference" else each.found.verdict
        said.append(f"{what}, by {middle:+.3f} [{low:+.3f}, {high:+.3f}]")
    if max(less, 1 - less) >= 0.97:
        word = "less" if less > 0.5 else "more"
        said.append(f"{word} often stable (probability {max(less, 1 - less):.2f})")
    return f"{each.variant} against {each.other}: {'; '.join(said)}" if said else ""


def law_words(found: ForceResults) -> str:
    law = found.law
    assert law is not None
    low, slope, high = law.slope
    return (
        f"ln({found.force.dose_key}) at which half of the runs break, on ln({law.over}): slope "
        f"{slope:.2f} [{low:.2f}, {high:.2f}], claimed {law.claimed:g}: {law.verdict}"
    )
