"""The report of a study: one page, its Markdown twin, its figures and its numbers."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scalerl.files import to_json_bytes
from scalerl.report import page, panels, payload, words
from scalerl.report.blocks import (
    Alert,
    Block,
    BlockGroup,
    Bullets,
    Code,
    Figure,
    Heading,
    PageSection,
    Paragraph,
    Span,
)
from scalerl.report.comparison_figures import (
    EfficiencyLine,
    efficiency_lines,
    plot_efficiency_lines,
    plot_runs,
)
from scalerl.report.html import KINDS, page_files, write_files
from scalerl.report.knob_map import plot_knob_map
from scalerl.report.report_tables import verdict_meanings
from scalerl.report.study_curves import small_multiples, variant_curves
from scalerl.report.study_report_data import StudyReportData
from scalerl.report.table import ReportTable, TableCell, TableColumn, columns, number_cell, row
from scalerl.report.theme import drawing, freeze_layout, render, svg_element
from scalerl.text import listed

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawn

    from scalerl.curves.result import Fit
    from scalerl.study.columns import Column
    from scalerl.study.knobs import Knob
    from scalerl.study.pairwise import AxisSpeed
    from scalerl.study.table import StudyRow

#: Probability of the intervals in a study's tables.
LEVEL = 0.9
#: Characters of a variant's name in a table.
NAME = 40
#: Kinds of compute that the table of axes has, and what they are called.
AXES = {"gpu_hours": "Device-hours", "tokens": "Tokens", "flops": "FLOPs"}
#: The last section of the page.
HOW_TO_READ = (
    "The law is a sigmoid in log compute: a run starts at R_0, has made half of its gain at C_mid, "
    "climbs more steeply the larger B is, and approaches the ceiling A. A knob that changes the "
    "ceiling decides how far a recipe can go; one that changes only the speed can be made up for "
    "with more compute. An interval holds the true value with the stated probability if the runs "
    "stay healthy. “Open” means that the points allow too many ceilings to quote one. Unstable "
    "runs are in no number."
)
#: Runs that are spelled out at the top.
MAX_WARNINGS = 8
#: Variants in the efficiency re-plot: one for each colour.
MAX_LINES = 7
#: Size of the efficiency re-plot in inches: it has the half of the page's width.
EFFICIENCY_SIZE = (5.4, 4.4)


def write_study_report(data: StudyReportData, out_dir: str | Path) -> list[Path]:
    """Write report.html, report.md, report.json and the figures; the files written, the page
    first."""
    return write_files(study_files(data), Path(out_dir))


def study_files(data: StudyReportData) -> dict[str, bytes]:
    """What `write_study_report` writes, by name, the page first."""
    heading = data.title or f"Study {words.shorten(Path(data.path).name or data.path, 60)}"
    by_name = {each.variant: each for each in data.results.rows}
    curves = variant_curves(data.findings, by_name)
    fitted = [c for c in curves if len(c.x)]
    verdicts = {name: _verdict_text(data, each) for name, each in by_name.items()}
    a, lines = _efficiency_lines(data)
    # Those that can have this ceiling. Half of the seeds: the line is their mean.
    shown = [line for line in lines if len(line.points[0]) and line.suits >= 0.5][:MAX_LINES]
    figures: dict[str, Drawn] = {}
    if fitted:
        title = f"{len(fitted)} variants, forecast from half of their compute"
        figures["curves"] = plot_runs(fitted, title=title)
    if data.results.knobs:
        figures["knob-map"] = plot_knob_map(data.results.knobs, data.reference)
    if len(shown) > 1:
        kind = curves[0].x_kind
        figures["efficiency"] = plot_efficiency_lines(shown, a, kind, size=EFFICIENCY_SIZE)
    content = {"report.json": _numbers(data, heading, a, lines)}
    with drawing("light"):
        for name, figure in figures.items():
            freeze_layout(figure)
            content |= {f"{name}.{kind}": render(figure, kind) for kind in KINDS}
    blocks: list[Block] = [
        *study_answer(data),
        PageSection(
            "Each variant against the reference",
            small_multiples(curves, data.reference, verdicts),
            "each",
        ),
        PageSection("Knob map", knob_map_part(data, content.get("knob-map.svg", b"")), "map"),
        PageSection("Variants", [*variants_table(data), *pairwise_part(data)], "table"),
        PageSection("Curves", _chart(content.get("curves.svg")), "curves"),
        *_efficiency(a, len(lines), len(shown), content.get("efficiency.svg")),
        *_downstream(data),
        PageSection("How the recipes differ", _differs(data), "recipes"),
        *panels.section(data.records),
        PageSection("Reproduce", _reproduce(data), "again"),
        PageSection("How to read this", [Paragraph(HOW_TO_READ)], "read"),
        *page.command(data.command),
    ]
    return page_files(heading, blocks, payload.chart(fitted, LEVEL), content)


def _efficiency_lines(data: StudyReportData) -> tuple[float, list[EfficiencyLine]]:
    """The ceiling that all variants are refitted with (the mean of their runs'), and their lines,
    the reference's first."""
    groups: dict[str, list[Fit]] = {}
    for each in data.findings:
        # F needs the sigmoid: other laws have no C_mid.
        if each.fit is not None and "C_mid" in each.fit.params:
            groups.setdefault(each.member.variant, []).append(each.fit)
    if not groups:
        return 0.0, []
    a = float(np.mean([f.params["A"] for fits in groups.values() for f in fits]))
    return a, efficiency_lines(groups.items(), a)


def _numbers(
    data: StudyReportData, heading: str, a: float, lines: Sequence[EfficiencyLine]
) -> bytes:
    out = {
        "title": heading,
        "command": data.command,
        "study": data.path,
        "reference": data.reference,
        **data.found,
        "differs": {n: [d.to_dict() for d in found] for n, found in data.differs.items()},
        "efficiency": {"A": a, "variants": [{"variant": x.name, "B": x.B} for x in lines]},
        "records": [None if one is None else one.to_dict() for one in data.records],
    }
    return to_json_bytes(out, indent=1)


# -- the answer -----------------------------------------------------------------------------------


def study_answer(data: StudyReportData) -> list[Block]:
    """The top of the page: runs that failed or became unstable, and which knobs matter."""
    warnings = _warnings(data)
    out: list[Block] = []
    if warnings:
        more = warnings[MAX_WARNINGS:]
        lines = warnings[:MAX_WARNINGS] + ([f"and {len(more)} more, in the tables"] if more else [])
        out.append(Alert("Warnings", lines))
    return [*out, Paragraph(_summary(data), "lead")]


def _summary(data: StudyReportData) -> str:
    """The answer in one sentence that names every variant, after one on what was run."""
    count = len(data.results.rows)
    done = sum(m["status"] == "done" for m in data.found["members"])
    said = f"{count} variants, {len(data.found['members'])} runs, {done} of them finished."
    parts = [_clause(names, phrase) for phrase, names in _outcomes(data).items() if names]
    if not parts:
        return f"{said} Nothing can be compared yet."
    return f"{said} Against {data.reference}: {'; '.join(parts)}."


#: What a knob does -> the verb for one variant and for several.
OUTCOMES = {
    "higher": ("raises the ceiling", "raise the ceiling"),
    "lower": ("lowers the ceiling", "lower the ceiling"),
    "faster": ("needs less compute to the same ceiling", "need less compute to the same ceiling"),
    "slower": ("needs more compute to the same ceiling", "need more compute to the same ceiling"),
    "neither": ("changes neither ceiling nor speed", "change neither ceiling nor speed"),
    "undecided": ("is undecided so far", "are undecided so far"),
    "apart": ("is not compared", "are not compared"),
}


def _outcomes(data: StudyReportData) -> dict[str, list[str]]:
    """Key of `OUTCOMES` -> the variants it is said of, with what else a reader must know of each.
    Every variant but the reference is in one of them."""
    found: dict[str, list[str]] = {key: [] for key in OUTCOMES}
    knobs = {k.variant: k for k in data.results.knobs}
    for each in data.results.rows:
        name = words.shorten(each.variant, 30)
        knob = knobs.get(each.variant)
        if knob is not None:
            found[_outcome(knob)].append(f"{name}{_unstable_part(each)}")
        elif each.variant != data.reference:
            found["apart"].append(f"{name} ({_why_apart(data, each)})")
    return found


def _outcome(knob: Knob) -> str:
    if knob.region == "ceiling":
        return "higher" if knob.delta_a > 0 else "lower"
    if knob.region == "speed":
        return "faster" if (knob.delta_log_compute or 0.0) < 0 else "slower"
    return knob.region


def _clause(names: Sequence[str], key: str) -> str:
    return f"{listed(names, last=' and ')} {OUTCOMES[key][len(names) > 1]}"


def _unstable(each: StudyRow) -> int:
    return sum(s.state == "unstable" for s in each.stability.values())


def _unstable_part(each: StudyRow) -> str:
    """How many runs of a compared variant are in no number; "" where all are."""
    lost = _unstable(each)
    return f" ({lost} of {len(each.stability)} runs unstable)" if lost else ""


def _why_apart(data: StudyReportData, each: StudyRow) -> str:
    """Why a variant is not compared, and the pass rate that its runs have reached nevertheless."""
    last = [
        float(f.run.score[-1])
        for f in data.findings
        if f.member.variant == each.variant and f.run is not None and len(f.run)
    ]
    ends = f", at {words.score(math.fsum(last) / len(last))} in the end" if last else ""
    lost = _unstable(each)
    if lost:
        return f"{lost} of {len(each.stability)} runs unstable{ends}"
    return f"{each.words}{ends}"


def _warnings(data: StudyReportData) -> list[str]:
    """Members that failed, and those that became unstable, with when and by what rule."""
    out = []
    for m in data.found["members"]:
        name, found = words.shorten(m["name"], 60), m["stability"]
        if m["status"] == "failed":
            out.append(f"{name} failed: {m['why'] or 'its log says why'}")
        if found["state"] == "unstable":
            out.append(f"{name} became unstable: {_since(found)}")
    return out


def _since(found: Mapping[str, Any]) -> str:
    if found["rule"] is None:
        return str(found["why"])
    return f"step {found['step']}, by the rule {found['rule']}: {found['why']}"


# -- the tables -----------------------------------------------------------------------------------


def variants_table(data: StudyReportData) -> list[Block]:
    """The fit of each variant and its verdict; below it, what the verdicts mean."""
    caption = f"Means over the seeds of each variant, with {words.percent(LEVEL)} intervals"
    return [_study_table(data, caption, data.results.columns("fit")), verdict_meanings()]


def pairwise_part(data: StudyReportData) -> list[Block]:
    """Each variant against the reference: on the same prompts, to one target, where the curves
    cross, with one ceiling, and on every kind of compute. Nothing where nothing is known yet."""
    rows = data.results.rows
    # A heading above an empty table would look like a fault.
    if not any(r.paired or r.pairwise.target or r.pairwise.crossing for r in rows):
        return []
    variant = data.results.columns("fit")[0]
    shown = [variant, *data.results.columns("pairwise")]
    target = next((r.pairwise.target.score for r in rows if r.pairwise.target), None)
    aim = "" if target is None else f"; the target is a pass rate of {target:.3f}"
    caption = f"Against the reference, with {words.percent(LEVEL)} intervals{aim}"
    return [
        Heading("Compared with the reference", 3),
        _study_table(data, caption, shown),
        Bullets([[Span(c.heading, "strong"), f": {c.meaning}"] for c in shown[1:]], "small"),
        *_axes(data),
    ]


def _study_table(data: StudyReportData, caption: str, shown: Sequence[Column]) -> ReportTable:
    """A table of the study with these columns."""
    heads = [TableColumn(c.heading, meaning=c.meaning) for c in shown]
    return ReportTable(caption, heads, [[_cell(c, r) for c in shown] for r in data.results.rows])


def _cell(column: Column, each: StudyRow) -> TableCell:
    """A cell of a study's table, as its column formats it."""
    cell = column.shown(each)
    if column.key == "variant":
        return TableCell(words.shorten(each.variant, NAME))
    # nan sorts last, in both directions.
    if cell.empty:
        return TableCell(number=math.nan, notes=cell.notes)
    show = words.NUMBER_FORMATS.get(column.format, str)
    detail = "" if cell.interval is None else words.to(cell.interval, show)
    return TableCell(
        cell.text or show(cell.number or 0.0),
        detail,
        cell.notes,
        cell.number,
        "strong" if column.key == "verdict" else "",
    )


def _verdict_text(data: StudyReportData, each: StudyRow) -> str:
    column = next(c for c in data.results.columns("fit") if c.key == "verdict")
    return column.shown(each).text


def _axes(data: StudyReportData) -> list[Block]:
    """Compute to one score over the reference's, on every kind of compute of the record."""
    known = [r for r in data.results.rows if r.pairwise.axes]
    if not known:
        return []
    kinds = [kind for kind in AXES if any(kind in (r.pairwise.axes or {}) for r in known)]
    rows = [
        row(
            words.shorten(r.variant, NAME),
            *(_axis_ratio((r.pairwise.axes or {}).get(kind)) for kind in kinds),
        )
        for r in known
    ]
    caption = "Compute to one score over that of the reference, on every kind of compute"
    return [ReportTable(caption, columns("Variant", *(AXES[kind] for kind in kinds)), rows)]


def _axis_ratio(found: AxisSpeed | None) -> TableCell:
    if found is None:
        return TableCell(number=math.nan)
    return _ratio_cell(found.ratio, found.interval)


def _ratio_cell(ratio: float, interval: Sequence[float]) -> TableCell:
    low, high = interval
    return TableCell(f"×{ratio:.2f}", f"{low:.2f} to {high:.2f}", number=ratio)


def knob_map_part(data: StudyReportData, svg: bytes) -> list[Block]:
    """The knob map as a picture and as a table."""
    knobs = data.results.knobs
    if not knobs:
        return [Paragraph("Nothing can be compared yet.")]
    alt = "Knob map: " + "; ".join(f"{k.variant} {k.region}" for k in knobs)
    caption = (
        "Each change against the reference, which is where the axes cross. Up: a higher ceiling. "
        "Left: less compute to a score that both have reached. The shape of a mark says what the "
        f"knob changes; the cross holds the true value with {words.percent(LEVEL)} probability in "
        "each direction. Filled marks remain when all "
        f"{len(knobs)} comparisons are allowed for (Holm): the chance of even one wrong among "
        "them is at most 3 %. Hollow marks hold only without this correction."
    )
    head = ("Knob", "Changes", "Ceiling", "Compute to one score", "P(wrong)")
    rows = []
    for k in knobs:
        alone = () if k.family_wise else ("without correction for many comparisons",)
        speed = TableCell(detail="no score reached by both", number=math.nan)
        if k.compute_ratio is not None:
            low, ratio, high = k.compute_ratio
            speed = _ratio_cell(ratio, (low, high))
        wrong = TableCell(number=math.nan)
        if k.p_wrong is not None:
            wrong = TableCell(f"{k.p_wrong:.2g}", number=k.p_wrong)
        rows.append(
            row(
                words.shorten(k.variant, NAME),
                TableCell(k.region, notes=alone, style="strong"),
                number_cell(k.delta_a, k.delta_a_interval, words.signed),
                speed,
                wrong,
            )
        )
    figure = Figure(svg_element(svg, "knobs", alt), caption, "Knob map", "knob-map.png")
    return [BlockGroup([figure, ReportTable("The same in numbers", columns(*head), rows)], "knobs")]


# -- the rest -------------------------------------------------------------------------------------


def _chart(picture: bytes | None) -> list[Block]:
    """The place of the interactive chart, with a picture for readers without scripts."""
    if picture is None:
        return [Paragraph("There is nothing to draw yet.")]
    about = "Curves of all variants"
    caption = (
        "The mean of each variant's seeds. Filled points were fitted: those in the first half of "
        "a run's compute, where there are enough of them. Hollow ones were held out. The line is "
        "the median, its dashed part the forecast; the band holds the true mean with "
        f"{words.percent(LEVEL)} probability. (The tables are fitted on all points.) A name below "
        "the chart shows and hides its curve."
    )
    return [Figure(svg_element(picture, "static", about), caption, about, "curves.png", "chart")]


def _efficiency(a: float, total: int, shown: int, picture: bytes | None) -> list[Block]:
    if picture is None:
        return []
    about = f"Efficiency with the ceiling fixed at {a:.3f}"
    few = f"{shown} of {total} variants, which can have it. " if shown < total else ""
    caption = (
        f"Every run refitted with A fixed at {words.score(a)}, the mean of the median ceilings of "
        f"all fitted runs, identified or not. {few}{page.EFFICIENCY} Slopes can be compared "
        "between variants of equal ceiling only."
    )
    figure = Figure(svg_element(picture, "efficiency", about), caption, about)
    return page.pictures([figure], "Efficiency")


def _downstream(data: StudyReportData) -> list[Block]:
    """How each downstream set followed validation, over the runs of each variant."""
    variant = {each.member.name: each.member.variant for each in data.findings}
    groups: dict[tuple[str, str], list[Any]] = {}
    for record in filter(None, data.records):
        for each in record.trackings:
            groups.setdefault((each.name, variant[record.name]), []).append(each)
    if not groups:
        return []
    rows = []
    for (name, of), found in groups.items():
        known = [t for t in found if t.slope is not None and t.interval is not None]
        rate = TableCell("none", number=math.nan)
        if known:
            mean = math.fsum(t.slope for t in known) / len(known)
            # Independent runs: the half-widths add up as squares.
            half = math.sqrt(math.fsum(((t.interval[1] - t.interval[0]) / 2) ** 2 for t in known))
            ends = mean - half / len(known), mean + half / len(known)
            rate = number_cell(mean, ends, "{:.2f}".format)
        stalled = sum(t.stalled for t in found)
        follows = sum(t.relation == "follows" for t in found)
        last = math.fsum(t.downstream[1] for t in found) / len(found)
        validation = math.fsum(t.validation[1] for t in found) / len(found)
        rows.append(
            row(
                words.shorten(of, NAME),
                words.shorten(name, NAME),
                rate,
                TableCell(
                    f"{follows} of {len(found)} runs",
                    flag=f"stalls in {stalled}" if stalled else "",
                ),
                f"{last:.3f}",
                f"{validation:.3f}",
            )
        )
    head = ("Variant", "Set", "Exchange rate", "Follows", "Last score", "Validation score")
    caption = (
        "Downstream score gained per point of validation score: the mean over runs with its "
        f"{words.percent(LEVEL)} interval. The curves are shown with each run"
    )
    return [PageSection("Downstream", [ReportTable(caption, columns(*head), rows)], "down")]


def _differs(data: StudyReportData) -> list[Block]:
    rows = [
        row(words.shorten(variant, NAME), *panels.difference_cells(each))
        for variant, found in data.differs.items()
        for each in found
    ]
    if not rows:
        return [Paragraph("There is no other recipe than the reference.")]
    head = ("Variant", "Key", "Reference", "Variant's value", "Meaning")
    return [ReportTable(f"Against {words.shorten(data.reference, 60)}", columns(*head), rows)]


def _reproduce(data: StudyReportData) -> list[Block]:
    continue_study = shlex.join(["scalerl", "study", data.path])
    commands = shlex.join(["scalerl", "study", "commands", data.path])
    note: list[str | Span] = [
        "The first command continues the study, or shows its table when it is finished. The second "
        "prints a training command for every run that is not finished. To repeat the study "
        "elsewhere, copy ",
        Span("study.toml", "code"), " and ", Span("recipes/", "code"), " of its directory.",
    ]  # fmt: skip
    return [Code(f"{continue_study}\n{commands}"), Paragraph(note, "small")]
