"""Who ends a run, and what does not: Ctrl-C and SIGTERM while verifiers hang; a reader that leaves,
a terminal that is closed."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from faults import LIMIT, MARK, Victim, gone, lines
from scalerl.tasks.task import make_prompt

HERE = Path(__file__).parent
SMALL = ["batch.prompts=4", "batch.generations=4", "validation.prompts=4", "validation.k=1",
         "validation.every=1000", "checkpoint.every=1000", "curriculum.name=uniform",
         "task.options.items_min=", "task.options.items_max=", "task.options.prompts=",
         "task.options.held_out_share=0.2", "placement.check_seconds=600"]  # fmt: skip
#: A few seconds, on a machine that has other work.
SOON = 300.0


@pytest.fixture(autouse=True)
def here(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{HERE}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def rows(path, hanging):
    """Questions of which the held-out ones, the others, or none hang."""
    found = [{"prompt": f"{i}+{i}="} for i in range(60)]
    for row in found:
        side = "train" if make_prompt("", row["prompt"], None).rank >= 0.2 else "held-out"
        row["kind"] = "hangs" if side == hanging else "fine"
    path.write_text("".join(json.dumps(row) + "\n" for row in found))
    return path


def arguments(tmp_path, verifier, hanging, *settings):
    data = rows(tmp_path / "rows.jsonl", hanging)
    return ["scalerl", "tiny", *SMALL, f"task.name=function:bad_verifiers:{verifier}",
            f"task.dataset={data}", *settings, "--out", str(tmp_path / "run")]  # fmt: skip


def events(run):
    return [(e["event"], e.get("why") or e.get("reason")) for e in lines(run.out / "events.jsonl")]


@pytest.mark.faults
@pytest.mark.parametrize(
    ("verifier", "hanging", "how", "settings"),
    [
        ("moody", "held-out", signal.SIGINT, []),
        ("greedy", "held-out", signal.SIGTERM, ["placement.checkers=2"]),
        ("stubborn", "train", signal.SIGTERM, []),
        ("blocks", "train", signal.SIGINT, []),
        ("moody", "train", signal.SIGINT, ["placement.deterministic=true"]),
    ],
)
def test_a_signal_ends_a_run_whose_verifiers_hang(tmp_path, verifier, hanging, how, settings):
    """It waits for the scores of the first validation, or for those of its first batches."""
    run = Victim(tmp_path / "run", [])
    run.start(*arguments(tmp_path, verifier, hanging, *settings))
    if hanging == "held-out":
        run.wait(lambda: "scores of" in run.status.get("waits_for", ""), "the validation")
    else:
        # A deterministic run decodes no further while checks are under way, so fewer groups wait.
        few = "placement.deterministic=true" in settings
        run.wait(
            lambda: run.status.get("checking", 0) >= (1 if few else 4), "checks that never end"
        )
    time.sleep(1.0)
    run.process.send_signal(how)
    assert run.process.wait(SOON) == 128 + how, run.out.with_suffix(".log").read_text()[-2000:]
    assert "Traceback" not in run.out.with_suffix(".log").read_text()
    gone(run)  # what a verifier had started as well
    assert events(run)[-1][0] == "end"
    if "placement.deterministic=true" not in settings:
        assert (run.out / "checkpoints" / "step_0").is_dir()


def piped(tmp_path, command):
    """A run whose output goes through a shell; the code is the run's own."""
    out = tmp_path / "run"
    script = f"({command}; echo $? > {tmp_path}/code) {{}}"
    return out, script


@pytest.mark.faults
@pytest.mark.parametrize("redirect", ["| head -1", "2>&1 | head -1", ">&-", "2>&- | head -1"])
def test_a_run_goes_on_when_nobody_reads_what_it_says(tmp_path, redirect):
    """Nor does what its reward function prints matter."""
    words = " ".join(arguments(tmp_path, "chatty", "", "--steps", "2"))
    out, script = piped(tmp_path, f"{sys.executable} -m scalerl train {words}")
    inner, outer = redirect.split("|") if "|" in redirect else (redirect, "")
    script = script.replace("; echo", f" {inner}; echo").format(outer and f"| {outer}")
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=LIMIT,
                          check=False, env=os.environ | {MARK: str(out)})  # fmt: skip
    run = Victim(out, [])
    assert (tmp_path / "code").read_text().strip() == "0", done.stderr
    assert [s["step"] for s in lines(out / "steps.jsonl")] == [1, 2]
    assert all(s["filtered"]["unscored"] == 0 for s in lines(out / "steps.jsonl"))
    assert events(run)[-1] == ("end", "budget of 2 steps")
    if outer:
        said = [why for kind, why in events(run) if kind == "warning"]
        assert any(
            "output has no reader any more (stdout" in why and "goes on" in why for why in said
        )
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
    gone(run)


@pytest.mark.faults
def test_a_run_outlives_its_terminal(tmp_path):
    """On a real terminal, with the live view; then the terminal is closed."""
    out = tmp_path / "run"
    command = [sys.executable, "-m", "scalerl", "train",
               *arguments(tmp_path, "chatty", "", "--steps", "8")]  # fmt: skip
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {MARK: str(out), "TERM": "xterm", "PYTHONIOENCODING": "utf-8"}
        os.execv(command[0], command)
    run = Victim(out, [])
    deadline = time.monotonic() + LIMIT
    while run.step < 1 and time.monotonic() < deadline:
        os.read(terminal, 65536)
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert [s["step"] for s in lines(out / "steps.jsonl")] == list(range(1, 9))
    said = events(run)
    assert ("warning", "the terminal was closed (SIGHUP); the run goes on") in said
    assert said[-1] == ("end", "budget of 8 steps")
    assert not [why for kind, why in said if kind in ("lost", "checker")], "no part has died"
    gone(run)
