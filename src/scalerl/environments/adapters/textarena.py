"""Single-player games of textarena.

A game's observation is made for chat endpoints: one text with everything said so far, the player's
own words included. Only what the game says anew is shown here, since the rest is in the row
already. The wrappers that make that text are taken off, and so are those that change the player's
words.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from scalerl.environments.adapters.base import Adapter, seed_of
from scalerl.environments.adapters.imports import imported
from scalerl.environments.interface import Action, Observation, Outcome
from scalerl.tasks.task import Prompt

#: The player that the model is.
_PLAYER = 0


class TextarenaEnvironment(Adapter):
    """A game for one player."""

    def __init__(self, thing: Any, correct_from: float = 1.0) -> None:
        super().__init__(list(_unwrapped(thing))[-1], correct_from)

    async def reset(self, prompt: Prompt, seed: int) -> Observation:
        await self.call(self.thing.reset, num_players=1, seed=seed_of(prompt, seed))
        return self.observed(await self.call(self._news))

    async def step(self, action: Action) -> Observation | Outcome:
        done, _ = await self.call(self.thing.step, action.text)
        return await self._scored() if done else self.observed(await self.call(self._news))

    async def cut_off(self) -> Outcome | None:
        return self.ended(0.0)

    async def _scored(self) -> Outcome:
        rewards, _ = await self.call(self.thing.close)
        return self.ended(rewards[_PLAYER] if rewards else 0.0)

    async def close(self) -> None:
        self.thread.stop()  # closing a game only returns its rewards

    def _news(self) -> str:
        """What the game said since the last call, as text."""
        _, messages = self.thing.get_observation()
        return "\n".join(text for sender, text, *_ in messages if sender != _PLAYER)


def _unwrapped(game: Any) -> Iterator[Any]:
    """The game and what it wraps, from outside to inside. (By `__dict__`: a wrapper passes every
    other attribute on to what it wraps.)"""
    yield game
    while (game := vars(game).get("env")) is not None:
        yield game


def textarena(prompt: Prompt, game: str, **settings: Any) -> Any:
    """A game by its id, such as "GuessTheNumber-v0"."""
    return imported("textarena", "textarena").make(game, **settings)
