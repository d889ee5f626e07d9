"""Code answers: right ones pass, wrong ones fail, hostile ones fail and leave nothing behind."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scalerl.errors import InputError
from scalerl.tasks import Answer
from scalerl.tasks import sandbox as sandboxes
from scalerl.tasks.code import CodeTask, UnitTests, extract, read_assert, read_tests, run_tests
from scalerl.tasks.sandbox import Limits, Namespaces, broken, find_sandbox

sys.path.insert(0, str(Path(__file__).parent))
from hostile_code import HOSTILE

SECRET = "hunter2-in-the-environment"
LIMITS = Limits(seconds=4.0, cpu_seconds=1, memory_bytes=256 * 1024**2)
#: x * 7919 + 1: not guessed.
TESTS = UnitTests(calls=("f(3)", "f(10)"), values=(23758, 79191))
RIGHT = "def f(x): return x * 7919 + 1"


def available():
    return [kind for kind in ("bubblewrap", "unshare") if not broken(Namespaces(kind))]


KINDS = available()
needs_isolation = pytest.mark.skipif(
    not KINDS, reason="neither bubblewrap nor user namespaces work on this machine"
)


def processes():
    """Commands of all processes that run our inner program."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:
            continue
        if b"What runs inside the sandbox" in command:
            found.append(path.parent.name)
    return found


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
def test_a_hostile_program_is_wrong_and_leaves_nothing_behind(name, world, tmp_path):
    code = HOSTILE[name]
    for mark, value in world.items():
        code = code.replace(mark, value)
    files = {path: path.stat().st_size for path in tmp_path.rglob("*")}
    correct, why = run_tests(code, TESTS, Namespaces(KINDS[0]), LIMITS)
    assert correct is False
    assert why
    assert SECRET not in why
    assert {path: path.stat().st_size for path in tmp_path.rglob("*")} == files
    assert not processes()


@pytest.mark.skipif("unshare" not in KINDS, reason="user namespaces do not work on this machine")
@pytest.mark.parametrize(
    "name",
    [
        "network by socket",
        "fork bomb that swallows errors",
        "reads /etc/shadow",
        "reads secrets of other processes",
        "writes outside",
        "writes through /proc of the parent",
        "memory in shared files",
        "calls the kernel by ctypes",
        "kills its parent",
        "sleeps for ever",
        "deletes everything it can",
    ],
)
def test_without_bubblewrap_namespaces_hold_as_well(name, world, tmp_path):
    code = HOSTILE[name]
    for mark, value in world.items():
        code = code.replace(mark, value)
    files = sorted(tmp_path.rglob("*"))
    assert run_tests(code, TESTS, Namespaces("unshare"), LIMITS)[0] is False
    assert sorted(tmp_path.rglob("*")) == files
    assert not processes()


@needs_isolation
@pytest.mark.parametrize("kind", KINDS)
def test_a_right_program_passes_in_every_sandbox(kind):
    assert run_tests(RIGHT, TESTS, Namespaces(kind), LIMITS) == (True, "all tests passed")
    echo = "import sys\nfor line in sys.stdin: print(line.strip()[::-1], end=' \\n')"
    tests = UnitTests(inputs=("ab\ncd\n", ""), outputs=("ba\ndc", ""))
    assert run_tests(echo, tests, Namespaces(kind), LIMITS) == (True, "all tests passed")


@needs_isolation
def test_threads_files_in_tmp_and_the_standard_library_may_be_used():
    code = (
        "import threading, tempfile, collections, decimal, asyncio\n"
        "out = []\n"
        "t = threading.Thread(target=lambda: out.append(7919)); t.start(); t.join()\n"
        "with tempfile.TemporaryFile() as file: file.write(b'x')\n"
        "def f(x): print('noise'); return x * out[0] + 1\n"
    )
    assert run_tests(code, TESTS, find_sandbox(), LIMITS)[0]


@needs_isolation
@pytest.mark.parametrize(
    ("value", "wanted", "right"),
    [
        ("[1, (2, 3)]", [1, (2, 3)], True),
        ("[1, [2, 3]]", [1, (2, 3)], False),
        ("{'a': {1, 2}}", {"a": {1, 2}}, True),
        ("None", None, True),
        ("float('nan')", 1.0, False),
        ("b'x'", b"x", False),
    ],
)
def test_values_are_compared_with_their_types(value, wanted, right):
    tests = UnitTests(calls=("f()",), values=(wanted,))
    assert run_tests(f"def f(): return {value}", tests, find_sandbox(), LIMITS)[0] is right


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


def test_where_isolation_is_missing_code_is_refused_in_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(sandboxes.shutil, "which", lambda program: None)
    find_sandbox.cache_clear()
    try:
        with pytest.raises(InputError, match=r"no isolation .* install bubblewrap") as error:
            CodeTask(str(tmp_path / "any.jsonl"))
        assert "\n" not in str(error.value)
    finally:
        find_sandbox.cache_clear()


def test_a_wall_that_cannot_be_raised_is_a_refusal(monkeypatch):
    """A command that starts the program without namespaces is found out by the trial run."""
    monkeypatch.setattr(sandboxes, "bubblewrap", lambda limits: ["/usr/bin/env", "-i"])
    if sandboxes.shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    assert "in sight" in broken(Namespaces("bubblewrap"))


def test_a_sandbox_that_fails_to_start_leaves_the_answer_unscored(monkeypatch):
    """Processes can run out in the middle of a run; that is not the policy's fault."""
    monkeypatch.setattr(sandboxes, "bubblewrap", lambda limits: ["/bin/false"])
    correct, why = run_tests(RIGHT, TESTS, Namespaces("bubblewrap"), LIMITS)
    assert correct is None
    assert "did not start" in why


@needs_isolation
def test_a_program_cannot_pass_itself_off_as_a_failure_of_the_sandbox():
    code = "import os\nos.write(2, b'bwrap: no permission')\nos._exit(97)"
    assert run_tests(code, TESTS, find_sandbox(), LIMITS)[0] is False


@pytest.mark.parametrize(
    ("row", "n"),
    [
        ({"inputs": ["1"], "outputs": ["2"]}, 1),
        ({"input_output": '{"inputs": ["1", "2"], "outputs": ["2", "3"]}'}, 2),
        ({"tests": [{"input": "1", "output": "2"}]}, 1),
        ({"tests": '[{"input": "1", "output": "2"}]'}, 1),
    ],
)
def test_the_usual_columns_of_tests_are_read(row, n):
    assert len(read_tests(row, "row 1", most=20).inputs) == n


@pytest.mark.parametrize("row", [{}, {"inputs": ["1"], "outputs": []}, {"test_list": ["f(1)"]}])
def test_rows_without_usable_tests_are_refused(row):
    with pytest.raises(InputError, match="row 1"):
        read_tests(row, "row 1", most=20)


def test_assertions_are_split_into_what_is_computed_and_what_is_expected():
    assert read_assert("assert f([1], k=2) == {'a': (1, 2)}") == ("f([1], k=2)", {"a": (1, 2)})
    assert read_assert("assert 3 == f(1)") == ("f(1)", 3)
    assert read_assert("assert f(1) is None") == ("f(1)", None)
    assert read_assert("assert abs(f(1) - 2) < 1e-6") == ("bool(abs(f(1) - 2) < 1e-06)", True)


def test_there_is_no_program_without_a_python_block():
    assert extract("```\nprint(1)\n```") is None
    assert extract("```Python\r\nprint(1)\r\n```") == "print(1)\r\n"


def test_importing_the_inner_program_does_not_run_it():
    code = "import scalerl.tasks.inside"
    subprocess.run([sys.executable, "-c", code], check=True, stdin=subprocess.DEVNULL, timeout=60)
