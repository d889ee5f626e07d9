"""Everything around a run that can go wrong: disks, data, verifiers, memory, slow and stopped
processes, signals. Each ends in one clear line, or the run goes on. The table in
docs/reliability.md names these tests."""

import errno
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import scalerl
from faults import LIMIT, Victim, gone, lines
from scalerl.errors import InputError, PipelineError
from scalerl.models.load import model_path
from scalerl.pipeline import checkpoints
from scalerl.pipeline import messages as m
from scalerl.pipeline.intake import Intake
from scalerl.pipeline.ledger import Ledger
from scalerl.pipeline.setup import RunSetup
from scalerl.placement.environment_worker import EnvironmentWorker
from scalerl.placement.processes import RealClock
from scalerl.recipe import Recipe
from scalerl.runs.lines import StepLine
from scalerl.runs.listener import Listener
from scalerl.runs.lock import RunLock
from scalerl.runs.store import RunStore
from scalerl.tasks.registry import make_task
from scalerl.tasks.task import Answer, make_prompt
from scalerl.training import RunAttempts

HERE = Path(__file__).parent
SMALL = ["batch.prompts=4", "batch.generations=4", "validation.prompts=8", "validation.k=1",
         "validation.every=1000", "task.options.prompts=2000", "checkpoint.every=2",
         "filter.empty_steps=0"]  # fmt: skip
#: Mounts of our own, which end with the process that made them.
OWN_MOUNTS = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-r", "-m"]


def begun(out, *settings, steps=1_000_000):
    run = Victim(out, [*SMALL, *settings])
    run.start("scalerl", "tiny", *run.settings, "--steps", str(steps), "--out", str(out))
    return run


def said(run):
    return run.out.with_suffix(".log").read_text()


def ended(run, code):
    assert run.process.wait(LIMIT) == code, said(run)[-2000:]
    assert "Traceback" not in said(run)


def dataset(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


# -- disks ----------------------------------------------------------------------------------------


@pytest.mark.faults
def test_a_full_disk_is_one_line_and_the_run_goes_on_when_there_is_room(tmp_path):
    """A real one, of 3 MB: the second checkpoint does not fit beside the first."""
    disk, train = tmp_path / "disk", f"{sys.executable} -m scalerl train"
    disk.mkdir()
    arguments = " ".join(["scalerl", "tiny", *SMALL])
    script = f"""
        mount -t tmpfs -o size=3m tmpfs {disk} || exit 99
        {train} {arguments} --steps 6 --out {disk}/run > {tmp_path}/log 2> {tmp_path}/full
        echo $? > {tmp_path}/code
        ls {disk}/run/checkpoints > {tmp_path}/left
        mount -o remount,size=60m {disk}
        {train} --resume {disk}/run > {tmp_path}/log 2>&1 || exit 98
        cp {disk}/run/*.jsonl {tmp_path}
    """
    done = subprocess.run([*OWN_MOUNTS, "sh", "-c", script], timeout=2 * LIMIT, check=False)
    assert done.returncode == 0, (tmp_path / "log").read_text()[-2000:]
    message = (tmp_path / "full").read_text()
    assert (tmp_path / "code").read_text().strip() == "2"
    assert message.count("\n") == 1 and message.startswith("scalerl: no checkpoint of step 4 ")
    assert "No space left on device" in message and "--resume" in message
    assert (tmp_path / "left").read_text().split() == ["step_2"]
    assert [s["step"] for s in lines(tmp_path / "steps.jsonl")] == [1, 2, 3, 4, 5, 6]


# -- checkpoints ----------------------------------------------------------------------------------


def whole(out, *steps):
    """Checkpoints of a few small files."""
    for step in steps:
        state = {"version": step, "last_validation": None, "ledger": {"device_seconds": 1.0}}
        with checkpoints.writing(out, step) as folder:
            (folder / "run.json").write_text(json.dumps(state))
            (folder / "model.safetensors").write_bytes(bytes(range(256)) * step)
    return checkpoints.list_checkpoints(out)


def spoil(path, rng):
    """Cut a file short, flip a byte, or remove it."""
    how = rng.choice(["cut", "flip", "remove"])
    data = bytearray(path.read_bytes())
    at = rng.randrange(len(data))
    if how == "cut":
        del data[at:]
    else:
        data[at] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    if how == "remove":
        path.unlink()


@pytest.mark.parametrize("name", ["run.json", "model.safetensors", "manifest.json"])
def test_a_damaged_checkpoint_is_passed_over_and_named(tmp_path, name):
    """Whatever happens to its bytes, what counts as whole is what was written."""
    rng = random.Random(name)
    first, second = whole(tmp_path / "source", 5, 10)
    kept = {p.name: p.read_bytes() for p in second.iterdir() if p.name != "manifest.json"}
    for i in range(60):
        out = tmp_path / str(i)
        shutil.copytree(tmp_path / "source", out)
        spoil(out / "checkpoints" / second.name / name, rng)
        told = []
        found = checkpoints.latest(out, told.append)
        if found.name == second.name:  # the flipped bit says nothing about the files
            assert name == "manifest.json" and not told
            assert {n: (found / n).read_bytes() for n in kept} == kept
        else:
            assert found.name == first.name
            assert len(told) == 1 and told[0].startswith("warning: checkpoint step_10 is damaged")


@pytest.mark.parametrize("text", ["", "{}", "[]", "7", '{"files": {}}', '{"files": {"a": 1}}',
                                  '{"files": {"run.json": {"size": "x", "sha256": 1}}}',
                                  "\0\0\0", "\xff"])  # fmt: skip
def test_garbage_in_place_of_a_manifest_is_damage(tmp_path, text):
    (path,) = whole(tmp_path, 5)
    (path / "manifest.json").write_bytes(text.encode("latin-1"))
    assert checkpoints.find_damage(path) is not None
    assert checkpoints.is_healthy(path) in (True, False)


def test_without_a_whole_checkpoint_a_resumed_run_says_that_it_starts_again(tmp_path):
    (path,) = whole(tmp_path, 5)
    (path / "model.safetensors").write_bytes(b"")
    store = RunStore(tmp_path, resume=True)
    store.append(StepLine.from_dict({"step": 6, "ledger": {"device_seconds": 3.0}}))
    told = []
    listener = Listener()
    listener.say = told.append
    run = RunAttempts(Recipe.load("scalerl", "tiny"), store, None, listener, resume=True)
    assert run._rewind() == -1
    assert "model.safetensors has 0 bytes instead of" in told[0]
    assert told[1] == "resuming at step 0 (no checkpoint yet: from the start)"
    assert store.read(StepLine) == []


def test_a_checkpoint_that_cannot_be_written_leaves_the_old_one_and_no_rest(tmp_path):
    (old,) = whole(tmp_path, 5)
    with (
        pytest.raises(InputError, match=r"step 5 could not|no checkpoint of step 5"),
        checkpoints.writing(tmp_path, 5) as folder,
    ):
        (folder / "run.json").write_text("{")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step_5"]
    assert checkpoints.find_damage(old) is None


# -- clocks ---------------------------------------------------------------------------------------


def test_a_clock_that_jumps_changes_no_compute(monkeypatch):
    ledger = Ledger(RealClock(), 1, generators=1, trainers=1)
    ledger.start()
    for jump in (1e9, -1e9, 0.0):
        monkeypatch.setattr(time, "time", lambda jump=jump: jump)
        before = ledger.compute().device_hours
        assert 0.0 <= ledger.compute().device_hours - before < 1e-3


#: Files that read the wall clock, and what for; no wait, deadline or compute is measured by it.
WALL_CLOCK = {
    "environments/endpoint/chat.py": "when a reply was made, for clients of OpenAI's API",
    "hosting/server.py": "when a reply was made, for clients of OpenAI's API",
    "cli/doctor.py": "how old the files of a run are, by the times that the system gave them",
    "models/cpu/library.py": "how old the mark of a compiler that hung is, by its file's time",
    "pipeline/setup.py": "the date of a run, which its recipe then keeps",
    "runs/store.py": "when the status was written, for people and pages",
    "runs/system.py": "when the machine was sampled, for people and pages",
    "runs/trackers.py": "TensorBoard's events have a time of day",
    "serve/app.py": "for how long the files of a run have not answered, for people",
    "serve/catalogue.py": "when a source of the page last changed",
    "serve/watchdog.py": "when the files of a source were last written to, or stopped answering",
    "serve/sources.py": "how old a status is; a lock decides where that says nothing",
}


def test_no_wait_and_no_compute_is_measured_by_the_wall_clock():
    source = Path(scalerl.__file__).parent
    reads = re.compile(r"\btime\.time(_ns)?\b|\bdate(time)?\.(now|today|utcnow)\b")
    found = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if reads.search(path.read_text())
    }
    assert found == WALL_CLOCK.keys()


# -- verifiers ------------------------------------------------------------------------------------


def verifier(tmp_path, name):
    rows = [{"prompt": f"{i}+{i}="} for i in range(20)]
    return make_task(f"function:bad_verifiers:{name}", dataset(tmp_path / "rows.jsonl", rows))


def checked(task, count, seconds=60.0):
    """What a checker makes of so many answers."""
    said = []
    part = EnvironmentWorker(task, 1, seconds, said.append)
    part.take(m.ScoreAnswers(1, tuple(Answer(prompt, "4") for prompt in task.prompts()[:count])))
    deadline = time.monotonic() + LIMIT
    while not said and time.monotonic() < deadline:
        part.give_up()
        time.sleep(0.01)
    return said[0].scores


def test_a_verifier_that_hangs_leaves_its_answers_unscored(tmp_path):
    found = checked(verifier(tmp_path, "hangs"), 3, seconds=0.05)
    assert [c.reward for c in found] == [None] * 3 and all(c.gave_up for c in found)
    assert "has not answered for 0.05 s" in found[0].why


def test_a_verifier_that_raises_leaves_answers_unscored_with_the_reason(tmp_path):
    found = checked(verifier(tmp_path, "raises"), 3)
    assert [c.reward for c in found] == [None] * 3
    assert "ZeroDivisionError: no gold answer" in found[0].why


def test_a_reward_that_is_no_number_is_no_reward(tmp_path):
    found = checked(verifier(tmp_path, "odd"), 6)
    assert [c.reward for c in found] == [None, None, None, None, None, 1.0]
    assert [c.why.split("gave ")[1] for c in found] == [
        "nan, not a finite number", "no reward", "'1.0', not a number", "inf, not a finite number",
        "a list, not a number", "1",
    ]  # fmt: skip


def rows_options(share):
    """Options of a task that reads rows, in place of those of `tiny`."""
    unset = [f"task.options.{name}=" for name in ("items_min", "items_max", "prompts")]
    return [*unset, f"task.options.held_out_share={share}"]


def judged_by(tmp_path, monkeypatch, name, rows, *settings, steps):
    """A run whose answers a bad verifier judges."""
    monkeypatch.setenv("PYTHONPATH", f"{HERE}:{os.environ.get('PYTHONPATH', '')}")
    run = Victim(tmp_path / "run", [])
    run.start("scalerl", "tiny", *SMALL[:5], f"task.name=function:bad_verifiers:{name}",
              *rows_options(0.2), f"task.dataset={dataset(tmp_path / 'rows.jsonl', rows)}",
              "curriculum.name=uniform", *settings, "--steps", str(steps),
              "--out", str(run.out))  # fmt: skip
    return run


def kinds_of(rows, kinds):
    """Rows whose training prompts are of these kinds, as far as they go; held-out ones are fine."""
    left = iter(kinds)
    for row in rows:
        trains = make_prompt("", row["prompt"], None).rank >= 0.2
        row["kind"] = next(left, "fine") if trains else "fine"
    return rows


@pytest.mark.faults
def test_a_verifier_that_always_hangs_ends_the_run_with_one_line(tmp_path, monkeypatch):
    rows = [{"prompt": f"{i}+{i}="} for i in range(60)]
    run = judged_by(tmp_path, monkeypatch, "hangs", rows, "placement.check_seconds=1", steps=5)
    ended(run, 1)
    last = said(run).splitlines()[-1]
    assert last.startswith("scalerl: the verifier of task function:bad_verifiers:hangs has not")
    assert last.endswith("answers in a row: repair the verifier, then --resume")
    assert lines(run.out / "events.jsonl")[-1]["event"] == "failed"
    gone(run)


@pytest.mark.faults
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("raises", "raises raised ZeroDivisionError: no gold answer"),
        ("leaves_later", "leaves_later raised SystemExit: no judge today"),
        ("wants_more", "missing 1 required positional argument: 'gold_standard'"),
    ],
)
def test_a_verifier_that_can_score_nothing_ends_the_run_with_what_it_says(
    tmp_path, monkeypatch, name, why
):
    rows = [{"prompt": f"{i}+{i}="} for i in range(60)]
    run = judged_by(tmp_path, monkeypatch, name, rows, steps=5)
    ended(run, 1)
    last = said(run).splitlines()[-1]
    assert last.startswith("scalerl: not one of 8 answers of the first validation could be scored")
    assert why in last and "repair the verifier" in last
    events = lines(run.out / "events.jsonl")
    assert events[-1]["event"] == "failed" and why in events[-1]["why"]
    assert any(e["event"] == "checker" and why in e["why"] for e in events)
    gone(run)


@pytest.mark.faults
def test_a_verifier_that_takes_its_process_with_it_costs_its_own_answers(tmp_path, monkeypatch):
    """A segmentation fault, for two prompts: their answers stay unscored, the others' do not."""
    rows = kinds_of([{"prompt": f"{i}+{i}="} for i in range(60)], ["crashes"] * 2)
    crash = {make_prompt("function:bad_verifiers:moody", r["prompt"], None).id
             for r in rows if r["kind"] == "crashes"}  # fmt: skip
    run = judged_by(tmp_path, monkeypatch, "moody", rows, steps=16)
    ended(run, 0)
    steps = lines(run.out / "steps.jsonl")
    assert [s["step"] for s in steps] == list(range(1, 17))
    asked = [len(crash & set(s["prompts"])) for s in steps]
    assert sum(asked) >= 2, "both were asked"
    assert [s["filtered"]["unscored"] for s in steps] == [4 * n for n in asked]
    events = [e["why"] for e in lines(run.out / "events.jsonl") if e["event"] == "checker"]
    replaced = [why for why in events if why.endswith("died: killed by signal 11: replaced")]
    given_up = [why for why in events if "ended its checker process" in why]
    assert len(given_up) >= sum(asked), "some may have been checked and not trained on yet"
    assert all("4 answers stay unscored" in why for why in given_up)
    assert len(given_up) < len(replaced) <= 2 * len(given_up), "each costs a checker twice at most"
    gone(run)


# -- data -----------------------------------------------------------------------------------------


@pytest.mark.faults
def test_moody_verifiers_and_odd_data_do_not_end_a_run(tmp_path, monkeypatch):
    """One prompt's check hangs, others raise or give no number; prompts repeat or are enormous."""
    plain = [{"prompt": f"{i}+{i}="} for i in range(60)]
    rows = kinds_of(plain, ["hangs", *["odd"] * 8, *["raises"] * 4])
    rows += [{"prompt": "9" * (65 + 10_000 * i), "kind": "fine"} for i in range(12)] + rows
    run = judged_by(tmp_path, monkeypatch, "moody", rows, "placement.check_seconds=5", steps=16)
    ended(run, 0)
    steps = lines(run.out / "steps.jsonl")
    assert [s["step"] for s in steps] == list(range(1, 17))
    assert sum(s["filtered"]["unscored"] for s in steps) > 0
    assert sum(s["filtered"]["effective_rollouts"] for s in steps) > 0
    assert "has not answered for 5 s: 4 answers stay unscored" in said(run)
    assert "is left out: it is empty or too long" in said(run)
    asked = [p for s in steps for p in s["prompts"]]
    assert len(set(asked[:32])) == 32, "a repeated question was asked twice in the first epoch"


def test_when_no_prompt_fits_the_run_ends_with_the_knob_to_turn():
    said = []
    intake = SimpleNamespace(
        _skipped=set(), recorder=SimpleNamespace(warn=said.extend),
        setup=SimpleNamespace(prompts=dict.fromkeys("abcdefgh"), recipe=Recipe.load("scalerl")),
    )  # fmt: skip
    for name in "aabcdefg":
        Intake._skip_prompt(intake, name)
    assert len(said) == 5 and said[4].endswith("(further ones are not named)")
    with pytest.raises(PipelineError, match=r"all 8 .* raise sampling.max_prompt_tokens"):
        Intake._skip_prompt(intake, "h")


@pytest.mark.parametrize("question", ["", "   ", None, []])
def test_an_empty_prompt_is_refused_with_its_row(tmp_path, question):
    rows = dataset(tmp_path / "rows.jsonl", [{"prompt": "1+1="}, {"prompt": question}])
    with pytest.raises(InputError, match=r"rows\.jsonl row 2 has no question"):
        make_task("function:bad_verifiers:odd", rows)


def planned(tmp_path, rows, *changes):
    settings = [*SMALL[:5], "task.name=function:bad_verifiers:odd", *rows_options(0.5),
                f"task.dataset={dataset(tmp_path / 'rows.jsonl', rows)}"]  # fmt: skip
    return RunSetup.from_recipe(Recipe.load("scalerl", "tiny", overrides=[*settings, *changes]))


def test_chat_prompts_without_a_chat_template_are_refused_in_one_line(tmp_path):
    rows = [{"prompt": [{"role": "user", "content": f"{i}+1="}]} for i in range(40)]
    with pytest.raises(InputError, match="is a chat, but the tokenizer of tiny has no chat templ"):
        planned(tmp_path, rows)


def test_held_out_prompts_that_are_all_too_long_are_refused(tmp_path):
    rows = [{"prompt": f"{i}" * 100} for i in range(40)]
    with pytest.raises(InputError, match=r"all 8 held-out .* raise sampling.max_prompt_tokens"):
        planned(tmp_path, rows)


def test_prompts_longer_than_the_model_reads_are_refused(tmp_path):
    rows = [{"prompt": f"{i}+1="} for i in range(40)]
    with pytest.raises(InputError, match=r"5072 tokens, but the model reads 512: lower sampling"):
        planned(tmp_path, rows, "sampling.max_prompt_tokens=5000")


@pytest.mark.faults
def test_a_model_that_never_ends_its_answer_is_warned_about_and_the_run_ends(tmp_path):
    """The end of text is a token that the model does not write: every rollout is cut off."""
    model = tmp_path / "model"
    shutil.copytree(model_path("tiny"), model)
    for name, end, other in [
        ("tokenizer_config.json", '"eos_token": "<eos>"', '"eos_token": "<pad>"'),
        ("config.json", '"eos_token_id": 1', '"eos_token_id": 0'),
        ("generation_config.json", '"eos_token_id": 1', '"eos_token_id": 0'),
    ]:
        text = (model / name).read_text()
        assert end in text
        (model / name).write_text(text.replace(end, other))
    run = begun(tmp_path / "run", f"model.path={model}", steps=7)
    ended(run, 0)
    steps = lines(run.out / "steps.jsonl")
    assert [s["truncated"] for s in steps] == [1.0] * 7
    assert "100% of rollouts are cut off before their end" in said(run)


# -- slow and stopped processes -------------------------------------------------------------------


@pytest.mark.faults
def test_a_slow_generator_slows_nobody_and_a_stopped_one_is_replaced(tmp_path):
    """Generator 1 gets a twentieth of its time, then none at all."""
    run = begun(tmp_path / "run", "placement.generators=2", "placement.patience=8")
    run.wait(lambda: run.step >= 1, "the first step")
    over = threading.Event()

    def slow_down():
        while not over.is_set():
            pid = run.pid("generator 1")
            for what, seconds in ((signal.SIGSTOP, 0.19), (signal.SIGCONT, 0.01)):
                os.kill(pid, what)
                over.wait(seconds)

    run.wait(lambda: "rollouts" in run.status, "a status")  # the first may come after a step
    before = run.status["rollouts"]
    thread = threading.Thread(target=slow_down)
    thread.start()
    try:
        first = run.step
        run.wait(lambda: run.step >= first + 30, "thirty steps beside a slow generator")
        fast, slow = (b - a for a, b in zip(before, run.status["rollouts"], strict=True))
        assert fast > 2 * slow
    finally:
        over.set()
        thread.join()
    pid = run.pid("generator 1")
    os.kill(pid, signal.SIGSTOP)
    run.wait(lambda: run.is_up("generator 1", pid), "another generator")
    after = run.step
    run.wait(lambda: run.step > after, "the next step")
    run.end()
    steps = lines(run.out / "steps.jsonl")
    assert max(s["staleness"]["max"] for s in steps) <= 3
    assert "generator 1 has sent nothing for" in said(run)
    gone(run)


# -- signals and locks ----------------------------------------------------------------------------


def test_two_runs_on_one_directory_are_refused_with_the_process_that_holds_it(tmp_path):
    with (
        RunLock(tmp_path),
        pytest.raises(InputError, match=f"is being written by process {os.getpid()}: wait for it"),
    ):
        RunLock(tmp_path)
    RunLock(tmp_path)


@pytest.mark.faults
def test_ctrl_c_while_the_processes_start_is_no_traceback(tmp_path):
    """As a terminal does it: every process of the group gets the signal."""
    out = tmp_path / "run"
    command = [sys.executable, "-m", "scalerl", "train", "scalerl", "tiny", *SMALL, "--out", out]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True,
                                   env=os.environ | {"SCALERL_FAULTS": str(out)})  # fmt: skip
    deadline = time.monotonic() + LIMIT
    while not (out / "status.json").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(LIMIT) == 130
    log = (tmp_path / "log").read_text()
    assert "Traceback" not in log, log
    gone(Victim(out, []))


@pytest.mark.faults
def test_signals_end_a_run_with_a_checkpoint_and_the_second_at_once(tmp_path):
    """Ctrl-C twice, then SIGTERM, then a damaged checkpoint: every resume goes on, to the end."""
    run = begun(tmp_path / "run", "checkpoint.every=20")
    run.wait(lambda: run.step > 20, "a checkpoint, and a while until the next one")
    os.kill(run.pid("trainer"), signal.SIGSTOP)  # so that the checkpoint cannot be finished
    run.process.send_signal(signal.SIGINT)
    saving = (run.out / "checkpoints").glob
    run.wait(lambda: run.status["stopping"] or any(saving("step_*.tmp")), "the first Ctrl-C")
    run.process.send_signal(signal.SIGINT)
    # A run that waited for its trainer would do so for placement.patience, 600 s.
    assert run.process.wait(300) == 130
    gone(run)
    assert checkpoints.latest(run.out, pytest.fail) is not None

    run.resume()
    run.wait(lambda: len(run.resumes) == 1 and run.step > run.resumes[0] + 2, "steps")
    second = subprocess.run([sys.executable, "-m", "scalerl", "train", "--resume", run.out],
                            capture_output=True, text=True, timeout=LIMIT, check=False)  # fmt: skip
    assert second.returncode == 2 and second.stderr.count("\n") == 1
    assert f"is being written by process {run.process.pid}: wait for it" in second.stderr
    run.process.terminate()
    ended(run, 143)
    newest = checkpoints.latest(run.out, pytest.fail)
    assert checkpoints.step_of(newest) == run.step

    model = bytearray((newest / "model.safetensors").read_bytes())
    model[len(model) // 2] ^= 1
    (newest / "model.safetensors").write_bytes(model)
    last = run.step + 2
    run.start("--resume", str(run.out), "--steps", str(last))
    ended(run, 0)
    assert f"checkpoint {newest.name} is damaged (the content of model.safetensors" in said(run)
    steps = lines(run.out / "steps.jsonl")
    assert [s["step"] for s in steps] == list(range(1, last + 1))
    asked = [p for s in steps for p in s["prompts"]]
    assert len(asked) == len(set(asked))


def test_the_page_on_reliability_names_tests_that_exist():
    page = (HERE.parents[1] / "docs" / "reliability.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", page))
    there = {
        name
        for path in HERE.parent.rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    assert named and named <= there, named - there
