"""Simulated runs: the very loop, with workers that take the seconds of a cost model."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scalerl.algorithm.length import Limit
from scalerl.engine.interface import Request
from scalerl.planner.calibrate import _from_lines
from scalerl.planner.crew import PlannedCrew
from scalerl.planner.lengths import AnswerLengths
from scalerl.planner.rates import GeneratorRates, LoopRates, Rates, TrainerRates, slowest
from scalerl.planner.setup import planned_recipe, planned_setup
from scalerl.planner.simulate import simulate, simulated_record
from scalerl.planner.world import EnvironmentModel, PassRates, PlannedWorld
from scalerl.recipe import Recipe

#: Every group has variance.
ALL_KEPT = PassRates(0.5, 0.0)


def recipe(**changes):
    values = {
        "batch.prompts": 8, "batch.generations": 8, "placement.generators": 4, "schedule.k": 4,
    }  # fmt: skip
    return Recipe.load("scalerl").replace(values | {k.replace("__", "."): v for k, v in
                                                    changes.items()})  # fmt: skip


def world(step=0.02, train=1.0, *, token=0.0, spread=0.5, alike=0.5, mean=500, **more):
    rates = Rates(
        GeneratorRates(step, 0.0, 0.0, 0.0, 0.0, slots=more.pop("slots", 512)),
        TrainerRates(more.pop("ranks", 1), train, token, publish=more.pop("publish", 0.0)),
    )
    lengths = AnswerLengths(mean, spread, alike, 20 * mean)
    return PlannedWorld(rates, lengths, 16, more.pop("pass_rates", ALL_KEPT), **more)


def test_a_run_bound_by_its_trainer_takes_the_trainers_time():
    found = simulate(recipe(), world(step=0.001, train=30.0, publish=2.0), 30)
    assert found.step_seconds == pytest.approx(32.0, rel=0.01)
    assert found.trainer_wait < 0.01 and found.generator_wait > 0.5


def test_a_run_bound_by_its_generators_writes_as_many_tokens_as_they_can():
    # Decode steps take as long with many rows as with one, and slots are few.
    found = simulate(recipe(), world(train=0.01, slots=4), 200)
    tokens_a_second = 4 * 4 / 0.02
    assert found.step_seconds == pytest.approx(64 * 500 / tokens_a_second, rel=0.08)
    assert found.generator_wait < 0.05


@pytest.mark.parametrize(("k", "schedule"), [(1, "pipeline"), (4, "pipeline"), (3, "off-policy")])
def test_no_token_is_older_than_the_schedule_allows(k, schedule):
    found = simulate(recipe(schedule__k=k, schedule__name=schedule), world(), 30)
    assert max(found.histogram) <= (k if schedule == "pipeline" else k - 1)
    assert sum(found.histogram.values()) == pytest.approx(1.0)


def test_synchronous_steps_are_the_sum_of_both_sides():
    sync = recipe(schedule__name="off-policy", schedule__k=1)
    found = simulate(sync, world(spread=0.0, train=3.0), 20)
    assert found.staleness == 0.0
    assert found.step_seconds == pytest.approx(500 * 0.02 + 3.0, rel=0.02)


@pytest.mark.parametrize(("cv", "alike", "group", "rho"),
                         [(0.5, 0.0, 2, 0.5), (0.5, 0.75, 4, 0.5), (0.5, 0.0, 4, 0.8)])  # fmt: skip
def test_staleness_follows_the_closed_form_where_it_holds(cv, alike, group, rho):
    """C·M/B + rho: bound by generation, k not binding (C rollouts are written at once, a batch has
    B, M = (1 + cv²) / 2, the trainer works for a share rho of a step). The loop begins as many
    groups as keep every generator busy with a batch, so that C/B is the number of generators."""
    setting = recipe(
        batch__prompts=64 // group, batch__generations=group, placement__generators=2,
        schedule__k=12,
    )  # fmt: skip
    mean, step = 200, 0.02
    made = world(step=step, train=rho * mean * step / 2, spread=cv, alike=alike, mean=mean)
    found = simulate(setting, made, 150)
    closed = 2 * (1 + cv**2) / 2 + found.train_seconds / found.step_seconds
    assert found.staleness == pytest.approx(closed, abs=0.3)


def test_the_same_seed_gives_the_same_run_and_rates_scale_time():
    a, b = (simulate(recipe(), world(seed=3), 12) for _ in range(2))
    assert a == b
    slow = world(seed=3)
    double = Rates(slow.rates.generator.scaled(2.0), slow.rates.trainer.scaled(2.0))
    c = simulate(recipe(), PlannedWorld(double, slow.lengths, 16, ALL_KEPT, seed=3), 12)
    assert c.step_seconds == pytest.approx(2 * a.step_seconds, rel=1e-6)
    assert c.staleness == pytest.approx(a.staleness)


def test_groups_without_variance_are_not_trained_on():
    rates = PassRates.from_kept(0.4, 8)
    full = simulate(recipe(), world(token=1e-3, train=0.0), 40)
    part = simulate(recipe(), world(token=1e-3, train=0.0, pass_rates=rates), 40)
    assert part.kept == pytest.approx(0.4, abs=0.08)
    assert part.trained_tokens == pytest.approx(0.4 * full.trained_tokens, rel=0.25)


def test_ranks_wait_for_the_slowest():
    work = np.array([10.0, 1.0, 1.0, 1.0])
    assert slowest(work, 4) == 10.0 and slowest(work, 1) == 13.0
    one = simulate(recipe(), world(token=1e-3, train=0.0), 20)
    four = simulate(recipe(), world(token=1e-3, train=0.0, ranks=4), 20)
    # By token, because the two simulations train on other answers.
    faster = one.train_seconds / one.trained_tokens / (four.train_seconds / four.trained_tokens)
    assert 3.4 < faster <= 4.0


def test_slow_checks_and_environments_are_waited_for():
    plain = simulate(recipe(schedule__k=1), world(train=0.1), 20)
    checks = simulate(recipe(schedule__k=1), world(train=0.1, check_seconds=20.0), 20)
    turns = EnvironmentModel(turns=4, seconds=10.0, tokens=32)
    tools = simulate(recipe(schedule__k=1), world(train=0.1, environment=turns), 20)
    assert checks.step_seconds > plain.step_seconds + 5
    assert tools.step_seconds > plain.step_seconds + 5
    assert tools.trained_tokens > plain.trained_tokens


def test_turns_pass_through_the_loop_one_at_a_time():
    """Rows that end a turn together do not go on together, and an episode costs the loop the same
    seconds whatever its turns."""
    turns = EnvironmentModel(turns=4, seconds=0.5, spread=0.0)
    slow = world(train=0.1, spread=0.0, environment=turns)
    rates = replace(slow.rates, loop=LoopRates(beside=6.4, groups=8, rollouts=64))
    _, crew = simulated_record(recipe(schedule__k=1), replace(slow, rates=rates), 20)
    assert crew.rollout_seconds == pytest.approx(6.4 / 64 / 4)
    plain = simulate(recipe(schedule__k=1), slow, 20)
    busy = simulate(recipe(schedule__k=1), replace(slow, rates=rates), 20)
    assert busy.step_seconds > plain.step_seconds + 1


def test_an_episode_is_divided_among_its_turns_in_any_way():
    turns = EnvironmentModel(turns=4, seconds=0.1)
    _, crew = simulated_record(recipe(), world(environment=turns), 3)
    for length in (1, 3, 4, 500):
        parts = [crew._split(length, 4) for _ in range(50)]
        assert all(sum(p) == length and min(p) >= 1 and len(p) == min(4, length) for p in parts)
    assert len({tuple(p) for p in parts}) > 40


def test_length_limits_each_turn_of_an_episode():
    limited = recipe(length__control="none", length__max_tokens=12, environment__turns=6)
    assert EnvironmentModel().limits(limited) == (12, None)
    assert EnvironmentModel(turns=4).limits(limited) == (72, None)
    short = limited.replace({"environment.episode_tokens": 50})
    assert EnvironmentModel(turns=4).limits(short) == (50, None)
    low, high = EnvironmentModel().limits(recipe())[1]
    assert low <= high, "thoughts of one turn are interrupted"


def test_a_validation_takes_its_answers():
    setting = recipe(validation__every=10, validation__prompts=16, validation__k=4)
    found = simulate(setting, world(spread=0.0), 25, validate=True)
    # 64 answers of 500 tokens on four generators, all at once.
    assert found.validation_seconds == pytest.approx(500 * 0.02, rel=0.2)


def test_a_calibration_finds_the_rates_that_were_planted():
    """From the record that a simulated run leaves, decode and training rates come back."""
    generator = GeneratorRates(0.02, 0.0, 0.0005, 0.0, 0.0, load=0.03, slots=64)
    planted = Rates(generator, TrainerRates(1, 0.2, 1e-4, publish=0.05))
    # Lengths below the entries of an array, so that an entry is a token.
    truth = PlannedWorld(planted, AnswerLengths(40, 0.5, 0.5, 128), 0, PassRates(0.5, 0.4))
    setting = recipe(placement__trainers=1)
    lines, _ = simulated_record(setting, truth, 60)
    found = _from_lines(Path("planted"), setting, lines, 6)
    g, t = found.rates.generator, found.rates.trainer
    assert g.step == pytest.approx(0.02, rel=0.1) and g.row == pytest.approx(0.0005, rel=0.1)
    assert t.fixed == pytest.approx(0.2, rel=0.1) and t.token == pytest.approx(1e-4, rel=0.1)
    assert t.publish == pytest.approx(0.05) and g.load == pytest.approx(0.03, rel=0.2)
    again = simulate(setting, found.world(setting), 60)
    assert again.step_seconds == pytest.approx(found.measured["step_seconds"], rel=0.1)
    assert again.staleness == pytest.approx(found.measured["staleness"], abs=0.25)


def test_answers_that_a_tighter_limit_cuts_are_wrong():
    rng = np.random.default_rng(0)
    before = AnswerLengths(300, 0.5, 0.0, 2000)
    tight = before.cut(400, (300, 360))
    drawn = [tight.draw_scaled(rng, 64, 1.0) for _ in range(200)]
    cut = np.concatenate([cut for _, cut in drawn])
    lengths = np.concatenate([lengths for lengths, _ in drawn])
    # Budgets are 300 to 360 tokens, evenly, and an answer of 20 tokens follows.
    sigma = np.sqrt(np.log1p(0.25))
    raw = 300 * np.exp(sigma * rng.standard_normal(100_000) - sigma**2 / 2)
    expected = np.mean(raw > 20 + rng.uniform(300, 360, raw.shape))
    assert cut.mean() == pytest.approx(expected, abs=0.015)
    assert lengths.max() <= 400 and lengths[~cut].max() <= 380
    # The same limits change nothing, and nothing is cut anew.
    assert before.cut(2000, None) is before
    assert not before.draw_scaled(rng, 1000, 1.0)[1].any()


def test_a_tighter_limit_keeps_fewer_groups():
    # Long prompts are never solved once their answers are cut.
    loose = world(alike=0.9, pass_rates=PassRates(0.5, 0.2))
    tight = replace(loose, lengths=loose.lengths.cut(500, (380, 400)))
    assert simulate(recipe(), tight, 20).kept < simulate(recipe(), loose, 20).kept - 0.15


def test_each_reply_takes_a_time_of_its_own():
    slow = world(environment=EnvironmentModel(5, 10.0, 1.0))
    crew = PlannedCrew(planned_setup(planned_recipe(recipe(), 1)), slow)
    asked = Request("0", (1,), Limit(8), dict.fromkeys(range(1000), 0))
    waits = np.array([row.waits for row in crew.rows(asked)])
    assert waits.shape == (1000, 4) and waits.mean() == pytest.approx(10.0, rel=0.1)
    within = waits.std(axis=1).mean()
    assert within > 5.0  # 0 if one number stood for all replies of an episode
