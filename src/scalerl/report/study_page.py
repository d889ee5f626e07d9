"""The report of a study: one page, its Markdown twin, its figures and its numbers.

What it is told is plain: `Study.to_dict()`, the curve of every run, and what its recipes do
differently.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalerl.files import to_json_bytes
from scalerl.report import page, panels, payload, study_pairwise, words
from scalerl.report.html import KINDS, page_files, write_files
from scalerl.report.knob_map import plot_knob_map
from scalerl.report.markup import Keyed, items, table, text, with_range
from scalerl.report.study_curves import chart, small_multiples, variant_curves
from scalerl.report.study_figures import (
    chosen,
    efficiency_lines,
    plot_study_efficiency,
    plot_variants,
)
from scalerl.report.study_report_data import StudyReportData
from scalerl.report.theme import drawing, render, svg_element
from scalerl.text import listed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Verdict → what is said of a variant that won against the reference, and of one that lost.
VERDICTS = {"higher-ceiling": ("higher ceiling", "lower ceiling"), "faster": ("faster", "slower")}
LEVEL = 0.9
#: Runs that are spelled out at the top.
MAX_WARNINGS = 8


def write_study_report(data: StudyReportData, out_dir: str | Path) -> list[Path]:
    """Write report.html, report.md, report.json and the figures; the files written, the page
    first."""
    return write_files(study_files(data), Path(out_dir))


def study_files(data: StudyReportData) -> dict[str, bytes]:
    """What `write_study_report` writes, by name, the page first."""
    heading = data.title or f"Study {words.shorten(Path(data.path).name or data.path, 60)}"
    curves = variant_curves(data.curves)
    by_name = {row["variant"]: row for row in data.rows}
    a, lines = efficiency_lines(data.curves)
    shown = chosen(lines)
    figures: dict[str, Figure] = {}
    if any(len(c.x) for c in curves):
        figures["curves"] = plot_variants(curves)
    if data.knobs:
        figures["knob-map"] = plot_knob_map(data.knobs, data.reference)
    if len(shown) > 1:
        figures["efficiency"] = plot_study_efficiency(shown, a, data.curves[0].run.x_kind)
    content = {"report.json": _numbers(data, heading, a, lines)}
    with drawing("light"):
        content |= {f"{n}.{k}": render(f, k) for n, f in figures.items() for k in KINDS}
    notes = {name: _short_verdict(row) for name, row in by_name.items()}
    parts = {
        "title": text(heading),
        "answer": study_answer(data),
        "knob_map": knob_map_part(data, content.get("knob-map.svg", b"")),
        "table": variants_table(data) + study_pairwise.section(data.rows, data.reference),
        "chart": _chart(content.get("curves.svg")),
        "small_multiples": small_multiples(curves, data.reference, notes),
        "efficiency": _efficiency(a, len(lines), len(shown), content.get("efficiency.svg")),
        "downstream": _downstream(data),
        "differs": _differs(data),
        "inside": panels.section(data.records),
        "again": _again(data),
        "command": page.command(data.command),
        "data": payload.embedded(chart(curves, by_name, LEVEL)),
    }
    return page_files("study.html", parts, content)


def _numbers(data: StudyReportData, heading: str, a: float, lines: Sequence[Any]) -> bytes:
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


def study_answer(data: StudyReportData) -> str:
    warnings = _warnings(data)
    out = ""
    if warnings:
        more = warnings[MAX_WARNINGS:]
        lines = warnings[:MAX_WARNINGS] + ([f"and {len(more)} more, in the tables"] if more else [])
        out += f'<div class="alarm" role="alert"><strong>Warnings</strong>{items(lines)}</div>'
    return out + f'<p class="lead">{text(_summary(data))}</p>'


def _summary(data: StudyReportData) -> str:
    count = len(data.rows)
    done = sum(m["status"] == "done" for m in data.found["members"])
    said = [
        f"{count} variants, {len(data.found['members'])} runs, {done} of them at their end; all "
        f"compared with {data.reference}."
    ]
    for region, phrase in (
        ("ceiling", "move the ceiling"),
        ("speed", "move the speed alone"),
        ("neither", "move neither"),
        ("undecided", "cannot be told yet"),
    ):
        names = [words.shorten(k["variant"], 30) for k in data.knobs if k["region"] == region]
        if names:
            verb = phrase if len(names) > 1 else phrase.replace("move", "moves", 1)
            said.append(f"{listed(names, last=' and ')} {verb}.")
    if not data.knobs:
        said.append("Nothing can be compared yet.")
    return " ".join(said)


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


def variants_table(data: StudyReportData) -> str:
    level = words.percent(LEVEL)
    head = ("Variant", "Runs", "Ceiling A", "B", "C_mid", "Against the reference", "Stability")
    rows = []
    for row in data.rows:
        details = (
            "" if row["words"] == "the reference" else f"<br><small>{text(row['words'])}</small>"
        )
        held = row["half"]
        half = ""
        if held["checked"]:
            said = f"{held['held']} of {held['checked']} half-way forecasts held"
            half = f"<br><small>{said}</small>"
        rows.append(
            (
                text(words.shorten(row["variant"], 40)),
                str(row["seeds"]),
                _ceiling(row),
                _number(row, "B", lambda v: f"{v:.2f}"),
                _number(row, "C_mid", words.compute),
                f"<strong>{text(_short_verdict(row))}</strong>{details}",
                f"{text(row['stability']['state'])}{_unstable(row)}{half}",
            )
        )
    return table(f"Means over the seeds of each variant, with {level} intervals", head, rows)


def _ceiling(row: Mapping[str, Any]) -> str:
    if row["A"] is None:
        return Keyed("", None)
    low, high = row["intervals"]["A"]
    shown = f"{row['A']:.3f}" if row["identified"] else "open"
    return Keyed(with_range(shown, f"{low:.3f}", f"{high:.3f}"), row["A"])


def _number(row: Mapping[str, Any], name: str, show: Any) -> str:
    if row[name] is None:
        return Keyed("", None)
    low, high = row["intervals"][name]
    return Keyed(with_range(show(row[name]), show(low), show(high)), row[name])


def _unstable(row: Mapping[str, Any]) -> str:
    return "".join(
        f"<br><small>seed {text(seed)}: {text(_since(found))}</small>"
        for seed, found in row["stability"]["seeds"].items()
        if found["state"] == "unstable"
    )


def _short_verdict(row: Mapping[str, Any]) -> str:
    verdict, winner = row["verdict"], row["winner"]
    if verdict is None:
        return "nothing to compare yet"
    if winner is not None and verdict in VERDICTS:
        return VERDICTS[verdict][winner != row["variant"]]
    return {"same": "no difference"}.get(verdict, str(verdict))


def knob_map_part(data: StudyReportData, svg: bytes) -> str:
    if not data.knobs:
        return "<p>Nothing can be compared yet.</p>"
    alt = "Knob map: " + "; ".join(f"{k['variant']} {k['region']}" for k in data.knobs)
    drawn = svg_element(svg, "knobs", alt)
    count = len(data.knobs)
    caption = (
        "Each change against the reference, which is where the axes cross. Up: a higher ceiling. "
        "Left: less compute to a score that both have reached. The shape says what it moves, the "
        f"cross holds the truth with {words.percent(LEVEL)} probability in each direction, and "
        f"goes on where it meets the frame. Full marks hold with all {count} comparisons allowed "
        "for (Holm), so that the chance of even one wrong among them is at most 3 %; hollow ones "
        "hold for themselves alone."
    )
    head = ("Knob", "Moves", "Ceiling", "Compute to one score", "P(wrong)")
    rows = [
        (
            text(words.shorten(k["variant"], 40)),
            f"<strong>{text(k['region'])}</strong>"
            + ("" if k["family_wise"] else "<br><small>for itself alone</small>"),
            Keyed(
                with_range(
                    words.signed(k["delta_A"]["median"]),
                    *map(words.signed, k["delta_A"]["interval"]),
                ),
                k["delta_A"]["median"],
            ),
            _ratio(k["speed"]),
            Keyed("", None) if k["p_wrong"] is None else Keyed(f"{k['p_wrong']:.2g}", k["p_wrong"]),
        )
        for k in data.knobs
    ]
    return (
        f'<div class="knobs"><figure data-file="knob-map.png" data-about="Knob map">{drawn}'
        f"<figcaption>{text(caption)}</figcaption></figure>"
        f"{table('The same in numbers', head, rows)}</div>"
    )


def _ratio(speed: Mapping[str, Any] | None) -> str:
    if speed is None:
        return Keyed('<span class="range">no score reached by both</span>', None)
    ratio = speed["compute_ratio"]
    low, high = ratio["interval"]
    return Keyed(
        with_range(f"×{ratio['median']:.2f}", f"{low:.2f}", f"{high:.2f}"), ratio["median"]
    )


# -- the rest -------------------------------------------------------------------------------------


def _chart(picture: bytes | None) -> str:
    """The place of the interactive chart, with a picture for those without scripts."""
    if picture is None:
        return "<p>There is nothing to draw yet.</p>"
    svg = svg_element(picture, "static", "Curves of all variants")
    caption = (
        "The mean of each variant's seeds. Filled points were fitted: those in the first half of "
        "a run's compute, where there are enough of them. Hollow ones were held out. The line is "
        "the median, its dashed part the forecast; the band holds the true mean with "
        f"{words.percent(LEVEL)} probability. (The tables are fitted on all points.) A name below "
        "the chart shows and hides its curve."
    )
    return (
        '<figure class="chart" id="chart" data-file="curves.png" '
        f'data-about="Curves of all variants"><noscript>{svg}</noscript>'
        f"<figcaption>{text(caption)}</figcaption></figure>"
    )


def _efficiency(a: float, total: int, shown: int, picture: bytes | None) -> str:
    if picture is None:
        return ""
    svg = svg_element(picture, "efficiency", f"Efficiency with the ceiling fixed at {a:.3f}")
    few = f"{shown} of {total} variants, which can have it. " if shown < total else ""
    caption = (
        f"Every run refitted with A fixed at {words.score(a)}, the mean of the median ceilings of "
        f"all fitted runs, identified or not. {few}{page.EFFICIENCY} Slopes can be compared "
        "between variants of equal ceiling only."
    )
    figure = page.figure(svg, caption)
    return page.pictures([figure], "Efficiency")


def _downstream(data: StudyReportData) -> str:
    """How each downstream set followed validation, over the runs of each variant."""
    variant = {m.name: m.variant for m in data.curves}
    groups: dict[tuple[str, str], list[Any]] = {}
    for record in filter(None, data.records):
        for each in record.trackings:
            groups.setdefault((each.name, variant[record.name]), []).append(each)
    if not groups:
        return ""
    rows = []
    for (name, of), found in groups.items():
        known = [t for t in found if t.slope is not None and t.interval is not None]
        rate: str = Keyed("none", None)
        if known:
            mean = math.fsum(t.slope for t in known) / len(known)
            # Independent runs: the half-widths add up as squares.
            half = math.sqrt(math.fsum(((t.interval[1] - t.interval[0]) / 2) ** 2 for t in known))
            ends = (f"{mean - half / len(known):.2f}", f"{mean + half / len(known):.2f}")
            rate = Keyed(with_range(f"{mean:.2f}", *ends), mean)
        stalled = sum(t.stalled for t in found)
        flag = f' <span class="flag">stalls in {stalled}</span>' if stalled else ""
        follows = sum(t.verdict == "follows" for t in found)
        last = math.fsum(t.downstream[1] for t in found) / len(found)
        beside = math.fsum(t.validation[1] for t in found) / len(found)
        rows.append(
            (
                text(words.shorten(of, 40)),
                text(words.shorten(name, 40)),
                rate,
                f"{follows} of {len(found)} runs{flag}",
                f"{last:.3f}",
                f"{beside:.3f}",
            )
        )
    head = ("Variant", "Set", "Exchange rate", "Follows", "Last score", "Validation’s")
    caption = (
        "Downstream score bought by one point of validation score, the mean over runs with its "
        f"{words.percent(LEVEL)} interval; the curves stand under each run"
    )
    inside = table(caption, head, rows)
    return f'<section aria-labelledby="down"><h2 id="down">Downstream</h2>{inside}</section>'


def _differs(data: StudyReportData) -> str:
    rows = [
        (
            text(words.shorten(variant, 40)),
            f"<code>{text(d.path)}</code>",
            _value(d.a),
            _value(d.b),
            text(d.meaning),
        )
        for variant, found in data.differs.items()
        for d in found
    ]
    if not rows:
        return "<p>Nothing: the reference stands alone.</p>"
    head = ("Variant", "Key", "Reference", "Here", "Meaning")
    return table(f"Against {text(words.shorten(data.reference, 60))}", head, rows)


def _value(value: object) -> str:
    return text("unset" if value is None else words.shorten(str(value), 60))


def _again(data: StudyReportData) -> str:
    go_on = shlex.join(["scalerl", "study", data.path])
    lines = shlex.join(["scalerl", "study", "commands", data.path])
    return (
        f"<pre><code>{text(go_on)}\n{text(lines)}</code></pre>"
        '<p class="small">The first goes on with the study, or shows its table where it is at its '
        "end; the second prints a training command for every run that is not. <code>study.toml"
        "</code> and <code>recipes/</code> in its directory are all that it takes to repeat it "
        "elsewhere.</p>"
    )
