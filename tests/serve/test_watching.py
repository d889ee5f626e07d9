"""Runs as they go: found, read on, told of."""

import json
import shutil

import numpy as np
import pytest
from made_records import made_run
from serving import Page
from torch_free_events import write_events

from scalerl import load_run
from scalerl.cli import main


def csv_rows(start, stop):
    return "".join(f"{i * 10},{0.2 + 0.5 * i / (i + 20):.4f}\n" for i in range(start, stop))


def test_runs_logs_and_begun_runs_are_listed_with_their_status(tmp_path):
    made_run(tmp_path / "a" / "ours", n=12, steps=40)
    (tmp_path / "log.csv").write_text("step,val_acc\n" + csv_rows(1, 12))
    begun = tmp_path / "begun"
    begun.mkdir()
    shutil.copy(tmp_path / "a" / "ours" / "recipe.toml", begun)
    (begun / "status.json").write_text('{"step": 0, "waits_for": "the first rollouts"}')
    runs = Page(tmp_path).runs()
    assert set(runs) == {"ours", "log", "begun"}
    ours, log = runs["ours"], runs["log"]
    assert ours["status"] == "ended" and ours["step"] == 40 and ours["points"] == 12
    assert ours["forecast"]["ceiling"] and ours["warnings"] == 1
    assert log["status"] == "quiet" and log["points"] == 11 and log["unit"] == "optimizer steps"
    assert runs["begun"]["points"] == 0 and runs["begun"]["problem"] == "no validation yet"
    assert ours["id"] == Page(tmp_path).runs()["ours"]["id"]


def test_two_directories_of_one_name_are_kept_apart(tmp_path):
    for name, seed in (("a", 0), ("b", 1)):
        made_run(tmp_path / name / "runs" / "same", n=8, steps=20, seed=seed)
    page = Page(tmp_path / "a" / "runs", tmp_path / "b" / "runs")
    found = page.ask("/api/runs").json()
    assert [run["where"] for run in found] == ["a/runs/same", "b/runs/same"]
    assert len({run["id"] for run in found}) == 2


def test_a_run_that_grows_is_told_of_with_its_new_points_alone(tmp_path):
    whole = made_run(tmp_path / "whole", n=21, steps=100)
    run = tmp_path / "runs" / "grows"
    run.mkdir(parents=True)
    shutil.copy(whole / "recipe.toml", run)
    lines = (whole / "evals.jsonl").read_text().splitlines(keepends=True)
    (run / "evals.jsonl").write_text("".join(lines[:10]))
    page = Page(tmp_path / "runs")
    page.events.clear()
    with (run / "evals.jsonl").open("a") as file:
        file.write("".join(lines[10:12]) + lines[12][:20])
    page.refresh()
    news = [n for n in page.events if n["kind"] == "run"]
    assert news[0]["from"] == 10 and len(news[0]["new"][0]) == 2
    assert news[0]["run"]["points"] == 12
    assert news[-1]["run"]["forecast"] is not None


def test_new_runs_are_noticed_and_gone_ones_let_go(tmp_path):
    made_run(tmp_path / "one", n=8, steps=20)
    page = Page(tmp_path)
    made_run(tmp_path / "two", n=8, steps=20, seed=1)
    page.refresh()
    assert set(page.runs()) == {"one", "two"}
    shutil.rmtree(tmp_path / "one")
    page.events.clear()
    page.refresh()
    assert set(page.runs()) == {"two"}
    assert [n["kind"] for n in page.events] == ["gone"]


def test_a_csv_that_grows_is_read_on_by_offset_and_is_what_is_read_whole(tmp_path, monkeypatch):
    from scalerl.serve import sources

    log = tmp_path / "log.csv"
    log.write_text("step,val_acc\n" + csv_rows(1, 30))
    page = Page(tmp_path)
    whole = []
    read = sources.Log._read_whole
    monkeypatch.setattr(sources.Log, "_read_whole", lambda self: (whole.append(1), read(self)))
    for start in (30, 31, 60):
        with log.open("a") as file:
            file.write(csv_rows(start, start + 29 if start > 30 else 31))
        page.refresh()
    assert not whole
    (entry,) = page.catalogue.entries.values()
    expected = load_run(log)
    assert len(entry.run) == len(expected) and np.array_equal(entry.run.score, expected.score)
    assert np.array_equal(entry.run.compute, expected.compute)
    assert page.runs()["log"]["status"] == "growing"
    with log.open("a") as file:  # the run was started again: that is no going on
        file.write(csv_rows(1, 20))
    entry.source._due = 0.0
    page.refresh()
    assert whole


@pytest.mark.parametrize("kind", ["tensorboard", "jsonl", "trainer_state"])
def test_logs_of_others_grow_on_the_page(tmp_path, kind):
    def write(n):
        rows = [(i * 10, 0.2 + 0.5 * i / (i + 20)) for i in range(1, n)]
        if kind == "tensorboard":
            write_events(tmp_path / "tb" / "events.out.tfevents.1.host", rows)
            return
        if kind == "jsonl":
            text = "".join(json.dumps({"step": s, "eval/accuracy": v}) + "\n" for s, v in rows)
            (tmp_path / "eval_log.jsonl").write_text(text)
            return
        history = [{"step": s, "eval_accuracy": v} for s, v in rows]
        (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": history}))

    write(10)
    page = Page(tmp_path)
    assert [r["points"] for r in page.runs().values()] == [9]
    write(15)
    for entry in page.catalogue.entries.values():
        entry.source._due = 0.0
    page.refresh()
    assert [r["points"] for r in page.runs().values()] == [14]


def test_files_of_one_run_are_one_run_as_for_the_commands(tmp_path, capsys):
    folder = tmp_path / "exp"
    folder.mkdir()
    (folder / "train.csv").write_text("step,reward\n" + csv_rows(1, 40))
    (folder / "eval.csv").write_text("step,val_acc\n" + csv_rows(1, 20))
    page = Page(tmp_path)
    assert main(["fit", str(tmp_path), "--json"]) == 0
    assert [f["run"] for f in json.loads(capsys.readouterr().out)] == list(page.runs())


def test_a_broken_log_says_why_and_leaves_the_others_alone(tmp_path):
    (tmp_path / "bad.csv").write_text("a,b\n1,x\n")
    (tmp_path / "log.csv").write_text("step,val_acc\n" + csv_rows(1, 12))
    runs = Page(tmp_path).runs()
    assert runs["log"]["forecast"] is not None
    assert "bad" in runs["bad.csv"]["problem"] and runs["bad.csv"]["points"] == 0


def test_an_opened_run_of_any_length_keeps_few_lines(tmp_path, monkeypatch):
    from scalerl.serve import run_details

    monkeypatch.setattr(run_details, "MAX_LINES", 40)
    run = made_run(tmp_path / "long", n=10, steps=900)
    page = Page(tmp_path)
    (entry,) = page.catalogue.entries.values()
    opened = page.site._open_runs.open(entry)
    record = opened.record()
    assert len(record.steps) <= 42 and record.steps[-1].step == 900 == record.total_steps
    apart = {b.step - a.step for a, b in zip(record.steps[:-2], record.steps[1:-1], strict=True)}
    assert len(apart) == 1
    lines = (run / "steps.jsonl").read_text().splitlines()
    with (run / "steps.jsonl").open("a") as file:
        file.write(json.dumps(json.loads(lines[-1]) | {"step": 901}) + "\n")
    assert opened.record().steps[-1].step == 901
