"""The held-out prompts at several temperatures: each a curve of its own, in one run."""

import json

import pytest

from scalerl import Recipe, load_run, train
from scalerl.pipeline.setup import RunSetup

SMALL = ["placement.backend=inline", "batch.prompts=4", "batch.generations=4", "budget.steps=2",
         "validation.prompts=6", "validation.k=3", "validation.every=1",
         "validation.also_temperatures=[0, 0.6]", "task.options.prompts=200"]  # fmt: skip


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    out = tmp_path_factory.mktemp("temperatures") / "run"
    train(Recipe.load("scalerl", "tiny", overrides=SMALL), out)
    return out


def test_each_further_temperature_is_a_curve_of_its_own(out):
    evals = [json.loads(line) for line in (out / "evals.jsonl").read_text().splitlines()]
    for line in evals:
        assert (line["n_prompts"], line["k"]) == (6, 3)
        shapes = {t: (s["n_prompts"], s["k"]) for t, s in line["temperatures"].items()}
        assert shapes == {"0": (6, 1), "0.6": (6, 3)}, "all greedy answers would be the same"
        assert "downstream" not in line
    for y, size in (("pass_rate", 18), ("temperatures/0/pass_rate", 6),
                    ("temperatures/0.6/pass_rate", 18)):  # fmt: skip
        run = load_run(str(out), y=y)
        assert len(run) == len(evals) == 3
        assert list(run.n_eval) == [size] * 3, "each with the size of its own set"


def test_the_answers_of_each_temperature_are_kept_as_a_set(out):
    found = json.loads((out / "evals" / "step_1.json").read_text())["sets"]
    assert set(found) == {"", "temperature 0", "temperature 0.6"}
    assert set(found[""]) == set(found["temperature 0"])
    assert all(asked == 1 for _, _, asked in found["temperature 0"].values())


def test_greedy_answers_do_not_depend_on_seeds(out, tmp_path):
    """The same weights and prompts at temperature 0, drawn with another seed."""
    again = Recipe.load("scalerl", "tiny", overrides=[*SMALL, "seed=5"])
    train(again, tmp_path / "again")
    first, other = (
        json.loads((path / "evals" / "step_0.json").read_text())["sets"]
        for path in (out, tmp_path / "again")
    )
    assert first["temperature 0"] == other["temperature 0"]
    assert first["temperature 0.6"] != other["temperature 0.6"]


def test_the_cache_has_room_for_all_of_it():
    alone = RunSetup.from_recipe(
        Recipe.load("scalerl", "tiny", overrides=[*SMALL, "validation.also_temperatures=[]"])
    )
    both = RunSetup.from_recipe(Recipe.load("scalerl", "tiny", overrides=SMALL))
    assert alone.validation_slots == 18
    assert both.validation_slots == 18 + 6 + 18
