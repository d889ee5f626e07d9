"""What people read at the terminal, word by word, so that a change of wording is reviewed.

The texts are in tests/cli/snapshots. After a change that is meant, rewrite them and read the diff:

    UPDATE_SNAPSHOTS=1 pytest tests/cli/test_snapshots.py && git diff tests/cli/snapshots

Numbers that a fit computes, times, sizes and directories are masked: they are tested elsewhere.
"""

import io
import os
import re
import sys
from pathlib import Path

import pytest
from replay import Clock, replay

from scalerl import Study
from scalerl.cli import COMMANDS, main
from scalerl.cli.study_view import closing, pairwise_text, table_text
from scalerl.cli.view import PlainView
from scalerl.curves.forecast import Target
from scalerl.pipeline import checkpoints
from scalerl.runs.lines import EventLine, Status, StepLine
from scalerl.runs.store import RunStore
from scalerl.study.paired import PairedDifference
from scalerl.study.pairwise import AxisSpeed, CurveCrossing, PairwiseSummary
from scalerl.study.running import StudyEnd
from scalerl.study.stability import Stability
from scalerl.study.table import StudyRow

SNAPSHOTS = Path(__file__).parent / "snapshots"
LIVE_RUN = Path(__file__).parent.parent / "fixtures" / "live-run"
WIDTH = 80
PAPER = "example:paper-8b"


def mask(text, *folders):
    """The text without what depends on the machine, or on the last digits of a fit."""
    for folder in folders:
        text = text.replace(str(folder), "DIR")
    text = "\n".join(_mask_curve(line) for line in text.split("\n"))
    text = re.sub(r"([^\n]*\(curve\)\n)+", r"\1", text)
    # Numbers keep their form: 0.618 is #.###, 49.3k is ##.#k, 737G is ###G.
    number = r"(?<![\w.])\d[\d,]*\.\d+|(?<![\w.])\d[\d,]*(?=[kMGTP]\b)"
    return re.sub(number, lambda found: re.sub(r"\d", "#", found[0]), text)


def _mask_curve(line):
    """The line, without what it shows of a curve; legends and bars stay."""
    if "fitted" in line or "tok/s" in line or not re.search("[⠁-⣿●○░┊]", line):
        return line
    return "      │ (curve)"


def compare_with_snapshot(name, text):
    """Compare with the file of this name, or rewrite it."""
    path = SNAPSHOTS / f"{name}.txt"
    text = "\n".join(line.rstrip() for line in text.rstrip().splitlines()) + "\n"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        SNAPSHOTS.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"no snapshot {path.name}: UPDATE_SNAPSHOTS=1 writes it"
    assert text == path.read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)


def output(capsys, *words):
    """Standard output and error, one below the other, with the exit code."""
    try:
        code = main(list(words))
    except SystemExit as ended:
        code = ended.code
    out, err = capsys.readouterr()
    return "\n".join(part for part in (out, err, f"exit code {code}") if part)


# -- help -----------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="argparse writes usage lines otherwise")
@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help(capsys, command):
    text = output(capsys, *([command] if command else []), "--help")
    assert max(map(len, text.splitlines())) <= WIDTH
    compare_with_snapshot(f"help-{command or 'scalerl'}", text)


# -- results --------------------------------------------------------------------------------------

RESULTS = {
    "fit": ["fit", PAPER, "--from", "1500", "--to", "50000", "--explain"],
    "fit-two-runs": ["fit", PAPER, "example:paper-moe", "--sort", "A"],
    "forecast": ["forecast", PAPER, "--to", "25k", "--at", "50k", "2x", "--target", "0.65"],
    "forecast-explained": ["forecast", PAPER, "--price", "2", "--value", "1000", "--explain"],
    "compare": ["compare", PAPER, "example:paper-moe", "--explain"],
    "backtest": ["backtest", PAPER, "--fractions", "0.5"],
    "recipe-list": ["recipe", "list"],
    "recipe-show": ["recipe", "show", "scalerl", "tiny", "loss.ratio_cap=4"],
    "recipe-diff": ["recipe", "diff", "scalerl", "minimax-m1"],
    "study-dry-run": ["study", "out/loo", "scalerl", "tiny", "--leave-one-out", "--seeds", "3",
                      "--dry-run"],
    "study-commands": ["study", "commands", "out/two", "scalerl", "tiny", "--sweep",
                       "loss.ratio_cap=4"],
    "report": ["report", PAPER, "--to", "50000", "-o", "out/report"],
}  # fmt: skip


@pytest.mark.parametrize("name", RESULTS)
def test_result(capsys, name):
    text = output(capsys, *RESULTS[name])
    if name != "study-commands":  # commands to copy are not wrapped
        assert max(map(len, text.splitlines())) <= WIDTH
    compare_with_snapshot(name, mask(text) if not name.startswith("recipe") else text)


@pytest.fixture
def record(tmp_path):
    """The record of a run of 30 steps."""
    store = RunStore(tmp_path / "run")
    store.write_recipe('name = "scalerl+tiny"\n')
    for step in range(1, 31):
        line = {"step": step, "compute": {"minutes": 0.8 * step / 60}}
        store.append(StepLine.from_dict(line))
    store.status(Status(30, "2 more groups", under_way=9, writing=4, checking=3,
                        pids={"main": 999_999_991, "trainer": 999_999_992}))  # fmt: skip
    with checkpoints.writing(tmp_path / "run", 20) as folder:
        (folder / "run.json").write_text("{}")
    return store


@pytest.mark.parametrize("how", ["finished", "failed", "died"])
def test_doctor(capsys, record, tmp_path, how):
    if how == "finished":
        record.append(EventLine(30, "end", reason="budget of 30 steps"))
    if how == "failed":
        record.append(EventLine(30, "failed", why="no space left on device"))
    text = output(capsys, "doctor", str(tmp_path / "run"))
    text = re.sub(r"\d+ s (old|ago)", r"# s \1", text)
    text = re.sub(r"\d+(\.\d+)? [kMGT]B free", "# free", text)
    compare_with_snapshot(f"doctor-{how}", mask(text, tmp_path))


# -- studies --------------------------------------------------------------------------------------


def row(variant, verdict, winner=None, state="stable", *, summary=None, a=0.6, identified=True):
    why = ("truncation", 70, "14 % of rollouts are cut off") if state == "unstable" else ()
    paired = None
    if winner is not None:
        paired = PairedDifference(
            0.02, (0.01, 0.03), (-0.02, 0.06), "flops", 1e12, ((10,), (10,)), 100, (1, 1), 0.01
        )
    return StudyRow(
        variant, 2, {"A": a, "B": 1.5, "C_mid": 3e12},
        {"A": (a - 0.02, a + 0.02), "B": (1.0, 2.0), "C_mid": (1e12, 4e12)},
        identified, verdict, winner, "", {0: Stability("stable"), 1: Stability(state, *why)},
        (1, 2), paired, summary or PairwiseSummary(Target(0.54, 1.0, 4e12, (3e12, 5e12))),
    )  # fmt: skip


def test_study_table():
    speeds = {
        "gpu_hours": AxisSpeed(0.7, (0.6, 0.8), 0.999),
        "tokens": AxisSpeed(1.02, (0.9, 1.1), 0.4),
    }
    crossing = CurveCrossing(0.4, 0.61, "loo-lp", 5e12, (4e12, 9e12))
    rows = [
        row("scalerl+tiny", "reference"),
        row("loo-plan", "higher-ceiling", "scalerl+tiny", a=0.5,
            summary=PairwiseSummary(Target(0.54, 0.1, float("inf"), (9e12, float("inf"))))),
        row("loo-lp", "faster", "loo-lp",
            summary=PairwiseSummary(Target(0.54, 1.0, 3e12, (2e12, 4e12)), crossing,
                                    (0.6, 1.4, 1.7), speeds)),
        row("loo-dapo", "undecided", state="unstable", identified=False),
        row("loo-a-variant-with-a-very-long-name", "same"),
    ]  # fmt: skip
    text = table_text(rows) + pairwise_text(rows)
    assert max(map(len, text.splitlines())) <= WIDTH
    compare_with_snapshot("study-table", text)


def test_study_closing(tmp_path):
    study = Study(tmp_path / "study", ["scalerl", "tiny"], sweep={"loss.ratio_cap": [4]})
    text = closing(study, StudyEnd({"ratio_cap-4-s0": "no space left on device"}))
    compare_with_snapshot("study-closing", mask(text, tmp_path))


# -- live views -----------------------------------------------------------------------------------


def test_plain_view():
    stream, clock = io.StringIO(), Clock()
    view = PlainView(stream, clock)
    replay(view, LIVE_RUN, clock=clock, at=0.7)
    view.validating(40, 10, 5, 100)
    view.say("warning: 12 % of rollouts are truncated")
    view.end("budget of 40 steps")
    compare_with_snapshot("live-plain", mask(stream.getvalue()))


def test_rich_view():
    console = pytest.importorskip("rich.console").Console
    from scalerl.cli.live_view import LiveView

    clock = Clock()
    size = {"width": WIDTH, "height": 40}
    with LiveView(console(file=io.StringIO(), force_terminal=True, **size), clock) as view:
        replay(view, LIVE_RUN, clock=clock, at=0.7)
        view.validating(28, 10, 5, 100)
        view.say("warning: 12 % of rollouts are truncated")
        shown = console(file=io.StringIO(), color_system=None, **size)
        shown.print(view.panel())
    compare_with_snapshot("live-rich", mask(shown.file.getvalue()))


# -- errors ---------------------------------------------------------------------------------------

ERRORS = {
    "no-such-command": ["forcast", PAPER],
    "no-such-file": ["fit", "nowhere.csv"],
    "no-such-example": ["fit", "example:paper-9b"],
    "no-such-run": ["fit", PAPER, "--run", "nothing*"],
    "no-such-column": ["fit", "runs.csv", "--y", "val_acuracy"],
    "too-few-points": ["fit", PAPER, "--to", "2000"],
    "no-such-law": ["fit", PAPER, "--law", "sigmiod"],
    "not-a-number": ["forecast", PAPER, "--at", "soon"],
    "not-a-score": ["forecast", PAPER, "--target", "65"],
    "no-such-preset": ["train", "scalrl", "--out", "runs/first"],
    "no-such-key": ["train", "scalerl", "tiny", "loss.ratio_kap=4", "--out", "runs/first"],
    "bad-value": ["train", "scalerl", "tiny", "schedule.k=-1", "--out", "runs/first"],
    "no-out": ["train", "scalerl", "tiny"],
    "no-run": ["doctor", "runs/first"],
    "no-study": ["study", "out/loo"],
    "no-such-variant": ["study", "out/loo", "scalerl", "tiny", "--leave-one-out",
                        "--variants", "loo-pln", "--dry-run"],
    "explained-json": ["compare", PAPER, PAPER, "--json", "--explain"],
}  # fmt: skip


def test_errors(capsys, tmp_path):
    lines = [f"{step},{0.2 + 0.3 * step / (step + 20):.4f}" for step in range(1, 30)]
    (tmp_path / "runs.csv").write_text("\n".join(["step,val_accuracy", *lines]))
    found = []
    for words in ERRORS.values():
        text = output(capsys, *words)
        assert "Traceback" not in text
        found.append(f"$ scalerl {' '.join(words)}\n{text}\n")
    compare_with_snapshot("errors", mask("\n".join(found), tmp_path))
