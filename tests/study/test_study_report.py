"""The report of a study: page, twin, numbers and figures."""

import json
import re

import pytest

from made_study import made_study
from scalerl import Study
from scalerl.cli import main


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("report")
    made_study(path / "study", variants=7, seeds=1, evals=31, steps=120)
    failing = path / "study" / "runs"
    last = sorted(failing.iterdir())[0]
    with (last / "events.jsonl").open("a") as events:
        events.write(json.dumps({"step": 120, "event": "failed", "why": "<out of memory>"}) + "\n")
    assert main(["report", str(path / "study"), "-o", str(path / "page")]) == 0
    return path


@pytest.fixture(scope="module")
def page(made):
    return (made / "page" / "report.html").read_text()


def test_the_page_has_map_table_curves_differences_and_panels(page, made):
    for title in ("Knob map", "Variants", "Curves", "Each variant against the reference",
                  "How the recipes differ",
                  "Downstream", "Inside the runs", "Reproduce"):  # fmt: skip
        assert f">{title}</h" in page, title
    study = Study(made / "study")
    for name in study.variants:
        assert page.count(name) > 3
    assert "optimiser.lr" in page and "scalerl study" in page
    assert "Holm" in page
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_the_answer_leaves_no_variant_out(page, made):
    lead = page[page.index('class="lead"') :]
    (answer,) = re.findall(r"Against scalerl\+tiny: .*?\.(?=</p>)", lead[: lead.index("</p>") + 4])
    for name in Study(made / "study").variants:
        assert name in answer, name
    assert re.search(r"\(1 of 1 runs unstable, at 0\.\d+ in the end\) is not compared", answer)


def test_curves_stand_before_the_map(page):
    each, knobs = (page.index(f'<section aria-labelledby="{i}">') for i in ("each", "map"))
    assert each < knobs < page.index('<section aria-labelledby="table">')


def test_unstable_and_failed_runs_are_said_first(page):
    top = page[page.index('role="alert"') : page.index('class="lead"')]
    assert "became unstable: step" in top and "by the rule" in top
    assert "&lt;out of memory&gt;" in top


def test_the_page_is_complete_offline(page):
    assert not re.search(r'(src|href)="(?!#|report\.json|https://arxiv)', page)
    assert len(page) < 2_000_000


def test_figures_are_there_in_three_kinds_and_the_twin_links_to_them(made):
    for name in ("knob-map", "curves"):
        for kind in ("png", "svg", "pdf"):
            assert (made / "page" / f"{name}.{kind}").stat().st_size > 1000
    twin = (made / "page" / "report.md").read_text()
    assert "![Knob map](knob-map.png)" in twin and "![Curves of all variants](curves.png)" in twin
    assert not re.search(r"</?(p|div|td|svg|span|figure|h\d)\b", twin)


def test_numbers_are_those_of_the_study(made):
    numbers = json.loads((made / "page" / "report.json").read_text())
    found = json.loads(json.dumps(Study(made / "study").to_dict()))
    assert numbers["knobs"] == found["knobs"]
    assert [row["variant"] for row in numbers["table"]] == [r["variant"] for r in found["table"]]


def test_curves_are_forecast_from_half_and_the_rest_is_held_out(page):
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    for run in data["runs"]:
        assert len(run["used"][0]) > 5 and len(run["held"][0]) > 5
        assert max(run["used"][0]) <= run["end"] * 1.0001 <= min(run["held"][0]) * 1.001


def test_a_study_that_has_not_begun_has_a_page(tmp_path):
    Study(tmp_path / "study", ["scalerl", "tiny"], leave_one_out=True).write()
    assert main(["report", str(tmp_path / "study"), "-o", str(tmp_path / "page")]) == 0
    assert "Nothing can be compared yet" in (tmp_path / "page" / "report.html").read_text()


@pytest.mark.parametrize(
    ("more", "said"),
    [(["--to", "50%"], "--to does not apply to a study"), (["example:paper-8b"], "alone")],
)
def test_what_a_study_has_no_use_for_is_refused(made, capsys, more, said):
    asked = ["report", str(made / "study"), *more, "-o", str(made / "other")]
    assert main(asked) == 2
    assert said in capsys.readouterr().err
    assert not (made / "other").exists()
