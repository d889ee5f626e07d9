"""Who writes what: shares by speed, what each holds, what it was sent and has taken in."""

import random

import pytest
from pieces import FakeClock, FakeHandle, turn

from scalerl.algorithm.length import Limit
from scalerl.engine.interface import Request, TurnResult
from scalerl.pipeline import messages as m
from scalerl.pipeline.dispatch import Dispatcher


@pytest.fixture
def clock():
    return FakeClock()


def dispatcher_of(generators, clock, *, deterministic=False):
    """All of them up, at version 0."""
    handles = [FakeHandle(f"generator {i}") for i in range(generators)]
    found = Dispatcher(handles, clock, deterministic=deterministic)
    for handle in handles:
        found.on_ready(handle, 0)
    return found


def request(name, rows=4):
    return Request(str(name), (1, 2), Limit(5), {row: 10 * row for row in range(rows)})


def report(number, *rows, taken=0, tokens=0, seconds=0.0, version=0):
    written = tuple(TurnResult(name, row, turn(2)) for name, row in rows)
    return m.GeneratorReport(
        number, taken, version, written, seconds={"generate": seconds}, tokens=tokens
    )


def shares(dispatcher, groups):
    """Groups of four rollouts that each generator would get."""
    placed = dispatcher.place([request(f"new {i}") for i in range(groups)], "train", 0)
    return [len(placed.get(name, [])) for name in dispatcher.states]


def after_reports_of_two_speeds(dispatcher):
    fast, slow = dispatcher
    for i in range(40):
        dispatcher.on_report(fast, report(i, tokens=2000, seconds=1.0))
        dispatcher.on_report(slow, report(i, tokens=100, seconds=1.0))
    return dispatcher


def test_a_slow_generator_is_given_less(clock):
    assert shares(after_reports_of_two_speeds(dispatcher_of(2, clock)), 42) == [40, 2]


def test_no_clock_decides_who_writes_what_in_a_deterministic_run(clock):
    dispatcher = after_reports_of_two_speeds(dispatcher_of(2, clock, deterministic=True))
    assert shares(dispatcher, 42) == [21, 21]


def test_who_holds_less_is_given_more(clock):
    dispatcher = dispatcher_of(2, clock)
    first, _ = dispatcher
    dispatcher.assign(first, [request(i) for i in range(3)], "train", 0)
    assert shares(dispatcher, 5) == [1, 4]


def test_what_a_generator_holds_is_known_until_it_is_written_and_old_news_is_dropped(clock):
    dispatcher = dispatcher_of(1, clock)
    (state,) = dispatcher
    dispatcher.assign(state, [request(7)], "train", 0)
    assert list(state.held) == [("7", row) for row in range(4)]
    dispatcher.assign(state, [request("validation/x", 1)], "validate", 0)
    found = dispatcher.on_report(state, report(1, ("7", 1), ("9", 9)))
    assert [(w.request, w.row) for w in found] == [("7", 1)]
    (left,) = state.requests("train")
    assert left.id == "7" and left.seeds == {0: 0, 2: 20, 3: 30}
    assert [r.id for r in state.requests("validate")] == ["validation/x"]
    assert dispatcher.on_report(state, report(2, ("7", 1))) == []
    assert state.turns == 1


def test_what_is_asked_of_a_generator_that_starts_is_sent_when_it_is_up(clock):
    handle = FakeHandle("generator 0")
    dispatcher = Dispatcher([handle], clock, deterministic=False)
    (state,) = dispatcher
    dispatcher.assign(state, [request(3)], "train", 0)
    assert handle.sent == [] and dispatcher.seconds_behind(state) == 0.0
    dispatcher.on_ready(handle, 5)
    assert state.version == 5 and [r.id for r in state.requests("train")] == ["3"]
    dispatcher.assign(state, state.requests("train"), "train", 5)
    (sent,) = handle.sent
    assert sent.lane == "train" and [r.id for r in sent.requests] == ["3"]


def test_a_generator_that_takes_in_nothing_falls_behind_until_it_does(clock):
    dispatcher = dispatcher_of(1, clock)
    (state,) = dispatcher
    clock.time = 10.0
    dispatcher.assign(state, [request(1)], "train", 0)
    clock.time = 12.0
    dispatcher.assign(state, [request(2)], "train", 0)
    clock.time = 15.0
    assert dispatcher.seconds_behind(state) == 5.0
    dispatcher.on_report(state, report(1, taken=1))  # one of two: its clock starts anew
    clock.time = 16.0
    assert dispatcher.seconds_behind(state) == 1.0
    dispatcher.on_report(state, report(2, taken=1))  # alive, but it has not moved on
    clock.time = 18.0
    assert dispatcher.seconds_behind(state) == 3.0
    dispatcher.on_report(state, report(3, taken=2))
    clock.time = 99.0
    assert dispatcher.seconds_behind(state) == 0.0


def test_a_generator_that_reports_and_writes_nothing_of_what_it_holds_is_stuck(clock):
    dispatcher = dispatcher_of(1, clock)
    (state,) = dispatcher
    alive = m.GeneratorReport(1, 0, 0)
    dispatcher.on_report(state, alive)
    clock.time = 50.0
    assert dispatcher.seconds_stuck(state) == 0.0  # it holds nothing
    dispatcher.assign(state, [request(1)], "train", 0)
    dispatcher.on_report(state, alive)
    clock.time = 60.0
    dispatcher.on_report(state, alive)
    assert dispatcher.seconds_stuck(state) == 10.0
    for kind in ("generate", "validate"):  # one lane stands still while the other writes
        dispatcher.on_report(state, m.GeneratorReport(2, 0, 0, seconds={kind: 0.1}))
        assert dispatcher.seconds_stuck(state) == 0.0


def test_a_rollout_that_is_finished_forgives_earlier_deaths(clock):
    dispatcher = dispatcher_of(1, clock)
    (state,) = dispatcher
    dispatcher.assign(state, [request(1)], "train", 0)
    state.deaths = 3
    dispatcher.on_report(state, report(1, tokens=5, seconds=1.0))
    assert state.deaths == 3
    dispatcher.on_report(state, report(2, ("1", 0)))
    assert state.deaths == 0


def test_the_oldest_version_is_that_of_the_generator_that_lags(clock):
    dispatcher = dispatcher_of(3, clock)
    dispatcher.set_versions(4)
    _, lags, _ = dispatcher
    for number, state in enumerate(dispatcher, 1):
        if state is not lags:
            dispatcher.on_report(state, report(number, version=6))
    assert dispatcher.oldest == 4


def test_one_that_joins_is_known_from_its_first_word(clock):
    dispatcher = dispatcher_of(1, clock)
    dispatcher.on_ready(FakeHandle("generator 1"), 3)
    assert len(dispatcher) == 2
    assert shares(dispatcher, 4) == [2, 2]


def test_one_that_joins_gets_its_share_although_only_the_others_have_been_measured(clock):
    dispatcher = dispatcher_of(2, clock)
    for i, state in enumerate(dispatcher):
        dispatcher.on_report(state, report(1, tokens=20_000 + i, seconds=1.0))
    dispatcher.on_ready(FakeHandle("generator 2"), 0)
    assert shares(dispatcher, 30) == [10, 10, 10]


def test_one_that_was_measured_first_does_not_get_all(clock):
    dispatcher = dispatcher_of(2, clock)
    first, _ = dispatcher
    dispatcher.on_report(first, report(1, tokens=20_000, seconds=1.0))
    assert shares(dispatcher, 30) == [15, 15]


def test_the_heap_chooses_as_a_look_at_every_generator_would(clock):
    """In any order of joins, starts, reports, losses and leaves."""
    rng = random.Random(3)
    dispatcher = dispatcher_of(4, clock)
    for i in range(600):
        state = rng.choice(list(dispatcher))
        what = rng.random()
        if what < 0.4 and state.held:
            row = rng.choice(list(state.held))
            took = rng.uniform(0.1, 2.0)
            dispatcher.on_report(state, report(i, row, tokens=50, seconds=took, version=i // 9))
        elif what < 0.5:
            dispatcher.on_restart(state, state.handle)
        elif what < 0.6:
            dispatcher.on_ready(state.handle, i // 9)
        elif what < 0.65 and len(dispatcher) > 2:
            dispatcher.ask_to_leave(state)
            dispatcher.remove(state)
            dispatcher.release(state)
        elif what < 0.7:
            dispatcher.on_ready(FakeHandle(f"generator {10 + i}"), i // 9)
        up = [s for s in dispatcher if not s.starting] or list(dispatcher)
        fastest = min(up, key=lambda s: (len(s.held) + 1) / s.speed)
        (chosen,) = dispatcher.place([request(f"r{i}", rng.randint(1, 3))], "train", 0)
        assert chosen == fastest.handle.name
        writing = [s.version for s in dispatcher if s.held or not s.starting]
        assert dispatcher.oldest == min(writing)
    assert len(dispatcher._heap) < 200


# -- turns of episodes ----------------------------------------------------------------------------


def turns(name, rows=(0,), continues=None):
    """A request for turns that are reported one by one."""
    seeds = {row: 10 * row for row in rows}
    return Request(name, (1, 2), Limit(5), seeds, one_by_one=True, continues=continues)


def after_first_turns(clock, generators=3, **how):
    """A group of four episodes whose first turns the second generator has written."""
    dispatcher = dispatcher_of(generators, clock, **how)
    second = list(dispatcher)[1]
    dispatcher.assign(second, [turns("7", range(4))], "train", 0)
    dispatcher.on_report(second, report(1, *(("7", row) for row in range(4))))
    return dispatcher, second


def placed(dispatcher, *requests):
    shares = dispatcher.place(requests, "train", 0)
    return {r.id: name for name, share in shares.items() for r in share}


def test_the_next_turn_goes_to_the_generator_that_wrote_the_turn_before(clock):
    dispatcher, second = after_first_turns(clock)
    asked = [turns(f"7#{row}#1", [row], "7") for row in range(4)]
    assert set(placed(dispatcher, *asked).values()) == {second.handle.name}
    dispatcher.on_report(second, report(2, ("7#1#1", 1)))
    assert placed(dispatcher, turns("7#1#2", [1], "7#1#1")) == {"7#1#2": second.handle.name}
    assert placed(dispatcher, turns("8")) == {"8": "generator 0"}, "the first turn goes anywhere"


def test_the_next_turn_goes_elsewhere_when_its_generator_is_clearly_busier(clock):
    dispatcher, second = after_first_turns(clock)
    dispatcher.assign(second, [request(f"o{i}") for i in range(2)], "train", 0)
    assert len(second.held) == 8
    assert placed(dispatcher, turns("7#0#1", [0], "7")) == {"7#0#1": second.handle.name}
    dispatcher.assign(second, [request("o2", 1)], "train", 0)
    assert placed(dispatcher, turns("7#1#1", [1], "7")) == {"7#1#1": "generator 0"}
    for other in dispatcher:
        if other is not second:
            dispatcher.assign(other, [request(f"{other.order}", 20)], "train", 0)
    assert placed(dispatcher, turns("7#2#1", [2], "7")) == {"7#2#1": second.handle.name}


@pytest.mark.parametrize("how", ["leaves", "left", "starts again"])
def test_a_generator_that_is_gone_gets_no_next_turn(clock, how):
    dispatcher, second = after_first_turns(clock)
    if how == "starts again":
        dispatcher.on_restart(second, FakeHandle("generator 1"))
    else:
        dispatcher.ask_to_leave(second)
    if how == "left":
        dispatcher.remove(second)
    assert placed(dispatcher, turns("7#0#1", [0], "7")) == {"7#0#1": "generator 0"}


def test_turns_of_a_deterministic_run_go_to_the_generator_that_holds_least(clock):
    dispatcher, _ = after_first_turns(clock, deterministic=True)
    assert placed(dispatcher, turns("7#0#1", [0], "7")) == {"7#0#1": "generator 0"}


def test_the_generators_of_old_turns_are_forgotten(clock, monkeypatch):
    monkeypatch.setattr("scalerl.pipeline.dispatch.REMEMBERED_TURNS", 2)
    dispatcher, second = after_first_turns(clock)
    assert placed(dispatcher, turns("7#0#1", [0], "7")) == {"7#0#1": "generator 0"}
    assert placed(dispatcher, turns("7#3#1", [3], "7")) == {"7#3#1": second.handle.name}
