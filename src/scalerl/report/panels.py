"""The panels of a training run: where its compute went, how its steps went, what it answered, what
went wrong, what it was told to do, and how to do it again."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from scalerl.recipe.diff import Difference
from scalerl.report import words
from scalerl.report.ledger import ledger
from scalerl.report.markup import table, text
from scalerl.report.run_record import MANY, RunRecord
from scalerl.report.small_charts import MAX_BINS, ChartLine, chart
from scalerl.runs.lines import AnswerSample, EventLine, StepLine

#: Points of a line where many runs share the page.
FEW_BINS = 80
#: Events that are shown, and characters of an answer.
MAX_EVENTS, MAX_ANSWER = 40, 1500
#: What is worth a reader's attention; the rest is how the run went.
ALARMS = ("warning", "lost", "checker", "refused", "failed")

Value = Callable[[StepLine], float | None]

#: Title, and the lines: name and number of a step.
CHARTS: tuple[tuple[str, tuple[tuple[str, Value], ...]], ...] = (
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

#: Lines of which a stretch of steps shows an end and no mean.
EXTREMES: dict[str, Literal["largest", "smallest"]] = {
    "longest": "largest", "largest": "largest", "smallest": "smallest",
}  # fmt: skip


def section(records: Sequence[RunRecord | None]) -> str:
    """The panels of all runs that have a record: of one open, of many folded."""
    known = [record for record in records if record is not None]
    if not known:
        return ""
    bins = MAX_BINS if len(known) <= MANY else FEW_BINS
    heading = '<section aria-labelledby="inside"><h2 id="inside">Inside the run{}</h2>'
    if len(known) == 1:
        return heading.format("") + panels(known[0], bins) + "</section>"
    folded = "".join(
        f'<details class="inside"><summary>{text(words.shorten(one.name, 100))}{_flags(one)}'
        f"</summary>{panels(one, bins)}</details>"
        for one in known
    )
    return heading.format("s") + folded + "</section>"


def _flags(one: RunRecord) -> str:
    found = ["stalled"] if any(each.stalled for each in one.trackings) else []
    found += ["warnings"] if any(event.event in ALARMS for event in one.events) else []
    return "".join(f' <span class="flag">{each}</span>' for each in found)


def panels(one: RunRecord, bins: int = MAX_BINS) -> str:
    """Everything about one run; what its record lacks is left out."""
    return (
        _events(one)
        + _ledger(one)
        + _charts(one, bins)
        + _downstream(one, bins)
        + answers_part(one)
        + _recipe(one)
        + _reproduce(one)
    )


def _ledger(one: RunRecord) -> str:
    return ledger(one.steps[-1].ledger) if one.steps else ""


def _charts(one: RunRecord, bins: int) -> str:
    if not one.steps:
        return ""
    x = np.array([s.step for s in one.steps], float)
    drawn = []
    for title, lines in CHARTS:
        series = [
            ChartLine(name, _numbers(one.steps, value), EXTREMES.get(name, "mean"))
            for name, value in lines
        ]
        drawn.append(chart(title, x, series, bins))
    note = f"Lines are means over stretches of steps, {one.total_steps:,} in all"
    if len(one.steps) < one.total_steps:
        note += f", of which {len(one.steps):,}, evenly picked, were read"
    note += (
        "; bands reach from the smallest to the largest value of a stretch, and longest, largest "
        "and smallest are those of a stretch."
    )
    return (
        f'<h3>Steps</h3><div class="small-charts">{"".join(drawn)}</div>'
        f'<p class="small">{text(note)}</p>'
    )


def _numbers(steps: Sequence[StepLine], value: Value) -> npt.NDArray[np.float64]:
    return np.array([_float(value(step)) for step in steps])


def _float(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def _downstream(one: RunRecord, bins: int) -> str:
    """Each further set beside validation, and how it followed it."""
    points = [e for e in one.evals if e.pass_rate is not None]
    sets = {name: dict(curve) for name, curve in one.downstream.items()}
    for line in points:
        for name, score in (line.temperatures or {}).items():
            if score.pass_rate is not None:
                sets.setdefault(f"temperature {name}", {})[line.step] = score.pass_rate
    if not sets:
        return ""
    x = np.array([e.step for e in points], float)
    main = ChartLine("validation", np.array([_float(e.pass_rate) for e in points]))
    drawn = []
    for name, scores in sets.items():
        other = ChartLine(name, np.array([_float(scores.get(e.step)) for e in points]))
        title = f"{words.shorten(name, 40)} beside validation"
        drawn.append(chart(title, x, [main, other], bins))
    return f'<h3>Downstream</h3><div class="small-charts">{"".join(drawn)}</div>' + _trackings(one)


def _trackings(one: RunRecord) -> str:
    if not one.trackings:
        return ""
    rows = []
    for each in one.trackings:
        flag = ' <span class="flag">stalls</span>' if each.stalled else ""
        (v0, v1), (d0, d1) = each.validation, each.downstream
        if each.slope is None or each.interval is None:
            rate = "none"
        else:
            low, high = each.interval
            rate = f'{each.slope:.2f} <span class="range">{low:.2f} to {high:.2f}</span>'
        rows.append(
            (
                text(words.shorten(each.name, 60)),
                f"{each.verdict}{flag}",
                rate,
                f"{d0:.3f} to {d1:.3f}",
                f"{v0:.3f} to {v1:.3f}",
                str(each.points),
                text(each.why),
            )
        )
    level = words.percent(one.trackings[0].level)
    head = ("Set", "Validation", "Exchange rate", "Its score", "Validation’s", "Points", "Why")
    caption = (
        "How each set followed validation: downstream score bought by one point of validation "
        f"score, with {level} intervals for points that are alike over time"
    )
    return table(caption, head, rows)


def kind_of(answer: AnswerSample) -> str:
    if answer.finish == "interrupted":
        return "interrupted, right" if answer.correct else "interrupted"
    if answer.correct is None:
        return "unscored"
    return "right" if answer.correct else "wrong"


def answers_part(one: RunRecord) -> str:
    """Some answers of a validation."""
    if one.answers is None or not one.answers.answers:
        return ""
    cards = []
    told = set()
    for answer in one.answers.answers:
        if answer.set or (answer.prompt, answer.answer) in told:
            continue  # further sets; the same said twice
        told.add((answer.prompt, answer.answer))
        kind = kind_of(answer)
        mark = {"right": "✓", "wrong": "✗"}.get(kind, "◦")
        cards.append(
            f'<article class="card answer"><h4>{mark} {kind}</h4>'
            f"<pre><code>{_lines(answer.question)}</code></pre>"
            f"<pre><code>{_lines(answer.answer)}</code></pre>"
            f'<p class="small">{text(answer.why)}</p></article>'
        )
    if not cards:
        return ""
    return f'<h3>Answers at step {one.answers.step}</h3><div class="answers">{"".join(cards)}</div>'


def _lines(value: str) -> str:
    """Text whose line ends stay, cut where it grows too long."""
    cut = value if len(value) <= MAX_ANSWER else value[: MAX_ANSWER - 1] + "…"
    return "\n".join(text(line) for line in cut.split("\n"))


def _events(one: RunRecord) -> str:
    """Alarms first and open; resumes and the like folded."""
    alarms = [e for e in one.events if e.event in ALARMS]
    others = [e for e in one.events if e.event not in ALARMS]
    out = ""
    if alarms:
        out += "<h3>Warnings and alarms</h3>" + _said(alarms)
    ended = [e for e in others if e.event == "end"]
    how = ended[-1].reason if ended else "not ended: it runs, or was killed"
    facts = [f"{one.total_steps:,} steps", f"ended: {how}" if ended else str(how)]
    facts += [] if alarms else ["no warnings"]
    going = [e for e in others if e.event in ("resume", "branch")]
    times = "once" if len(going) == 1 else f"{len(going)} times"
    facts += [f"resumed or changed {times}"] if going else []
    out += f'<p class="small">{text("; ".join(facts))}</p>'
    if going:
        out += f"<details><summary>Resumes and changes</summary>{_said(going)}</details>"
    return out


def _said(events: Sequence[EventLine]) -> str:
    """A line an event, in their order."""
    lines = [
        f"<li><b>step {e.step:,}</b> {e.event}{': ' if e.why else ''}{text(e.why or '')}</li>"
        for e in events[:MAX_EVENTS]
    ]
    if len(events) > MAX_EVENTS:
        lines.append(f"<li>and {len(events) - MAX_EVENTS} more, in events.jsonl</li>")
    return f'<ul class="events">{"".join(lines)}</ul>'


def _recipe(one: RunRecord) -> str:
    if one.recipe is None:
        return ""
    against = f"preset {one.preset}"
    if one.differences:
        caption = f"What it does otherwise than {against}"
        body = differences_table(caption, ("Preset", "This run"), one.differences)
    else:
        body = f"<p>{text(f'Exactly {against}.')}</p>"
    return (
        f"<h3>Recipe</h3>{body}<details><summary>The whole recipe</summary>"
        f"<pre><code>{_toml(one)}</code></pre></details>"
    )


def differences_table(
    caption: str, sides: tuple[str, str], differences: Sequence[Difference]
) -> str:
    """Key, the two values and what the key means."""
    rows = [
        (f"<code>{text(d.path)}</code>", _value(d.a), _value(d.b), text(d.meaning))
        for d in differences
    ]
    return table(text(caption), ("Key", *map(text, sides), "Meaning"), rows)


def _toml(one: RunRecord) -> str:
    assert one.recipe is not None
    return "\n".join(text(line) for line in one.recipe.to_toml().split("\n"))


def _value(value: object) -> str:
    return text("unset" if value is None else words.shorten(str(value), 60))


def _reproduce(one: RunRecord) -> str:
    if one.recipe is None:
        return ""
    path = str(one.path)
    lines = [
        shlex.join(["scalerl", "train", f"{path}/recipe.toml", "--out", f"{path}-again"]),
        shlex.join(["scalerl", "eval", path, "-o", f"{path}-eval"]),
    ]
    same = "bit for bit" if one.recipe.placement.deterministic else "up to the order of events"
    return (
        f"<h3>Once more</h3><pre><code>{text(lines[0])}\n{text(lines[1])}</code></pre>"
        f'<p class="small">The first repeats the run ({same}; the recipe is above as well); the '
        "second scores the checkpoints that are left.</p>"
    )
