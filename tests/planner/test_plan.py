"""scalerl plan: what it prints, writes and refuses."""

import json

import numpy as np
import pytest

from scalerl.cli import main
from scalerl.errors import InputError
from scalerl.planner.normal import Interval
from scalerl.planner.outlook import LearningCurve, first_reached, learning_curve
from scalerl.planner.pilot import ValidationDesign
from scalerl.planner.placements import Placement, splits
from scalerl.planner.plan import plan
from scalerl.recipe import Recipe

#: A small plan: an 8B model with short answers in small batches.
SMALL = [
    "plan", "scalerl", "batch.prompts=4", "batch.generations=4", "length.think_tokens_min=900",
    "length.think_tokens_max=1000", "length.answer_tokens=200", "schedule.k=2",
    "validation.prompts=4", "validation.k=2", "placement.activations=recompute",
]  # fmt: skip
RATES = ["--mean-length", "500", "--mfu", "0.2-0.4", "--decode", "0.4-0.7"]
H100 = ["--accelerator", "h100-sxm", "--devices", "8"]


def run(capsys, *words):
    code = main([*SMALL, *words, "--quick"])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_a_plan_has_a_table_of_80_columns(capsys):
    code, out, _ = run(capsys, *H100, *RATES, "--days", "7", "--price", "2.5")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "pipeline-2" in out and "pipeline-1" in out and "7.00 days (1,340 device-hours" in out
    assert sum(line.startswith(">") for line in out.splitlines()) == 1


def test_json_and_recipe_agree(capsys, tmp_path):
    out = tmp_path / "plan.toml"
    code, text, _ = run(capsys, *H100, *RATES, "--json", "--recipe", str(out))
    found = json.loads(text)
    placed = Recipe.load(out)
    assert code == 0
    assert placed.placement.generators == found["best"]["generators"]
    assert placed.placement.trainers == found["best"]["trainers"]
    assert placed.schedule.k == found["best"]["k"]
    low, high = found["best"]["step_seconds"]["interval"]
    assert low < found["best"]["step_seconds"]["median"] < high
    assert found["assumed"]["mfu"] == [0.2, 0.4]


def test_without_devices_the_recipes_own_placement_is_planned(capsys):
    own = ["placement.generators=3", "placement.trainers=2"]
    code, text, _ = run(capsys, *own, "--accelerator", "h200", *RATES, "--json")
    found = json.loads(text)
    assert code == 0 and len(found["placements"]) == 1
    assert (found["best"]["generators"], found["best"]["trainers"]) == (3, 2)


def test_a_curve_turns_days_into_a_pass_rate(capsys):
    code, text, _ = run(
        capsys, *H100, *RATES, "--days", "1", "--curve", "0.61,1.92,1695,0.40", "--target",
        "0.5,0.7", "--json",
    )  # fmt: skip
    found = json.loads(text)
    outlook = found["outlook"]
    low, mid, high = outlook["reached"]
    assert code == 0 and 0.40 < low < mid < high < 0.61
    reached, never = outlook["targets"]
    # 0.5 is 0.476 of the way from 0.40 to 0.61, which takes 0.953 of C_mid.
    assert reached["steps"][1] == pytest.approx(1695 * (0.1 / 0.11) ** (1 / 1.92), rel=0.02)
    assert reached["days"][0] < reached["days"][1] < reached["days"][2]
    assert never["probability"] == 0 and never["days"][1] is None


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--mfu", "0.3", "--decode", "0.5", *H100], "give --mean-length TOKENS"),
        (["--mean-length", "500", "--decode", "0.5", *H100], "give --mfu LOW-HIGH"),
        (["--mean-length", "500", "--mfu", "0.3", *H100], "give --decode LOW-HIGH"),
        ([*RATES, "--devices", "8"], "give --accelerator NAME"),
        ([*RATES, "--devices", "8", "--accelerator", "h100"], "did you mean h100-sxm"),
        ([*RATES, "--accelerator", "h100-sxm", "--devices", "1"], "a run needs two"),
        ([*RATES, "--accelerator", "rtx-4090", "--devices", "3"], "fits nowhere"),
        ([*H100, *RATES, "--mean-length", "5000"], "above the longest answer, 1200 tokens"),
        ([*H100, *RATES, "--mfu", "3"], "at most 1"),
        ([*H100, *RATES, "--mfu", "0.4-0.1"], "the lower first"),
        ([*H100, *RATES, "--mfu", "much"], "give a number, or LOW-HIGH"),
        ([*H100, *RATES, "schedule.k=0"], "schedule.k"),
        ([*H100, *RATES, "--k", "0"], "--k 0: give whole numbers, 1 or more"),
        ([*H100, *RATES, "length.think_tokens_max=200000"], "reads 131072"),
        ([*H100, *RATES, "model.path=nobody/none"], "is not known"),
        ([*H100, *RATES, "--budget", "1000"], "give --price"),
        ([*H100, *RATES, "--days", "0"], "--days 0: give a number above 0"),
        ([*H100, *RATES, "--target", "0.5"], "--target needs a curve"),
        ([*H100, *RATES, "--curve", "0.6,2,100"], "give four numbers, A,B,C_mid,R_0"),
        ([*H100, *RATES, "--curve", "0.3,2,100,0.5"], "R_0 below A"),
        ([*H100, *RATES, "--days", "1", "--curve", "example:paper-8b"], "give --per-step"),
        ([*H100, *RATES, "--pilot"], "--pilot needs a curve"),
        ([*H100, *RATES, "--kept", "0"], "--kept 0: give a share above 0"),
        ([*H100, *RATES, "--reply-seconds", "3"], "give --turns as well"),
        ([*H100, *RATES, "--like", "/nowhere"], "--like /nowhere"),
    ],
)
def test_bad_input_is_one_line_that_says_what_to_do(capsys, words, says):
    code, _, err = run(capsys, *words)
    assert code == 2 and says in err
    assert len(err.strip().splitlines()) == 1


def test_a_curve_in_other_units_needs_its_compute_of_a_step(tmp_path):
    with pytest.raises(InputError, match="GPU-hours of other hardware"):
        learning_curve("example:paper-8b", None, None)
    found = learning_curve("example:paper-8b", 1.5, None)
    assert 1000 < found.mid_steps < 10_000
    levels = found.levels(np.array([100.0, 1000.0, 10_000.0]))
    assert levels.shape[1] == 3 and (np.median(np.diff(levels, axis=1), axis=0) > 0).all()


def test_the_first_step_at_a_score_is_that_of_the_curve():
    curve = LearningCurve("given", (0.6, 2.0, 100.0, 0.2), 1.0)
    steps = np.geomspace(1, 10_000, 200)
    when = first_reached(steps, curve.levels(steps), 0.4)
    assert when == pytest.approx([100.0], rel=0.01)
    assert np.isinf(first_reached(steps, curve.levels(steps), 0.7)).all()


def test_noise_of_a_validation_falls_with_its_answers():
    small, large = ValidationDesign(100, 50, 4), ValidationDesign(100, 1000, 16)
    assert small.noise(0.5) > 3 * large.noise(0.5) > 0.005


def test_splits_use_all_devices():
    assert splits(4, 1) == [(3, 1), (2, 2), (1, 3)]
    assert splits(8, 4) == [(1, 4)]
    assert Placement(2, 4, "pipeline", 8, 4).devices == 12


def test_intervals_are_symmetric_in_the_logarithm():
    interval = Interval(0.1, 0.4)
    z = np.random.default_rng(0).standard_normal(20_000)
    drawn = interval.draws(z)
    assert np.mean((drawn > 0.1) & (drawn < 0.4)) == pytest.approx(0.9, abs=0.01)
    assert Interval.exactly(0.3).sigma == 0.0


def test_more_devices_and_faster_trainers_shorten_a_step():
    def seconds(devices, mfu):
        made = plan(
            [*SMALL[1:], "batch.prompts=32", "batch.generations=16"], accelerator="h200",
            devices=devices, mean_length=500, mfu=mfu, decode=0.5, steps=16, staleness=[2],
        )  # fmt: skip
        return made.best.interval()[1]

    base = seconds(6, 0.1)
    assert seconds(12, 0.1) < 0.75 * base
    assert seconds(6, 0.2) < 0.8 * base
