"""One member as a process of its own: `scalerl train`, which ends when the study that started it is
gone.

The study holds the other end of a pipe that is this process's standard input. Whatever way the
study ends, kill -9 included, the system closes that end; the member then saves a checkpoint and
ends, as on SIGTERM, and the next start of the study goes on with it.
"""

from __future__ import annotations

import os
import runpy
import signal
import threading
import time

#: A member that has not ended so long after its study is killed: seconds.
GRACE = 300.0


def _end_with_the_study() -> None:
    while True:
        try:
            if not os.read(0, 1024):
                break
        except OSError:
            break
    # As a cluster would end it: with a checkpoint.
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_end_with_the_study, daemon=True).start()
    runpy.run_module("scalerl", run_name="__main__")
