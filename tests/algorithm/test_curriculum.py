"""Prompts come once an epoch, easy ones leave for good, and a restored curriculum goes on alike."""

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scalerl.algorithm.curriculum import (
    CURRICULA,
    Curriculum,
    NoPositiveResampling,
    OutOfPrompts,
    Uniform,
    epoch_order,
)
from scalerl.errors import InputError
from scalerl.recipe.curriculum import CurriculumSection

NAMES = ["a", "b", "c", "d", "e"]


def restored(curriculum, prompts, rule, seed):
    """A second curriculum made from the first one's state, by way of JSON text."""
    again = Curriculum(prompts, rule, seed)
    again.load_state_dict(json.loads(json.dumps(curriculum.state_dict())))
    return again


# --- the order ---


def test_an_epoch_asks_every_prompt_once():
    prompts = Curriculum(NAMES, Uniform(), seed=1)
    assert sorted(prompts.draw(5)) == NAMES
    assert sorted(prompts.draw(5)) == NAMES


def test_epochs_and_seeds_have_different_orders():
    ids = list(range(100))
    orders = {tuple(epoch_order(seed, epoch, ids)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


def test_the_first_place_is_uniform_over_prompts():
    first = Counter(epoch_order(seed, 0, range(5))[0] for seed in range(2000))
    assert all(abs(n - 400) < 90 for n in first.values())  # 5 standard deviations of 18


def test_a_removed_prompt_does_not_reshuffle_the_others():
    whole = epoch_order(7, 3, NAMES)
    assert epoch_order(7, 3, [p for p in NAMES if p != "c"]) == [p for p in whole if p != "c"]


def test_the_order_does_not_depend_on_how_the_task_lists_its_prompts():
    assert epoch_order(7, 3, NAMES) == epoch_order(7, 3, NAMES[::-1])


def test_the_order_is_the_same_in_every_version():
    """A resumed run relies on it: this list must never change."""
    assert epoch_order(0, 0, range(8)) == [1, 2, 6, 7, 0, 4, 5, 3]


def test_the_size_of_the_draws_does_not_change_the_order():
    one, many = (Curriculum(NAMES, Uniform(), seed=3) for _ in range(2))
    assert [one.draw(1)[0] for _ in range(14)] == many.draw(3) + many.draw(9) + many.draw(2)


def test_an_epoch_boundary_may_fall_inside_a_draw():
    prompts = Curriculum(NAMES, Uniform(), seed=0)
    drawn = prompts.draw(8)
    assert prompts.epoch == 1
    assert sorted(drawn[:5]) == NAMES
    assert len(set(drawn[5:])) == 3


def test_the_next_epoch_begins_only_when_a_draw_needs_it():
    """Else results that arrive between two epochs would come too late by one epoch."""
    prompts = Curriculum(NAMES, NoPositiveResampling(), seed=0)
    prompts.draw(5)
    assert prompts.epoch == 0
    prompts.record("a", 16, 16)
    assert "a" not in prompts.draw(4)


# --- retirement ---


@pytest.mark.parametrize(
    ("n_correct", "n_rollouts", "leaves"),
    [
        (15, 16, True),
        (14, 16, False),
        (16, 16, True),
        (9, 10, True),
        (27, 30, True),
        (0, 16, False),
    ],
)
def test_a_pass_rate_of_nine_tenths_retires(n_correct, n_rollouts, leaves):
    prompts = Curriculum(NAMES, NoPositiveResampling(), seed=0)
    prompts.record("a", n_correct, n_rollouts)
    assert (prompts.retired == 1) is leaves


def test_a_retired_prompt_stays_until_its_epoch_ends_and_never_returns():
    prompts = Curriculum(NAMES, NoPositiveResampling(), seed=0)
    last = epoch_order(0, 0, NAMES)[-1]
    prompts.record(last, 16, 16)
    assert sorted(prompts.draw(5)) == NAMES
    assert last not in prompts.draw(4 * 20)
    assert prompts.epoch == 20


@pytest.mark.parametrize("away", [1, 3])
def test_a_retired_prompt_returns_after_so_many_epochs(away):
    prompts = Curriculum(NAMES, NoPositiveResampling(return_after=away), seed=0)
    prompts.draw(5)
    prompts.record("a", 16, 16)
    prompts.record("a", 0, 16)  # a worse group does not bring it back sooner
    for _ in range(away):
        assert sorted(prompts.draw(4)) == NAMES[1:]
    assert sorted(prompts.draw(5)) == NAMES
    assert prompts.retired == 0


def test_a_returned_prompt_that_is_still_easy_leaves_again():
    prompts = Curriculum(NAMES, NoPositiveResampling(return_after=1), seed=0)
    prompts.draw(5)
    prompts.record("a", 16, 16)
    prompts.draw(4 + 5)
    prompts.record("a", 16, 16)
    assert sorted(prompts.draw(4)) == NAMES[1:]


def test_with_a_way_back_prompts_never_run_out():
    prompts = Curriculum(NAMES, NoPositiveResampling(return_after=2), seed=0)
    for name in NAMES:
        prompts.record(name, 16, 16)
    assert sorted(prompts.draw(10)[5:]) == NAMES
    assert prompts.epoch == 3
    assert not prompts.exhausted


def test_a_state_of_before_prompts_could_return_is_loaded():
    prompts = Curriculum(NAMES, NoPositiveResampling(), seed=0)
    prompts.record("a", 16, 16)
    state = prompts.state_dict()
    del state["retired_in"], state["rule"]["return_after"]
    again = Curriculum(NAMES, NoPositiveResampling(), seed=0)
    again.load_state_dict(state)
    assert again.draw(9) == prompts.draw(9)


def test_a_late_result_applies_from_the_epoch_after():
    prompts = Curriculum(NAMES, NoPositiveResampling(), seed=0)
    prompts.draw(6)
    prompts.record("b", 16, 16)  # of epoch 0, arrived in epoch 1
    assert "b" in epoch_order(0, 1, NAMES)[:1] + prompts.draw(4)
    assert "b" not in prompts.draw(4)


def test_history_rule_latest_looks_at_one_group_and_mean_at_all():
    rules = {name: NoPositiveResampling(history=name) for name in ("latest", "mean")}
    two = {name: Curriculum(NAMES, rule, seed=0) for name, rule in rules.items()}
    for prompts in two.values():
        prompts.record("a", 8, 16)
        prompts.record("a", 16, 16)  # latest 1.0, mean 0.75
        prompts.record("b", 16, 16)  # 1.0 by either rule
    assert two["latest"].retired == 2
    assert two["mean"].retired == 1


def test_the_mean_weighs_rollouts_not_groups():
    prompts = Curriculum(NAMES, NoPositiveResampling(history="mean"), seed=0)
    prompts.record("a", 0, 1)
    prompts.record("a", 19, 19)  # 19 / 20 over rollouts; 0.5 over groups
    assert prompts.retired == 1


def test_retirement_is_permanent_even_if_the_next_group_is_worse():
    prompts = Curriculum(NAMES, NoPositiveResampling(), seed=0)
    prompts.record("a", 16, 16)
    prompts.record("a", 0, 16)
    prompts.draw(5)
    assert "a" not in prompts.draw(8)


def test_a_group_without_rollouts_changes_nothing():
    prompts = Curriculum(NAMES, NoPositiveResampling(), seed=0)
    before = prompts.state_dict()
    prompts.record("a", 0, 0)
    assert prompts.state_dict() == before


def test_uniform_sampling_retires_nobody():
    prompts = Curriculum(NAMES, Uniform(), seed=0)
    for name in NAMES:
        prompts.record(name, 16, 16)
    assert prompts.retired == 0
    assert sorted(prompts.draw(10)[5:]) == NAMES


def test_running_out_of_prompts_is_said_not_looped_over():
    prompts = Curriculum(NAMES, NoPositiveResampling(), seed=0)
    first = prompts.draw(3)
    for name in NAMES:
        prompts.record(name, 16, 16)
    assert not prompts.exhausted
    rest = prompts.draw(10)
    assert sorted(first + rest) == NAMES, "the epoch is finished first"
    assert prompts.exhausted
    with pytest.raises(OutOfPrompts, match="all 5 prompts are retired after epoch 0"):
        prompts.draw(1)
    assert prompts.draw(0) == []


# --- refusals ---


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Curriculum([], Uniform(), seed=0), "at least one prompt"),
        (lambda: Curriculum(["a", "a"], Uniform(), seed=0), "'a' is given twice"),
        (lambda: NoPositiveResampling(threshold=0.0), "not in"),
        (lambda: NoPositiveResampling(threshold=1.1), "choose uniform"),
        (lambda: NoPositiveResampling(history="median"), "'latest' or 'mean'"),
        (lambda: NoPositiveResampling(return_after=-1), "or 0 to retire"),
        (lambda: Curriculum(NAMES, Uniform(), 0).draw(-1), "cannot draw -1"),
        (lambda: Curriculum(NAMES, Uniform(), 0).record("z", 1, 2), "not in this curriculum"),
        (lambda: Curriculum(NAMES, Uniform(), 0).record("a", 3, 2), "is impossible"),
    ],
)
def test_input_that_makes_no_sense_is_refused(make, says):
    with pytest.raises(InputError, match=says):
        make()


@pytest.mark.parametrize(
    "other",
    [
        Curriculum(NAMES, Uniform(), seed=1),
        Curriculum(NAMES, NoPositiveResampling(), seed=0),
        Curriculum(NAMES[:4], Uniform(), seed=0),
    ],
    ids=["seed", "rule", "prompts"],
)
def test_a_state_of_another_curriculum_is_refused(other):
    with pytest.raises(InputError, match="resume with the recipe and task"):
        other.load_state_dict(Curriculum(NAMES, Uniform(), seed=0).state_dict())


def test_integer_ids_keep_their_type_through_a_restore():
    prompts = Curriculum([1, "1", 2], Uniform(), seed=0)
    prompts.draw(2)
    prompts.record(1, 1, 2)
    again = restored(prompts, [1, "1", 2], Uniform(), 0)
    assert again.state_dict() == prompts.state_dict()
    assert again.draw(7) == prompts.draw(7)


# --- any interleaving ---


@settings(max_examples=25, deadline=None)
@given(st.integers(), st.lists(st.integers(1, 7), max_size=10))
def test_the_seed_decides_everything(seed, sizes):
    one, two = (Curriculum(NAMES, NoPositiveResampling(), seed) for _ in range(2))
    for n in sizes:
        drawn = one.draw(n)
        assert drawn == two.draw(n)
        for prompts in (one, two):
            prompts.record(drawn[0], 3, 4)


class Interleaved(RuleBasedStateMachine):
    """Draws, results and restores in any order, against plain bookkeeping: the epochs begun, and
    which prompts the latest still owes."""

    @initialize(
        n=st.integers(1, 6),
        seed=st.integers(0, 5),
        rule=st.sampled_from(
            [Uniform(), NoPositiveResampling(), NoPositiveResampling(0.5, history="mean")]
        ),
    )
    def begin(self, n, seed, rule):
        self.ids, self.seed, self.rule = list(range(n)), seed, rule
        self.curriculum = Curriculum(self.ids, rule, seed)
        self.epochs, self.owed = 1, set(self.ids)
        self.held = []  # every prompt handed out
        self.easy, self.groups = set(), {}

    def over(self):
        return not self.owed and self.easy == set(self.ids)

    @rule(n=st.integers(0, 8))
    def draw(self, n):
        assert self.curriculum.exhausted == self.over()
        if n and self.over():
            with pytest.raises(OutOfPrompts):
                self.curriculum.draw(n)
            return
        drawn = self.curriculum.draw(n)
        for prompt in drawn:
            if not self.owed:  # nothing lost: only then may the next epoch begin
                self.epochs, self.owed = self.epochs + 1, set(self.ids) - self.easy
            assert prompt in self.owed, f"prompt {prompt} is doubled, or retired and back"
            self.owed.remove(prompt)
            self.held.append(prompt)
        assert len(drawn) == n or self.over()

    @precondition(lambda self: self.held)
    @rule(data=st.data(), n_correct=st.integers(0, 16))
    def result(self, data, n_correct):
        prompt = data.draw(st.sampled_from(self.held))
        self.curriculum.record(prompt, n_correct, 16)
        groups = self.groups.setdefault(prompt, [])
        groups.append(n_correct / 16)
        if isinstance(self.rule, Uniform):
            return
        rate = groups[-1] if self.rule.history == "latest" else sum(groups) / len(groups)
        if rate >= self.rule.threshold:
            self.easy.add(prompt)

    @rule()
    def restore(self):
        self.curriculum = restored(self.curriculum, self.ids, self.rule, self.seed)

    @invariant()
    def counts_agree(self):
        assert self.curriculum.retired == len(self.easy)
        assert self.curriculum.epoch == self.epochs - 1


class Twins(RuleBasedStateMachine):
    """A curriculum that is saved and restored before every step does the same as one that never
    is."""

    @initialize(
        seed=st.integers(0, 5),
        history=st.sampled_from(["latest", "mean"]),
        away=st.integers(0, 2),
    )
    def begin(self, seed, history, away):
        self.made = (NAMES, NoPositiveResampling(history=history, return_after=away), seed)
        self.steady, self.restarted = Curriculum(*self.made), Curriculum(*self.made)

    def both(self, act):
        self.restarted = restored(self.restarted, *self.made)
        assert self.restarted.state_dict() == self.steady.state_dict()
        results = []
        for curriculum in (self.steady, self.restarted):
            try:
                results.append(act(curriculum))
            except OutOfPrompts as problem:
                results.append(str(problem))
        assert results[0] == results[1]

    @rule(n=st.integers(0, 8))
    def draw(self, n):
        self.both(lambda curriculum: curriculum.draw(n))

    @rule(prompt=st.sampled_from(NAMES), n_correct=st.integers(0, 16))
    def record(self, prompt, n_correct):
        self.both(lambda curriculum: curriculum.record(prompt, n_correct, 16))


TestInterleaved = Interleaved.TestCase
TestInterleaved.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestTwins = Twins.TestCase
TestTwins.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


# -- by name --------------------------------------------------------------------------------------


class Never:
    """A rule of a user."""

    def __init__(self, *, patience):
        self.patience = patience

    def retires(self, history):
        return history.rollouts > self.patience

    def to_dict(self):
        return {"name": "never", "patience": self.patience}


def test_rules_are_found_by_name_and_path_and_made_from_their_constants():
    assert set(CurriculumSection.types) == set(CURRICULA)
    for name, made in CurriculumSection.types.items():
        constants = made().constants
        assert CURRICULA[name](**constants).to_dict() == {"name": name, **constants}
    mine = CURRICULA[f"{__name__}:Never"](patience=3)
    prompts = Curriculum(["a", "b"], mine, seed=0)
    prompts.record("a", n_correct=0, n_rollouts=4)
    assert prompts.retired == 1
    with pytest.raises(InputError, match="no curriculum 'unifrom': did you mean 'uniform'"):
        CURRICULA["unifrom"]
