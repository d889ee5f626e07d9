"""What a page shows at its top and in its chart: tiles of two runs, the law alone, the ceiling that
a task has by construction, and what F is."""

import json
import re

import numpy as np
import pytest
from made_records import made_run
from made_runs import climbing, declining, known, unknown

from scalerl.cli import main
from scalerl.curves.compare import compare
from scalerl.curves.fit import fit, fit_all
from scalerl.curves.forecast import forecast
from scalerl.recipe import Recipe
from scalerl.report import words
from scalerl.report.html import write_report
from scalerl.report.page import common_target, pair_tiles
from scalerl.report.series import series
from scalerl.runs.record import Run
from scalerl.tasks.registry import recipe_ceiling


def tiles_of(path) -> dict[str, list[str]]:
    """Tiles of the Markdown twin: name -> values with their notes."""
    top = (path / "report.md").read_text().split("## Curves")[0]
    found: dict[str, list[str]] = {}
    for name, said in re.findall(r"^- (.*?): (\*\*.*)$", top, re.M):
        found.setdefault(name, []).append(said)
    return found


# -- two runs -------------------------------------------------------------------------------------


def test_a_page_of_two_runs_has_the_comparison_in_tiles(tmp_path):
    assert main(["report", "example:paper-8b", "example:paper-moe", "-o", str(tmp_path)]) == 0
    found = tiles_of(tmp_path)
    numbers = json.loads((tmp_path / "report.json").read_text())
    (pair,) = numbers["comparison"]["pairs"]
    assert found["Verdict"] == ["**higher ceiling** paper-moe"]
    low, high = (words.signed(-v) for v in reversed(pair["delta_A"]["interval"]))
    delta = words.signed(-pair["delta_A"]["median"])
    assert found["Difference of ceilings ΔA"] == [
        f"**{delta}** paper-moe minus paper-8b, {low} to {high}"
    ]
    score = words.score(pair["speed"]["score"])
    ratio = pair["speed"]["compute_ratio_b_over_a"]
    assert found[f"Efficiency, to {score}"] == [
        f"**{ratio['median']:.2f} ×** compute of paper-8b over that of paper-moe, "
        + " to ".join(f"{v:.2f}" for v in ratio["interval"])
    ]
    common = numbers["compute_to_target"]
    assert common["score"] == pair["speed"]["score"]
    for run, said in zip(common["runs"], found[f"Compute to {score}"], strict=True):
        median, ends = run["compute"]["median"], run["compute"]["interval"]
        assert said == (
            f"**{words.compute(median)}** GPU-hours of {run['run']}, "
            + " to ".join(words.compute(v) for v in ends)
        )
        assert run["probability"] > 0.99, "both have reached it"


def test_the_compute_of_two_runs_is_that_to_the_target_asked(tmp_path):
    runs = ["example:paper-8b", "example:paper-moe"]
    asked = ["--target", "0.9", "0.6", "--at", "100000"]
    assert main(["report", *runs, *asked, "-o", str(tmp_path)]) == 0
    numbers = json.loads((tmp_path / "report.json").read_text())
    assert numbers["compute_to_target"]["score"] == 0.6, "the first that both reach"
    for run, ahead in zip(numbers["compute_to_target"]["runs"], numbers["forecasts"], strict=True):
        assert run["compute"] == ahead["targets"][1]["compute"]
    assert len(tiles_of(tmp_path)["Compute to 0.600"]) == 2


def test_tiles_of_runs_without_a_common_score_or_a_verdict():
    low = fit(climbing("low", n=30, last=4_000.0))
    c = np.geomspace(500.0, 60_000.0, 30)
    noise = 0.004 * np.random.default_rng(1).standard_normal(30)
    high = fit(Run("high", compute=c, score=0.8 + 0.02 * np.log(c / 500.0) + noise,
                   x_kind="gpu_hours"))  # fmt: skip
    found = compare(low, high)
    common = common_target([forecast(low), forecast(high)], found)
    assert common == [] and len(pair_tiles(found, common)) == 2
    undecided = compare(known("a"), known("b", seed=1))
    shown = pair_tiles(undecided, [])
    assert shown[0][0] == "Verdict" and not shown[1][1].startswith("-")
    ill = compare(declining("a"), declining("b"))
    assert pair_tiles(ill, [])[0][1:] == ("undecided", "one of them is in decline")


def test_pages_of_one_and_of_three_runs_have_no_comparison_tiles(tmp_path):
    write_report([known()], tmp_path / "one")
    write_report([known("a"), known("b", seed=1), unknown("c")], tmp_path / "three")
    assert "Verdict" not in tiles_of(tmp_path / "one")
    assert "Verdict" not in tiles_of(tmp_path / "three")


# -- the curve and the law ------------------------------------------------------------------------


def test_the_law_is_drawn_beside_a_line_that_bends_where_the_points_do(tmp_path):
    """A step in the points bends the line there; the law stays smooth, and the caption says so."""
    assert main(["report", "example:paper-8b", "--from", "1500", "--to", "50000",
                 "-o", str(tmp_path)]) == 0  # fmt: skip
    page = (tmp_path / "report.html").read_text()
    (run,) = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])["runs"]
    n = len(run["law"])
    t = np.log(run["x"][:n])
    bend = [np.abs(np.diff(np.diff(run[of][:n]) / np.diff(t))).max() for of in ("law", "median")]
    assert bend[0] < 0.03 < bend[1], "change of slope between neighbouring knots, per ln C"
    assert "so it bends where the points do; “law alone” draws the smooth law" in page
    assert "sigmoid alone" in (tmp_path / "fit-paper-8b.svg").read_text()


def test_only_a_curve_with_a_departure_from_its_law_has_the_law_beside_it(tmp_path):
    power = fit(climbing(), law="power")
    assert len(series(power).law) == 0
    write_report([power], tmp_path)
    assert "law alone” draws" not in (tmp_path / "report.md").read_text()


def test_the_efficiency_axis_defines_f(tmp_path):
    write_report(fit_all([climbing("a"), climbing("b", seed=1)]), tmp_path)
    formula = "F(R) = C_mid^B (R − R_0) / (A − R)"
    assert f"{formula} is the law solved for compute" in (tmp_path / "report.md").read_text()
    assert f"{formula}, log scale" in (tmp_path / "efficiency.svg").read_text()


# -- the constructed ceiling ----------------------------------------------------------------------


def test_a_run_of_the_embedded_task_shows_the_ceiling_of_its_recipe(tmp_path):
    made_run(tmp_path / "run")
    assert main(["report", str(tmp_path / "run"), "-o", str(tmp_path / "page")]) == 0
    page = (tmp_path / "page" / "report.html").read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])
    assert words.score(data["truth"]) == "0.889"
    said = "The task's ceiling is known by construction: 0.889."
    assert said in (tmp_path / "page" / "report.md").read_text()
    assert "ceiling by construction 0.889" in (tmp_path / "page" / "fit-run.svg").read_text()
    (record,) = json.loads((tmp_path / "page" / "report.json").read_text())["records"]
    assert record["constructed_ceiling"] == pytest.approx(8 / 9)


def test_two_runs_share_a_line_and_an_imported_run_has_none(tmp_path):
    made_run(tmp_path / "one")
    made_run(tmp_path / "two", seed=1)
    both = [str(tmp_path / "one"), str(tmp_path / "two")]
    assert main(["report", *both, "-o", str(tmp_path / "page")]) == 0
    assert "ceiling by construction" in (tmp_path / "page" / "comparison.svg").read_text()
    write_report([known()], tmp_path / "imported")
    page = (tmp_path / "imported" / "report.html").read_text()
    assert json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])["truth"] is None
    assert "by construction" not in (tmp_path / "imported" / "report.md").read_text()


def test_the_ceiling_follows_from_the_recipe_and_no_code_is_imported_for_it():
    tiny = Recipe.load("scalerl", "tiny")
    assert recipe_ceiling(tiny) == pytest.approx(8 / 9)
    tighter = tiny.replace({"length.think_tokens_min": 48, "length.think_tokens_max": 56})
    assert recipe_ceiling(tighter) == pytest.approx(0.7556, abs=0.01)
    assert recipe_ceiling(Recipe.load("scalerl")) is None
    assert recipe_ceiling(Recipe.load("scalerl", "tiny-tools")) == 0.75
    assert recipe_ceiling(Recipe.load("scalerl", "tiny-guess")) == 0.8
    foreign = tiny.replace({"task.name": "no.such.module:Task"})
    assert recipe_ceiling(foreign) is None
    assert recipe_ceiling(tiny.replace({"task.name": "running-sums+carry-sums"})) is None
