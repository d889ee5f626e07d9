"""Pieces of HTML. Everything that comes from data passes through `text`."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from scalerl.curves.result import Fit
from scalerl.report import words

#: A table of more rows scrolls in a box of its own.
LONG_TABLE = 14


def text(value: str) -> str:
    """Any string as harmless text: markup escaped, control characters made visible."""
    return html.escape("".join(ch if ch.isprintable() else "·" for ch in value), quote=True)


def items(lines: Sequence[str]) -> str:
    """A list of plain lines."""
    return "<ul>" + "".join(f"<li>{text(line)}</li>" for line in lines) + "</ul>"


class Keyed(str):
    """A cell with the number that its column is sorted by (report.js); the text itself is too
    short, or is about something else. Without a number it stands last."""

    key: float | None

    def __new__(cls, html: str, key: float | None) -> Keyed:
        made = super().__new__(cls, html)
        made.key = None if key is None or not math.isfinite(key) else float(key)
        return made


def _cell(html: str) -> str:
    if not isinstance(html, Keyed):
        return f"<td>{html}</td>"
    return f'<td data-key="{"" if html.key is None else f"{html.key:.12g}"}">{html}</td>'


def table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; cells are HTML already, and the first of a row heads it."""
    top = "".join(f'<th scope="col">{h}</th>' for h in head)
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>' + "".join(map(_cell, row[1:])) + "</tr>"
        for row in rows
    )
    kind = "scroll long" if len(rows) > LONG_TABLE else "scroll"
    return (
        f'<div class="{kind}" tabindex="0"><table><caption>{caption}</caption>'
        f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def with_range(value: str, low: str, high: str) -> str:
    return f'{value} <span class="range">{low} to {high}</span>'


def ceiling(f: Fit) -> tuple[str, str]:
    """The ceiling and its range, or why there is none."""
    if f.alarm is not None:
        return "none", "run in decline"
    if f.identified:
        low, high = f.interval("A")
        return f"{f.params['A']:.3f}", f"{low:.3f} to {high:.3f}"
    return "not identified", words.ceiling_range(f)
