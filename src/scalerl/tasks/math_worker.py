"""The worker process of the task `math`: compares answers, one JSON object per line in and out.

It is run by its path and does not import scalerl, which would make its start slower. It reports
when the reference is read, so that `math.py` knows whether reference or answer caused a failure.
"""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import sys
from functools import lru_cache
from typing import Any

#: Address space in bytes: an answer such as 9^9^9 must not take all memory of the machine.
MEMORY = 2 * 1024**3
#: Seconds after the time limit of a request at which the worker ends by itself: late enough for the
#: pool, even on a busy machine, to kill it first and give the reason.
LATE = 5


def reply(out: int, **message: Any) -> None:
    os.write(out, json.dumps(message).encode() + b"\n")


def main() -> None:
    # math-verify may print: its output goes to standard error and cannot be taken for a reply.
    out = os.dup(1)
    os.dup2(2, 1)
    sys.path.extend(entry for entry in sys.argv[1:] if entry and entry not in sys.path)
    from math_verify import parse, verify

    for limit, value in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(limit, (value, value))

    @lru_cache(maxsize=4096)
    def reference_of(text: str) -> list[Any]:
        marked = text if "$" in text or "\\boxed" in text else f"\\boxed{{{text}}}"
        found: list[Any] = parse(marked, parsing_timeout=None)
        return found

    def compare(request: dict[str, Any]) -> None:
        try:
            reference = reference_of(request["reference"])
        except Exception as error:
            reply(out, correct=None, why=f"the reference cannot be read: {type(error).__name__}")
            return
        if not reference:
            reply(out, correct=None, why="the reference cannot be read as mathematics")
            return
        reply(out, stage="answer")
        try:
            answer = parse(request["answer"], parsing_timeout=None)
            correct = bool(answer) and bool(verify(reference, answer, timeout_seconds=None))
        except Exception as error:  # the reference was read, so the answer is to blame
            reply(out, correct=False, why=f"cannot be read: {type(error).__name__}")
            return
        found = "no mathematics found" if not answer else f"found {str(answer[-1])[:60]}"
        reply(out, correct=correct, why=found)

    reply(out, ready=True)
    for line in sys.stdin:
        request = json.loads(line)
        # The pool kills a late worker. If the pool's process is gone, the kernel does: SIGALRM has
        # no Python handler here, so it also ends a computation inside C code.
        signal.alarm(math.ceil(request["seconds"]) + LATE)
        compare(request)
        signal.alarm(0)


if __name__ == "__main__":
    main()
