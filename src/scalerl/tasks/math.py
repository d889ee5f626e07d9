"""The task `math`: questions from a file or dataset, answers compared by math-verify.

The last \\boxed{…}, LaTeX formula or number after the thought is compared with the reference. The
comparison runs in separate worker processes (`math_worker.py`) with a hard time limit. An answer
that makes its worker hang or crash is wrong, and the worker is replaced; a reference that does so
leaves the answer unscored, since the policy is not to blame.
"""

from __future__ import annotations

import importlib.util
import json
import os
import queue
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from scalerl.errors import InputError
from scalerl.tasks.data import Downstream, RowsTask, with_instruction
from scalerl.tasks.task import (
    DEFAULT_RULES,
    Answer,
    AnswerScore,
    Prompt,
    Question,
    Rules,
    map_threads,
)

INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."
#: Characters at the end of an answer that are compared: the result is there.
LONGEST = 4000
#: Time limit for the start of a worker: importing sympy takes seconds, and far more on a busy
#: machine.
START_SECONDS = 120.0
WORKER = Path(__file__).with_name("math_worker.py")


class MathTask(RowsTask):
    """The task `math`. `seconds` is the time limit for one answer, `workers` the number of
    processes; `chat` and `instruction` say how a text question is put."""

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
            raise InputError("task math needs math-verify: pip install math-verify")
        self._chat, self._instruction = chat, instruction
        super().__init__(
            "math",
            dataset,
            rules=rules,
            held_out_share=held_out_share,
            split=split,
            downstream=downstream,
        )
        self.pool = MathWorkerPool(workers, seconds)

    def question_of(self, question: Question, row: Mapping[str, Any]) -> Question:
        return with_instruction(question, self._instruction, self._chat)

    def answer_of(self, row: Mapping[str, Any], where: str) -> str:
        return str(super().answer_of(row, where))

    def score(self, prompt: Prompt, completion: str) -> tuple[bool | None, str]:
        final = self.rules.final_text(prompt.question, completion)
        if final is None:
            return False, "no answer: the thought is not closed"
        if not final.strip():
            return False, "no answer: nothing after the thought"
        return self.pool.compare(str(prompt.answer), final[-LONGEST:])

    def check_all(self, answers: Sequence[Answer]) -> list[AnswerScore]:
        return map_threads(lambda a: self.check(a.prompt, a.text), answers, self.pool.workers)

    def for_checking(self) -> Self:
        light = super().for_checking()
        light.pool = MathWorkerPool(self.pool.workers, self.pool.seconds)
        return light

    def close(self) -> None:
        self.pool.close()


class MathWorkerDied(Exception):
    """A worker did not reply; `stage` says what it was reading: start, reference or answer."""

    def __init__(self, stage: str, why: str) -> None:
        super().__init__(why)
        self.stage = stage


class MathWorker:
    """One worker process. Requests and replies are JSON lines: an object that an answer makes the
    worker build never comes back."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            # Isolated (-I), so the worker gets this process's import path as arguments.
            [sys.executable, "-I", str(WORKER), *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.defpath, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"},
            start_new_session=True,
        )
        self._buffer = b""
        try:
            self._receive(time.monotonic() + START_SECONDS, "start")
        except MathWorkerDied as error:
            self.kill()
            raise InputError(
                f"the worker of math-verify does not start ({error}): "
                "check that `python -c 'import math_verify'` works"
            ) from None

    def compare(self, reference: str, answer: str, seconds: float) -> tuple[bool | None, str]:
        """What the worker found; raises MathWorkerDied if it is late or ends."""
        asked = {"reference": reference, "answer": answer, "seconds": seconds}
        request = json.dumps(asked) + "\n"
        deadline = time.monotonic() + seconds
        stage = "reference"
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(request.encode())
            self._process.stdin.flush()
        except OSError as error:
            raise MathWorkerDied("start", f"its process is gone ({error})") from None
        while True:
            reply = self._receive(deadline, stage)
            if "correct" in reply:
                return reply["correct"], str(reply["why"])
            stage = "answer"

    def _receive(self, deadline: float, stage: str) -> dict[str, Any]:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    raise MathWorkerDied(stage, "it took longer than the time limit")
                chunk = os.read(self._process.stdout.fileno(), 65536)
                if not chunk:
                    raise MathWorkerDied(stage, "its process ended")
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue  # the worker died with a request in the pipe


class MathWorkerPool:
    """A fixed number of workers, started when first needed. Safe to use from several threads."""

    def __init__(self, workers: int = 2, seconds: float = 5.0) -> None:
        if workers < 1 or seconds <= 0:
            raise InputError(
                f"task math with workers = {workers} and seconds = {seconds}: give at least 1 "
                "worker and more than 0 seconds"
            )
        self.workers, self.seconds = workers, seconds
        #: Workers killed so far because of an answer or a reference.
        self.killed = 0
        self._idle: queue.SimpleQueue[MathWorker | None] = queue.SimpleQueue()
        for _ in range(workers):
            self._idle.put(None)

    def __reduce__(self) -> tuple[type[MathWorkerPool], tuple[int, float]]:
        """Pickle as a new pool of the same size: processes cannot be sent."""
        return MathWorkerPool, (self.workers, self.seconds)

    def compare(self, reference: str, answer: str) -> tuple[bool | None, str]:
        """Whether the answer equals the reference, and why; None if the reference is unusable."""
        worker = self._idle.get()
        try:
            worker = worker or MathWorker()
            return worker.compare(reference, answer, self.seconds)
        except MathWorkerDied as error:
            if worker is not None:
                worker.kill()
            worker = None
            self.killed += 1
            if error.stage == "answer":
                return False, f"the answer could not be checked: {error}"
            return None, f"the reference could not be read: {error}"
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        """Kill all workers; the pool starts new ones if it is used again."""
        for _ in range(self.workers):
            worker = self._idle.get()
            if worker is not None:
                worker.kill()
            self._idle.put(None)
