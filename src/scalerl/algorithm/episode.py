"""Episodes and groups, the data that a run learns from.

An engine writes *turns*. An *episode* is one attempt at a prompt: its turns and what came between
them (the prompt, the observations of an environment), as *segments* of tokens in order. The tokens
of a row are exactly what the model saw; they are stored once, when they are made, and never
tokenised again.

    context   prompt, tool output, environment message: given to the model
    policy    sampled by the model: the only tokens in the loss
    forced    written by the length control in the middle of a turn

Most episodes have one row. Where a chat template rewrites the history (Qwen3 drops earlier
thoughts), the tokens so far are no prefix of what the model is shown next: the episode goes on in a
further row, a *fork*, in which everything before the next turn is context. So each row is what the
engine saw, and each policy token is in the loss exactly once.

>>> turn = Turn.from_lists([5, 6, 7], logprobs=[-1.0, -2.0, -3.0], versions=[3, 3, 4])
>>> row = TokenRow.from_context([1, 2]).with_turn(turn).with_context([8])
>>> row.token_ids.tolist(), [(s.source, s.tokens, s.versions) for s in row.segments]
([1, 2, 5, 6, 7, 8], [('context', 2, ()), ('policy', 3, ((3, 2), (4, 1))), ('context', 1, ())])
>>> row.policy_N.tolist(), row.versions_N.tolist()
([False, False, True, True, True, False], [-1, -1, 3, 3, 4, -1])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

#: Why a turn or an episode ended. "stop": the model ended it; "length": a limit of tokens cut it
#: off; "interrupted": the thinking budget forced the closing phrase, and an answer followed;
#: "turns": the limit of turns ended the episode; "aborted": its request was aborted; "failed": the
#: environment failed, or the episode took too long.
FinishReason = Literal["stop", "length", "interrupted", "turns", "aborted", "failed"]
Source = Literal["context", "policy", "forced"]
TokenIds = npt.NDArray[np.int64]
#: Versions as run-lengths: (version of the weights, number of tokens).
VersionRuns = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """What an engine wrote for one request. All arrays have one entry per token, except
    `experts`."""

    token_ids: TokenIds
    #: Log-prob under the distribution that the token was sampled from (after temperature, top-k
    #: and top-p), computed by the engine that sampled it; 0 for forced and for greedy tokens, which
    #: have probability 1.
    logprobs: npt.NDArray[np.float32]
    #: Version of the weights that sampled each token: the optimiser steps behind them.
    versions: npt.NDArray[np.int64]
    #: Tokens that the length control wrote, not the policy: out of the loss.
    forced: npt.NDArray[np.bool_]
    finish: FinishReason
    #: For a mixture of experts with recorded routing: the experts of each token of request and
    #: turn, (tokens, layers, experts per token), without the last token, which is never fed to the
    #: model.
    experts: npt.NDArray[np.int16] | None = None

    def __post_init__(self) -> None:
        lengths = {len(self.token_ids), len(self.logprobs), len(self.versions), len(self.forced)}
        if len(lengths) != 1:
            raise ValueError(f"a turn's arrays must be of one length, not {sorted(lengths)}")

    @staticmethod
    def from_lists(
        token_ids: Sequence[int],
        *,
        logprobs: Sequence[float] | None = None,
        versions: Sequence[int] | None = None,
        forced: Sequence[bool] | None = None,
        finish: FinishReason = "stop",
    ) -> Turn:
        """A turn from plain lists; what is left out is 0."""
        n = len(token_ids)
        return Turn(
            np.asarray(token_ids, np.int64),
            np.zeros(n, np.float32) if logprobs is None else np.asarray(logprobs, np.float32),
            np.zeros(n, np.int64) if versions is None else np.asarray(versions, np.int64),
            np.zeros(n, np.bool_) if forced is None else np.asarray(forced, np.bool_),
            finish,
        )

    def __len__(self) -> int:
        return len(self.token_ids)

    def segments(self) -> tuple[Segment, ...]:
        """The turn cut where forced tokens begin and end."""
        if not len(self.token_ids):
            return ()
        # One number that changes wherever the version or the source does: hundreds of turns a step
        # are cut, and each array operation costs more than the few tokens of most turns.
        key_N = 2 * self.versions + self.forced
        starts = np.flatnonzero(key_N[1:] != key_N[:-1]) + 1
        if not len(starts):
            return (_segment(int(key_N[0]) & 1, ((int(key_N[0]) >> 1, len(key_N)),)),)
        bounds = [0, *starts.tolist(), len(key_N)]
        keys = key_N[bounds[:-1]].tolist()
        runs = [
            (key, end - start) for key, (start, end) in zip(keys, pairwise(bounds), strict=True)
        ]
        return tuple(
            _segment(forced, tuple((key >> 1, n) for key, n in same))
            for forced, same in groupby(runs, key=lambda run: run[0] & 1)
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # Hundreds of turns a step are pickled from generator to loop. As one block of memory that
        # takes a tenth of the time of pickling the arrays one by one.
        arrays = (self.token_ids, self.versions, self.logprobs, self.forced)
        one = bytearray().join(
            np.asarray(each, kind).tobytes() for each, kind in zip(arrays, _KINDS, strict=True)
        )
        return _unpacked_turn, (len(self), one, self.finish, self.experts)


#: Element types of a packed turn: tokens, versions, log-probs, forced. The widest come first, so
#: that each array begins at an offset that its type is aligned to.
_KINDS = (np.int64, np.int64, np.float32, np.bool_)


def _unpacked_turn(
    n: int, one: bytearray, finish: FinishReason, experts: npt.NDArray[np.int16] | None
) -> Turn:
    """The turn from its packed form; its arrays share one block of memory."""
    tokens, versions = np.frombuffer(one, np.int64, 2 * n).reshape(2, n)
    logprobs = np.frombuffer(one, np.float32, n, 16 * n)
    forced = np.frombuffer(one, np.bool_, n, 20 * n)
    return Turn(tokens, logprobs, versions, forced, finish, experts)


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive tokens of one source."""

    source: Source
    #: Number of tokens.
    tokens: int
    #: Versions of policy and forced tokens; empty for context.
    versions: VersionRuns = ()
    #: Reward of the turn that this segment ends; None where the environment gave none.
    reward: float | None = None


def _segment(forced: int, versions: VersionRuns) -> Segment:
    source: Source = "forced" if forced else "policy"
    return Segment(source, sum(n for _, n in versions), versions)


@dataclass(frozen=True, slots=True, eq=False)
class TokenRow:
    """Tokens that the model saw in one sequence, the prompt first."""

    token_ids: TokenIds
    #: Log-prob of each policy token as it was sampled; 0 for all other tokens.
    logprobs: npt.NDArray[np.float32]
    segments: tuple[Segment, ...]

    def __post_init__(self) -> None:
        counted = sum(segment.tokens for segment in self.segments)
        if not len(self.token_ids) == len(self.logprobs) == counted:
            raise ValueError(
                f"a row of {len(self.token_ids)} tokens has {len(self.logprobs)} log-probs and "
                f"segments of {counted}"
            )

    @staticmethod
    def from_context(token_ids: Sequence[int] | TokenIds) -> TokenRow:
        """A row that begins with these tokens of context."""
        empty = TokenRow(np.zeros(0, np.int64), np.zeros(0, np.float32), ())
        return empty.with_context(token_ids)

    def with_context(self, token_ids: Sequence[int] | TokenIds) -> TokenRow:
        """The row with an observation behind it."""
        ids = np.asarray(token_ids, np.int64)
        segment = Segment("context", len(ids))
        return self._with(ids, np.zeros(len(ids), np.float32), (segment,) if len(ids) else ())

    def with_turn(self, turn: Turn) -> TokenRow:
        """The row with a turn behind it, cut into segments where forced tokens begin and end."""
        return self._with(turn.token_ids, turn.logprobs, turn.segments())

    def with_turn_reward(self, reward: float | None) -> TokenRow:
        """The row with a reward for the turn that it ends with."""
        if reward is None or not self.segments:
            return self
        *before, last = self.segments
        return replace(self, segments=(*before, replace(last, reward=reward)))

    def _with(
        self, ids: TokenIds, logprobs: npt.NDArray[np.float32], segments: tuple[Segment, ...]
    ) -> TokenRow:
        return TokenRow(
            np.concatenate([self.token_ids, ids]),
            np.concatenate([self.logprobs, logprobs]),
            (*self.segments, *segments),
        )

    def __len__(self) -> int:
        return len(self.token_ids)

    def __reduce__(self) -> tuple[Any, ...]:
        # As one block of memory, for the reason given at `Turn.__reduce__`.
        one = bytearray(np.asarray(self.token_ids, np.int64).tobytes())
        one += np.asarray(self.logprobs, np.float32).tobytes()
        segments = [(s.source, s.tokens, s.versions, s.reward) for s in self.segments]
        return _unpacked_row, (len(self), one, segments)

    @property
    def policy_N(self) -> npt.NDArray[np.bool_]:
        """The tokens that the policy sampled."""
        return self._per_token([s.source == "policy" for s in self.segments], np.bool_)

    @property
    def written_N(self) -> npt.NDArray[np.bool_]:
        """The tokens that the engine wrote: sampled or forced."""
        return self._per_token([s.source != "context" for s in self.segments], np.bool_)

    @property
    def versions_N(self) -> npt.NDArray[np.int64]:
        """The version of each token; -1 for context."""
        runs = [run for s in self.segments for run in s.versions or ((-1, s.tokens),)]
        if not runs:
            return np.zeros(0, np.int64)
        versions, tokens = zip(*runs, strict=True)
        return np.repeat(np.asarray(versions, np.int64), tokens)

    def _per_token(self, values: Sequence[Any], kind: Any) -> npt.NDArray[Any]:
        return np.repeat(np.asarray(values, kind), [s.tokens for s in self.segments])

    @property
    def written(self) -> int:
        """Number of tokens that the engine wrote."""
        return sum(s.tokens for s in self.segments if s.source != "context")

    @property
    def written_end(self) -> int:
        """Number of tokens up to the last one that the engine wrote."""
        end = len(self.token_ids)
        for segment in reversed(self.segments):
            if segment.source != "context":
                break
            end -= segment.tokens
        return end

    @property
    def prompt(self) -> TokenIds:
        """The tokens before the first one that the engine wrote."""
        first = self.segments[0] if self.segments else None
        return self.token_ids[: first.tokens if first and first.source == "context" else 0]


def turn_numbers(rows: Sequence[TokenRow]) -> list[list[int]]:
    """For each row of an episode, the turn that each of its segments belongs to, from 0 and
    counted over all rows; -1 for context. A turn ends where context follows, with its row, or with
    a reward of its own."""
    out, turn = [], -1
    for row in rows:
        found, inside = [], False
        for segment in row.segments:
            if segment.source == "context":
                found.append(-1)
                inside = False
                continue
            turn += not inside
            found.append(turn)
            inside = segment.reward is None
        out.append(found)
    return out


def _unpacked_row(n: int, one: bytearray, segments: Sequence[tuple[Any, ...]]) -> TokenRow:
    tokens, logprobs = np.frombuffer(one, np.int64, n), np.frombuffer(one, np.float32, n, 8 * n)
    return TokenRow(tokens, logprobs, tuple(Segment(*segment) for segment in segments))


@dataclass(frozen=True, slots=True)
class EpisodeFacts:
    """What happened in an episode besides its tokens."""

    #: Turns that the policy wrote.
    turns: int = 1
    tool_calls: int = 0
    #: Tool calls that could not be parsed, or that failed.
    tool_failures: int = 0
    #: Seconds that its environment worked.
    environment_seconds: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Episode:
    """One attempt at a prompt."""

    #: The first row begins with the prompt; further rows are forks.
    rows: tuple[TokenRow, ...]
    finish: FinishReason
    #: Final reward, without those of turns; None before the episode is scored, and where it could
    #: not be scored.
    reward: float | None = None
    correct: bool | None = None
    facts: EpisodeFacts = EpisodeFacts()
    #: Experts of the first row's tokens, as in `Turn`; None without recorded routing.
    experts: npt.NDArray[np.int16] | None = None

    @staticmethod
    def from_turn(prompt: Sequence[int] | TokenIds, turn: Turn) -> Episode:
        """The episode of a single turn."""
        # As `TokenRow.from_context(prompt).with_turn(turn)`, in half the time.
        ids = np.asarray(prompt, np.int64)
        n = len(ids)
        logprobs = np.zeros(n + len(turn), np.float32)
        logprobs[n:] = turn.logprobs
        context = (Segment("context", n),) if n else ()
        whole = np.concatenate([ids, turn.token_ids])
        row = TokenRow(whole, logprobs, (*context, *turn.segments()))
        return Episode((row,), turn.finish, experts=turn.experts)

    def __len__(self) -> int:
        """Number of tokens that the engine wrote, forced ones included."""
        return sum(row.written for row in self.rows)

    @property
    def completion(self) -> TokenIds:
        """The tokens behind the prompt of the first row: the answer, in an episode of one turn."""
        return self.rows[0].token_ids[len(self.rows[0].prompt) :]

    @property
    def truncated(self) -> bool:
        return self.finish == "length"

    @property
    def scored(self) -> bool:
        """Whether the episode has a finite reward."""
        return self.reward is not None and bool(np.isfinite(self.reward))

    @property
    def turn_rewards(self) -> tuple[float, ...]:
        """The rewards of turns, in order; 0 is not added where the environment gave none."""
        return tuple(s.reward for row in self.rows for s in row.segments if s.reward is not None)

    @property
    def versions(self) -> tuple[int, int] | None:
        """Oldest and newest version of its tokens; None without any."""
        found = [v for row in self.rows for s in row.segments for v, _ in s.versions]
        return (min(found), max(found)) if found else None

    def with_reward(self, reward: float | None, correct: bool | None) -> Episode:
        """The same episode with its reward."""
        return Episode(self.rows, self.finish, reward, correct, self.facts, self.experts)


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The episodes of one prompt."""

    prompt_id: str
    episodes: tuple[Episode, ...]

    @property
    def tokens(self) -> int:
        """Tokens that the engine wrote for the group, forced ones included."""
        return sum(map(len, self.episodes))

    @property
    def oldest(self) -> int | None:
        """The oldest version among the group's tokens; None without tokens."""
        return min((e.versions[0] for e in self.episodes if e.versions), default=None)
