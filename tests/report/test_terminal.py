from __future__ import annotations

import io
import os
import subprocess
import sys

import numpy as np
import pytest
from made_runs import HOSTILE, climbing, declining, known, unknown

from scalerl.curves.backtest import backtest
from scalerl.curves.compare import compare
from scalerl.curves.forecast import forecast
from scalerl.report.progress import ProgressBar
from scalerl.report.terminal import (
    backtest_table,
    comparison_table,
    fit_table,
    forecast_table,
    printable,
    wrap,
)
from scalerl.report.terminal_curve import curve


def widest(text: str) -> int:
    return max(len(line) for line in text.splitlines())


def test_tables_of_hostile_and_many_runs_fit_80_columns() -> None:
    fits = [known(name, seed=i) for i, name in enumerate(HOSTILE)]
    fits += [unknown(f"run/{i}/" + "x" * i * 4) for i in range(20)] + [declining("d" * 90)]
    assert widest(fit_table(fits)) <= 80
    assert len(fit_table(fits).splitlines()) == len(fits) + 4
    forecasts = [forecast(f, at=[1e5, 1e9], target=[0.6, 0.99], price=1, value=9) for f in fits[:9]]
    assert widest(forecast_table(forecasts)) <= 80
    assert widest(forecast_table([forecast(declining("d" * 90))])) <= 80
    assert widest(comparison_table(compare(fits[:9]))) <= 80


def test_fit_table_says_not_identified_and_alarm() -> None:
    table = fit_table([known(), unknown(), declining()])
    rows = {line.split()[0]: line for line in table.splitlines()}
    assert "[" in rows["climbing"]
    assert "not identified" in rows["early"] and "0." + "9" * 3 not in rows["early"]
    assert "none: in decline" in rows["falling"] and "!" in rows["falling"]
    assert "! falling: declining" in table
    assert "* early: ceiling not identified" in table
    assert widest(table) <= 80
    assert "! alarm" in fit_table([known(), unknown(), declining()] * 4)


def test_forecast_table_has_scores_targets_doubling_and_advice() -> None:
    out = forecast_table([forecast(known(), at=[2e5], target=[0.6, 0.9], price=1, value=9)])
    for part in ("200k", "next doubling", "score 0.6: probability", "never", "advice:", "ceiling"):
        assert part in out
    assert "! ALARM declining" in forecast_table([forecast(declining())])


def test_comparison_table_has_verdict_difference_and_the_papers_rule() -> None:
    high = climbing("high", ceiling=0.80, last=150_000)
    low = climbing("low", ceiling=0.60, last=150_000, seed=1)
    out = comparison_table(compare(high, low))
    assert "high has the higher ceiling" in out
    assert "difference of ceilings, second minus first: -0.2" in out
    assert "paper's rule: high: higher ceiling" in out


def test_backtest_table_has_methods_fractions_and_sources() -> None:
    runs = [climbing(f"r{i}", seed=i).replace(group=f"lab-{i}") for i in range(2)]
    out = backtest_table(backtest(runs, methods=["no change", "scalerl"]))
    assert widest(out) <= 80
    for part in ("all runs", "first 25 %", "first 75 %", "source lab-1", "no change", "scalerl"):
        assert part in out


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1", "cp437", "no-such-encoding"])
def test_curve_can_be_printed_and_fits(encoding: str) -> None:
    picture = curve(known(), width=72, height=12, encoding=encoding)
    assert widest(picture) <= 72
    assert len(picture.splitlines()) == 12 + 3
    if encoding != "no-such-encoding":
        picture.encode(encoding)
    fine = encoding == "utf-8"
    assert ("●" in picture) == fine and ("○" in picture) == fine
    assert "GPU-hours" in picture


def test_curve_shows_every_part_also_of_a_flat_run_and_of_zero_compute() -> None:
    run = climbing(n=12)
    flat = run.replace(score=np.zeros(12), compute=np.concatenate([[0.0], run.compute[1:]]))
    from scalerl.curves.fit import fit

    assert "●" in curve(fit(flat), encoding="utf-8")
    assert "░" in curve(unknown(), encoding="utf-8")


@pytest.mark.parametrize("command", ["fit", "compare"])
def test_commands_work_on_a_terminal_that_only_has_ascii(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scalerl", command, "example:paper-8b", "example:paper-moe"],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.isascii()


def test_text_is_made_printable_for_any_terminal() -> None:
    assert printable("ΔA … ok", "utf-8") == "ΔA … ok"
    printable("ΔA … 名前 🚀", "cp1252").encode("cp1252")
    assert widest(wrap("word " * 60 + "x" * 200, "  ", "warning: ")) <= 80


class Terminal(io.StringIO):
    def __init__(self, tty: bool) -> None:
        super().__init__()
        self.tty = tty

    def isatty(self) -> bool:
        return self.tty


@pytest.mark.parametrize(
    ("tty", "seconds", "seen"), [(True, 1.0, True), (True, 0.1, False), (False, 1.0, False)]
)
def test_progress_shows_on_a_terminal_for_long_work_only(
    tty: bool, seconds: float, seen: bool
) -> None:
    now = [0.0]
    stream = Terminal(tty)
    with ProgressBar("fitting", stream, clock=lambda: now[0]) as report:
        for i in range(1, 10):
            now[0] = i * seconds
            report(i / 10)
    out = stream.getvalue()
    assert ("left" in out) == seen
    if seen:
        assert "50%" in out and out.endswith("\r")
        assert max(map(len, out.split("\r"))) <= 80
