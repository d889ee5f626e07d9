"""What a study does next, from the records of its members alone; processes here are small ones that
stand in for `scalerl train`."""

import sys
from pathlib import Path

import pytest

from scalerl import Study
from scalerl.runs.lines import EvalLine, EventLine, StepLine
from scalerl.runs.lock import RunLock
from scalerl.runs.store import RunStore
from scalerl.study import running
from scalerl.study.members import limits_of, read_progress
from scalerl.study.running import Runner, StudyListener


class Heard(StudyListener):
    def __init__(self):
        self.lines, self.tables, self.shares = [], [], []

    def say(self, line):
        self.lines.append(line)

    def table(self, rows):
        self.tables.append(rows)

    def progress(self, told):
        self.shares.append(told.share)


@pytest.fixture
def study(tmp_path):
    study = Study(tmp_path / "s", ["scalerl", "tiny"], sweep={"schedule.k": [1, 2]}, steps=80,
                  seeds=2)  # fmt: skip
    study.write()
    return study


def record(member, steps, budget, end=None, truncated=0.0):
    """A run as `scalerl train` leaves it; `truncated` is what each step adds to the share."""
    store = RunStore(member.path)
    recipe = member.recipe.replace({"budget.steps": budget})
    store.write_recipe(recipe.to_toml())
    store.write_used_recipe(recipe.to_dict())
    for step in range(1, steps + 1):
        line = {"step": step, "loss": 0.1, "grad_norm": 0.5, "ess": 1.0,
                "truncated": truncated * step,
                "compute": {"steps": step, "samples": 512 * step, "flops": 1e9 * step}}  # fmt: skip
        store.append(StepLine.from_dict(line))
        if step % 2 == 0:
            score = {"step": step, "pass_rate": 0.3 + step / 1000, "stderr": 0.02,
                     "n_prompts": 210, "k": 4, "compute": line["compute"]}  # fmt: skip
            store.append(EvalLine.from_dict(score))
    if end is not None:
        store.append(EventLine(step=steps, event="end", reason=end))
    return store


def tasks(study):
    runner = Runner(study, 1, Heard())
    now = {m.name: read_progress(m) for m in study.members}
    return [(m.name, dict(limits)) for m, limits in runner.tasks(now)]


def test_every_member_is_screened_before_any_is_extended_seed_by_seed(study):
    names = ["scalerl+tiny-s0", "k-1-s0", "k-2-s0", "scalerl+tiny-s1", "k-1-s1", "k-2-s1"]
    assert tasks(study) == [(name, {"steps": 20}) for name in names]
    record(study.members[0], 20, 20, "budget of 20 steps")
    assert tasks(study) == [
        *((name, {"steps": 20}) for name in names[1:]),
        ("scalerl+tiny-s0", {"steps": 80}),
    ]


def test_an_unstable_member_is_not_extended_and_says_why(study):
    record(study.members[0], 20, 20, "budget of 20 steps")
    record(study.members[1], 20, 20, "budget of 20 steps", truncated=0.02)
    left = dict(tasks(study))
    assert left["scalerl+tiny-s0"] == {"steps": 80} and "scalerl+tiny-s1" not in left
    found = study.to_dict()["members"][1]
    assert (found["status"], found["stability"]["rule"]) == ("unstable", "truncation")
    assert found["fit"] is None
    row = study.table()[0]
    assert row.seeds == 1 and row.stability[1].state == "unstable"


def test_what_was_interrupted_killed_or_failed_is_gone_on_with(study):
    record(study.members[0], 7, 20, "interrupted")
    record(study.members[2], 9, 20)
    record(study.members[4], 3, 20).append(EventLine(step=3, event="failed", why="no space left"))
    assert [name for name, _ in tasks(study)][:3] == ["scalerl+tiny-s0", "k-1-s0", "k-2-s0"]
    found = {m["name"]: m for m in study.to_dict()["members"]}
    assert found["scalerl+tiny-s0"]["status"] == found["k-1-s0"]["status"] == "begun"
    assert (found["k-2-s0"]["status"], found["k-2-s0"]["why"]) == ("failed", "no space left")
    assert found["k-1-s1"]["status"] == "waiting"


def test_what_is_done_is_done_and_a_larger_budget_opens_it_again(study):
    for member in study.members:
        record(member, 80, 80, "budget of 80 steps")
    assert tasks(study) == []
    assert tasks(Study(study.path, steps=100)) == [
        (m.name, {"steps": 100}) for m in sorted(study.members, key=lambda m: m.seed)
    ]


def test_a_run_that_ended_for_another_reason_has_nothing_further_to_do(study):
    record(study.members[0], 30, 80, "the prompts have run out")
    assert "scalerl+tiny-s0" not in dict(tasks(study))
    assert read_progress(study.members[0]).share(study.members[0].recipe) == 1.0


def stand_in(monkeypatch, code):
    monkeypatch.setattr(running, "PROGRAM", (sys.executable, "-c", code))


def test_a_member_that_is_killed_again_and_again_is_given_up_and_the_others_go_on(
    study, monkeypatch
):
    stand_in(monkeypatch, "import os; os.kill(os.getpid(), 9)")
    heard = Heard()
    end = study.run(jobs=3, listener=heard)
    assert set(end.failed) == {m.name for m in study.members}
    assert set(end.failed.values()) == {"killed (signal 9)"}
    again = [line for line in heard.lines if "starting again" in line]
    assert len(again) == 2 * len(study.members), "three starts each"


def test_the_last_line_of_this_start_is_the_reason(study, monkeypatch):
    for member in study.members:
        Path(study.path / "logs" / f"{member.name}.log").write_text("scalerl: an old story\n")
    stand_in(monkeypatch, "import sys; sys.exit('a\\nscalerl: the disk is full\\nb')")
    end = study.run(jobs=6)
    assert set(end.failed.values()) == {"the disk is full"}
    stand_in(monkeypatch, "raise SystemExit('Killed by the queue')")
    assert set(study.run(jobs=6).failed.values()) == {"Killed by the queue"}


def test_a_member_that_somebody_stopped_is_left_for_the_next_start(study, monkeypatch):
    stand_in(monkeypatch, "raise SystemExit(143)")
    heard = Heard()
    assert study.run(jobs=6, listener=heard).failed == {}
    assert sum("was stopped" in line for line in heard.lines) == 6


def test_a_member_that_is_written_elsewhere_is_waited_for(study, monkeypatch):
    stand_in(monkeypatch, "raise SystemExit(3)")
    for member in study.members[1:]:
        record(member, 80, 80, "budget of 80 steps")
    first = study.members[0]
    first.path.mkdir(parents=True)
    heard = Heard()
    runner = Runner(study, 2, heard)
    with RunLock(first.path):
        assert runner.fill() and not runner.running
        assert study.status(first, read_progress(first)) == "running"
    assert heard.lines == [f"{first.name}: is being written by another process: waiting for it"]
    assert runner.fill() and [job.member.name for job in runner.running] == [first.name]
    runner.end_all()


def test_jobs_fit_the_cores_and_other_devices_are_not_shared(tmp_path, monkeypatch):
    monkeypatch.setattr("scalerl.study.study.cores", lambda: 8)
    local = Study(tmp_path / "a", ["scalerl", "tiny"])
    assert local.jobs() == 4, "a generator and a trainer each"
    inline = Study(tmp_path / "b", ["scalerl", "tiny", "placement.backend=inline"])
    assert inline.jobs() == 8
    assert Study(tmp_path / "c", ["scalerl"]).jobs() == 1


def test_the_hours_left_are_from_members_that_have_run(study):
    store = record(study.members[0], 20, 20, "budget of 20 steps")
    line = store.read(StepLine)[-1].to_dict()
    line["compute"] |= {"minutes": 2.0}
    line["step"] = 21
    store.append(StepLine.from_dict(line))
    left = study.expected(jobs=1)
    assert left.steps == 5 * 80 + 60 and left.source == "members of this study"
    assert left.hours == pytest.approx((5 * 80 + 60) * 2.0 / 20 / 60)
    assert limits_of(study.members[0].recipe) == {"steps": 80}


def test_members_that_run_at_once_share_the_cores(study, tmp_path, monkeypatch):
    said = tmp_path / "said"
    write = f"import os; open({str(said)!r}, 'a').write(os.environ['SCALERL_CORES'] + ' ')"
    monkeypatch.setattr(running, "PROGRAM", (sys.executable, "-c", write))
    monkeypatch.setattr(running, "cores", lambda: 6)
    (study.path / "logs").mkdir(exist_ok=True)
    for jobs in (1, 4):
        runner = Runner(study, jobs, Heard())
        member = study.members[0]
        runner.start(member, limits_of(member.recipe), read_progress(member))
        runner.running[0].process.wait()
        runner.end_all()
    assert said.read_text().split() == ["6", "1"]


def test_the_time_left_is_not_known_before_something_was_done(study):
    runner = Runner(study, 1, Heard())
    assert runner.progress().left is None
    runner.done_before -= 1e-12  # of rounding
    assert runner.progress().left is None
    record(study.members[0], 40, 80)
    assert runner.progress().left is not None
