"""The curves of a study: one a variant, as the mean of its seeds, and each beside the reference."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from scalerl.curves.prediction import sample_quantiles, tails
from scalerl.curves.result import Fit
from scalerl.report import words
from scalerl.report.blocks import Block, BlockGroup, Drawing, Paragraph
from scalerl.report.series import (
    BEYOND_HELD,
    Array,
    DrawnCurve,
    Points,
    ahead_knots,
    downsample,
    inside_knots,
    predictions,
)
from scalerl.report.small_charts import Scale, SmallAxes, small_figure
from scalerl.report.table import escape_html as text
from scalerl.runs.record import Run

if TYPE_CHECKING:
    from scalerl.study.table import MemberFinding, StudyRow

#: Points of each kind that are drawn of a variant.
FEW_POINTS = 60


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class VariantCurve(DrawnCurve):
    """A variant as it is drawn. The line is the mean of its seeds; of what was fitted on half of
    the compute, where there is enough for that. It has no knots where nothing could be fitted."""

    #: Points of runs that are not fitted.
    apart: Points
    #: Mean over the runs of their last pass rates: of those that are fitted, else of all.
    last: float


def variant_curves(
    members: Sequence[MemberFinding], rows: Mapping[str, StudyRow]
) -> list[VariantCurve]:
    """One for each variant, in their order; of runs that count one kind of compute."""
    # A log axis has no place for runs without compute, or for other kinds of it.
    drawable = [(m, m.run) for m in members if m.run is not None and (m.run.compute > 0).any()]
    kinds = [run.x_kind for _, run in drawable]
    groups: dict[str, list[MemberFinding]] = {}
    for (m, _), kind in zip(drawable, kinds, strict=True):
        if kind == kinds[0]:
            groups.setdefault(m.member.variant, []).append(m)
    return [_pooled(rows[name], kinds[0], group) for name, group in groups.items()]


def _pooled(row: StudyRow, kind: str, group: Sequence[MemberFinding]) -> VariantCurve:
    fits = [m.fit if m.half is None else m.half.first or m.fit for m in group if m.fit is not None]
    apart = [m.run for m in group if m.fit is None and m.run is not None]
    lasts = [float(run.score[-1]) for run in ([f.run for f in fits] or apart)]
    x, median, band, seen, end = np.empty(0), np.empty(0), np.empty((0, 2)), np.empty((0, 2)), 0.0
    if fits:
        # The geometric mean: the middle on a log axis.
        end = float(np.exp(np.mean([math.log(f.end) for f in fits])))
        start = min(float(f.run.compute[f.run.compute > 0][0]) for f in fits)
        last = max(BEYOND_HELD * max(float(f.run.compute[-1]) for f in fits), 1.01 * end)
        inside = np.unique(np.concatenate([f.points.compute for f in fits]))
        inside = np.array([start, *inside[(start < inside) & (inside < end)], end])
        x = np.concatenate([inside_knots(inside), ahead_knots(end, last)])
        median, band, seen = _mean(fits, x)
    a, ends = row.estimates["A"], row.intervals["A"]
    return VariantCurve(
        name=row.variant,
        x_kind=kind,
        used=_points((f.run, f.run.compute <= f.end) for f in fits),
        held=_points((f.run, f.run.compute > f.end) for f in fits),
        apart=_points((run, run.compute >= 0) for run in apart),
        last=math.fsum(lasts) / len(lasts),
        x=x, median=median, band=band, seen=seen, end=end,
        ceiling=(a, *ends) if row.identified and a is not None and ends is not None else None,
    )  # fmt: skip


def _mean(fits: Sequence[Fit], x: Array) -> tuple[Array, Array, Array]:
    """Median and interval of the mean of several seeds, and of one evaluation."""
    parts: list[tuple[Array, Array]] = []
    for ahead in zip(*(predictions(f, x) for f in fits), strict=True):
        # Seeds are independent: sample i of each makes a sample of their mean.
        draws = np.mean([p.samples for p in ahead], axis=0)
        levels = sample_quantiles(draws, (0.5, *tails(fits[0].level)))
        seen = np.mean([p.interval(observed=True) for p in ahead], axis=0)
        parts.append((levels, seen))
    levels, seen = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    return levels[:, 0], levels[:, 1:], seen


def _points(chosen: Iterable[tuple[Run, npt.NDArray[np.bool_]]]) -> Points:
    """The chosen points of all runs together, by compute."""
    parts = [(run.compute[keep], run.score[keep]) for run, keep in chosen]
    x, y = (np.concatenate([part[i] for part in parts] or [np.empty(0)]) for i in (0, 1))
    order = np.argsort(x, kind="stable")
    return x[order], y[order]


# -- each variant beside the reference ------------------------------------------------------------


def _axes(curves: Sequence[VariantCurve]) -> SmallAxes:
    """One pair of axes for all small charts."""
    groups = [p for c in curves for p in (c.used, c.held, c.apart)]
    x = np.concatenate([p[0] for p in groups])
    y = np.concatenate([p[1] for p in groups] + [c.median for c in curves])
    last = max([1.01 * float(x.max()), *(float(c.x[-1]) for c in curves if len(c.x))])
    return SmallAxes(Scale(float(x[x > 0].min()), last, log=True), Scale.of(y, may_be_log=False))


def small_multiples(
    curves: Sequence[VariantCurve], reference: str, notes: Mapping[str, str]
) -> list[Block]:
    """A small chart per variant, all with the same axes; `notes` stand beside the name."""
    if not curves:
        return [Paragraph("There is nothing to draw yet.")]
    axes = _axes(curves)
    main = next((c for c in curves if c.name == reference), None)
    drawn = [_small(c, main, axes, notes.get(c.name, "")) for c in curves]
    legend = (
        "Filled points were fitted, hollow ones held out. Crosses are points of unstable runs, "
        "which are not fitted. The dotted grey line is the reference."
    )
    return [
        BlockGroup(drawn, "small-charts variants"),
        Paragraph(legend, "small"),
    ]


def _small(c: VariantCurve, main: VariantCurve | None, axes: SmallAxes, note: str) -> Drawing:
    ends = words.compute(axes.x.low), words.compute(axes.x.high)
    body = axes.grid(*ends, f"{words.KIND[c.x_kind]}, log")
    if main is not None and main is not c and len(main.x):
        body += f'<path class="line beside" d="{axes.path(main.x, main.median)}"/>'
    if len(c.x):
        body += f'<path class="band" d="{axes.area(c.x, *c.band.T)}"/>'
        for part, dash in ((c.inside, ""), (c.ahead, ' stroke-dasharray="5 3"')):
            body += f'<path class="line k0"{dash} d="{axes.path(c.x[part], c.median[part])}"/>'
    # A line without length and with round caps is drawn as a dot; a smaller one of the colour of
    # paper on top makes it hollow.
    for points, kinds, sign in (
        (c.used, ("dot",), "h0"),
        (c.held, ("dot", "hole"), "h0"),
        (c.apart, ("cross",), "m-2 -2l4 4m0 -4l-4 4"),
    ):
        both = zip(*downsample(*points, FEW_POINTS), strict=True)
        d = "".join(f"M{axes.at(a, b)}{sign}" for a, b in both)
        body += "".join(f'<path class="{kind}" d="{d}"/>' for kind in kinds if d)
    name = words.shorten(c.name, 34)
    said = f"; {note}" if note else ""
    caption = f"<b>{text(name)}</b><span>{text(note)}</span>"
    attributes = axes.to_attributes(words.KIND[c.x_kind])
    return small_figure(caption, f"{name}: {_summary(c)}{said}", body, attributes)


def _summary(c: VariantCurve) -> str:
    """The points of a chart in words, for screen readers."""
    count = len(c.used[1]) + len(c.held[1]) + len(c.apart[1])
    return f"{count} validations, {c.last:.3f} at the end"
