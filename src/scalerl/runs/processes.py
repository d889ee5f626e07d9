"""What processes are doing, as the system tells it (on Linux; elsewhere only whether they live)."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

#: /proc/<pid>/stat's letters.
STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "waiting for the disk",
    "T": "stopped",
    "t": "stopped by a debugger",
    "Z": "dead",
    "X": "dead",
    "I": "sleeping",
}


@dataclass(frozen=True, slots=True)
class Process:
    """One process of a run."""

    name: str
    pid: int
    state: str
    #: Share of one core over the sample; None if nobody can say.
    cpu: float | None = None

    @property
    def alive(self) -> bool:
        return self.state not in ("dead", "gone")

    @property
    def stopped(self) -> bool:
        return self.state.startswith("stopped")


def look(pids: Mapping[str, int], sample: float = 0.3) -> list[Process]:
    """The state of each, and its use of the processor over a short time."""
    before = {name: _stat(pid) for name, pid in pids.items()}
    start = time.monotonic()
    if any(found is not None for found in before.values()):
        time.sleep(sample)
    seconds = time.monotonic() - start
    out = []
    for name, pid in pids.items():
        then, now = before[name], _stat(pid)
        if now is None:
            out.append(Process(name, pid, "alive" if _lives(pid) else "gone"))
        else:
            used = None if then is None else max(now[1] - then[1], 0.0) / max(seconds, 1e-9)
            out.append(Process(name, pid, now[0], used))
    return out


def peak_memory(pid: int) -> int | None:
    """Largest resident size so far, in bytes; None where the system does not say."""
    try:
        text = (Path("/proc") / str(pid) / "status").read_text()
    except OSError:
        return None
    peak = next((line for line in text.splitlines() if line.startswith("VmHWM:")), None)
    return None if peak is None else int(peak.split()[1]) * 1024


def _stat(pid: int) -> tuple[str, float] | None:
    """(state, seconds of processor time) of a Python process."""
    folder = Path("/proc") / str(pid)
    try:
        text = (folder / "stat").read_text()
        command = (folder / "cmdline").read_bytes()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    state = STATES.get(fields[0], fields[0])
    if command and b"python" not in command and b"scalerl" not in command:
        return None  # the number belongs to somebody else by now
    return state, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _lives(pid: int) -> bool:
    """Where there is no /proc."""
    if Path("/proc/self/stat").exists():
        return False
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True
