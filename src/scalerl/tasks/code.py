"""The task `code`: a program is taken from the answer and run on unit tests in the sandbox.

There are two kinds of tests, read from the usual columns (`unit_tests.py`):

- `inputs` and `outputs` (or `input_output`, `tests` with `input`/`output`): text on standard input,
  and what the program must print (trailing blanks and empty lines at the end do not count);
- `test_list`: Python with `assert`, as in MBPP, with `test_imports` and `test_setup_code`; or
  `test` with a function `check`, and `entry_point`, as in HumanEval.

The program only *computes* outputs and values. They are compared elsewhere: outputs in this
process, values in a separate interpreter. A program that forges results, ends the process or
patches what it finds still has to produce the right values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from scalerl.errors import InputError
from scalerl.tasks.data import Downstream, RowsTask, with_instruction
from scalerl.tasks.sandbox import Namespaces, find_sandbox
from scalerl.tasks.sandboxed_process import Limits, SandboxResult
from scalerl.tasks.task import (
    DEFAULT_RULES,
    Answer,
    AnswerScore,
    Prompt,
    Question,
    Rules,
    map_threads,
)
from scalerl.tasks.unit_tests import UnitTests, read_tests

BLOCK = re.compile(r"```[ \t]*(?:python|py|python3)[ \t]*\r?\n(.*?)```", re.DOTALL | re.IGNORECASE)
INSTRUCTION = "Write your solution in Python, in one ```python block at the end of your answer."
#: Characters of a program; a longer one is not run.
LONGEST = 100_000
PASSED = "all tests passed"


class CodeTask(RowsTask):
    """The task `code`. `seconds`, `cpu_seconds` and `memory_mb` limit one run of a program; at
    most `tests` tests are run, and the first that fails decides."""

    def __init__(
        self,
        dataset: str = "",
        *,
        rules: Rules = DEFAULT_RULES,
        held_out_share: float = 0.05,
        split: str = "train",
        seconds: float = 10.0,
        cpu_seconds: int = 5,
        memory_mb: int = 512,
        tests: int = 20,
        workers: int = 2,
        chat: bool = True,
        instruction: str = INSTRUCTION,
        downstream: Downstream | None = None,
    ) -> None:
        self.sandbox = find_sandbox()
        self.limits = Limits(seconds, cpu_seconds, memory_mb * 1024**2)
        self.workers = workers
        self._most, self._chat, self._instruction = tests, chat, instruction
        super().__init__(
            "code",
            dataset,
            rules=rules,
            held_out_share=held_out_share,
            split=split,
            downstream=downstream,
        )

    def question_of(self, question: Question, row: Mapping[str, Any]) -> Question:
        return with_instruction(question, self._instruction, self._chat)

    def answer_of(self, row: Mapping[str, Any], where: str) -> UnitTests:
        return read_tests(row, where, self._most)

    def _read(self, source: str, split: str) -> list[Prompt]:
        """The prompts with at least one usable test. A note says how many tests were left out."""
        prompts = super()._read(source, split)
        refused = [reason for prompt in prompts for reason in prompt.answer.refused]
        usable = [prompt for prompt in prompts if prompt.answer.usable]
        if not usable:
            raise InputError(f"no test of {source} can be used; the first: {refused[0]}")
        if refused:
            total = sum(len(p.answer.tests) + len(p.answer.refused) for p in prompts)
            self.notes.append(
                f"{source}: {len(refused)} of {total} tests cannot be used, which leaves "
                f"{len(usable)} of {len(prompts)} prompts; the first: {refused[0]}"
            )
        return usable

    def score(self, prompt: Prompt, completion: str) -> tuple[bool | None, str]:
        final = self.rules.final_text(prompt.question, completion)
        if final is None:
            return False, "no answer: the thought is not closed"
        code = extract(final)
        if code is None:
            return False, "no ```python block"
        return run_tests(code, prompt.answer, self.sandbox, self.limits)

    def check_all(self, answers: Sequence[Answer]) -> list[AnswerScore]:
        return map_threads(lambda a: self.check(a.prompt, a.text), answers, self.workers)


def extract(text: str) -> str | None:
    """The last ```python block.

    >>> extract("Try:\\n```python\\nprint(1)\\n```\\nBetter:\\n```python\\nprint(2)\\n```")
    'print(2)\\n'
    """
    blocks = BLOCK.findall(text)
    return str(blocks[-1]) if blocks else None


def run_tests(
    code: str, tests: UnitTests, sandbox: Namespaces, limits: Limits
) -> tuple[bool | None, str]:
    """Whether the program passes all tests, and the first failure; None if the sandbox did not
    start."""
    if len(code) > LONGEST:
        return False, f"the program is longer than {LONGEST} characters"
    if "\x00" in code:
        return False, "the program contains a null byte"
    try:
        code.encode()
    except UnicodeEncodeError:
        return False, "the program is not valid Unicode"
    for number, (given, wanted) in enumerate(zip(tests.inputs, tests.outputs, strict=True), 1):
        done = sandbox.run(code, given, limits)
        if not done.started:
            return None, f"the sandbox did not start: {_failure(done)}"
        if done.killed or done.exit_code != 0:
            return False, f"test {number}: {_failure(done)}"
        if _lines(done.output.decode(errors="replace")) != _lines(wanted):
            return False, f"test {number}: wrong output"
    return _run_asserts(code, tests, sandbox, limits) if tests.tests else (True, PASSED)


def _run_asserts(
    code: str, tests: UnitTests, sandbox: Namespaces, limits: Limits
) -> tuple[bool | None, str]:
    words = {name: getattr(tests, name) for name in ("setup", "imports", "tests", "names")}
    program, tester = sandbox.run_tests(code, words, limits)
    for done in (program, tester):
        if not done.started:
            return None, f"the sandbox did not start: {_failure(done)}"
    said = tester.errors.decode(errors="replace").splitlines()
    held = sum(line == "ok" for line in said)
    # All lines are "ok", and there is one for each test: a tester that was killed early has fewer.
    if held == len(tests.tests) == len(said):
        return True, PASSED
    result, _, why = said[held].partition(" ") if len(said) > held else ("gone", "", "")
    if result == "unfit":
        return None, f"test {held + 1} cannot be used: {why}"
    if tester.killed or result == "gone":
        return False, f"test {held + 1}: {_failure(program)}"
    return False, f"test {held + 1}: {why if ':' in why else 'wrong value'}"


def _lines(text: str) -> list[str]:
    # Judges of programming contests ignore trailing blanks and empty lines too.
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _failure(done: SandboxResult) -> str:
    """Why a run failed: it was killed, or the last line of its traceback."""
    if done.killed:
        return done.killed
    words = [w for w in done.errors.decode(errors="replace").splitlines() if w.strip()]
    return words[-1][:200] if words else f"ended with exit code {done.exit_code}"
