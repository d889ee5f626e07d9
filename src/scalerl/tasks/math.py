"""Mathematics: questions from a file or dataset, answers checked by math-verify.

The last \\boxed{…}, LaTeX formula or number after the thought is compared with the reference. The
comparison never runs in this process: `pool.py` has worker processes with a hard time limit. An
answer that hangs or kills its checker is wrong, and its worker is replaced; a reference that does
so is unscored, since the policy is not to blame.
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
from scalerl.tasks.data import Downstream, RowsTask
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
#: Characters of an answer that are looked at: its end, where the result stands.
LONGEST = 4000
#: Importing sympy and math-verify takes seconds, and far more on a loaded machine.
START_SECONDS = 120.0
WORKER = Path(__file__).with_name("math_worker.py")


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
        self.pool = MathWorkerPool(workers, seconds)

    def question_of(self, question: Question, row: Mapping[str, Any]) -> Question:
        if not isinstance(question, str):
            return question
        text = f"{question}\n\n{self._instruction}".strip()
        return ({"role": "user", "content": text},) if self._chat else text

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
    """The worker gave no verdict; `stage` says which side it was reading."""

    def __init__(self, stage: str, why: str) -> None:
        super().__init__(why)
        self.stage = stage


class MathWorker:
    """One checking process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
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
                f"the checker of mathematics does not start ({error}): "
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
            raise MathWorkerDied("start", f"the checker is gone ({error})") from None
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
                    raise MathWorkerDied(stage, "the checker fell over")
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
                    continue  # it died with a request in the pipe


class MathWorkerPool:
    """A fixed number of workers, started when first needed; safe to use from several threads."""

    def __init__(self, workers: int = 2, seconds: float = 5.0) -> None:
        if workers < 1 or seconds <= 0:
            raise InputError(f"{workers} workers of {seconds} s: give at least one, and a time")
        self.workers, self.seconds = workers, seconds
        #: Workers killed over an answer so far.
        self.killed = 0
        self._idle: queue.SimpleQueue[MathWorker | None] = queue.SimpleQueue()
        for _ in range(workers):
            self._idle.put(None)

    def __reduce__(self) -> tuple[type[MathWorkerPool], tuple[int, float]]:
        """In another process: a pool of the same size, none of whose workers has started."""
        return MathWorkerPool, (self.workers, self.seconds)

    def compare(self, reference: str, answer: str) -> tuple[bool | None, str]:
        """Whether the answer says the same as the reference; None if the reference is unusable."""
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
        """End all workers; the pool starts new ones if it is used again."""
        for _ in range(self.workers):
            worker = self._idle.get()
            if worker is not None:
                worker.kill()
            self._idle.put(None)
