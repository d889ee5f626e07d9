"""The panels of a training run: its warnings, where its compute went, how its steps went, its
answers, its recipe, and how to reproduce it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from scalerl.recipe.diff import Difference
from scalerl.report import words
from scalerl.report.blocks import (
    Block,
    BlockGroup,
    Bullets,
    Code,
    Details,
    Drawing,
    Heading,
    Inline,
    PageSection,
    Paragraph,
    Span,
)
from scalerl.report.episodes import episode_cards, play_text
from scalerl.report.run_record import MANY, RunRecord
from scalerl.report.small_charts import MAX_BINS, ChartLine, chart
from scalerl.report.table import ReportTable, TableCell, columns, escape_html, row
from scalerl.runs.lines import AnswerSample, EventLine, StepLine

#: Points of a line where many runs share the page.
FEW_BINS = 80
#: Events that are shown of one run.
MAX_EVENTS = 40
#: Parts below this share of a bar are left out: thinner than a pixel.
MIN_SHARE = 0.0005
#: Characters of an answer that are shown.
MAX_ANSWER = 1500
#: What is worth a reader's attention; the rest is how the run went.
ALARMS = ("warning", "lost", "checker", "refused", "failed")

Value = Callable[[StepLine], float | None]
#: Title, and the lines: name and number of a step.
Chart = tuple[str, tuple[tuple[str, Value], ...]]

CHARTS: tuple[Chart, ...] = (
    ("Reward of the batch", (("mean", lambda s: s.reward),)),
    ("Answer length, tokens", (("mean", lambda s: s.length.mean),
                               ("longest", lambda s: s.length.max))),
    ("Cut off or interrupted, share", (("cut off", lambda s: s.truncated),
                                       ("interrupted", lambda s: s.interrupted))),
    ("Entropy, nats", (("mean", lambda s: s.entropy),)),
    ("Staleness, versions", (("mean", lambda s: s.staleness.mean),
                             ("largest", lambda s: s.staleness.max))),
    ("Ratio trainer / generator", (("mean", lambda s: s.ratio.mean),
                                   ("largest", lambda s: s.ratio.max),
                                   ("smallest", lambda s: s.ratio.min))),
    ("Effective sample size, share", (("share", lambda s: s.ess),)),
    ("Gradient norm, before clipping", (("norm", lambda s: s.grad_norm),)),
    ("Prompts without variance, share", (("share", lambda s: s.zero_variance),)),
)  # fmt: skip


def _play(name: str) -> Value:
    """A mean over episodes; None where all have one turn."""
    return lambda s: None if s.play is None else float(getattr(s.play, name))


#: Charts of runs with an environment; that of forks, the last, where there are any.
EPISODE_CHARTS: tuple[Chart, ...] = (
    ("Turns and tool calls of an episode", (("turns", _play("turns")),
                                            ("tool calls", _play("tool_calls")),
                                            ("failed calls", _play("tool_failures")))),
    ("Episodes ended early, share", (("out of turns", _play("out_of_turns")),
                                     ("failed", _play("failed")))),
    ("Time in the environment, seconds", (("of an episode", _play("environment_seconds")),)),
    ("Forks of an episode", (("mean", _play("forks")),)),
)  # fmt: skip

#: Lines of which a stretch of steps shows an end and no mean.
EXTREMES: dict[str, Literal["largest", "smallest"]] = {
    "longest": "largest", "largest": "largest", "smallest": "smallest",
}  # fmt: skip


def section(records: Sequence[RunRecord | None]) -> list[Block]:
    """The panels of all runs that have a record: of one open, of several folded."""
    known = [record for record in records if record is not None]
    if not known:
        return []
    # Hundreds of charts with all points would make a page of many megabytes.
    bins = MAX_BINS if len(known) <= MANY else FEW_BINS
    if len(known) == 1:
        return [PageSection("Inside the run", panels(known[0], bins), "inside")]
    folded = [
        Details([words.shorten(one.name, 100), *_flags(one)], panels(one, bins), "inside")
        for one in known
    ]
    return [PageSection("Inside the runs", folded, "inside")]


def _flags(one: RunRecord) -> list[Span]:
    found = ["stalled"] if any(each.stalled for each in one.trackings) else []
    found += ["warnings"] if any(event.event in ALARMS for event in one.events) else []
    return [Span(each, "flag") for each in found]


def panels(one: RunRecord, bins: int = MAX_BINS) -> list[Block]:
    """Everything about one run; what its record lacks is left out."""
    return [
        *_events(one),
        *(_ledger(one.steps[-1]) if one.steps else []),
        *_charts(one, bins),
        *_episodes(one, bins),
        *_downstream(one, bins),
        *answers_part(one),
        *_recipe(one),
        *_reproduce(one),
    ]


#: A part of a bar: its name, its amount, and its class in the style sheet (colour and hatching).
BarPart = tuple[str, float, str]


def _ledger(step: StepLine) -> list[Block]:
    """Where the compute went, in three bars: the time of generators and trainer, and the tokens."""
    line = step.ledger
    s, w = line.spent, line.wasted
    wasted = w.stale.tokens + w.filtered.tokens + w.failed.tokens
    generators = [
        ("generating", s.generate, "p0"),
        ("loading weights", s.hand_over, "p2"),
        ("waiting", s.generate_wait, "wait"),
    ]
    trainer = [
        ("training", s.train, "p0"),
        (f"waiting for {'checks' if step.play is None else 'environments'}", s.check_wait, "p1"),
        # The record counts that wait as part of the trainer's wait.
        ("waiting for rollouts", s.train_wait - s.check_wait, "wait"),
    ]
    tokens = [
        ("trained on, or in progress", line.generated_tokens - wasted, "p0"),
        ("filtered out", w.filtered.tokens, "p1"),
        ("too stale", w.stale.tokens, "p2"),
        ("failed", w.failed.tokens, "wait"),
    ]
    bars = [
        *_bar("Generators", generators, _hours),
        *_bar("Trainer", trainer, _hours),
        *_bar("Tokens written", tokens, words.compute),
    ]
    apart = [f"validation {_hours(line.validation_seconds)}"]
    if line.lost_device_seconds:
        apart.append(f"lost to crashes {_hours(line.lost_device_seconds)}")
    total = f"{_hours(line.device_seconds)} of training"
    note = f"{total}; not counted in it: {' and '.join(apart)}."
    title = Heading("Where the compute went", 3)
    return [title, BlockGroup(bars, "ledger"), Paragraph(note, "small")]


def _hours(seconds: float) -> str:
    """Device-hours, or smaller.

    >>> _hours(36_000), _hours(90), _hours(2)
    ('10 device-hours', '1.5 device-minutes', '2 device-seconds')
    """
    for unit, size in (("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.3g} device-{unit}"
    return f"{max(seconds, 0.0):.3g} device-seconds"


def _bar(name: str, parts: Sequence[BarPart], show: Callable[[float], str]) -> list[Drawing]:
    """A bar with a legend; nothing where there is no amount."""
    total = sum(max(amount, 0.0) for _, amount, _ in parts)
    if not total > 0:
        return []
    at = 0.0
    pieces, keys, descriptions = [], [], []
    for part, amount, style in parts:
        if amount / total <= MIN_SHARE:
            continue
        width = 1000.0 * amount / total
        # Two units of a part's width are the gap to the next one.
        pieces.append(
            f'<rect class="{style}" x="{at:.1f}" width="{max(width - 2, 1):.1f}" height="26"/>'
        )
        at += width
        share = f"{amount / total:.1%}"
        keys.append(
            f'<li><svg class="swatch" viewBox="0 0 14 14" aria-hidden="true"><rect '
            f'class="{style}" width="14" height="14"/></svg><b>{share}</b> {escape_html(part)} '
            f"<span>{escape_html(show(amount))}</span></li>"
        )
        descriptions.append(f"{part} {share} ({show(amount)})")
    description = f"{name}: {', '.join(descriptions)}"
    drawn = (
        '<figure class="bar"><figcaption aria-hidden="true">'
        f"<b>{escape_html(name)}</b></figcaption>"
        '<svg viewBox="0 0 1000 26" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape_html(description)}">'
        f'{"".join(pieces)}</svg><ul aria-hidden="true">{"".join(keys)}</ul></figure>'
    )
    return [Drawing(drawn, description)]


def _charts(one: RunRecord, bins: int) -> list[Block]:
    if not one.steps:
        return []
    drawn = _drawn(CHARTS, one.steps, bins)
    note = f"Lines are means over stretches of steps, {one.total_steps:,} in all"
    if len(one.steps) < one.total_steps:
        note += f", of which {len(one.steps):,}, evenly picked, were read"
    note += (
        "; bands reach from the smallest to the largest value of a stretch, and longest, largest "
        "and smallest are those of a stretch."
    )
    return [Heading("Steps", 3), drawn, Paragraph(note, "small")]


def _drawn(charts: Sequence[Chart], steps: Sequence[StepLine], bins: int) -> BlockGroup:
    x = np.array([s.step for s in steps], float)
    drawn = []
    for title, lines in charts:
        series = [
            # numpy writes None as nan, which charts leave out.
            ChartLine(name, np.array([value(s) for s in steps], float), EXTREMES.get(name, "mean"))
            for name, value in lines
        ]
        drawn.append(chart(title, x, series, bins))
    return BlockGroup(drawn, "small-charts")


def _episodes(one: RunRecord, bins: int) -> list[Block]:
    """Turns, tools and environments over the steps, and some recorded episodes; nothing where all
    episodes have one turn."""
    plays = [s.play for s in one.steps if s.play is not None]
    if not plays:
        return []
    charts = EPISODE_CHARTS if any(play.forks for play in plays) else EPISODE_CHARTS[:-1]
    return [
        Heading("Episodes", 3),
        _drawn(charts, one.steps, bins),
        *episode_cards(one.episodes),
    ]


def _downstream(one: RunRecord, bins: int) -> list[Block]:
    """Each downstream set and validation in one chart, and how the set followed validation."""
    points = [e for e in one.evals if e.pass_rate is not None]
    sets = {
        name: {step: rate for step, (rate, _) in scores.items()}
        for name, scores in one.downstream.items()
    }
    # Validation at other temperatures is shown like a downstream set.
    for line in points:
        for name, score in (line.temperatures or {}).items():
            if score.pass_rate is not None:
                sets.setdefault(f"temperature {name}", {})[line.step] = score.pass_rate
    if not sets:
        return []
    x = np.array([e.step for e in points], float)
    main = ChartLine("validation", np.array([e.pass_rate for e in points], float))
    drawn = []
    for name, scores in sets.items():
        other = ChartLine(name, np.array([scores.get(e.step) for e in points], float))
        title = f"{words.shorten(name, 40)} and validation"
        drawn.append(chart(title, x, [main, other], bins))
    return [Heading("Downstream", 3), BlockGroup(drawn, "small-charts"), *_trackings(one)]


def _trackings(one: RunRecord) -> list[Block]:
    if not one.trackings:
        return []
    rows = []
    for each in one.trackings:
        rate = TableCell("none")
        if each.slope is not None and each.interval is not None:
            low, high = each.interval
            rate = TableCell(f"{each.slope:.2f}", f"{low:.2f} to {high:.2f}")
        rows.append(
            row(
                words.shorten(each.name, 60),
                TableCell(each.relation, flag="stalls" if each.stalled else ""),
                rate,
                words.to(each.downstream),
                words.to(each.validation),
                str(each.points),
                each.why,
            )
        )
    level = words.percent(one.trackings[0].level)
    head = ("Set", "Validation", "Exchange rate", "Its score", "Validation score", "Points", "Why")
    caption = (
        "How each set followed validation: downstream score gained per point of validation score, "
        f"with {level} intervals that allow for correlation between neighbouring evaluations"
    )
    return [ReportTable(caption, columns(*head), rows)]


def kind_of(answer: AnswerSample) -> str:
    if answer.finish == "interrupted":
        return "interrupted, right" if answer.correct else "interrupted"
    if answer.correct is None:
        return "unscored"
    return "right" if answer.correct else "wrong"


def answers_part(one: RunRecord) -> list[Block]:
    """Some answers of a validation."""
    if one.answers is None:
        return []
    cards: list[Block] = []
    seen = set()
    for answer in one.answers.answers:
        # A prompt is sampled several times, and short answers repeat.
        if answer.set or (answer.prompt, answer.answer) in seen:
            continue  # an answer of a downstream set, or the same answer again
        seen.add((answer.prompt, answer.answer))
        kind = kind_of(answer)
        mark = {"right": "✓", "wrong": "✗"}.get(kind, "◦")
        body: list[Block] = [
            Heading(f"{mark} {kind}", 4),
            Code(_cut(answer.question)),
            Code(_cut(answer.answer)),
            Paragraph(_facts(answer), "small"),
        ]
        cards.append(BlockGroup(body, "card answer", "article"))
    if not cards:
        return []
    return [Heading(f"Answers at step {one.answers.step}", 3), BlockGroup(cards, "answers")]


def _facts(answer: AnswerSample) -> str:
    """What the check found, and of an episode what happened in it."""
    return "; ".join([answer.why, *([play_text(answer.play)] if answer.play else [])])


def _cut(value: str) -> str:
    return value if len(value) <= MAX_ANSWER else value[: MAX_ANSWER - 1] + "…"


def _events(one: RunRecord) -> list[Block]:
    """Warnings first and open; resumes and changes folded."""
    alarms = [e for e in one.events if e.event in ALARMS]
    others = [e for e in one.events if e.event not in ALARMS]
    out: list[Block] = []
    if alarms:
        out += [Heading("Warnings and alarms", 3), _event_list(alarms)]
    # A killed run writes no end, so it cannot be distinguished from one that still runs.
    ended = [e for e in others if e.event == "end"]
    how = f"ended: {ended[-1].reason}" if ended else "not ended: still running, or killed"
    facts = [f"{one.total_steps:,} steps", how]
    facts += [] if alarms else ["no warnings"]
    going = [e for e in others if e.event in ("resume", "branch")]
    times = "once" if len(going) == 1 else f"{len(going)} times"
    facts += [f"resumed or changed {times}"] if going else []
    out.append(Paragraph("; ".join(facts), "small"))
    if going:
        out.append(Details("Resumes and changes", [_event_list(going)]))
    return out


def _event_list(events: Sequence[EventLine]) -> Bullets:
    """One line per event, in their order."""
    lines: list[Inline] = [
        [Span(f"step {e.step:,}", "strong"), f" {e.event}{': ' if e.why else ''}{e.why or ''}"]
        for e in events[:MAX_EVENTS]
    ]
    if len(events) > MAX_EVENTS:
        lines.append(f"and {len(events) - MAX_EVENTS} more, in events.jsonl")
    return Bullets(lines, "events")


def _recipe(one: RunRecord) -> list[Block]:
    if one.recipe is None:
        return []
    caption = f"Differences from preset {one.preset}"
    body: Block = Paragraph(f"Identical to preset {one.preset}.")
    if one.differences:
        body = differences_table(caption, ("Preset", "This run"), one.differences)
    whole = Details("The whole recipe", [Code(one.recipe.to_toml())])
    return [Heading("Recipe", 3), body, whole]


def differences_table(
    caption: str, sides: tuple[str, str], differences: Sequence[Difference]
) -> ReportTable:
    """Key, the two values and what the key means."""
    rows = [row(*difference_cells(each)) for each in differences]
    return ReportTable(caption, columns("Key", *sides, "Meaning"), rows)


def difference_cells(each: Difference) -> tuple[TableCell, str, str, str]:
    """The cells of one difference between two recipes."""
    shown = (
        "unset" if value is None else words.shorten(str(value), 60) for value in (each.a, each.b)
    )
    a, b = shown
    return TableCell(each.path, style="code"), a, b, each.meaning


def _reproduce(one: RunRecord) -> list[Block]:
    if one.recipe is None:
        return []
    path = str(one.path)
    lines = [
        shlex.join(["scalerl", "train", f"{path}/recipe.toml", "--out", f"{path}-again"]),
        shlex.join(["scalerl", "eval", path, "-o", f"{path}-eval"]),
    ]
    same = "bit for bit" if one.recipe.placement.deterministic else "up to the order of events"
    note = (
        f"The first command repeats the run ({same}; the recipe is above as well). The second "
        "evaluates the checkpoints that are left."
    )
    return [Heading("Reproduce", 3), Code("\n".join(lines)), Paragraph(note, "small")]
