"""The restrictions that a sandboxed process puts on itself before it runs a program: resource
limits, no capabilities, and a filter of system calls.

The filter lists what is allowed: the calls that ordinary Python makes for files, memory, threads,
time and signals. Every other call, including those that later kernels add, fails with ENOSYS: no
new process or program, no network, no access to another process, no mount, namespace, key or BPF.

File locks succeed and do nothing. A lock belongs to a file of the machine, however many read-only
mounts lead to it: with a lock, one program could signal to another or block a process outside. The
files that a program can write are its own, so it needs no lock there.

The filter is written out here instead of using libseccomp, because it must work on every machine
that has Python; a test compares each number with libseccomp's.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

# Options of prctl, from linux/prctl.h.
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
# Results of the filter, from linux/seccomp.h.
SECCOMP_MODE_FILTER = 2
ALLOW = 0x7FFF0000
#: The call fails with errno 38, ENOSYS, as on a kernel that does not have it: programs and
#: libraries are prepared for that, and fall back on another call.
NO_SUCH_CALL = 0x00050026
#: The call is skipped and returns 0 (errno 0), as if it had succeeded.
SKIPPED = 0x00050000
KILL = 0x80000000
#: Flag of clone: the new task is a thread of this process (linux/sched.h).
CLONE_THREAD = 0x00010000
# Instructions of classic BPF, from linux/bpf_common.h: load a 32-bit word, jump if equal, jump if
# any bit is set, jump if greater or equal, return.
LOAD = 0x20
JUMP_EQUAL = 0x15
JUMP_BITS = 0x45
JUMP_GE = 0x35
RETURN = 0x06
#: First line on standard error. Whatever is written after it was caused by the program; without
#: it, the sandbox itself has failed.
READY = b"restrictions applied\n"
#: Allowed system calls, with their numbers on x86_64 and aarch64 (-: no such call there). Of
#: sockets there is only socketpair, which asyncio needs: both ends are in this process. kill and
#: tgkill reach only this process, since it is alone in its pid namespace.
ALLOWED = """
read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68, lseek 8 62,
close 3 57, close_range 436 436, open 2 -, openat 257 56, creat 85 -, stat 4 -, fstat 5 80,
lstat 6 -, newfstatat 262 79, statx 332 291, access 21 -, faccessat 269 48, faccessat2 439 439,
readlink 89 -, readlinkat 267 78, getdents 78 -, getdents64 217 61, getcwd 79 17, chdir 80 49,
fchdir 81 50, mkdir 83 -, mkdirat 258 34, rmdir 84 -, unlink 87 -, unlinkat 263 35,
rename 82 -, renameat 264 38, renameat2 316 276, symlink 88 -, symlinkat 266 36, link 86 -,
linkat 265 37, chmod 90 -, fchmod 91 52, fchmodat 268 53, umask 95 166, truncate 76 45,
ftruncate 77 46, fallocate 285 47, fsync 74 82, fdatasync 75 83, utime 132 -, utimes 235 -,
utimensat 280 88, statfs 137 43, fstatfs 138 44, ioctl 16 29,
dup 32 23, dup2 33 -, dup3 292 24, pipe 22 -, pipe2 293 59, copy_file_range 326 285,
sendfile 40 71, fadvise64 221 223,
mmap 9 222, munmap 11 215, mprotect 10 226, mremap 25 216, madvise 28 233, brk 12 214,
msync 26 227, mincore 27 232,
rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, rt_sigpending 127 136,
rt_sigtimedwait 128 137, rt_sigsuspend 130 133, sigaltstack 131 132, kill 62 129,
tkill 200 130, tgkill 234 131, pause 34 -, alarm 37 -, setitimer 38 103, getitimer 36 102,
nanosleep 35 101, clock_nanosleep 230 115, clock_gettime 228 113, clock_getres 229 114,
gettimeofday 96 169, time 201 -, times 100 153,
futex 202 98, set_robust_list 273 99, get_robust_list 274 100, set_tid_address 218 96,
rseq 334 293, membarrier 324 283, sched_yield 24 124, sched_getaffinity 204 123,
sched_setaffinity 203 122, sched_getparam 143 121, sched_getscheduler 145 120,
sched_get_priority_max 146 125, sched_get_priority_min 147 126,
exit 60 93, exit_group 231 94, restart_syscall 219 128, gettid 186 178, getpid 39 172,
getppid 110 173, getpgrp 111 -, getpgid 121 155, getsid 124 156, getuid 102 174,
geteuid 107 175, getgid 104 176, getegid 108 177, getresuid 118 148, getresgid 120 150,
getgroups 115 158, uname 63 160, sysinfo 99 179, getrusage 98 165, getrlimit 97 163,
setrlimit 160 164, prlimit64 302 261, getpriority 140 141, getrandom 318 278, getcpu 309 168,
poll 7 -, ppoll 271 73, select 23 -, pselect6 270 72, epoll_create 213 -, epoll_create1 291 20,
epoll_ctl 233 21, epoll_wait 232 -, epoll_pwait 281 22, epoll_pwait2 441 441, eventfd 284 -,
eventfd2 290 19, socketpair 53 199, sendto 44 206, recvfrom 45 207, getsockopt 55 209,
setsockopt 54 208, shutdown 48 210, getsockname 51 204, getpeername 52 205,
"""
#: Column of ALLOWED, audit architecture, and the numbers of clone, fcntl, flock and capset.
MACHINES = {
    "x86_64": (1, 0xC000003E, 56, 72, 73, 126),
    "aarch64": (2, 0xC00000B7, 220, 25, 32, 91),
}
#: Allowed commands of fcntl, which concern only the descriptor: F_DUPFD, F_GETFD, F_SETFD, F_GETFL,
#: F_SETFL, F_DUPFD_CLOEXEC, F_SETPIPE_SZ, F_GETPIPE_SZ. Not F_GETLK, leases or notifications: they
#: would show what processes outside do with a file.
DESCRIPTOR = (0, 1, 2, 3, 4, 1030, 1031, 1032)
#: Commands of fcntl that lock: F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW.
LOCK = (6, 7, 37, 38)


def stop(why: str) -> NoReturn:
    """End the process before it runs the program, because a restriction could not be applied."""
    os.write(2, why.encode() + b"\n")
    os._exit(97)


def system_call_filter(machine: str) -> bytes:
    """The filter as a BPF program. An instruction is (code, jump if true, jump if false, value);
    a jump is a number of instructions to skip. Loads read `struct seccomp_data`: the number of the
    call at byte 0, the architecture at 4, the arguments from 16 on, 8 bytes each."""
    column, architecture, clone, fcntl, flock, _ = MACHINES[machine]
    commands = [(command, ALLOW) for command in DESCRIPTOR]
    commands += [(command, SKIPPED) for command in LOCK]
    steps = [
        # A 32-bit call on x86_64 has another architecture, where the numbers mean other calls.
        (LOAD, 0, 0, 4),
        (JUMP_EQUAL, 1, 0, architecture),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, 0),
        # The x32 calls have the same architecture but numbers from 2^30 on.
        (JUMP_GE, 0, 1, 0x40000000),
        (RETURN, 0, 0, KILL),
        # clone only for threads. clone3 is not allowed at all: its flags are in memory, which a
        # filter cannot read; glibc falls back on clone.
        (JUMP_EQUAL, 0, 4, clone),
        (LOAD, 0, 0, 16),
        (JUMP_BITS, 0, 1, CLONE_THREAD),
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, NO_SUCH_CALL),
        (JUMP_EQUAL, 0, 1, flock),
        (RETURN, 0, 0, SKIPPED),
        (JUMP_EQUAL, 0, 2 + 2 * len(commands), fcntl),
        # The command is the low half of the second argument; the kernel ignores the high half too.
        (LOAD, 0, 0, 24),
        *(
            step
            for command, result in commands
            for step in ((JUMP_EQUAL, 0, 1, command), (RETURN, 0, 0, result))
        ),
        (RETURN, 0, 0, NO_SUCH_CALL),
    ]
    for call in ALLOWED.strip(" \n,").split(","):
        number = call.split()[column]
        if number != "-":
            steps += [(JUMP_EQUAL, 0, 1, int(number)), (RETURN, 0, 0, ALLOW)]
    steps.append((RETURN, 0, 0, NO_SUCH_CALL))
    return b"".join(struct.pack("HBBI", *step) for step in steps)


class Program(ctypes.Structure):
    """`struct sock_fprog` of linux/filter.h: number of instructions, and a pointer to them."""

    _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_char_p)]


def limit(limits: dict[str, float]) -> None:
    """Set the resource limits, soft and hard, so that the program cannot raise them."""
    for name, value in (
        (resource.RLIMIT_CPU, int(limits["cpu_seconds"])),
        (resource.RLIMIT_AS, int(limits["memory_bytes"])),
        (resource.RLIMIT_FSIZE, int(limits["file_bytes"])),
        (resource.RLIMIT_NOFILE, int(limits["open_files"])),
        (resource.RLIMIT_CORE, 0),
        # Threads: the filter allows no other process. Each costs kernel memory.
        (resource.RLIMIT_NPROC, 64),
        # Memory that cannot be swapped out, and message queues, which RLIMIT_AS does not count.
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        resource.setrlimit(name, (value, value))


def drop(library: ctypes.CDLL, machine: str) -> None:
    """Drop the capabilities of all five sets, and the way to regain them."""
    # The bounding set first: dropping from it needs a capability that capset takes away below.
    for capability in range(64):
        library.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)  # fails past the last one
    library.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    # Version 3 of capset's header, for this process; the empty data clears the other three sets.
    header = struct.pack("Ii", 0x20080522, 0)
    if library.syscall(ctypes.c_long(MACHINES[machine][-1]), header, bytes(24)):
        stop("capabilities cannot be given up")
    # The kernel accepts a filter from an unprivileged process only with this flag.
    if library.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        stop("privileges cannot be given up")


def seal(library: ctypes.CDLL, machine: str) -> None:
    """Install the filter. This is the only thread; threads that it starts inherit the filter."""
    steps = system_call_filter(machine)
    program = Program(len(steps) // 8, steps)
    if library.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0):
        stop("system calls cannot be filtered")


def apply(limits: dict[str, float]) -> None:
    """Apply all restrictions, then write READY. None of them can be undone."""
    machine = os.uname().machine
    if machine not in MACHINES:
        stop(f"there is no system-call filter for {machine}")
    library = ctypes.CDLL(None, use_errno=True)
    limit(limits)
    drop(library, machine)
    # Not dumpable: no core goes to the machine's crash handler, and no /proc/PID/mem can be opened.
    library.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    # Last, because the filter forbids capset and prctl.
    seal(library, machine)
    os.write(2, READY)
