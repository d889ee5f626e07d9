"""The task `judge`: a language model scores the answers, at an OpenAI-compatible address.

    [task]
    name = "judge"
    dataset = "questions.jsonl"
    [task.options]
    address = "http://127.0.0.1:8100/v1"    # `scalerl host MODEL`, vLLM, or a provider
    model = "judge"

The judge reads the instruction with the question, the answer and the reference filled in, and ends
its reply with a number. What it read and wrote is counted in the run's ledger.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scalerl.errors import InputError
from scalerl.tasks.data import Downstream, RowsTask
from scalerl.tasks.task import DEFAULT_RULES, AnswerScore, Prompt, Rules, named
from scalerl.text import one_line

INSTRUCTION = """Question:
{question}

Reference answer (may be empty):
{reference}

Answer to be scored:
{answer}

Score the answer from 0 (wrong or useless) to 1 (right and complete). End with a line "Score: x"."""
#: What stands before a score, and the number. The last match in a reply counts.
PATTERN = r"(?i)score\W*?(-?\d+(?:\.\d+)?)"
#: Attempts to reach the judge: a server that is restarted, or says that it is busy.
ATTEMPTS = 3
#: Status codes after which another attempt may succeed.
BUSY = (408, 429, 500, 502, 503, 504)
#: Longest reply that is read, in bytes.
MAX_BYTES = 1 << 20
#: Names of the metrics by which the ledger counts a judge: tokens that it read, tokens that it
#: wrote, and seconds of its devices, where it reports them.
READ_TOKENS = "judge/read_tokens"
WRITTEN_TOKENS = "judge/written_tokens"
DEVICE_SECONDS = "judge/device_seconds"


@dataclass(frozen=True, slots=True)
class Judge:
    """A chat model at an OpenAI-compatible address."""

    #: As in http://HOST:PORT/v1.
    address: str
    model: str
    #: Name of the environment variable with the key; its value is never in a record.
    key: str = ""
    max_tokens: int = 512
    temperature: float = 0.0
    #: Seconds that one request may take.
    seconds: float = 50.0

    def ask(self, *messages: tuple[str, str]) -> tuple[str, dict[str, float]]:
        """The reply to messages (role, text), and what it cost, by the names of the ledger's
        metrics."""
        body = {"model": self.model, "max_tokens": self.max_tokens,
                "temperature": self.temperature,
                "messages": [{"role": r, "content": text} for r, text in messages]}  # fmt: skip
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {os.environ.get(self.key, '')}"
        url = f"{self.address.rstrip('/')}/chat/completions"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        for attempt in range(ATTEMPTS):
            try:
                with urllib.request.urlopen(request, timeout=self.seconds) as reply:
                    return _read(json.loads(reply.read(MAX_BYTES)))
            except urllib.error.HTTPError as error:
                if error.code not in BUSY or attempt == ATTEMPTS - 1:
                    raise
            except (OSError, http.client.HTTPException):  # not reached, or broken off
                if attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError("not reached")


def _read(body: Mapping[str, Any]) -> tuple[str, dict[str, float]]:
    """The text of a reply, and its cost."""
    usage = body.get("usage") or {}
    cost = {
        READ_TOKENS: usage.get("prompt_tokens") or 0,
        WRITTEN_TOKENS: usage.get("completion_tokens") or 0,
        DEVICE_SECONDS: usage.get("device_seconds") or 0.0,
    }
    return str(body["choices"][0]["message"]["content"] or ""), {
        name: float(value) for name, value in cost.items()
    }


class JudgeTask(RowsTask):
    """Prompts from a file or dataset, rewards from a judge. The reward is the judge's number; an
    answer counts as correct in the pass rate from `correct_from` on."""

    def __init__(
        self,
        dataset: str = "",
        *,
        address: str = "",
        model: str = "judge",
        key: str = "",
        instruction: str = INSTRUCTION,
        pattern: str = PATTERN,
        conversation: bool = False,
        max_tokens: int = 512,
        temperature: float = 0.0,
        correct_from: float = 0.5,
        rules: Rules = DEFAULT_RULES,
        held_out_share: float = 0.05,
        split: str = "train",
        downstream: Downstream | None = None,
    ) -> None:
        super().__init__("judge", dataset, rules=rules, held_out_share=held_out_share, split=split,
                         downstream=downstream, needs_answer=False)  # fmt: skip
        if not address.startswith(("http://", "https://")):
            raise InputError(
                f"task.options.address = {address!r} of task judge: give the address of a chat "
                "model, such as http://127.0.0.1:8100/v1"
            )
        if "{answer}" not in instruction:
            raise InputError("task.options.instruction of task judge has no {answer} in it")
        if key and key not in os.environ:
            raise InputError(
                f"task.options.key = {key!r} of task judge names an environment variable that is "
                "not set"
            )
        try:
            self.pattern = re.compile(pattern)
        except re.error as error:
            raise InputError(f"task.options.pattern = {pattern!r} of task judge: {error}") from None
        self.client = Judge(address, model, key, max_tokens, temperature)
        self.instruction, self.correct_from = instruction, correct_from
        #: Whether the judge gets the question and the answer as a conversation, without the
        #: instruction: a reward model.
        self.conversation = conversation

    def score(self, prompt: Prompt, completion: str) -> tuple[bool | None, str]:
        found = self.check(prompt, completion)
        return found.correct, found.why

    def check(self, prompt: Prompt, completion: str) -> AnswerScore:
        answer = self.rules.final_text(prompt.question, completion)
        if answer is None:
            return self.rules.score(False, "the thought is not closed: nothing to be judged")
        try:
            reply, cost = self.client.ask(*self._messages(prompt, answer))
        except Exception as error:  # the judge may be away, or answer anything
            return AnswerScore.unscored(f"the judge at {self.client.address}: {named(error)}")
        metrics = tuple(cost.items())
        value = self._number(reply)
        if value is None:
            why = one_line(f"the judge gave no score: {reply[-200:]}")
            return AnswerScore(None, None, why, metrics=metrics)
        why = f"the judge gave {value:g}"
        return AnswerScore(value >= self.correct_from, value, why, metrics=metrics)

    def _number(self, reply: str) -> float | None:
        """The score in a reply; None if there is none."""
        found = [m[1] if m.re.groups else m[0] for m in self.pattern.finditer(reply)]
        try:
            value = float(found[-1])
        except (IndexError, TypeError, ValueError):
            return None
        return value if math.isfinite(value) else None

    def _messages(self, prompt: Prompt, answer: str) -> list[tuple[str, str]]:
        """What the judge is sent, as (role, text)."""
        question = prompt.question
        if self.conversation:
            asked = [("user", question)] if isinstance(question, str) else [
                (m["role"], m["content"]) for m in question
            ]  # fmt: skip
            return [*asked, ("assistant", answer.strip())]
        if not isinstance(question, str):
            question = "\n".join(f"{m['role']}: {m['content']}" for m in question)
        parts = {"question": question, "answer": answer.strip(), "reference": prompt.answer or ""}
        # One pass, so that braces in an answer stay as they are.
        text = re.sub(
            r"\{(question|answer|reference)\}", lambda m: str(parts[m[1]]), self.instruction
        )
        return [("user", text)]
