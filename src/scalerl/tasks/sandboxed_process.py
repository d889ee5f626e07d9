"""A sandboxed process, seen from outside: what it wrote, how long it took, and its end."""

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
from typing import Self, TypedDict

from scalerl.tasks.inside.restrictions import READY

#: Seconds that a killed namespace may take to disappear.
LAST_SECONDS = 10


class Identity(TypedDict, total=False):
    """Popen's arguments for the user that runs a command; empty for the user of the caller."""

    user: int
    group: int
    extra_groups: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """The resources that one run of a program may use."""

    #: Time in seconds, and processor time.
    seconds: float = 10.0
    cpu_seconds: int = 5
    #: Address space.
    memory_bytes: int = 512 * 1024**2
    #: Size of standard output, and of standard error.
    output_bytes: int = 1024**2
    #: Size of a file; /tmp holds four times as much.
    file_bytes: int = 8 * 1024**2
    open_files: int = 32


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """The result of a run: exit code (None if it was killed from outside), output and errors."""

    exit_code: int | None
    output: bytes
    errors: bytes
    #: Why it was killed; empty if it was not.
    killed: str = ""
    #: Whether the program was started; if not, the sandbox failed, not the program.
    started: bool = True


class SandboxedProcess:
    """The process of a sandbox command, in its own session. Leaving the context kills it."""

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
            # pivot_root is in sbin, which is not on the PATH of ordinary users.
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
        """The result, after the context was left; `killed` is what `watch` returned."""
        code = self.process.returncode if not killed else None
        errors = bytes(self.read["errors"])
        started = errors.startswith(READY)
        output = bytes(self.read["output"])
        return SandboxResult(code, output, errors.removeprefix(READY), killed, started)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        end(self.process)
        for name, stream in self.streams.items():
            # The process is gone, so the pipe holds what is left; without blocking, since a process
            # that inherited the pipe could still hold it open.
            with stream:
                os.set_blocking(stream.fileno(), False)
                self.read[name] += stream.read() or b""


def watch(running: Sequence[SandboxedProcess], until: SandboxedProcess, limits: Limits) -> str:
    """Read the output of all processes until one of them ends. Returns why that one has to be
    killed, or "" if it ended by itself."""
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
    """Kill the process group and the first process of the pid namespace, and wait for both. The
    kernel releases that first process only after every other one in its namespace."""
    # Handles are opened before the kill: afterwards the children have another parent, and a process
    # id could belong to another process.
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
    """Process handles (pidfd) of the children of a process."""
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
