"""Mathematics: right answers in many forms; hostile ones never block, and never pass."""

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
from scalerl.tasks.math import MathTask, MathWorkerPool

pytest.importorskip("math_verify", reason="math-verify is not installed")
SECONDS = 3.0
#: A hostile answer would be computed for hours: what ends long before was ended by the limit.
LONG = 600.0

#: Against the reference 42. None of them says 42.
HOSTILE = {
    "empty": "",
    "blanks": " \n\t ",
    "null bytes": "\x00" * 100 + "\\boxed{\x00}",
    "control characters": "\\boxed{" + "".join(map(chr, range(1, 32))) + "}",
    "lone surrogate": "\\boxed{\ud800}",
    "right-to-left marks": "\\boxed{\u202e24\u202c}",
    "emoji": "\\boxed{🦄}",
    "combining characters": "\\boxed{4" + "\u0301" * 5000 + "}",
    "digits of another script": "\\boxed{४३}",
    "a million characters": "x" * 10**6,
    "a million digits": "\\boxed{" + "9" * 10**6 + "}",
    "a million opening braces": "\\boxed{" + "{" * 10**6,
    "tower of powers": "\\boxed{9^{9^{9^{9^{9}}}}}",
    "huge exponent": "\\boxed{10^{10^{10}}}",
    "huge negative exponent": "\\boxed{2^{-10^{12}}}",
    "huge factorial": "\\boxed{(10^9)!}",
    "factorial of a factorial": "\\boxed{((100!)!)!}",
    "huge binomial": "\\boxed{\\binom{10^9}{5 \\cdot 10^8}}",
    "nested fractions": "\\boxed{" + "\\frac{1}{" * 500 + "2" + "}" * 501,
    "nested roots": "\\boxed{" + "\\sqrt{" * 300 + "2" + "}" * 301,
    "nested parentheses": "\\boxed{" + "(" * 1500 + "1" + ")" * 1500 + "}",
    "nested boxes": "\\boxed{" * 500 + "1" + "}" * 500,
    "many boxes": "\\boxed{1}" * 5000,
    "unclosed box": "\\boxed{42",
    "unclosed formula": "$$ \\frac{1",
    "macro bomb": "\\def\\a{\\a\\a}\\boxed{\\a}",
    "input of a file": "\\boxed{\\input{/etc/passwd}}",
    "shell escape": "\\boxed{\\write18{touch /tmp/owned}}",
    "code injection": "\\boxed{__import__('os').system('touch /tmp/owned')}",
    "code injection as a lambda": "$(lambda: __import__('os')._exit(0))()$",
    "code that ends the checker": "\\boxed{exit(0)}",
    "format string": "%s%n{0.__class__}{}",
    "forged verdict": '{"correct": true, "why": "right"}',
    "forged verdict in a box": '\\boxed{"}\n{"correct": true, "why": ""}\n',
    "everything at once": "\\boxed{x \\in \\mathbb{R}}",
    "not a number": "\\boxed{nan}",
    "infinity": "\\boxed{\\infty}",
    "hard integral": "\\boxed{\\int_0^1 \\sin(\\sin(\\sin(x^{x^x}))) dx}",
    "hard sum": "\\boxed{\\sum_{n=1}^{10^9} \\frac{\\sin n}{n!}}",
    "hard limit": "\\boxed{\\lim_{x \\to 0} \\frac{\\sin(\\tan x)-\\tan(\\sin x)}{x^{77}}}",
    "hard product": "\\boxed{\\prod_{k=1}^{10^8} (1 + \\frac{1}{k^2})}",
    "big matrix": "\\boxed{\\begin{pmatrix}" + "1&" * 900 + "1\\end{pmatrix}}",
    "huge set": "\\boxed{\\{" + ",".join(map(str, range(900))) + "\\}}",
    "long chain of equations": "$" + "x=" * 900 + "1$",
    "expansion": "\\boxed{(a+b+c+d+e+f)^{900}}",
    "many answers at once": "1, 2, 3 … \\boxed{40}, \\boxed{41}, \\boxed{43}",
}


@pytest.fixture(scope="module")
def pool():
    pool = MathWorkerPool(workers=1, seconds=LONG)
    pool.compare("1", "1")  # starts its worker
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("math") / "math.jsonl"
    path.write_text(
        "".join(
            json.dumps({"problem": f"What is {i}+1?", "answer": str(i + 1)}) + "\n"
            for i in range(80)
        )
    )
    return path


@pytest.fixture(scope="module")
def task(rows):
    with MathTask(str(rows), seconds=SECONDS, workers=1, held_out_share=0.2) as task:
        yield task


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_answer_is_wrong_within_the_time_limit(name, task):
    prompt = next(p for p in task.prompts() if p.answer == "42")
    task.pool.compare("1", "1")  # a replaced worker starts here
    start = time.monotonic()
    verdict = task.check(prompt, f"<think>hm</think>{HOSTILE[name]}")
    assert time.monotonic() - start < LONG
    assert verdict.correct is False, verdict
    assert verdict.reward == -1.0


def test_after_a_hang_the_next_answer_is_checked_by_a_new_worker():
    pool = MathWorkerPool(workers=1, seconds=SECONDS)
    try:
        pool.compare("1", "1")
        hanging = "\\boxed{\\sum_{n=1}^{10^9} \\frac{\\sin n}{n!}} \\boxed{((10^6)!)!}"
        assert pool.compare("42", hanging)[0] is False
        assert pool.compare("42", "\\boxed{42}")[0] is True
    finally:
        pool.close()


CHECKER = """
import os, signal, sys
from scalerl.tasks.math import MathWorkerPool
pool = MathWorkerPool(workers=1, seconds=1.0)
pool.compare("1", "1")
worker = pool._idle.get()
pool._idle.put(worker)
print(worker._process.pid, flush=True)
receive, stages = worker._receive, []
def killed_while_the_answer_is_read(*limits):
    if stages:
        os.kill(os.getpid(), signal.SIGKILL)
    stages.append(receive(*limits))
    return stages[-1]
worker._receive = killed_while_the_answer_is_read
worker.compare("42", sys.argv[1], 1.0)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc to look into")
def test_a_worker_that_hangs_ends_though_its_checker_was_killed():
    hanging = "\\boxed{9^{9^{9^{9^{9}}}}}"
    command = [sys.executable, "-c", CHECKER, hanging]
    checker = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    assert checker.returncode == -signal.SIGKILL
    worker, deadline = Path(f"/proc/{int(checker.stdout)}"), time.monotonic() + 120

    def runs():
        try:
            return (worker / "stat").read_text().split()[2] != "Z"
        except OSError:
            return False

    try:
        while runs():
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        if runs():
            os.kill(int(checker.stdout), signal.SIGKILL)


def test_a_worker_that_is_killed_is_replaced(pool):
    worker = pool._idle.get()
    pool._idle.put(worker)
    os.kill(worker._process.pid, signal.SIGKILL)
    assert pool.compare("42", "\\boxed{42}")[0] in (None, True)
    assert pool.compare("42", "\\boxed{42}")[0] is True


@pytest.mark.parametrize(
    ("reference", "answer", "right"),
    [
        ("42", "so it is \\boxed{42}.", True),
        ("42", "The answer is 42", True),
        ("42", "$42$", True),
        ("\\frac{1}{2}", "\\boxed{0.5}", True),
        ("$\\frac{1}{2}$", "\\boxed{\\frac{2}{4}}", True),
        ("\\boxed{2\\sqrt{2}}", "\\boxed{\\sqrt{8}}", True),
        ("x+1", "\\boxed{1+x}", True),
        ("(1,2)", "\\boxed{(1, 2)}", True),
        ("\\{1,2\\}", "\\boxed{\\{2,1\\}}", True),
        ("42", "\\boxed{43}", False),
        ("42", "first \\boxed{42}, no, \\boxed{41}", False),
        ("42", "I do not know", False),
    ],
)
def test_equal_mathematics_is_right_however_it_is_written(reference, answer, right, pool):
    assert pool.compare(reference, answer)[0] is right


def test_a_reference_that_cannot_be_read_leaves_the_answer_unscored(pool):
    correct, why = pool.compare("", "\\boxed{42}")
    assert correct is None
    assert "reference" in why


def test_many_answers_are_checked_in_their_order(task):
    prompts = task.prompts()[:6]
    answers = [Answer(p, f"\\boxed{{{p.answer if i % 2 else 0}}}") for i, p in enumerate(prompts)]
    assert [c.correct for c in task.check_all(answers)] == [False, True] * 3


def test_a_thought_that_is_not_closed_has_no_answer(task):
    assert task.check(task.prompts()[0], "<think>\\boxed{1}").correct is False


def test_training_never_sees_held_out_or_downstream_questions(rows, tmp_path):
    aime = tmp_path / "aime.jsonl"
    aime.write_text(json.dumps({"problem": "What  is 7+1?", "answer": "8"}) + "\n")
    task = MathTask(str(rows), held_out_share=0.2, downstream={"aime-24": str(aime)})
    train = {p.id for p in task.train_prompts(0)}
    held = {p.id for p in task.validation_prompts(10)}
    down = {p.id for p in task.downstream()["aime-24"]}
    assert len(down) == 1
    assert not train & held
    assert not train & down


@pytest.mark.parametrize(
    ("row", "answer"),
    [
        ({"prompt": "1+1?", "answer": "2"}, "2"),
        ({"problem": "1+1?", "answer": 2, "difficulty": "5/8"}, "2"),
        ({"question": "1+1?", "solution": "2"}, "2"),
        ({"prompt": [{"role": "user", "content": "1+1?"}], "answer": "2"}, "2"),
        (
            {
                "data_source": "x",
                "prompt": [{"role": "user", "content": "1+1?"}],
                "reward_model": {"style": "rule", "ground_truth": "2"},
            },
            "2",
        ),
    ],
    ids=["prompt", "polaris", "question", "chat", "verl"],
)
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_the_usual_layouts_are_read(row, answer, kind, tmp_path):
    path = tmp_path / f"rows.{kind}"
    if kind == "jsonl":
        path.write_text(json.dumps(row) + "\n\n" + json.dumps(row) + "\n")
    else:
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist([row, row]), path)
    prompts = MathTask(str(path)).prompts()
    assert [p.answer for p in prompts] == [answer]  # a repeated question counts once
    assert "1+1?" in prompts[0].question[0]["content"]
    assert prompts[0].columns.get("difficulty") == row.get("difficulty")  # for reward functions


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no rows"),
        ("{", "not JSON"),
        ("[1]", "not an object"),
        ('{"answer": "2"}', "no question"),
        ('{"prompt": "1+1?"}', "no answer"),
        ('{"prompt": [{"text": "1+1?"}], "answer": "2"}', "role"),
    ],
)
def test_unusable_files_say_where_and_what(content, message, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        MathTask(str(path))


def test_a_missing_file_or_dataset_is_an_input_error(monkeypatch):
    with pytest.raises(InputError, match="no file"):
        MathTask("missing.jsonl")
    with pytest.raises(InputError, match="dataset"):
        MathTask("")
