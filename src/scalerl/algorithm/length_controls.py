"""Length controls by the names that recipes use (`length.control`).

    interruption  a phrase ends a long thought (length.py)
    penalty       a rollout is cut off at a limit; its reward falls before that (`length_penalty`)
    none          a rollout is cut off at a limit

To add a control, write a function `(vocabulary, **constants) -> LengthControl` and register it, or
name it in the recipe by its import path. Its constants are keys of [length]: `max_tokens`, which
every control of your own has, and any further ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scalerl.algorithm.length import EndOfThought, Interruption, LengthControl, Limit
from scalerl.recipe.length import LENGTH_NAMES
from scalerl.registry import Registry


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a length control needs of the model's tokenizer."""

    #: Text -> token ids, without special tokens around them.
    encode: Callable[[str], Sequence[int]]
    #: The bytes that each token of the vocabulary adds to the text. A function, because only some
    #: controls need them, and a large vocabulary takes a second.
    pieces: Callable[[], Sequence[bytes]]
    #: Text that closes a thought (`task.think_close`).
    think_close: str
    #: Token ids with which the model ends a rollout.
    stop_ids: tuple[int, ...]


#: (vocabulary, **constants of the section) -> the control of a run
MakeControl = Callable[..., LengthControl]

LENGTH_CONTROLS: Registry[MakeControl] = Registry("length control", announce=LENGTH_NAMES.add)


@LENGTH_CONTROLS.register("none")
def limit(vocabulary: Vocabulary, *, max_tokens: int) -> LengthControl:
    """A limit alone."""
    return Limit(max_tokens, vocabulary.stop_ids)


@LENGTH_CONTROLS.register("penalty")
def penalty(
    vocabulary: Vocabulary, *, max_tokens: int, penalty_max: int, penalty_cache: int
) -> LengthControl:
    """A limit; the penalty acts on rewards (`penalised_reward`)."""
    return Limit(max_tokens, vocabulary.stop_ids)


@LENGTH_CONTROLS.register("interruption")
def interruption(
    vocabulary: Vocabulary,
    *,
    phrase: str,
    think_tokens_min: int,
    think_tokens_max: int,
    answer_tokens: int,
) -> LengthControl:
    """Forced interruption by the recipe's phrase and budgets."""
    return Interruption(
        tuple(vocabulary.encode(phrase)),
        EndOfThought.from_text(vocabulary.think_close, vocabulary.pieces()),
        think_min=think_tokens_min,
        think_max=think_tokens_max,
        answer_tokens=answer_tokens,
        stop_ids=vocabulary.stop_ids,
    )
