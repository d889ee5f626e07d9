"""The panels of a training run: in the page, in its Markdown twin, in report.json."""

import json
import re
import time

import numpy as np
import pytest
from made_records import add_play, made_run, step_text
from made_runs import HOSTILE, known

from scalerl import fit, load_run, load_runs
from scalerl.cli import main
from scalerl.report.blocks import Bullets, Code, Heading, Tiles, to_markdown
from scalerl.report.html import write_report
from scalerl.report.run_record import read_record
from scalerl.report.small_charts import ChartLine, chart
from scalerl.report.table import ReportTable, TableCell, columns, row

CHARTS = ("Reward", "Answer length", "Cut off or interrupted", "Entropy", "Staleness", "Ratio",
          "Effective sample size", "Gradient norm")  # fmt: skip


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    out = tmp_path_factory.mktemp("report")
    made_run(out / "run")
    assert main(["report", str(out / "run"), "-o", str(out / "page")]) == 0
    return out / "page"


def test_the_page_of_a_run_has_every_panel(report):
    page = (report / "report.html").read_text()
    for title in (*CHARTS, "Where the compute went", "Downstream", "Answers at step 300", "Recipe",
                  "Warnings and alarms", "Reproduce", "The whole recipe"):  # fmt: skip
        assert title in page, title
    assert "entropy is low" in page
    assert "optimiser.lr" in page and "0.0002" in page and "0.0001" in page
    assert '<span class="flag">stalls</span>' in page
    assert "scalerl train" in page and "recipe.toml" in page
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert len(page) < 400_000


def test_the_twin_says_the_same_without_markup(report):
    twin = (report / "report.md").read_text()
    for part in (*CHARTS, "entropy is low", "| optimiser.lr |".replace("optimiser.lr",
                 "`optimiser.lr`"), "![Curves with forecasts](fit-run.png)", "six"):  # fmt: skip
        assert part in twin, part
    assert not re.search(r"</?(p|div|td|svg|span|figure|h\d)\b", twin)
    assert (report / "fit-run.png").exists() and (report / "fit-run.pdf").exists()
    assert "two and two\nis four" in twin


def test_the_numbers_are_in_the_json(report):
    [record] = json.loads((report / "report.json").read_text())["records"]
    assert record["ledger"]["spent"]["train"] == pytest.approx(210)
    assert [d["path"] for d in record["differences"]] == ["optimiser.lr"]
    follows, stalls = record["downstream"]
    assert follows["verdict"] == "follows" and not follows["stalled"]
    assert stalls["stalled"] and stalls["since"] is not None
    assert follows["slope"] == pytest.approx(0.5, abs=0.1)


def test_imported_curves_have_no_panels(tmp_path):
    write_report([known()], tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "Inside the run" not in page
    assert json.loads((tmp_path / "report.json").read_text())["records"] == [None]


def test_several_runs_are_folded_and_their_ids_stay_apart(tmp_path):
    for i in range(3):
        made_run(tmp_path / "runs" / f"r{i}", seed=i, n=12, steps=24)
    write_report([fit(run) for run in load_runs(tmp_path / "runs")], tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count('<details class="inside">') == 3
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_what_a_model_wrote_stays_text(tmp_path):
    said = "</code></pre>".join(HOSTILE) + "```"
    run = made_run(tmp_path / "run", n=10, steps=20, answer=said, warning=said, set=HOSTILE[0])
    write_report([fit(load_run(run))], tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<script>alert" not in page and "<img" not in page
    assert page.count("<script") == 2


def test_a_run_in_an_environment_shows_its_episodes(tmp_path):
    run = add_play(made_run(tmp_path / "run", n=10, steps=20))
    write_report([fit(load_run(run))], tmp_path / "out")
    twin = (tmp_path / "out" / "report.md").read_text()
    charts = ("Turns and tool calls of an episode", "Episodes ended early, share",
              "Time in the environment, seconds", "Forks of an episode")  # fmt: skip
    for part in ("### Episodes", *charts, "waiting for environments", "✓ right, step 1",
                 "✗ wrong, step 2", "✗ wrong, step 3", "[policy, 2 tokens, versions 1 to 2]",
                 "a new row with the history rewritten", "ended by turns",
                 "3 turns, 2 tool calls, 1 failed, 1 fork"):  # fmt: skip
        assert part in twin, part
    page = (tmp_path / "out" / "report.html").read_text()
    assert all(chart in page for chart in charts) and "waiting for checks" not in page


def test_a_run_of_single_turns_has_no_section_of_episodes(report):
    twin = (report / "report.md").read_text()
    assert "Episodes" not in twin and "waiting for checks" in twin


def test_the_episodes_of_a_run_of_single_turns_are_not_read(tmp_path):
    run = made_run(tmp_path / "run", n=10, steps=20)
    steps = (run / "steps.jsonl").read_text()
    assert len(read_record(load_run(add_play(run))).episodes) == 3
    (run / "steps.jsonl").write_text(steps)
    assert read_record(load_run(run)).episodes == ()


def test_episodes_that_cannot_be_read_are_left_out(tmp_path):
    run = add_play(made_run(tmp_path / "run", n=10, steps=20))
    file = run / "episodes" / "training.jsonl"
    file.write_bytes(b"\0" * 1000)
    assert read_record(load_run(run)).episodes == ()
    file.unlink()
    file.mkdir()
    assert read_record(load_run(run)).episodes == ()


def test_what_an_episode_says_stays_text_and_is_cut(tmp_path):
    said = "</code></pre>".join(HOSTILE) + "```" + "x" * 10_000
    run = add_play(made_run(tmp_path / "run", n=10, steps=20), text=said)
    write_report([fit(load_run(run))], tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<script>alert" not in page and "<img" not in page and "x" * 200 not in page


def test_a_run_that_is_going_on_or_damaged_has_the_panels_that_it_can_have(tmp_path):
    run = made_run(tmp_path / "run", n=10, steps=20)
    (run / "recipe.toml").write_text("not toml [")
    (run / "events.jsonl").unlink()
    with (run / "steps.jsonl").open("a") as file:
        file.write('{"step": 21, "rew')
    record = read_record(load_run(run))
    assert record.recipe is None and record.total_steps == 20
    (run / "steps.jsonl").unlink()
    write_report([fit(load_run(run))], tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Where the compute went" not in page and "Answers at step 20" in page


def test_a_hundred_thousand_steps_stay_small_and_quick(tmp_path):
    run = made_run(tmp_path / "run", n=10, steps=20)
    rng = np.random.default_rng(0)
    some = [step_text(i, rng) for i in range(100)]
    with (run / "steps.jsonl").open("w") as file:
        for i in range(1, 100_001):
            file.write(re.sub(r'"step": \d+', f'"step": {i}', some[i % 100], count=1) + "\n")
    loaded = load_run(run)
    before = time.process_time()
    record = read_record(loaded)
    assert time.process_time() - before < 5
    assert record.total_steps == 100_000 and len(record.steps) <= 2000
    assert record.steps[-1].step == 100_000
    write_report([fit(loaded)], tmp_path / "out")
    assert (tmp_path / "out" / "report.html").stat().st_size < 400_000


def test_further_evaluations_stand_beside_validation(tmp_path):
    run = made_run(tmp_path / "first", n=12, steps=24)
    asked = tmp_path / "evals" / "first"
    asked.mkdir(parents=True)
    for name in ("evals.jsonl", "recipe.toml"):
        (asked / name).write_text((run / name).read_text())
    out = tmp_path / "out"
    given = f"mine={tmp_path / 'evals'}"
    assert main(["report", str(run), "-o", str(out), "--downstream", given]) == 0
    [record] = json.loads((out / "report.json").read_text())["records"]
    mine = next(each for each in record["downstream"] if each["name"] == "mine")
    assert mine["slope"] == pytest.approx(1.0, abs=0.05) and mine["points"] == 12
    assert main(["report", str(run), "-o", str(out), "--downstream", str(tmp_path / "x")]) == 2


def test_a_chart_shows_gaps_ends_and_a_log_axis():
    x = np.arange(1.0, 401.0)
    y = np.full(400, 2.0)
    y[100:200] = np.nan
    y[300] = 5000.0
    drawn = chart("norm", x, [ChartLine("norm", y)], bins=50).to_html()
    path = re.search(r'class="line k0" d="([^"]+)"', drawn)[1]
    assert path.count("M") == 2
    assert ">1k<" in drawn and 'class="band"' in drawn
    assert "between 2 and 5k" in drawn
    assert chart("nothing", x, [ChartLine("a", np.full(400, np.nan))]).to_html() == ""
    largest = chart("two", x, [ChartLine("a", y), ChartLine("b", y, "largest")]).to_html()
    assert 'stroke-dasharray="6 3"' in largest


def test_markdown_of_the_pieces():
    page = [
        Heading("T", 1),
        Tiles([("Now", "0.5", "at 3")]),
        ReportTable("C", columns("a|b", "c"), [row(TableCell("1", "0 to 2"), "")]),
        Code("x ``` y\n z"),
        Bullets(["one", "two"]),
    ]
    assert to_markdown(page).split("\n\n") == [
        "# T", "- Now: **0.5** at 3", "C", "| a\\|b | c |\n| --- | --- |\n| 1 (0 to 2) |  |",
        "````\nx ``` y\n z\n````", "- one\n- two",
    ]  # fmt: skip
