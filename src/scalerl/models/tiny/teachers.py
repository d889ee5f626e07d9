"""The teachers by name, and what a warm start needs of a teacher."""

from __future__ import annotations

import random
from typing import Any, ClassVar, Protocol

from scalerl.models.tiny.players import HastyTeacher, TimidTeacher
from scalerl.models.tiny.teacher import Noise, Part


class Teacher(Protocol):
    """Shows a model how to do a task: in the right format, and with mistakes. A dataclass."""

    #: Tokens of the task, in the order of their ids.
    vocabulary: ClassVar[tuple[str, ...]]
    #: The limits under which the pass rate is measured, for the card of the model.
    limits: ClassVar[dict[str, Any]]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def lesson(self, source: random.Random, clean: bool) -> list[Part]:
        """One question and all that follows it; a clean lesson has fewer mistakes."""
        ...

    def pass_rate(
        self, model: Any, tokenizer: Any, rollouts: int, seed: int = 0, greedy: bool = False
    ) -> float:
        """The pass rate of a model on held-out prompts, at temperature 1 or greedy: where the curve
        of a run will start."""
        ...


#: By the names that `scalerl warmstart --teacher` knows.
TEACHERS: dict[str, Teacher] = {
    "forgetful": Noise(forgets_carry=0.65, rate=0.08, redo=0.0),
    "noisy": Noise(),
    "hasty": HastyTeacher(),
    "timid": TimidTeacher(),
}
