"""What runs inside the sandbox: raises the inner walls, then runs the program.

Given to `python -c` as text, so it imports nothing of the package. It reads its job from standard
input: {"code", "input"} runs a program on an input, its output being standard output; {"code",
"calls"} runs a program and then evaluates expressions, one JSON line of results each. What results
are *expected* never comes in here: a program that owns this process still has to know the answers.
"""

# pathlib would add to the start of every run of every program.
# ruff: noqa: PTH110, PTH123, PTH208, SIM115

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import struct
import sys

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, PR_CAPBSET_DROP, SECCOMP_MODE_FILTER = 38, 22, 24, 2
ALLOW, DENY, NO_SUCH_CALL, KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
CLONE_THREAD = 0x00010000
LOAD, JUMP_EQUAL, JUMP_BITS, JUMP_GE, RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
#: Refused system calls, by their numbers on x86_64 and aarch64 (None: it has no such call).
REFUSED = {
    "socket": (41, 198),
    "connect": (42, 203),
    "accept": (43, 202),
    "sendto": (44, 206),
    "bind": (49, 200),
    "listen": (50, 201),
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "ptrace": (101, 117),
    "mknod": (133, None),
    "personality": (135, 92),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "acct": (163, 89),
    "settimeofday": (164, 170),
    "mount": (165, 40),
    "umount2": (166, 39),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "sethostname": (170, 161),
    "init_module": (175, 105),
    "delete_module": (176, 106),
    "quotactl": (179, 60),
    "clock_settime": (227, 112),
    "kexec_load": (246, 104),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "mknodat": (259, 33),
    "unshare": (272, 97),
    "perf_event_open": (298, 241),
    "open_by_handle_at": (304, 265),
    "setns": (308, 268),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "finit_module": (313, 273),
    "memfd_create": (319, 279),
    "kexec_file_load": (320, 294),
    "bpf": (321, 280),
    "execveat": (322, 281),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "pidfd_getfd": (438, 438),
    "mount_setattr": (442, 442),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
}
#: Column of REFUSED, audit architecture, and the numbers of clone, clone3 and capset.
MACHINES = {
    "x86_64": (0, 0xC000003E, 56, 435, 126),
    "aarch64": (1, 0xC00000B7, 220, 435, 91),
}

#: How collections are tagged on their way out.
KINDS: dict[type, str] = {list: "list", tuple: "tuple", set: "set", frozenset: "set"}


def stop(why: str) -> None:
    """A wall could not be raised: the program is not run."""
    os.write(2, why.encode() + b"\n")
    os._exit(97)


def system_call_filter() -> bytes:
    """A BPF program: one instruction is (code, jump if true, jump if false, value)."""
    column, architecture, clone, clone3, _ = MACHINES[platform.machine()]
    steps = [
        (LOAD, 0, 0, 4),
        (JUMP_EQUAL, 1, 0, architecture),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, 0),
        (JUMP_GE, 0, 1, 0x40000000),  # the x32 calls have other numbers
        (RETURN, 0, 0, KILL),
        (JUMP_EQUAL, 0, 1, clone3),  # its flags cannot be read: the C library then uses clone
        (RETURN, 0, 0, NO_SUCH_CALL),
        (JUMP_EQUAL, 0, 4, clone),
        (LOAD, 0, 0, 16),
        (JUMP_BITS, 0, 1, CLONE_THREAD),
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, DENY),
    ]
    for number in (numbers[column] for numbers in REFUSED.values()):
        if number is None:
            continue
        steps += [(JUMP_EQUAL, 0, 1, number), (RETURN, 0, 0, DENY)]
    steps.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("HBBI", *step) for step in steps)


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_char_p)]


def raise_walls(limits: dict[str, float]) -> None:
    """Limits, no capabilities, no new privileges, the filter. None can be undone."""
    if platform.machine() not in MACHINES:
        stop(f"there is no system-call filter for {platform.machine()}")
    for name, value in (
        (resource.RLIMIT_CPU, int(limits["cpu_seconds"])),
        (resource.RLIMIT_AS, int(limits["memory_bytes"])),
        (resource.RLIMIT_FSIZE, int(limits["file_bytes"])),
        (resource.RLIMIT_NOFILE, int(limits["open_files"])),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 64),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        resource.setrlimit(name, (value, value))
    library = ctypes.CDLL(None, use_errno=True)
    for capability in range(64):
        library.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)  # fails past the last one
    header = struct.pack("Ii", 0x20080522, 0)
    if library.syscall(ctypes.c_long(MACHINES[platform.machine()][-1]), header, bytes(24)):
        stop("capabilities cannot be given up")
    if library.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        stop("privileges cannot be given up")
    steps = system_call_filter()
    program = Program(len(steps) // 8, steps)
    if library.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0):
        stop("system calls cannot be filtered")


def text(path: str) -> list[str]:
    with open(path) as file:
        return file.read().splitlines()


def walls() -> list[str]:
    """What a trial run finds missing."""
    holes = []
    status = dict(line.split(":\t", 1) for line in text("/proc/self/status") if ":\t" in line)
    if status["Seccomp"].strip() != "2":
        holes.append("system calls are not filtered")
    if int(status["CapEff"], 16) or int(status["CapPrm"], 16):
        holes.append("capabilities are left")
    if len(text("/proc/net/dev")) > 3:  # two lines of heading, and lo
        holes.append("network devices are in sight")
    if sum(name.isdigit() for name in os.listdir("/proc")) > 3:
        holes.append("other processes are in sight")
    for path in ("/etc/passwd", "/home", "/var"):
        if os.path.exists(path):
            holes.append(f"{path} is in sight")
    for path in (
        "/hole",
        "/usr/hole",
        "/dev/hole",
        "/dev/shm/hole",
        sys.prefix + "/hole",
    ):
        try:
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
        except OSError:
            continue
        holes.append(f"{path} can be written")
    try:
        os.fork()
    except OSError:
        return holes
    return [*holes, "processes can be started"]


def plain(value: object, depth: int = 0) -> object:
    """A value as JSON that keeps its type: lists, tuples, sets and dicts are tagged."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if depth > 50:
        return ["other", "nested too deeply"]
    kind = KINDS.get(type(value))
    if kind is not None:
        return [kind, [plain(item, depth + 1) for item in value]]  # type: ignore[attr-defined]
    if type(value) is dict:
        return ["dict", [[plain(k, depth + 1), plain(v, depth + 1)] for k, v in value.items()]]
    return ["other", type(value).__name__]


def main() -> None:
    job = json.loads(sys.stdin.buffer.read())
    given = os.open("/tmp", os.O_TMPFILE | os.O_RDWR) if job.get("input") else None
    if given is not None:
        os.write(given, job["input"].encode("utf-8", "surrogatepass"))
        os.lseek(given, 0, os.SEEK_SET)
    nothing = os.open("/dev/null", os.O_RDWR)
    os.dup2(nothing if given is None else given, 0)
    results = os.dup(1) if "calls" in job else None
    if results is not None:
        os.dup2(nothing, 1)
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    raise_walls(job["limits"])
    os.write(2, b"walls are up\n")  # what happens from here on is the program's doing
    names: dict[str, object] = {"__name__": "__main__", "__builtins__": __builtins__}
    if job.get("probe"):
        names["walls"] = walls
    exec(compile(job["code"], "answer.py", "exec"), names)
    for call in job.get("calls", []):
        message = {"value": plain(eval(compile(call, "test.py", "eval"), names))}
        if results is not None:
            os.write(results, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main()
