"""The checking process of `pool.py`: reads requests, writes verdicts, one JSON object a line.

Run by path, not imported: it must not load the package. After the reference is read it says so, so
that the other side knows whom to blame for what follows.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from functools import lru_cache
from typing import Any

MEMORY = 2 * 1024**3


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

    reply(out, ready=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reference = reference_of(request["reference"])
        except Exception as error:
            reply(out, correct=None, why=f"the reference cannot be read: {type(error).__name__}")
            continue
        if not reference:
            reply(out, correct=None, why="the reference cannot be read as mathematics")
            continue
        reply(out, stage="answer")
        try:
            answer = parse(request["answer"], parsing_timeout=None)
            correct = bool(answer) and bool(verify(reference, answer, timeout_seconds=None))
        except Exception as error:  # whatever an answer makes the parser raise is the answer's
            reply(out, correct=False, why=f"cannot be read: {type(error).__name__}")
            continue
        found = "no mathematics found" if not answer else f"found {str(answer[-1])[:60]}"
        reply(out, correct=correct, why=found)


if __name__ == "__main__":
    main()
