"""Terminal output: tables of at most 80 columns, in characters that the terminal has."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence

from scalerl.curves.backtest import BacktestResult
from scalerl.curves.compare import Comparison, Pair
from scalerl.curves.forecast import Forecast
from scalerl.curves.identified import NO_GAIN
from scalerl.curves.result import Fit
from scalerl.report import words
from scalerl.report.table import ReportTable, columns
from scalerl.report.table import row as table_row
from scalerl.text import shorten

WIDTH = 80
#: Up to this many runs have their warnings spelled out below the table.
FEW = 6
#: A comparison prints this many pairs, and says how many there are more.
MAX_PAIRS = 40


def wrap(text: str, indent: str = "", first: str | None = None) -> str:
    """Text in lines of at most 80 columns; a word longer than a line is broken.

    >>> wrap("only 7 points", first="warning: ")
    'warning: only 7 points'
    """
    clean = "".join(ch if ch.isprintable() else " " for ch in text)
    start = indent if first is None else first
    return textwrap.fill(clean, WIDTH, initial_indent=start, subsequent_indent=indent)


def _rows(head: Sequence[str], body: Sequence[Sequence[str]], widths: Sequence[int]) -> str:
    """Lines of a table with columns of these widths, the first flush left and the others right."""
    first, *others = head
    heads = columns(first, *(f">{each}" for each in others))
    return ReportTable("", heads, [table_row(*cells) for cells in body]).to_text(widths)


def fit_table(fits: Sequence[Fit]) -> str:
    """One row a run: what was fitted, the ceiling where it is identified, B, C_mid and flags.

    >>> from scalerl import fit, load_run
    >>> print(fit_table([fit(load_run("example:paper-8b"))]).splitlines()[0].split()[0])
    run
    """
    level = fits[0].level if fits else 0.9
    head = ("run", "x", "n", "end", f"A [{words.percent(level)}]", "B", "C_mid", "rmse", "")
    body = []
    for f in fits:
        flags = ("!" if f.alarm else "") + ("*" if f.warnings else "")
        body.append(
            (
                f.name,
                words.SHORT_KIND[f.run.x_kind],
                str(len(f.points)),
                words.compute(f.end),
                _ceiling(f),
                _parameter(f, "B"),
                _parameter(f, "C_mid"),
                f"{f.rmse:.3f}",
                flags,
            )
        )
    # 9 columns and 8 spaces between: the run's name has what is left of 80.
    table = _rows(head, body, (17, 6, 5, 5, 20, 5, 5, 5, 2))
    return "\n".join([table, *_notes(fits)])


def _notes(fits: Sequence[Fit]) -> list[str]:
    """What the flags stand for: in full for a few runs, else what kind of thing they are."""
    if len(fits) <= FEW:
        of = [f"{shorten(f.name, 30)}: " if len(fits) > 1 else "" for f in fits]
        lines = [("!", f"{n}{f.alarm}") for n, f in zip(of, fits, strict=True) if f.alarm]
        lines += [("*", n + w) for n, f in zip(of, fits, strict=True) for w in f.warnings]
        return [wrap(line, "  ", f"{sign} ") for sign, line in lines]
    notes = []
    if any(f.alarm for f in fits):
        notes.append("! alarm: the run departs from its own forecast")
    if any(f.warnings for f in fits):
        notes.append("* has warnings (--json has them)")
    return notes


def _ceiling(fit: Fit) -> str:
    if fit.alarm is not None:
        return "none: in decline"
    if fit.no_gain >= NO_GAIN:
        return "no gain seen"
    if not fit.identified:
        return "not identified" if "A" in fit.params else "none"
    return f"{fit.params['A']:.3f} {words.span(fit.interval('A'))}"


def _parameter(fit: Fit, name: str) -> str:
    value = fit.params.get(name)
    if value is None:
        return "-"
    if name != "C_mid":
        return f"{value:.2f}"
    # The column has room for five characters.
    shorter = (words.compute(value), f"{value:.2g}", f"{value:.1g}")
    return next((text for text in shorter if len(text) <= 5), f"{value:.0e}")


def forecast_table(forecasts: Sequence[Forecast]) -> str:
    """A block a run: scores ahead, targets, the next doubling, advice, and any alarm."""
    return "\n\n".join(_forecast(ahead) for ahead in forecasts)


def _forecast(ahead: Forecast) -> str:
    f = ahead.fit
    level = words.percent(f.level)
    lines = [shorten(f.name, WIDTH)]
    if f.alarm is not None:
        lines.append(wrap(f.alarm, "  ", "  ! ALARM "))
    lines += [wrap(said, "  ", "  ! ") for said in words.past_alarms(f)]
    lines += [wrap(said, "  ", "  ") for said in [words.breaks(f)] if said]
    head = (f"  at {words.KIND[f.run.x_kind]}", "score", f"{level} true", f"{level} observed")
    body = [(f"  {at}", *others) for at, *others in words.prediction_rows(ahead.at)]
    lines.append(_rows(head, body, (30, 7, 17, 17)))
    lines += [wrap(said, "  ", "  ") for said in words.if_healthy(ahead)]
    gain = ahead.next_doubling
    bought = f"{words.signed(gain.median)} {words.span(gain.interval, words.signed)}"
    if f.alarm is not None:
        bought = ", ".join(words.NO_NUMBER)
    lines.append(f"  next doubling, to {words.compute(gain.compute)}: {bought}")
    lines += [wrap(said, "  ", "  ") for said in words.measured(ahead)]
    for t in ahead.targets:
        lines.append(
            f"  score {t.score:g}: probability {t.probability:.2f}, "
            f"compute {words.compute(t.median)} {words.span(t.interval, words.compute)}"
        )
    lines.append(wrap(words.ceiling_in_words(f), "  ", "  "))
    if ahead.recommendation is not None:
        r = ahead.recommendation
        lines.append(wrap(f"{r.action}: {r.reason}", "  ", "  advice: "))
    return "\n".join(lines)


def comparison_table(comparison: Comparison) -> str:
    """Every pair: our verdict in words, the difference of ceilings, the paper's verdict."""
    what = "recipes" if comparison.scope == "recipes" else "runs"
    lines = [f"{len(comparison.arms)} {what}, by ceiling"]
    for i, arm in enumerate(comparison.arms):
        note = words.compared_ceiling(arm)
        count = f" ({len(arm.fits)} runs)" if len(arm.fits) > 1 else ""
        lines.append(f"{i + 1:4d}  {shorten(arm.name + count, 52):52s}  {note}")
    if any(arm.prior is not None for arm in comparison.arms):
        lines.append(wrap(f"({words.COMPARED})", "      "))
    for pair in comparison.pairs[:MAX_PAIRS]:
        lines += ["", *_pair(pair)]
    if len(comparison.pairs) > MAX_PAIRS:
        lines += ["", f"… and {len(comparison.pairs) - MAX_PAIRS} more pairs (--json has them)"]
    return "\n".join(lines)


def _pair(pair: Pair) -> list[str]:
    out = [
        f"{shorten(pair.a, 37)} / {shorten(pair.b, 37)}",
        wrap(words.verdict(pair), " " * 11, "  verdict: "),
        f"  difference of ceilings, second minus first: {words.signed(pair.delta_a)} "
        f"{words.span(pair.delta_a_interval, words.signed)}",
        wrap(words.paper_verdict(pair), " " * 11, "  paper's rule: "),
    ]
    return out + [wrap(line, "  ", "  ") for line in words.pair_details(pair)]


def backtest_table(backtest: BacktestResult) -> str:
    """Every method on all runs, then per class of run and fraction, then per source."""
    sections = [("all runs", backtest.summary())]
    by_class = backtest.summary("run_class")
    classes = sorted({row["run_class"] for row in by_class})
    for name in classes:
        # The section of one class alone would repeat that of all runs.
        if len(classes) > 1:
            sections.append((name, [r for r in by_class if r["run_class"] == name]))
        rows = backtest.summary("fraction", run_class=name)
        for fraction in sorted({row["fraction"] for row in rows}):
            title = f"{name}, fitted on the first {words.percent(fraction)}"
            sections.append((title, [r for r in rows if r["fraction"] == fraction]))
    rows = backtest.summary("run_class", "source")
    sources = sorted({(row["run_class"], row["source"]) for row in rows})
    if len({source for _, source in sources}) > 1:
        for name, source in sources:
            found = [r for r in rows if (r["run_class"], r["source"]) == (name, source)]
            sections.append((f"{name}, source {source or '-'}", found))
    head = ("", "tasks", "med.err", "crps", "skill", "in 50 %", "in 90 %", "width")
    widths = (18, 6, 8, 8, 7, 8, 8, 8)
    body = []
    for _, found in sections:
        for each in found:
            name, *cells = words.method_cells(each, no_skill="-")
            body.append((f"  {name}", *cells, f"{each['width90']:.3f}"))
    top, rule, *lines = _rows(head, body, widths).splitlines()
    out = [top, rule]
    for title, found in sections:
        out.append(shorten(title, WIDTH))
        out += [lines.pop(0) for _ in found]
    out += [wrap(line, "  ", "skipped: ") for line in backtest.skipped]
    return "\n".join(out)


def say(text: str) -> None:
    """Print it, in the characters that stdout has."""
    print(printable(text))


def printable(text: str, encoding: str | None = None) -> str:
    """The text as a terminal of this encoding (by default that of stdout) can show it; a stream
    without one, such as a string in memory, takes anything.

    >>> printable("ΔA of a…b", "ascii")
    'dA of a~b'
    """
    coding = encoding or getattr(sys.stdout, "encoding", None)
    if coding is None:
        return text
    try:
        text.encode(coding)
    except (UnicodeEncodeError, LookupError):
        plain = text.replace("Δ", "d").replace("…", "~").replace("·", ".")
        return plain.encode("ascii", "replace").decode("ascii")
    return text
