"""Where the compute of a run went, as bars: generators, trainer, and tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from scalerl.report import words
from scalerl.report.blocks import Block, BlockGroup, Drawing, Heading, Paragraph
from scalerl.report.table import escape_html as text
from scalerl.runs.compute import LedgerLine

#: Parts below this share of their bar are left out of it.
MIN_SHARE = 0.0005


class Part(NamedTuple):
    """A part of a bar; `look` is its colour and hatching."""

    name: str
    amount: float
    look: str


def ledger(line: LedgerLine) -> list[Block]:
    """Three bars: the time of generators and trainer, and the tokens written."""
    s, w = line.spent, line.wasted
    wasted = w.stale.tokens + w.filtered.tokens + w.failed.tokens
    bars = [
        _bar(
            "Generators",
            [
                Part("generating", s.generate, "p0"),
                Part("loading weights", s.hand_over, "p2"),
                Part("waiting", s.generate_wait, "wait"),
            ],
            _hours,
        ),
        _bar(
            "Trainer",
            [
                Part("training", s.train, "p0"),
                Part("waiting for checks", s.check_wait, "p1"),
                Part("waiting for rollouts", s.train_wait - s.check_wait, "wait"),
            ],
            _hours,
        ),
        _bar(
            "Tokens written",
            [
                Part("trained on, or in progress", line.generated_tokens - wasted, "p0"),
                Part("filtered out", w.filtered.tokens, "p1"),
                Part("too stale", w.stale.tokens, "p2"),
                Part("failed", w.failed.tokens, "wait"),
            ],
            words.compute,
        ),
    ]
    total = f"{_hours(line.device_seconds)} of training"
    apart = [f"validation {_hours(line.validation_seconds)}"]
    if line.lost_device_seconds:
        apart.append(f"lost to crashes {_hours(line.lost_device_seconds)}")
    note = f"{total}; not counted in it: {' and '.join(apart)}."
    shown = [bar for bar in bars if bar is not None]
    return [
        Heading("Where the compute went", 3),
        BlockGroup(shown, "ledger"),
        Paragraph(note, "small"),
    ]


def _hours(seconds: float) -> str:
    """Device-hours, or smaller.

    >>> _hours(36_000), _hours(90), _hours(2)
    ('10 device-hours', '1.5 device-minutes', '2 device-seconds')
    """
    for unit, size in (("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.3g} device-{unit}"
    return f"{max(seconds, 0.0):.3g} device-seconds"


def _bar(name: str, parts: Sequence[Part], say: Callable[[float], str]) -> Drawing | None:
    total = sum(max(part.amount, 0.0) for part in parts)
    if not total > 0:
        return None
    shown = [part for part in parts if part.amount / total > MIN_SHARE]
    at, pieces, keys, spoken = 0.0, [], [], []
    for part in shown:
        width = 1000.0 * part.amount / total
        pieces.append(
            f'<rect class="{part.look}" x="{at:.1f}" width="{max(width - 2, 1):.1f}" height="26"/>'
        )
        at += width
        share = f"{part.amount / total:.1%}"
        keys.append(
            f'<li><svg class="swatch" viewBox="0 0 14 14" aria-hidden="true"><rect '
            f'class="{part.look}" width="14" height="14"/></svg><b>{share}</b> {text(part.name)} '
            f"<span>{text(say(part.amount))}</span></li>"
        )
        spoken.append(f"{part.name} {share} ({say(part.amount)})")
    description = f"{name}: {', '.join(spoken)}"
    drawn = (
        f'<figure class="bar"><figcaption aria-hidden="true"><b>{text(name)}</b></figcaption>'
        '<svg viewBox="0 0 1000 26" preserveAspectRatio="none" role="img" '
        f'aria-label="{text(description)}">'
        f'{"".join(pieces)}</svg><ul aria-hidden="true">{"".join(keys)}</ul></figure>'
    )
    return Drawing(drawn, description)
