"""The self-test inside the sandbox: tries what a program must not be able to do."""

# Importing pathlib would delay the start of every program.
# ruff: noqa: PTH108, PTH110

from __future__ import annotations

import ctypes
import errno
import os
import stat
import sys
import time

from scalerl.tasks.inside import restrictions, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Paths that must not exist in the sandbox.
OUT_OF_SIGHT = ("/proc", "/sys", "/run", "/etc/passwd", "/home", "/var", "/dev/mem", "/dev/kmsg")
#: If /proc exists after all: files that must not open for writing.
NOT_FOR_WRITING = (
    *("/proc/1/mem", "/proc/1/oom_score_adj", "/proc/sysrq-trigger", "/proc/kcore"),
    *("/proc/sys/vm/swappiness", "/proc/sys/kernel/core_pattern"),
)
#: Directories in which no file can be created.
READ_ONLY = ("/", "/usr", "/dev", "/dev/shm", sys.prefix)
#: System calls that must fail with ENOSYS: numbers on x86_64 and aarch64, and arguments with which
#: the call would do no harm if it were allowed.
MISSING = {
    "ptrace": ((101, 117), (16, -1, 0, 0)),
    "process_vm_readv": ((310, 270), (-1, 0, 0, 0, 0, 0)),
    "process_vm_writev": ((311, 271), (-1, 0, 0, 0, 0, 0)),
    "pidfd_open": ((434, 434), (1, 0)),
    "pidfd_getfd": ((438, 438), (-1, 0, 0)),
    "kcmp": ((312, 272), (-1, -1, 0, 0, 0)),
    "socket": ((41, 198), (1, 1, 0)),
    "connect": ((42, 203), (-1, 0, 0)),
    "sendmsg": ((46, 211), (-1, 0, 0)),
    "execve": ((59, 221), (0, 0, 0)),
    "unshare": ((272, 97), (0,)),
    "setns": ((308, 268), (-1, 0)),
    "mount": ((165, 40), (0, 0, 0, 0, 0)),
    "chroot": ((161, 51), (0,)),
    "bpf": ((321, 280), (-1, 0, 0)),
    "keyctl": ((250, 219), (-1, 0, 0, 0, 0)),
    "io_uring_setup": ((425, 425), (0, 0)),
    "perf_event_open": ((298, 241), (0, 0, -1, -1, 0)),
    "userfaultfd": ((323, 282), (-1,)),
    "open_by_handle_at": ((304, 265), (-1, 0, 0)),
    "memfd_create": ((319, 279), (0, 0)),
    "clone3": ((435, 435), (0, 0)),
}


def main(job: dict[str, Any]) -> None:
    """Send what is missing, then wait to be inspected from outside."""
    restrictions.apply(job["limits"])
    wire.send(1, wire.encode(holes(job["read_only"])))
    while True:
        time.sleep(60)


def holes(read_only: list[str]) -> list[str]:
    """Each missing restriction, in a few words."""
    found = [f"{path} is in sight" for path in OUT_OF_SIGHT if os.path.exists(path)]
    found += [f"{path} can be written" for path in NOT_FOR_WRITING if opens(path, os.O_WRONLY)]
    for path in (*READ_ONLY, *read_only):
        # O_EXCL: only a file that was created here is removed again.
        if opens(f"{path}/hole", os.O_CREAT | os.O_EXCL | os.O_WRONLY):
            os.unlink(f"{path}/hole")
            found.append(f"{path} can be written")
    if os.getpid() != 1:
        found.append("the program is not the first process of its namespace")
    found += [*calls(), *open_directories()]
    try:
        if os.fork() == 0:
            os._exit(0)
        found.append("processes can be started")
    except OSError:
        pass  # the filter works
    return found


def open_directories() -> list[str]:
    """Open directories: with fchdir, a program could leave the new root through them."""
    for number in range(1024):
        try:
            if stat.S_ISDIR(os.fstat(number).st_mode):
                return ["a directory outside is open"]
        except OSError:
            continue  # nothing is open there
    return []


def opens(path: str, flags: int) -> bool:
    """Whether a file can be opened with these flags."""
    try:
        os.close(os.open(path, flags))
    except OSError:
        return False
    return True


def calls() -> list[str]:
    """System calls that are allowed although they must not be."""
    library = ctypes.CDLL(None, use_errno=True)
    column = 0 if os.uname().machine == "x86_64" else 1
    found = []
    for name, (numbers, arguments) in MISSING.items():
        ctypes.set_errno(0)
        done = library.syscall(
            ctypes.c_long(numbers[column]), *(ctypes.c_long(value) for value in arguments)
        )
        if done != -1 or ctypes.get_errno() != errno.ENOSYS:
            found.append(f"the system call {name} is allowed")
    return found
