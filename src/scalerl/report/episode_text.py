"""Episodes as text for a terminal of 80 columns. What an episode holds was written by a model or an
environment, so it can hold anything: control characters and marks that change the direction of
text are shown as escapes, never sent to the terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from typing import Any

from scalerl.report.terminal import WIDTH
from scalerl.text import shorten

#: Lines of a segment that are shown where not all are wanted: its beginning and its end.
BEGINNING = 6
END = 3
#: Spaces that a tab is shown as.
TAB = "    "
#: Characters before the end of a line among which a space is looked for.
NEAR = 16
#: Width of the column of sources: "context" has 7 characters.
MARGIN = 8


def escaped(text: str) -> str:
    """The text with escapes for what a terminal would obey or not show; line ends stay.

    >>> escaped("a\\x1b[2Jb"), escaped("x\\u202ey")
    ('a\\\\x1b[2Jb', 'x\\\\u202ey')
    """
    return "".join(ch if ch.isprintable() or ch == "\n" else _escape(ch) for ch in text)


def _escape(ch: str) -> str:
    return TAB if ch == "\t" else ch.encode("unicode_escape").decode()


def width_of(ch: str) -> int:
    """Columns that a character takes in a terminal."""
    if unicodedata.combining(ch) or unicodedata.category(ch) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(ch) in "WF" else 1


def wrapped(text: str, width: int) -> Iterator[str]:
    """Lines of at most `width` columns, cut at a space where one is near the end of the line."""
    for line in escaped(text).split("\n"):
        start = taken = 0
        for i, ch in enumerate(line):
            columns = width_of(ch)
            # 4: marks without a width must not make a line endless.
            if taken + columns > width or i - start >= 4 * width:
                space = line.rfind(" ", max(start + 1, i - NEAR), i + 1)
                yield line[start : space if space > 0 else i]
                start = space + 1 if space > 0 else i
                taken = sum(map(width_of, line[start:i]))
            taken += columns
        yield line[start:]


def episode_text(found: dict[str, Any], *, full: bool) -> str:
    """One episode: a line of facts, what the check found, and its segments after their sources."""
    # By columns of the terminal: a name can have characters that take two.
    lines = [next(wrapped(each, WIDTH)) for each in (_title(found), _facts(found))]
    if found["why"]:
        lines += _fill(found["why"], "  ", full)
    for i, row in enumerate(found["rows"]):
        if i:
            lines.append("fork    │ a new row: the history was rewritten")
        for segment in row:
            lines += _segment(segment, full)
    if found["cut"]:
        lines.append("  (too long to show whole)")
    return "\n".join(lines)


def _title(found: dict[str, Any]) -> str:
    kind = {True: "✓ right", False: "✗ wrong", None: "◦ unscored"}[found["correct"]]
    return f"{found['id']}  step {found['step']:,}  {shorten(found['prompt'], 30)}  {kind}"


def _facts(found: dict[str, Any]) -> str:
    reward = "none" if found["reward"] is None else f"{found['reward']:.4g}"
    parts = [f"  reward {reward}", f"{found['tokens']:,} tokens"]
    parts += [f"{found['turns']} turns"] if found["turns"] > 1 else []
    parts += ["a tool failed"] if found["tool_failed"] else []
    parts += [] if found["finish"] in ("stop", "") else [f"ended by {found['finish']}"]
    return ", ".join(parts)


def _segment(segment: dict[str, Any], full: bool) -> Iterator[str]:
    label = segment["source"]
    for line in _fill(segment["text"], "", full, WIDTH - MARGIN - 2):
        yield f"{label:<{MARGIN}}│ {line}".rstrip()
        label = ""


def _fill(text: str, indent: str, full: bool, width: int = WIDTH - 2) -> list[str]:
    """The text in lines; of a long one, without `full`, the beginning and the end."""
    if not full:
        # Lines of a long text beyond those that are shown need not be made.
        most = 2 * width * (BEGINNING + END)
        if len(text) > 2 * most:
            text = f"{text[:most]}\n…\n{text[-most:]}"
    lines = [indent + line for line in wrapped(text, width)]
    if full or len(lines) <= BEGINNING + END + 1:
        return lines
    return [*lines[:BEGINNING], f"{indent}… (--full shows all)", *lines[-END:]]
