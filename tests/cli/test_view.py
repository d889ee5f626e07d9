"""The views, fed with the record of a real run (tests/fixtures/live-run, 40 steps of `tiny`)."""

import dataclasses
import fcntl
import io
import os
import pty
import shlex
import signal
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pytest
from replay import Clock, events, replay
from rich.console import Console

from scalerl.cli import live_view
from scalerl.cli import view as views
from scalerl.cli.live_view import LiveView
from scalerl.cli.throughput import RunThroughput, which_waits
from scalerl.cli.view import PlainView, make_view
from scalerl.curves.live import LiveForecast, forecast_numbers
from scalerl.recipe import Recipe
from scalerl.runs.lines import EvalLine, Play, StepLine

RUN = Path(__file__).parent.parent / "fixtures" / "live-run"
STEPS = [line for line in events(RUN) if isinstance(line, StepLine)]


def recipe(*changes):
    return Recipe.load(str(RUN / "recipe.toml"), overrides=list(changes))


def plain(**options):
    stream, clock = io.StringIO(), Clock()
    view = PlainView(stream, clock)
    replay(view, RUN, clock=clock, **options)
    view.end("budget of 40 steps")
    return stream.getvalue().splitlines()


def live(width=80, height=40, clock=None):
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True)
    return LiveView(console, clock or Clock())


def text_of(view):
    console = Console(file=io.StringIO(), width=view.console.width, color_system=None)
    console.print(view.panel())
    return console.file.getvalue()


def replayed(width=80, height=40, **options):
    clock = Clock()
    with live(width, height, clock) as view:
        replay(view, RUN, clock=clock, **options)
        return text_of(view)


@pytest.fixture(scope="module")
def paper():
    """An identified fit, and one that is not."""
    from scalerl import fit, load_run

    run = load_run("example:paper-8b")
    return fit(run), fit(run, hi=12_000)


def look_at(found, end):
    return LiveForecast(found, end, forecast_numbers(found, end), None)


# -- lines ----------------------------------------------------------------------------------------


def test_a_log_has_one_line_per_event():
    lines = plain()
    assert sum(line.startswith("step ") for line in lines) == 40
    assert sum(line.startswith("validation at step ") for line in lines) == 9
    assert sum(line.startswith("  forecast: ceiling ") for line in lines) == 4
    assert lines[-2] == "ended at step 40: budget of 40 steps"
    assert "scalerl report" in lines[-1]


def test_a_step_line_tells_health_speed_and_time_left():
    line = next(line for line in plain() if line.startswith("step    20"))
    for word in ("reward ", "pass ", "truncated ", "stale 2", "ratio ", "grad ", "gen ", "train "):
        assert word in line
    assert line.count("tok/s") == 2 and line.endswith(" left")


def test_a_validation_line_names_downstream_sets():
    line = EvalLine.from_dict({"step": 5, "pass_rate": 0.5, "stderr": 0.02,
                               "downstream": {"aime": {"pass_rate": 0.1}}})  # fmt: skip
    expected = "validation at step 5: pass rate 0.500 ± 0.020; downstream aime 0.100"
    assert views.validation_line(line) == expected


def test_a_validation_line_names_further_temperatures():
    greedy = {"pass_rate": 0.1, "stderr": 0.01}
    line = EvalLine.from_dict({"step": 5, "pass_rate": 0.5, "stderr": 0.02,
                               "temperatures": {"0": greedy}})  # fmt: skip
    expected = "validation at step 5: pass rate 0.500 ± 0.020; at temperature 0: 0.100 ± 0.010"
    assert views.validation_line(line) == expected


def test_a_ceiling_is_printed_only_where_the_points_identify_it(paper):
    identified, early = paper
    assert identified.identified and not early.identified
    known = ", ".join(views.forecast_parts(look_at(identified, 2 * identified.end)))
    assert known.startswith(f"ceiling {identified.params['A']:.3f} [")
    assert "B " in known and "C_mid " in known and "at the end 0." in known
    unknown = ", ".join(views.forecast_parts(look_at(early, None)))
    low, high = early.interval("A")
    assert unknown.startswith(f"ceiling not identified yet [{low:.2f}, {high:.2f}], next doubling ")
    assert f"{early.params['A']:.3f}" not in unknown


def test_an_alarm_is_said_with_the_forecast(paper):
    falling = dataclasses.replace(paper[0], alarm="declining: worse than before")
    stream = io.StringIO()
    line = EvalLine.from_dict({"step": 1, "pass_rate": 0.5, "stderr": 0.1})
    PlainView(stream).evaluated(line, look_at(falling, None))
    assert stream.getvalue().rstrip().endswith("; ALARM declining: worse than before")


def test_a_record_with_holes_is_shown_all_the_same():
    stream = io.StringIO()
    view = PlainView(stream)
    view.begin(recipe(), Path("out"), 7)
    view.step(StepLine.from_dict({"step": 8, "reward": None, "grad_norm": None}))
    view.step(StepLine.from_dict({"step": 9}))
    view.evaluated(EvalLine.from_dict({"step": 9}), None)
    for part in ("reward -", "grad -", "pass rate -", "resumed at step 7"):
        assert part in stream.getvalue()
    with live() as panel:
        panel.begin(recipe(), Path("out"), 7)
        panel.step(StepLine.from_dict({"step": 8, "reward": None}))
        panel.step(StepLine.from_dict({"step": 9}))
        for rate in (0.1, None):
            panel.evaluated(EvalLine.from_dict({"step": 9, "pass_rate": rate}), None)
        text = text_of(panel)
    for part in ("resumed at 7", "truncated -", "reward -", "pass rate - at step 9"):
        assert part in text


def test_a_log_in_ascii_loses_signs_and_nothing_else():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    PlainView(stream).say("0.5 ± 0.1")
    assert raw.getvalue() == b"0.5 ? 0.1\n"


# -- the panel ------------------------------------------------------------------------------------


@pytest.mark.parametrize("height", [12, 24, 40, 60])
@pytest.mark.parametrize("width", [40, 60, 80, 120, 200, 300])
def test_the_panel_uses_the_width_and_height_it_has(width, height):
    lines = replayed(width, height, at=0.9).splitlines()
    assert {len(line) for line in lines if line} == {min(width, 200)}
    curve = [line for line in lines if line[8:9] == "│"]
    if height > 12:
        assert len(lines) < height
    if height == 12:
        assert not curve
    if height == 60:
        assert len(curve) == live_view.MAX_ROWS
    if height == 40 and width >= 80:
        assert len(lines) >= 35
    drawn = [line for line in lines if "└" in line]
    assert all(line.rstrip("│ ").endswith("─") and line.count("─") > width / 2 for line in drawn)


def test_the_curve_is_drawn_anew_when_the_terminal_changes_its_size():
    clock = Clock()
    with live(80, 40, clock) as view:
        replay(view, RUN, clock=clock, at=0.9)
        text_of(view)
        view.console.width = 140
        floor = next(line for line in text_of(view).splitlines() if "└" in line)
    assert floor.count("─") > 120


def test_a_long_validation_shows_how_far_it_is_from_its_start():
    clock = Clock()
    with live(60, 40, clock) as view:
        view.begin(recipe(), Path("out"), None)
        view.validating(0, 0, 0, 256)
        assert "validating" in text_of(view) and "0/256 written, 0 checked" in text_of(view)
        clock.now += 30.0
        view.validating(0, 128, 64, 256)
        text = text_of(view)
        assert "128/256 written, 64 checked · 0:50 left" in text
        view.evaluated(EvalLine.from_dict({"step": 0, "pass_rate": 0.5}), None)
        assert "written," not in text_of(view)


def test_a_log_has_a_line_of_a_validation_that_lasts_and_none_of_a_short_one():
    stream, clock = io.StringIO(), Clock()
    view = PlainView(stream, clock)
    view.begin(recipe(), Path("out"), None)
    for second in range(31):
        view.validating(5, 8 * second, 4 * second, 256)
        clock.now += 1.0
    view.evaluated(EvalLine.from_dict({"step": 5, "pass_rate": 0.5}), None)
    view.validating(10, 0, 0, 256)
    said = [line for line in stream.getvalue().splitlines() if line.startswith("validating")]
    assert said == [
        "validating at step 5: 16 of 256 answers written, 8 checked, 0:40 left",
        "validating at step 5: 96 of 256 answers written, 48 checked, 0:30 left",
        "validating at step 5: 176 of 256 answers written, 88 checked, 0:20 left",
    ]


def test_the_report_is_offered_by_a_command_that_can_be_pasted():
    line = views.closing(3, "enough", Path("my runs/it's"))[-1]
    words = shlex.split(line.partition(": ")[2])
    assert words == ["scalerl", "report", "my runs/it's", "-o", "my runs/it's/report"]


def test_the_panel_shows_where_the_run_is_and_goes():
    text = replayed(at=0.9)
    for part in (
        "step 36 of 40", "90 %", " left", "device-hours", "pass rate 0.475 ± 0.025 at step 35",
        "● fitted", "ceiling not identified yet [", "at the end 0.", "next doubling +",
        "truncated 0.0 %", "stale max 2 of 3, mean", "mixed ", "zero variance",
        "% busy", "tok/s", "waits for the generator", "validation at step 35",
    ):  # fmt: skip
        assert part in text, part


def test_before_the_first_fit_the_panel_says_so():
    text = replayed(at=0.2)
    assert "no forecast yet" in text and "▁" in text


@pytest.mark.parametrize(("share", "style"), [(0.01, ""), (0.06, "yellow"), (0.2, "bold red")])
def test_truncation_turns_yellow_and_red_where_the_recipe_says(share, style):
    with live() as view:
        view.begin(recipe(), Path("out"), None)
        styles = {str(span.style) for span in view._truncated(share).spans}
    assert styles == {"dim", style} - {""}


def test_no_said_line_is_lost_or_cut():
    view = live()
    long = "warning: " + "x" * 150
    with view:
        view.say("before")
        view.begin(recipe(), Path("out"), None)
        for i in range(10):
            view.say(f"line {i}")
        view.say(long)
        view.say("last [bold] line")
        view.end("enough")
    view.say("after")
    text = view.console.file.getvalue()
    for line in ("before", *(f"line {i}" for i in range(10)), "last [bold] line", "after"):
        assert line in text
    assert "x" * 150 in text
    assert "ended at step 0: enough" in text


def test_a_long_line_is_whole_once_it_has_left_the_panel():
    view = live()
    with view:
        view.begin(recipe(), Path("out"), None)
        for line in ("warning: " + "x" * 150, "a", "b", "c"):
            view.say(line)
        assert "x" * 150 in view.console.file.getvalue()


def test_a_run_that_goes_back_to_its_checkpoint_begins_the_panel_anew():
    with live() as view:
        replay(view, RUN, at=0.5)
        view.begin(recipe(), Path("out"), 10)
        text = text_of(view)
        assert "resumed at 10" in text and "at step 10" in text and "at step 20" not in text
        view.step(STEPS[10])
        view.end("enough")
    assert "ended at step 11: enough" in view.console.file.getvalue()


def test_talking_while_the_panel_is_redrawn_does_not_lock_up(monkeypatch):
    monkeypatch.setattr(live_view, "REFRESH", 500)
    view = live()

    def talk():
        with view:
            view.begin(recipe(), Path("out"), None)
            for i in range(500):
                view.say(f"line {i}")

    talker = threading.Thread(target=talk, daemon=True)
    talker.start()
    talker.join(timeout=600)
    assert not talker.is_alive()


# -- pace -----------------------------------------------------------------------------------------


def pace_of(lines, *changes):
    clock = Clock()
    pace = RunThroughput(recipe(*changes), clock)
    for line in lines:
        clock.follow(line)
        pace.add(line)
    return pace


def test_time_left_follows_the_budget_that_ends_the_run_first():
    half = STEPS[:20]
    assert pace_of(half).use.text == "step 20 of 40"
    tight = pace_of(half, f"budget.minutes={half[-1].compute.minutes / 0.8}")
    assert tight.use.text.endswith("minutes") and round(tight.use.share, 3) == 0.8
    tighter = pace_of(half, f"budget.gpu_hours={half[-1].compute.device_hours / 0.9}")
    assert tighter.use.text.endswith("device-hours")
    assert 0 < tighter.left < pace_of(half).left


def made(step, *, seconds, spent, validation=0.0, minutes=None, devices=2):
    """A line after so many steps of `seconds` on the clock, each of which spent the same."""
    totals = {"device_seconds": devices * seconds * step, "validation_seconds": validation}
    clock = (seconds * step + validation / devices) / 60 if minutes is None else minutes
    compute = {"generated_tokens": 600 * step, "trained_tokens": 900 * step, "minutes": clock}
    spent = {kind: value * step for kind, value in spent.items()}
    return StepLine.from_dict({"step": step, "compute": compute, "ledger": totals | {
        "spent": spent}})  # fmt: skip


def two(**options):
    return [made(step, **options) for step in (1, 2)]


WRITES = {"generate": 1.8, "hand_over": 0.1, "generate_wait": 0.1, "train": 0.5, "train_wait": 1.5}


def test_each_side_works_what_the_ledger_says():
    writes, trains = pace_of(two(seconds=2.0, spent=WRITES)).sides()
    assert (round(writes.busy, 6), trains.busy) == (0.95, 0.25)
    assert (writes.tokens, trains.tokens) == (pytest.approx(300), pytest.approx(450))
    assert (writes.waits_for, trains.waits_for) == (None, "generators")


def test_tokens_a_second_are_right_whatever_the_recipe_says_of_devices():
    """Eight devices took part, and between the two steps there was a validation."""
    lines = [made(1, seconds=2.0, spent=WRITES, devices=8),
             made(2, seconds=2.0, spent=WRITES, devices=8, validation=80.0)]  # fmt: skip
    writes, _ = pace_of(lines, "placement.generators=3").sides()
    assert writes.tokens == pytest.approx(300)
    no_clock = two(seconds=2.0, spent=WRITES, devices=4, minutes=0.0)
    assert pace_of(no_clock, "placement.generators=3").sides()[0].tokens == pytest.approx(300)


def test_of_two_sides_the_one_with_power_to_spare_is_said_to_wait():
    assert which_waits(0.5, 0.8) == (True, False)
    assert which_waits(0.8, 0.5) == (False, True)
    assert which_waits(0.95, 0.91) == which_waits(None, 0.5) == (False, False)
    writes, trains = pace_of(STEPS[:20]).sides()
    assert 0 < trains.busy < writes.busy <= 1
    assert (writes.waits_for, trains.waits_for) == (None, "generators")


@pytest.mark.parametrize(("waited", "whom"), [(0.2, "generators"), (1.4, "checks")])
def test_a_trainer_that_waits_for_checks_is_said_to(waited, whom):
    _, trains = pace_of(two(seconds=2.0, spent=WRITES | {"check_wait": waited})).sides()
    assert trains.waits_for == whom


def test_slow_checks_are_named_even_where_the_generators_wait_more():
    spent = {"generate": 0.2, "generate_wait": 1.8, "train": 1.0, "train_wait": 1.0,
             "check_wait": 0.9}  # fmt: skip
    writes, trains = pace_of(two(seconds=2.0, spent=spent)).sides()
    assert (writes.waits_for, trains.waits_for) == ("trainer", "checks")


def test_both_views_say_who_waits_for_the_checks():
    lines = two(seconds=2.0, spent=WRITES | {"check_wait": 1.4})
    stream = io.StringIO()
    with live() as panel:
        for view in (PlainView(stream, Clock()), panel):
            view.begin(recipe(), Path("out"), None)
            for line in lines:
                view.step(line)
        assert "waits for the checks" in text_of(panel)
    assert "train 450 tok/s (waits for the checks)" in stream.getvalue()


PLAY = {"turns": 2.25, "tool_calls": 1.5, "tool_failures": 0.25, "environment_seconds": 0.125}


def test_both_views_show_turns_tools_and_environments():
    lines = [dataclasses.replace(line, play=Play.from_dict(PLAY))
             for line in two(seconds=2.0, spent=WRITES | {"check_wait": 1.4})]  # fmt: skip
    stream = io.StringIO()
    with live(width=120) as panel:
        for view in (PlainView(stream, Clock()), panel):
            view.begin(recipe(), Path("out"), None)
            for line in lines:
                view.step(line)
        shown = text_of(panel)
    for part in ("turns 2.2", "tool calls 1.5", "tool failures 0.25", "environment 0.12 s",
                 "waits for the environments"):  # fmt: skip
        assert part in shown and part in stream.getvalue(), part
    # What did not happen is left out, and a step of single turns has none of it.
    assert "forks" not in shown and "turns" not in views.step_line(two(seconds=1.0, spent={})[0])


# -- the terminal ---------------------------------------------------------------------------------


def test_a_pipe_gets_lines(capsys):
    assert isinstance(make_view(), PlainView)


class Terminal(io.TextIOWrapper):
    def isatty(self):
        return True


def put_terminal(monkeypatch):
    stream = Terminal(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("TERM", "xterm")
    return stream


def test_a_terminal_gets_the_live_view_unless_told_otherwise(monkeypatch):
    put_terminal(monkeypatch)
    assert isinstance(make_view(), LiveView)
    assert isinstance(make_view(plain=True), PlainView)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_view(), PlainView)


def test_without_rich_a_terminal_gets_lines_and_a_hint(monkeypatch):
    terminal = put_terminal(monkeypatch)
    monkeypatch.setitem(sys.modules, "scalerl.cli.live_view", None)
    assert isinstance(make_view(), PlainView)
    assert b"pip install 'scalerl[train]'" in terminal.buffer.getvalue()


def watch(process, terminal):
    """All that a process writes to its terminal."""
    seen = b""
    while True:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # Linux says so when the last process has left the terminal
            chunk = b""
        if not chunk:
            process.wait(timeout=600)
            return seen
        seen += chunk


@pytest.mark.parametrize(("extra", "code"), [([], 0), (["--raise"], -signal.SIGINT)])
def test_the_terminal_is_given_back_however_the_run_ends(extra, code):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
    command = [sys.executable, str(Path(__file__).parent / "replay.py"), str(RUN), *extra]
    environment = {**os.environ, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    seen = watch(process, ours)
    os.close(ours)
    assert process.returncode == code
    hidden, shown = seen.rfind(b"\x1b[?25l"), seen.rfind(b"\x1b[?25h")
    assert 0 <= hidden < shown  # the cursor
    assert b"step 40 of 40" in seen


def test_the_command_line_does_not_import_rich():
    code = (
        "import sys, scalerl.cli, scalerl.cli.view\n"
        "scalerl.cli.parser()\n"
        "print([m for m in ('rich', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.stdout.strip() == "[]", done.stderr
