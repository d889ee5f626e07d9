"""The parts of the report page around its tables, as HTML."""

from __future__ import annotations

from collections.abc import Sequence

from scalerl.curves.compare import Comparison
from scalerl.curves.forecast import Forecast, Target
from scalerl.curves.result import Fit
from scalerl.report import pair_tiles, words
from scalerl.report.markup import ceiling, items, text
from scalerl.report.series import Series

#: Runs whose answer is spelled out at the top.
MAX_ANSWERS = 4
#: Alarms spelled out at the top.
MAX_ALARMS = 6
#: What the efficiency re-plot shows.
EFFICIENCY = (
    "F(R) = C_mid^B (R − R_0) / (A − R) is the law solved for compute: a run that follows it has "
    "F = C^B, a straight line of slope B on these axes, and the steeper, the faster."
)
#: Above this many runs their cards are folded.
OPEN_CARDS = 12


def answer(
    forecasts: Sequence[Forecast],
    comparison: Comparison | None,
    common: Sequence[tuple[str, Target]] = (),
) -> str:
    """The headline: alarms, the verdict, and what each run will reach; `common` is the compute of
    two runs to one score."""
    out = []
    alarms = [ahead.fit for ahead in forecasts if ahead.fit.alarm is not None]
    if alarms:
        lines = [f"{words.shorten(f.name, 60)}: {f.alarm}" for f in alarms[:MAX_ALARMS]]
        if len(alarms) > MAX_ALARMS:
            lines.append(f"and {len(alarms) - MAX_ALARMS} more, marked under Runs")
        out.append(f'<div class="alarm" role="alert"><strong>Alarm</strong>{items(lines)}</div>')
    if len(forecasts) == 1:
        out.append(f'<p class="lead">{_headline(forecasts[0])}</p>')
        now, first, *others = facts(forecasts[0])
        out.append(_tiles([now, first, *_measured(forecasts[0]), *others]))
        return "".join(out)
    out.append(f'<p class="lead">{text(_summary(forecasts, comparison))}</p>')
    if comparison is not None and len(comparison.pairs) == 1:
        out.append(_tiles(pair_tiles.tiles(comparison, common)))
    if len(forecasts) <= MAX_ANSWERS:
        out += [f"<p>{_headline(ahead)}</p>" for ahead in forecasts]
    return "".join(out)


def _headline(ahead: Forecast) -> str:
    """The answer in words; the alarm has a banner of its own."""
    return text(" ".join(words.headline(ahead, alarm=False)))


def _summary(forecasts: Sequence[Forecast], comparison: Comparison | None) -> str:
    sentences = []
    if comparison is not None and len(comparison.pairs) == 1:
        level = comparison.fits[0].level
        sentences.append(words.verdict_sentence(comparison.pairs[0], level))
    elif comparison is not None:
        decided = sum(p.verdict != "undecided" for p in comparison.pairs)
        sentences.append(f"{decided} of {len(comparison.pairs)} pairs of runs can be told apart.")
        first = comparison.arms[0].name
        if all(p.winner == first for p in comparison.pairs if first in (p.a, p.b)):
            sentences.append(f"{first} is ahead of every other.")
    known = sum(ahead.fit.identified for ahead in forecasts)
    sentences.append(f"The ceiling is identified for {known} of {len(forecasts)} runs.")
    best = max(forecasts, key=lambda ahead: ahead.next_doubling.median)
    low, high = (words.signed(v) for v in best.next_doubling.interval)
    sentences.append(
        f"The next doubling of compute buys most for {best.fit.name}: "
        f"{words.signed(best.next_doubling.median)} "
        f"({words.percent(best.fit.level)}: {low} to {high})."
    )
    return " ".join(sentences)


def facts(ahead: Forecast) -> list[tuple[str, str, str]]:
    """Four numbers: name, value, and what stands beside it."""
    f = ahead.fit
    unit = words.KIND[f.run.x_kind]
    low, high = ahead.next_doubling.interval
    return [
        ("Now", words.score(ahead.at.median_now), f"at {words.compute(f.end)} {unit}"),
        (
            f"At {words.compute(float(ahead.at.compute[0]))} {unit}",
            words.score(float(ahead.at.median[0])),
            words.to(ahead.at.interval()[0]),
        ),
        ("Ceiling", *ceiling(f)),
        (
            "Next doubling",
            words.signed(ahead.next_doubling.median),
            f"{words.signed(low)} to {words.signed(high)}",
        ),
    ]


def _measured(ahead: Forecast) -> list[tuple[str, str, str]]:
    """The last evaluation after the window beside its forecast, where there is one."""
    end = ahead.measured
    if end is None:
        return []
    name = f"Measured at {words.compute(end.compute)}"
    place = "inside" if end.inside else "outside"
    note = f"{place} the forecast {words.score(end.median)}, {words.to(end.observed)}"
    return [(name, words.score(end.score), note)]


def _tiles(found: Sequence[tuple[str, str, str]]) -> str:
    """Numbers, large: name, value, note."""
    cells = "".join(
        f"<div><dt>{text(name)}</dt><dd><b>{text(value)}</b> <span>{text(note)}</span></dd></div>"
        for name, value, note in found
    )
    return f'<dl class="facts">{cells}</dl>'


def chart_caption(drawn: Sequence[Series], truth: float | None) -> str:
    kinds = " and ".join(dict.fromkeys(words.KIND[s.fit.run.x_kind] for s in drawn))
    level = words.percent(drawn[0].fit.level)
    said = [
        f"Pass rate against {kinds}. Filled points were fitted, hollow ones held out. The line is "
        "the median of the true pass rate, its dashed part the forecast. The band holds the true "
        f"pass rate with {level} probability."
    ]
    if any(len(s.law) for s in drawn):
        said.append(
            "Inside the window the line is the law and the run's departure from it, so it bends "
            "where the points do; “law alone” draws the smooth law, dotted."
        )
    if len(drawn) <= MAX_ANSWERS:
        said += [_early(s.fit) for s in drawn if s.fit.law_begins > s.x[0]]
    if truth is not None:
        said.append(_constructed(drawn, truth))
    return text(" ".join(said))


def _early(fit: Fit) -> str:
    """The early phase, which the law does not describe."""
    return (
        f"Up to {words.compute(fit.law_begins)} {words.KIND[fit.run.x_kind]} (early phase) the "
        f"points of {words.shorten(fit.name, 40)} are probably not the law's yet."
    )


def _constructed(drawn: Sequence[Series], truth: float) -> str:
    """The ceiling of the task, and whether the fits hold it."""
    said = f"The task's ceiling is known by construction: {words.score(truth)}."
    if len(drawn) > 1 or not drawn[0].fit.law.identifiable:
        return said
    low, high = drawn[0].fit.interval("A")
    holds = "holds it" if low <= truth <= high else "misses it"
    return f"{said} The fitted interval, {words.to((low, high))}, {holds}."


def static_alt(fit: Fit) -> str:
    return f"Pass rate against {words.KIND[fit.run.x_kind]} with forecasts"


def figure(svg: str, caption: str) -> str:
    return f"<figure>{svg}<figcaption>{text(caption)}</figcaption></figure>"


def pictures(figures: Sequence[str], heading: str) -> str:
    if not figures:
        return ""
    inside = "".join(figures)
    return (
        f'<section aria-labelledby="pictures"><h2 id="pictures">{heading}</h2>'
        f'<div class="pair">{inside}</div></section>'
    )


def efficiency_alt(found: Comparison) -> str:
    return f"Efficiency of {len(found.fits)} runs with the ceiling fixed at {found.mean_a:.3f}"


def efficiency_caption(found: Comparison, shown: int) -> str:
    few = shown < len(found.fits)
    differ = not few and any(p.paper_verdict == "higher-ceiling" for p in found.pairs)
    which = f"The {shown} runs nearest to the mean ceiling. " if few else ""
    return (
        f"Efficiency re-plot. {which}Every run refitted with A fixed at "
        f"{words.score(found.mean_a)}, the mean of {_ceilings(found.fits)}. {EFFICIENCY} Slopes "
        "can be compared between runs of equal ceiling only"
        + (", which these are not." if differ else ".")
    )


def _ceilings(fits: Sequence[Fit]) -> str:
    """The ceilings that a mean is taken of, as the tables print them."""
    if len(fits) > MAX_ANSWERS:
        return f"the median ceilings of all {len(fits)} runs, identified or not"
    each = []
    for f in fits:
        known = "" if f.identified and f.alarm is None else ", not identified"
        known = ", in decline" if f.alarm is not None else known
        each.append(f"{words.score(f.params['A'])} ({words.shorten(f.name, 40)}{known})")
    return f"the median ceilings {' and '.join(each)}"


def joint_caption(shown: int, total: int) -> str:
    which = f"The {shown} runs with the highest ceilings. " if shown < total else ""
    return (
        f"{which}Where A and C_mid may lie together: half of the posterior inside "
        "the inner contour, 90 % inside the outer. A long diagonal means that the points cannot "
        "tell a high ceiling from a slow climb."
    )


def runs(forecasts: Sequence[Forecast], links: Sequence[Sequence[str]]) -> str:
    """A card a run: the answer, warnings, what the importer did, its figures."""
    folded = len(forecasts) > OPEN_CARDS
    cards = []
    for i, ahead in enumerate(forecasts):
        f = ahead.fit
        # Of a few runs the page has said this at its top.
        body = f"<p>{_headline(ahead)}</p>" if len(forecasts) > MAX_ANSWERS else ""
        if f.warnings:
            body += f"<h4>Warnings</h4>{items(f.warnings)}"
        if f.run.notes:
            body += f"<h4>Import</h4>{items(f.run.notes)}"
        facts = [f"{f.law.name} law, method {f.method}, R_0 {f.r0_source}"]
        facts += [f"read from {f.run.source}"] if f.run.source else []
        body += f'<p class="small">{text("; ".join(facts))}</p>'
        if i < len(links):
            names = "".join(
                f'<a href="{text(n)}">{n.rsplit(".", 1)[-1].upper()}</a> ' for n in links[i]
            )
            body += f'<p class="small">Figure: {names.strip()}</p>'
        name = text(words.shorten(f.name, 100))
        mark = ' <span class="flag">alarm</span>' if f.alarm else ""
        if folded:
            cards.append(f'<details class="card"><summary>{name}{mark}</summary>{body}</details>')
        else:
            cards.append(f'<article class="card"><h3>{name}{mark}</h3>{body}</article>')
    return "".join(cards)


def command(line: str | None) -> str:
    if line is None:
        return ""
    return (
        '<section aria-labelledby="command"><h2 id="command">Made with</h2>'
        f"<pre><code>{text(line)}</code></pre></section>"
    )
