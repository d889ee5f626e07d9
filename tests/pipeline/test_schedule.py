"""The schedules in random worlds: never too old, never stuck, never lost."""

from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalerl.pipeline.schedule import SCHEDULES, GroupAge


class World:
    """Generators of any speed and any delay in picking up weights; groups finish in any order."""

    def __init__(self, schedule, seed, capacity):
        self.s = schedule
        self.rng = np.random.default_rng(seed)
        self.capacity = capacity
        self.trainer = self.generator = self.published = 0
        self.under_way: dict[int, GroupAge] = {}
        self.progress: dict[int, int] = {}
        self.queue: deque[int] = deque()
        self.serial = 0
        self.trained: list[int] = []
        self.staleness: list[int] = []

    def turn(self):
        if self.rng.random() < 0.5:
            self.generator = self.published
        finished = sum(t.finished for t in self.under_way.values())
        room = self.s.room(self.trainer, self.generator, len(self.under_way), finished)
        for _ in range(min(room, 3 if self.s.streams else room)):
            self.under_way[self.serial] = GroupAge(self.serial, self.generator)
            self.progress[self.serial] = int(self.rng.integers(1, 12))
            self.serial += 1
        writing = [s for s, t in self.under_way.items() if not t.finished][: self.capacity]
        for s in writing:
            if self.rng.random() < 0.6:
                self.progress[s] -= 1
                if self.progress[s] <= 0:
                    old = self.under_way[s]
                    self.under_way[s] = GroupAge(s, old.oldest, finished=True)
        choice = self.s.choose(self.trainer, list(self.under_way.values()))
        if choice.serials and self.rng.random() < 0.7:
            for s in choice.serials:
                self.staleness.append(self.trainer - self.under_way.pop(s).oldest)
                self.trained.append(s)
            self.trainer += 1
            if self.s.publishes(self.trainer):
                self.published = self.trainer


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(["pipeline", "off-policy", "lag"]),
    k=st.integers(1, 8),
    prompts=st.integers(1, 5),
    capacity=st.integers(1, 20),
    seed=st.integers(0, 10**6),
)
def test_nothing_is_too_old_lost_trained_twice_or_stuck(name, k, prompts, capacity, seed):
    world = World(SCHEDULES[name](k, prompts), seed, capacity)
    for _ in range(6000):
        world.turn()
        if world.trainer >= 4 * k + 4:
            break
    assert world.trainer >= 4 * k + 4, "the world is stuck"
    assert max(world.staleness) <= (k - 1 if name == "off-policy" else k)
    assert len(set(world.trained)) == len(world.trained)
    assert set(world.trained) | set(world.under_way) == set(range(world.serial))


@settings(max_examples=30, deadline=None)
@given(
    k=st.integers(1, 8),
    prompts=st.integers(1, 5),
    capacity=st.integers(1, 20),
    seed=st.integers(0, 10**6),
)
def test_with_lag_every_group_is_exactly_k_steps_old(k, prompts, capacity, seed):
    world = World(SCHEDULES["lag"](k, prompts), seed, capacity)
    while world.trainer < 3 * k:
        world.turn()
    steps = [i // prompts for i in range(len(world.staleness))]
    assert world.staleness == [min(step, k) for step in steps]


def test_the_trainer_waits_for_a_group_whose_time_is_running_out():
    s = SCHEDULES["pipeline"](k=2, prompts=2)
    fresh = [GroupAge(i, 5, finished=True) for i in range(1, 4)]
    late = GroupAge(0, 3)
    waiting = s.choose(5, [late, *fresh])
    assert waiting.serials == () and "group 0" in waiting.waits_for
    done = s.choose(5, [GroupAge(0, 3, finished=True), *fresh])
    assert done.serials == (0, 1)  # and then it goes first


def test_off_policy_writes_k_batches_before_the_first_update():
    s = SCHEDULES["off-policy"](k=3, prompts=2)
    assert s.room(0, 0, 0, 0) == 6
    assert s.room(1, 0, 0, 0) == 0
    half = [GroupAge(i, 0, finished=i < 5) for i in range(6)]
    assert s.choose(0, half).serials == ()
    assert s.choose(0, [GroupAge(i, 0, finished=True) for i in range(6)]).serials == (0, 1)
    assert [s.publishes(v) for v in range(1, 7)] == [False, False, True, False, False, True]


def test_off_policy_1_is_synchronous():
    s = SCHEDULES["off-policy"](k=1, prompts=4)
    assert s.room(7, 7, 0, 0) == 4 and s.publishes(8)


@pytest.mark.parametrize(("generator", "room"), [(4, 6), (3, 4), (2, 2), (1, 0)])
def test_a_generator_that_lags_may_start_less(generator, room):
    assert SCHEDULES["pipeline"](k=2, prompts=2).room(4, generator, 0, 0) == room
