"""The routes of recorded episodes."""

import json
from pathlib import Path

import pytest
from made_episodes import episode, made_episodes
from serving import Page

from scalerl.runs.lines import EpisodeLine
from scalerl.runs.store import encode

FIXTURES = Path(__file__).parents[1] / "fixtures" / "rollouts"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs")
    made_episodes(path / "run")
    return path


@pytest.fixture(scope="module")
def page(folder):
    return Page(folder)


@pytest.fixture(scope="module")
def base(page):
    return f"/api/v1/runs/{page.runs()['run']['id']}"


def test_the_newest_come_first_and_pages_follow_one_another(page, base):
    found = page.ask(f"{base}/episodes?limit=50").json()
    assert (found["total"], found["matched"], found["complete"]) == (120, 120, True)
    assert [e["step"] for e in found["episodes"][:3]] == [9, 9, 9]
    ids = [e["id"] for e in found["episodes"]]
    while found["next"]:
        found = page.ask(f"{base}/episodes?limit=50&after={found['next']}").json()
        ids += [e["id"] for e in found["episodes"]]
    assert len(ids) == len(set(ids)) == 120


def test_a_line_has_what_a_list_shows(page, base):
    (found,) = page.ask(f"{base}/episodes?text=because of 42&source=training").json()["episodes"]
    assert found == {
        "id": "training:42", "step": 5, "source": "training", "prompt": "sums/1",
        "task": "long sums", "reward": 0.5, "correct": False, "finish": "turns",
        "truncated": False, "tokens": 10, "turns": 1, "tool_calls": 0, "tool_failed": True,
        "why": "because of 42", "preview": "answer 42é",
    }  # fmt: skip


@pytest.mark.parametrize(
    "query, holds",
    [
        ("source=validation", lambda e, i: e["source"] == "validation"),
        ("step_from=3&step_to=4", lambda e, i: 3 <= i // 8 <= 4),
        ("task=long sums", lambda e, i: i % 3 == 0),
        ("prompt=sums/2", lambda e, i: i % 8 // 2 == 2),
        ("finish=length", lambda e, i: i % 4 == 1),
        ("correct=true", lambda e, i: i % 5 == 4 and i % 10 != 9),
        ("correct=none", lambda e, i: i % 10 == 9),
        ("truncated=true", lambda e, i: i % 4 == 1),
        ("tool_failed=true&truncated=false", lambda e, i: i % 7 == 0 and i % 4 != 1),
        ("reward_min=0.5&reward_max=0.75", lambda e, i: i % 5 in (2, 3) and i % 10 != 9),
        ("length_min=10", lambda e, i: i >= 10),
        ("text=ANSWER 7", lambda e, i: i == 7 or i >= 70),
        ("text=é", lambda e, i: True),
        ("regex=answer [12]é", lambda e, i: i in (1, 2)),
        ("regex=^because of .5$&text=sw", lambda e, i: i % 10 == 5 and i > 10),
    ],
)  # fmt: skip
def test_a_filter_gives_the_episodes_that_meet_it(page, base, query, holds):
    found = page.ask(f"{base}/episodes?limit=500&{query}".replace(" ", "%20")).json()
    everything = page.ask(f"{base}/episodes?limit=500").json()["episodes"]
    wanted = {e["id"] for e in everything if holds(e, int(e["id"].partition(":")[2]))}
    assert {e["id"] for e in found["episodes"]} == wanted and found["matched"] == len(wanted)
    assert wanted and found["total"] == 120


@pytest.mark.parametrize("sort", ["newest", "oldest", "reward", "-reward", "length", "-length"])
def test_orders(page, base, sort):
    found = page.ask(f"{base}/episodes?limit=500&sort={sort}").json()["episodes"]
    key = {"newest": lambda e: -e["step"], "oldest": lambda e: e["step"],
           "reward": lambda e: 9 if e["reward"] is None else e["reward"],
           "-reward": lambda e: 9 if e["reward"] is None else -e["reward"],
           "length": lambda e: e["tokens"], "-length": lambda e: -e["tokens"]}[sort]  # fmt: skip
    assert [key(e) for e in found] == sorted(map(key, found))


def test_an_episode_has_every_token(page, base):
    found = page.ask(f"{base}/episodes/training:42").json()
    assert (found["question"], found["why"], found["cut"]) == ("2+2=", "because of 42", False)
    given, written = found["rows"][0]
    assert given["source"] == "context" and given["logprobs"] is None
    assert written["source"] == "policy" and "".join(written["tokens"]) == written["text"]
    assert len(written["logprobs"]) == len(written["token_ids"]) == written["n_tokens"] == 10
    assert written["versions"] == [[5, 8], [6, 2]] and written["ratios"] is None
    assert found["play"]["turns"] == 1
    answer = page.ask(f"{base}/episodes/validation:3").json()
    assert answer["rows"][0][1]["logprobs"] is None and answer["source"] == "validation"


def test_one_prompt_at_every_step(page, base):
    found = page.ask(f"{base}/prompts/sums/1/episodes?source=validation").json()
    assert [e["step"] for e in found["episodes"]] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert {e["prompt"] for e in found["episodes"]} == {"sums/1"}


def test_histograms_have_the_same_bins_for_all_and_for_the_matched(page, base):
    found = page.ask(f"{base}/episodes/histograms?correct=false").json()
    assert sum(found["reward"]["all"]) == 108 and sum(found["reward"]["matched"]) == 96
    assert len(found["reward"]["edges"]) == 6 and found["reward"]["matched"][-1] == 0
    assert sum(found["length"]["all"]) == 120
    steps = found["step"]
    assert sum(steps["all"]) == 120 and steps["edges"][0] == 0 and steps["edges"][-1] == 10
    assert sum(steps["matched"]) == 96
    assert found["by"]["correct"] == {"false": 96}
    assert sum(found["by"]["task"].values()) == 96 and set(found["by"]["task"]) == {
        "sums", "long sums"
    }  # fmt: skip
    assert found["by"]["source"]["training"] == 64


@pytest.mark.parametrize(
    "path, status, says",
    [
        ("episodes?stp=3", 400, "no 'stp'"),
        ("episodes?step_from=x", 400, "step_from is a whole number"),
        ("episodes?limit=0", 400, "limit is 1 to 500"),
        ("episodes?sort=best", 400, "sort is one of newest"),
        ("episodes?finish=stopped", 400, "finish is one of stop"),
        ("episodes?source=tests", 400, "there are training, validation"),
        ("episodes?regex=(", 400, "unclosed group"),
        ("episodes?regex=(a)%5C1", 400, "backreferences are not supported"),
        ("episodes?regex=(%5Cw%7B60%7D)%7B60%7D", 400, "repetitions"),
        ("episodes?text=" + "x" * 600, 400, "at most 500"),
        ("episodes?after=training:7000", 400, "begin again"),
        ("episodes?reward_min=nan", 400, "reward_min is a number"),
        ("episodes/training:80", 404, "no such episode"),
        ("episodes/training:-1", 404, "no such episode"),
        ("episodes/tests:1", 404, "no such episode"),
    ],
)
def test_a_bad_question_gets_one_line(page, base, path, status, says):
    answer = page.ask(f"{base}/{path}")
    assert answer.status == status and says in answer.json()["error"]
    assert "\n" not in answer.json()["error"]


def test_a_run_without_episodes_has_an_empty_list(tmp_path):
    made_episodes(tmp_path / "run", training=0, validation=0)
    page = Page(tmp_path)
    key = page.runs()["run"]["id"]
    found = page.ask(f"/api/v1/runs/{key}/episodes").json()
    assert found["total"] == 0 and found["episodes"] == [] and found["next"] is None
    empty = page.ask(f"/api/v1/runs/{key}/episodes/histograms").json()
    assert empty["reward"] == {"edges": [], "all": [], "matched": []}
    assert page.ask("/api/v1/runs/none/episodes").status == 404


def test_a_run_that_grows_and_goes_back_is_followed(tmp_path):
    store = made_episodes(tmp_path / "run", validation=0)
    page = Page(tmp_path)
    base = f"/api/v1/runs/{page.runs()['run']['id']}"
    assert page.ask(f"{base}/episodes").json()["total"] == 80
    store.append_episodes([encode(episode(80))], 10**9)
    found = page.ask(f"{base}/episodes?limit=1").json()
    assert found["total"] == 81 and found["episodes"][0]["id"] == "training:80"
    store.cut_after(EpisodeLine, 2)
    assert page.ask(f"{base}/episodes").json()["total"] == 24
    path = store.path / EpisodeLine.FILE
    # In place, so that neither size nor inode show it.
    path.write_bytes(path.read_bytes().replace(b"because of 7", b"because_of_7"))
    found = page.ask(f"{base}/episodes/training:7").json()
    assert found["why"] == "because_of_7"
    assert json.dumps(found)


def test_rollouts_of_another_framework_have_the_same_routes():
    page = Page(FIXTURES)
    runs = page.ask("/api/runs").json()
    key = next(run["id"] for run in runs if run["where"] == "rollouts/verl")
    found = page.ask(f"/api/v1/runs/{key}/episodes?correct=false&sort=oldest").json()
    assert (found["total"], found["matched"], found["length_unit"]) == (8, 4, "characters")
    one = page.ask(f"/api/v1/runs/{key}/episodes/{found['episodes'][0]['id']}").json()
    assert [s["source"] for s in one["rows"][0]] == ["context", "policy"]
    assert one["rows"][0][1]["tokens"] is None
