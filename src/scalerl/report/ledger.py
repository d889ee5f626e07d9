"""Where the compute of a run went, as a picture: a bar for each side, and one for the tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from scalerl.report import words
from scalerl.report.markup import text
from scalerl.runs.compute import LedgerLine

#: Parts below this share of their bar are left out of it.
MIN_SHARE = 0.0005


class Part(NamedTuple):
    """A part of a bar; `look` is its colour and hatching."""

    name: str
    amount: float
    look: str


def ledger(line: LedgerLine) -> str:
    """Three bars, each with its parts in words and numbers."""
    s, w = line.spent, line.wasted
    wasted = w.stale.tokens + w.filtered.tokens + w.failed.tokens
    bars = [
        _bar(
            "Generators",
            [
                Part("writing", s.generate, "p0"),
                Part("loading weights", s.hand_over, "p2"),
                Part("waiting", s.generate_wait, "wait"),
            ],
            _hours,
        ),
        _bar(
            "Trainer",
            [
                Part("learning", s.train, "p0"),
                Part("waiting for checks", s.check_wait, "p1"),
                Part("waiting for rollouts", s.train_wait - s.check_wait, "wait"),
            ],
            _hours,
        ),
        _bar(
            "Tokens written",
            [
                Part("learnt from, or under way", line.generated_tokens - wasted, "p0"),
                Part("left out by filters", w.filtered.tokens, "p1"),
                Part("too old", w.stale.tokens, "p2"),
                Part("lost or refused", w.failed.tokens, "wait"),
            ],
            words.compute,
        ),
    ]
    total = f"{_hours(line.device_seconds)} of training"
    apart = [f"validation {_hours(line.validation_seconds)}"]
    if line.lost_device_seconds:
        apart.append(f"lost to crashes {_hours(line.lost_device_seconds)}")
    told = f"{total}; beside it {' and '.join(apart)}."
    return (
        f'<h3>Where the compute went</h3><div class="ledger">{"".join(bars)}</div>'
        f'<p class="small">{text(told)}</p>'
    )


def _hours(seconds: float) -> str:
    """Device-hours, or smaller.

    >>> _hours(36_000), _hours(90), _hours(2)
    ('10 device-hours', '1.5 device-minutes', '2 device-seconds')
    """
    for unit, size in (("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.3g} device-{unit}"
    return f"{max(seconds, 0.0):.3g} device-seconds"


def _bar(name: str, parts: Sequence[Part], say: Callable[[float], str]) -> str:
    total = sum(max(part.amount, 0.0) for part in parts)
    if not total > 0:
        return ""
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
    label = text(f"{name}: {', '.join(spoken)}")
    return (
        f'<figure class="bar"><figcaption aria-hidden="true"><b>{text(name)}</b></figcaption>'
        f'<svg viewBox="0 0 1000 26" preserveAspectRatio="none" role="img" aria-label="{label}">'
        f'{"".join(pieces)}</svg><ul aria-hidden="true">{"".join(keys)}</ul></figure>'
    )
