"""Samples of the machine that a run's loop is on: processors, memory, GPUs.

Processors and memory come from `/proc`, which only Linux has; GPUs of NVIDIA from the driver's own
library, and those of AMD from `/sys`. What a machine does not have is None, and no sample fails.
Machines that a run on Ray uses besides are not sampled.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from scalerl.runs.lines import GpuSample, SystemLine

#: Seconds between two samples: a sample takes less than a millisecond, and its line 300 bytes.
SAMPLE_SECONDS = 15.0
#: Bytes of the file from which no further samples are written: about two weeks.
MAX_BYTES = 24_000_000
#: Files of the kernel.
PROC = Path("/proc")
#: Directories of graphics cards. Those of AMD have files with their use.
CARDS = Path("/sys/class/drm")
#: The library of NVIDIA's driver.
NVML = "libnvidia-ml.so.1"


class SystemSampler:
    """Makes a sample every SAMPLE_SECONDS.

    >>> SystemSampler().sample(3, []).step
    3
    """

    def __init__(self) -> None:
        self._due = 0.0
        #: Ticks of all processors at the last sample: busy, and altogether.
        self._ticks: tuple[int, int] | None = None

    def sample(self, step: int, pids: Iterable[int]) -> SystemLine | None:
        """A sample, with the memory of these processes and of this one; None where the last one was
        made less than SAMPLE_SECONDS ago."""
        now = time.monotonic()
        if now < self._due:
            return None
        self._due = now + SAMPLE_SECONDS
        total, free = _memory()
        return SystemLine(
            step=step,
            time=time.time(),
            cpu=self._busy(),
            cores=os.cpu_count(),
            memory_used=None if total is None or free is None else total - free,
            memory_total=total,
            memory_run=_resident({os.getpid(), *pids}),
            gpus=tuple(_gpus()),
        )

    def _busy(self) -> float | None:
        """Share of all processors' time since the last sample (at first, since the machine was
        started) in which they worked."""
        try:
            words = (PROC / "stat").read_text().splitlines()[0].split()[1:9]
            ticks = [int(word) for word in words]
            # user, nice, system, idle, iowait, …: while it waits for a disk a processor is idle.
            now = sum(ticks) - ticks[3] - ticks[4], sum(ticks)
        except (OSError, ValueError, IndexError):
            return None
        before, self._ticks = self._ticks or (0, 0), now
        passed = now[1] - before[1]
        return round((now[0] - before[0]) / passed, 4) if passed > 0 else None


def _memory() -> tuple[int | None, int | None]:
    """Bytes of the machine's memory: all, and what programs can still get."""
    try:
        lines = (PROC / "meminfo").read_text().splitlines()
        found = {name: int(rest.split()[0]) for name, _, rest in (x.partition(":") for x in lines)}
    except (OSError, ValueError, IndexError):
        return None, None
    kilobytes = found.get("MemTotal"), found.get("MemAvailable")
    total, free = (None if each is None else 1024 * each for each in kilobytes)
    return total, free


def _resident(pids: Iterable[int]) -> int | None:
    """Bytes of memory that processes hold; what they share is counted for each."""
    pages = []
    for pid in pids:
        try:
            pages.append(int((PROC / str(pid) / "statm").read_text().split()[1]))
        except (OSError, ValueError, IndexError):
            continue  # it has ended, or is on another machine
    return sum(pages) * os.sysconf("SC_PAGE_SIZE") if pages else None


def _gpus() -> list[GpuSample]:
    return [*_nvidia(), *_amd()]


def _amd() -> list[GpuSample]:
    found = []
    for card in sorted(CARDS.glob("card[0-9]*/device")):
        try:
            busy = int((card / "gpu_busy_percent").read_text())
            used, total = (
                int((card / f"mem_info_vram_{n}").read_text()) for n in ("used", "total")
            )
        except (OSError, ValueError):
            continue
        found.append(GpuSample(busy=busy / 100, memory_used=used, memory_total=total))
    return found


class _Utilization(ctypes.Structure):
    """nvmlUtilization_t: percent of the last second."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    """nvmlMemory_t: bytes."""

    _fields_ = tuple((name, ctypes.c_ulonglong) for name in ("total", "free", "used"))


@cache
def _nvml() -> ctypes.CDLL | None:
    """NVIDIA's library, ready to be asked; None where there is none."""
    try:
        library = ctypes.CDLL(NVML)
        return library if library.nvmlInit_v2() == 0 else None
    except (OSError, AttributeError):
        return None


def _nvidia() -> list[GpuSample]:
    library = _nvml()
    count = ctypes.c_uint()
    if library is None or library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return []
    found = []
    for i in range(count.value):
        device, use, memory = ctypes.c_void_p(), _Utilization(), _Memory()
        asked = (
            library.nvmlDeviceGetHandleByIndex_v2(i, ctypes.byref(device)),
            library.nvmlDeviceGetUtilizationRates(device, ctypes.byref(use)),
            library.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)),
        )
        if not any(asked):
            found.append(
                GpuSample(busy=use.gpu / 100, memory_used=memory.used, memory_total=memory.total)
            )
    return found
