"""The knob map: signs, regions, and the care for many comparisons."""

import math
from pathlib import Path

import numpy as np
import pytest

from scalerl import Run, fit
from scalerl.recipe import Recipe
from scalerl.study.knobs import holm, knob_map
from scalerl.study.members import Member
from scalerl.study.stability import Stability
from scalerl.study.table import MemberFinding, StudyArms


def member(variant, seed, top=0.7, mid=20.0):
    rng = np.random.default_rng((seed, len(variant), int(1000 * top), int(mid)))
    c = np.linspace(4, 240, 40)
    y = 0.1 + (top - 0.1) / (1 + (mid / c) ** 1.6) + 0.006 * rng.standard_normal(40)
    run = Run(f"{variant}-s{seed}", c, y, x_kind="steps", group=variant)
    made = Member(run.name, variant, seed, Recipe.load("scalerl", "tiny"), Path(), Path())
    return MemberFinding(made, Stability("stable"), fit(run))


def the_map(**others):
    found = [member("ref", s) for s in range(3)]
    found += [member(name, s, **how) for name, how in others.items() for s in range(3)]
    pairs = StudyArms.from_findings(found).pairs("ref")
    differs = {name: {"loss.name": name} for name in others}
    return {knob.variant: knob for knob in knob_map(pairs, "ref", differs)}


def test_regions_and_signs_are_those_of_the_variant_against_the_reference():
    knobs = the_map(lower={"top": 0.55}, higher={"top": 0.85}, slower={"mid": 50.0})
    assert knobs["lower"].region == "ceiling" and knobs["lower"].winner == "ref"
    assert knobs["lower"].delta_a == pytest.approx(-0.15, abs=0.03)
    low, high = knobs["lower"].delta_a_interval
    assert low < knobs["lower"].delta_a < high < 0
    assert knobs["higher"].region == "ceiling" and knobs["higher"].delta_a > 0.1
    slower = knobs["slower"]
    assert slower.delta_log_compute == pytest.approx(math.log(2.5), abs=0.35)
    first, last = slower.delta_log_compute_interval
    assert 0 < first < slower.delta_log_compute < last
    assert slower.region in ("speed", "undecided")
    assert next(iter(knobs)) in ("lower", "higher")  # the largest first
    told = slower.to_dict()
    assert told["differs"] == {"loss.name": "slower"}
    assert told["speed"]["compute_ratio"]["median"] == pytest.approx(2.5, abs=0.8)


def test_a_knob_that_does_nothing_gets_no_side():
    knob = the_map(alike={})["alike"]
    assert knob.region in ("neither", "undecided") and knob.p_wrong is None and knob.family_wise


def test_holm_steps_down_from_the_surest():
    assert holm([0.001, 0.012, 0.5], 3) == 0.012
    assert holm([0.02], 13) == -1.0  # one in thirteen needs .03 / 13
    assert holm([0.002, 0.02], 13) == 0.002
    assert holm([], 5) == -1.0
