"""What `scalerl study` shows: lines for a log, a panel on a terminal, the table at its end."""

import io

import pytest

from scalerl import Study
from scalerl.cli.study_view import PlainStudyView, closing, dry_run_text, table_text
from scalerl.study.members import MemberProgress
from scalerl.study.race import RaceState
from scalerl.study.running import StudyEnd, StudyProgress
from scalerl.study.stability import Stability
from scalerl.study.table import StudyRow


@pytest.fixture
def study(tmp_path):
    return Study(tmp_path / "s", ["scalerl", "tiny"], leave_one_out=True, seeds=2, steps=40)


def row(variant, verdict, winner=None, state="stable", a=0.6):
    found = Stability(state, *(("truncation", 70, "14% cut off") if state == "unstable" else ()))
    return StudyRow(
        variant, 2, {"A": a, "B": 1.5, "C_mid": 3e12},
        {"A": (a - 0.02, a + 0.02), "B": (1.0, 2.0), "C_mid": (1e12, 4e12)},
        True, verdict, winner, "", {0: Stability("stable"), 1: found}, (1, 2),
    )  # fmt: skip


ROWS = [
    row("scalerl+tiny", "reference"),
    row("loo-plan", "higher-ceiling", "scalerl+tiny", a=0.5),
    row("loo-lp", "faster", "loo-lp"),
    row("loo-dapo", "undecided", state="unstable"),
]


def test_the_table_says_which_is_higher_or_faster_and_what_became_unstable():
    lines = table_text(ROWS).splitlines()
    assert max(map(len, lines)) <= 80
    assert "0.600 [0.580, 0.620]" in lines[2] and "reference" in lines[2] and "1/2" in lines[2]
    assert "lower ceiling" in lines[3] and "same ceiling, faster" in lines[4]
    assert "undecided" in lines[5]
    assert lines[6].startswith("loo-dapo-s1 unstable since step 70, by the rule truncation")


def test_the_plan_fits_eighty_columns_and_warns_of_few_validations(study):
    lines = dry_run_text(study, None).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "9 variants x 2 seeds = 18 runs; each 40 steps, screened at 10 steps"
    assert "note: 5 validations in each run" in lines[-2]


def told(study, share):
    busy = ((study.members[0], MemberProgress(step=12, pass_rate=0.31)),)
    return StudyProgress(share, 60.0, 90.0, busy, 17, 1)


def test_a_log_has_a_line_of_progress_now_and_then(study):
    stream = io.StringIO()
    with PlainStudyView(stream) as view:
        view.begin(study, 2)
        view.progress(told(study, 0.4))
        view.progress(told(study, 0.41))
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2, "not one for every look"
    assert lines[1] == " 40% in 1:00, 1:30 left; scalerl+tiny-s0 at 12"


def test_the_panel_has_a_bar_the_members_the_table_and_what_was_said(study):
    console = pytest.importorskip("rich.console")
    from scalerl.cli.study_live import LiveStudyView

    stream = io.StringIO()
    view = LiveStudyView(console.Console(file=stream, width=100, height=40, force_terminal=True))
    with view:
        view.begin(study, 2)
        view.progress(told(study, 0.4))
        view.table(ROWS)
        view.say("loo-lp-s0: failed at step 3: no space left")
    shown = console.Console(file=io.StringIO(), width=100, record=True)
    shown.print(view.panel())
    text = shown.export_text()
    for part in ("40%", " left", "scalerl+tiny-s0   step 12 of 40   pass rate 0.310",
                 "loo-dapo", "unstable", "1 failed", "no space left", "2 at once"):  # fmt: skip
        assert part in text
    assert "no space left" in stream.getvalue()


def test_the_panel_of_a_race_says_what_goes_next_why_and_what_is_open_in_eighty_columns(study):
    console = pytest.importorskip("rich.console")
    from scalerl.cli.study_live import LiveStudyView

    view = LiveStudyView(console.Console(file=io.StringIO(), width=80))
    view.progress(told(study, 0.4))
    view.table(ROWS)
    verdicts = {"loo-plan": ("higher-ceiling", "scalerl+tiny"), "loo-lp": ("faster", "loo-lp"),
                "loo-dapo": ("undecided", None)}  # fmt: skip
    why = "another seed of loo-dapo is expected to decide 0.6 of 3 open verdicts"
    open_ones = {"loo-dapo": 0.34, "loo-lp": 0.04}
    view.race(RaceState(("loo-dapo-s1", "loo-lp-s0"), why, verdicts, open_ones, 4.0, 10.0))
    shown = console.Console(file=io.StringIO(), width=80, record=True)
    shown.print(view.panel())
    text = shown.export_text()
    assert "1 of 3 closed, 1 open, 1 beyond the budget" in text
    assert why in " ".join(text.replace("│", " ").split()) and "then      loo-lp-s0" in text
    rows = {line.split()[1]: line for line in text.splitlines() if "[0." in line}
    assert "34%" in rows["loo-dapo"] and "no chance" in rows["loo-lp"]
    assert "%" not in rows["loo-plan"].partition("]")[2] and "…" not in text
    assert "0.500 [0.480, 0.520]" in rows["loo-plan"], "the ceiling is not cut off"


def test_a_log_says_once_what_a_race_does_next(study):
    stream = io.StringIO()
    with PlainStudyView(stream) as view:
        for _ in range(3):
            view.race(RaceState(("loo-lp-s0",), "going on", {}, {"loo-lp": 0.5}, 4.0, 10.0))
    assert stream.getvalue() == "race: next is loo-lp-s0: going on; 40% of all budgets spent\n"


def test_the_end_names_what_failed_and_how_to_go_on(study):
    said = closing(study, StudyEnd({"loo-lp-s0": "no space left"}))
    assert "failed: loo-lp-s0: no space left" in said
    assert said.splitlines()[-1] == f"to continue: scalerl study {study.path}"
    assert "to continue" not in closing(study, StudyEnd())
