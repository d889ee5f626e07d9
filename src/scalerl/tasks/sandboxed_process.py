"""A process behind walls, seen from outside: what it wrote, how long it took, and its end."""

from __future__ import annotations

import os
import select
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypedDict

from scalerl.tasks.inside.restrictions import READY

#: How long a killed namespace may take to vanish.
LAST_SECONDS = 10


class Identity(TypedDict, total=False):
    """As whom a command is started, in Popen's words; empty for the caller itself."""

    user: int
    group: int
    extra_groups: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one run of a program may use."""

    seconds: float = 10.0
    cpu_seconds: int = 5
    memory_bytes: int = 512 * 1024**2
    #: Of standard output, and of standard error.
    output_bytes: int = 1024**2
    #: The largest file, and all of /tmp.
    file_bytes: int = 8 * 1024**2
    open_files: int = 32


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """What a run left: exit code (None if it was killed from outside), output and errors."""

    exit_code: int | None
    output: bytes
    errors: bytes
    #: Empty, or why it was killed.
    killed: str = ""
    #: Whether the program was reached at all; if not, what went wrong is not its doing.
    started: bool = True


class SandboxedProcess:
    """A command's process, in a session of its own. Leaving its context ends it."""

    def __init__(
        self,
        command: Sequence[str],
        stdin: int,
        stdout: int,
        cwd: str,
        identity: Identity,
    ) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            # Ordinary users have no sbin in their path, and pivot_root is there.
            env={"PATH": os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"},
            cwd=cwd,
            start_new_session=True,
            **identity,
        )
        assert self.process.stderr is not None
        self.streams = {"errors": self.process.stderr}
        if self.process.stdout is not None:
            self.streams["output"] = self.process.stdout
        self.read = {"output": bytearray(), "errors": bytearray()}

    def result(self, killed: str) -> SandboxResult:
        code = self.process.returncode if not killed else None
        errors = bytes(self.read["errors"])
        started = errors.startswith(READY)
        output = bytes(self.read["output"])
        return SandboxResult(code, output, errors.removeprefix(READY), killed, started)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        end(self.process)
        for name, stream in self.streams.items():
            with stream:  # what it wrote before its end, as far as a pipe holds that
                os.set_blocking(stream.fileno(), False)
                self.read[name] += stream.read() or b""


def watch(running: Sequence[SandboxedProcess], until: SandboxedProcess, limits: Limits) -> str:
    """Read what all write until one of them has ended; why that one did not end by itself."""
    deadline = time.monotonic() + limits.seconds
    late = f"ran longer than {limits.seconds:g} s"
    with selectors.DefaultSelector() as selector:
        for one in running:
            for name, stream in one.streams.items():
                selector.register(stream, selectors.EVENT_READ, (one, name))
        left = set(until.streams)
        while left:
            seconds = deadline - time.monotonic()
            ready = selector.select(seconds) if seconds > 0 else []
            if not ready:
                return late
            for key, _ in ready:
                one, name = key.data
                chunk = os.read(key.fd, 65536)
                if not chunk:
                    selector.unregister(key.fileobj)
                    left -= {name} if one is until else set()
                one.read[name] += chunk
                if len(one.read[name]) > limits.output_bytes:
                    return f"wrote more than {limits.output_bytes} bytes"
    try:
        until.process.wait(max(deadline - time.monotonic(), 0.1))
    except subprocess.TimeoutExpired:
        return late
    return ""


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill the group and the first process of the pid namespace, and wait until both are gone: the
    kernel lets that process go only after every other one in its namespace."""
    handles = _children(process.pid)
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.poll()  # it ended by itself, and has been waited for
    for handle in handles:
        try:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        except ProcessLookupError:
            continue  # gone with its group
    process.wait()
    for handle in handles:
        poller = select.poll()
        poller.register(handle, select.POLLIN)
        poller.poll(1000 * LAST_SECONDS)
        os.close(handle)


def _children(pid: int) -> list[int]:
    """Handles of a process's children."""
    found: list[int] = []
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return found  # it has ended, and its namespace with it
    for child in children:
        try:
            found.append(os.pidfd_open(int(child)))
        except ProcessLookupError:
            continue
    return found
