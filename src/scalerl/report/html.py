"""The report: one HTML page that needs nothing else, figures as files, and the numbers as JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from scalerl.curves.compare import Comparison, comparable, compare
from scalerl.curves.forecast import Forecast, forecast
from scalerl.curves.result import Fit
from scalerl.errors import InputError
from scalerl.files import to_json_bytes
from scalerl.report import page, panels, payload, report_tables, words
from scalerl.report.blocks import (
    Block,
    Figure,
    Heading,
    PageSection,
    Paragraph,
    Span,
    to_html,
    to_markdown,
)
from scalerl.report.comparison_figures import (
    ceiling_fits,
    comparison_title,
    plot_efficiency,
    plot_runs,
    refit_with_ceiling,
)
from scalerl.report.figures import has_joint, plot_fit, plot_joint
from scalerl.report.files import slugs, write_whole
from scalerl.report.run_record import RunRecord, read_records
from scalerl.report.series import series_of_runs
from scalerl.report.table import escape_html
from scalerl.report.theme import drawing, inline_svg, render

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawn

#: The end of every page.
FOOTER = Paragraph(
    [
        "Law and rules: ",
        Span(
            "The Art of Scaling Reinforcement Learning Compute for LLMs",
            href="https://arxiv.org/abs/2510.13786",
        ),
        ". All numbers: ",
        Span("report.json", href="report.json"),
        ".",
    ]
)
#: Scripts of the page, each after those that it imports.
MODULES = ("base.js", "chart.js", "report.js", "tables.js")
#: Files that the live page uses as well.
SHARED_ASSETS = ("base.js", "chart.js", "report.css", "uplot.css", "uplot.js")
#: Runs that get figures of their own as files.
MAX_FIGURES = 12
#: What figures are written as; those of single runs only up to so many runs as PDF, which takes
#: half a second each.
KINDS = ("png", "svg", "pdf")
MAX_PDF = 4
#: Runs in the page's pictures of efficiency and of ceiling and C_mid: one for each colour.
MAX_JOINT = 7
#: Size of the pictures inside the page, in inches: text stays readable on a phone.
SMALL = (5.0, 3.9)


def write_report(
    fits: Sequence[Fit],
    out_dir: str | Path,
    comparison: Comparison | None = None,
    forecasts: Sequence[Forecast] | None = None,
    title: str | None = None,
    command: str | None = None,
    records: Sequence[RunRecord | None] | None = None,
) -> list[Path]:
    """Write report.html, report.md, report.json and the figures into a directory, which is made if
    need be.

    comparison  of these fits; by default made here, where the runs can be compared
    forecasts   of these fits in their order; by default at twice the compute spent
    command     the command line that asked for the report, shown on the page
    records     of the training runs behind the fits, in their order; by default read from where
                the runs were read, None for those that were not trained here

    Returns the files written, the page first.
    """
    return write_files(
        report_files(fits, comparison, forecasts, title, command, records), Path(out_dir)
    )


def report_files(
    fits: Sequence[Fit],
    comparison: Comparison | None = None,
    forecasts: Sequence[Forecast] | None = None,
    title: str | None = None,
    command: str | None = None,
    records: Sequence[RunRecord | None] | None = None,
) -> dict[str, bytes]:
    """What `write_report` writes, by name, the page first."""
    fits = list(fits)
    if not fits:
        raise InputError("a report needs at least one fitted run")
    ahead = [forecast(f) for f in fits] if forecasts is None else list(forecasts)
    if comparison is None:
        comparison = _comparable(fits)
    if records is None:
        records = read_records([f.run for f in fits])
    heading = title or _title(fits)
    drawn = series_of_runs(fits, [each.at.compute.tolist() for each in ahead])
    names = slugs(f.name for f in fits[:MAX_FIGURES])
    content: dict[str, bytes] = {}
    common = page.common_target(ahead, comparison)
    numbers = payload.numbers(ahead, drawn, comparison, heading, command, records)
    numbers["compute_to_target"] = page.common_dict(common)
    content["report.json"] = to_json_bytes(numbers, indent=1)
    truths = [None if one is None else one.ceiling for one in records]
    # One line in the common chart, so only a ceiling that all runs share.
    truth = truths[0] if len(set(truths)) == 1 else None
    kind = fits[0].run.x_kind
    title_of_all = "" if comparison is None else comparison_title(comparison)
    # The picture has one axis of compute; the page lets the reader choose another.
    same = [s for s in drawn if s.fit.run.x_kind == kind]
    if len(same) == 1:
        together = plot_fit(same[0].fit, truth=truths[drawn.index(same[0])])
    else:
        together = plot_runs(same, title=title_of_all, truth=truth)
    kinds = KINDS if len(fits) <= MAX_PDF else KINDS[:2]
    links = [[f"fit-{name}.{each}" for each in kinds] for name in names]
    content |= _figures(fits, truths, links, together, comparison)
    chart = Figure(
        inline_svg(together, "static", f"Pass rate against {words.KIND[kind]} with forecasts"),
        page.chart_caption(drawn, truth),
        "Curves with forecasts",
        "comparison.png" if comparison is not None else f"fit-{names[0]}.png",
        "chart",
    )
    numbers_shown = [*report_tables.forecasts(ahead), report_tables.parameters(drawn)]
    blocks: list[Block] = [
        *page.answer(ahead, comparison, common),
        PageSection("Curves", [chart], "curves"),
        PageSection("Numbers", numbers_shown, "numbers"),
        *report_tables.comparison(comparison),
        *_pictures(fits, comparison),
        PageSection("Runs", [page.runs(ahead, links)], "runs"),
        *panels.section(records),
        PageSection("How to read this", [Paragraph(page.HOW_TO_READ)], "read"),
        *page.command(command),
    ]
    # The chart is read first where the tables have their forecasts.
    at = [float(each.at.compute[0]) for each in ahead]
    return page_files(heading, blocks, payload.chart(drawn, fits[0].level, at, truth), content)


def page_files(
    title: str, blocks: Sequence[Block], data: Mapping[str, Any], content: Mapping[str, bytes]
) -> dict[str, bytes]:
    """The page and its Markdown twin, then the files of `content`: file name -> bytes. `data` is
    that of the interactive chart."""
    document = Template(asset("template.html")).substitute(
        title=escape_html(title),
        main=to_html(blocks),
        footer=FOOTER.to_html(),
        data=payload.embedded(data),
        css=asset("uplot.css") + asset("report.css"),
        js=scripts(),
    )
    twin = to_markdown([Heading(title, 1), *blocks, FOOTER]) + "\n"
    return {
        # Names of runs may hold half of a surrogate pair, which UTF-8 cannot write.
        "report.html": document.encode("utf-8", "backslashreplace"),
        "report.md": twin.encode("utf-8", "backslashreplace"),
        **content,
    }


def write_files(content: Mapping[str, bytes], out: Path) -> list[Path]:
    """Write the first last: where the page is there, all it links to is there."""
    first, *others = content
    for name in [*others, first]:
        write_whole(out / name, content[name])
    return [out / name for name in content]


def asset(name: str) -> str:
    """A file of the page's style and scripts."""
    return (files("scalerl.report") / "assets" / name).read_text(encoding="utf-8")


def scripts() -> str:
    """The page's scripts as one, so that the page needs no other file.

    The modules are joined in the order of their imports, inside one function: their names stay
    apart from those of the page. uPlot's licence asks that its notice goes with every copy.
    """
    modules = "".join(asset(name) for name in MODULES)
    joined = re.sub(r"^import .*\n|^export (?=\w)", "", modules, flags=re.MULTILINE)
    notice = asset("uplot-licence.txt").replace("*/", "")
    body = f'(function () {{\n"use strict";\n{joined}}})();\n'
    return f"/*\n{notice}*/\n{asset('uplot.js')}\n{body}"


def _title(fits: Sequence[Fit]) -> str:
    if len(fits) == 1:
        return f"Forecast of {words.shorten(fits[0].name, 80)}"
    if len(fits) == 2:
        return " and ".join(words.shorten(f.name, 40) for f in fits)
    return f"Forecasts of {len(fits)} runs"


def _comparable(fits: Sequence[Fit]) -> Comparison | None:
    """A comparison where one makes sense: of one law by one method on one kind of compute."""
    alike = len({f.method for f in fits}) == 1
    return compare(fits) if alike and comparable(fits) else None


def _figures(
    fits: Sequence[Fit],
    truths: Sequence[float | None],
    links: Sequence[Sequence[str]],
    together: Drawn,
    found: Comparison | None,
) -> dict[str, bytes]:
    """File name -> content of every figure."""
    made: list[tuple[Sequence[str], Drawn]] = [
        (names, plot_fit(fit, truth=truth))
        # Not strict: only the first MAX_FIGURES runs have names of files.
        for fit, truth, names in zip(fits, truths, links, strict=False)
    ]
    if found is not None:
        for name, figure in (("comparison", together), ("efficiency", plot_efficiency(found))):
            made.append(([f"{name}.{kind}" for kind in KINDS], figure))
    with drawing("light"):
        return {
            name: render(figure, name.rpartition(".")[2])
            for names, figure in made
            for name in names
        }


def _near_mean(comparison: Comparison) -> Comparison:
    """The runs with ceilings nearest to the mean: the slopes of others cannot be compared."""
    a = comparison.mean_a
    suited = [f for f in comparison.fits if ceiling_fits(f, refit_with_ceiling(f, a))]
    # Where no run suits, the nearest are still better than no picture.
    near = sorted(suited or comparison.fits, key=lambda f: abs(f.params["A"] - a))[:MAX_JOINT]
    return replace(comparison, fits=tuple(f for f in comparison.fits if f in near))


def _pictures(fits: Sequence[Fit], comparison: Comparison | None) -> list[Block]:
    """The efficiency re-plot, and the joint posterior of ceiling and C_mid."""
    out = []
    heading = "Ceiling and C_mid"
    order = {id(f): i for i, f in enumerate(fits)}
    ranked = list(fits) if comparison is None else [f for arm in comparison.arms for f in arm.fits]
    if comparison is not None:
        heading = "Efficiency and ceiling"
        few = comparison
        if len(ranked) > MAX_JOINT:
            few = _near_mean(comparison)
        alt = f"Efficiency of {len(few.fits)} runs with the ceiling fixed at {few.mean_a:.3f}"
        svg = inline_svg(plot_efficiency(few, size=SMALL), "efficiency", alt)
        out.append(Figure(svg, page.efficiency_caption(comparison, len(few.fits)), alt))
    kind = fits[0].run.x_kind
    shown = [f for f in ranked if has_joint(f) and f.alarm is None and f.run.x_kind == kind]
    shown = sorted(shown[:MAX_JOINT], key=lambda f: order.get(id(f), 0))
    if shown:
        # The colours of the chart, unless these repeat.
        colours = [order.get(id(f), 0) for f in shown] if len(fits) <= MAX_JOINT else None
        picture = plot_joint(shown[0] if len(fits) == 1 else shown, size=SMALL, colours=colours)
        alt = "Joint posterior of ceiling and C_mid"
        svg = inline_svg(picture, "joint", alt)
        out.append(Figure(svg, page.joint_caption(len(shown), len(fits)), alt))
    return page.pictures(out, heading)
