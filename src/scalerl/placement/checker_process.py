"""A checker as a process. Imports no torch, so that a new one is there at once."""

from __future__ import annotations

import os
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

from scalerl.pipeline import messages as m
from scalerl.placement.checker_part import CheckerPart
from scalerl.placement.child import end_group, guarded, orphaned
from scalerl.placement.line import PartLine
from scalerl.tasks.task import Task

#: Seconds between two looks at calls that take too long, and between two signs of life.
LOOK, HEARTBEAT = 0.05, 0.5


def run_checker(conn: Connection, task: Task, places: int, seconds: float) -> None:
    """Entry point of a checker process. It leads a group of its own, to which programs belong that
    a verifier starts: whatever hangs in it, or in them, ends with it."""
    if hasattr(os, "setpgid"):  # elsewhere than on Windows
        os.setpgid(0, 0)
    guarded(conn, lambda: serve_checker(conn, task, places, seconds))
    end_group(os.getpid())
    os._exit(0)


def serve_checker(conn: PartLine, task: Task, places: int, seconds: float) -> None:
    """A checker, until it is told to stop."""
    lock = threading.Lock()

    def say(message: Any) -> None:
        with lock:
            conn.send(message)

    part = CheckerPart(task, places, seconds, say)
    say(m.Ready())
    told = time.monotonic()
    try:
        while not orphaned():
            if conn.poll(LOOK if part.busy else 1.0):
                message = conn.recv()
                if isinstance(message, m.Stop):
                    return
                part.take(message)
            part.give_up()
            if time.monotonic() - told > HEARTBEAT:
                told = time.monotonic()
                say(m.Verdicts(None, hung=part.hung))
    finally:
        task.close()
