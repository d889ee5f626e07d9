"""What a race does next, from curves alone; then a real one."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "curves"))
from simulate import PAPER, curve
from test_running import Heard, record
from test_whole_studies import SMALL, ended, lines, start

from scalerl import Study, fit
from scalerl.study.members import next_limits, portions, read_progress
from scalerl.study.race import RaceCache, Racer, narrowing, race
from scalerl.study.running import Runner

WHOLE = 10 * PAPER.C_mid


def racer(variant, seed, law, share, **more):
    """A member that has had this share of a budget of 10 C_mid and 40 validations."""
    name = f"{variant}-s{seed}"
    rng = np.random.default_rng((seed, *variant.encode()))
    compute, score = curve(law, WHOLE, rng, n=40)
    seen = max(round(40 * share), 6)
    found = fit(compute[:seen], score[:seen], name=name)
    found = replace(found, run=found.run.replace(group=variant))
    return Racer(name, variant, found, share, 0.15, 0.05, **more)


def members(**laws):
    return [racer(v, s, law, share) for v, (law, share) in laws.items() for s in range(2)]


@pytest.fixture(scope="module")
def three():
    """A variant that is plainly worse, and one that has only begun."""
    low = replace(PAPER, A=0.45)
    return members(ref=(PAPER, 0.5), low=(low, 0.5), new=(PAPER, 0.2))


def test_everybody_gets_a_curve_first(three):
    begun = replace(three[3], fit=None, share=0.05)
    state = race([*three[:3], begun, *three[4:]], "ref")
    assert state.order == ("low-s1",) and "no curve yet" in state.why


def test_the_next_chunk_goes_to_an_open_verdict_and_none_to_one_that_is_decided(three):
    state = race(three, "ref")
    assert state.verdicts["low"] == ("higher-ceiling", "ref")
    assert state.verdicts["new"] == ("undecided", None) and set(state.chances) == {"new"}
    assert state.order[0].startswith("new") and not any(n.startswith("low") for n in state.order)
    assert "new" in state.why and state.to_dict()["next"] == state.order[0]
    assert (state.spent, state.of) == (pytest.approx(2.4), 6.0)


def test_the_same_records_give_the_same_race_whatever_was_asked_before(three):
    kept = RaceCache()
    shorter = [racer("new", 0, PAPER, 0.15) if r.name == "new-s0" else r for r in three]
    race(shorter, "ref", kept)
    assert race(three, "ref", kept) == race(three, "ref") == race(three, "ref", kept)


def test_a_variant_begins_with_one_seed_and_another_waits_until_it_is_what_is_missing():
    def field(share):
        unbegun = [replace(racer("new", s, PAPER, 0.5), fit=None, share=0.0) for s in (1, 2)]
        return [*(racer("ref", s, PAPER, share) for s in (0, 1)), racer("new", 0, PAPER, share),
                *unbegun]  # fmt: skip

    state = race(field(0.5), "ref")
    assert "no curve yet" not in state.why and state.order
    # At the end of the budget only another seed can tell more.
    state = race(field(1.0), "ref")
    assert state.order == ("new-s1",) and state.why.startswith("another seed of new")


def test_a_seed_that_was_begun_is_brought_to_where_the_others_are():
    field = members(ref=(PAPER, 0.5), new=(PAPER, 0.5))
    late = racer("new", 1, PAPER, 0.2)
    state = race([*field[:3], late], "ref")
    assert state.order[0] == "new-s1"


def test_one_seed_that_fell_is_enough_to_call_a_variant_unstable(three):
    fallen = [replace(r, unstable=True) if r.name == "new-s0" else r for r in three]
    fallen = [replace(r, fit=None, share=0.0) if r.name == "new-s1" else r for r in fallen]
    assert race(fallen, "ref").verdicts["new"] == ("unstable", None)


def with_ends(racers):
    """One run of each variant has come to its end."""
    return [replace(r, share=1.0) if r.name.endswith("-s0") else r for r in racers]


def test_before_a_verdict_on_ceilings_is_the_last_word_a_run_of_either_side_goes_to_its_end(three):
    ref, low = three[:2], three[2:4]
    state = race([*ref, *low], "ref")
    assert state.verdicts["low"] == ("higher-ceiling", "ref") and not state.chances
    assert set(state.order) == {"ref-s0", "low-s0"} and "goes to its end" in state.why
    state = race([*with_ends(ref), *low], "ref")
    assert state.order == ("low-s0",)
    closed = [replace(r, closed=r.variant == "low") for r in low]
    assert race([*with_ends(ref), *closed], "ref").over, "who cannot go on is not waited for"


def test_it_ends_when_every_verdict_is_decided(three):
    state = race(with_ends(three[:4]), "ref")
    assert state.over and state.why == "all 1 verdicts are decided"
    assert state.to_dict()["ended"] is True and "next" not in state.to_dict()


def test_it_ends_when_budgets_are_spent(three):
    state = race([replace(r, share=1.0) for r in three], "ref")
    assert state.over and "1 of 2 verdicts are decided; all budgets are spent" in state.why


def test_who_stands_low_and_is_open_goes_on():
    """Behind all the way so far, and with the higher ceiling: curves cross."""
    slow = replace(PAPER, A=0.75, C_mid=4 * PAPER.C_mid)
    field = members(ref=(PAPER, 0.4), slow=(slow, 0.2))
    behind = [r.fit.points.score[-1] for r in field]
    assert max(behind[2:]) < min(behind[:2])
    state = race(field, "ref")
    assert state.verdicts["slow"][0] == "undecided" and state.order[0].startswith("slow")


def test_an_unstable_variant_is_decided_and_gets_nothing(three):
    fallen = [replace(r, unstable=r.variant == "new") for r in with_ends(three)]
    state = race(fallen, "ref")
    assert state.over and state.verdicts["new"] == ("unstable", None)


def test_who_is_at_work_or_failed_is_given_nothing(three):
    state = race([replace(r, closed=r.name == "new-s0") for r in three], "ref")
    assert "new-s0" not in state.order and state.order


def test_going_further_narrows_more_and_nothing_narrows_nothing(three):
    young = three[4].fit
    found = [narrowing(young, m, 8 * (m - 1)) for m in (1.25, 2.0, 4.0)]
    assert 0.0 < found[0] < found[1] < found[2] < 1.0
    assert RaceCache().narrowing(three[4], three[4].share) == 0.0


@pytest.fixture
def study(tmp_path):
    study = Study(tmp_path / "s", ["scalerl", "tiny"], sweep={"schedule.k": [1]}, steps=320,
                  race=True)  # fmt: skip
    study.write()
    return study


def tasks(study):
    runner = Runner(study, 1, Heard())
    now = {m.name: read_progress(m) for m in study.members}
    return [(m.name, dict(limits)) for m, limits in runner.tasks(now)]


def test_chunks_end_at_the_same_places_whoever_was_stopped_where(study):
    member = study.members[0]
    first, chunk = portions(member.recipe, 0.25)
    every = member.recipe.validation.every
    assert round(320 * first) == 6 * every and round(320 * chunk) % every == 0
    places = [next_limits(member, step / 320, 0.25)["steps"] for step in range(320)]
    assert places == sorted(places) and places[-1] == 320
    assert all(place > step and place % every == 0 for step, place in enumerate(places))
    assert sorted(set(places)) == [60, 140, 220, 320], "no chunk of two validations at the end"


def test_a_study_goes_on_as_the_race_it_is_and_finishes_what_was_interrupted_first(study):
    again = Study(study.path)
    assert again.definition.race
    first = next_limits(study.members[0], 0.0, 0.25)
    assert tasks(again) == [(m.name, first) for m in study.members]
    steps = int(first["steps"])
    record(study.members[0], steps, steps, f"budget of {steps} steps")
    record(study.members[1], 7, steps, "interrupted")
    left = tasks(again)
    assert left[0] == (study.members[1].name, first)
    found = again.to_dict()
    assert [m["status"] for m in found["members"]] == ["paused", "begun"]
    assert found["race"]["next"] == study.members[1].name and found["race"]["of"] > 0


@pytest.mark.faults
def test_a_real_race_runs_in_chunks_ends_with_its_reason_and_is_not_run_twice(tmp_path):
    folder = tmp_path / "race"
    words = ["scalerl", "tiny", *SMALL, "--sweep", "loss.ratio_cap=4", "--steps", "8", "--race",
             "--jobs", "2", "--json"]  # fmt: skip
    said, errors = ended(start(folder, *words))
    found = json.loads(said)
    assert found["race"]["ended"] and found["race"]["why"]
    assert 0.75 <= found["race"]["spent"] / found["race"]["of"] <= 1.0
    assert "race: next is" in errors
    for member in Study(folder).members:
        ends = [e["reason"] for e in lines(member.path / "events.jsonl") if e["event"] == "end"]
        assert ends[0] == "budget of 6 steps"
        steps = [s["step"] for s in lines(member.path / "steps.jsonl")]
        assert steps == list(range(1, len(steps) + 1)) and 6 <= len(steps) <= 8
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*.jsonl")}
    assert json.loads(ended(start(folder, "--json"))[0]) == found
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*.jsonl")} == before
