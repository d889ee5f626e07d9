"""What the server does with memory that it has freed: it gives it back.

A server runs for weeks, and its fits and answers are made in several threads. glibc gives each
thread a heap of its own and keeps what is freed there, so that memory would grow with time to
several times what is in use.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

#: Of glibc's mallopt: heaps for all threads together.
M_ARENA_MAX = -8


def _of_c(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


def one_heap() -> None:
    """For all threads, where the C library can; before the first of them."""
    mallopt = _of_c("mallopt")
    if mallopt is not None:
        mallopt(M_ARENA_MAX, 1)


def give_back_memory() -> None:
    """What fits of long runs have freed."""
    trim = _of_c("malloc_trim")
    if trim is not None:
        trim(0)
