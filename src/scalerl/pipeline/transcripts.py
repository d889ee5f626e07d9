"""Episodes as people read them: the text of each turn after the role that wrote it.

    assistant: <tool_call>{"name": "lookup", "arguments": {"key": "h"}}</tool_call>
    tool: 9
    assistant: =9

An episode holds tokens, and not the messages that they were rendered from. So the role and content
of an observation are read off its text, by what the chat template writes around a message of each
role. Where that fails, or there is no template, the role is "environment".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

import numpy as np

from scalerl.algorithm.episode import Episode, TokenIds, turn_numbers
from scalerl.models.turns import TurnRenderer
from scalerl.runs.lines import EpisodePlay

TextOf = Callable[[TokenIds], str]
#: Content of the message that is rendered to find what a template writes around it: a word that no
#: template writes itself.
_CONTENT = "Zeugmatography"


class Frame(NamedTuple):
    """What a chat template writes around a message that follows a turn."""

    role: str
    before: str
    #: The generation prompt included.
    after: str


def play_of(episode: Episode) -> EpisodePlay:
    """What happened in an episode besides its tokens."""
    facts = episode.facts
    forks = max(len(episode.rows) - 1, 0)
    return EpisodePlay(
        facts.turns, facts.tool_calls, facts.tool_failures, forks, facts.environment_seconds
    )


def play_if_played(episode: Episode) -> EpisodePlay | None:
    """The same for an episode that was played in an environment; None for any other."""
    found = play_of(episode)
    return found if found.has_environment else None


def transcript(episode: Episode, text_of: TextOf, renderer: TurnRenderer | None) -> str:
    """The text of an episode behind its prompt: of one turn, the answer alone; of several, each
    turn and each observation after its role. `text_of` gives the text of tokens."""
    if episode.facts.turns <= 1 and len(episode.rows) == 1:
        return text_of(episode.completion)
    frames = () if renderer is None else _frames(renderer, text_of)
    parts = []
    for i, (row, turns) in enumerate(zip(episode.rows, turn_numbers(episode.rows), strict=True)):
        at = 0
        for turn, same in groupby(zip(turns, row.segments, strict=True), key=lambda pair: pair[0]):
            begin, at = at, at + sum(segment.tokens for _, segment in same)
            text = text_of(row.token_ids[begin:at])
            if turn >= 0:
                parts.append(f"assistant: {text}")
            elif begin:
                parts.append(observation(text, frames))
            elif i:  # the whole conversation, rendered again: its last message is new
                parts.append(f"fork: the history is rewritten, in {at} tokens")
                parts.append(observation(text, frames, last=True))
    return "\n".join(parts)


def observation(text: str, frames: tuple[Frame, ...], last: bool = False) -> str:
    """The text between two turns after its role, without what the template writes around it;
    `last`: of a whole conversation, only its last message.

    >>> frames = (Frame("user", "user\\n", "\\nassistant\\n"),)
    >>> observation("user\\nhello\\nassistant\\n", frames)
    'user: hello'
    """
    found = []
    for role, before, after in frames:
        at = text.rfind(before) if last else 0
        if at >= 0 and text.startswith(before, at) and text.endswith(after):
            content = text[at + len(before) : len(text) - len(after)]
            # The more of the text is the template's, the surer is the role: Qwen shows a tool's
            # reply inside a user message.
            found.append((len(before) + len(after), f"{role}: {content}"))
    return max(found)[1] if found else f"environment: {text}"


@lru_cache(maxsize=4)
def _frames(renderer: TurnRenderer, text_of: TextOf) -> tuple[Frame, ...]:
    """The frames of the roles that an environment speaks in; none without a template."""
    found = []
    for role in ("user", "tool"):
        ids = renderer.suffix([{"role": role, "content": _CONTENT}], closed=True)
        before, content, after = text_of(np.asarray(ids, np.int64)).partition(_CONTENT)
        if content and (before or after):
            found.append(Frame(role, before, after))
    return tuple(found)
