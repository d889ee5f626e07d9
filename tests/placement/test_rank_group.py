"""Ranks that are one trainer: one voice, and one end."""

import pytest

from scalerl.pipeline import messages as m
from scalerl.pipeline.crew import MessageReceived, WorkerLost
from scalerl.placement import base_crew
from scalerl.placement.base_crew import RankGroup


class Rank:
    silence = 3.0

    def __init__(self, name):
        self.name, self.sent = name, []

    def send(self, message):
        self.sent.append(message)

    def loss(self):
        return WorkerLost(self, "died: killed by signal 9")


@pytest.fixture
def group():
    return RankGroup([Rank("trainer rank 0"), Rank("trainer rank 1")])


def test_all_are_told_and_the_first_is_heard(group):
    group.send("step")
    assert [r.sent for r in group.ranks] == [["step"], ["step"]]
    first, second = group.ranks
    said = group.on_message(first, m.TrainerDone())
    assert isinstance(said, MessageReceived) and said.worker is group
    assert group.on_message(second, m.TrainerDone()) is None


def test_it_is_ready_when_all_ranks_are(group):
    first, second = group.ranks
    assert group.on_message(first, m.WorkerReady(4)) is None
    assert group.on_message(second, m.WorkerReady(4)).message == m.WorkerReady(4)


def test_a_rank_that_dies_is_named_and_one_that_lost_it_is_not(group):
    first, second = group.ranks
    assert group.on_message(first, m.WorkerFailed("connection closed by peer", lost=True)) is None
    assert group.on_message(first, None) is None
    found = group.on_message(second, None)
    assert isinstance(found, WorkerLost) and found.worker is group
    assert found.why == "rank 1 died: killed by signal 9"


def test_a_rank_that_hangs_is_named_after_a_while(group, monkeypatch):
    first, _ = group.ranks
    group.on_message(first, m.WorkerFailed("timed out after 8000 ms", lost=True))
    assert group.overdue() is None
    monkeypatch.setattr(base_crew, "GRACE_SECONDS", 0.0)
    assert (
        group.overdue().why
        == "is stuck: trainer rank 1 did not answer the other ranks (timed out after 8000 ms)"
    )


def test_what_a_rank_cannot_do_is_said_with_its_name_and_bad_input_as_it_is(group):
    _, second = group.ranks
    said = group.on_message(second, m.WorkerFailed("MemoryError: full"))
    assert said.message == m.WorkerFailed("trainer rank 1: MemoryError: full")
    said = group.on_message(second, m.WorkerFailed("model x: no such file", bad_input=True))
    assert said.message == m.WorkerFailed("model x: no such file", bad_input=True)
