"""The commands as a user types them: outputs, promised JSON, exit codes, one-line errors."""

import resource
import subprocess
import sys

import numpy as np
import pytest
from run_command import as_json, run

from scalerl.cli import main

EXAMPLE = ["example:paper-8b", "--from", "1500", "--to", "50000"]


@pytest.fixture
def csv(tmp_path):
    """Two runs of our own making in one long table, one of them in two replicates."""
    rng = np.random.default_rng(0)
    lines = ["run,recipe,step,val_acc"]
    for name, recipe, a in [("a1", "A", 0.6), ("a2", "A", 0.61), ("b1", "B", 0.75)]:
        for step in range(10, 810, 20):
            score = 0.2 + (a - 0.2) / (1 + (120 / step) ** 1.6) + 0.004 * rng.standard_normal()
            lines.append(f"{name},{recipe},{step},{score:.4f}")
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(lines))
    return str(path)


def test_fit_prints_a_table_and_a_curve_within_80_columns(capsys):
    code, out, _ = run(capsys, "fit", *EXAMPLE)
    assert code == 0
    assert "paper-8b" in out and "GPU-h" in out
    assert max(len(line) for line in out.splitlines()) <= 80


def test_fit_json_has_the_promised_fields(capsys):
    (found,) = as_json(capsys, "fit", *EXAMPLE)
    assert {"run", "law", "method", "x", "n_points", "window", "params", "intervals", "level",
            "identified", "alarm", "rmse", "warnings"} <= set(found)  # fmt: skip
    assert found["run"] == "paper-8b" and found["x"] == "gpu_hours" and found["n_points"] == 24
    low, high = found["intervals"]["A"]
    assert low < found["params"]["A"] < high


def test_papers_method_gives_the_papers_numbers(capsys):
    (found,) = as_json(capsys, "fit", "example:paper-8b", "--from", "5k", "--to", "50k",
                       "--method", "paper")  # fmt: skip
    assert round(found["params"]["A"], 3) == 0.640
    assert round(found["params"]["B"], 2) == 1.71


def test_power_law(capsys):
    (found,) = as_json(capsys, "fit", *EXAMPLE, "--law", "power")
    assert found["params"]["A"] == pytest.approx(1.0) and found["identified"] is False


def test_forecast_json_has_the_promised_fields(capsys):
    (found,) = as_json(capsys, "forecast", *EXAMPLE, "--at", "75k", "100k", "--target", "0.64,0.9")
    assert [a["compute"] for a in found["at"]] == [75000, 100000]
    assert set(found["at"][0]) == {"compute", "median", "interval", "observed_interval"}
    assert [t["score"] for t in found["targets"]] == [0.64, 0.9]
    assert found["targets"][1]["compute"]["median"] is None
    assert {"gain", "interval"} <= set(found["next_doubling"])


def test_sources_may_follow_the_numbers(capsys):
    (found,) = as_json(capsys, "forecast", "example:paper-8b", "--at", "1e5", "2e5")
    (again,) = as_json(capsys, "forecast", "--at", "1e5", "2e5", "--to", "1e9", "example:paper-8b")
    assert found["at"] == again["at"]


def test_forecast_recommends_and_duels(capsys):
    code, out, _ = run(capsys, "forecast", "example:paper-8b", "example:paper-moe", "--at", "50k",
                       "--price", "2", "--value", "100")  # fmt: skip
    assert code == 0
    assert "beats" in out and "advice" in out


def test_compare_json_has_the_promised_fields(capsys, csv):
    found = as_json(capsys, "compare", csv, "--group-by", "recipe")
    assert found["scope"] == "recipes" and len(found["runs"]) == 3
    (pair,) = found["pairs"]
    assert {
        "a",
        "b",
        "paper_verdict",
        "verdict",
        "winner",
        "delta_A",
        "fixed_A",
        "crossing",
    } <= set(pair)
    assert pair["verdict"] == "higher-ceiling" and pair["winner"] == "B"


def test_compare_prints_a_verdict(capsys, csv):
    code, out, _ = run(capsys, "compare", csv)
    assert code == 0 and "b1 has the higher ceiling" in out


def test_backtest_reports_every_method(capsys, csv):
    found = as_json(capsys, "backtest", csv, "--fractions", "0.5")
    assert [row["method"] for row in found["overall"]] == [
        "no change",
        "paper",
        "power law",
        "line in ln C",
        "ensemble",
        "scalerl",
    ]
    code, out, _ = run(capsys, "backtest", csv, "--fractions", "0.5")
    assert code == 0 and "scalerl" in out


def test_report_writes_a_page_and_pictures(capsys, tmp_path, csv):
    code, out, _ = run(capsys, "report", csv, "-o", str(tmp_path / "out"))
    assert code == 0
    names = {p.name for p in (tmp_path / "out").iterdir()}
    assert {"report.html", "report.json", "comparison.png", "comparison.svg"} <= names
    assert str(tmp_path / "out" / "report.html") in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["fit", "no-such-file.csv"],
        ["fit", "example:nothing"],
        ["fit", "example:paper-8b", "--from", "1e9"],
        ["fit", "example:paper-8b", "--r0", "7"],
        ["fit", "example:paper-8b", "--level", "95"],
        ["fit", "example:paper-8b", "--run", "other*"],
        ["fit", "example:paper-8b", "--law", "power", "--method", "paper"],
        ["forecast", "example:paper-8b", "--at", "soon"],
        ["forecast", "example:paper-8b", "--target", "1.5"],
        ["forecast", "example:paper-8b", "--price", "3"],
        ["compare", "example:paper-8b"],
        ["backtest", "example:paper-8b", "--fractions", "2"],
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, arguments):
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("scalerl: ") and err.count("\n") == 1


@pytest.mark.parametrize("arguments", [["fit"], ["nonsense"], ["fit", "x", "--from", "abc"], []])
def test_unusable_command_lines_exit_with_2(arguments):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2


@pytest.mark.parametrize("command", ["fit", "forecast", "compare", "backtest", "report"])
def test_every_command_has_help_with_an_example(capsys, command):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert "Example: scalerl" in capsys.readouterr().out


def test_runs_that_cannot_be_fitted_are_named_and_left_out(capsys, tmp_path):
    path = tmp_path / "mixed.csv"
    rows = ["run,step,val_acc"] + [f"good,{s},{0.2 + s / 100:.3f}" for s in range(1, 20)]
    path.write_text("\n".join([*rows, "short,1,0.2", "short,2,0.3"]))
    code, out, err = run(capsys, "fit", str(path))
    assert code == 0 and "good" in out
    assert "left out" in err and "short" in err


def test_fit_on_a_csv_end_to_end_takes_less_than_a_second(csv):
    """Of CPU time, which on an idle machine is the time itself: other tests run beside this one."""
    best = float("inf")
    for _ in range(4):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "scalerl", "fit", csv, "--run", "a1"]
        subprocess.run(command, capture_output=True, check=True, timeout=600)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        best = min(best, spent)
    assert best < 1.0


def test_a_closed_pipe_is_not_an_error():
    command = f"{sys.executable} -m scalerl fit example:paper-8b --json | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=600)
    assert done.stdout.strip() == "["
    assert "Traceback" not in done.stderr


def test_training_without_torch_is_one_line_and_leaves_no_directory(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch", None)
    out = tmp_path / "first"
    code, _, err = run(capsys, "train", "scalerl", "tiny", "--out", str(out))
    assert code == 2 and err == "scalerl: training needs torch: pip install 'scalerl[train]'\n"
    assert not out.exists()
