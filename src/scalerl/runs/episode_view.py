"""Episodes as readers are shown them: a line in a list, histograms, and one episode with all its
tokens. Every text and list is bounded: episodes come from a model, and a line may have 4 MB."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from scalerl.errors import InputError
from scalerl.runs.episode_entries import CORRECT, FINISHES
from scalerl.runs.episode_filter import EpisodeFilter, Order
from scalerl.runs.episode_log import EpisodeLog, Numbers, Selection
from scalerl.text import one_line

#: Most episodes of one list.
MAX_LIMIT = 500
#: Characters of a name of a prompt or task.
MAX_NAME = 300
#: Characters of what the check found.
MAX_WHY = 400
#: Characters of the beginning of an answer in a list.
MAX_PREVIEW = 240
#: Characters of the texts of one episode: about 250 screens.
MAX_TEXT = 1_000_000
#: Tokens of one episode that are shown one by one; the text of further tokens is shown as it is.
MAX_TOKENS = 100_000
#: Rows and segments of an episode: an episode of 200 turns has 400 segments.
MAX_SEGMENTS = 5_000
#: Bins of a histogram: as many as a phone has room for.
BINS = 24
#: Names of tasks or sources that are counted one by one.
MAX_COUNTED = 200


@dataclass(frozen=True, slots=True)
class EpisodeList:
    """A page of a list of episodes."""

    #: Episodes in the log, and those that meet the filter.
    total: int
    matched: int
    #: Whether all of them were looked at.
    complete: bool
    #: Episodes whose text was searched, and how many there are to search.
    searched: int
    to_search: int
    episodes: tuple[dict[str, Any], ...]
    #: The id to go on after; None at the end.
    next: str | None
    #: What the lengths count: `tokens`, or `characters` where a format keeps no tokens.
    length_unit: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "total": self.total, "matched": self.matched, "complete": self.complete,
            "searched": self.searched, "to_search": self.to_search,
            "length_unit": self.length_unit, "episodes": list(self.episodes), "next": self.next,
        }  # fmt: skip


def list_episodes(
    log: EpisodeLog, wanted: EpisodeFilter, order: Order = "newest", limit: int = 50,
    after: str | None = None, seconds: float | None = None,
) -> EpisodeList:  # fmt: skip
    """The first `limit` episodes that meet a filter, or those after the one with the id `after`."""
    chosen = _selected(log, wanted, seconds)
    ordered = log.ordered(chosen.numbers, order)
    begin = 0
    if after is not None:
        number = log.number_of(after)
        where = np.flatnonzero(ordered == (-1 if number is None else number))
        if not len(where):
            raise InputError(f"after {after[:60]!r}: not in this list any more: begin again")
        begin = int(where[0]) + 1
    shown = ordered[begin : begin + limit]
    more = begin + limit < len(ordered)
    return EpisodeList(
        total=len(log.entries),
        matched=len(ordered),
        complete=chosen.complete,
        searched=chosen.searched,
        to_search=chosen.to_search,
        episodes=tuple(summary(log, int(n)) for n in shown),
        next=log.id_of(int(shown[-1])) if more else None,
        length_unit=log.length_unit,
    )


def _selected(log: EpisodeLog, wanted: EpisodeFilter, seconds: float | None) -> Selection:
    return log.select(wanted) if seconds is None else log.select(wanted, seconds)


# -- a line in a list -----------------------------------------------------------------------------


def summary(log: EpisodeLog, number: int) -> dict[str, Any]:
    """An episode as a line of a list."""
    return _facts(log, number, log.head(number))


def _facts(log: EpisodeLog, number: int, found: dict[str, Any]) -> dict[str, Any]:
    entry = log.entries[number]
    play = _dict(found.get("play"))
    finish = FINISHES[int(entry["finish"])] if entry["finish"] < len(FINISHES) else ""
    reward = _number(found.get("reward"))
    facts = {
        "id": log.id_of(number),
        "step": int(entry["step"]),
        "source": log.source_name(number),
        "prompt": _cut(found.get("prompt"), MAX_NAME),
        "task": _cut(found.get("task"), MAX_NAME),
        "reward": reward,
        "correct": CORRECT[int(entry["correct"])] if entry["correct"] < len(CORRECT) else None,
        "finish": finish,
        "truncated": finish == "length",
        "tokens": int(entry["length"]),
        "turns": int(entry["turns"]),
        "tool_calls": _whole(play.get("tool_calls")),
        "tool_failed": bool(entry["tool_failures"]),
        "why": one_line(_cut(found.get("why"), 4 * MAX_WHY), MAX_WHY),
        "preview": preview(found),
    }
    if isinstance(of_set := found.get("set"), str) and of_set:
        facts["set"] = of_set[:MAX_NAME]
    return facts


def preview(found: dict[str, Any]) -> str:
    """The beginning of what was written, in one line; of the question, where nothing was."""
    for row in _list(found.get("rows")):
        for segment in _list(row):
            if _dict(segment).get("source") != "context":
                text = one_line(_cut(_dict(segment).get("text"), 4 * MAX_PREVIEW), MAX_PREVIEW)
                if text:
                    return text
    return one_line(_cut(found.get("question"), 4 * MAX_PREVIEW), MAX_PREVIEW)


# -- one episode ----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Room:
    """What may still be shown of an episode."""

    text: int = MAX_TEXT
    tokens: int = MAX_TOKENS
    segments: int = MAX_SEGMENTS


def detail(log: EpisodeLog, number: int) -> dict[str, Any]:
    """One episode with everything that is recorded of it."""
    found = log.episode(number)
    room = _Room()
    question = _cut(found.get("question"), MAX_TEXT)
    rows = []
    for row in _list(found.get("rows")):
        shown = []
        for segment in _list(row):
            if room.segments and isinstance(segment, dict):
                room.segments -= 1
                shown.append(_segment(segment, room))
        rows.append(shown)
        if not room.segments:
            break
    play = _dict(found.get("play"))
    return _facts(log, number, found) | {
        "question": question,
        "why": _cut(found.get("why"), MAX_TEXT),
        "turn_rewards": _numbers(found.get("turn_rewards"), MAX_SEGMENTS),
        "play": {name: _number(value) for name, value in list(play.items())[:20]},
        "rows": rows,
        # Whether something was left out because the episode is too long.
        "cut": min(room.text, room.tokens, room.segments) <= 0,
    }


def _segment(segment: dict[str, Any], room: _Room) -> dict[str, Any]:
    whole = segment.get("text") if isinstance(segment.get("text"), str) else ""
    assert isinstance(whole, str)
    text = whole[: max(room.text, 0)]
    room.text -= len(whole)
    ids = _list(segment.get("token_ids"))
    shown = len(text) == len(whole) and len(ids) <= room.tokens
    room.tokens -= len(ids)
    per_token: dict[str, Any] = dict.fromkeys(
        ("tokens", "token_ids", "logprobs", "ratios", "entropies")
    )
    if shown:
        n = len(ids)
        per_token = {
            "tokens": token_texts(text, segment.get("token_lengths"), n),
            "token_ids": [_whole(each) for each in ids],
            **{
                name: _per_token(segment.get(name), n)
                for name in ("logprobs", "ratios", "entropies")
            },
        }
    source = segment.get("source")
    return {
        "source": source if source in ("context", "policy", "forced") else "context",
        "text": text,
        "n_tokens": _whole(segment.get("tokens")),
        **per_token,
        "versions": _versions(segment.get("versions")),
        "reward": _number(segment.get("reward")),
    }


def token_texts(text: str, lengths: Any, n: int) -> list[str] | None:
    """A text cut into the texts of its tokens; None where the lengths do not fit.

    >>> token_texts("2+2=4", [1, 1, 2, 1], 4)
    ['2', '+', '2=', '4']
    """
    if not isinstance(lengths, list) or len(lengths) != n:
        return None
    if not all(type(each) is int and each >= 0 for each in lengths) or sum(lengths) != len(text):
        return None
    ends = np.cumsum(lengths, dtype=np.int64).tolist()
    return [text[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def _per_token(values: Any, n: int) -> list[float | None] | None:
    """A number for each token; None where there is not one for each."""
    return _numbers(values, n) if isinstance(values, list) and len(values) == n else None


def _versions(value: Any) -> list[list[int]] | None:
    """Run-lengths `[version, tokens]`."""
    if not isinstance(value, list):
        return None
    runs = [run for run in value[:MAX_TOKENS] if isinstance(run, list) and len(run) == 2]
    return [[_whole(version), _whole(tokens)] for version, tokens in runs]


# -- histograms -----------------------------------------------------------------------------------


def histograms(
    log: EpisodeLog, wanted: EpisodeFilter, seconds: float | None = None
) -> dict[str, Any]:
    """How rewards, lengths and steps are spread over all episodes and over those that meet a
    filter, and how many of those there are of each kind."""
    chosen = _selected(log, wanted, seconds)
    matched = log.entries[chosen.numbers]
    return {
        "total": len(log.entries),
        "matched": len(matched),
        "complete": chosen.complete,
        "length_unit": log.length_unit,
        "reward": _histogram(log.entries["reward"], matched["reward"]),
        "length": _histogram(log.entries["length"], matched["length"], whole=True),
        # What begins at some step is seen at a glance.
        "step": _histogram(log.entries["step"], matched["step"], whole=True),
        "by": {
            "finish": _counts(matched["finish"], dict(enumerate(FINISHES))),
            "task": _counts(matched["task"], log.task_names(chosen.numbers)),
            "source": _source_counts(log, chosen.numbers),
            "correct": _counts(matched["correct"], {0: "false", 1: "true", 2: "none"}),
        },
    }


def _histogram(everything: Any, matched: Any, whole: bool = False) -> dict[str, list[float]]:
    """Bins with the same edges for both."""
    known = everything[np.isfinite(everything)].astype(np.float64)
    edges = _edges(known, whole)
    if not len(edges):
        return {"edges": [], "all": [], "matched": []}
    chosen = matched[np.isfinite(matched)].astype(np.float64)
    return {
        "edges": edges.tolist(),
        "all": np.histogram(known, edges)[0].tolist(),
        "matched": np.histogram(chosen, edges)[0].tolist(),
    }


def _edges(values: Any, whole: bool = False) -> Any:
    """Edges of bins of equal width; of a few values (rewards of 0 and 1) a bin for each."""
    if not len(values):
        return np.zeros(0)
    few = np.unique(values[:: max(len(values) // 5000, 1)])
    low, high = float(values.min()), float(values.max())
    if len(few) == 1 and low == high:
        return np.array([low - 0.5, high + 0.5])
    if len(few) <= 8 and len(np.unique(values)) <= 8:
        few = np.unique(values)
        middle = (few[1:] + few[:-1]) / 2
        return np.array([2 * few[0] - middle[0], *middle, 2 * few[-1] - middle[-1]])
    if whole:
        # Each bin has equally many whole numbers, or an even spread would look like a comb.
        width = (high - low) // BINS + 1
        return np.arange(low, high + width + 1, width)
    return np.linspace(low, high, BINS + 1)


def _counts(column: Any, names: dict[int, str]) -> dict[str, int]:
    values, counts = np.unique(column, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:MAX_COUNTED]
    found: dict[str, int] = {}
    for value, count in zip(values[order].tolist(), counts[order].tolist(), strict=True):
        name = names.get(value, "")[:MAX_NAME]
        found[name] = found.get(name, 0) + count
    return found


def _source_counts(log: EpisodeLog, numbers: Numbers) -> dict[str, int]:
    return {name: n for name, n in log.count_sources(numbers).items() if n}


# -- values of any type ---------------------------------------------------------------------------


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _cut(value: Any, most: int) -> str:
    return value[:most] if isinstance(value, str) else ""


def _number(value: Any) -> float | None:
    if type(value) is float:
        return value
    # An integer of a thousand digits is JSON as well.
    return value if type(value) is int and abs(value) < 2**53 else None


def _numbers(value: Any, most: int) -> list[float | None]:
    return [_number(each) for each in _list(value)[:most]]


def _whole(value: Any) -> int:
    return value if type(value) is int and abs(value) < 2**53 else 0
