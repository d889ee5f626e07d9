"""A law from outside the package: one object in this file, and everything else knows it.

R = a + b ln C, as the middle of a curve often looks. It has no ceiling.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from scalerl import InputError, compare, fit, forecast
from scalerl.cli import main
from scalerl.curves.formula import PointFit
from scalerl.curves.laws import Law, add_law
from scalerl.report import words
from scalerl.report.figures import plot_fit
from scalerl.report.html import write_report
from scalerl.report.terminal import fit_table

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class LogLinear:
    a: float
    b: float

    def value(self, compute: npt.ArrayLike) -> Array:
        c = np.maximum(np.asarray(compute, dtype=np.float64), 1e-300)
        return np.asarray(self.a + self.b * np.log(c))

    def params(self) -> dict[str, float]:
        return {"a": self.a, "b": self.b}


def fit_log_linear(compute: Array, score: Array, r0: float | None = None) -> PointFit[LogLinear]:
    positive = compute > 0
    b, a = np.polyfit(np.log(compute[positive]), score[positive], 1)
    found = LogLinear(float(a), float(b))
    return PointFit(found, float(((found.value(compute) - score)[positive] ** 2).sum()))


LOG_LINEAR = add_law(Law("log-linear", title="log-linear law", least_squares=fit_log_linear))

COMPUTE = np.geomspace(10, 1000, 30)
SCORE = 0.1 + 0.05 * np.log(COMPUTE) + np.random.default_rng(3).normal(0, 0.004, 30)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "run.csv"
    rows = [f"{c:.6g},{y:.6g}" for c, y in zip(COMPUTE, SCORE, strict=True)]
    path.write_text("step,val_acc\n" + "\n".join(rows))
    return path


def test_it_fits_and_says_how_sure_it_is() -> None:
    f = fit(COMPUTE, SCORE, law=LOG_LINEAR)
    assert f.params == pytest.approx({"a": 0.1, "b": 0.05}, abs=0.01)
    assert f.rmse == pytest.approx(0.004, abs=0.002)
    assert (f.method, f.identified) == ("least-squares", False)
    assert f.least_squares().formula.params() == f.params
    assert "log-linear" in repr(f) and "log-linear law" in f._repr_html_()


def test_it_forecasts_beyond_the_window() -> None:
    ahead = forecast(fit(COMPUTE, SCORE, law=LOG_LINEAR), at=[1e4], target=[0.55])
    low, high = ahead.at.interval()[0]
    assert low < 0.1 + 0.05 * np.log(1e4) < high
    assert ahead.next_doubling.median == pytest.approx(0.05 * np.log(2), abs=0.003)
    assert ahead.targets[0].median == pytest.approx(np.exp(9), rel=0.3)


def test_words_and_figures_speak_of_it() -> None:
    f = fit(COMPUTE, SCORE, law=LOG_LINEAR)
    assert words.ceiling_in_words(f) == "No ceiling is quoted: the log-linear law has none."
    assert fit_table([f]).splitlines()[2].split()[4] == "none"
    labels = plot_fit(f).axes[0].get_legend_handles_labels()[1]
    assert "log-linear law, median" in labels
    assert any(label.startswith("power law, A = ") for label in labels)


def test_it_is_not_ranked_without_honest_draws() -> None:
    fits = [fit(COMPUTE, SCORE, law=LOG_LINEAR, name=name) for name in ("a", "b")]
    with pytest.raises(InputError, match="fits of the log-linear law cannot be ranked"):
        compare(fits)
    with pytest.raises(InputError, match="fitted with different laws"):
        compare(fits[0], fit(COMPUTE, SCORE))


def test_the_command_line_finds_it_by_name(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", str(table), "--law", "log-linear", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["law"], found["method"]) == ("log-linear", "least-squares")
    assert found["params"]["b"] == pytest.approx(0.05, abs=0.01)
    assert found["would_identify"] is None and found["sensitivity"] == []
    assert main(["forecast", str(table), "--law", "log-linear", "--at", "2000"]) == 0
    assert "the log-linear law has none" in capsys.readouterr().out


def test_the_command_line_finds_it_by_its_path(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", str(table), "--law", "test_own_law:LOG_LINEAR", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["law"] == "log-linear"


def test_reports_have_it_for_one_run_and_for_several(tmp_path: Path) -> None:
    fits = [fit(COMPUTE, SCORE, law=LOG_LINEAR, name=name) for name in ("a", "b")]
    for chosen in (fits[:1], fits):
        page = write_report(chosen, tmp_path / str(len(chosen)))[0].read_text(encoding="utf-8")
        assert "log-linear law, method least-squares" in page
        assert "No ceiling is quoted: the log-linear law has none." in page
