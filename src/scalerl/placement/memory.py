"""What a part's process does with memory that it has freed: it keeps it.

A step asks for the same arrays of some megabytes again and again. glibc gives each back to the
system when it is freed, which then clears every page of it anew: ten thousand page faults a step at
the default size, 6 % of its time.
"""

from __future__ import annotations

import ctypes
import sys

#: Of glibc's mallopt: arrays from this size on are mapped (32 MB is the most it takes), and so much
#: free memory at the end of the heap is kept.
M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -3, -1
LARGEST, KEPT = 32 * 2**20, 2**31 - 1


def keep_freed_memory() -> None:
    """From now on, where the C library can (glibc)."""
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGEST)
        mallopt(M_TRIM_THRESHOLD, KEPT)
