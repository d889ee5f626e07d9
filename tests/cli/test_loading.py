"""The options that say which numbers are read, as typed by a user, and what is printed of them."""

import numpy as np
import pytest
from run_command import as_json, run

STEPS = range(20, 820, 20)


def score(step, ceiling=0.6):
    rng = np.random.default_rng(step)
    return 0.2 + (ceiling - 0.2) / (1 + (120 / step) ** 1.6) + 0.003 * rng.standard_normal()


def write(path, header, rows):
    path.write_text("\n".join([header, *rows]) + "\n")
    return str(path)


@pytest.fixture
def flops(tmp_path):
    rows = [f"{s},{s * 1.125e9:.0f},{score(s):.4f}" for s in STEPS]
    return write(tmp_path / "measured.csv", "step,flops,val_acc", rows)


@pytest.fixture
def three(tmp_path):
    rows = [f"{r},{s},{score(s, a):.4f}" for r, a in (("a", 0.5), ("b", 0.6)) for s in STEPS]
    return write(tmp_path / "three.csv", "recipe,my_progress,accuracy", rows)


def refused(capsys, *arguments):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    return err


# -- which columns were taken ---------------------------------------------------------------------


@pytest.mark.parametrize("command", ["fit", "forecast", "compare", "backtest"])
def test_the_columns_that_were_taken_are_printed(capsys, three, command):
    code, out, err = run(capsys, command, three, "--x", "my_progress")
    assert code == 0
    assert "compute: my_progress (unit unknown)\n" in out
    assert "score: accuracy\n" in out
    assert err.count("2 runs separated by recipe") == 1


def test_a_report_prints_them_beside_its_list_of_files(capsys, flops, tmp_path):
    code, out, err = run(capsys, "report", flops, "-o", str(tmp_path / "out"))
    assert code == 0
    assert all(line.startswith(str(tmp_path)) for line in out.splitlines())
    assert "compute: flops (FLOPs)\nscore: val_acc (validation)\n" in err


def test_json_has_them(capsys, flops):
    for command in ("fit", "forecast"):
        (found,) = as_json(capsys, command, flops)
        assert (found["x_name"], found["y_name"]) == ("flops", "val_acc")
    (found,) = as_json(capsys, "backtest", flops, "--fractions", "0.5")["runs"]
    assert (found["run"], found["x_name"], found["y_name"]) == ("measured", "flops", "val_acc")


def test_columns_that_differ_between_runs_are_printed_run_by_run(capsys, flops, tmp_path):
    other = write(
        tmp_path / "other.csv", "tokens,acc", [f"{s * 900},{score(s):.4f}" for s in STEPS]
    )
    code, out, _ = run(capsys, "fit", flops, other)
    assert code == 0
    assert "compute of measured: flops (FLOPs)\ncompute of other: tokens (tokens)\n" in out
    assert "score of measured: val_acc (validation)\nscore of other: acc\n" in out


def test_charts_of_several_runs_carry_their_names(capsys, three):
    _, out, _ = run(capsys, "fit", three, "--x", "my_progress")
    lines = out.splitlines()
    charts = [i for i, line in enumerate(lines) if "│" in line and "│" not in lines[i - 1]]
    assert [lines[i - 1] for i in charts] == ["a", "b"]


def test_a_note_that_a_run_has_twice_is_printed_once(capsys, tmp_path):
    parts = (range(20, 420, 20), range(300, 420, 20), range(300, 820, 20))
    rows = [f"{s},{score(s):.4f}" for part in parts for s in part]
    _, _, err = run(capsys, "fit", write(tmp_path / "log.csv", "step,val_acc", rows))
    assert err == "note: resumed at 300: 6 earlier points left out\n"


# -- losses ---------------------------------------------------------------------------------------


def test_a_loss_is_refused_and_an_error_rate_inverted(capsys, tmp_path):
    rows = [f"{s},{1 - score(s):.4f},{1 - score(s):.4f}" for s in STEPS]
    log = write(tmp_path / "log.csv", "step,eval_loss,val_error", rows)
    assert "eval_loss is a loss" in refused(capsys, "fit", log, "--y", "eval_loss")
    assert "--y val_error reads it as 1 - val_error" in refused(capsys, "fit", log)
    code, out, err = run(capsys, "fit", log, "--y", "val_error")
    assert code == 0
    assert "in decline" not in out
    assert "score: 1 - val_error (validation)" in out
    assert "note: val_error is an error rate: read as 1 - val_error" in err


# -- amounts --------------------------------------------------------------------------------------


def test_amounts_in_another_unit_are_converted_and_that_is_said(capsys, flops):
    (found,) = as_json(capsys, "forecast", flops, "--at", "300steps", "2x", "1.2T", "2ksteps")
    assert [a["compute"] for a in found["at"]] == pytest.approx([3.375e11, 1.8e12, 1.2e12, 2.25e12])
    assert "300steps is read as 3.375e+11 flops" in found["notes"]
    _, out, err = run(capsys, "forecast", flops, "--at", "2ksteps")
    assert "2.25T" in out
    assert "at the rate of the last 10 points" in " ".join(err.split())


@pytest.mark.parametrize("command", ["forecast", "report"])
def test_amounts_that_are_implausible_on_the_axis_are_refused(capsys, flops, tmp_path, command):
    more = ["-o", str(tmp_path / "out")] if command == "report" else []
    err = refused(capsys, command, flops, *more, "--at", "120", "300")
    assert "--at 120: 120 flops is far outside of what measured measured" in err
    assert "120steps" in err


def test_windows_may_be_given_in_steps(capsys, flops):
    (by_steps,) = as_json(capsys, "fit", flops, "--from", "100steps", "--to", "400steps")
    (by_flops,) = as_json(capsys, "fit", flops, "--from", "112.5G", "--to", "450G")
    assert by_steps["window"] == by_flops["window"]


def test_a_target_has_no_unit(capsys, flops):
    assert "a target is a score" in refused(capsys, "forecast", flops, "--target", "3steps")


# -- GPU-hours ------------------------------------------------------------------------------------


def test_gpu_hours_from_steps(capsys, flops):
    options = ["--gpus", "8", "--seconds-per-step", "31.2"]
    (found,) = as_json(capsys, "forecast", flops, *options, "--at", "1000steps")
    assert found["x"] == "gpu_hours"
    assert found["at"][0]["compute"] == pytest.approx(1000 * 8 * 31.2 / 3600)
    (same,) = as_json(capsys, "fit", flops, "--x", "step*8*31.2/3600 as gpu_hours")
    assert (same["x"], same["x_name"]) == ("gpu_hours", "step*8*31.2/3600 as gpu_hours")
    assert "needs a clock" in refused(capsys, "fit", flops, "--gpus", "8")


def test_a_run_column_by_name(capsys, three):
    found = as_json(capsys, "fit", three, "--x", "my_progress", "--run", "recipe=b")
    assert [f["run"] for f in found] == ["b"]
