"""Many runs at once: recipes, seeds as one curve, step metrics, pins, tags, notes and views."""

import json
import os
import shutil
import stat

import pytest
from made_records import made_run
from serving import Page

from made_study import made_study
from scalerl.serve import step_bins
from scalerl.serve.annotations import FILE
from scalerl.serve.curve_points import wilson
from scalerl.serve.step_bins import StepBins


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs")
    study = made_study(path / "made", variants=2, seeds=3, evals=21, steps=60)
    for member in study.members:
        shutil.move(member.path, path / member.name)
    shutil.rmtree(study.path)
    (path / "log.csv").write_text("step,val_acc\n" + "".join(f"{i},0.{i}\n" for i in range(10, 30)))
    return path


@pytest.fixture(scope="module")
def page(runs):
    return Page(runs)


def ids(page, *names):
    known = page.runs()
    return [known[name]["id"] for name in names]


def test_seeds_of_a_recipe_share_its_id(page):
    found = page.runs()
    by_recipe = {}
    for name, run in found.items():
        by_recipe.setdefault(run["recipe_id"], []).append((name, run["seed"]))
    assert sorted(len(each) for each in by_recipe.values()) == [1, 3, 3]
    assert [seed for _, seed in by_recipe[found["lr-0.00011-s0"]["recipe_id"]]] == [0, 1, 2]
    assert found["log"]["recipe_id"] is None and found["log"]["seed"] is None


def test_recipes_tell_what_differs_and_what_does_not(page):
    found = page.ask("/api/recipes").json()
    assert found["same"]["batch.generations"] == 16
    assert set(found["differ"]) == {"seed", "optimiser.lr", "name"}
    rate = found["differ"]["optimiser.lr"]
    value = dict(zip(found["runs"], (rate["values"][i] for i in rate["of"]), strict=True))
    (key,) = ids(page, "lr-0.00011-s2")
    assert value[key] == pytest.approx(1.1e-4)
    assert len(found["runs"]) == 6


def test_a_recipe_that_changes_is_read_again(tmp_path):
    made_run(tmp_path / "one", n=8, steps=20)
    page = Page(tmp_path)
    assert page.ask("/api/recipes").json()["same"]["batch.generations"] == 16
    toml = tmp_path / "one" / "recipe.toml"
    toml.write_text(toml.read_text().replace("generations = 16", "generations = 8"))
    page.refresh()
    assert page.ask("/api/recipes").json()["same"]["batch.generations"] == 8


def test_seeds_are_compared_as_one_curve(page):
    names = [f"{each}-s{seed}" for each in ("scalerl+tiny", "lr-0.00011") for seed in range(3)]
    asked = {"runs": ids(page, *names), "pool": True}
    found = page.ask("/api/compare", asked).json()
    assert len(found["runs"]) == 2 and len(found["pairs"]) == 1
    assert found["pairs"][0]["scope"] == "recipes"
    first = found["runs"][0]
    assert first["ids"] == asked["runs"][:3] and first["seed_sd"] > 0
    single = page.ask("/api/compare", {"runs": asked["runs"][:1]}).json()["runs"][0]
    assert len(first["curve"]["used"][0]) == 3 * len(single["curve"]["used"][0])
    # Three seeds show the curve three times: its ceiling is known better.
    assert first["interval"][1] - first["interval"][0] < (
        single["interval"][1] - single["interval"][0]
    )
    quick = page.ask("/api/compare", asked | {"quick": True}).json()
    assert quick["runs"] == found["runs"] and quick["pairs"] == []


def test_points_have_a_step_and_an_interval(page):
    (key,) = ids(page, "scalerl+tiny-s0")
    curve = page.ask(f"/api/runs/{key}").json()["curve"]
    assert curve["step"][0] == 0 and curve["step"][-1] == 60
    assert all(
        low < y < high
        for low, y, high in zip(curve["low"], curve["score"], curve["high"], strict=True)
    )
    (log,) = ids(page, "log")
    assert "low" not in page.ask(f"/api/runs/{log}").json()["curve"]


def test_an_interval_is_wilsons(page):
    import numpy as np

    low, high = wilson(np.array([0.0, 0.9]), np.array([10.0, 1000.0]))
    # Newcombe 1998, with z = 1.645.
    assert low[0] == pytest.approx(0.0, abs=1e-9) and high[0] == pytest.approx(0.2130, abs=1e-3)
    assert low[1] == pytest.approx(0.8833, abs=1e-3)


def test_events_stand_at_their_compute(tmp_path):
    made_run(tmp_path / "one", n=31, steps=300)
    page = Page(tmp_path)
    (key,) = ids(page, "one")
    events = page.ask(f"/api/runs/{key}").json()["events"]
    assert [(e["step"], e["event"]) for e in events] == [(40, "warning"), (90, "resume")]
    # The run's axis is FLOPs, 1e10 a step.
    assert events[0]["x"] == pytest.approx(4e11)


# -- step metrics ---------------------------------------------------------------------------------


def test_step_metrics_have_a_meaning_and_a_unit(page):
    found = {each["name"]: each for each in page.ask("/api/steps/metrics").json()}
    assert (
        found["length/mean"]["unit"] == "tokens" and "rollouts" in found["length/mean"]["meaning"]
    )
    assert {"reward", "staleness/max", "ledger/spent/train", "play/turns"} <= found.keys()
    assert "prompts" not in found


def test_a_metric_of_several_runs(page):
    one, two = ids(page, "scalerl+tiny-s0", "scalerl+tiny-s1")
    path = f"/api/steps?run={one}&run={two}&metric=reward&metric=length/mean&metric=play/turns"
    found = page.ask(path).json()
    assert [run["id"] for run in found["runs"]] == [one, two] and found["left_out"] == []
    line = found["runs"][0]
    assert line["step"] == list(range(1, 61)) and line["every"] == 1
    assert len(line["metrics"]["reward"]["mean"]) == 60
    assert "play/turns" not in line["metrics"] and "play/turns" not in line["known"]
    part = page.ask(f"{path}&from=10&to=20&points=5").json()["runs"][0]
    assert part["step"] == [12, 15, 18, 20] and part["every"] == 3
    mean = line["metrics"]["reward"]["mean"][9:12]
    assert part["metrics"]["reward"]["mean"][0] == pytest.approx(sum(mean) / 3, rel=1e-4)
    assert part["metrics"]["reward"]["low"][0] == pytest.approx(min(mean), rel=1e-4)


def test_a_log_without_steps_is_left_out(page):
    one, log = ids(page, "scalerl+tiny-s0", "log")
    found = page.ask(f"/api/steps?run={one}&run={log}&metric=reward").json()
    assert len(found["runs"]) == 1 and "log" in found["left_out"][0]


@pytest.mark.parametrize(
    "query", ["run=x&metric=reward", "metric=reward", "run=ID", "run=ID&metric=a&from=nan"]
)
def test_a_wrong_question_about_steps_is_refused(page, query):
    (one,) = ids(page, "scalerl+tiny-s0")
    answer = page.ask(f"/api/steps?{query.replace('ID', one)}")
    assert answer.status in (400, 404) and answer.json()["error"]


def write_steps(path, numbers, mode="a", **more):
    with (path / "steps.jsonl").open(mode) as file:
        for step in numbers:
            line = {"step": step, "reward": float(step), "metrics": {"reward/format": -step}}
            file.write(json.dumps(line | more) + "\n")


@pytest.mark.parametrize("pieces", [[100], [1, 2, 3, 94], [7] * 15])
def test_stretches_are_the_same_however_a_record_is_read(tmp_path, monkeypatch, pieces):
    monkeypatch.setattr(step_bins, "MAX_BINS", 8)
    bins, step = StepBins(tmp_path), 0
    for count in pieces:
        write_steps(tmp_path, range(step + 1, step + 1 + count))
        step += count
        bins.refresh()
    found = bins.lines(["reward", "metrics/reward/format"], 8)
    every = found["every"]
    assert bins.count == step and every == (16 if step < 128 else 32)
    for i, end in enumerate(found["step"]):
        first = i * every + 1
        assert end == min(first + every - 1, step)
        line = {k: v[i] for k, v in found["metrics"]["reward"].items()}
        assert line == pytest.approx({"mean": (first + end) / 2, "low": first, "high": end})
    assert found["metrics"]["metrics/reward/format"]["low"][0] == -every


def test_steps_that_a_resume_cut_are_gone(tmp_path):
    write_steps(tmp_path, range(1, 21))
    bins = StepBins(tmp_path)
    bins.refresh()
    write_steps(tmp_path, range(1, 6), mode="w")
    bins.refresh()
    assert bins.lines(["reward"], 100)["step"] == [1, 2, 3, 4, 5]


def test_a_metric_that_comes_later_and_one_that_is_no_number(tmp_path):
    write_steps(tmp_path, range(1, 4), entropy=None, loss=float("inf"))
    write_steps(tmp_path, range(4, 6), metrics={"new": 2.0}, entropy="much")
    bins = StepBins(tmp_path)
    bins.refresh()
    found = bins.lines(["metrics/new", "entropy", "loss"], 100)["metrics"]
    assert found["metrics/new"]["mean"] == [None, None, None, 2.0, 2.0]
    assert "entropy" not in found and "loss" not in found


# -- annotations ----------------------------------------------------------------------------------


def test_pins_tags_and_notes_are_kept_beside_the_runs(tmp_path):
    made_run(tmp_path / "one", n=8, steps=20)
    made_run(tmp_path / "two", n=8, steps=20, seed=1)
    before = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    page = Page(tmp_path)
    one, two = ids(page, "one", "two")
    said = {"pinned": True, "add": ["best", "paper, fig 2"], "note": "the one to\nbeat"}
    answer = page.ask("/api/annotations", {"runs": [one], **said})
    assert answer.status == 200
    page.refresh()
    found = page.runs()["one"]
    assert found["pinned"] and found["tags"] == ["best", "paper fig 2"]
    assert found["note"] == "the one to\nbeat" and not page.runs()["two"]["pinned"]
    page.ask("/api/annotations", {"runs": [one, two], "hidden": True, "remove": ["best"]})
    # Another server, and the directory under another name.
    moved = tmp_path.rename(tmp_path.with_name("moved"))
    again = Page(moved).runs()
    assert again["one"]["tags"] == ["paper fig 2"] and again["two"]["hidden"]
    now = sorted(path for path in moved.rglob("*") if path.is_file())
    assert [p for p in now if p.name != FILE] == [moved / p.relative_to(tmp_path) for p in before]
    assert len(now) == len(before) + 1


def test_an_annotation_that_is_taken_back_leaves_nothing(tmp_path):
    made_run(tmp_path / "one", n=8, steps=20)
    page = Page(tmp_path)
    page.ask("/api/annotations", {"runs": ids(page, "one"), "pinned": True})
    page.ask("/api/annotations", {"runs": ids(page, "one"), "pinned": False})
    assert json.loads((tmp_path / FILE).read_text())["runs"] == {}


@pytest.mark.parametrize(
    "asked",
    [{}, {"pinned": 1}, {"tags": "best"}, {"note": 3}, {"note": "x" * 5000}, {"colour": "red"}],
)
def test_a_wrong_annotation_is_refused(page, runs, asked):
    answer = page.ask("/api/annotations", {"runs": ids(page, "log"), **asked})
    assert answer.status == 400 and answer.json()["error"]
    assert not (runs / FILE).exists()


def test_annotations_of_another_origin_are_refused(page, runs):
    body = {"runs": ids(page, "log"), "pinned": True}
    answer = page.ask("/api/annotations", body, headers={"origin": "http://evil.example"})
    assert answer.status == 403
    plain = page.ask("/api/annotations", body, headers={"content-type": "text/plain"})
    assert plain.status == 415 and not (runs / FILE).exists()


def test_a_damaged_file_is_never_overwritten(tmp_path):
    made_run(tmp_path / "one", n=8, steps=20)
    (tmp_path / FILE).write_text('{"runs": {"one": {"note": "hours of work"')
    page = Page(tmp_path)
    answer = page.ask("/api/annotations", {"runs": ids(page, "one"), "pinned": True})
    assert answer.status == 400 and FILE in answer.json()["error"]
    assert "hours of work" in (tmp_path / FILE).read_text()


def test_nonsense_in_the_file_is_passed_over(tmp_path):
    made_run(tmp_path / "one", n=8, steps=20)
    runs = {"one": {"pinned": "yes", "tags": [1, "a", ["b"]], "note": 4}, "two": []}
    (tmp_path / FILE).write_text(json.dumps({"runs": runs, "views": [{"name": 1}, 3]}))
    page = Page(tmp_path)
    found = page.runs()["one"]
    assert (found["pinned"], found["tags"], found["note"]) == (False, ["a"], "")
    assert page.ask("/api/views").json() == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_may_not_be_written_is_said(tmp_path):
    made_run(tmp_path / "one", n=8, steps=20)
    page = Page(tmp_path)
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        answer = page.ask("/api/annotations", {"runs": ids(page, "one"), "pinned": True})
    finally:
        tmp_path.chmod(stat.S_IRWXU)
    assert answer.status == 400 and "cannot be written" in answer.json()["error"]


def test_views_are_saved_and_removed(tmp_path):
    made_run(tmp_path / "one", n=8, steps=20)
    page = Page(tmp_path)
    page.ask("/api/views", {"name": " seeds ", "address": "#/?group=1"})
    assert Page(tmp_path).ask("/api/views").json() == [{"name": "seeds", "address": "#/?group=1"}]
    assert page.ask("/api/views", {"name": "x", "address": "https://evil.example"}).status == 400
    assert page.ask("/api/views", {"name": "seeds", "address": None}).json() == []
