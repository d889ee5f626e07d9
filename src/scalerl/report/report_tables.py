"""The tables of a report on runs: fitted laws, forecasts, targets and verdicts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scalerl.curves.compare import Comparison, Pair
from scalerl.curves.forecast import Forecast
from scalerl.curves.result import Fit
from scalerl.curves.verdict import VERDICT_MEANINGS, VERDICT_WORDS
from scalerl.report import words
from scalerl.report.blocks import Block, Bullets, Details, Inline, PageSection, Paragraph, Span
from scalerl.report.series import Series
from scalerl.report.table import ReportTable, TableCell, columns, number_cell, row

#: Pairs shown before the rest is folded away.
MAX_PAIRS = 12
#: Characters of a run's name in a table.
NAME = 60


def parameters(drawn: Sequence[Series]) -> ReportTable:
    """The fitted law of each run."""
    level = words.percent(drawn[0].fit.level)
    head = ("Run", "Points", "Window", "Ceiling A", "B", "C_mid", "RMSE", "Ceiling by a power law")
    rows = []
    for s in drawn:
        f = s.fit
        rows.append(
            row(
                words.shorten(f.name, NAME),
                str(len(f.points)),
                TableCell(
                    f"{words.compute(f.window[0])} to {words.compute(f.window[1])}",
                    words.KIND[f.run.x_kind],
                    number=f.end,
                ),
                TableCell(
                    *words.ceiling_and_range(f),
                    number=f.params["A"] if f.identified else math.nan,
                ),
                _parameter(f, "B"),
                _parameter(f, "C_mid"),
                f"{f.rmse:.4f}",
                "" if s.power is None else f"{s.power.A:.3f}",
            )
        )
    return ReportTable(f"Fitted law, with {level} intervals", columns(*head), rows)


def _parameter(f: Fit, name: str) -> TableCell:
    if name not in f.params:
        return TableCell()
    # The law does not describe a run in decline: its parameters would mislead.
    if f.alarm is not None:
        return TableCell(detail="run in decline", number=math.nan)
    if name != "C_mid":
        return number_cell(f.params[name], f.interval(name), "{:.2f}".format)
    value, (low, high) = f.params[name], f.interval(name)
    top = "open" if high == float("inf") else words.compute(high)
    return TableCell(words.compute(value), f"{words.compute(low)} to {top}", number=value)


def forecasts(found: Sequence[Forecast]) -> list[ReportTable]:
    """Scores ahead; the last evaluation after each window; the targets that were asked for."""
    level = words.percent(found[0].fit.level)
    head = ("Run", "At", "True pass rate", "Range of one evaluation", "Gain of the next doubling")
    rows = []
    for ahead in found:
        healthy = ahead.fit.alarm is None
        bought = ahead.next_doubling.median if healthy else math.nan
        gain = TableCell(*words.gain_and_range(ahead), number=bought)
        seen, true = ahead.at.interval(observed=True), ahead.at.interval()
        for i, c in enumerate(ahead.at.compute):
            rows.append(
                row(
                    words.shorten(ahead.fit.name, NAME),
                    _amount(float(c), ahead),
                    number_cell(float(ahead.at.median[i]), true[i], words.score),
                    words.to(seen[i]),
                    # The gain is one number of the run, however many amounts were asked for.
                    gain if i == 0 else TableCell(number=bought),
                )
            )
    out = [
        ReportTable(f"Forecasts, with {level} intervals", columns(*head), rows),
        *_measured(found),
    ]
    targets = [
        row(
            words.shorten(ahead.fit.name, NAME),
            f"{t.score:g}",
            f"{t.probability:.2f}",
            number_cell(t.median, t.interval, words.compute),
        )
        for ahead in found
        for t in ahead.targets
    ]
    if targets:
        out.append(
            ReportTable("Targets", columns("Run", "Score", "Probability", "Compute"), targets)
        )
    return out


def _amount(compute: float, ahead: Forecast) -> TableCell:
    return TableCell(words.compute(compute), words.KIND[ahead.fit.run.x_kind], number=compute)


def _measured(found: Sequence[Forecast]) -> list[ReportTable]:
    """The last evaluation after each window and its forecast, where there is one."""
    level = words.percent(found[0].fit.level)
    head = ("Run", "At", "Measured", "Forecast", "Range of one evaluation", "Measured value is")
    rows = []
    for ahead in found:
        end = ahead.measured
        if end is None:
            continue
        sampling = "" if end.sampling is None else f"by samples: {words.to(end.sampling)}"
        rows.append(
            row(
                words.shorten(ahead.fit.name, NAME),
                _amount(end.compute, ahead),
                TableCell(words.score(end.score), sampling, number=end.score),
                number_cell(end.median, end.interval, words.score),
                words.to(end.observed),
                "inside" if end.inside else TableCell("outside", style="strong"),
            )
        )
    title = f"Last evaluation after the fitted window, with {level} intervals"
    return [ReportTable(title, columns(*head), rows)] if rows else []


def comparison(found: Comparison | None) -> list[Block]:
    """The verdict on each pair, the first few open and the rest folded."""
    if found is None:
        return []
    shown: list[Block] = [_pairs(found, found.pairs[:MAX_PAIRS])]
    rest = found.pairs[MAX_PAIRS:]
    if rest:
        shown.append(Details(f"{len(rest)} more pairs", [_pairs(found, rest)]))
    shown.append(verdict_meanings())
    if len(found.arms) <= MAX_PAIRS:
        each = ", ".join(
            f"{words.shorten(arm.name, 44)} {words.compared_ceiling(arm)}" for arm in found.arms
        )
        shown.append(Paragraph(f"Ceilings as compared: {each} ({words.COMPARED}).", "small"))
    return [PageSection("Comparison", shown, "compare")]


def verdict_meanings() -> Details:
    """The four verdicts and what each means, folded: a <details> element opens by key as well."""
    items: list[Inline] = [
        [Span(VERDICT_WORDS[name], "strong"), f": {meaning}"]
        for name, meaning in VERDICT_MEANINGS.items()
    ]
    return Details("What the verdicts mean", [Bullets(items)], "meanings")


def _pairs(found: Comparison, pairs: Sequence[Pair]) -> ReportTable:
    level = words.percent(found.fits[0].level)
    head = ("Pair", "Verdict", "Second ceiling minus first", "By the paper's rule")
    rows = []
    for p in pairs:
        rows.append(
            row(
                f"{words.shorten(p.a, 44)}\n{words.shorten(p.b, 44)}",
                TableCell(words.verdict(p), style="strong", notes=tuple(words.pair_details(p))),
                number_cell(p.delta_a, p.delta_a_interval, words.signed),
                words.paper_verdict(p),
            )
        )
    what = "recipes, seeds allowed for" if found.scope == "recipes" else "these runs"
    return ReportTable(f"Verdicts on {what}, with {level} intervals", columns(*head), rows)
