"""Packing: the episodes of a step as one `TokenBatch`, laid out as batch.py describes.

A row shares the tokens before its first turn with all rows of its group that begin with the same
ones. A fork shares the prompt of its episode if it begins with it; what it repeats of the earlier
turns is context of its own. Rows of a mixture with recorded experts share a prompt only where these
are the same too. Tokens after the last one that the engine wrote predict nothing and are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from scalerl.algorithm.batch import TokenBatch
from scalerl.algorithm.episode import Episode, turn_numbers

Experts = npt.NDArray[np.int16]
#: In place of an expert: none is recorded for this token (`models.routing.OWN`).
NOT_RECORDED = -1


def pack(
    episodes: Sequence[Episode], prompt_E: npt.NDArray[np.int64], dtype: torch.dtype = torch.float32
) -> TokenBatch:
    """The episodes, in their order, without advantages and weights (they are 0).

    >>> from scalerl.algorithm.episode import TokenRow, Turn
    >>> first = Episode.from_turn([1, 2], Turn.from_lists([3, 4]))
    >>> row = TokenRow.from_context([1, 2]).with_turn(Turn.from_lists([5])).with_context([6])
    >>> second = Episode((row.with_turn(Turn.from_lists([7, 8])),), "stop")
    >>> batch = pack([first, second], np.array([0, 0]))
    >>> batch.ids_N.tolist(), batch.row_N.tolist()
    ([1, 2, 3, 4, 5, 6, 7, 8], [0, 0, 1, 1, 2, 2, 2, 2])
    >>> batch.position_N.tolist(), batch.turn_N.tolist()
    ([0, 1, 2, 3, 2, 3, 4, 5], [-1, -1, 0, 0, 0, -1, 1, 1])
    """
    rows = [row for episode in episodes for row in episode.rows]
    of_R = np.repeat(np.arange(len(episodes)), [len(episode.rows) for episode in episodes])
    prompts = _Prompts()
    parent_R = [
        prompts.of(p, e, i)
        for e, p in zip(episodes, prompt_E.tolist(), strict=True)
        for i in range(len(e.rows))
    ]
    begin_R = np.array([len(prompts.tokens[i]) for i in parent_R], np.int64)
    end_R = np.array([row.written_end for row in rows], np.int64)
    # Runs of tokens that have source, version and turn in common, of whole rows.
    runs = [run for e in episodes for run in _runs(e)]
    tokens, source, version, turn = np.array(runs, np.int64).reshape(-1, 4).T
    # The tokens of whole rows that follow the parent's.
    lengths = np.array([len(row) for row in rows], np.int64)
    column = _columns(lengths)
    own = (column >= np.repeat(begin_R, lengths)) & (column < np.repeat(end_R, lengths))
    sizes = np.array([len(p) for p in prompts.tokens], np.int64)
    n = int(sizes.sum())

    def flat(of_prompts: Any, of_rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.concatenate([np.broadcast_to(of_prompts, n), of_rows[own]])

    ids = _cat([row.token_ids for row in rows], np.int64)
    source_N = flat(0, np.repeat(source, tokens))
    logprobs_N = flat(np.float32(0), _cat([row.logprobs for row in rows], np.float32))
    row_N = np.repeat(np.arange(len(sizes) + len(rows)), [*sizes, *(end_R - begin_R).clip(0)])
    to = torch.from_numpy
    zeros_N = torch.zeros(len(row_N), dtype=dtype)
    return TokenBatch(
        ids_N=to(flat(_cat(prompts.tokens, np.int64), ids)),
        position_N=to(flat(_columns(sizes), column)),
        row_N=to(row_N),
        written_N=to(source_N > 0),
        in_loss_N=to(source_N == 1),
        logprobs_N=to(logprobs_N).to(dtype),
        versions_N=to(flat(-1, np.repeat(version, tokens))),
        turn_N=to(flat(-1, np.repeat(turn, tokens))),
        advantages_N=zeros_N,
        weights_N=zeros_N,
        parent_R=to(np.array([-1] * len(sizes) + parent_R, np.int64)),
        episode_R=to(np.concatenate([np.full(len(sizes), -1), of_R])),
        prompt_E=to(np.asarray(prompt_E, np.int64)),
        experts_N=_experts(episodes, prompts, own),
    )


class _Prompts:
    """The distinct prompts of a batch."""

    def __init__(self) -> None:
        self.tokens: list[npt.NDArray[np.int64]] = []
        self.experts: list[Experts | None] = []
        self._number: dict[Any, int] = {}

    def of(self, group: int, episode: Episode, i: int) -> int:
        """Number of the prompt that row `i` of an episode shares."""
        row, prompt = episode.rows[i], episode.rows[0].prompt
        if i and not np.array_equal(row.token_ids[: len(prompt)], prompt):
            prompt = row.prompt
        if not len(prompt):
            raise ValueError("a row begins with a token that was written: it needs a prompt")
        known = None if i or episode.experts is None else episode.experts[: len(prompt)]
        key = (group, prompt.tobytes(), None if known is None else known.tobytes())
        found = self._number.setdefault(key, len(self.tokens))
        if found == len(self.tokens):
            self.tokens.append(prompt)
            self.experts.append(known)
        return found


def _runs(episode: Episode) -> list[tuple[int, int, int, int]]:
    """(tokens, source: 0 context, 1 policy, 2 forced, version, turn) of consecutive tokens."""
    out = []
    for row, turns in zip(episode.rows, turn_numbers(episode.rows), strict=True):
        for segment, turn in zip(row.segments, turns, strict=True):
            if segment.source == "context":
                out.append((segment.tokens, 0, -1, -1))
            else:
                source = 1 if segment.source == "policy" else 2
                out += [(n, source, version, turn) for version, n in segment.versions]
    return out


def _experts(
    episodes: Sequence[Episode], prompts: _Prompts, own: npt.NDArray[np.bool_]
) -> torch.Tensor | None:
    """The recorded experts of all tokens, in the order of the batch; None without any."""
    recorded = [e.experts for e in episodes if e.experts is not None]
    if not recorded:
        return None

    def padded(found: Experts | None, tokens: int) -> Experts:
        out = np.full((tokens, *recorded[0].shape[1:]), NOT_RECORDED, np.int16)
        if found is not None:
            out[: len(found)] = found[:tokens]
        return out

    of_prompts = [padded(x, len(p)) for x, p in zip(prompts.experts, prompts.tokens, strict=True)]
    of_rows = [
        padded(None if i else e.experts, len(row)) for e in episodes for i, row in enumerate(e.rows)
    ]
    return torch.from_numpy(np.concatenate([*of_prompts, np.concatenate(of_rows)[own]]))


def _columns(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Place of every token in its row, for rows of these lengths."""
    starts = np.cumsum(lengths) - lengths
    return np.arange(int(lengths.sum())) - np.repeat(starts, lengths)


def _cat(arrays: Sequence[npt.NDArray[Any]], kind: Any) -> npt.NDArray[Any]:
    return np.concatenate(arrays) if arrays else np.zeros(0, kind)
