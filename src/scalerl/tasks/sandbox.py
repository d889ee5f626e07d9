"""Runs a program that must be assumed hostile, or refuses to.

Walls, from the outside in:

1. nobody: a caller who is root becomes an unprivileged user before anything else, so that neither
   the program nor what is built around it has a right that counts outside;
2. namespaces (user, mount, pid, network, ipc, uts) by bubblewrap, or by `unshare` where that is
   missing: no network, a root of its own with the system's libraries and Python's standard library
   read-only, an empty /tmp in memory as the only place to write, and neither /proc nor /sys: no
   setting of the kernel, no memory of a process. The program is the first process there and the
   only one; there is no other to attack, and none that is not behind the walls to come;
3. a cleared environment and no open file but the three standard streams;
4. inside, before the program is read (`inside/walls.py`): limits on CPU, memory, file size and open
   files, no capabilities, and a filter that lists the system calls there are;
5. outside, this module: a cap on the output, a limit on the time, and a kill of the whole group,
   which ends the pid namespace and all that is in it. If the caller dies first, the kernel does
   the same in its place (`tied`).

Nothing touches the disk: the job goes in through a pipe. Where these walls cannot be had,
`find_sandbox` raises an InputError (`trial.py` tries them out): there is no weaker mode.
"""

from __future__ import annotations

import marshal
import os
import shlex
import socket
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from scalerl.errors import InputError
from scalerl.tasks.inside import wire
from scalerl.tasks.inside.program import INPUT
from scalerl.tasks.sandboxed_process import Identity, Limits, SandboxedProcess, SandboxResult, watch

INSIDE = Path(__file__).with_name("inside")
HOW_TO = (
    "install bubblewrap and util-linux (apt-get install bubblewrap util-linux), and let users make "
    "namespaces (sysctl -w user.max_user_namespaces=10000; on Ubuntu also "
    "kernel.apparmor_restrict_unprivileged_userns=0)"
)
Kind: TypeAlias = Literal["bubblewrap", "unshare"]
#: What runs inside: the program, the judge of its values, or a trial of the walls.
Part: TypeAlias = Literal["program", "tester", "selftest"]
NOBODY = 65534
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
#: The first thing inside: close what was left open, and become the modules that are sent in.
BOOT = """# scalerl's sandbox
import marshal, os, sys
os.closerange(3, 65536)
def take(size):
    found = b""
    while len(found) < size:
        chunk = os.read(0, size - len(found))
        if not chunk:
            os._exit(98)
        found += chunk
    return found
package = type(sys)("scalerl.tasks.inside")
sys.modules[package.__name__] = package
for name, code in marshal.loads(take(int(take(8), 16))):
    module = type(sys)(package.__name__ + "." + name)
    setattr(package, name, module)
    exec(code, module.__dict__)
del sys.modules[package.__name__]
module.main(package.wire.decode(take(int(take(8), 16))))
"""


class Sandbox(Protocol):
    """Runs programs."""

    @property
    def name(self) -> str: ...

    def run(self, code: str, given: str, limits: Limits) -> SandboxResult:
        """A program on an input."""

    def run_tests(
        self, code: str, tests: Mapping[str, Any], limits: Limits
    ) -> tuple[SandboxResult, SandboxResult]:
        """A program in one sandbox and its judge in another: what each of them left, the judge's
        verdicts being its errors."""


@dataclass(frozen=True, slots=True)
class Namespaces:
    """A sandbox made by a command that puts what runs inside behind walls 1 to 3."""

    name: Kind

    def start(self, limits: Limits, stdin: int, stdout: int) -> SandboxedProcess:
        make = bubblewrap if self.name == "bubblewrap" else unshare
        # A directory that root alone can reach is entered before root is nobody.
        cwd = _out_of_reach() or "/"
        command = [*tied(os.getpid()), *make(limits), *_python()]
        return SandboxedProcess(command, stdin, stdout, cwd, identity())

    def run(self, code: str, given: str, limits: Limits) -> SandboxResult:
        with as_file(packed("program", {"code": code, "input": given}, limits)) as job:
            program = self.start(limits, job, subprocess.PIPE)
        with program:
            killed = watch([program], program, limits)
        return program.result(killed)

    def run_tests(
        self, code: str, tests: Mapping[str, Any], limits: Limits
    ) -> tuple[SandboxResult, SandboxResult]:
        here, there = socket.socketpair()
        with here, there, ExitStack() as started:
            here.settimeout(limits.seconds)
            here.sendall(packed("program", {}, limits))  # ahead of all that the judge will say
            here.settimeout(None)
            program = started.enter_context(self.start(limits, there.fileno(), subprocess.DEVNULL))
            with as_file(packed("tester", {"code": code, **tests}, limits)) as job:
                tester = started.enter_context(self.start(limits, job, here.fileno()))
            here.close()
            there.close()
            killed = watch([tester, program], tester, limits)
        return program.result(killed), tester.result(killed)


@lru_cache(maxsize=1)
def find_sandbox() -> Sandbox:
    """The sandbox of this machine, tried out; an InputError if there is none."""
    from scalerl.tasks.sandbox_selftest import why_unusable

    failed = []
    names: tuple[Kind, ...] = ("bubblewrap", "unshare")
    for name in names:
        sandbox = Namespaces(name)
        reason = why_unusable(sandbox)
        if not reason:
            return sandbox
        failed.append(f"{name}: {reason}")
    raise InputError(f"no isolation for running code here ({'; '.join(failed)}): {HOW_TO}")


def tied(parent: int) -> list[str]:
    """A command that executes its arguments and is killed by the kernel when its parent ends,
    however that ends. The signal is set before the parent is looked at, so that a parent that
    ends in between is noticed too. It stays set in the programs that are executed next; the first
    process of the pid namespace has the same tie to them (`--die-with-parent`, `--kill-child`).

    The kernel means the thread that called Popen: it has to wait for the end of the sandbox."""
    check = f'[ "$PPID" = {parent} ] && exec "$@"'
    return ["setpriv", "--pdeathsig", "KILL", "/bin/sh", "-c", check, "sandbox"]


def bubblewrap(limits: Limits) -> list[str]:
    """The command up to the program."""
    command = ["bwrap", "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session"]
    command += ["--as-pid-1", "--cap-drop", "ALL", "--uid", str(NOBODY), "--gid", str(NOBODY)]
    command += ["--hostname", "sandbox"]
    for source, target in _read_only():
        kind = "--symlink" if target else "--ro-bind"
        seen = _mount_point() if source == _out_of_reach() else source
        command += [kind, target or seen, source]
    for path in hidden():
        command += ["--tmpfs", path, "--remount-ro", path]
    for device in DEVICES:
        command += ["--dev-bind", device, device]
    command += ["--symlink", INPUT, "/dev/stdin"]
    command += ["--size", str(4 * limits.file_bytes), "--tmpfs", "/tmp", "--chdir", "/tmp"]
    command += ["--remount-ro", "/", "--clearenv", "--setenv", "PATH", "/usr/bin", "--"]
    if _out_of_reach() is None:
        return command
    script = f'mount --no-canonicalize --bind . {_mount_point()} && exec "$@"'
    around = ["unshare", "--user", "--map-root-user", "--mount", "/bin/sh", "-c", script, "sandbox"]
    return [*around, *command]


def unshare(limits: Limits) -> list[str]:
    """The same by util-linux's unshare and a shell script that builds the root."""
    script = ["set -e", f"R={_mount_point()}", "mount -t tmpfs -o size=1m,mode=755 none $R"]
    script.append("mkdir -p $R/dev $R/tmp $R/old $R/proc")
    for source, target in _read_only():
        at = shlex.quote(source)
        if target:
            script.append(f"ln -s {shlex.quote(target)} $R{at}")
        else:
            seen = "." if source == _out_of_reach() else at
            script += [f"mkdir -p $R{at}", f"mount --no-canonicalize --bind {seen} $R{at}"]
            script.append(f"mount -o remount,bind,ro,nosuid,nodev $R{at}")
    for path in hidden():
        script.append(f"mount -t tmpfs -o size=4k,ro none $R{shlex.quote(path)}")
    for device in DEVICES:
        script += [f": > $R{device}", f"mount --bind {device} $R{device}"]
    size = 4 * limits.file_bytes
    script += [
        f"ln -s {INPUT} $R/dev/stdin",
        f"mount -t tmpfs -o size={size},mode=777,nosuid,nodev none $R/tmp",
        "mount --rbind /proc $R/proc",  # umount reads its own table there
        "cd $R",
        "pivot_root . old",
        "umount -l /old",
        "umount -l /proc",
        "rmdir /old /proc",
        "mount -o remount,ro,nosuid,nodev none /",
        "cd /tmp",
        'exec "$@"',
    ]
    flags = ["--user", "--map-root-user", "--mount", "--pid", "--fork", "--net", "--ipc", "--uts"]
    return ["unshare", *flags, "--kill-child=KILL", "/bin/sh", "-c", "\n".join(script), "sandbox"]


def identity() -> Identity:
    """Who starts the sandbox, in Popen's words: root becomes nobody. Where there is no nobody to
    become (a user namespace that maps root alone), root must be somebody else's name outside."""
    if os.geteuid() != 0:
        return {}
    ranges = [
        [int(number) for number in line.split()]
        for line in Path("/proc/self/uid_map").read_text().splitlines()
    ]
    if any(first <= NOBODY < first + size for first, _, size in ranges):
        return {"user": NOBODY, "group": NOBODY, "extra_groups": ()}
    if any(first == outside == 0 for first, outside, _ in ranges):
        raise PermissionError("root cannot become an unprivileged user here")
    return {}


@lru_cache(maxsize=1)
def _out_of_reach() -> str | None:
    """What is bound and can be reached by root only, such as a Python below /root. The one who
    becomes nobody goes there first, and binds the directory it stands in."""
    if "user" not in identity():
        return None
    closed = [
        source
        for source, target in _read_only()
        if not target and not all(p.stat().st_mode & stat.S_IXOTH for p in Path(source).parents)
    ]
    if len(closed) > 1:
        raise PermissionError(f"{' and '.join(closed)} can be reached by root only")
    return closed[0] if closed else None


@lru_cache(maxsize=1)
def _mount_point() -> str:
    """A directory to build the new root on, with nothing below it that goes into the root."""
    taken = [source for source, _ in _read_only()]
    for name in ("/mnt", "/media", "/srv", "/opt", "/tmp"):
        if Path(name).is_dir() and not any(f"{t}/".startswith(f"{name}/") for t in taken):
            return name
    return "/tmp"


def _python() -> list[str]:
    """This Python without site-packages, waiting for what it is to be."""
    return [os.path.realpath(sys.executable), "-I", "-S", "-B", "-c", BOOT]


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
def hidden() -> Sequence[str]:
    """Installed packages below what is bound: not the program's business."""
    base = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix}
    packages = {sysconfig.get_path(kind, vars=base) for kind in ("purelib", "platlib")}
    return tuple(sorted(p for p in packages if Path(p).is_dir()))


def packed(part: Part, job: Mapping[str, Any], limits: Limits) -> bytes:
    """What is sent in first: the modules of a part, compiled, and its job."""
    words = wire.encode(
        {**job, "limits": {name: getattr(limits, name) for name in Limits.__slots__}}
    )
    return b"".join(b"%08x%s" % (len(text), text) for text in (_modules(part), words))


@lru_cache(maxsize=3)
def _modules(part: Part) -> bytes:
    names = ("wire", "restrictions", part)
    return marshal.dumps([(name, compile(source(name), name, "exec")) for name in names])


def source(module: str) -> str:
    """The text of a module that runs inside."""
    return (INSIDE / f"{module}.py").read_text(encoding="utf-8")


@contextmanager
def as_file(content: bytes) -> Iterator[int]:
    """A file without a name, to be read from its start."""
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.seek(0)
        yield file.fileno()
