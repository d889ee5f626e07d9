"""The pieces of the loop, each by itself."""

import dataclasses
import time

import numpy as np
import pytest
import torch
from scalerl.pipeline.desk import Desk
from scalerl.pipeline.placement import PipelineError
from scalerl.pipeline.weights import Layout, SharedWeights

from scalerl.algorithm.filters import informative
from scalerl.algorithm.rollout import Group, Rollout
from scalerl.engine.interface import Request, Written
from scalerl.errors import InputError
from scalerl.pipeline import gate, groups
from scalerl.pipeline import messages as m
from scalerl.pipeline.alarms import START, WINDOW, Watch
from scalerl.pipeline.groups import UnderWay
from scalerl.pipeline.ledger import Ledger
from scalerl.pipeline.plan import Plan
from scalerl.recipe import Recipe
from scalerl.runs.lock import RunLock, is_locked
from scalerl.tasks.task import make_prompt


def rollout(n=3, reward=1.0, finish="stop", version=4):
    return Rollout(
        np.arange(n),
        np.linspace(-1, 0, n).astype(np.float32),
        np.full(n, version),
        np.zeros(n, dtype=bool),
        finish,
        reward,
        None if reward is None else reward > 0,
    )


def step(**changes):
    record = {
        "truncated": 0.0, "ratio": {"max": 1.2}, "ess": 0.99, "non_finite": 0, "entropy": 0.5,
        "grad_norm": 1.0, "zero_variance": 0.2, "filtered": {"unscored": 0, "rollouts": 64},
    }  # fmt: skip
    return record | changes


# -- alarms ---------------------------------------------------------------------------------------


def after(watch, *records):
    return [line for record in records for line in watch.step(record)]


def test_a_healthy_run_raises_no_alarm():
    watch = Watch()
    assert after(watch, *[step() for _ in range(50)]) == [] and watch.healthy


@pytest.mark.parametrize(
    ("changes", "knob", "grave"),
    [
        ({"truncated": 0.07}, "length.max_tokens", False),
        ({"truncated": 1.0}, "destabilise", True),
        ({"ratio": {"max": 300.0}}, "schedule.k", False),
        ({"ess": 0.1}, "schedule.k", False),
        ({"non_finite": 3}, "precision", True),
        ({"entropy": 0.001}, "optimiser.lr", True),
        ({"grad_norm": 500.0}, "optimiser.lr", True),
        ({"zero_variance": 1.0}, "prompts", False),
        ({"filtered": {"unscored": 32, "rollouts": 64}}, "verifier", False),
    ],
)
def test_each_trouble_is_said_once_with_the_knob_to_turn(changes, knob, grave):
    watch = Watch()
    said = after(watch, *[step()] * START, *[step(**changes)] * (2 * WINDOW))
    assert len(said) == 1 and knob in said[0]
    assert watch.healthy is not grave
    assert after(watch, *[step()] * 3 * WINDOW) == [] and watch.healthy
    again = after(watch, *[step(**changes)] * WINDOW)
    assert len(again) == 1


def test_a_sure_policy_that_is_right_is_no_collapse():
    watch = Watch()
    watch.evaluated({"pass_rate": 0.85, "stderr": 0.02})
    assert after(watch, *[step()] * START, *[step(entropy=0.001)] * 20) == []


def test_a_fall_of_the_pass_rate_is_a_collapse_but_noise_is_not():
    watch = Watch()
    rates = [0.2, 0.5, 0.6, 0.56, 0.58]
    assert not any(watch.evaluated({"pass_rate": r, "stderr": 0.015}) for r in rates)
    (line,) = watch.evaluated({"pass_rate": 0.4, "stderr": 0.015})
    assert "fallen to 0.400 from 0.600" in line and not watch.healthy


# -- ledger ---------------------------------------------------------------------------------------


def test_the_ledger_adds_up_and_validation_is_apart(monkeypatch):
    clock = iter([0.0, 10.0, 16.0, 30.0, 30.0, 30.0, 30.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    ledger = Ledger(parameters=100, generators=2, trainers=1)
    ledger.start()
    ledger.validating(True)
    ledger.validating(False)
    ledger.spent |= {"generate": 30.0, "hand_over": 1.0, "train": 5.0, "validate": 9.0}
    compute = ledger.compute()
    assert compute["device_hours"] == pytest.approx(3 * 24 / 3600)
    assert ledger.validation_seconds == pytest.approx(3 * 6)
    split = ledger.split()
    assert split["generate_wait"] == pytest.approx(48 - 31)
    assert split["train_wait"] == pytest.approx(24 - 5)
    split.pop("validate")
    assert sum(split.values()) == pytest.approx(ledger.device_seconds)


def test_a_resumed_ledger_goes_on_and_the_pause_is_not_counted(monkeypatch):
    clock = iter([0.0, 10.0, 1000.0, 1005.0, 1005.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    first = Ledger(100, 1, 1)
    first.start()
    state = first.to_dict()
    second = Ledger(100, 1, 1)
    second.restore(state)
    second.start()
    assert second.compute()["device_hours"] == pytest.approx(2 * 15 / 3600)


def test_validation_counts_as_compute_when_the_recipe_says_so():
    ledger = Ledger(100, 1, 1, count_validation=True, device_seconds=10, validation_seconds=5)
    assert ledger.compute()["device_hours"] == pytest.approx(15 / 3600)


# -- desk -----------------------------------------------------------------------------------------


def under_way(serial=0):
    prompt = make_prompt("t", f"q{serial}", "a")
    return UnderWay(prompt, np.arange(2), started=0, generator=0)


def request(serial, u):
    return [Request(f"{serial}/{i}", (1, 2), None) for i in range(4)]


def finished(*ids, tokens=0, seconds=0.0):
    written = [Written(i, *[np.zeros(1)] * 4, finish="stop") for i in ids]
    return m.Finished(tuple(written), False, 3, {"generate": seconds}, tokens, 0)


def test_a_slow_generator_is_given_less():
    desk = Desk(2)
    for _ in range(40):
        desk.heard(0, finished(tokens=2000, seconds=1.0))
        desk.heard(1, finished(tokens=100, seconds=1.0))
    shares = desk.divide({i: under_way(i) for i in range(42)}, request)
    assert len(shares[1]) == 4 * 2 and len(shares[0]) == 4 * 40


def test_what_a_generator_holds_is_known_until_it_is_written_and_old_news_is_dropped():
    desk = Desk(1)
    desk.hand(0, [*request(7, None), Request("validation/x", (1,), None)])
    assert [w.id for w in desk.heard(0, finished("7/1", "9/9"))] == ["7/1"]
    assert [r.id for r in desk.held(0, validation=False)] == ["7/0", "7/2", "7/3"]
    assert [r.id for r in desk.held(0, validation=True)] == ["validation/x"]
    assert desk.heard(0, finished("7/1")) == []


def test_a_group_begun_anew_is_as_old_as_the_rollouts_that_were_kept():
    u = under_way()
    u.written = {0: Written("0/0", np.zeros(2), np.zeros(2), np.array([5, 6]), np.zeros(2), "stop")}
    u.started_again(9)
    assert u.started == 5
    fresh = under_way()
    fresh.started_again(9)
    assert fresh.started == 9


# -- groups in checkpoints ------------------------------------------------------------------------


def test_groups_come_back_from_a_checkpoint_as_they_were(tmp_path):
    prompts = [make_prompt("t", f"q{i}", "a") for i in range(3)]
    ids = np.arange(4)
    group = Group(prompts[1].id, ids, (rollout(3), rollout(0, None, "failed"), rollout(5, -1.0)))
    before = {
        4: UnderWay(prompts[0], ids, 2, 0),
        9: UnderWay(prompts[1], ids, 3, 1, group=group),
    }
    groups.save(tmp_path, before)
    found = groups.load(tmp_path, {p.id: p for p in prompts}, lambda prompt: ids)
    assert list(found) == [4, 9] and found[4].writing and found[4].started == 2
    for a, b in zip(found[9].group.rollouts, group.rollouts, strict=True):
        for name in ("token_ids", "logprobs", "versions", "forced"):
            assert np.array_equal(getattr(a, name), getattr(b, name))
            assert getattr(a, name).dtype == getattr(b, name).dtype or not len(b)
        assert (a.finish, a.reward, a.correct) == (b.finish, b.reward, b.correct)


def test_no_groups_are_saved_as_well(tmp_path):
    groups.save(tmp_path, {})
    assert groups.load(tmp_path, {}, None) == {}


def test_a_group_informs_only_by_rollouts_that_may_be_learnt_from():
    g = Group("p", np.arange(2), (rollout(reward=1.0), rollout(reward=-1.0, finish="length")))
    assert informative(g, "keep") and not informative(g, "drop")
    assert not informative(Group("p", np.arange(2), (rollout(), rollout(reward=None))))


# -- gate and lock --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plan():
    small = ["task.options.prompts=50", "validation.prompts=4"]
    return Plan.of(Recipe.load("scalerl", "tiny", overrides=small))


def with_recipe(plan, *overrides):
    recipe = Recipe.load("scalerl", "tiny", overrides=list(overrides))
    return dataclasses.replace(plan, recipe=recipe)


@pytest.mark.parametrize(
    ("overrides", "culprit"),
    [
        (["precision.trainer_head=model", "precision.generator_head=model"], "set both to fp32"),
        (["model.dtype=bfloat16"], "precision"),
        (["sampling.top_p=0.9"], "truncated distribution"),
        (["sampling.temperature=0.7"], "temperature of 0.7"),
        ([], "chat template"),
    ],
)
def test_a_gap_that_would_poison_the_ratios_names_the_likely_culprit(plan, overrides, culprit):
    with pytest.raises(PipelineError, match=culprit):
        gate.verdict(with_recipe(plan, *overrides), [0.5, 0.1])


def test_a_nan_does_not_pass_the_gate(plan):
    with pytest.raises(PipelineError):
        gate.verdict(plan, [0.0, float("nan")])


def test_a_small_gap_passes(plan):
    assert "mean 1e-06" in gate.verdict(plan, [1e-6, 1e-6])


def test_one_directory_has_one_writer(tmp_path):
    assert not is_locked(tmp_path)
    with RunLock(tmp_path):
        assert is_locked(tmp_path)
        with pytest.raises(InputError, match="is being written by process"):
            RunLock(tmp_path)
    assert not is_locked(tmp_path)


# -- weights --------------------------------------------------------------------------------------


def test_a_reader_that_was_overtaken_knows_it_and_versions_go_with_their_weights():
    shared = SharedWeights(Layout(("w",), ((3,),), torch.float32))
    assert shared.version == -1
    for version in range(5):
        ticket = shared.ticket()
        shared.publish({"w": torch.full((3,), float(version))}, version)
        weights, found = shared.read()
        assert found == version == shared.version and weights["w"].tolist() == [version] * 3
        assert shared.intact(shared.ticket())
        if version:  # the buffer read before is written again by the publication after the next
            assert shared.intact(ticket)
            shared.publish({"w": torch.full((3,), float(version))}, version)
            assert not shared.intact(ticket)


def test_a_writer_killed_in_the_middle_is_noticed_and_made_good():
    shared = SharedWeights(Layout(("w",), ((3,),), torch.float32))
    shared.publish({"w": torch.zeros(3)}, 0)
    with pytest.raises(KeyError):  # dies between two tensors
        shared.publish({}, 1)
    assert shared.version == 0 and shared.intact(shared.ticket())
    shared.publish({"w": torch.ones(3)}, 1)
    assert shared.version == 1 and shared.intact(shared.ticket())
