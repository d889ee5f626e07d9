"""The sandbox: runs a program that must be assumed hostile, or refuses to.

Restrictions, from the outside in:

1. an unprivileged user: a caller that is root switches to the user `nobody` before anything else,
   so that neither the program nor the commands around it have rights outside;
2. namespaces (user, mount, pid, network, ipc, uts) by bubblewrap, or by `unshare` if that is
   missing: no network; a root with the system's libraries and Python's standard library, read-only;
   an empty /tmp in memory as the only place to write; neither /proc nor /sys, so no kernel settings
   and no memory of other processes. The program is the first and only process in its pid namespace:
   there is none that it could attack, and none that escapes the restrictions below;
3. an empty environment, and no open file except the three standard streams;
4. inside, before the program is read (`inside/restrictions.py`): limits on CPU, memory, file size
   and open files, no capabilities, and a filter that lists the allowed system calls;
5. outside, in this module: a limit on output and on time, and a kill of the whole process group,
   which ends the pid namespace and everything in it. If the caller dies first, the kernel does the
   same (`tied`).

The job is sent in through a socket or an unnamed file; no file has to be cleaned up. If any
restriction is missing on this machine (`sandbox_selftest.py` tests them), `find_sandbox` raises an
InputError: there is no weaker mode.
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
from typing import Any, Literal, TypeAlias

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
#: What runs inside: the program, the unit tests of its values, or the self-test.
Part: TypeAlias = Literal["program", "tester", "selftest"]
#: User and group id of `nobody` on every Linux.
NOBODY = 65534
#: Devices that ordinary programs open; none of them leads to hardware.
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
#: The first code inside: it closes inherited files and loads the modules that are sent in. It is
#: a text for `python -c`, since no file of scalerl can be read inside.
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


@dataclass(frozen=True, slots=True)
class Namespaces:
    """A sandbox made by a command that applies restrictions 1 to 3."""

    name: Kind

    def start(self, limits: Limits, stdin: int, stdout: int) -> SandboxedProcess:
        make = bubblewrap if self.name == "bubblewrap" else unshare
        # Popen changes the directory while it is still root: a directory that only root can reach
        # can be bound afterwards as ".".
        cwd = _out_of_reach() or "/"
        command = [*tied(os.getpid()), *make(limits), *_python()]
        return SandboxedProcess(command, stdin, stdout, cwd, identity())

    def run(self, code: str, given: str, limits: Limits) -> SandboxResult:
        """Run a program on an input."""
        with as_file(packed("program", {"code": code, "input": given}, limits)) as job:
            program = self.start(limits, job, subprocess.PIPE)
        with program:
            killed = watch([program], program, limits)
        return program.result(killed)

    def run_tests(
        self, code: str, tests: Mapping[str, Any], limits: Limits
    ) -> tuple[SandboxResult, SandboxResult]:
        """Run a program in one sandbox and its unit tests in another. Returns the results of both;
        the lines on standard error of the second are the results of the tests."""
        here, there = socket.socketpair()
        with here, there, ExitStack() as started:
            here.settimeout(limits.seconds)
            # Before the tester starts, because it writes to the same socket.
            here.sendall(packed("program", {}, limits))
            here.settimeout(None)
            program = started.enter_context(self.start(limits, there.fileno(), subprocess.DEVNULL))
            with as_file(packed("tester", {"code": code, **tests}, limits)) as job:
                tester = started.enter_context(self.start(limits, job, here.fileno()))
            # Only the two processes keep their ends: if one of them ends, the other notices.
            here.close()
            there.close()
            killed = watch([tester, program], tester, limits)
        return program.result(killed), tester.result(killed)


@lru_cache(maxsize=1)
def find_sandbox() -> Namespaces:
    """The sandbox of this machine, after a self-test; InputError if there is none."""
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
    """The beginning of a command that the kernel kills when its parent ends, however that ends. The
    setting survives exec; the first process of the pid namespace is tied to the command in the same
    way (`--die-with-parent`, `--kill-child`).

    For the kernel, the parent is the thread that called Popen: that thread has to wait for the end
    of the sandbox."""
    # The signal is set first and the parent checked second: a parent that has ended in between, for
    # which no signal would come, is noticed by its changed process id.
    check = f'[ "$PPID" = {parent} ] && exec "$@"'
    return ["setpriv", "--pdeathsig", "KILL", "/bin/sh", "-c", check, "sandbox"]


def bubblewrap(limits: Limits) -> list[str]:
    """The beginning of a command that runs its arguments in bubblewrap's namespaces."""
    command = ["bwrap", "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session"]
    command += ["--as-pid-1", "--cap-drop", "ALL", "--uid", str(NOBODY), "--gid", str(NOBODY)]
    command += ["--hostname", "sandbox"]
    for source, target in _read_only():
        kind = "--symlink" if target else "--ro-bind"
        seen = _mount_point() if source == _out_of_reach() else source
        command += [kind, target or seen, source]
    # Order matters: a later mount covers an earlier one.
    for path in hidden():
        command += ["--tmpfs", path, "--remount-ro", path]
    for device in DEVICES:
        command += ["--dev-bind", device, device]
    command += ["--symlink", INPUT, "/dev/stdin"]
    # Several files of the largest size fit, and no more than that in memory.
    command += ["--size", str(4 * limits.file_bytes), "--tmpfs", "/tmp", "--chdir", "/tmp"]
    command += ["--remount-ro", "/", "--clearenv", "--setenv", "PATH", "/usr/bin", "--"]
    if _out_of_reach() is None:
        return command
    # bwrap runs as nobody and cannot reach the directory by its path: an outer mount namespace
    # binds the current directory to a path that everybody can reach.
    script = f'mount --no-canonicalize --bind . {_mount_point()} && exec "$@"'
    around = ["unshare", "--user", "--map-root-user", "--mount", "/bin/sh", "-c", script, "sandbox"]
    return [*around, *command]


def unshare(limits: Limits) -> list[str]:
    """The same with util-linux's unshare and a shell script that builds the root."""
    script = ["set -e", f"R={_mount_point()}", "mount -t tmpfs -o size=1m,mode=755 none $R"]
    script.append("mkdir -p $R/dev $R/tmp $R/old $R/proc")
    for source, target in _read_only():
        at = shlex.quote(source)
        if target:
            script.append(f"ln -s {shlex.quote(target)} $R{at}")
        else:
            seen = "." if source == _out_of_reach() else at
            script += [f"mkdir -p $R{at}", f"mount --no-canonicalize --bind {seen} $R{at}"]
            # A bind mount ignores `ro` at first; only a remount makes it read-only.
            script.append(f"mount -o remount,bind,ro,nosuid,nodev $R{at}")
    for path in hidden():
        script.append(f"mount -t tmpfs -o size=4k,ro none $R{shlex.quote(path)}")
    for device in DEVICES:
        script += [f": > $R{device}", f"mount --bind {device} $R{device}"]
    size = 4 * limits.file_bytes
    script += [
        f"ln -s {INPUT} $R/dev/stdin",
        f"mount -t tmpfs -o size={size},mode=777,nosuid,nodev none $R/tmp",
        # umount reads the table of mounts there; it is unmounted below.
        "mount --rbind /proc $R/proc",
        "cd $R",
        "pivot_root . old",
        # Lazily: the shell's own files are still open in the old root.
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
    """Popen's arguments for the user that starts the sandbox: root becomes `nobody`, other users
    stay. In a user namespace that maps only root, `nobody` does not exist; root may stay if it is
    an ordinary user outside that namespace."""
    if os.geteuid() != 0:
        return {}
    # Each line is: first id here, first id outside, number of ids.
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
    """The directory among those to bind that only root can reach, such as a Python below /root.
    `Namespaces.start` enters it as root and binds it as the current directory. There can be one
    such directory at most."""
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
    """A directory to build the new root on, with nothing below it that is bound into the root."""
    taken = [source for source, _ in _read_only()]
    for name in ("/mnt", "/media", "/srv", "/opt", "/tmp"):
        if Path(name).is_dir() and not any(f"{t}/".startswith(f"{name}/") for t in taken):
            return name
    return "/tmp"


def _python() -> list[str]:
    """The command of this Python, isolated (-I), without site-packages (-S) or .pyc files (-B)."""
    return [os.path.realpath(sys.executable), "-I", "-S", "-B", "-c", BOOT]


@lru_cache(maxsize=1)
def _read_only() -> Sequence[tuple[str, str]]:
    """The system's libraries and this Python: (path, "") to bind, or (path, target) to link."""
    found = [("/usr", "")]
    for name in ("/lib", "/lib64", "/bin"):
        path = Path(name)
        if path.is_symlink():  # /lib is a link to usr/lib on most systems
            found.append((name, str(path.readlink())))
        elif path.is_dir():
            found.append((name, ""))
    for prefix in {sys.base_prefix, str(Path(os.path.realpath(sys.executable)).parent.parent)}:
        if not prefix.startswith("/usr"):
            found.append((prefix, ""))
    return tuple(found)


@lru_cache(maxsize=1)
def hidden() -> Sequence[str]:
    """Directories of installed packages, which the program must not see."""
    base = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix}
    packages = {sysconfig.get_path(kind, vars=base) for kind in ("purelib", "platlib")}
    return tuple(sorted(p for p in packages if Path(p).is_dir()))


def packed(part: Part, job: Mapping[str, Any], limits: Limits) -> bytes:
    """The first message to a sandboxed process: its compiled modules, and its job."""
    words = wire.encode(
        {**job, "limits": {name: getattr(limits, name) for name in Limits.__slots__}}
    )
    return b"".join(b"%08x%s" % (len(text), text) for text in (_modules(part), words))


@lru_cache(maxsize=3)
def _modules(part: Part) -> bytes:
    # In this order: each module finds those before it already loaded.
    names = ("wire", "restrictions", part)
    return marshal.dumps([(name, compile(source(name), name, "exec")) for name in names])


def source(module: str) -> str:
    """The text of a module that runs inside."""
    return (INSIDE / f"{module}.py").read_text(encoding="utf-8")


@contextmanager
def as_file(content: bytes) -> Iterator[int]:
    """The descriptor of an unnamed file with this content, at its start. A pipe would block on
    content that is larger than its buffer."""
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.seek(0)
        yield file.fileno()
