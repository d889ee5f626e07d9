"""Prompts of a game, with the same number of each difficulty on both sides of the split."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from scalerl.tasks.task import held_out, seed_from

#: Seed of the questions. Changing it changes the training prompts of every run of these games.
POOL_SEED = 20251013
#: Share of questions that an environment's task holds out unless the recipe says otherwise.
HELD_OUT_SHARE = 0.05
#: Most questions that are drawn for one difficulty; a tenth of it is enough.
DRAWS = 100_000


def balanced_rows(
    difficulties: Sequence[int],
    question: Callable[[int, random.Random], str],
    train: int,
    held_out_rows: int,
) -> list[dict[str, Any]]:
    """Rows with different questions: for every difficulty `train` on the training side of the split
    and `held_out_rows` on the other, difficulties in turn.

    question  a random question of a difficulty; it must be able to make enough different ones
    """
    sides: dict[bool, list[list[str]]] = {False: [], True: []}
    for difficulty in difficulties:
        source = random.Random(seed_from(POOL_SEED, difficulty))
        quotas = {False: train, True: held_out_rows}
        found: dict[bool, dict[str, None]] = {False: {}, True: {}}
        for _ in range(DRAWS):
            if all(len(found[side]) == quotas[side] for side in quotas):
                break
            asked = question(difficulty, source)
            side = held_out(asked, HELD_OUT_SHARE)
            if len(found[side]) < quotas[side]:
                found[side][asked] = None
        else:
            raise ValueError(f"there are not enough questions of difficulty {difficulty}")
        for side in quotas:
            sides[side].append(list(found[side]))
    return [
        {"prompt": asked, "difficulty": difficulty}
        for columns in sides.values()
        for same_place in zip(*columns, strict=True)
        for difficulty, asked in zip(difficulties, same_place, strict=True)
    ]
