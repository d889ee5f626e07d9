"""The tasks `reasoning-gym:NAME`: any dataset of reasoning-gym.

Questions are made from a seed. The dataset's own `score_answer` gives 0 to 1, some with partial
credit; an answer counts as correct from `correct_from` on (0.99, because the floating-point score
of a perfect answer may be slightly below 1).
"""

from __future__ import annotations

import importlib.util
import re
from typing import Any, Self

from scalerl.errors import InputError
from scalerl.tasks.data import with_instruction
from scalerl.tasks.task import DEFAULT_RULES, Prompt, Rules, Task, make_prompt

TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
INSTRUCTION = "Think first, then give only the final answer between <answer> and </answer>."


class ReasoningGym(Task):
    """`size` questions made from `data_seed`. Further options are passed to the dataset."""

    def __init__(
        self,
        about: str,
        dataset: str = "",
        *,
        rules: Rules = DEFAULT_RULES,
        size: int = 5000,
        data_seed: int = 0,
        held_out_share: float = 0.1,
        correct_from: float = 0.99,
        chat: bool = True,
        instruction: str = INSTRUCTION,
        **config: Any,
    ) -> None:
        super().__init__(f"reasoning-gym:{about}", rules=rules, held_out_share=held_out_share)
        self.correct_from = correct_from
        self._made_from = (about, size, data_seed, config)
        self._dataset = _create(*self._made_from)
        found: dict[str, Prompt] = {}
        for number in range(size):
            entry = self._dataset[number]
            # Only the number of the entry is kept: `score` makes the entry again from it.
            prompt = make_prompt(
                self.name,
                with_instruction(entry["question"], instruction, chat),
                entry["answer"],
                columns={"entry": number},
                content=entry["question"],
            )
            found.setdefault(prompt.id, prompt)
        self._prompts = list(found.values())

    def for_checking(self) -> Self:
        light = super().for_checking()
        light._dataset, light._prompts = None, []
        return light

    def prompts(self) -> list[Prompt]:
        return self._prompts

    def score(self, prompt: Prompt, completion: str) -> tuple[bool | None, str]:
        final = self.rules.final_text(prompt.question, completion)
        if final is None:
            return False, "no answer: the thought is not closed"
        answer = extract(final)
        if self._dataset is None:  # this is the copy in a checker process
            self._dataset = _create(*self._made_from)
        entry = self._dataset[int(prompt.columns["entry"])]
        score = float(self._dataset.score_answer(answer, entry))
        return score >= self.correct_from, f"score {score:.3g} for {answer[:60]!r}"


def extract(text: str) -> str:
    """The text between the last <answer> tags, or the whole text.

    >>> extract("so <answer> 12 </answer>."), extract(" 12 ")
    ('12', '12')
    """
    tagged = TAGGED.findall(text)
    return str(tagged[-1] if tagged else text).strip()


def _create(name: str, size: int, seed: int, config: dict[str, Any]) -> Any:
    if importlib.util.find_spec("reasoning_gym") is None:
        raise InputError(f"reasoning-gym:{name} needs its package: pip install reasoning-gym")
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    if name not in DATASETS:
        from difflib import get_close_matches

        near = get_close_matches(name, DATASETS, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else "see the list of datasets in its README"
        raise InputError(f"reasoning-gym has no dataset {name!r}: {hint}")
    try:
        return reasoning_gym.create_dataset(name, size=size, seed=seed, **config)
    except (TypeError, AssertionError, ValueError) as error:
        raise InputError(f"reasoning-gym:{name} refuses its options: {error}") from None
