"""Continuous batching by segments, against one decode step after the other."""

import random

import pytest

from scalerl.planner.batching import SimulatedBatching, SimulatedRow
from scalerl.planner.rates import GeneratorRates

RATES = GeneratorRates(step=0.01, stream=0.004, row=0.001, context=1e-6, admit_token=1e-4, slots=6)


def row(i, length, prompt=10):
    return SimulatedRow("g", i, [length], prompt, True)


def run(batching):
    """Until nothing happens any more; the rows in the order of their ends, with times."""
    found = []
    while (at := batching.next_event()) < float("inf"):
        batching.advance(at)
        found += [(one.row, batching.at) for one, _ in batching.done]
        batching.done.clear()
    return found


def step_by_step(lengths, prompt=10):
    """The same, one decode step at a time."""
    time, waiting, running, found = 0.0, list(enumerate(lengths)), {}, []
    while waiting or running:
        admitted = 0
        while waiting and len(running) < RATES.slots:
            i, n = waiting.pop(0)
            running[i] = (n, prompt)
            admitted += prompt
        time += RATES.admit_token * admitted
        cached = sum(c for _, c in running.values())
        time += RATES.decode(len(running)) + RATES.context * cached
        running = {i: (n - 1, c + 1) for i, (n, c) in running.items()}
        found += [(i, time) for i, (n, _) in running.items() if n == 0]
        running = {i: nc for i, nc in running.items() if nc[0]}
    return found


@pytest.mark.parametrize("seed", range(5))
def test_segments_take_as_long_as_their_steps(seed):
    r = random.Random(seed)
    lengths = [r.randint(1, 400) for _ in range(20)]
    batching = SimulatedBatching(RATES)
    batching.submit([row(i, n) for i, n in enumerate(lengths)], "train", 0.0)
    found, known = run(batching), step_by_step(lengths)
    assert sorted(i for i, _ in found) == list(range(20))
    for (_, a), (_, b) in zip(sorted(found), sorted(known), strict=True):
        assert a == pytest.approx(b, rel=0.01, abs=0.02)
    assert batching.row_steps == pytest.approx(sum(lengths))


def test_interruptions_change_nothing():
    """Advancing in many small steps is the same as in one."""
    lengths = [50, 70, 300, 20, 90, 10, 200, 30]
    ends = []
    for every in (None, 0.037):
        batching = SimulatedBatching(RATES)
        batching.submit([row(i, n) for i, n in enumerate(lengths)], "train", 0.0)
        at = 0.0
        while every and at < 10.0:
            at += every
            batching.advance(at)
        ends.append(run(batching) or [(one.row, 0.0) for one, _ in batching.done])
    assert ends[0][-1][1] < 10.0
    assert [i for i, _ in ends[0]] == [one for one, _ in ends[1]]


def test_tokens_have_the_version_they_were_written_with():
    batching = SimulatedBatching(GeneratorRates(0.1, 0.0, 0.0, 0.0, 0.0))
    batching.submit([row(0, 100, prompt=0)], "train", 0.0)
    batching.advance(3.0)
    batching.load(1, 3.0)
    batching.advance(5.0)
    batching.load(2, 5.0)
    batching.advance(20.0)
    ((_, runs),) = batching.done
    assert runs == ((0, 30), (1, 20), (2, 50))


def test_a_full_cache_pushes_rows_out_and_loses_no_token():
    rates = GeneratorRates(0.01, 0.0, 0.0, 0.0, 1e-5, cache_tokens=500, slots=10)
    batching = SimulatedBatching(rates)
    batching.submit([row(i, 150) for i in range(10)], "train", 0.0)
    done = []
    while (at := batching.next_event()) < float("inf"):
        batching.advance(at)
        done += [one for one, _ in batching.done]
        batching.done.clear()
        assert batching.lanes["train"].cached <= 505
    assert batching.preempted > 0 and batching.read_tokens > 0
    assert sorted(one.row for one in done) == list(range(10))
    assert all(one.length == 150 for one in done)


def test_rows_wait_for_their_environment_and_the_others_go_on():
    batching = SimulatedBatching(GeneratorRates(0.1, 0.0, 0.0, 0.0, 0.0))
    slow = SimulatedRow("g", 0, [10, 10], 0, True, reply=5, waits=[7.0])
    batching.submit([slow, row(1, 60, prompt=0)], "train", 0.0)
    found = dict(run(batching))
    # 1 s of a turn, 7 s outside, 1 s of the next turn; the other one is written meanwhile.
    assert found[0] == pytest.approx(9.0, abs=0.2) and found[1] == pytest.approx(6.0, abs=0.2)


def test_validation_comes_first():
    batching = SimulatedBatching(GeneratorRates(0.1, 0.0, 0.0, 0.0, 0.0))
    batching.submit([row(0, 50, prompt=0)], "train", 0.0)
    batching.advance(1.0)
    batching.submit([SimulatedRow("validation//0", 1, [30], 0, True)], "validate", 1.0)
    found = dict(run(batching))
    assert found[1] == pytest.approx(4.0) and found[0] == pytest.approx(8.0)
    assert batching.seconds["validate"] == pytest.approx(3.0)
