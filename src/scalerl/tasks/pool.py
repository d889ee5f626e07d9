"""Worker processes that compare mathematics, each killed and replaced when it exceeds its time.

A worker is `math_worker.py` in a fresh interpreter, spoken to in JSON lines: nothing of what an
answer makes it build comes back but a verdict.
"""

from __future__ import annotations

import json
import os
import queue
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from scalerl.errors import InputError

#: Importing sympy and math-verify takes seconds, and far more on a loaded machine.
START_SECONDS = 120.0
WORKER = Path(__file__).with_name("math_worker.py")
A = TypeVar("A")
B = TypeVar("B")


class Died(Exception):
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
        except Died as error:
            self.kill()
            raise InputError(
                f"the checker of mathematics does not start ({error}): "
                "check that `python -c 'import math_verify'` works"
            ) from None

    def compare(self, reference: str, answer: str, seconds: float) -> tuple[bool | None, str]:
        """The worker's verdict; raises Died past the limit or if the worker falls over."""
        asked = {"reference": reference, "answer": answer, "seconds": seconds}
        request = json.dumps(asked) + "\n"
        deadline = time.monotonic() + seconds
        stage = "reference"
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(request.encode())
            self._process.stdin.flush()
        except OSError as error:
            raise Died("start", f"the checker is gone ({error})") from None
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
                    raise Died(stage, "it took longer than the time limit")
                chunk = os.read(self._process.stdout.fileno(), 65536)
                if not chunk:
                    raise Died(stage, "the checker fell over")
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


class CheckerPool:
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

    def __reduce__(self) -> tuple[type[CheckerPool], tuple[int, float]]:
        """In another process: a pool of the same size, none of whose workers has started."""
        return CheckerPool, (self.workers, self.seconds)

    def compare(self, reference: str, answer: str) -> tuple[bool | None, str]:
        """Whether the answer says the same as the reference; None if the reference is unusable."""
        worker = self._idle.get()
        try:
            worker = worker or MathWorker()
            return worker.compare(reference, answer, self.seconds)
        except Died as error:
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


def map_threads(function: Callable[[A], B], items: Sequence[A], workers: int) -> list[B]:
    """The function of every item, in order, so many at a time."""
    if len(items) < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(workers) as threads:
        return list(threads.map(function, items))
