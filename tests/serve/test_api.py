"""What the page asks, and what programs may ask as well."""

import asyncio
import csv
import io
import json
import zipfile
from pathlib import Path

import pytest
from made_records import add_play, made_run
from serving import Page

from made_study import made_study
from scalerl.cli import main
from scalerl.report.words import compute
from scalerl.serve.queries import FitCache, Query


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs")
    made_run(path / "first", n=31, steps=300)
    add_play(made_run(path / "second", n=31, steps=300, seed=1))
    return path


@pytest.fixture(scope="module")
def page(runs):
    return Page(runs)


def printed(capsys, *command):
    assert main([str(c) for c in command]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_list_has_what_programs_need(page):
    found = page.ask("/api/runs").json()
    assert [run["name"] for run in found] == ["first", "second"]
    for run in found:
        assert run["points"] == 31 and run["status"] == "ended" and run["id"]
        assert run["forecast"]["next_doubling"]["gain"] is not None
    one = page.ask(f"/api/runs/{found[0]['id']}").json()
    assert len(one["curve"]["compute"]) == 31 and one["name"] == "first"
    assert {"name": "flops", "label": "FLOPs"} in one["axes"]
    assert page.ask("/healthz").json() == {"status": "ok"}


def test_a_fit_has_the_numbers_of_the_commands(page, runs, capsys):
    key = page.runs()["first"]["id"]
    found = page.ask("/api/fit", {"run": key}).json()
    first = runs / "first"
    assert found["fit"] == printed(capsys, "fit", first, "--json")[0]
    assert found["forecast"] == printed(capsys, "forecast", first, "--json")[0]


def test_window_axis_budget_and_target_are_those_of_the_commands(page, runs, capsys):
    key = page.runs()["first"]["id"]
    asked = {"window": [2e11, 2e12], "axis": "flops", "budget": 5e12, "target": 0.6, "price": 2e-12,
             "value": 100}  # fmt: skip
    found = page.ask("/api/fit", {"run": key, **asked}).json()
    how = [runs / "first", "--x", "flops", "--from", "2e11", "--to", "2e12", "--json"]
    assert found["fit"] == printed(capsys, "fit", *how)[0]
    more = ["--at", "5e12", "--target", "0.6", "--price", "2e-12", "--value", "100"]
    assert found["forecast"] == printed(capsys, "forecast", *how, *more)[0]
    assert found["forecast"]["recommendation"]["action"] in ("stop", "continue")
    assert found["cost"]["budget"][0]["cost"] > 0
    assert found["curve"]["window"] == found["fit"]["window"]
    assert found["curve"]["held"][0] and found["curve"]["unit"] == "FLOPs"


def test_as_it_was_known_is_the_fit_of_what_was_there_then(page, runs, capsys):
    key = page.runs()["first"]["id"]
    found = page.ask("/api/fit", {"run": key, "known": 1.5e12}).json()
    then = printed(capsys, "fit", runs / "first", "--to", "1.5e12", "--json")[0]
    assert found["fit"] == then


def test_a_quick_answer_agrees_with_the_whole_one(page):
    key = page.runs()["first"]["id"]
    whole, quick = (
        page.ask("/api/fit", {"run": key, "to": 2e12, "quick": q}).json() for q in (False, True)
    )
    assert quick["facts"] == whole["facts"] and quick["curve"] == whole["curve"]
    assert quick["fit"]["params"] == whole["fit"]["params"]


def test_a_question_that_is_cut_off_by_the_end_of_the_server_is_said_to_be(page):
    key = page.runs()["first"]["id"]

    async def ask():
        asked = asyncio.ensure_future(page.asked("/api/fit", {"run": key, "to": 1.9e12}))
        await asyncio.sleep(0.05)
        asked.cancel()
        return await asked

    answer = asyncio.run(ask())
    assert answer.status == 503 and "stopped" in answer.json()["error"]


def test_a_budget_is_asked_of_the_fit_there_is(page, monkeypatch):
    key = page.runs()["first"]["id"]
    page.ask("/api/fit", {"run": key, "to": 2.2e12, "quick": True})
    fits = []
    monkeypatch.setattr("scalerl.serve.queries.fit", lambda *a, **k: fits.append(a))
    found = page.ask("/api/fit", {"run": key, "to": 2.2e12, "budget": 5e12, "quick": True})
    assert found.status == 200 and not fits


def test_fits_of_a_run_that_grows_do_not_pile_up(page, monkeypatch):
    (run,) = (e.run for e in page.catalogue.entries.values() if e.name == "first")
    monkeypatch.setattr("scalerl.serve.queries.MAX_FIT_POINTS", 3 * len(run))
    kept = FitCache()
    for end in (1.2e12, 1.4e12, 1.6e12, 1.8e12, 2.0e12):
        kept.fitted(run, Query(hi=end))
    assert len(kept._cached) == 3


def test_answers_are_kept_by_content(page):
    key = page.runs()["second"]["id"]
    before = page.site._cache.hits
    a = page.ask("/api/fit", {"run": key, "to": 2.1e12, "quick": True}).body
    window = [None, 2.1e12]
    b = page.ask("/api/fit", {"run": key, "window": window, "quick": True}).body
    assert a == b and page.site._cache.hits == before + 1


def test_runs_over_each_other_come_with_a_verdict(page):
    ids = [run["id"] for run in page.runs().values()]
    found = page.ask("/api/compare", {"runs": ids}).json()
    assert [r["id"] for r in found["runs"]] == ids and len(found["pairs"]) == 1
    assert "first" in found["words"][0] and "second" in found["words"][0]


@pytest.mark.parametrize(
    "body, says",
    [
        ({"window": 3}, "window is two amounts"),
        ({"from": "much"}, "from is a number"),
        ({"from": -1}, "0 or more"),
        ({"to": 1e-9}, "a fit needs at least 5"),
        ({"axis": "parsecs"}, "no such axis"),
        ({"target": 3}, "a score in (0, 1]"),
        ({"level": 7}, "between 0 and 1"),
        ({"windw": [1, 2]}, "no field 'windw'"),
        ({"budget": list(range(99))}, "at most 16"),
    ],
)
def test_a_bad_question_gets_one_line(page, body, says):
    key = page.runs()["first"]["id"]
    answer = page.ask("/api/fit", {"run": key, **body})
    assert answer.status == 400 and says in answer.json()["error"]
    assert "\n" not in answer.json()["error"]


def test_what_is_not_there_is_not_found(page):
    for path in ("/api/runs/0123456789ab", "/api/studies/x", "/nothing", "/static/app.py"):
        assert page.ask(path).status == 404, path
    assert page.ask("/api/fit", {"run": "x"}).status == 404
    assert page.ask("/api/runs", method="DELETE").status == 405
    assert page.ask("/api/fit", raw=b"{", method="POST").status == 400
    assert page.ask("/api/fit", raw=b"[1]", method="POST").status == 400
    assert page.ask("/api/fit", raw=b" " * 70_000, method="POST").status == 413
    text = {"content-type": "text/plain"}
    assert page.ask("/api/fit", {"run": "x"}, headers=text).status == 415


def test_the_inside_of_a_run_is_that_of_the_report(page):
    key = page.runs()["first"]["id"]
    found = page.ask(f"/api/runs/{key}/inside").json()
    for word in ("Where the compute went", "Entropy", "Staleness", "entropy is low", "Recipe"):
        assert word in found["html"], word
    assert "two and two" in found["answers"] and found["answered"] == [300]
    assert " style=" not in found["html"] + found["answers"]
    assert "Episodes" not in found["html"]
    other = page.runs()["second"]["id"]
    played = page.ask(f"/api/runs/{other}/inside").json()["html"]
    for word in ("Episodes", "Turns and tool calls of an episode", "✗ wrong, step 3"):
        assert word in played, word
    assert "seed" in page.ask(f"/api/runs/{key}/diff?with={other}").json()["html"]


def test_everything_can_be_taken_away(page):
    key = page.runs()["first"]["id"]
    ask = f"?run={key}&to=0.2&axis=gpu_hours"
    png = page.ask(f"/api/export/figure.png{ask}&theme=dark")
    assert png.body.startswith(b"\x89PNG") and "first.png" in png.headers["content-disposition"]
    assert b"<svg" in page.ask(f"/api/export/figure.svg{ask}").body
    rows = list(csv.DictReader(io.StringIO(page.ask(f"/api/export/data.csv{ask}").text)))
    kinds = [row["kind"] for row in rows]
    assert kinds.count("fitted") == 21 and kinds.count("left out") == 10 and "forecast" in kinds
    data = page.ask(f"/api/export/data.json{ask}").json()
    assert len(data["run"]["compute"]) == 31 and data["fit"]["window"][1] == 0.2
    pack = zipfile.ZipFile(io.BytesIO(page.ask(f"/api/export/report.zip{ask}").body))
    report = pack.read("report.html").decode()
    assert "Inside the run" in report and "fit-first.png" in pack.namelist()
    both = "".join(f"&run={run['id']}" for run in page.runs().values())
    rows = list(csv.DictReader(io.StringIO(page.ask(f"/api/export/data.csv?{both[1:]}").text)))
    assert {row["run"] for row in rows} == {"first", "second"}
    data = page.ask(f"/api/export/data.json?{both[1:]}").json()
    assert len(data["runs"]) == 2 and len(data["pairs"]) == 1
    assert b"<svg" in page.ask(f"/api/export/figure.svg?{both[1:]}").body
    assert page.ask(f"/api/export/figure.exe{ask}").status == 404


def test_a_study_has_its_table_its_map_and_its_members(tmp_path):
    made_study(tmp_path / "study", variants=3, seeds=1, evals=21, steps=60)
    page = Page(tmp_path)
    (line,) = page.ask("/api/studies").json()
    assert line["name"] == "study" and line["members"] == 3
    found = page.ask(f"/api/studies/{line['id']}").json()
    assert len(found["table"]) == 3 and len(found["members"]) == 3
    assert all(member["run"] in {r["id"] for r in page.runs().values()}
               for member in found["members"])  # fmt: skip
    assert "<svg" in found["html"]["knob_map"] and "Against the reference" in found["html"]["table"]
    assert " style=" not in found["html"]["knob_map"]
    assert all(run["study"] == line["id"] for run in page.runs().values())
    pack = zipfile.ZipFile(io.BytesIO(page.ask(f"/api/studies/{line['id']}/report.zip").body))
    assert "Knob map" in pack.read("report.html").decode()


def test_an_empty_directory_is_an_empty_list(tmp_path):
    page = Page(tmp_path)
    assert page.ask("/api/runs").json() == [] and page.ask("/api/studies").json() == []


def test_every_address_is_in_the_reference(page):
    reference = Path(__file__).parents[2] / "docs" / "reference"
    text = (reference / "http.md").read_text()
    documented = json.loads((reference / "openapi.json").read_text())["paths"]
    paths = [route.path for route in page.site.routes]
    assert "/api/fit" in paths
    for path in paths:
        if path.startswith("/api/v1/"):
            assert path.replace(":path", "") in documented, path
            continue
        shown = path.replace("{id}", "ID").replace("{what}.{kind}", "figure.png")
        assert path in ("/", "/static/{name}", "/api/login", "/login") or shown in text, path


# -- what a curve shows ---------------------------------------------------------------------------


def short_run(path, lines):
    """A run with its first validations only."""
    run = made_run(path, n=31, steps=300, seed=2)
    kept = (run / "evals.jsonl").read_text().splitlines(keepends=True)[:lines]
    (run / "evals.jsonl").write_text("".join(kept))
    return run


def test_the_line_is_drawn_finely_and_through_the_points(page):
    key = page.runs()["first"]["id"]
    curve = page.ask("/api/fit", {"run": key, "quick": True, "budget": 5e12}).json()["curve"]
    inside = [x for x in curve["x"] if x <= curve["end"]]
    assert len(inside) > 40 and len(curve["x"]) > 60
    measured = [x for x in curve["used"][0] if x > 0]
    assert all(min(abs(x / k - 1) for k in inside) < 1e-4 for x in measured)
    assert min(abs(x / 5e12 - 1) for x in curve["x"]) < 1e-9


def test_a_quick_answer_has_a_sentence_of_its_own_window(page):
    key = page.runs()["first"]["id"]
    found = page.ask("/api/fit", {"run": key, "to": 2e12, "quick": True}).json()
    end = found["curve"]["end"]
    assert f"after {compute(end)} FLOPs" in found["words"][0]
    assert any(said.startswith(found["facts"][1]["name"]) for said in found["words"])


def test_now_says_what_the_list_says(page):
    run = page.runs()["first"]
    note = page.ask("/api/fit", {"run": run["id"], "quick": True}).json()["facts"][0]["note"]
    assert f"the last validation measured {run['pass_rate']:.3f}" in note


def test_a_young_run_is_no_error(tmp_path):
    short_run(tmp_path / "young", 3)
    page = Page(tmp_path)
    run = page.runs()["young"]
    assert run["problem"] == "3 of 5 validations"
    answer = page.ask("/api/fit", {"run": run["id"]})
    found = answer.json()
    assert answer.status == 200 and found["waiting"] == {"points": 3, "needed": 5}
    assert len(found["curve"]["used"][0]) == 3 and found["curve"]["x"] == []
    assert found["words"] == ["3 of 5 validations: the first forecast comes with the fifth."]
    too_narrow = page.ask("/api/fit", {"run": run["id"], "to": 1.0})
    assert too_narrow.status == 400 and "widen" in too_narrow.json()["error"]


def test_a_run_in_decline_has_no_gain_in_the_list(tmp_path):
    run = made_run(tmp_path / "fallen", n=31, steps=300)
    lines = [json.loads(line) for line in (run / "evals.jsonl").open()]
    for i, line in enumerate(lines):
        line["pass_rate"] = 0.86 - 0.7 * 0.7**i if i < 26 else 0.13 + 0.001 * i
    (run / "evals.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = Page(tmp_path).runs()["fallen"]["forecast"]
    assert found["alarm"] and found["next_doubling"]["gain"] is None


def test_the_advice_stands_beside_what_the_budget_is_worth(page):
    key = page.runs()["first"]["id"]
    asked = {"run": key, "budget": 5e12, "price": 1e-12, "value": 10, "quick": True}
    (budget,) = page.ask("/api/fit", asked).json()["cost"]["budget"]
    dear = page.ask("/api/fit", asked | {"price": 1e-9}).json()["cost"]["budget"][0]
    assert budget["compute"] == 5e12 and dear["expected_net"] < 0 < budget["expected_net"]
