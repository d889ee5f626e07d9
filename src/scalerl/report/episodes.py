"""Episodes of several turns in a report: a few of those that the run recorded, to read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from scalerl.errors import InputError
from scalerl.report.blocks import Block, BlockGroup, Code, Heading, Paragraph
from scalerl.runs.lines import EpisodeLine, EpisodePlay, SegmentSample, StepLine
from scalerl.runs.reader import RunReader

#: Recorded episodes from which those that are shown are chosen: the latest.
LATEST = 12
#: Characters of a segment that are shown: its beginning and its end.
BEGINNING = 300
END = 100
#: Segments of an episode that are shown.
MAX_SEGMENTS = 24
#: What a reader looks for; the latest of each is shown.
KINDS: tuple[Callable[[EpisodeLine], bool], ...] = (
    lambda line: line.correct is True,
    lambda line: line.correct is False and not _troubled(line),
    lambda line: _troubled(line),
)


def read_episodes(store: RunReader, steps: Sequence[StepLine]) -> tuple[EpisodeLine, ...]:
    """The latest recorded episodes of a run with an environment; none of any other run."""
    if not any(step.play is not None for step in steps):
        return ()
    try:
        return tuple(store.tail(EpisodeLine, LATEST))
    except InputError:  # a file that cannot be read
        return ()


def episode_cards(lines: Sequence[EpisodeLine]) -> list[Block]:
    """The latest episode that is right, the latest that is wrong, and the latest in which a tool
    failed or that a limit or a failure ended."""
    found = [next((line for line in reversed(lines) if wanted(line)), None) for wanted in KINDS]
    shown = sorted({id(line): line for line in found if line}.values(), key=lambda line: line.step)
    if not shown:
        return []
    note = f"Some of the recorded episodes, all of which are in {EpisodeLine.FILE}:"
    return [Paragraph(note, "small"), BlockGroup([_card(line) for line in shown], "answers")]


def _troubled(line: EpisodeLine) -> bool:
    return line.play.tool_failures > 0 or line.finish not in ("stop", "interrupted")


def _card(line: EpisodeLine) -> BlockGroup:
    kind = {True: "✓ right", False: "✗ wrong", None: "◦ unscored"}[line.correct]
    reward = "none" if line.reward is None else f"{line.reward:g}"
    facts = [f"reward {reward}", *([line.why] if line.why else []), play_text(line.play)]
    facts += [] if line.finish == "stop" else [f"ended by {line.finish}"]
    body: list[Block] = [
        Heading(f"{kind}, step {line.step:,}", 4),
        Code("\n".join(_lines(line))),
        Paragraph("; ".join(facts), "small"),
    ]
    return BlockGroup(body, "card answer", "article")


def play_text(play: EpisodePlay) -> str:
    """What happened in an episode, in words.

    >>> play_text(EpisodePlay(3, 2, 1, 0, 0.25))
    '3 turns, 2 tool calls, 1 failed; 0.25 s in the environment'
    """
    parts = [_count(play.turns, "turn"), _count(play.tool_calls, "tool call")]
    parts += [f"{play.tool_failures} failed"] if play.tool_failures else []
    parts += [_count(play.forks, "fork")] if play.forks else []
    return f"{', '.join(parts)}; {play.environment_seconds:.2g} s in the environment"


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def _lines(line: EpisodeLine) -> Iterator[str]:
    """The segments one below another, each after its source."""
    left = MAX_SEGMENTS
    for i, row in enumerate(line.rows):
        for j, segment in enumerate(row):
            if not left:
                yield "…"
                return
            left -= 1
            fork = ", a new row with the history rewritten" if i and not j else ""
            yield f"[{_about(segment)}{fork}]"
            yield _cut(segment.text)


def _about(segment: SegmentSample) -> str:
    said = [f"{segment.source}, {_count(segment.tokens, 'token')}"]
    if segment.versions:
        first, last = segment.versions[0].version, segment.versions[-1].version
        said.append(f"version {first}" if first == last else f"versions {first} to {last}")
    if segment.reward is not None:
        said.append(f"reward {segment.reward:g}")
    return ", ".join(said)


def _cut(text: str) -> str:
    if len(text) <= BEGINNING + END:
        return text
    return f"{text[:BEGINNING]} … {text[-END:]}"
