"""Code: a program is taken from the answer and put to unit tests in the sandbox.

Two kinds of tests, in the columns people use:

- `inputs` and `outputs` (or `input_output`, `tests` with `input`/`output`): text on standard input,
  and what the program must print (trailing blanks and empty lines at the end do not count);
- `test_list`: lines of `assert EXPRESSION == VALUE` (also `is`, `assert EXPRESSION`, `assert not
  EXPRESSION`), as in MBPP.

The sandbox only *computes* outputs and expressions; expected values stay in this process and the
comparison is made here. A program that forges results, ends the process, or patches whatever it
finds has to produce the right values all the same.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalerl.errors import InputError
from scalerl.tasks.data import Downstream, RowsTask
from scalerl.tasks.pool import map_threads
from scalerl.tasks.sandbox import Limits, Sandbox, SandboxResult, find_sandbox
from scalerl.tasks.task import DEFAULT_RULES, Answer, Checked, Prompt, Question, Rules

BLOCK = re.compile(r"```[ \t]*(?:python|py|python3)[ \t]*\r?\n(.*?)```", re.DOTALL | re.IGNORECASE)
INSTRUCTION = "Write your solution in Python, in one ```python block at the end of your answer."
#: Programs longer than this are not run.
LONGEST = 100_000


@dataclass(frozen=True, slots=True)
class UnitTests:
    """What a program must do: print `outputs` for `inputs`, and give `values` for `calls`."""

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    values: tuple[Any, ...] = ()


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
        self.sandbox: Sandbox = find_sandbox()
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
        if not isinstance(question, str):
            return question
        text = f"{question}\n\n{self._instruction}".strip()
        return ({"role": "user", "content": text},) if self._chat else text

    def answer_of(self, row: Mapping[str, Any], where: str) -> UnitTests:
        return read_tests(row, where, self._most)

    def judge(self, prompt: Prompt, completion: str) -> tuple[bool | None, str]:
        final = self.rules.final_text(prompt.question, completion)
        if final is None:
            return False, "no answer: the thought is not closed"
        code = extract(final)
        if code is None:
            return False, "no ```python block"
        return run_tests(code, prompt.answer, self.sandbox, self.limits)

    def check_all(self, answers: Sequence[Answer]) -> list[Checked]:
        return map_threads(lambda a: self.check(a.prompt, a.text), answers, self.workers)


def extract(text: str) -> str | None:
    """The last ```python block.

    >>> extract("Try:\\n```python\\nprint(1)\\n```\\nBetter:\\n```python\\nprint(2)\\n```")
    'print(2)\\n'
    """
    blocks = BLOCK.findall(text)
    return str(blocks[-1]) if blocks else None


def run_tests(
    code: str, tests: UnitTests, sandbox: Sandbox, limits: Limits
) -> tuple[bool | None, str]:
    """Whether the program passes all tests, and the first thing it fails; None if the sandbox did
    not get as far as running it."""
    if len(code) > LONGEST:
        return False, f"the program is longer than {LONGEST} characters"
    if "\x00" in code:
        return False, "the program contains a null byte"
    try:
        code.encode()
    except UnicodeEncodeError:
        return False, "the program is not valid Unicode"
    for number, (given, wanted) in enumerate(zip(tests.inputs, tests.outputs, strict=True), 1):
        done = sandbox.run({"code": code, "input": given}, limits)
        if not done.started:
            return None, f"the sandbox did not start: {_failure(done)}"
        if done.killed or done.exit_code != 0:
            return False, f"test {number}: {_failure(done)}"
        if _lines(done.output.decode(errors="replace")) != _lines(wanted):
            return False, f"test {number}: wrong output"
    if tests.calls:
        done = sandbox.run({"code": code, "calls": list(tests.calls)}, limits)
        if not done.started:
            return None, f"the sandbox did not start: {_failure(done)}"
        found = done.output.splitlines()
        for number, wanted in enumerate(tests.values, 1):
            if len(found) < number:
                return False, f"test {number}: {_failure(done)}"
            if not _same(found[number - 1], wanted):
                return False, f"test {number}: wrong value"
    return True, "all tests passed"


def read_tests(row: Mapping[str, Any], where: str, most: int) -> UnitTests:
    """The tests of a row, in any of the usual columns."""
    pairs = row.get("input_output", row)
    if isinstance(pairs, str):
        pairs = _json(pairs, where)
    listed = row.get("tests")
    if isinstance(listed, str):
        listed = _json(listed, where)
    if isinstance(listed, Sequence) and listed and isinstance(listed[0], Mapping):
        inputs = [str(t.get("input", "")) for t in listed]
        outputs = [str(t.get("output", "")) for t in listed]
    else:
        inputs = [str(text) for text in pairs.get("inputs") or ()]
        outputs = [str(text) for text in pairs.get("outputs") or ()]
        listed = row.get("test_list") or listed or ()
    if len(inputs) != len(outputs):
        raise InputError(f"{where}: {len(inputs)} inputs and {len(outputs)} outputs; give pairs")
    asserts = [read_assert(str(t), where) for t in listed or () if not isinstance(t, Mapping)]
    if not inputs and not asserts:
        raise InputError(f"{where}: no tests; name the columns inputs and outputs, or test_list")
    return UnitTests(
        tuple(inputs[:most]),
        tuple(outputs[:most]),
        tuple(call for call, _ in asserts[:most]),
        tuple(value for _, value in asserts[:most]),
    )


def read_assert(line: str, where: str = "test") -> tuple[str, Any]:
    """The expression of an assertion, and the value it must have.

    >>> read_assert("assert add(1, 2) == 3"), read_assert("assert not odd(2)")
    (('add(1, 2)', 3), ('bool(odd(2))', False))
    """
    problem = InputError(f"{where}: {line[:60]!r} is not `assert EXPRESSION == VALUE`; rewrite it")
    try:
        body = ast.parse(line.strip()).body
    except (SyntaxError, ValueError):
        raise problem from None
    if len(body) != 1 or not isinstance(body[0], ast.Assert):
        raise problem
    test = body[0].test
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.Eq, ast.Is)):
        sides = [test.left, *test.comparators]
        if len(sides) == 2:
            for call, value in (sides, sides[::-1]):
                try:
                    return ast.unparse(call), ast.literal_eval(value)
                except (ValueError, TypeError, SyntaxError):
                    continue  # not a literal: the other side may be
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return f"bool({ast.unparse(test.operand)})", False
    return f"bool({ast.unparse(test)})", True


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: tests are not JSON ({error.msg}); fix the column") from None


def _same(line: bytes, wanted: Any) -> bool:
    try:
        return bool(_value(json.loads(line)["value"]) == wanted)
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return False  # not a result that `inside.py` writes: forged, and badly


def _value(plain: Any) -> Any:
    if not isinstance(plain, list):
        return plain
    kind, content = plain
    if kind == "dict":
        return {_value(key): _value(value) for key, value in content}
    if kind == "other":
        raise ValueError(content)
    build = {"list": list, "tuple": tuple, "set": set}[kind]
    return build(_value(item) for item in content)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _failure(done: SandboxResult) -> str:
    if done.killed:
        return done.killed
    words = [w for w in done.errors.decode(errors="replace").splitlines() if w.strip()]
    return words[-1][:200] if words else f"ended with exit code {done.exit_code}"
