"""One table for every output: HTML, Markdown and terminal text.

>>> cells = row("one", TableCell("0.62", "0.6 to 0.7"))
>>> print(ReportTable("Fits", columns("Run", ">Ceiling"), [cells]).to_text())
Run           Ceiling
---------------------
one 0.62 [0.6 to 0.7]
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from scalerl.report import words
from scalerl.text import shorten

#: A table of more rows scrolls in a box of its own on the page.
LONG_TABLE = 14


def escape_html(value: str) -> str:
    """Any string as harmless HTML text: markup escaped, control characters made visible."""
    # Not printable are also the signs that reverse the direction of text, which could hide a name.
    return html.escape("".join(ch if ch.isprintable() else "·" for ch in value), quote=True)


# Characters that mean something inside a Markdown paragraph. An underscore inside a word means
# nothing: C_mid stays as it is.
_SIGNS = re.compile(r"[\\`*\[\]$]|~(?=~)|(?<=~)~|(?<![^\W_])_|_(?![^\W_])")
# Entities, not backslashes, for HTML: old parsers know them as well.
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def escape_markdown(value: str) -> str:
    """Any string as Markdown that shows it as it is, inside a paragraph.

    >>> print(escape_markdown("<b> [x](y) *C_mid* `a` _b_"))
    &lt;b&gt; \\[x\\](y) \\*C_mid\\* \\`a\\` \\_b\\_
    """
    clean = "".join(ch if ch.isprintable() else "·" for ch in value)
    clean = re.sub(r"\s+", " ", clean)
    return _SIGNS.sub(lambda sign: "\\" + sign[0], clean).translate(_ENTITIES)


def fence(body: str, least: int) -> str:
    """Backticks that enclose code in Markdown: more than the code has in a row."""
    return "`" * max(least, 1 + max(map(len, re.findall("`+", body)), default=0))


def code_span(body: str) -> str:
    """Text as Markdown code; a space on either side where it begins or ends with a backtick."""
    ticks = fence(body, 1)
    pad = " " if body[:1] == "`" or body[-1:] == "`" else ""
    return f"{ticks}{pad}{' '.join(body.split())}{pad}{ticks}"


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column: its heading and how terminal text aligns its cells."""

    heading: str
    align: Literal["left", "right"] = "left"
    #: What the column means: shown when the heading is pointed at.
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class TableCell:
    """A cell: a text, and what stands below it in smaller type."""

    #: Line breaks stay.
    text: str = ""
    #: An interval or a unit.
    detail: str = ""
    #: Further lines.
    notes: tuple[str, ...] = ()
    #: What the page sorts the column by; nan: sorted last; None: sorted by its text.
    number: float | None = None
    style: Literal["", "strong", "code"] = ""
    #: A word of warning behind the text.
    flag: str = ""

    def to_html(self) -> str:
        """The content of the table's <td> element."""
        shown = "<br>".join(escape_html(line) for line in self.text.split("\n"))
        shown = f"<{self.style}>{shown}</{self.style}>" if self.style and shown else shown
        if self.flag:
            shown += f' <span class="flag">{escape_html(self.flag)}</span>'
        if self.detail:
            shown += f' <span class="range">{escape_html(self.detail)}</span>'
        return shown + "".join(f"<br><small>{escape_html(note)}</small>" for note in self.notes)

    def to_markdown(self) -> str:
        """The cell in one line."""
        one_line = "; ".join(self.text.split("\n"))
        shown = code_span(one_line) if self.style == "code" else escape_markdown(one_line)
        shown += f" {escape_markdown(self.flag)}" if self.flag else ""
        shown += f" ({escape_markdown(self.detail)})" if self.detail else ""
        # A bar would end the cell, inside code too.
        return "; ".join([shown, *map(escape_markdown, self.notes)]).replace("|", "\\|").strip()

    def to_text(self) -> str:
        """The cell in one line without its notes."""
        return f"{self.text} [{self.detail}]" if self.detail else self.text

    @property
    def sort_key(self) -> str:
        """The attribute that the page's script sorts by (tables.js)."""
        if self.number is None:
            return ""
        key = f"{self.number:.12g}" if math.isfinite(self.number) else ""
        return f' data-key="{key}"'


def number_cell(value: float, interval: Sequence[float], show: Callable[[float], str]) -> TableCell:
    """A number with its interval, by which the page sorts the column.

    >>> number_cell(0.5, (0.4, 0.6), "{:.1f}".format).to_text()
    '0.5 [0.4 to 0.6]'
    """
    return TableCell(show(value), words.to(interval, show), number=value)


def columns(*headings: str) -> tuple[TableColumn, ...]:
    """Columns by their headings; ">" before a heading aligns its cells to the right.

    >>> [column.align for column in columns("Run", ">Points")]
    ['left', 'right']
    """
    return tuple(
        TableColumn(h.removeprefix(">"), "right" if h.startswith(">") else "left") for h in headings
    )


def row(*cells: str | TableCell) -> tuple[TableCell, ...]:
    """A row of a table; strings become plain cells."""
    return tuple(TableCell(c) if isinstance(c, str) else c for c in cells)


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table with a caption; the first cell of a row heads the row."""

    caption: str
    columns: Sequence[TableColumn]
    rows: Sequence[Sequence[TableCell]]

    def to_html(self) -> str:
        """The table for the page, where its columns can be sorted."""
        top = "".join(
            f'<th scope="col"{_title(c.meaning)}>{escape_html(c.heading)}</th>'
            for c in self.columns
        )
        body = "".join(
            f'<tr><th scope="row">{first.to_html()}</th>'
            + "".join(f"<td{cell.sort_key}>{cell.to_html()}</td>" for cell in others)
            + "</tr>"
            for first, *others in self.rows
        )
        kind = "scroll long" if len(self.rows) > LONG_TABLE else "scroll"
        return (
            # With a tabindex the box can be scrolled by key as well.
            f'<div class="{kind}" tabindex="0"><table>'
            f"<caption>{escape_html(self.caption)}</caption>"
            f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
        )

    def to_plain_html(self, most: int) -> str:
        """A table without styles, for notebooks; rows beyond `most` are counted."""
        top = "".join(f"<th>{escape_html(c.heading)}</th>" for c in self.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape_html(c.to_text())}</td>" for c in row) + "</tr>"
            for row in self.rows[:most]
        )
        more = f"<p>and {len(self.rows) - most} more</p>" if len(self.rows) > most else ""
        return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>{more}"

    def to_markdown(self) -> str:
        """The caption and the table."""
        head = [TableCell(c.heading).to_markdown() for c in self.columns]
        lines = [head, ["---"] * len(head), *([c.to_markdown() for c in r] for r in self.rows)]
        grid = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        return f"{markdown_start(escape_markdown(self.caption))}\n\n{grid}"

    def to_text(self, widths: Sequence[int] | None = None, gap: str = " ") -> str:
        """Lines for a terminal: headings, a rule, rows. Cells are cut to `widths`; without them
        each column is as wide as its longest cell."""
        lines = [[c.heading for c in self.columns], *([c.to_text() for c in r] for r in self.rows)]
        wide = widths or [max(map(len, cells)) for cells in zip(*lines, strict=True)]
        out = []
        for line in lines:
            cells = [
                shorten(text, w).rjust(w) if c.align == "right" else shorten(text, w).ljust(w)
                for text, w, c in zip(line, wide, self.columns, strict=True)
            ]
            out.append(gap.join(cells).rstrip())
        out.insert(1, "-" * max(map(len, out)))
        return "\n".join(out)


def _title(meaning: str) -> str:
    return f' title="{escape_html(meaning)}"' if meaning else ""


#: What a Markdown block may not begin with: it would be a heading, a list, a rule or a fence.
_BLOCK_START = re.compile(r"^([#+=|~-]|\d+(?=[.)]))")


def markdown_start(block: str) -> str:
    """Escaped Markdown with a first character that begins no other kind of block.

    >>> print(markdown_start("- item"), markdown_start("12. item"))
    \\- item 12\\. item
    """
    # "12." begins a list, and a backslash before a digit would be shown: the sign after it is
    # escaped instead.
    return _BLOCK_START.sub(
        lambda start: start[0] + "\\" if start[0].isdigit() else "\\" + start[0], block
    )
