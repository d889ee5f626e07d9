"""What of this machine a process may use."""

from __future__ import annotations

import os

#: Set by who shares the machine out: a study that runs several members at once.
CORES = "SCALERL_CORES"


def cores() -> int:
    """Cores for the parts of one run: those that the process may run on (of a container, a job, or
    `taskset`), or fewer where it is told so.

    >>> cores() >= 1
    True
    """
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    told = os.environ.get(CORES, "")
    return max(min(mine, int(told)), 1) if told.isdecimal() else mine
