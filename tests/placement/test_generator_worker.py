"""A generator's turns: weights between decode steps, validation in its version, fixed points."""

import pytest

from scalerl.algorithm.length import Limit
from scalerl.engine.interface import Request
from scalerl.engine.simulated import SimulatedEngine
from scalerl.errors import PipelineError
from scalerl.pipeline import messages as m
from scalerl.placement.generator_worker import HEARTBEAT_SECONDS, GeneratorWorker
from scalerl.weights.interface import DirectWeights

#: A decode step takes so long.
STEP = 0.1


class Bench:
    """A generator with an engine that only takes time, and a clock that the test moves."""

    def __init__(self, *, deterministic=False, slots=8):
        self.time = 0.0
        self.channel = DirectWeights()
        self.engine = SimulatedEngine(slots, slots)
        self.part = GeneratorWorker(
            self.engine, self.channel, lambda: self.time, deterministic=deterministic
        )
        self.publish(0)
        self.ready = self.part.start()

    def publish(self, version):
        self.channel.publish(version, {})

    def submit(self, name, lengths, lane="train", version=0, prompt=(1, 2), **more):
        """Rollouts of these lengths: the engine takes them from the seeds."""
        seeds = {row: length - 1 for row, length in enumerate(lengths)}
        request = Request(name, prompt, Limit(1000), seeds, **more)
        self.part.take(m.SubmitRequests((request,), lane, version))

    def turn(self):
        """One turn, which takes as long as a decode step."""
        began, self.time = self.time, self.time + STEP
        found = self.part.work(began)
        assert len(found) <= 1
        return found[0] if found else None

    def turns(self, count):
        return [report for report in (self.turn() for _ in range(count)) if report is not None]


def names(report):
    return [(w.request, w.row) for w in report.written]


def test_it_is_ready_when_the_first_weights_are_there():
    bench = Bench()
    assert bench.ready == m.WorkerReady(0)
    alone = GeneratorWorker(
        SimulatedEngine(1, 1), DirectWeights(), lambda: 0.0, deterministic=False
    )
    assert alone.start() is None


def test_reports_are_numbered_and_say_what_was_taken_in_and_what_time_went_to():
    bench = Bench()
    bench.submit("a", [2, 2])
    bench.submit("b", [4])
    first, second = bench.turns(4)
    assert (first.number, second.number) == (1, 2)
    assert (first.taken, second.taken) == (2, 2)
    assert names(first) == [("a", 0), ("a", 1)] and names(second) == [("b", 0)]
    assert (first.tokens, second.tokens) == (6, 2)
    assert first.seconds["generate"] == pytest.approx(2 * STEP)
    assert second.seconds["generate"] == pytest.approx(2 * STEP)
    assert not bench.part.busy


def test_what_is_finished_is_said_when_its_group_is_whole_or_with_the_next_sign_of_life():
    bench = Bench()
    bench.submit("a", [1, 3])
    bench.submit("b", [2, round(3 * HEARTBEAT_SECONDS / STEP)])
    assert bench.turns(2) == []
    whole = bench.turn()
    assert names(whole) == [("a", 0), ("b", 0), ("a", 1)], "with all that is there"
    bench.submit("c", [1, round(9 * HEARTBEAT_SECONDS / STEP)])
    (alive,) = bench.turns(round(1.2 * HEARTBEAT_SECONDS / STEP))
    assert names(alive) == [("c", 0)], "nothing is kept for longer"


def test_what_two_lanes_wrote_is_never_in_one_report():
    bench = Bench()
    bench.submit("a", [1, 4])
    bench.turn()
    bench.submit("v", [1, 2], "validate", version=0)
    found = []
    for _ in range(8):
        began, bench.time = bench.time, bench.time + STEP / 10
        found += [(r.lane, names(r)) for r in bench.part.work(began) if r.written]
    assert found == [
        ("train", [("a", 0)]), ("validate", [("v", 0), ("v", 1)]), ("train", [("a", 1)])
    ]  # fmt: skip


def test_it_shows_that_it_lives_when_it_has_nothing_to_say():
    bench = Bench()
    found = bench.turns(round(4 * HEARTBEAT_SECONDS / STEP))
    assert 2 <= len(found) <= 4
    assert all(r.written == () and not r.seconds and not r.tokens for r in found)
    assert [r.number for r in found] == list(range(1, len(found) + 1))


def test_new_weights_are_taken_between_two_tokens_and_said_at_once():
    bench = Bench()
    bench.submit("a", [6])
    assert bench.turns(2) == []
    bench.publish(1)
    told = bench.turn()
    assert told.version == 1 and told.written == ()
    assert told.seconds["hand_over"] == pytest.approx(STEP)
    (done,) = bench.turns(3)
    assert done.written[0].turn.versions.tolist() == [0, 0, 1, 1, 1, 1]


def test_a_validation_waits_for_its_version_and_everything_behind_it_too():
    bench = Bench()
    bench.submit("before", [3])
    bench.turn()
    bench.submit("v", [2], "validate", version=1)
    bench.submit("after", [1])
    assert not bench.part.busy, "it waits for weights"
    assert bench.turns(3) == [] and bench.engine.health().running == 1
    bench.publish(1)
    assert bench.part.busy
    validated, *trained = bench.turns(6)
    assert validated.lane == "validate" and names(validated) == [("v", 0)]
    assert validated.written[0].turn.versions.tolist() == [1, 1]
    assert validated.seconds["validate"] == pytest.approx(2 * STEP)
    assert validated.tokens == 1, "only what was written for training"
    assert sorted(n for r in trained for n in names(r)) == [("after", 0), ("before", 0)]
    assert validated.taken == 3


def test_weights_stay_put_during_a_validation():
    bench = Bench()
    bench.submit("a", [2])
    bench.submit("v", [3], "validate", version=0)
    bench.turn()
    bench.publish(1)
    validated, _switched, done = bench.turns(5)
    assert validated.version == 0
    assert validated.written[0].turn.versions.tolist() == [0, 0, 0]
    assert done.version == 1 and done.written[0].turn.versions.tolist() == [1, 1]


def test_in_a_deterministic_run_it_writes_nothing_until_it_is_told_to():
    bench = Bench(deterministic=True)
    bench.submit("a", [1, 2, 3])
    assert not bench.part.busy
    assert bench.turns(3) == []


def test_in_a_deterministic_run_it_does_its_share_with_given_weights_and_holds():
    bench = Bench(deterministic=True)
    bench.submit("a", [1, 2, 3, 5])
    bench.part.take(m.AdvanceAndHold(version=0, rollouts=2))
    bench.publish(1)  # whoever is faster must not matter
    (first,) = bench.turns(4)
    assert names(first) == [("a", 0), ("a", 1)] and first.held
    assert first.version == 0 and not bench.part.busy
    bench.part.take(m.AdvanceAndHold(version=1, rollouts=99))
    (last,) = bench.turns(4)
    assert names(last) == [("a", 2), ("a", 3)] and last.held, "all there is, is its share"
    assert last.version == 1
    assert last.written[1].turn.versions.tolist() == [0, 0, 1, 1, 1]


def test_an_advance_waits_for_its_weights():
    bench = Bench(deterministic=True)
    bench.submit("a", [1])
    bench.part.take(m.AdvanceAndHold(version=2, rollouts=1))
    bench.publish(1)
    assert bench.turns(3) == []
    bench.publish(2)
    (done,) = bench.turns(3)
    assert done.held and done.written[0].turn.versions.tolist() == [2]


def test_a_validation_of_a_deterministic_run_needs_no_advance_and_ends_no_share():
    bench = Bench(deterministic=True)
    bench.submit("a", [4, 4])
    bench.part.take(m.AdvanceAndHold(version=0, rollouts=1))
    bench.turn()
    bench.submit("v", [2], "validate", version=0)
    validated, done = bench.turns(6)
    assert validated.lane == "validate" and not validated.held
    assert names(done) == [("a", 0), ("a", 1)] and done.held


def test_what_a_generator_does_not_understand_is_named():
    with pytest.raises(PipelineError, match="a generator does not understand 'SaveCheckpoint'"):
        Bench().part.take(m.SaveCheckpoint("x"))


def test_one_that_begins_anew_has_forgotten_everything_and_waits_for_the_other_weights():
    bench = Bench(slots=2)
    bench.publish(7)
    bench.submit("long", (30, 30, 30))
    bench.submit("validation", (30,), lane="validate", version=7)
    bench.turns(3)
    bench.submit("late", (5,), lane="validate", version=9)  # waits for weights
    bench.channel = DirectWeights()
    bench.part.reset(bench.channel)
    assert not bench.engine.health().busy and not bench.part.busy
    assert bench.part.start() is None, "the old weights are not taken for the new ones"
    bench.publish(4)
    assert bench.part.start() == m.WorkerReady(4)
    bench.submit("long", (2, 2))  # the same name, asked again
    (report,) = [r for r in bench.turns(3) if r.written]
    assert names(report) == [("long", 0), ("long", 1)] and (report.number, report.taken) == (1, 1)
    assert all(v == 4 for w in report.written for v in w.turn.versions)


@pytest.mark.parametrize("lane", ["train", "validate"])
def test_tokens_read_before_later_turns_of_training_are_counted(lane):
    """All of them, or what the engine has not kept."""
    bench = Bench()
    bench.submit("a", [3, 3], lane, one_by_one=True)
    (first,) = bench.turns(3)
    assert first.read_tokens == 0
    bench.submit("a#0#1", [2], lane, prompt=(1,) * 12, one_by_one=True, continues="a")
    bench.submit("b#0#4", [2], lane, prompt=(1,) * 20, one_by_one=True, continues="b#0#3")
    (second,) = bench.turns(2)
    kept = 2 + 3 - 1  # the last token of a turn is not read
    assert second.read_tokens == (12 - kept + 20 if lane == "train" else 0)
    bench.submit("a#0#2", [1], lane, prompt=(1,) * 5, one_by_one=True, continues="a#0#1")
    (third,) = bench.turns(1)
    assert third.read_tokens == (5 if lane == "train" else 0), "it was rewritten"
