"""The teachers of the games: right in format, bad at the game.

The *hasty* teacher of `tiny-tools` mostly makes up an answer instead of looking up the next key.
The *timid* teacher of `tiny-guess` mostly guesses one of the lowest numbers that are possible.
Both habits are the likeliest behaviour, so greedy decoding is bad too; both leave a better play to
be found by sampling.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, ClassVar

from scalerl.environments.games import guess, lookups
from scalerl.environments.games.pool import HELD_OUT_SHARE
from scalerl.models.tiny.sampling import play
from scalerl.models.tiny.teacher import Part
from scalerl.models.tiny.tokenizer import GUESS_VOCABULARY, TOOLS_VOCABULARY
from scalerl.tasks.running_sums import END
from scalerl.tasks.task import held_out, make_prompt


class Player:
    """What the teachers of games share."""

    #: The environment that is played.
    game: ClassVar[type[lookups.Lookups] | type[guess.GuessTheNumber]]
    limits: ClassVar[dict[str, Any]]

    def pass_rate(
        self, model: Any, tokenizer: Any, rollouts: int, seed: int = 0, greedy: bool = False
    ) -> float:
        """The pass rate of a model on held-out prompts."""
        asked = [row["prompt"] for row in self.game.prompts()]
        kept = [make_prompt("", each, None) for each in asked if held_out(each, HELD_OUT_SHARE)]
        prompts = list(islice(cycle(kept), rollouts))
        won = play(model, tokenizer, self.game, prompts, self.limits["turns"], seed, greedy)
        return sum(won) / rollouts


@dataclass(frozen=True, slots=True)
class HastyTeacher(Player):
    """Plays `tiny-tools`."""

    game = lookups.Lookups
    vocabulary: ClassVar[tuple[str, ...]] = TOOLS_VOCABULARY
    #: Turns of the preset `tiny-tools`.
    limits: ClassVar[dict[str, Any]] = {"turns": 8}

    #: Chance, at every key, that the teacher makes up an answer instead of looking the key up.
    makes_up: float = 0.55
    #: Chance that a sum is wrong.
    slip: float = 0.03

    def lesson(self, source: random.Random, clean: bool) -> list[Part]:
        """An episode; a clean one has no made-up answers and no slips."""
        asked = _shown(lookups.question, lookups.SIZES, source)
        parts = [(asked, False)]
        total = 0
        for place, key in enumerate(asked.removesuffix(lookups.EQUALS)):
            if not clean and source.random() < self.makes_up:
                return [*parts, (f"{lookups.EQUALS}{source.randrange(10)}{END}", True)]
            shown = str(total) if place else ""
            parts.append((f"{shown}{lookups.CALL}{key}{lookups.CALL_END}{END}", True))
            digit = source.randrange(10)
            parts.append((str(digit), False))
            slips = not clean and source.random() < self.slip
            total = (total + digit + (source.randint(1, 9) if slips else 0)) % 10
        return [*parts, (f"{lookups.EQUALS}{total}{END}", True)]


@dataclass(frozen=True, slots=True)
class TimidTeacher(Player):
    """Plays `tiny-guess`."""

    game = guess.GuessTheNumber
    vocabulary: ClassVar[tuple[str, ...]] = GUESS_VOCABULARY
    #: Turns of the preset `tiny-guess`.
    limits: ClassVar[dict[str, Any]] = {"turns": 4}

    #: A guess is the lowest possible number plus u to this power of the rest, u uniform in 0 to 1.
    power: float = 2.0
    #: Chance that a guess is any number at all.
    slip: float = 0.03
    #: Turns of an episode.
    turns: int = 10

    def lesson(self, source: random.Random, clean: bool) -> list[Part]:
        """An episode; a clean one has no slips."""
        asked = _shown(guess.question, guess.WIDTHS, source)
        opponent = guess.Opponent(*guess.range_of(asked), source.randrange(2**32))
        parts = [(asked, False)]
        for _ in range(self.turns):
            room = opponent.high - opponent.low + 1
            number = opponent.low + int(room * source.random() ** self.power)
            if not clean and source.random() < self.slip:
                number = source.randrange(guess.LARGEST + 1)
            parts.append((f"{guess.written(number)}{END}", True))
            hint = opponent.reply(number)
            if hint is None:
                break
            parts.append((hint, False))
        return parts


def _shown(
    question: Callable[[int, random.Random], str], sizes: Sequence[int], source: random.Random
) -> str:
    """A random question that is not held out."""
    while held_out(asked := question(source.choice(sizes), source), HELD_OUT_SHARE):
        pass
    return asked
