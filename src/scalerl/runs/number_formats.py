"""Numbers written with thousands separators or a decimal comma: `1,250.5`, `0,45`, `1.250,5`.

`1,250` alone may be 1250 or 1.25. What a comma means is decided once for a table, by the cells
that leave no doubt: `0.45` or `1,250.5` anywhere, and commas separate thousands; `0,45` or
`1.250,5`, and they are decimal. A table with both, or with neither, is decided column by column,
and a column that stays in doubt is not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Literal

from scalerl.runs import metrics
from scalerl.runs.table import Table, is_missing, to_float

Comma = Literal["decimal", "thousands"]

#: Cells of a column that are examined to decide whether it holds numbers with marks.
SAMPLE = 50
#: Cells of a column that are examined for what a comma means.
EVIDENCE = 2000

_EXPONENT = r"(?:[eE][+-]?\d+)?"
_COMMA_GROUPS = re.compile(rf"[+-]?[1-9]\d{{0,2}}(?:,\d{{3}})+(?:\.\d*)?{_EXPONENT}", re.ASCII)
_DECIMAL_COMMA = re.compile(rf"[+-]?\d*,\d+{_EXPONENT}", re.ASCII)
_POINT_GROUPS = re.compile(rf"[+-]?[1-9]\d{{0,2}}(?:\.\d{{3}})+(?:,\d+)?{_EXPONENT}", re.ASCII)
#: A blank, a no-break blank or an apostrophe between groups of three digits is never decimal.
_BLANKS = " '’\u00a0\u2009\u202f"
_BLANK_GROUPS = re.compile(
    rf"[+-]?[1-9]\d{{0,2}}(?:[{_BLANKS}]\d{{3}})+(?:[.,]\d*)?{_EXPONENT}", re.ASCII
)
_BLANK = re.compile(f"[{_BLANKS}]")
_MARKED = (_COMMA_GROUPS, _DECIMAL_COMMA, _POINT_GROUPS, _BLANK_GROUPS)
#: A cell without any of these is a plain number or a text: most cells need no other look.
_MARK = re.compile(f"[,{_BLANKS}]")


def normalise_numbers(table: Table) -> Table:
    """The table with such numbers rewritten as Python reads them, and a note of each kind.

    >>> t = Table("mine", {"gpu_hours": ["950", "1,250.5"], "acc": ["0.1", "0.2"]})
    >>> normalise_numbers(t).columns["gpu_hours"]
    ['950', '1250.5']
    """
    names = [c for c in table.columns if c.strip().lower() not in metrics.RUN]
    marked = [c for c in names if _has_marks(table.columns[c])]
    if not marked:
        return table
    whole = _meaning([sign for c in table.columns for sign in _evidence(table.columns[c])])
    if whole == "decimal":
        marked += [c for c in names if c not in marked and _has_point_groups(table.columns[c])]
    columns = dict(table.columns)
    decimal = False
    notes: list[str] = []
    for name in marked:
        comma = whole or _meaning(list(_evidence(columns[name])))
        cells = [_plain(cell, comma) for cell in columns[name]]
        changed = [i for i, cell in enumerate(cells) if cell is not columns[name][i]]
        if not changed:
            continue
        first = str(columns[name][changed[0]]).strip()
        if _COMMA_GROUPS.fullmatch(first) or "," not in first or _BLANK.search(first):
            notes.append(f"thousands separators in {name}: {first} is read as {cells[changed[0]]}")
        else:
            decimal = True
        columns[name] = cells
    if decimal:
        notes.append("decimal commas read as points")
    return table.made(columns, notes=[*table.notes, *notes])


def _has_marks(cells: list[object]) -> bool:
    """Whether a column holds numbers, and some of them have marks that a plain number has not."""
    texts = [c for c in cells if isinstance(c, str)]
    if not any(map(_MARK.search, texts)):
        return False
    some = islice((c.strip() for c in texts if not is_missing(c)), SAMPLE)
    return all(any(p.fullmatch(text) for p in _MARKED) or _is_number(text) for text in some)


def _has_point_groups(cells: list[object]) -> bool:
    """Whether every point in a column stands before three digits, as `1.250` in a table of decimal
    commas."""
    points = [c.strip() for c in cells if isinstance(c, str) and "." in c]
    return bool(points) and all(map(_POINT_GROUPS.fullmatch, points))


def _is_number(text: str) -> bool:
    return to_float(text) == to_float(text)


def _evidence(cells: list[object]) -> Iterator[Comma]:
    """What the cells that leave no doubt say about the comma."""
    for cell in islice((c for c in cells if isinstance(c, str | float)), EVIDENCE):
        if isinstance(cell, float):
            yield "thousands"  # this format has typed numbers: a point is the decimal mark
            return
        text = cell.strip()
        groups = _COMMA_GROUPS.fullmatch(text)
        if groups and ("." in text or text.count(",") > 1):
            yield "thousands"
        elif _DECIMAL_COMMA.fullmatch(text) and not groups:
            yield "decimal"
        elif _POINT_GROUPS.fullmatch(text):
            if "," in text or text.count(".") > 1:
                yield "decimal"
        elif "." in text and _is_number(text):
            yield "thousands"


def _meaning(signs: list[Comma]) -> Comma | None:
    found = set(signs)
    return found.pop() if len(found) == 1 else None


def _plain(cell: object, comma: Comma | None) -> object:
    """The cell as Python reads numbers; the cell itself where it stays in doubt."""
    if not isinstance(cell, str):
        return cell
    text = cell.strip()
    if _BLANK_GROUPS.fullmatch(text):
        return _BLANK.sub("", text).replace(",", ".")
    if comma == "thousands" and _COMMA_GROUPS.fullmatch(text):
        return text.replace(",", "")
    if comma == "decimal" and _POINT_GROUPS.fullmatch(text):
        return text.replace(".", "").replace(",", ".")
    if comma == "decimal" and _DECIMAL_COMMA.fullmatch(text):
        return text.replace(",", ".")
    return cell
