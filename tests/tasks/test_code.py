"""Code answers: right ones pass, wrong ones fail, hostile ones fail and leave nothing behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scalerl.errors import InputError
from scalerl.tasks import Answer
from scalerl.tasks import sandbox as sandboxes
from scalerl.tasks.code import CodeTask, extract, run_tests
from scalerl.tasks.sandbox import Namespaces, find_sandbox
from scalerl.tasks.sandbox_selftest import status, why_unusable
from scalerl.tasks.sandboxed_process import Limits
from scalerl.tasks.unit_tests import UnitTests, read_asserts, read_tests

sys.path.insert(0, str(Path(__file__).parent))
from honest_code import HONEST
from hostile_code import HOSTILE
from reward_hacks import FORMS, HACKS, MACHINE, SETUP

SECRET = "hunter2-in-the-environment"
LIMITS = Limits(seconds=4.0, cpu_seconds=1, memory_bytes=256 * 1024**2)
#: For programs that are to come to their end, on a machine that may be busy.
PATIENT = Limits(seconds=30.0)
#: x * 7919 + 1: not guessed.
TESTS = UnitTests(tests=("assert f(3) == 23758", "assert f(10) == 79191"), names=("f",))
RIGHT = "def f(x): return x * 7919 + 1"
KINDS = [kind for kind in ("bubblewrap", "unshare") if not why_unusable(Namespaces(kind))]
needs_isolation = pytest.mark.skipif(
    not KINDS, reason="neither bubblewrap nor user namespaces work on this machine"
)


#: Of what this process starts; others on the machine may have sandboxes too.
MARK = f"# a sandbox of test process {os.getpid()}\n"


@pytest.fixture(autouse=True)
def marked(monkeypatch):
    monkeypatch.setattr(sandboxes, "BOOT", MARK + sandboxes.BOOT)


def processes():
    """All processes behind walls that this one has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:
            continue
        if MARK.encode() in command:
            found.append(path.parent.name)
    return found


@needs_isolation
def test_processes_that_are_left_would_be_found():
    here, there = os.pipe()
    with Namespaces(KINDS[0]).start(Limits(), here, subprocess.DEVNULL):
        # The command line of a process reads as empty while it replaces its program (setpriv, then
        # the sandbox, then Python), so that one look may come between two of them.
        deadline = time.monotonic() + 60
        while not (seen := processes()) and time.monotonic() < deadline:
            time.sleep(0.01)
    os.close(here)
    os.close(there)
    assert seen
    assert not processes()


CHECKER = """
import sys
from scalerl.tasks import sandbox
from scalerl.tasks.sandboxed_process import Limits
sandbox.BOOT = sys.argv[2] + sandbox.BOOT
limits = Limits(seconds=3600, cpu_seconds=3600)
sandbox.Namespaces(sys.argv[1]).run(sys.argv[3], "", limits)
"""
CLINGS_TO_LIFE = """
import os, signal, time
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
for call in (os.fork, os.setsid, os.fork):
    try: call()
    except OSError: pass
while True: time.sleep(1)
"""


def program_runs():
    """Whether a process behind walls has its filter of system calls, the last thing before the
    program."""
    facts = []
    for pid in processes():
        try:
            facts.append(status(pid))
        except OSError:
            continue
    return any(found["Seccomp"] == "2" for found in facts)


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_ends_with_its_checker_however_that_ends(kind):
    checker = subprocess.Popen([sys.executable, "-c", CHECKER, kind, MARK, CLINGS_TO_LIFE])
    try:
        wait_until(program_runs)
    finally:
        checker.kill()
        checker.wait()
    try:
        wait_until(lambda: not processes())
    finally:
        for pid in processes():
            os.kill(int(pid), signal.SIGKILL)


@needs_isolation
def test_a_sandbox_whose_checker_is_gone_already_does_not_start(tmp_path):
    """The checker may be killed before the kernel was asked to end the sandbox with it."""
    made = tmp_path / "made"
    for parent, starts in ((os.getpid() + 1, False), (os.getpid(), True)):
        subprocess.run([*sandboxes.tied(parent), "touch", made], check=False)
        assert made.exists() is starts


@pytest.fixture
def world(tmp_path, monkeypatch):
    """Things outside that a program may want to read or change."""
    monkeypatch.setenv("API_KEY", SECRET)
    secret = tmp_path / "secret.txt"
    secret.write_text(SECRET)
    return {
        "{outside}": str(tmp_path / "written"),
        "{project}": sandboxes.__file__,
        "{secret_file}": str(secret),
        "{secret}": SECRET,
        "{pid}": str(os.getpid()),
    }


@needs_isolation
@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("kind", KINDS)
def test_a_hostile_program_is_wrong_and_leaves_nothing_behind(kind, name, world, tmp_path):
    code = HOSTILE[name]
    for mark, value in world.items():
        code = code.replace(mark, value)
    files = {path: path.stat().st_size for path in tmp_path.rglob("*")}
    correct, why = run_tests(code, TESTS, Namespaces(kind), LIMITS)
    assert correct is False
    assert why
    assert SECRET not in why
    assert {path: path.stat().st_size for path in tmp_path.rglob("*")} == files
    assert not processes()


@needs_isolation
@pytest.mark.parametrize("kind", KINDS)
def test_a_right_program_passes_in_every_sandbox(kind):
    assert run_tests(RIGHT, TESTS, Namespaces(kind), PATIENT) == (True, "all tests passed")
    echo = "import sys\nfor line in sys.stdin: print(line.strip()[::-1], end=' \\n')"
    tests = UnitTests(inputs=("ab\ncd\n", ""), outputs=("ba\ndc", ""))
    assert run_tests(echo, tests, Namespaces(kind), PATIENT) == (True, "all tests passed")


@needs_isolation
@pytest.mark.parametrize("name", HONEST)
def test_an_honest_program_passes(name):
    row, code = HONEST[name]
    tests = read_tests(row, name, most=20)
    assert tests.refused == ()
    assert run_tests(code, tests, find_sandbox(), PATIENT) == (True, "all tests passed")


@needs_isolation
@pytest.mark.parametrize("value", FORMS)
def test_every_form_of_assertion_can_be_met(value):
    tests = read_asserts([f"assert {form}" for form in FORMS[value]], SETUP)
    assert tests.refused == ()
    found = run_tests(f"def f(x): return {value}", tests, find_sandbox(), PATIENT)
    assert found == (True, "all tests passed")


@needs_isolation
@pytest.mark.parametrize("name", HACKS)
def test_a_reward_hack_meets_no_form_of_assertion(name):
    lines = ["passed = []"]
    for form in (form for forms in FORMS.values() for form in forms):
        lines += ["try:", f"    assert {form}", f"    passed.append({form!r})"]
        lines += ["except Exception: pass"]
    tests = read_asserts(["\n".join([*lines, "assert passed"])], SETUP)
    assert tests.refused == ()
    assert run_tests(HACKS[name], tests, find_sandbox(), LIMITS)[0] is False


CATCHES = (
    "try:\n    f(0)\n    raised = False\nexcept {kind}:\n    raised = True\nassert raised\n"
    "assert True or f(0)"
)


@needs_isolation
@pytest.mark.parametrize("kind", ["Exception", "BaseException", "ValueError", ""])
@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("exit", "def f(x): exit()"),
        ("leaves", "import os\ndef f(x): os._exit(0)"),
        ("interrupts", "def f(x): raise KeyboardInterrupt"),
        ("closes", "import os\ndef f(x): os.closerange(3, 64)"),
        ("garbage", MACHINE + "part('wire').encode = lambda *a: b'?'\ndef f(x): return 0"),
        ("too long", MACHINE + "part('wire').LONGEST = 2**30\ndef f(x): return 'x' * 2**23"),
    ],
)
def test_a_program_that_ends_or_sends_garbage_fails_whatever_the_test_catches(kind, name, code):
    tests = read_asserts([CATCHES.format(kind=kind)])
    assert tests.refused == ()
    assert run_tests(code, tests, find_sandbox(), PATIENT)[0] is False
    honest = "def f(x):\n    raise ValueError"
    assert run_tests(honest, tests, find_sandbox(), PATIENT)[0] is True


@needs_isolation
@pytest.mark.parametrize(
    ("form", "has"),
    [
        ("callable(f(3))", "lambda: 0"),
        ("isinstance(f(3), abc.Callable)", "lambda: 0"),
        ("isinstance(f(3), abc.Iterator)", "iter([1])"),
        ("isinstance(f(3), abc.Iterable)", "iter([1])"),
        ("isinstance(f(3), abc.Sized)", "Box()"),
        ("isinstance(f(3), typing.SupportsInt)", "Box()"),
        ("hasattr(f(3), '__len__') or isinstance(f(3), abc.Sized)", "Box()"),
    ],
)
def test_an_object_can_do_what_it_can_do_and_no_more(form, has):
    tests = read_asserts([f"assert {form}"], "import typing\nfrom collections import abc")
    assert tests.refused == ()
    box = "class Box:\n    def __len__(self): return 1\n    def __int__(self): return 1\n"
    found = run_tests(f"{box}def f(x): return {has}", tests, find_sandbox(), PATIENT)
    assert found == (True, "all tests passed")
    for other in ("object()", "None", "Bare()"):
        code = f"class Bare: pass\ndef f(x): return {other}"
        assert run_tests(code, tests, find_sandbox(), PATIENT)[0] is False


@needs_isolation
@pytest.mark.parametrize(
    ("setup", "test", "code"),
    [
        ("root = Node(1)", "assert height(root) == 1", "Node = 5\ndef height(n): return 1"),
        ("root = Node(1)", "assert height(root) == 1", "Node = height = object()"),
        ("root = Node(1)", "assert height(root) == 1", "def height(n): return 1"),
        ("root = Node(1)", "assert height(root) == 1", "Node = None\ndef height(n): return 1"),
        ("", "assert f(3) == 4", "f = 5"),
        ("", "assert f(3) == 4", "f = 'x' * 10**8"),
        ("", "assert f(3) == 4", "def f(x): return 'x' * 10**8"),
        ("", "assert f(g(3)) == 4", "def g(x): return 'x' * (2**22 - 30)\ndef f(x): return 4"),
        ("", "assert f([g(3)] * 3) == 4", "def g(x): return 'x' * 2**21\ndef f(x): return 4"),
        ("", "assert f(c) == 4", "c = 'x' * (2**22 - 40)\ndef f(x): return 4"),
        ("x = f(3)", "assert f([x] * 3) == 4", "def f(x): return 'x' * 2**21 if x == 3 else 4"),
    ],
)
def test_an_answer_of_the_wrong_type_or_size_is_wrong_and_not_unscored(setup, test, code):
    tests = read_asserts([test], setup)
    assert tests.refused == ()
    assert run_tests(code, tests, find_sandbox(), PATIENT)[0] is False


@needs_isolation
def test_an_object_says_the_same_of_itself_until_it_is_called_again():
    tests = read_asserts(["x = f(2)\nassert float(x) > 1.4 and float(x) < 1.5"])
    code = (
        "class X:\n    n = 0\n    def __float__(self):\n        self.n += 1\n"
        "        return 1e9 * (-1.0) ** (self.n + 1)\ndef f(x): return X()"
    )
    assert run_tests(code, tests, find_sandbox(), PATIENT)[0] is False
    counts = "class X:\n    n = 0\n    def up(self): self.n += 1\n"
    tests = read_asserts(["x = X()\nassert x.n == 0\nx.up()\nassert x.n == 1"])
    assert run_tests(counts, tests, find_sandbox(), PATIENT)[0] is True


@needs_isolation
@pytest.mark.parametrize(
    ("value", "wanted", "right"),
    [
        ("[1, (2, 3)]", "[1, (2, 3)]", True),
        ("[1, [2, 3]]", "[1, (2, 3)]", False),
        ("{'a': {1, 2}}", "{'a': {1, 2}}", True),
        ("None", "None", True),
        ("float('nan')", "1.0", False),
        ("b'x'", "'x'", False),
    ],
)
def test_values_are_compared_with_their_types(value, wanted, right):
    tests = read_asserts([f"assert f() == {wanted}"])
    assert run_tests(f"def f(): return {value}", tests, find_sandbox(), PATIENT)[0] is right


@needs_isolation
def test_a_test_that_is_hostile_itself_harms_nobody():
    for test in ("assert f(1) == 10**10**10", "assert f(1) == [0] * 10**12"):
        tests = read_asserts([test])
        assert run_tests("def f(x): return 1", tests, find_sandbox(), LIMITS)[0] is False
    assert not processes()


@needs_isolation
def test_a_test_that_cannot_be_scored_leaves_the_answer_unscored():
    """What it gives to the program is found to be no data only when it runs."""
    tests = read_asserts(["import itertools\nassert f(itertools.chain([1, 2])) == 3"])
    correct, why = run_tests("def f(x): return sum(x)", tests, find_sandbox(), PATIENT)
    assert correct is None
    assert "not data (chain)" in why
    tests = read_asserts(["assert f(1) == 1"], "import antigravity_of_tomorrow")
    assert "needs antigravity_of_tomorrow" in tests.refused[0]
    tests = UnitTests(setup="1 / 0", tests=("assert f(1) == 1",), names=("f",))
    correct, why = run_tests("def f(x): return x", tests, find_sandbox(), PATIENT)
    assert correct is None
    assert "ZeroDivisionError" in why


@needs_isolation
@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("def f(x): return 0", "test 1: wrong value"),
        ("def f(x): return {}['x']", "test 1: KeyError"),
        ("def g(x): return 0", "name 'f' is not defined"),
        ("raise ValueError('early')", "ValueError: early"),
        ("def f(x) return x", "SyntaxError"),
        ("def f(x): return object()", "is not data: it cannot be compared"),
        ("import os\ndef f(x): os._exit(3)", "ended with exit code 3"),
        ("def f(x): return 23758", "test 2: wrong value"),
        ("import time\ntime.sleep(99)", "ran longer than"),
    ],
)
def test_the_reason_of_a_failure_is_told(code, why):
    limits = Limits(seconds=4.0) if "sleep" in code else PATIENT
    correct, said = run_tests(code, TESTS, find_sandbox(), limits)
    assert correct is False
    assert why in said


@needs_isolation
def test_the_task_reads_rows_takes_the_last_block_and_rewards(tmp_path):
    path = tmp_path / "code.jsonl"
    rows = [
        {"prompt": f"Return x * {k}.", "test_list": [f"assert f(5) == {5 * k}"]} for k in range(40)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = CodeTask(str(path), held_out_share=0.3)
    prompt = next(p for p in task.prompts() if "x * 7." in p.question[0]["content"])
    good = "<think>hm</think>\n```python\nbad\n```\nor\n```python\ndef f(x): return 7 * x\n```"
    answers = [
        Answer(prompt, good),
        Answer(prompt, good.replace("7 *", "6 *")),
        Answer(prompt, "no block"),
        Answer(prompt, "<think>```python\ndef f(x): return 7 * x\n```"),
    ]
    assert [c.reward for c in task.check_all(answers)] == [1.0, -1.0, -1.0, -1.0]


@needs_isolation
def test_rows_that_cannot_be_judged_are_left_out_and_counted(tmp_path):
    path = tmp_path / "code.jsonl"
    rows = [
        {"prompt": "a", "test_list": ["assert f(1) == f(1)"]},
        {"prompt": "b", "test_list": ["assert f(1) == 2", "assert f(lambda x: x) == 2"]},
        {"prompt": "c", "inputs": ["1"], "outputs": ["2"]},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = CodeTask(str(path))
    assert len(task.prompts()) == 2
    (line,) = task.notes
    assert "2 of 3 tests cannot be used, which leaves 2 of 3 prompts" in line
    assert "code.jsonl row 1: 'assert f(1) == f(1)': both sides are the program's" in line
    path.write_text(json.dumps(rows[0]) + "\n")
    with pytest.raises(InputError, match=r"no test of .* can be used; the first: .* row 1"):
        CodeTask(str(path))


def test_a_sandbox_that_fails_to_start_leaves_the_answer_unscored(monkeypatch):
    """Processes can run out in the middle of a run; that is not the policy's fault."""
    monkeypatch.setattr(sandboxes, "bubblewrap", lambda limits: ["/bin/false"])
    correct, why = run_tests(RIGHT, TESTS, Namespaces("bubblewrap"), PATIENT)
    assert correct is None
    assert "did not start" in why


@needs_isolation
def test_a_program_cannot_pass_itself_off_as_a_failure_of_the_sandbox():
    code = "import os\nos.write(2, b'bwrap: no permission')\nos._exit(97)"
    assert run_tests(code, TESTS, find_sandbox(), LIMITS)[0] is False


def test_there_is_no_program_without_a_python_block():
    assert extract("```\nprint(1)\n```") is None
    assert extract("```Python\r\nprint(1)\r\n```") == "print(1)\r\n"
