"""The page of a plan: report.html, its Markdown twin, the picture and the numbers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from scalerl.files import to_json_bytes
from scalerl.report import page, payload
from scalerl.report.blocks import Block, Code, Figure, PageSection, Paragraph, Tile, Tiles
from scalerl.report.html import KINDS, page_files, write_files
from scalerl.report.plan_figure import plot_plan
from scalerl.report.table import ReportTable, TableCell, columns, number_cell, row
from scalerl.report.theme import drawing, render, svg_element

if TYPE_CHECKING:
    from scalerl.planner.answer import PlannedStep
    from scalerl.planner.plan import Plan
    from scalerl.planner.timeline import Timeline

#: Probability of the intervals of a plan.
LEVEL = 0.9
ABOUT = "Placements with their step times, the curve against days, and three simulated steps"
CAPTION = (
    "Left: seconds of a step by placement, median and 90 %, with the shares of time that "
    "generators and trainer wait. Right: what the proposed placement reaches by day. Below: three "
    "steps of it, as simulated."
)


def write_plan_report(
    plan: Plan, timeline: Timeline, out_dir: str | Path, command: str | None
) -> list[Path]:
    """Write report.html, report.md, report.json and the picture; the files, the page first."""
    figure = plot_plan(plan, timeline)
    with drawing("light"):
        content = {f"plan.{kind}": render(figure, kind) for kind in KINDS}
    content = {"report.json": to_json_bytes(plan.to_dict(), indent=1), **content}
    svg = svg_element(content["plan.svg"], "plan", ABOUT)
    blocks: list[Block] = [
        Tiles(_tiles(plan)),
        PageSection("Picture", [Figure(svg, CAPTION, ABOUT, "plan.png")], "picture"),
        PageSection("Placements", [_table(plan)], "placements"),
        PageSection("In words", [Code(str(plan))], "words"),
        PageSection("What is assumed", [Paragraph(line) for line in plan.costs.lines()], "assumed"),
        *page.command(command),
    ]
    files = page_files(f"Plan of {plan.recipe.name}", blocks, payload.chart([], LEVEL), content)
    return write_files(files, Path(out_dir))


def _tiles(plan: Plan) -> list[Tile]:
    best = plan.best
    low, mid, high = best.interval()
    found: list[Tile] = [
        ("Placement", best.placement.split, best.placement.schedule_text),
        ("Step", f"{mid:.3g} s", f"90 %: {low:.3g} to {high:.3g}"),
        ("Staleness", f"{np.median(best.staleness):.1f}", "steps, in the mean"),
    ]
    if plan.days is not None:
        low, mid, high = plan.steps_in(plan.days)
        found.append(
            (f"Steps in {plan.days:.3g} days", f"{mid:,.0f}", f"{low:,.0f} to {high:,.0f}")
        )
    if plan.outlook is not None and plan.outlook.reached is not None:
        low, mid, high = plan.outlook.reached
        found.append(("Pass rate then", f"{mid:.3f}", f"90 %: {low:.3f} to {high:.3f}"))
    return found


def _table(plan: Plan) -> ReportTable:
    heads = columns(
        "Split", "Schedule", ">Step, s", ">Generators wait", ">Trainer waits", ">Staleness",
        ">Device-hours",
    )  # fmt: skip
    cells = [_row(step, step is plan.best) for step in plan.steps]
    return ReportTable("Placements, the fastest first", heads, cells)


def _row(step: PlannedStep, best: bool) -> tuple[TableCell, ...]:
    low, mid, high = step.interval()
    return row(
        TableCell(step.placement.split, flag="proposed" if best else ""),
        step.placement.schedule_text,
        number_cell(mid, (low, high), "{:.3g}".format),
        f"{np.median(step.generator_wait):.0%}",
        f"{np.median(step.trainer_wait):.0%}",
        f"{np.median(step.staleness):.1f}",
        f"{step.device_hours:.3g}",
    )
