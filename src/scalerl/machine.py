"""How many CPU cores this run may use."""

from __future__ import annotations

import os

#: Environment variable that limits the cores of a run: a study sets it for members that share a
#: machine.
CORES = "SCALERL_CORES"


def cores() -> int:
    """Number of cores for the workers of one run: those that the process may run on (in a
    container, a cluster job or under `taskset`), or fewer if SCALERL_CORES says so.

    >>> cores() >= 1
    True
    """
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = os.environ.get(CORES, "")
    return max(min(mine, int(limit)), 1) if limit.isdecimal() else mine
