"""Length controls by the names that recipes use (`length.control`).

    interruption  a phrase ends a long thought (length.py)
    penalty       a rollout is cut off at a limit; its reward falls before that (`length_penalty`)
    none          a rollout is cut off at a limit

To add a control, write a function `(section, vocabulary) -> LengthControl` and register it, or name
it in the recipe by its import path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scalerl.algorithm.length import EndOfThought, Interruption, LengthControl, Limit
from scalerl.recipe.sections_algorithm import LengthSection
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


MakeControl = Callable[[LengthSection, Vocabulary], LengthControl]

LENGTH_CONTROLS: Registry[MakeControl] = Registry("length control")


@LENGTH_CONTROLS.register("none")
@LENGTH_CONTROLS.register("penalty")
def limit(length: LengthSection, vocabulary: Vocabulary) -> LengthControl:
    """A limit alone."""
    return Limit(length.longest, vocabulary.stop_ids)


@LENGTH_CONTROLS.register("interruption")
def interruption(length: LengthSection, vocabulary: Vocabulary) -> LengthControl:
    """Forced interruption by the recipe's phrase and budgets."""
    return Interruption(
        tuple(vocabulary.encode(length.phrase or "")),
        EndOfThought.from_text(vocabulary.think_close, vocabulary.pieces()),
        think_min=length.think_tokens_min or 0,
        think_max=length.think_tokens_max or 0,
        answer_tokens=length.answer_tokens or 0,
        stop_ids=vocabulary.stop_ids,
    )
