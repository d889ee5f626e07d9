"""Runs a program that must be assumed hostile, or refuses to.

Walls, from the outside in:

1. namespaces (user, mount, pid, network, ipc, uts) by bubblewrap, or by `unshare` where that is
   missing: no network, no other process in sight, a root of its own with the system's libraries and
   the Python standard library read-only, and an empty /tmp in memory as the only place to write;
2. a cleared environment and no open file but the three standard streams;
3. inside, before the program starts (`inside.py`): limits on CPU, memory, file size and open files,
   no capabilities, and a system-call filter: no new process, no exec, no socket, no ptrace, no
   mount, no new namespace;
4. outside, this module: a cap on the output, a limit on the time, and a kill of the whole group,
   which ends the pid namespace and all that is in it.

Nothing touches the disk: the job goes in through a pipe. Where these walls cannot be had,
`find_sandbox` raises an InputError: there is no weaker mode.
"""

from __future__ import annotations

import json
import os
import select
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from scalerl.errors import InputError

INSIDE = Path(__file__).with_name("inside.py")
HOW_TO = "install bubblewrap (apt-get install bubblewrap) on a Linux that allows user namespaces"
Kind: TypeAlias = Literal["bubblewrap", "unshare"]
#: The first line `inside.py` writes to standard error, before it runs the program.
READY = b"walls are up\n"
#: How long a killed namespace may take to vanish.
LAST_SECONDS = 10


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


class Sandbox(Protocol):
    """Runs jobs of `inside.py`."""

    @property
    def name(self) -> str: ...

    def run(self, job: dict[str, Any], limits: Limits) -> SandboxResult: ...


@dataclass(frozen=True, slots=True)
class Namespaces:
    """A sandbox made by a command that puts `inside.py` behind walls 1 and 2."""

    name: Kind

    def run(self, job: dict[str, Any], limits: Limits) -> SandboxResult:
        command = bubblewrap(limits) if self.name == "bubblewrap" else unshare(limits)
        return _run([*command, *_python()], job, limits)


@lru_cache(maxsize=1)
def find_sandbox() -> Sandbox:
    """The sandbox of this machine, tried out; an InputError if there is none."""
    failed = []
    names: tuple[Kind, ...] = ("bubblewrap", "unshare")
    for name in names:
        sandbox = Namespaces(name)
        reason = broken(sandbox)
        if not reason:
            return sandbox
        failed.append(f"{name}: {reason}")
    raise InputError(f"no isolation for running code here ({'; '.join(failed)}): {HOW_TO}")


def broken(sandbox: Namespaces) -> str:
    """Why this sandbox cannot be used here; empty if a trial run finds every wall in place."""
    program = "bwrap" if sandbox.name == "bubblewrap" else "unshare"
    if not sys.platform.startswith("linux"):
        return "needs Linux"
    if shutil.which(program) is None:
        return f"{program} is not installed"
    job = {"code": "", "calls": ["walls()"], "probe": True}
    done = sandbox.run(job, Limits(seconds=30.0))
    if done.killed or done.exit_code != 0 or not done.started:
        words = done.errors.decode(errors="replace").split("\n")
        return next((w for w in reversed(words) if w.strip()), done.killed or "does not start")
    holes = json.loads(done.output)["value"][1]
    return f"holes: {', '.join(holes)}" if holes else ""


def bubblewrap(limits: Limits) -> list[str]:
    """The command up to the program."""
    command = ["bwrap", "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session"]
    command += ["--cap-drop", "ALL", "--uid", "65534", "--gid", "65534", "--hostname", "sandbox"]
    for source, target in _read_only():
        kind = "--symlink" if target else "--ro-bind"
        command += [kind, target or source, source]
    for hidden in _hidden():
        command += ["--tmpfs", hidden]
    command += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
    command += ["--size", str(4 * limits.file_bytes), "--tmpfs", "/tmp", "--chdir", "/tmp"]
    return [*command, "--remount-ro", "/", "--clearenv", "--setenv", "PATH", "/usr/bin", "--"]


def unshare(limits: Limits) -> list[str]:
    """The same by util-linux's unshare and a shell script that builds the root."""
    script = ["set -e", f"R={_mount_point()}", "mount -t tmpfs -o size=1m,mode=755 none $R"]
    script.append("mkdir -p $R/proc $R/dev $R/tmp $R/old")
    for source, target in _read_only():
        at = shlex.quote(source)
        if target:
            script.append(f"ln -s {shlex.quote(target)} $R{at}")
        else:
            script += [f"mkdir -p $R{at}", f"mount --bind {at} $R{at}"]
            script.append(f"mount -o remount,bind,ro,nosuid,nodev $R{at}")
    for hidden in _hidden():
        script.append(f"mount -t tmpfs -o size=4k,ro none $R{shlex.quote(hidden)}")
    for device in ("null", "zero", "random", "urandom"):
        script += [f": > $R/dev/{device}", f"mount --bind /dev/{device} $R/dev/{device}"]
    size = 4 * limits.file_bytes
    script += [
        f"mount -t tmpfs -o size={size},mode=777,nosuid,nodev none $R/tmp",
        "mount -t proc -o nosuid,nodev,noexec proc $R/proc",
        "pivot_root $R $R/old",
        "umount -l /old",
        "rmdir /old",
        "mount -o remount,ro,nosuid,nodev /",
        "cd /tmp",
        'exec "$@"',
    ]
    flags = ["--user", "--map-root-user", "--mount", "--pid", "--fork", "--net", "--ipc", "--uts"]
    return ["unshare", *flags, "--kill-child=KILL", "/bin/sh", "-c", "\n".join(script), "sandbox"]


def _mount_point() -> str:
    """A directory to build the new root on, with nothing below it that goes into the root."""
    taken = [source for source, _ in _read_only()]
    for name in ("/mnt", "/media", "/srv", "/opt", "/tmp"):
        if Path(name).is_dir() and not any(f"{t}/".startswith(f"{name}/") for t in taken):
            return name
    return "/tmp"


def _python() -> list[str]:
    """This Python without site-packages, running `inside.py` from its text."""
    program = os.path.realpath(sys.executable)
    return [program, "-I", "-S", "-B", "-c", INSIDE.read_text(encoding="utf-8")]


@lru_cache(maxsize=1)
def _read_only() -> Sequence[tuple[str, str]]:
    """(path, "") to bind read-only or (path, target) to link: libraries and this Python."""
    found = [("/usr", "")]
    for name in ("/lib", "/lib64", "/bin"):
        path = Path(name)
        if path.is_symlink():
            found.append((name, str(path.readlink())))
        elif path.is_dir():
            found.append((name, ""))
    for prefix in {sys.base_prefix, str(Path(os.path.realpath(sys.executable)).parent.parent)}:
        if not prefix.startswith("/usr"):
            found.append((prefix, ""))
    return tuple(found)


@lru_cache(maxsize=1)
def _hidden() -> Sequence[str]:
    """Installed packages below what is bound: not the program's business."""
    base = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix}
    packages = {sysconfig.get_path(kind, vars=base) for kind in ("purelib", "platlib")}
    return tuple(sorted(p for p in packages if Path(p).is_dir()))


def _run(command: Sequence[str], job: dict[str, Any], limits: Limits) -> SandboxResult:
    with tempfile.TemporaryFile() as stdin:
        request = {**job, "limits": _plain(limits)}
        stdin.write(json.dumps(request).encode())
        stdin.seek(0)
        process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"PATH": os.environ.get("PATH", os.defpath)},
            cwd="/",
            start_new_session=True,
        )
    try:
        output, errors, killed = _watch(process, limits)
    finally:
        _end(process)
    code = process.returncode if not killed else None
    return SandboxResult(code, output, errors.removeprefix(READY), killed, errors.startswith(READY))


def _watch(process: subprocess.Popen[bytes], limits: Limits) -> tuple[bytes, bytes, str]:
    """Read both streams until they end, the time is up or too much was written."""
    assert process.stdout is not None and process.stderr is not None
    deadline = time.monotonic() + limits.seconds
    read: dict[str, bytearray] = {"output": bytearray(), "errors": bytearray()}
    killed = ""
    with selectors.DefaultSelector() as selector, process.stdout, process.stderr:
        selector.register(process.stdout, selectors.EVENT_READ, "output")
        selector.register(process.stderr, selectors.EVENT_READ, "errors")
        while selector.get_map() and not killed:
            left = deadline - time.monotonic()
            ready = selector.select(left) if left > 0 else []
            if not ready:
                killed = f"ran longer than {limits.seconds:g} s"
            for key, _ in ready:
                chunk = os.read(key.fd, 65536)
                if not chunk:
                    selector.unregister(key.fileobj)
                read[key.data] += chunk
                if len(read[key.data]) > limits.output_bytes:
                    killed = f"wrote more than {limits.output_bytes} bytes"
        if not killed:
            try:
                process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                killed = f"ran longer than {limits.seconds:g} s"
    return bytes(read["output"]), bytes(read["errors"]), killed


def _end(process: subprocess.Popen[bytes]) -> None:
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


def _plain(limits: Limits) -> dict[str, float]:
    return {name: getattr(limits, name) for name in Limits.__slots__}
