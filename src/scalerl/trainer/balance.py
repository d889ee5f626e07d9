"""Which rank takes which rows of a batch: equal work, not equal counts."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def shares(work: Sequence[float], ranks: int) -> list[list[int]]:
    """Things of so much work each, for each rank: the largest first, always to whoever has least
    (which is never more than a third above the best there is). Every rank finds the same.

    >>> shares([5.0, 1.0, 4.0, 2.0], ranks=2)
    [[0, 1], [2, 3]]
    """
    out: list[list[int]] = [[] for _ in range(ranks)]
    load = [(0.0, rank) for rank in range(ranks)]
    for i in sorted(range(len(work)), key=lambda i: -work[i]):
        least, rank = heapq.heappop(load)
        out[rank].append(i)
        heapq.heappush(load, (least + work[i], rank))
    return [sorted(mine) for mine in out]


def row_work(tokens: int, width: int) -> float:
    """What a row of so many tokens costs a model of this width, in tokens of a short row: a block
    makes about 24 D² operations per token outside attention, and 4 n D in it.

    >>> row_work(600, 100), row_work(6, 100)
    (1200.0, 6.06)
    """
    return tokens + tokens**2 / (6 * width)
