"""The ledger adds up, on whatever clock it is given."""

import json

import pytest
from pieces import FakeClock

from scalerl.pipeline.ledger import Ledger
from scalerl.tasks.judge import DEVICE_SECONDS, READ_TOKENS, WRITTEN_TOKENS
from scalerl.tasks.task import AnswerScore


@pytest.fixture
def clock():
    return FakeClock()


def spent_on_devices(line):
    """Of these, device-seconds are the sum."""
    s = line.spent
    return s.generate + s.hand_over + s.train + s.generate_wait + s.train_wait


def test_the_ledger_adds_up_and_validation_is_apart(clock):
    ledger = Ledger(clock, parameters=100, generators=2, trainers=1)
    ledger.start()
    clock.time = 10.0
    ledger.validating(True)
    clock.time = 16.0
    ledger.validating(False)
    clock.time = 30.0
    ledger.spent |= {
        "generate": 30.0,
        "hand_over": 1.0,
        "train": 5.0,
        "validate": 9.0,
        "check": 7.0,
    }
    assert ledger.compute().device_hours == pytest.approx(3 * 24 / 3600)
    line = ledger.to_line()
    assert line.validation_seconds == pytest.approx(3 * 6)
    assert line.spent.generate_wait == pytest.approx(48 - 31)
    assert line.spent.train_wait == pytest.approx(24 - 5)
    assert spent_on_devices(line) == pytest.approx(line.device_seconds)


def test_minutes_are_of_the_clock_with_validation_and_without_what_was_before_the_start(clock):
    ledger = Ledger(clock, 100, generators=3, trainers=1)
    clock.time = 100.0
    assert ledger.compute().minutes == 0.0
    ledger.start()
    clock.time = 160.0
    ledger.validating(True)
    clock.time = 190.0
    assert ledger.compute().minutes == pytest.approx(1.5)


def test_a_resumed_ledger_goes_on_and_the_pause_is_not_counted(clock):
    first = Ledger(clock, 100, 1, 1)
    first.start()
    first.waste("filtered", 3, 40)
    clock.time = 10.0
    state = json.loads(json.dumps(first.state()))
    clock.time = 1000.0
    second = Ledger(clock, 100, 1, 1)
    second.restore(state)
    second.start()
    clock.time = 1005.0
    found = second.compute()
    assert found.device_hours == pytest.approx(2 * 15 / 3600)
    assert found.minutes == pytest.approx(15 / 60)
    second.waste("filtered", 1, 2)
    wasted = second.to_line().wasted.filtered
    assert (wasted.rollouts, wasted.tokens) == (4, 42)


def test_validation_counts_as_compute_when_the_recipe_says_so(clock):
    ledger = Ledger(clock, 100, 1, 1, count_validation=True, device_seconds=10,
                    validation_seconds=5)  # fmt: skip
    assert ledger.compute().device_hours == pytest.approx(15 / 3600)


def test_waiting_for_checks_alone_is_a_part_of_the_trainers_waiting(clock):
    ledger = Ledger(clock, 100, generators=2, trainers=1)
    ledger.start()
    clock.time = 2.0
    ledger.awaits_checks(True)
    clock.time = 5.0
    ledger.awaits_checks(True)  # still: nothing new begins
    clock.time = 6.0
    ledger.awaits_checks(False)
    clock.time = 9.0
    spent = ledger.to_line().spent
    assert spent.check_wait == pytest.approx(4.0)
    assert spent.train_wait == pytest.approx(9.0)


def test_validation_is_no_waiting_for_checks(clock):
    ledger = Ledger(clock, 100, 1, 1)
    ledger.start()
    ledger.awaits_checks(True)
    clock.time = 3.0
    ledger.validating(True)
    clock.time = 8.0
    ledger.validating(False)
    assert ledger.check_wait == pytest.approx(3.0)


def test_a_generator_that_joins_counts_from_then_on(clock):
    ledger = Ledger(clock, 100, generators=1, trainers=1)
    ledger.start()
    clock.time = 10.0
    ledger.generator_joined()
    clock.time = 15.0
    line = ledger.to_line()
    assert line.device_seconds == pytest.approx(2 * 10 + 3 * 5)
    assert line.spent.generate_wait == pytest.approx(10 + 2 * 5)
    assert line.spent.train_wait == pytest.approx(15)
    assert spent_on_devices(line) == pytest.approx(line.device_seconds)


def test_flops_are_two_per_parameter_written_and_six_trained(clock):
    ledger = Ledger(clock, 100, 1, 1, generated_tokens=5, trained_tokens=7)
    assert ledger.compute().flops == 100 * (2 * 5 + 6 * 7)


def test_all_ranks_of_a_trainer_work_at_once(clock):
    ledger = Ledger(clock, 100, generators=2, trainers=3)
    ledger.start()
    clock.time += 10
    ledger.add_work("train", 4.0)
    split = ledger.to_line().spent
    assert (split.train, split.train_wait) == (12.0, 18.0)


def test_device_seconds_are_told_apart_by_kind_of_device(clock):
    ledger = Ledger(clock, 100, generators=2, trainers=3)
    ledger.set_device("trainer", "H100")
    ledger.set_device("generator 0", "H100")
    ledger.set_device("generator 1", "A100")
    ledger.start()
    clock.time += 10
    ledger.set_device("generator 1", "H100")  # another in its place
    clock.time += 10
    line = ledger.to_line()
    assert line.by_kind == pytest.approx({"H100": 90.0, "A100": 10.0})
    assert sum(line.by_kind.values()) == pytest.approx(line.device_seconds)
    ledger.validating(True)
    ledger.add_work("generate", 4.0)  # done with its share: writing for training again
    assert ledger.by_kind["H100"] == pytest.approx(94.0)
    again = Ledger(clock, 100, 2, 3)
    again.restore(json.loads(json.dumps(ledger.state())))
    assert again.by_kind == ledger.by_kind


def test_all_devices_of_a_generator_count(clock):
    ledger = Ledger(clock, 100, generators=2, trainers=1, devices_per_generator=4)
    ledger.start()
    clock.time = 10.0
    ledger.add_work("generate", 6.0)
    ledger.add_work("train", 5.0)
    line = ledger.to_line()
    assert ledger.devices == 9 and line.device_seconds == pytest.approx(90)
    assert line.spent.generate == pytest.approx(24)
    assert line.spent.generate_wait == pytest.approx(80 - 24)
    assert spent_on_devices(line) == pytest.approx(line.device_seconds)
    ledger.validating(True)
    clock.time = 13.0
    assert ledger.to_line().validation_seconds == pytest.approx(27)


def test_a_judge_has_lines_of_its_own_and_a_resumed_ledger_keeps_them(clock):
    ledger = Ledger(clock, 100, generators=1, trainers=1)
    ledger.start()
    clock.time = 10.0
    cost = ((READ_TOKENS, 30.0), (WRITTEN_TOKENS, 4.0), (DEVICE_SECONDS, 0.5))
    ledger.add_judging([AnswerScore(True, 1.0, "", metrics=cost), AnswerScore(None, None, "?")] * 2)
    again = Ledger(clock, 100, generators=1, trainers=1)
    again.restore(json.loads(json.dumps(ledger.state())))
    for one in (ledger.to_line(), again.to_line()):
        assert (one.judge_read_tokens, one.judge_written_tokens) == (60, 8)
        assert one.spent.judge == pytest.approx(1.0)
        assert one.device_seconds == pytest.approx(20)
