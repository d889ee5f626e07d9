"""Mathematics: questions from a file or dataset, answers checked by math-verify.

The last \\boxed{…}, LaTeX formula or number after the thought is compared with the reference. The
comparison never runs in this process: `pool.py` has worker processes with a hard time limit. An
answer that hangs or kills its checker is wrong, and its worker is replaced; a reference that does
so is unscored, since the policy is not to blame.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any, Self

from scalerl.errors import InputError
from scalerl.tasks.data import Downstream, RowsTask
from scalerl.tasks.pool import CheckerPool, map_threads
from scalerl.tasks.task import DEFAULT_RULES, Answer, Checked, Prompt, Question, Rules

INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."
#: Characters of an answer that are looked at: its end, where the result stands.
LONGEST = 4000


class MathTask(RowsTask):
    """The task `math`. Text questions are asked as a chat with an instruction unless `chat` is
    off; `seconds` is the limit for one answer, `workers` the number of checking processes."""

    def __init__(
        self,
        dataset: str = "",
        *,
        rules: Rules = DEFAULT_RULES,
        held_out_share: float = 0.05,
        split: str = "train",
        seconds: float = 5.0,
        workers: int = 2,
        chat: bool = True,
        instruction: str = INSTRUCTION,
        downstream: Downstream | None = None,
    ) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise InputError("task math needs its checker: pip install math-verify")
        self._chat, self._instruction = chat, instruction
        super().__init__(
            "math",
            dataset,
            rules=rules,
            held_out_share=held_out_share,
            split=split,
            downstream=downstream,
        )
        self.pool = CheckerPool(workers, seconds)

    def question_of(self, question: Question, row: Mapping[str, Any]) -> Question:
        if not isinstance(question, str):
            return question
        text = f"{question}\n\n{self._instruction}".strip()
        return ({"role": "user", "content": text},) if self._chat else text

    def answer_of(self, row: Mapping[str, Any], where: str) -> str:
        return str(super().answer_of(row, where))

    def judge(self, prompt: Prompt, completion: str) -> tuple[bool | None, str]:
        final = self.rules.final_text(prompt.question, completion)
        if final is None:
            return False, "no answer: the thought is not closed"
        if not final.strip():
            return False, "no answer: nothing after the thought"
        return self.pool.compare(str(prompt.answer), final[-LONGEST:])

    def check_all(self, answers: Sequence[Answer]) -> list[Checked]:
        return map_threads(lambda a: self.check(a.prompt, a.text), answers, self.pool.workers)

    def for_checking(self) -> Self:
        light = super().for_checking()
        light.pool = CheckerPool(self.pool.workers, self.pool.seconds)
        return light

    def close(self) -> None:
        self.pool.close()
