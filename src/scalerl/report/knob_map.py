"""The knob map as a picture: what each change does to the ceiling (up and down), and to the compute
that it takes to one score (left and right, on a log scale). The reference is where the axes cross.

The shape of a mark shows its region, and points where the knob moves:

    ceiling    a triangle up or down        neither    a square
    speed      a triangle left or right     undecided  a cross

Full marks hold with all comparisons of the study allowed for, hollow ones for themselves alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalerl.report import words
from scalerl.report.theme import Theme, ThemeName, drawing, freeze_layout, new_figure, note, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

    from scalerl.study.knobs import Knob

#: Region → shape in the legend, its words, and its colour in the run palette; None: grey.
REGIONS: dict[str, tuple[str, str, int | None]] = {
    "ceiling": ("^", "moves the ceiling", 1),
    "speed": ("<", "moves the speed", 0),
    "neither": ("s", "neither", 2),
    "undecided": ("x", "undecided", None),
}
#: Characters of a name in the picture.
NAME = 16
#: Names in the picture: more knobs are named in the table alone, undecided ones first.
NAMED = 16
#: Of an interval that reaches far out, what lies beyond this many times the largest move is cut.
FAR = 2.0
#: The smallest reach of the axes: ΔA, and ln of compute.
LEAST = (0.03, math.log(1.25))
#: In inches: names stay readable on a phone.
SIZE = (4.7, 4.5)
#: More knobs than this crowd around the reference: their marks are small, and a line joins each
#: name to its mark.
CROWD = 6
#: Compute ratios that may be ticks.
RATIOS = (1 / 16, 1 / 8, 1 / 4, 1 / 3, 1 / 2, 1 / 1.5, 1 / 1.2, 1, 1.2, 1.5, 2, 3, 4, 8, 16)


def _shape(knob: Knob) -> str:
    if knob.region == "ceiling":
        return "^" if knob.delta_a > 0 else "v"
    if knob.region == "speed":
        return "<" if (knob.delta_log_compute or 0.0) < 0 else ">"
    return REGIONS[knob.region][0]


def _colour(region: str, t: Theme) -> str:
    place = REGIONS[region][2]
    return t.muted if place is None else t.colour(place)


def plot_knob_map(
    knobs: Sequence[Knob],
    reference: str,
    path: str | Path | None = None,
    theme: ThemeName = "light",
) -> Figure:
    """Draw `Study.knobs()`.

    >>> from scalerl.study.knobs import Knob
    >>> knob = Knob("lr", {}, -0.05, (-0.08, -0.02), None, None, "ceiling", "mine", 0.001, True)
    >>> plot_knob_map([knob], "mine").axes[0].get_ylabel()
    'ceiling, against the reference'
    """
    with drawing(theme) as t:
        fig, ax = new_figure(SIZE)
        across, up = _reach(knobs)
        ax.set_xlim(-across, across)
        ax.set_ylim(-up, up)
        _ground(ax, t)
        for knob in knobs:
            _draw(ax, knob, across, len(knobs) > CROWD, t)
        ax.plot([0], [0], marker="o", ms=5, color=t.ink, zorder=5)
        _axes(ax, across, t)
        _legend(fig, {k.region for k in knobs}, any(not k.family_wise for k in knobs), t)
        ax.set_title(f"Against {words.shorten(reference, 40)}")
        freeze_layout(fig)  # names are fitted into the place that the axes have now
        _names(fig, ax, knobs, across, t)
        return save(fig, path)


def _reach(knobs: Sequence[Knob]) -> tuple[float, float]:
    """Half of the axes: all marks with most of their intervals. An interval that is open would
    press all others into a point."""

    def of(values: Sequence[float], ends: Sequence[tuple[float, float]], least: float) -> float:
        # 1.12 and 1.15 leave room between the last mark and the frame.
        centre = max([abs(v) for v in values], default=0.0)
        widths = sorted(max(abs(low), abs(high)) for low, high in ends)
        usual = widths[len(widths) // 2] if widths else 0.0
        furthest = widths[-1] if widths else 0.0
        return 1.12 * max(least, 1.15 * centre, min(furthest, FAR * max(centre, usual)))

    speeds = [k.delta_log_compute for k in knobs if k.delta_log_compute is not None]
    ends = [k.delta_log_compute_interval for k in knobs if k.delta_log_compute_interval is not None]
    up = of([k.delta_a for k in knobs], [k.delta_a_interval for k in knobs], LEAST[0])
    return of(speeds, ends, LEAST[1]), up


def _ground(ax: Axes, t: Theme) -> None:
    ax.axhline(0, color=t.muted, lw=0.8, ls=(0, (4, 3)), zorder=1)
    ax.axvline(0, color=t.muted, lw=0.8, ls=(0, (4, 3)), zorder=1)
    said = (
        (0.5, 0.985, "higher ceiling", "center", "top"),
        (0.5, 0.015, "lower ceiling", "center", "bottom"),
        (0.01, 0.5, "faster", "left", "bottom"),
        (0.99, 0.5, "slower", "right", "bottom"),
    )
    ground = {"fc": t.paper, "ec": "none", "pad": 1.0}
    how = {"fontsize": 8.5, "fontstyle": "italic", "bbox": ground, "zorder": 1.5}
    for x, y, text, ha, va in said:
        note(ax, x, y, text, t, transform=ax.transAxes, ha=ha, va=va, **how)


def _at(knob: Knob, across: float) -> float:
    """Marks without a speed, where no score was reached by both, stand at the right edge."""
    # Just inside the frame, so that the mark is not cut.
    return across * 0.985 if knob.delta_log_compute is None else knob.delta_log_compute


def _draw(ax: Axes, knob: Knob, across: float, crowded: bool, t: Theme) -> None:
    colour = _colour(knob.region, t)
    x, y = _at(knob, across), knob.delta_a
    cross: list[Any] = [([x, x], knob.delta_a_interval)]
    if knob.delta_log_compute_interval is not None:
        cross.append((knob.delta_log_compute_interval, [y, y]))
    for xs, ys in cross:
        # Butt caps end exactly where the interval does.
        width, alpha = (0.7, 0.3) if crowded else (1.0, 0.55)
        ax.plot(xs, ys, color=colour, lw=width, alpha=alpha, zorder=2, solid_capstyle="butt")
    ax.plot(
        [x],
        [y],
        ls="",
        marker=_shape(knob),
        ms=(8.5 if knob.region != "undecided" else 6.5) * (0.55 if crowded else 1.0),
        mfc=colour if knob.family_wise else t.paper,
        # In a crowd a rim of the colour of paper keeps marks apart; hollow ones and crosses are
        # lines, which need their colour.
        mec=t.paper if crowded and knob.family_wise and _shape(knob) != "x" else colour,
        mew=0.7 if crowded and _shape(knob) != "x" else 1.6,
        zorder=4,
        clip_on=False,
    )


def _axes(ax: Axes, across: float, t: Theme) -> None:
    shown = [r for r in RATIOS if abs(math.log(r)) <= across]
    while len(shown) > 9:
        shown = shown[len(shown) // 2 % 2 :: 2]  # 1 is in the middle, and stays
    ax.set_xticks([math.log(r) for r in shown], [_ratio(r) for r in shown])
    ax.yaxis.set_major_formatter(lambda v, _: f"{v:+.2g}" if abs(v) > 1e-9 else "0")
    ax.set_xlabel("compute to one score, against the reference")
    ax.set_ylabel("ceiling, against the reference")
    ax.grid(color=t.faint, linewidth=0.6)


def _ratio(value: float) -> str:
    return f"×{value:.2g}" if value >= 1 else f"÷{1 / value:.2g}"


def _legend(fig: Figure, regions: set[str], hollow: bool, t: Theme) -> None:
    from matplotlib.lines import Line2D

    shown = [
        (shape, _colour(region, t), _colour(region, t), 1.6, label)
        for region, (shape, label, _) in REGIONS.items()
        if region in regions
    ]
    if hollow:
        shown.append(("^", t.ink, t.paper, 1.4, "hollow: for itself alone"))
    handles = [
        Line2D([], [], ls="", marker=shape, ms=7, mec=edge, mfc=face, mew=width, label=label)
        for shape, edge, face, width, label in shown
    ]
    if handles:
        columns = len(handles) if fig.get_figwidth() > 6 else 2
        fig.legend(
            handles=handles,
            loc="outside lower center",
            ncols=columns,
            fontsize=8.5,
            labelcolor=t.ink,
            handletextpad=0.3,
            columnspacing=1.2,
        )


# -- names ----------------------------------------------------------------------------------------


#: Where a name may be, seen from its mark: right or left (1, -1), and how far up; best first.
SIDES = ((1, 0.9), (-1, 0.9), (1, -0.9), (-1, -0.9), (0, 1.6), (0, -1.6), (1, 0), (-1, 0))
#: In points: a name that is further away from its mark is joined to it by a line.
NEAR = 6
#: More directions for the names of a crowd, between those.
MORE_SIDES = (
    (1, 0.4),
    (-1, 0.4),
    (1, -0.4),
    (-1, -0.4),
    (1, 1.5),
    (-1, 1.5),
    (1, -1.5),
    (-1, -1.5),
)
Point = tuple[float, float]
Line = tuple[Point, Point]


def _names(fig: Figure, ax: Axes, knobs: Sequence[Knob], across: float, t: Theme) -> None:
    """Each name beside its mark, where it covers no other name and no mark."""
    from matplotlib.transforms import Bbox

    points = [(0.0, 0.0), *((_at(k, across), k.delta_a) for k in knobs)]
    pixels: list[Point] = [tuple(ax.transData.transform(p)) for p in points]
    unit = fig.dpi / 72.0
    taken = [
        # A mark of 8.5 points with some room around it.
        Bbox.from_extents(x - 6 * unit, y - 6 * unit, x + 6 * unit, y + 6 * unit)
        for x, y in pixels
    ]
    taken += [text.get_window_extent() for text in ax.texts]
    frame = ax.get_window_extent()
    crowded = len(knobs) > CROWD
    # Names of a crowd stand around it, where they cover no mark.
    reaches = (18, 30, 44, 60, 78, 98, 120) if crowded else (0, 6, 14, 24, 36, 50)
    # A line straight up or to the side would lie on an interval.
    sides = tuple(s for s in SIDES + MORE_SIDES if s[0] and s[1]) if crowded else SIDES
    names: list[Bbox] = []
    lines: list[Line] = []
    # Undecided knobs are the first to go without a name: their place says least.
    order = sorted(range(len(knobs)), key=lambda i: knobs[i].region == "undecided")[:NAMED]
    named = [(0, "reference")]
    named += [(i + 1, words.shorten(knobs[i].variant, NAME)) for i in order]
    for i, name in named:
        x, y = pixels[i]
        # A character of 8.5 points is 0.62 as wide on average: measuring each text takes longer.
        wide, high = (0.62 * 8.5 * len(name) + 2) * unit, 10.5 * unit
        places = []
        for far in reaches:
            for dx, dy in sides:
                left = x + dx * (9 + far) * unit + (0 if dx > 0 else -wide if dx < 0 else -wide / 2)
                low = y + dy * (8 + far) * unit - high / 2
                places.append((Bbox.from_extents(left, low, left + wide, low + high), far))
        inside = [p for p in places if frame.contains(*p[0].p0) and frame.contains(*p[0].p1)]

        def cost(place: tuple[Bbox, float], i: int = i) -> tuple[float, int, float]:
            box, far = place
            line = (pixels[i], _end(pixels[i], box))
            crossed = sum(map(partial(_meets, box), lines))
            if far > NEAR:
                crossed += _crossed(line, lines, pixels, 5 * unit)
                crossed += sum(_meets(name, line) for name in names)
            return _covered(box, taken), crossed, far

        box, far = min(inside or places, key=cost)
        taken.append(box)
        names.append(box)
        if far > NEAR:
            lines.append(((x, y), _end((x, y), box)))
        _write(ax, name, (x, y), box, far, t)


def _end(mark: Point, box: Bbox) -> Point:
    """Where the line from a mark meets its name."""
    return min(max(mark[0], box.x0), box.x1), min(max(mark[1], box.y0), box.y1)


def _crossed(
    line: Line, lines: Sequence[Line], marks: Sequence[Point],
    room: float,
) -> int:  # fmt: skip
    """Other lines that a line crosses, and other marks that it passes: they would make it hard to
    see which name belongs to which mark."""
    passed = sum(mark != line[0] and _distance(mark, line) < room for mark in marks)
    return passed + sum(_cross(line, other) for other in lines)


def _meets(box: Bbox, line: Line) -> bool:
    """Whether a line goes through a name."""
    diagonals = (((box.x0, box.y0), (box.x1, box.y1)), ((box.x0, box.y1), (box.x1, box.y0)))
    return any(_cross(line, diagonal) for diagonal in diagonals)


def _side(a: Point, b: Point, c: Point) -> float:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def _cross(one: Line, other: Line) -> bool:
    apart = _side(*one, other[0]) * _side(*one, other[1])
    return apart < 0 and _side(*other, one[0]) * _side(*other, one[1]) < 0


def _distance(point: Point, line: Line) -> float:
    """How far a point is from a stretch of a line."""
    (ax, ay), (bx, by) = line
    length = (bx - ax) ** 2 + (by - ay) ** 2
    along = (
        0.0 if length == 0 else ((point[0] - ax) * (bx - ax) + (point[1] - ay) * (by - ay)) / length
    )
    along = min(max(along, 0.0), 1.0)
    return math.hypot(point[0] - ax - along * (bx - ax), point[1] - ay - along * (by - ay))


def _covered(place: Bbox, taken: Sequence[Bbox]) -> float:
    """Area of other boxes that a box covers."""
    both = [place.intersection(place, each) for each in taken]
    return sum(each.width * each.height for each in both if each is not None)


def _write(ax: Axes, name: str, mark: tuple[float, float], box: Bbox, far: float, t: Theme) -> None:
    to_data = ax.transData.inverted()
    x, y = to_data.transform(((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2))
    if far > NEAR:
        # Too far away to belong to the mark at first sight: a thin line joins them.
        a, b = to_data.transform(mark), to_data.transform(_end(mark, box))
        ax.plot([a[0], b[0]], [a[1], b[1]], color=t.muted, lw=0.6, zorder=3)
    ax.text(
        x,
        y,
        name,
        ha="center",
        va="center",
        fontsize=8.5,
        color=t.ink,
        zorder=6,
        bbox={"fc": t.paper, "ec": "none", "pad": 0.4, "alpha": 0.75},
    )
