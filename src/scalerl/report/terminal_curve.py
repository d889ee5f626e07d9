"""A small picture of a fit for the terminal, in characters."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scalerl.curves.result import Fit
from scalerl.report import words
from scalerl.report.series import Series, series

Array = npt.NDArray[np.float64]

#: Columns left of the picture for the scores.
MARGIN = 7
#: Points below this share of the next one's compute do not stretch the axis.
VOID = 1 / 30
#: Bit of each dot of a braille character, by row and column.
_DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
_BRAILLE = 0x2800


@dataclass(frozen=True, slots=True)
class _Signs:
    used: str
    held: str
    band: str
    end: str
    changed: str
    axis: str
    corner: str
    floor: str
    #: A plain terminal draws the median with this; None: in braille dots.
    median: str | None


_FINE = _Signs("●", "○", "░", "┊", "╎", "│", "└", "─", None)
_PLAIN = _Signs("o", "x", ":", "|", "!", "|", "+", "-", "=")


def curve(
    fit: Fit,
    width: int = 72,
    height: int = 14,
    encoding: str | None = None,
    to: float | None = None,
) -> str:
    """Points, median and band over log compute, in `width` columns and `height` rows.

    `encoding` is that of the terminal (by default that of stdout); one that lacks the characters
    gets plain ASCII. The picture ends at the compute `to` (by default at twice the window's end).

    >>> from scalerl import fit, load_run
    >>> picture = curve(fit(load_run("example:paper-8b"), hi=50_000), width=60, encoding="ascii")
    >>> picture.isascii(), max(map(len, picture.splitlines())) <= 60
    (True, True)
    """
    s = series(fit, to)
    columns, rows = max(width - MARGIN, 20), max(height, 5)
    coding = encoding or getattr(sys.stdout, "encoding", None) or "ascii"
    signs = _FINE if _can_print(coding) else _PLAIN
    canvas = _Canvas(s, columns, rows)
    cells = [[" "] * columns for _ in range(rows)]
    _fill_band(cells, canvas, s, signs)
    _draw_median(cells, canvas, s, signs)
    # Later signs cover earlier ones: fitted points stay visible.
    for (x, y), sign in ((s.held, signs.held), (s.used, signs.used)):
        for c, r in zip(canvas.column(x), canvas.row(y), strict=True):
            cells[r][c] = sign
    return "\n".join(_framed(cells, canvas, fit, signs))


def _can_print(encoding: str) -> bool:
    try:
        "●○░┊╎│└─⣿".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


class _Canvas:
    """Where a compute and a score fall on the canvas."""

    def __init__(self, s: Series, columns: int, rows: int) -> None:
        self.left, self.right = _first(s.fit.run.compute), float(s.x[-1])
        scores = np.concatenate([s.used[1], s.held[1], s.band[s.x >= self.left].ravel()])
        pad = max(0.01, 0.03 * float(np.ptp(scores)))
        self.low = max(float(scores.min()) - pad, 0.0)
        self.high = min(float(scores.max()) + pad, 1.0)
        self.columns, self.rows = columns, rows

    def column(self, x: Array, fine: int = 1) -> npt.NDArray[np.intp]:
        n = self.columns * fine
        share = np.log(np.maximum(x, self.left) / self.left) / np.log(self.right / self.left)
        return _cells(share, n)

    def row(self, y: Array, fine: int = 1) -> npt.NDArray[np.intp]:
        n = self.rows * fine
        share = (self.high - y) / max(self.high - self.low, 1e-9)
        return _cells(share, n)

    def compute(self, fine: int = 1) -> Array:
        """Compute at the middle of every column."""
        return np.geomspace(self.left, self.right, self.columns * fine)


def _first(compute: Array) -> float:
    """Where the axis begins. A score from before training lies at next to no compute; on a log
    axis it would leave the rest no room, so it is drawn at the edge instead.

    >>> _first(np.array([0.0, 1e-9, 0.5, 1.0]))
    0.5
    """
    positive = compute[compute > 0]
    jumps = np.flatnonzero(positive[:-1] < VOID * positive[1:])
    return float(positive[jumps[0] + 1 if len(jumps) and jumps[0] == 0 else 0])


def _cells(share: Array, n: int) -> npt.NDArray[np.intp]:
    """The cell of each share of the way, of n cells."""
    return np.asarray(np.clip(np.round(share * (n - 1)), 0, n - 1), dtype=np.intp)


def _on_columns(canvas: _Canvas, s: Series, values: Array, fine: int = 1) -> Array:
    x = canvas.compute(fine)
    y = np.interp(np.log(x), np.log(s.x), values)
    # A rounding error must not drop the first column.
    return np.where(x < s.x[0] * (1.0 - 1e-9), np.nan, y)


def _fill_band(cells: list[list[str]], canvas: _Canvas, s: Series, signs: _Signs) -> None:
    low, high = (_on_columns(canvas, s, s.band[:, k]) for k in (0, 1))
    for c in np.flatnonzero(np.isfinite(low)):
        top, bottom = canvas.row(high[c : c + 1])[0], canvas.row(low[c : c + 1])[0]
        for r in range(top, bottom + 1):
            cells[r][c] = signs.band
    lines = [(s.fit.end, signs.end), *((at, signs.changed) for at in s.fit.run.breaks)]
    for x, sign in lines:
        at = int(canvas.column(np.array([x]))[0])
        for row in cells:
            if row[at] == " ":
                row[at] = sign


def _draw_median(cells: list[list[str]], canvas: _Canvas, s: Series, signs: _Signs) -> None:
    if signs.median is not None:
        y = _on_columns(canvas, s, s.median)
        for c in np.flatnonzero(np.isfinite(y)):
            cells[canvas.row(y[c : c + 1])[0]][c] = signs.median
        return
    # A braille character has two columns of four dots.
    y = _on_columns(canvas, s, s.median, fine=2)
    dots = np.zeros((canvas.rows, canvas.columns), dtype=np.int64)
    before: int | None = None
    for c in np.flatnonzero(np.isfinite(y)):
        r = int(canvas.row(y[c : c + 1], fine=4)[0])
        start = r if before is None else before
        # Where the curve is steep, the rows in between are filled, or it would have gaps.
        for k in range(min(start, r), max(start, r) + 1):
            dots[k // 4, c // 2] |= _DOTS[k % 4, c % 2]
        before = r
    for r, c in zip(*np.nonzero(dots), strict=True):
        cells[r][c] = chr(_BRAILLE + int(dots[r, c]))


def _framed(cells: list[list[str]], canvas: _Canvas, fit: Fit, signs: _Signs) -> list[str]:
    lines = []
    marked = {0, canvas.rows // 2, canvas.rows - 1}
    for r, row in enumerate(cells):
        value = canvas.high - (canvas.high - canvas.low) * r / (canvas.rows - 1)
        label = f"{value:.3f}" if r in marked else ""
        lines.append(f"{label:>{MARGIN - 2}} {signs.axis}{''.join(row)}".rstrip())
    lines.append(" " * (MARGIN - 1) + signs.corner + signs.floor * canvas.columns)
    left, end, right = (words.compute(v) for v in (canvas.left, fit.end, canvas.right))
    where = int(canvas.column(np.array([fit.end]))[0])
    scale = list(left.ljust(canvas.columns))
    scale[canvas.columns - len(right) :] = right
    start = where - len(end) // 2
    if len(left) < start and start + len(end) < canvas.columns - len(right):
        scale[start : start + len(end)] = end
    lines.append(" " * MARGIN + "".join(scale))
    key = f"{words.KIND[fit.run.x_kind]}, log   {signs.used} fitted"
    if len(fit.run) > len(fit.points):
        key += f"   {signs.held} held out"
    if fit.run.breaks:
        key += f"   {signs.changed} changed"
    line = signs.median or "⠤"
    key += f"   {line} median   {signs.band} {words.percent(fit.level)}"
    lines.append(" " * MARGIN + key[: canvas.columns])
    return lines
