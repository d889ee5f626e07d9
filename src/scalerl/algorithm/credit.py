"""Credit rules: which rewards a token is credited with, and what they are compared with.

A rule gives every episode one or more *units*: tokens that share one return. The advantage of a
unit is its return minus the mean of its *cell*, normalised as the recipe says (advantages.py).

    episode  one unit per episode: the final reward plus the rewards of all turns, compared within
             the prompt. Without turn rewards it is what every recipe of the paper does.
    turn     one unit per turn: the rewards of this turn and of later ones, plus the final reward
             (return to go), compared with the same turn of the other episodes of the prompt. A
             turn that only one episode of the prompt reached has advantage 0. The std of a batch
             is taken over all turns in it, the std of a prompt over the cell.

Two episodes of one prompt with two turns each; final rewards 1 and 0, turn rewards (0, 2), (1, 1):

                        episode      turn 0         turn 1
    first               1+0+2 = 3    1+0+2 = 3      1+2 = 3
    second              0+1+1 = 2    0+1+1 = 2      0+1 = 1
    mean of the cell    2.5          2.5            2
    centred             +.5, -.5     +.5, -.5       +1, -1

>>> rewards = Rewards.from_episodes([((0.0, 2.0), 1.0), ((1.0, 1.0), 0.0)], [0, 0])
>>> CREDITS["episode"](rewards).values_K.tolist()
[3.0, 2.0]
>>> found = CREDITS["turn"](rewards)
>>> found.values_K.tolist(), found.cell_K.tolist(), found.unit_T.tolist()
([3.0, 3.0, 2.0, 1.0], [0, 1, 0, 1], [0, 1, 2, 3])

To add a rule, write a function `(rewards) -> Units` and register it, or name it in the recipe by
its import path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from scalerl.algorithm.episode import Episode, turn_numbers
from scalerl.recipe.sections_algorithm import CREDIT_NAMES
from scalerl.registry import Registry


@dataclass(frozen=True, slots=True, eq=False)
class Rewards:
    """The rewards of E episodes with T turns in all, in float64."""

    #: Final reward of each episode; NaN where it could not be scored.
    final_E: Tensor
    #: Prompt of each episode.
    prompt_E: Tensor
    #: Reward of each turn, episode by episode; 0 where the environment gave none.
    turn_T: Tensor
    #: Number of turns of each episode.
    turns_E: Tensor

    @staticmethod
    def from_episodes(
        rewards: Sequence[tuple[Sequence[float], float | None]], prompts: Sequence[int]
    ) -> Rewards:
        """From (rewards of turns, final reward) of each episode, and the prompt of each."""
        final = [np.nan if end is None or not np.isfinite(end) else end for _, end in rewards]
        turns = [reward for found, _ in rewards for reward in found]
        return Rewards(
            torch.tensor(final, dtype=torch.float64),
            torch.tensor(prompts, dtype=torch.long),
            torch.tensor(turns, dtype=torch.float64),
            torch.tensor([len(found) for found, _ in rewards], dtype=torch.long),
        )

    @property
    def episode_T(self) -> Tensor:
        """Episode of each turn."""
        return torch.repeat_interleave(self.turns_E)


@dataclass(frozen=True, slots=True, eq=False)
class Units:
    """What advantages are computed for: K returns, each for some turns of one episode."""

    values_K: Tensor
    episode_K: Tensor
    #: Units that are compared with each other have the same cell.
    cell_K: Tensor
    #: Unit that each turn belongs to, episode by episode.
    unit_T: Tensor

    @property
    def episode_T(self) -> Tensor:
        """Episode of each turn."""
        return self.episode_K[self.unit_T]


Credit = Callable[[Rewards], Units]

CREDITS: Registry[Credit] = Registry("credit rule", announce=CREDIT_NAMES.add)


@CREDITS.register("episode")
def episode_credit(rewards: Rewards) -> Units:
    """One return for the whole episode."""
    episode_T = rewards.episode_T
    values_E = rewards.final_E.index_add(0, episode_T, rewards.turn_T)
    return Units(values_E, torch.arange(len(values_E)), rewards.prompt_E, episode_T)


@CREDITS.register("turn")
def turn_credit(rewards: Rewards) -> Units:
    """The return to go of each turn, compared with the same turn of the prompt's episodes."""
    episode_T, turns_E = rewards.episode_T, rewards.turns_E
    place_T = torch.arange(len(episode_T)) - (turns_E.cumsum(0) - turns_E)[episode_T]
    # Rewards up to and with each turn, by one running sum over all episodes.
    until_T = rewards.turn_T.cumsum(0)
    total_E = torch.zeros_like(rewards.final_E).index_add(0, episode_T, rewards.turn_T)
    before_E = total_E.cumsum(0) - total_E
    earlier_T = until_T - rewards.turn_T - before_E[episode_T]
    values_T = rewards.final_E[episode_T] + total_E[episode_T] - earlier_T
    longest = int(turns_E.max()) if len(turns_E) else 0
    cell_T = rewards.prompt_E[episode_T] * longest + place_T
    return Units(values_T, episode_T, cell_T, torch.arange(len(episode_T)))


def rewards_of(episodes: Sequence[Episode], prompts: Sequence[int]) -> Rewards:
    """The rewards of episodes, turn by turn. A reward that stands at context belongs to the turn
    before it."""
    found = []
    for episode in episodes:
        turns: list[float] = []
        for row, numbers in zip(episode.rows, turn_numbers(episode.rows), strict=True):
            for segment, turn in zip(row.segments, numbers, strict=True):
                if turn == len(turns):
                    turns.append(0.0)
                if segment.reward is not None and turns:
                    turns[-1] += segment.reward
        found.append((turns, episode.reward))
    return Rewards.from_episodes(found, prompts)
