"""State and CPU use of processes by pid, from /proc; without /proc, only whether they exist."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

#: Letters of the state field of /proc/<pid>/stat (proc(5)), in plain words.
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
#: Command lines of a run's processes have one of these. Ray replaces those of its workers by
#: "ray::WorkerActor.collect" and the like.
OURS = (b"python", b"scalerl", b"ray::")


@dataclass(frozen=True, slots=True)
class Process:
    """One process of a run, at the time it was sampled."""

    name: str
    pid: int
    #: A value of STATES, or "alive" or "gone" where the system says no more.
    state: str
    #: Share of one core over the sample, 0 to 1 for one thread; None where it is unknown.
    cpu: float | None = None

    @property
    def alive(self) -> bool:
        return self.state not in ("dead", "gone")

    @property
    def stopped(self) -> bool:
        return self.state.startswith("stopped")


def sample_processes(pids: Mapping[str, int], seconds: float = 0.3) -> list[Process]:
    """The state of each process, and the CPU it used over `seconds`."""
    before = {name: _stat(pid) for name, pid in pids.items()}
    start = time.monotonic()
    if any(found is not None for found in before.values()):
        time.sleep(seconds)
    elapsed = time.monotonic() - start
    out = []
    for name, pid in pids.items():
        then, now = before[name], _stat(pid)
        if now is None:
            # With /proc, no entry means that the process is gone, or its pid is another program's.
            exists = not Path("/proc/self/stat").exists() and pid_alive(pid)
            out.append(Process(name, pid, "alive" if exists else "gone"))
        else:
            used = None if then is None else max(now[1] - then[1], 0.0) / max(elapsed, 1e-9)
            out.append(Process(name, pid, now[0], used))
    return out


def peak_memory(pid: int) -> int | None:
    """Peak resident memory of a process so far, in bytes; None without /proc."""
    try:
        text = (Path("/proc") / str(pid) / "status").read_text()
    except OSError:
        return None
    peak = next((line for line in text.splitlines() if line.startswith("VmHWM:")), None)
    return None if peak is None else int(peak.split()[1]) * 1024


def _stat(pid: int) -> tuple[str, float] | None:
    """(state, CPU seconds used) of a Python process; None where the pid is gone or not ours."""
    folder = Path("/proc") / str(pid)
    try:
        text = (folder / "stat").read_text()
        command = (folder / "cmdline").read_bytes()
    except OSError:
        return None
    # The program's name, in parentheses before the fields, may itself hold spaces and parentheses.
    fields = text.rpartition(")")[2].split()
    state = STATES.get(fields[0], fields[0])
    if command and not any(name in command for name in OURS):
        return None  # the pid was reused by another program
    return state, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pid_alive(pid: int) -> bool:
    """Whether a process with this pid exists, any user's, zombies included."""
    try:
        os.kill(pid, 0)  # signal 0 only checks
    except ProcessLookupError:
        return False
    except PermissionError:  # it exists and belongs to another user
        return True
    return True


@contextmanager
def stop_signals(stop: Callable[[], None] = lambda: None) -> Iterator[list[int]]:
    """Let Ctrl-C and SIGTERM (which clusters send before SIGKILL) call `stop`; a second signal
    raises KeyboardInterrupt. Yields the list of signals caught so far."""
    caught: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append(number)
        stop()

    before: dict[int, Any] = {}
    try:
        for one in (signal.SIGINT, signal.SIGTERM):
            before[one] = signal.signal(one, handle)
    except ValueError:  # not the main thread, which alone may set handlers
        pass
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
