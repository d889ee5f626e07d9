"""Where a run was changed under way: by its own record, and by `--event`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scalerl import load_run, load_runs
from scalerl.errors import InputError
from scalerl.runs.lines import EventLine, KnobChange
from scalerl.runs.live_run import LiveRun
from scalerl.runs.store import RunStore

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from made_records import made_run

CUT = KnobChange("optimiser.lr", "1e-5", "1e-6", False)
LONGER = KnobChange("budget.steps", "100", "200", False)
FILTER = KnobChange("filter.zero_variance", "true", "false", False)


def record(folder: Path, *events: EventLine) -> Path:
    """A run of 100 steps with 21 validations, and these events."""
    made_run(folder, n=21, steps=100)
    store = RunStore(folder, resume=True)
    for event in events:
        store.append(event)
    return folder


def test_a_change_of_the_recipe_is_a_break_in_every_unit(tmp_path: Path) -> None:
    path = record(tmp_path / "run", EventLine(40, "branch", changes=(CUT,)))
    for axis in (None, "compute/flops", "compute/steps"):
        run = load_run(path, x=axis)
        at = run.compute[run.conversions["steps"][1].tolist().index(40)] if axis != (
            "compute/steps"
        ) else 40.0  # fmt: skip
        assert run.breaks == pytest.approx((at,))
        assert any("changed at step 40: optimiser.lr 1e-5 → 1e-6" in n for n in run.notes)


def test_a_resume_a_longer_budget_and_more_generators_are_no_breaks(tmp_path: Path) -> None:
    more = KnobChange("placement.generators", "1", "2", False)
    path = record(
        tmp_path / "run",
        EventLine(30, "resume", lost_device_seconds=5.0),
        EventLine(40, "branch", changes=(LONGER,)),
        EventLine(50, "scale", changes=(more,)),
    )
    assert load_run(path).breaks == ()


def test_going_back_takes_the_later_changes_with_it(tmp_path: Path) -> None:
    """Events are never cut, but the evaluations after the step are."""
    path = record(
        tmp_path / "run",
        EventLine(60, "branch", changes=(CUT,)),
        EventLine(20, "branch", branch="branches/1", changes=(FILTER,)),
    )
    run = load_run(path, x="compute/steps")
    assert run.breaks == (20.0,)
    back = record(
        tmp_path / "back",
        EventLine(10, "branch", changes=(CUT,)),
        EventLine(20, "branch", branch="branches/1", changes=()),
    )
    assert load_run(back, x="compute/steps").breaks == (10.0,)


def test_the_live_page_reads_the_same_breaks(tmp_path: Path) -> None:
    path = record(tmp_path / "run", EventLine(40, "branch", changes=(CUT,)))
    live = LiveRun(path)
    live.refresh()
    assert load_runs([live.table()])[0].breaks == load_run(path).breaks != ()


def test_events_may_be_given_in_any_unit_of_the_log() -> None:
    table = {
        "gpu_hours": [float(i) for i in range(1, 11)],
        "step": [10 * i for i in range(1, 11)],
        "val_acc": [i / 20 for i in range(10)],
    }
    assert load_run(table, events=[4]).breaks == (4.0,)
    run = load_run(table, events=["45steps", "80%"])
    assert run.breaks == (4.5, 8.0)
    assert any("45steps is read as 4.5 gpu_hours" in note for note in run.notes)
    late = load_run(table, events=[20])
    assert late.breaks == ()
    assert "no evaluation on one side of 20: the event there changes nothing" in late.notes
    with pytest.raises(InputError, match=r"--event 45000: .* far outside"):
        load_run(table, events=[45_000])
    with pytest.raises(InputError, match="not a number"):
        load_run(table, events=["soon"])


def cli(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scalerl", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)


def test_the_command_line_takes_events_and_shows_breaks() -> None:
    done = cli("fit", "example:paper-8b", "--event", "20k", "--event", "50%")
    assert done.returncode == 0, done.stderr
    assert "The run was changed at 20k" in " ".join(done.stdout.split())
    (found,) = json.loads(cli("fit", "example:paper-8b", "--event", "20k", "--json").stdout)
    assert found["breaks"] == [20_000.0]
    (ahead,) = json.loads(cli("forecast", "example:paper-8b", "--event", "20k", "--json").stdout)
    assert ahead["breaks"] == [20_000.0]
    bad = cli("fit", "example:paper-8b", "--event", "soon")
    assert bad.returncode == 2
