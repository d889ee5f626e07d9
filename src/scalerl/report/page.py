"""The parts of a report on runs around its tables: the answer, captions, and a card per run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from scalerl.curves.compare import Comparison, Pair
from scalerl.curves.forecast import Forecast, Target, reach
from scalerl.curves.result import Fit
from scalerl.curves.verdict import VERDICT_WORDS
from scalerl.report import words
from scalerl.report.blocks import (
    Alert,
    Block,
    BlockGroup,
    Bullets,
    Code,
    Details,
    Figure,
    Heading,
    Inline,
    PageSection,
    Paragraph,
    Span,
    Tile,
    Tiles,
)
from scalerl.report.series import Series

#: Runs with their answers spelled out at the top.
MAX_ANSWERS = 4
#: Characters of a name in a tile: a tile is a quarter of the page wide.
TILE_NAME = 24
#: Alarms spelled out at the top.
MAX_ALARMS = 6
#: What the efficiency re-plot shows.
EFFICIENCY = (
    "F(R) = C_mid^B (R − R_0) / (A − R) is the law solved for compute: a run that follows it has "
    "F = C^B, a straight line of slope B on these axes, and the steeper, the faster."
)
#: The last section of a report on runs.
HOW_TO_READ = (
    "The law is a sigmoid in log compute: a run starts at R_0, has made half of its gain at C_mid, "
    "climbs more steeply the larger B is, and approaches the ceiling A. An interval holds the true "
    "value with the stated probability if the run stays healthy. “Not identified” means that the "
    "points allow too many ceilings to quote one: more compute is needed. The power law is shown "
    "as a warning: it describes the same points and often promises more."
)
#: Above this many runs their cards are folded.
OPEN_CARDS = 12


def answer(
    forecasts: Sequence[Forecast],
    comparison: Comparison | None,
    common: Sequence[tuple[str, Target]] = (),
) -> list[Block]:
    """The top of the page: alarms, the verdict, and what each run will reach; `common` is the
    compute of two runs to one score."""
    out: list[Block] = []
    alarms = [ahead.fit for ahead in forecasts if ahead.fit.alarm is not None]
    if alarms:
        lines = [f"{words.shorten(f.name, 60)}: {f.alarm}" for f in alarms[:MAX_ALARMS]]
        if len(alarms) > MAX_ALARMS:
            lines.append(f"and {len(alarms) - MAX_ALARMS} more, marked under Runs")
        out.append(Alert("Alarm", lines))
    if len(forecasts) == 1:
        # What was measured stands beside its forecast, which is the second tile.
        now, first, *others = facts(forecasts[0])
        tiles = [now, first, *_measured(forecasts[0]), *others]
        return [*out, Paragraph(_headline(forecasts[0]), "lead"), Tiles(tiles)]
    out.append(Paragraph(_summary(forecasts, comparison), "lead"))
    if comparison is not None and len(comparison.pairs) == 1:
        out.append(Tiles(pair_tiles(comparison, common)))
    if len(forecasts) <= MAX_ANSWERS:
        out += [Paragraph(_headline(ahead)) for ahead in forecasts]
    return out


def _headline(ahead: Forecast) -> str:
    """The answer as sentences; the alarm has a box of its own."""
    return " ".join(words.headline(ahead, alarm=False))


def _summary(forecasts: Sequence[Forecast], comparison: Comparison | None) -> str:
    sentences = []
    if comparison is not None and len(comparison.pairs) == 1:
        level = comparison.fits[0].level
        sentences.append(words.verdict_sentence(comparison.pairs[0], level))
    elif comparison is not None:
        decided = sum(p.verdict != "undecided" for p in comparison.pairs)
        sentences.append(f"{decided} of {len(comparison.pairs)} pairs of runs are decided.")
        first = comparison.arms[0].name
        if all(p.winner == first for p in comparison.pairs if first in (p.a, p.b)):
            sentences.append(f"{first} is ahead of every other.")
    known = sum(ahead.fit.identified for ahead in forecasts)
    sentences.append(f"The ceiling is identified for {known} of {len(forecasts)} runs.")
    healthy = [ahead for ahead in forecasts if ahead.fit.alarm is None]
    if healthy:
        best = max(healthy, key=lambda ahead: ahead.next_doubling.median)
        value, interval = words.gain_and_range(best)
        sentences.append(
            f"The next doubling of compute buys most for {best.fit.name}: {value} "
            f"({words.percent(best.fit.level)}: {interval})."
        )
    return " ".join(sentences)


def facts(ahead: Forecast) -> list[Tile]:
    """The four main numbers of a forecast."""
    f = ahead.fit
    unit = words.KIND[f.run.x_kind]
    return [
        (
            "Now",
            words.score(ahead.at.median_now),
            f"by the fit, at {words.compute(f.end)} {unit}; {words.now_in_words(f)}",
        ),
        (
            f"At {words.compute(float(ahead.at.compute[0]))} {unit}",
            words.score(float(ahead.at.median[0])),
            words.to(ahead.at.interval()[0]),
        ),
        ("Ceiling", *words.ceiling_and_range(f)),
        ("Next doubling", *words.gain_and_range(ahead)),
    ]


def _measured(ahead: Forecast) -> list[Tile]:
    """The last evaluation after the window and its forecast, where there is one."""
    end = ahead.measured
    if end is None:
        return []
    name = f"Measured at {words.compute(end.compute)}"
    place = "inside" if end.inside else "outside"
    note = f"{place} the forecast {words.score(end.median)}, {words.to(end.observed)}"
    return [(name, words.score(end.score), note)]


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
    return " ".join(said)


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


def pictures(figures: Sequence[Figure], heading: str) -> list[Block]:
    """Figures side by side under a heading; nothing where there are none."""
    return [PageSection(heading, [BlockGroup(figures, "pair")], "pictures")] if figures else []


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


def runs(forecasts: Sequence[Forecast], links: Sequence[Sequence[str]]) -> BlockGroup:
    """A card per run: its forecast, its warnings, how it was read, and its figures."""
    cards: list[Block] = []
    for i, ahead in enumerate(forecasts):
        f = ahead.fit
        title: Inline = [words.shorten(f.name, 100), *([Span("alarm", "flag")] if f.alarm else [])]
        # The answers of a few runs are at the top of the page already.
        said = [Paragraph(_headline(ahead))] if len(forecasts) > MAX_ANSWERS else []
        body = [*said, *_about(f, links[i] if i < len(links) else ())]
        folded = len(forecasts) > OPEN_CARDS
        whole = BlockGroup([Heading(title, 3), *body], "card", "article")
        cards.append(Details(title, body, "card") if folded else whole)
    return BlockGroup(cards, "cards")


def _about(f: Fit, links: Sequence[str]) -> list[Block]:
    """Where the points of a run are from, what to be careful about, and its files."""
    out: list[Block] = []
    for title, lines in (("Warnings", f.warnings), ("Import", f.run.notes)):
        out += [Heading(title, 4), Bullets(lines)] if lines else []
    facts = [f"{f.law.name} law, method {f.method}, R_0 {f.r0_source}"]
    facts += [f"read from {f.run.source}"] if f.run.source else []
    out.append(Paragraph("; ".join(facts), "small"))
    if links:
        spans: list[str | Span] = ["Figure:"]
        for name in links:
            spans += [" ", Span(name.rsplit(".", 1)[-1].upper(), href=name)]
        out.append(Paragraph(spans, "small"))
    return out


def command(line: str | None) -> list[Block]:
    """The command that made the page."""
    return [] if line is None else [PageSection("Command", [Code(line)], "command")]


# -- the tiles of two runs or recipes -------------------------------------------------------------


def common_target(
    forecasts: Sequence[Forecast], comparison: Comparison | None
) -> list[tuple[str, Target]]:
    """The compute of each of two runs to one score: the first target asked that both will probably
    reach, else a score that both have reached. Empty where there is no such score."""
    if comparison is None or len(comparison.pairs) != 1 or len(forecasts) != 2:
        return []
    asked = zip(forecasts[0].targets, forecasts[1].targets, strict=True)
    # A median that is not finite: most futures never reach the target.
    found = next((both for both in asked if all(math.isfinite(t.median) for t in both)), None)
    if found is None:
        score = comparison.pairs[0].speed_score
        if score is None:
            return []
        first, second = (reach(ahead.fit, [score])[0] for ahead in forecasts)
        found = first, second
    return [(ahead.fit.name, t) for ahead, t in zip(forecasts, found, strict=True)]


def pair_tiles(comparison: Comparison, common: Sequence[tuple[str, Target]]) -> list[Tile]:
    """Name, value and note of each number: the verdict, the difference of the ceilings, the ratio
    of compute to one score, and the compute of each run to it."""
    if len(comparison.pairs) != 1:
        return []
    pair = comparison.pairs[0]
    found = [_verdict_tile(pair), _ceilings_tile(pair)]
    if pair.speed is not None and pair.speed_score is not None:
        found.append(_efficiency_tile(pair))
    unit = words.KIND[comparison.fits[0].run.x_kind]
    for name, t in common:
        note = f"{unit} of {_short(name)}, {words.to(t.interval, words.compute)}"
        found.append((f"Compute to {words.score(t.score)}", words.compute(t.median), note))
    return found


def common_dict(common: Sequence[tuple[str, Target]]) -> dict[str, Any] | None:
    """For report.json."""
    if not common:
        return None
    runs = [{"run": name, **t.to_dict()} for name, t in common]
    return {"score": common[0][1].score, "runs": runs}


def _verdict_tile(pair: Pair) -> Tile:
    if pair.verdict == "undecided":
        why = words.verdict(pair).removeprefix("undecided").lstrip(": ")
        return "Verdict", "undecided", why or f"{_short(pair.a)} and {_short(pair.b)}"
    return "Verdict", VERDICT_WORDS[pair.verdict], _short(pair.winner or "")


def _ceilings_tile(pair: Pair) -> Tile:
    """The higher ceiling minus the lower, by the median of the difference."""
    higher, lower, delta, ends = pair.b, pair.a, pair.delta_a, pair.delta_a_interval
    if delta < 0:
        higher, lower, delta, ends = lower, higher, -delta, (-ends[1], -ends[0])
    note = f"{_short(higher)} minus {_short(lower)}, {words.to(ends, words.signed)}"
    return "Difference of ceilings ΔA", words.signed(delta), note


def _efficiency_tile(pair: Pair) -> Tile:
    """Compute of the slower to one score over that of the faster."""
    assert pair.speed is not None and pair.speed_score is not None
    slower, faster, logs = pair.b, pair.a, pair.speed
    # A ratio above 1 is easier to read than one below.
    if logs[1] < 0:
        slower, faster = faster, slower
        logs = (-logs[2], -logs[1], -logs[0])
    low, mid, high = (f"{math.exp(v):.2f}" for v in logs)
    note = f"compute of {_short(slower)} over that of {_short(faster)}, {low} to {high}"
    return f"Efficiency, to {words.score(pair.speed_score)}", f"{mid} ×", note


def _short(name: str) -> str:
    return words.shorten(name, TILE_NAME)
