"""The checking process of `pool.py`: reads requests, writes verdicts, one JSON object a line.

Run by path, not imported: it must not load the package. After the reference is read it says so, so
that the other side knows whom to blame for what follows.
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

MEMORY = 2 * 1024**3
#: Seconds beyond the limit of a request after which a worker ends by itself: enough for a pool on a
#: busy machine to end it first, and to say why.
LATE = 5


def reply(out: int, **message: Any) -> None:
    os.write(out, json.dumps(message).encode() + b"\n")


def main() -> None:
    # math-verify prints now and then; nothing of that may look like a verdict.
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
        except Exception as error:  # whatever an answer makes the parser raise is the answer's
            reply(out, correct=False, why=f"cannot be read: {type(error).__name__}")
            return
        found = "no mathematics found" if not answer else f"found {str(answer[-1])[:60]}"
        reply(out, correct=correct, why=found)

    reply(out, ready=True)
    for line in sys.stdin:
        request = json.loads(line)
        # The pool kills a worker that is late. If the pool's process is gone, the kernel does:
        # SIGALRM has no handler, so that it also ends a computation that holds the interpreter.
        signal.alarm(math.ceil(request["seconds"]) + LATE)
        compare(request)
        signal.alarm(0)


if __name__ == "__main__":
    main()
