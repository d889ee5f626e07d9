"""Small charts of a run's steps, as SVG by hand: a page may have hundreds of a few kilobytes each,
and their colours follow the page from light to dark.

Lines differ in their dashes as well as in their colour.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from scalerl.report import words
from scalerl.report.blocks import Drawing
from scalerl.report.table import escape_html as text

Array = npt.NDArray[np.float64]

WIDTH = 340
HEIGHT = 168
LEFT = 46
RIGHT = 8
TOP = 10
BOTTOM = 22
DASHES = ("", "6 3", "2 3")
#: Above this span a positive quantity is drawn on a log axis.
LOG_SPAN = 50.0
#: Points of a line.
MAX_BINS = 160


@dataclass(frozen=True, slots=True, eq=False)
class ChartLine:
    """One quantity over the steps; nan where there is none."""

    name: str
    y: Array
    #: What a stretch of steps is shown by.
    of: Literal["mean", "largest", "smallest"] = "mean"


def chart(title: str, x: Array, lines: Sequence[ChartLine], bins: int = MAX_BINS) -> Drawing:
    """A figure: lines over stretches of steps; with one line a band from its smallest to
    its largest value in each stretch. Empty where there is nothing to show."""
    shown = [line for line in lines if np.isfinite(line.y).any()]
    if not shown or not len(x):
        return Drawing("", "")
    edges = _edges(len(x), bins)
    xs = _means(x, edges)
    drawn = [_stretches(line, edges) for line in shown]
    # A stretch of one step has no band, and the bands of several lines would cover each other.
    band = _extremes(shown[0].y, edges) if len(shown) == 1 and len(edges) - 1 < len(x) else None
    # The axis spans what is drawn, not single steps that a mean hides.
    every = np.concatenate([*drawn, *(band if band is not None else ())])
    first, last = float(x[0]), float(x[-1])
    axes = SmallAxes(Scale(first, last, log=False), Scale.of(every[np.isfinite(every)]))
    body = axes.grid(f"step {first:.0f}", f"{last:,.0f}")
    if band is not None:
        body += f'<path class="band" d="{axes.area(xs, *band)}"/>'
    for i, y in enumerate(drawn):
        dash = f' stroke-dasharray="{DASHES[i % 3]}"' if DASHES[i % 3] else ""
        body += f'<path class="line k{i % 3}"{dash} d="{axes.path(xs, y)}"/>'
    label = f"{title}: {'; '.join(_summary(line, x) for line in shown)}"
    legend = _legend([line.name for line in shown]) if len(shown) > 1 else ""
    return small_figure(f"<b>{text(title)}</b>{legend}", label, body, axes.to_attributes("step"))


def small_figure(caption: str, description: str, body: str, attributes: str = "") -> Drawing:
    """A small chart: `caption`, `body` (the content of the <svg>) and its `attributes` are HTML."""
    return Drawing(
        f'<figure class="small-chart"><figcaption aria-hidden="true">{caption}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{text(description)}"'
        f"{attributes}>{body}"
        "</svg></figure>",
        description,
    )


def _legend(names: Sequence[str]) -> str:
    out = []
    for i, name in enumerate(names):
        dash = f' stroke-dasharray="{DASHES[i % 3]}"' if DASHES[i % 3] else ""
        out.append(
            f'<span class="key"><svg viewBox="0 0 26 8" aria-hidden="true">'
            f'<path class="line k{i % 3}"{dash} d="M0 4H26"/></svg>{text(name)}</span>'
        )
    return "".join(out)


def _summary(line: ChartLine, x: Array) -> str:
    """The line in words: what is read out, and what the Markdown twin has."""
    known = np.isfinite(line.y)
    y, at = line.y[known], x[known]
    return (
        f"{line.name} {number(y[0])} at step {at[0]:.0f}, {number(y[-1])} at step {at[-1]:.0f}, "
        f"between {number(y.min())} and {number(y.max())}"
    )


def number(value: float) -> str:
    """Three digits.

    >>> number(0.01972), number(62.705), number(12345.0), number(-0.21)
    ('0.0197', '62.7', '12.3k', '-0.21')
    """
    return words.compute(value) if abs(value) >= 1000 else f"{value:.3g}"


# -- stretches of steps ---------------------------------------------------------------------------


def _edges(n: int, bins: int) -> npt.NDArray[np.int64]:
    return np.unique(np.linspace(0, n, min(bins, n) + 1).round().astype(np.int64))


def _means(y: Array, edges: npt.NDArray[np.int64]) -> Array:
    known = np.isfinite(y)
    total = np.add.reduceat(np.where(known, y, 0.0), edges[:-1])
    count = np.add.reduceat(known.astype(float), edges[:-1])
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _stretches(line: ChartLine, edges: npt.NDArray[np.int64]) -> Array:
    if line.of == "mean":
        return _means(line.y, edges)
    return _extremes(line.y, edges)[line.of == "largest"]


def _extremes(y: Array, edges: npt.NDArray[np.int64]) -> tuple[Array, Array]:
    known = np.isfinite(y)
    low = np.minimum.reduceat(np.where(known, y, np.inf), edges[:-1])
    high = np.maximum.reduceat(np.where(known, y, -np.inf), edges[:-1])
    return np.where(np.isfinite(low), low, np.nan), np.where(np.isfinite(high), high, np.nan)


# -- axes -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scale:
    """One axis, on a linear or a log scale."""

    low: float
    high: float
    log: bool
    ticks: tuple[float, ...] = ()

    @staticmethod
    def of(values: Array, may_be_log: bool = True) -> Scale:
        """An axis with room for these values, that begins and ends at a tick."""
        low, high = float(values.min()), float(values.max())
        if may_be_log and low > 0 and high / low > LOG_SPAN:
            first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
            # About four labels fit the height.
            every = max(1, (last - first + 3) // 4)
            ticks = tuple(10.0**e for e in range(first, last + 1, every))
            return Scale(10.0**first, 10.0**last, True, ticks)
        # A constant line has no span: its axis reaches from the value to 0.
        if high - low < 1e-9 * max(abs(high), 1e-9):
            low, high = (0.0, high or 1.0) if high >= 0 else (low, 0.0)
        step = _step((high - low) / 4.0)
        bottom, top = math.floor(low / step) * step, math.ceil(high / step) * step
        count = round((top - bottom) / step)
        return Scale(bottom, top, False, tuple(bottom + i * step for i in range(count + 1)))

    def share(self, value: float) -> float:
        """The share of the axis up to a value, 0 to 1."""
        if self.log:
            found = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            found = (value - self.low) / max(self.high - self.low, 1e-9)
        return min(max(found, 0.0), 1.0)


def _step(about: float) -> float:
    """1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(about))
    # 0.999: a rounding error must not make the step twice as large.
    return next(power * m for m in (1.0, 2.0, 5.0, 10.0) if power * m >= about * 0.999)


@dataclass(frozen=True, slots=True)
class SmallAxes:
    """The axes of a small chart, and what is drawn on them as paths of SVG."""

    x: Scale
    y: Scale

    def at(self, x: float, y: float) -> str:
        """The place of a point, in pixels."""
        across = LEFT + self.x.share(x) * (WIDTH - LEFT - RIGHT)
        return f"{across:.1f} {self._height(y):.1f}"

    def _height(self, y: float) -> float:
        return HEIGHT - BOTTOM - self.y.share(y) * (HEIGHT - TOP - BOTTOM)

    def to_attributes(self, kind: str) -> str:
        """The scales as attributes of the <svg>, so that the live page reads values off the
        drawing: both ends of an axis, whether it is a log axis, and where its ends are drawn."""
        x = f"{self.x.low:.8g} {self.x.high:.8g} {int(self.x.log)} {LEFT} {WIDTH - RIGHT}"
        y = f"{self.y.low:.8g} {self.y.high:.8g} {int(self.y.log)} {HEIGHT - BOTTOM} {TOP}"
        return f' data-x="{x}" data-y="{y}" data-of="{text(kind)}"'

    def path(self, x: Array, y: Array) -> str:
        """A line, with gaps where there is no value."""
        out, pen = [], "M"
        for a, b in zip(x.tolist(), y.tolist(), strict=True):
            if not math.isfinite(b):
                pen = "M"
                continue
            out.append(f"{pen}{self.at(a, b)}")
            pen = "L"
        # A path of one point draws nothing: it gets a length of two pixels.
        return "".join(out) if len(out) > 1 else f"{out[0]}h2"

    def area(self, x: Array, low: Array, high: Array) -> str:
        """A band, where there are values."""
        known = np.isfinite(low)
        up, down = (
            [self.at(a, b) for a, b in zip(x[known].tolist(), y[known].tolist(), strict=True)]
            for y in (high, low)
        )
        return f"M{'L'.join([*up, *reversed(down)])}Z"

    def grid(self, first: str, last: str, kind: str = "") -> str:
        """Rules with their values, and below them the ends of the axis of x and what it counts."""
        out = []
        for tick in self.y.ticks:
            y = self._height(tick)
            out.append(f'<path class="rule" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
            # Sums of steps may miss 0 by a rounding error, which would be written as 1e-17.
            shown = number(0.0 if abs(tick) < 1e-12 else tick)
            out.append(f'<text x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{shown}</text>')
        base, middle = HEIGHT - 6, (LEFT + WIDTH - RIGHT) // 2
        out.append(f'<text x="{LEFT}" y="{base}">{first}</text>')
        if kind:
            out.append(f'<text x="{middle}" y="{base}" text-anchor="middle">{text(kind)}</text>')
        out.append(f'<text x="{WIDTH - RIGHT}" y="{base}" text-anchor="end">{last}</text>')
        return "".join(out)
