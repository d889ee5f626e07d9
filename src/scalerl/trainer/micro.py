"""Micro-batches: which episodes go through the model together, and which rank takes which."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from scalerl.algorithm.batch import TokenBatch
from scalerl.models.rows import FlatRows

#: Indices of episodes in a batch, ascending.
Episodes = npt.NDArray[np.int64]
#: Largest share by which the busiest rank may have more work than the mean before groups are cut in
#: two, which computes a prompt once more.
IMBALANCE = 0.05


def flat_rows(part: TokenBatch) -> FlatRows:
    """A part of a batch, as the input of the model; every token that the engine wrote is scored."""
    return FlatRows.from_tokens(
        part.ids_N.numpy(),
        part.position_N.numpy(),
        part.row_N.numpy(),
        part.parent_R.numpy(),
        part.written_N.numpy(),
        None if part.experts_N is None else part.experts_N.numpy(),
    )


class Sizes:
    """How many tokens the episodes of a batch have, and which prompts they share."""

    def __init__(self, batch: TokenBatch) -> None:
        episode_R = batch.episode_R.numpy()
        #: Tokens of each row.
        self.row_R: list[int] = np.bincount(batch.row_N.numpy(), minlength=len(episode_R)).tolist()
        #: Tokens of each episode, without prompts.
        self.own_E = [0] * len(batch)
        #: Rows of the prompts of each episode.
        self.prompts_E: list[list[int]] = [[] for _ in range(len(batch))]
        pairs = zip(episode_R.tolist(), batch.parent_R.tolist(), self.row_R, strict=True)
        for episode, parent, tokens in pairs:
            if episode >= 0:
                self.own_E[episode] += tokens
                if parent not in self.prompts_E[episode]:
                    self.prompts_E[episode].append(parent)

    def alone(self, episode: int) -> int:
        """Tokens of one episode with its prompts."""
        return self.own_E[episode] + sum(self.row_R[p] for p in self.prompts_E[episode])

    @property
    def longest(self) -> int:
        """Tokens of the largest episode with its prompts."""
        return max(map(self.alone, range(len(self.own_E))), default=0)

    def cut(self, episodes: Sequence[int], token_budget: int) -> list[Episodes]:
        """The episodes in order, cut so that tokens <= token_budget, where a prompt counts once per
        micro-batch; one episode may exceed it."""
        out: list[list[int]] = []
        tokens, there = 0, set[int]()
        for e in episodes:
            new = [p for p in self.prompts_E[e] if p not in there]
            more = self.own_E[e] + sum(self.row_R[p] for p in new)
            if out and tokens + more <= token_budget:
                out[-1].append(e)
                tokens += more
                there.update(new)
            else:
                out.append([e])
                tokens, there = self.alone(e), set(self.prompts_E[e])
        return [np.array(each) for each in out]

    def divide(self, prompt_E: Sequence[int], ranks: int, width: int) -> list[list[int]]:
        """Episodes for each rank of a model of hidden size `width`, by whole groups where that
        gives the ranks nearly equal work, else by parts of groups."""
        pieces = [np.flatnonzero(np.asarray(prompt_E) == p) for p in dict.fromkeys(prompt_E)]
        while True:
            work = [self._work(piece.tolist(), width) for piece in pieces]
            shares = balanced_shares(work, ranks)
            most = max(sum(work[i] for i in share) for share in shares)
            whole = all(len(piece) == 1 for piece in pieces)
            if whole or most <= (1 + IMBALANCE) * sum(work) / ranks:
                return [sorted(int(e) for i in share for e in pieces[i]) for share in shares]
            pieces = [h for p in pieces for h in np.array_split(p, min(2, len(p)))]

    def _work(self, episodes: Sequence[int], width: int) -> float:
        prompts = {p for e in episodes for p in self.prompts_E[e]}
        rows = sum(row_work(self.own_E[e], self.alone(e), width) for e in episodes)
        return rows + sum(row_work(self.row_R[p], self.row_R[p], width) for p in prompts)


def balanced_shares(work: Sequence[float], ranks: int) -> list[list[int]]:
    """Indices for each rank, so that the work per rank is nearly equal: the largest item first,
    always to the rank with the least work, which is at most a third above the best split. Every
    rank computes the same shares.

    >>> balanced_shares([5.0, 1.0, 4.0, 2.0], ranks=2)
    [[0, 1], [2, 3]]
    """
    out: list[list[int]] = [[] for _ in range(ranks)]
    load = [(0.0, rank) for rank in range(ranks)]
    for i in sorted(range(len(work)), key=lambda i: -work[i]):
        least, rank = heapq.heappop(load)
        out[rank].append(i)
        heapq.heappush(load, (least + work[i], rank))
    return [sorted(mine) for mine in out]


def row_work(tokens: int, seen: int, width: int) -> float:
    """The cost of tokens of which the last sees `seen`, for a model of hidden size `width`, in
    tokens of a short row: a block makes about 24 D² operations per token outside attention, and 4 D
    per token that is seen in it.

    >>> row_work(600, 600, 100), row_work(6, 6, 100)
    (1200.0, 6.06)
    """
    return tokens + tokens * seen / (6 * width)
