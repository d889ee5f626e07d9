"""Early signs of a run going wrong: each is said once, with the knob to turn."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from scalerl.cli import parser
from scalerl.pipeline.alarms import MAX_CHECK_WAIT, START, WINDOW, Alarms
from scalerl.recipe import Recipe
from scalerl.recipe.diff import allowed_changes
from scalerl.runs.lines import EvalLine, Play, StepLine

HEALTHY = {
    "step": 1, "truncated": 0.0, "ratio": {"max": 1.2}, "ess": 0.99, "non_finite": 0,
    "entropy": 0.5, "grad_norm": 1.0, "zero_variance": 0.2,
    "filtered": {"unscored": 0, "rollouts": 64},
}  # fmt: skip


def step(**changes):
    return StepLine.from_dict(HEALTHY | changes)


def evaluated(alarms, pass_rate, stderr):
    line = {"step": 1, "pass_rate": pass_rate, "stderr": stderr}
    return alarms.check_validation(EvalLine.from_dict(line))


def after(alarms, *steps):
    return [line for one in steps for line in alarms.check_step(one)]


def test_a_healthy_run_raises_no_alarm():
    alarms = Alarms()
    assert after(alarms, *[step() for _ in range(50)]) == [] and alarms.healthy


def test_single_large_ratios_and_single_bad_steps_are_no_alarm():
    bad = step(ratio={"max": 300.0}, ess=0.1, entropy=0.6)
    alarms = Alarms()
    assert after(alarms, *[step()] * START, *[step(ratio={"max": 300.0})] * START) == []
    assert after(alarms, bad, *[step()] * WINDOW) == []


@pytest.mark.parametrize(
    ("changes", "knob", "grave"),
    [
        ({"truncated": 0.07}, "length.max_tokens", False),
        ({"truncated": 1.0}, "destabilise", True),
        ({"ess": 0.1}, "schedule.k", False),
        ({"entropy": 0.6}, "optimiser.lr", False),
        ({"non_finite": 3}, "precision", True),
        ({"entropy": 0.001}, "optimiser.lr", True),
        ({"grad_norm": 500.0}, "optimiser.lr", True),
        ({"zero_variance": 1.0}, "prompts", False),
        ({"filtered": {"unscored": 32, "rollouts": 64}}, "verifier", False),
    ],
)
def test_each_trouble_is_said_once_with_the_knob_to_turn(changes, knob, grave):
    alarms = Alarms()
    said = after(alarms, *[step()] * START, *[step(**changes)] * (2 * WINDOW))
    assert len(said) == 1 and knob in said[0]
    assert alarms.healthy is not grave
    assert after(alarms, *[step()] * 3 * WINDOW) == [] and alarms.healthy
    again = after(alarms, *[step(**changes)] * WINDOW)
    assert len(again) == 1


def waiting(steps, share, since=(0.0, 0.0, 0.0)):
    """Steps of two seconds each, of which the trainer waits for checks for a share."""
    train, wait, checks = since
    for _ in range(steps):
        train, wait, checks = train + 1.0, wait + 1.0, checks + 2.0 * share
        spent = {"train": train, "train_wait": wait, "check_wait": checks}
        yield step(ledger={"spent": spent}), (train, wait, checks)


def test_checks_that_set_the_pace_are_said_once_and_by_what_is_new():
    """The ledger has running totals: what counts is the time since the step before."""
    alarms = Alarms()
    calm = list(waiting(40, 0.9 * MAX_CHECK_WAIT))
    assert after(alarms, *[line for line, _ in calm]) == []
    rough = list(waiting(2 * WINDOW, 1.2 * MAX_CHECK_WAIT, calm[-1][1]))
    (said,) = after(alarms, *[line for line, _ in rough])
    assert "waits for them" in said and "placement.checkers" in said and alarms.healthy


def test_environments_that_set_the_pace_are_called_so():
    play = {"turns": 3.0, "environment_seconds": 2.0}
    lines = [replace(line, play=Play.from_dict(play)) for line, _ in waiting(WINDOW, 0.5)]
    (said,) = after(Alarms(), *lines)
    assert "the environments set the pace" in said and "placement.environment_processes" in said
    unscored = step(filtered={"unscored": 32, "rollouts": 64}, play=play)
    assert "see the task's environment" in after(Alarms(), *[unscored] * WINDOW)[0]


def test_interruption_names_the_budget_that_cuts_answers_off():
    recipe = Recipe.load("scalerl", "tiny")
    assert recipe.length.control == "interruption"
    (said,) = after(Alarms.from_recipe(recipe), *[step(truncated=0.07)] * WINDOW)
    assert said.endswith("raise length.answer_tokens")


TROUBLES = [
    ({"truncated": 0.07}, "length.answer_tokens=", False),
    ({"ess": 0.1}, "schedule.k=", False),
    ({"entropy": 0.001}, "optimiser.lr=", True),
    ({"grad_norm": 500.0}, "optimiser.lr=", True),
]


@pytest.mark.parametrize("healthy", [True, False])
@pytest.mark.parametrize(("changes", "knob", "back"), TROUBLES)
def test_advice_comes_with_a_command_that_works_when_pasted(changes, knob, back, healthy):
    recipe, out = Recipe.load("scalerl", "tiny"), Path("my runs/it's")
    alarms = Alarms.from_recipe(recipe, out)
    alarms.has_healthy = healthy
    said = after(alarms, *[step()] * START, *[step(**changes)] * (2 * WINDOW))[0]
    words = shlex.split(said.partition("Ctrl-C, then: ")[2])
    args = parser().parse_known_args(words[1:])[0]
    assert args.resume == str(out) and args.from_step == ("healthy" if back and healthy else None)
    assert words[-1].startswith(knob)
    changed = Recipe.load(recipe.to_dict(), overrides=[words[-1]])
    assert [d.path for d in allowed_changes(recipe, changed)] == [knob.removesuffix("=")]


def test_a_collapse_names_the_way_back():
    alarms = Alarms.from_recipe(Recipe.load("scalerl", "tiny"), Path("r"))
    alarms.has_healthy = True
    evaluated(alarms, 0.6, 0.015)
    (line,) = evaluated(alarms, 0.3, 0.015)
    assert "scalerl train --resume r --from healthy optimiser.lr=" in line


def test_a_knob_that_cannot_be_turned_further_is_not_advised():
    once = Recipe.load("scalerl", "tiny", overrides=["schedule.k=1"])
    phases = Recipe.load("scalerl", "tiny", overrides=["schedule.name=off-policy"])
    for recipe in (once, phases):
        assert " optimiser.lr=" in Alarms.from_recipe(recipe, Path("r")).then(
            "schedule.k", "optimiser.lr"
        )


def test_a_sure_policy_that_is_right_is_no_collapse():
    alarms = Alarms()
    evaluated(alarms, 0.85, 0.02)
    assert after(alarms, *[step()] * START, *[step(entropy=0.001)] * 20) == []


def test_a_fall_of_the_pass_rate_is_a_collapse_but_noise_is_not():
    alarms = Alarms()
    rates = [0.2, 0.5, 0.6, 0.56, 0.58]
    assert not any(evaluated(alarms, rate, 0.015) for rate in rates)
    (line,) = evaluated(alarms, 0.4, 0.015)
    assert "fallen to 0.400 from 0.600" in line and not alarms.healthy
