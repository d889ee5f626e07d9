"""The walls: each is there, for root and for everybody else, and a missing one is noticed."""

import ctypes
import errno
import fcntl
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from scalerl.errors import InputError
from scalerl.tasks import sandbox as sandboxes
from scalerl.tasks import sandbox_selftest
from scalerl.tasks.code import CodeTask
from scalerl.tasks.inside import restrictions, selftest
from scalerl.tasks.sandbox import NOBODY, Limits, Namespaces, find_sandbox, identity
from scalerl.tasks.sandbox_selftest import why_unusable

KINDS = [kind for kind in ("bubblewrap", "unshare") if not why_unusable(Namespaces(kind))]
SOURCE = Path(sandboxes.__file__).parents[2]
as_root = pytest.mark.skipif("user" not in identity(), reason="the caller is not root")
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def fresh():
    """What is remembered of a weakened sandbox ends with its test."""
    yield
    sandboxes._modules.cache_clear()
    sandboxes._out_of_reach.cache_clear()


def python_for_everybody():
    """A Python that any user may run and that can run ours: this one, or the system's."""
    for path in (os.path.realpath(sys.executable), "/usr/bin/python3"):
        folders = Path(path).resolve().parents
        if Path(path).exists() and all(f.stat().st_mode & 1 for f in folders):
            code = "import sys; sys.exit(sys.version_info < (3, 11))"
            if subprocess.run([path, "-c", code], check=False).returncode == 0:
                return path
    return None


def printed(code, kind):
    done = Namespaces(kind).run(code, "", Limits())
    assert done.exit_code == 0, done.errors.decode()
    return json.loads(done.output)


def test_there_is_a_sandbox_here():
    assert KINDS, [why_unusable(Namespaces(kind)) for kind in ("bubblewrap", "unshare")]


@every_kind
@as_root
def test_what_root_runs_is_nobody_outside(kind, monkeypatch):
    seen = []
    look = sandbox_selftest.outside

    def outside(command):
        every = {pid: sandbox_selftest.status(pid) for pid in sandbox_selftest.below(command)}
        seen.extend((facts["Uid"], facts["Gid"], facts["Groups"]) for facts in every.values())
        inner = max(every)
        ids = Path(f"/proc/{inner}/uid_map").read_text().split()
        seen.append(ids[1])
        return look(command)

    monkeypatch.setattr(sandbox_selftest, "outside", outside)
    assert why_unusable(Namespaces(kind)) == ""
    *who, outer = seen
    ids = "\t".join([str(NOBODY)] * 4)
    assert set(who) == {(ids, ids, " ")} or set(who) == {(ids, ids, "")}
    assert outer != "0" or kind == "bubblewrap"  # nested: the outer namespace's root is nobody


@every_kind
def test_there_is_nothing_of_the_kernel_to_write_to(kind):
    code = (
        "import json, os\n"
        "paths = ('/proc', '/sys', '/run', '/etc', '/var', '/home')\n"
        "found = [p for p in paths if os.path.exists(p)]\n"
        "print(json.dumps([found, os.getpid(), sorted(os.listdir('/dev'))]))"
    )
    devices = ["null", "random", "stdin", "urandom", "zero"]
    assert printed(code, kind) == [[], 1, devices]


@every_kind
def test_only_three_files_are_open(kind):
    code = (
        "import json, os\nfound = []\nfor n in range(64):\n"
        "    try: os.fstat(n); found.append(n)\n    except OSError: pass\nprint(json.dumps(found))"
    )
    assert printed(code, kind) == [0, 1, 2]


LOCKS = """
import ctypes, fcntl, json, os, sqlite3, struct
library = ctypes.CDLL(None, use_errno=True)
number = os.open({path!r}, os.O_RDONLY)
fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
fcntl.lockf(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
found = []
for command in (fcntl.F_GETLK, 36, fcntl.F_SETLEASE, fcntl.F_NOTIFY):  # 36: F_OFD_GETLK
    try: fcntl.fcntl(number, command, struct.pack("hhqqi", fcntl.F_WRLCK, 0, 0, 0, 0))
    except OSError as error: found.append(error.errno)
base = sqlite3.connect("/tmp/base.sqlite")
with base:
    base.execute("create table t (x)")
    base.execute("insert into t values (7)")
print(json.dumps([found, base.execute("select x from t").fetchall()]), flush=True)
"""


@every_kind
def test_locks_of_a_program_are_not_those_of_the_machine(kind):
    """A file that the sandbox has in common with the machine: a process outside
    holds the lock, and the program neither waits for it nor finds out."""
    for file in (sandboxes.DEVICES[0], "/usr/bin/env"):
        with Path(file).open("rb") as outside:
            fcntl.flock(outside, fcntl.LOCK_EX | fcntl.LOCK_NB)
            code = LOCKS.format(path=file)
            assert printed(code, kind) == [[errno.ENOSYS] * 4, [[7]]]


@every_kind
def test_the_filter_and_no_capability_hold_for_every_process_inside(kind, monkeypatch):
    """Seen from outside, where the kernel says it and not the process."""
    seen = []

    def outside(command):
        for pid in sandbox_selftest.below(command):
            facts = sandbox_selftest.status(pid)
            if facts["NSpid"].split()[-1] != facts["NSpid"].split()[0]:
                seen.append(
                    [
                        facts[name]
                        for name in ("Seccomp", "NoNewPrivs", *sandbox_selftest.CAPABILITIES)
                    ]
                )
        return []

    monkeypatch.setattr(sandbox_selftest, "outside", outside)
    assert why_unusable(Namespaces(kind)) == ""
    assert seen == [["2", "1", *["0" * 16] * 5]]


def weakened(monkeypatch, module, old, new):
    """What runs inside, with a wall taken out of its source."""
    real = sandboxes.source
    assert old in real(module)
    monkeypatch.setattr(
        sandboxes,
        "source",
        lambda name: real(name).replace(old, new) if name == module else real(name),
    )
    sandboxes._modules.cache_clear()


@every_kind
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("    seal(library, machine)\n", "", "not filtered"),
        (
            "(RETURN, 0, 0, NO_SUCH_CALL))\n    return",
            "(RETURN, 0, 0, ALLOW))\n    return",
            "ptrace",
        ),
        ("futex 202 98", "futex 202 98, ptrace 101 117", "the system call ptrace is allowed"),
        ("futex 202 98", "futex 202 98, socket 41 198", "the system call socket is allowed"),
        ("futex 202 98", "futex 202 98, process_vm_writev 311 271", "process_vm_writev is allowed"),
        ("futex 202 98", "futex 202 98, execve 59 221", "the system call execve is allowed"),
        ("    drop(library, machine)\n", "    library.prctl(38, 1, 0, 0, 0)\n", "capabilities are"),
        ("range(64)", "range(8)", "capabilities are left"),
        ("CLONE_THREAD = 0x00010000", "CLONE_THREAD = 0xFFFFFFFF", "processes can be started"),
    ],
)
def test_an_inner_wall_that_is_missing_is_found(kind, old, new, said, monkeypatch):
    if kind == "bubblewrap" and "apabilities" in said:  # which it would give up by itself
        changed(monkeypatch, "bubblewrap", ("--cap-drop", "--cap-add"))
    weakened(monkeypatch, "restrictions", old, new)
    assert said in why_unusable(Namespaces(kind))


def changed(monkeypatch, kind, *pairs):
    """The command with some of its words replaced."""
    real = getattr(sandboxes, kind)

    def command(limits):
        words = real(limits)
        for old, new in pairs:
            assert any(old in word for word in words), old
            if kind == "unshare" or not isinstance(new, list):
                words = [word.replace(old, new) for word in words]
            else:
                at = words.index(old)
                words = words[:at] + new + words[at + 1 :]
        return words

    monkeypatch.setattr(sandboxes, kind, command)


@pytest.mark.skipif("bubblewrap" not in KINDS, reason="bubblewrap does not work on this machine")
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("--as-pid-1", [], "the program is not the first process"),
        ("--chdir", ["--proc", "/proc", "--chdir"], "/proc is in sight"),
        ("--chdir", ["--ro-bind", "/sys", "/sys", "--chdir"], "/sys is in sight"),
        ("--chdir", ["--ro-bind", "/etc", "/etc", "--chdir"], "/etc/passwd is in sight"),
        ("--chdir", ["--dev", "/dev", "--chdir"], "/dev can be written"),
        (
            "--unshare-all",
            ["--unshare-pid", "--unshare-ipc", "--unshare-uts"],
            "network devices are in sight",
        ),
    ],
)
def test_a_wall_that_bubblewrap_does_not_raise_is_found(old, new, said, monkeypatch):
    if said.startswith("network") and len(Path("/proc/net/dev").read_text().splitlines()) < 4:
        pytest.skip("this machine has no network device to be seen")
    changed(monkeypatch, "bubblewrap", (old, new))
    assert said in why_unusable(Namespaces("bubblewrap"))


@pytest.mark.skipif("bubblewrap" not in KINDS, reason="bubblewrap does not work on this machine")
@pytest.mark.parametrize("path", ["/", *sandboxes.hidden()])
def test_a_directory_that_bubblewrap_leaves_writable_is_found(path, monkeypatch):
    real = sandboxes.bubblewrap

    def command(limits):
        words = real(limits)
        at = list(itertools.pairwise(words)).index(("--remount-ro", path))
        return words[:at] + words[at + 2 :]

    monkeypatch.setattr(sandboxes, "bubblewrap", command)
    assert f"{path} can be written" in why_unusable(Namespaces("bubblewrap"))


@pytest.mark.skipif("bubblewrap" not in KINDS, reason="bubblewrap does not work on this machine")
def test_the_memory_of_the_first_process_is_tried(monkeypatch):
    weakened(
        monkeypatch, "restrictions", "library.prctl(PR_SET_DUMPABLE, 0,", "library.prctl(-1, 0,"
    )
    changed(monkeypatch, "bubblewrap", ("--chdir", ["--proc", "/proc", "--chdir"]))
    assert "/proc/1/mem can be written" in why_unusable(Namespaces("bubblewrap"))


@pytest.mark.skipif("bubblewrap" not in KINDS, reason="bubblewrap does not work on this machine")
@as_root
def test_settings_of_the_kernel_are_tried(monkeypatch):
    """As the outer root, with a /proc in sight: what was once possible."""
    monkeypatch.setattr(sandboxes, "identity", dict)
    sandboxes._out_of_reach.cache_clear()
    changed(monkeypatch, "bubblewrap", ("--chdir", ["--proc", "/proc", "--chdir"]))
    found = why_unusable(Namespaces("bubblewrap"))
    assert "/proc/sys/vm/swappiness can be written" in found
    assert "/proc/sys/kernel/core_pattern can be written" in found


@pytest.mark.skipif("unshare" not in KINDS, reason="user namespaces do not work on this machine")
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("umount -l /proc\n", "true\n", "/proc is in sight"),
        ("rmdir /old /proc", "mkdir /sys", "/sys is in sight"),
        ("mount -o remount,ro,nosuid,nodev none /\n", "true\n", "/ can be written"),
        ("--net", "--net=/proc/self/ns/net", "network devices are in sight"),
    ],
)
def test_a_wall_that_unshare_does_not_raise_is_found(old, new, said, monkeypatch):
    if said.startswith("network"):
        if len(Path("/proc/net/dev").read_text().splitlines()) < 4:
            pytest.skip("this machine has no network device to be seen")
        new = "--ipc"  # once more: no network namespace
    if "proc" in old and "umount" in old:
        changed(monkeypatch, "unshare", (old, new), ("rmdir /old /proc", "rmdir /old"))
    else:
        changed(monkeypatch, "unshare", (old, new))
    assert said in why_unusable(Namespaces("unshare"))


@every_kind
@as_root
def test_staying_root_outside_is_found(kind, monkeypatch):
    monkeypatch.setattr(sandboxes, "identity", dict)
    sandboxes._out_of_reach.cache_clear()
    assert "is root outside" in why_unusable(Namespaces(kind))


@every_kind
@as_root
def test_a_group_that_stays_is_found(kind, monkeypatch):
    monkeypatch.setattr(sandboxes, "identity", lambda: {**identity(), "extra_groups": (0,)})
    assert "has groups of root" in why_unusable(Namespaces(kind))


def test_an_open_directory_is_found(tmp_path):
    number = os.open(tmp_path, os.O_RDONLY)
    try:
        assert "a directory outside is open" in selftest.open_directories()
    finally:
        os.close(number)


def test_a_command_without_namespaces_is_found(monkeypatch):
    monkeypatch.setattr(sandboxes, KINDS[0], lambda limits: ["/usr/bin/env", "-i"])
    monkeypatch.setattr(sandboxes, "identity", dict)
    assert "pid namespace" in why_unusable(Namespaces(KINDS[0]))


def test_where_isolation_is_missing_code_is_refused_in_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(sandbox_selftest.shutil, "which", lambda program: None)
    find_sandbox.cache_clear()
    try:
        with pytest.raises(InputError, match=r"no isolation .* install bubblewrap") as error:
            CodeTask(str(tmp_path / "any.jsonl"))
        assert "\n" not in str(error.value)
    finally:
        find_sandbox.cache_clear()


REFUSES = """
import sys
from scalerl.errors import InputError
from scalerl.tasks.code import CodeTask
from scalerl.tasks.sandbox import Namespaces
from scalerl.tasks.sandbox_selftest import why_unusable
for kind in ("bubblewrap", "unshare"):
    print(why_unusable(Namespaces(kind)))
try:
    CodeTask("any.jsonl")
except InputError as error:
    print(error)
"""
#: A bwrap, or an unshare, that runs what it is given without any isolation.
ISOLATES_NOTHING = """#!/bin/sh
while [ $# -gt 0 ]; do
    case "$1" in -I) break ;; -*|/dev/*|[0-9]*) shift ;; *) break ;; esac
done
for word in "$@"; do
    case "$word" in -I) break ;; esac
    last=$word
    shift
done
exec "$last" "$@"
"""
NOT_PERMITTED = """#!/bin/sh
echo "$(basename "$0"): unshare failed: Operation not permitted" >&2
exit 1
"""


def refusals(before, path):
    """What a Python that any user may run finds about both kinds of sandbox, and how the task
    refuses."""
    python = python_for_everybody()
    if python is None:
        pytest.skip("no Python that every user can run")
    done = subprocess.run(
        [*before, python, "-B", "-c", REFUSES],
        env={"PYTHONPATH": str(SOURCE), "PATH": path}, cwd="/",
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert not done.returncode, done.stderr
    first, second, line = done.stdout.splitlines()
    assert line.startswith("no isolation for running code here (bubblewrap: ")
    assert first in line and second in line
    assert "apt-get install bubblewrap" in line and "user.max_user_namespaces" in line
    return first, second


def with_fakes(folder, **scripts):
    """A PATH on which these programs come first."""
    folder.chmod(0o755)
    for name, text in scripts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


@pytest.fixture
def open_folder():
    """A directory that every user can reach; those of pytest can be root's alone."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def test_programs_that_isolate_nothing_are_refused(open_folder):
    path = with_fakes(open_folder, bwrap=ISOLATES_NOTHING, unshare=ISOLATES_NOTHING)
    for found in refusals((), path):
        assert found.startswith("holes: ")
        assert "/proc is in sight" in found
        assert "the program is not the first process" in found
        assert "0 processes have a pid namespace of their own, not one" in found


def test_a_bubblewrap_that_isolates_nothing_is_not_used_where_unshare_works(open_folder):
    if "unshare" not in KINDS:
        pytest.skip("user namespaces do not work on this machine")
    path = with_fakes(open_folder, bwrap=ISOLATES_NOTHING)
    code = "from scalerl.tasks.sandbox import find_sandbox\nprint(find_sandbox().name)"
    python = python_for_everybody()
    if python is None:
        pytest.skip("no Python that every user can run")
    done = subprocess.run(
        [python, "-B", "-c", code], env={"PYTHONPATH": str(SOURCE), "PATH": path}, cwd="/",
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout == "unshare\n", done.stderr


def test_namespaces_that_are_not_permitted_are_said_in_one_line(open_folder):
    path = with_fakes(open_folder, bwrap=NOT_PERMITTED, unshare=NOT_PERMITTED)
    assert refusals((), path) == (
        "bwrap: unshare failed: Operation not permitted",
        "unshare: unshare failed: Operation not permitted",
    )


def test_programs_that_do_nothing_are_refused(open_folder):
    nothing = "#!/bin/sh\nexit 0\n"
    path = with_fakes(open_folder, bwrap=nothing, unshare=nothing)
    assert refusals((), path) == ("does not start", "does not start")


@pytest.mark.skipif("unshare" not in KINDS, reason="user namespaces do not work on this machine")
def test_where_user_namespaces_are_switched_off_code_is_refused():
    """A namespace in which no other can be made, as with sysctl user.max_user_namespaces=0. Its
    root is an ordinary user outside."""
    root = os.geteuid() == 0
    who = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups"] if root else []
    script = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    off = ["unshare", "--user", "--map-root-user", "/bin/sh", "-c", script, "sandbox"]
    said = refusals([*who, *off], "/usr/bin:/bin")
    for kind, found in zip(("bubblewrap", "unshare"), said, strict=True):
        if kind in KINDS:  # the other one is not installed here
            assert "ENOSPC" in found or "No space left on device" in found  # what the limit gives


IN_BOTH = """
import sys
from scalerl.tasks.sandbox import Limits, Namespaces
from scalerl.tasks.sandbox_selftest import why_unusable
for kind in sys.argv[1:]:
    print(why_unusable(Namespaces(kind)) or "sound")
    print(Namespaces(kind).run("print(6 * 7)", "", Limits()).output.decode().strip())
"""


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed")
@pytest.mark.parametrize(
    "who",
    [
        pytest.param((), id="whoever runs this"),
        pytest.param(
            ("--reuid=12345", "--regid=12345", "--clear-groups"), id="a user", marks=as_root
        ),
    ],
)
def test_walls_stand_for_root_and_for_an_ordinary_user(who):
    python = python_for_everybody()
    if python is None:
        pytest.skip("no Python that every user can run")
    command = ["setpriv", *who] if who else []
    done = subprocess.run(
        [*command, python, "-B", "-c", IN_BOTH, *KINDS],
        env={"PYTHONPATH": str(SOURCE), "PATH": "/usr/bin:/bin"},  # as ordinary users have it
        capture_output=True, text=True, timeout=600, cwd="/", check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["sound", "42"] * len(KINDS), done.stdout + done.stderr


@as_root
def test_root_of_a_namespace_that_has_nobody_else_is_refused():
    """Its uid 0 is the machine's, and there is no other to become."""
    code = IN_BOTH.split("    print(Namespaces")[0]
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", sys.executable, "-c", code, *KINDS],
        env={"PYTHONPATH": str(SOURCE), "PATH": os.environ["PATH"]},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["root cannot become an unprivileged user here"] * len(KINDS)


@pytest.mark.parametrize(("machine", "column"), [("x86_64", 1), ("aarch64", 2)])
def test_numbers_of_system_calls_are_those_of_libseccomp(machine, column):
    try:
        library = ctypes.CDLL("libseccomp.so.2")
    except OSError:
        pytest.skip("libseccomp is not installed")
    resolve = library.seccomp_syscall_resolve_name_arch
    resolve.argtypes = [ctypes.c_uint32, ctypes.c_char_p]
    architecture = restrictions.MACHINES[machine][1]
    ours = {}
    for call in restrictions.ALLOWED.strip(" \n,").split(","):
        ours[call.split()[0]] = call.split()[column]
    theirs = {name: resolve(architecture, name.encode()) for name in ours}
    assert ours == {name: str(n) if n >= 0 else "-" for name, n in theirs.items()}
    names = (b"clone", b"fcntl", b"flock", b"capset")
    assert [*restrictions.MACHINES[machine][2:]] == [resolve(architecture, name) for name in names]
    missing = {name: numbers[column - 1] for name, (numbers, _) in selftest.MISSING.items()}
    assert missing == {name: resolve(architecture, name.encode()) for name in missing}
    assert not set(missing) & set(ours)
