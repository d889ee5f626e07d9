"""Variants compared on the very prompts that both were asked."""

import json
from dataclasses import replace

import numpy as np
import pytest

from made_study import made_study
from paired import covered
from scalerl import Study
from scalerl.study.paired import SamePrompts, paired, seed_variance


def made_scores(seeds, shift, rng, prompts=200, seed_sd=0.0):
    hard = np.linspace(-3, 3, prompts)
    logit = shift + hard + seed_sd * rng.standard_normal((seeds, 1))
    return rng.binomial(4, 1 / (1 + np.exp(-logit))) / 4


def test_what_makes_a_prompt_hard_cancels():
    rng = np.random.default_rng(0)
    asked = SamePrompts(made_scores(3, 0.0, rng), made_scores(3, 0.4, rng))
    difference, half, apart = paired(asked, 0.01**2, 6.0)
    assert difference - half > 0, "told apart on the same prompts"
    assert difference - apart < 0, "and not by their means alone"


def test_the_spread_between_seeds_widens_the_interval_however_many_prompts_there_are():
    rng = np.random.default_rng(1)
    tables = [made_scores(3, 0.0, rng, seed_sd=0.6) for _ in range(6)]
    tau2, freedom = seed_variance(tables)
    assert 0.05 < tau2**0.5 < 0.15 and freedom == 18
    calm, _ = seed_variance([made_scores(3, 0.0, rng) for _ in range(6)])
    assert calm < 0.01**2, "luck of sampling is not the seeds'"
    alone, freedom = seed_variance([made_scores(1, 0.0, rng)])
    assert alone == pytest.approx(0.01**2) and freedom == 6, "of one seed: what is usual"
    asked = SamePrompts(tables[0], tables[1])
    assert paired(asked, tau2, freedom)[1] > 2 * paired(asked, calm, freedom)[1]


def test_ninety_percent_intervals_hold_the_truth_as_often_as_they_say():
    for seeds, seed_sd in ((2, 0.07), (3, 0.15)):
        found = covered(seeds, 200, seed_sd, studies=60)
        assert 0.82 < found["coverage"] < 0.97
        assert found["times_narrower"] > 1.4


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    path = tmp_path_factory.mktemp("paired") / "study"
    made_study(path, variants=5, seeds=2, evals=25, steps=120)
    return Study(path)


def test_rows_have_the_difference_on_the_same_prompts(study):
    rows = {row["variant"]: row for row in study.to_dict()["table"]}
    reference, lower, _, same, higher = rows.values()
    assert reference["paired"] is None
    found = lower["paired"]
    assert set(found) >= {"difference", "interval", "at", "n_prompts", "seeds"}
    assert found["interval"][1] < 0 < higher["paired"]["interval"][0]
    assert found["n_prompts"] == 210 and found["seeds"] == {"reference": 2, "variant": 2}
    assert found["at"]["steps"] == {"reference": [120, 120], "variant": [120, 120]}
    assert found["narrower"] > 1.15
    low, high = same["paired"]["interval"]
    assert low < 0 < high


def test_without_answers_to_the_same_prompts_nothing_is_said(study):
    member = study.members[-1]
    kept = member.path / "evals" / "step_120.json"
    text = kept.read_text()
    try:
        others = {f"other/{i}": [1, 4, 4] for i in range(210)}
        kept.write_text(json.dumps({"step": 120, "sets": {"": others}, "answers": []}))
        rows = study.table()
        assert rows[-1].paired is None and rows[1].paired is not None
        kept.unlink()
        assert study.table()[-1].paired is None
    finally:
        kept.write_text(text)


def test_the_words_say_how_much_narrower_it_is(study):
    found = study.table()[1].paired
    said = str(replace(found, difference=-0.05, interval=(-0.07, -0.03)))
    assert said.startswith("-0.050 [-0.070, -0.030] on the same 210 prompts, ")
    assert said.endswith(" times narrower than unpaired")
