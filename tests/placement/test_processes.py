"""Parts as processes: what goes wrong between them and the loop is said, never waited for."""

import os
import queue
import signal
import time

import pytest

from scalerl.errors import InputError
from scalerl.pipeline import messages as m
from scalerl.pipeline.crew import MessageReceived, WorkerLost
from scalerl.pipeline.setup import RunSetup
from scalerl.placement.processes import ProcessCrew, ProcessHandle
from scalerl.recipe import Recipe

LIMIT = 600.0


def explode():
    raise ImportError("a class that this process has not got")


class Unreadable:
    """Travels well and cannot be unpacked."""

    def __reduce__(self):
        return explode, ()


class Untold:
    """Cannot even be packed."""

    def __reduce__(self):
        raise TypeError("not for travelling")


def echoes(conn):
    """A part that says what it was told, or what it should not."""
    while True:
        message = conn.recv()
        if message == "stop":
            return
        conn.send(Unreadable() if message == "unreadable" else message)


@pytest.fixture
def part():
    inbox = queue.SimpleQueue()
    handle = ProcessHandle("part 0", inbox, echoes)
    yield handle, inbox
    handle.kill()


def test_messages_keep_their_order_and_end_its_silence(part):
    handle, inbox = part
    time.sleep(0.05)
    for i in range(100):
        handle.send(i)
    assert [inbox.get(timeout=LIMIT) for _ in range(100)] == [(handle, i) for i in range(100)]
    assert handle.silence < LIMIT


def test_its_end_is_told_in_words(part):
    handle, inbox = part
    os.kill(handle.process.pid, signal.SIGKILL)
    assert inbox.get(timeout=LIMIT) == (handle, None)
    assert handle.end() == "died: killed by signal 9"


def test_one_that_ends_by_itself_says_with_which_code(part):
    handle, inbox = part
    handle.send("stop")
    assert inbox.get(timeout=LIMIT) == (handle, None)
    assert handle.end() == "died: exit code 0"


@pytest.mark.parametrize(
    ("message", "why"),
    [("unreadable", "sent a message that cannot be unpickled (ImportError: a class"),
     (Untold(), "was to get a message that cannot be pickled (TypeError: not for travelling")],
)  # fmt: skip
def test_what_cannot_travel_ends_the_run_instead_of_being_waited_for(part, message, why):
    handle, inbox = part
    handle.send(message)
    who, said = inbox.get(timeout=LIMIT)
    assert who is handle and isinstance(said, m.WorkerFailed) and said.reason.startswith(why)


def test_a_successor_keeps_the_name_and_what_the_old_one_said_is_not_heard(part):
    handle, inbox = part
    other = handle.restart()
    try:
        assert other.name == "part 0" and not handle.process.is_alive()
        other.send("hello")
        found = [inbox.get(timeout=LIMIT) for _ in range(2)]
        assert (handle, None) in found and (other, "hello") in found
    finally:
        other.kill()


@pytest.fixture(scope="module")
def crew():
    small = ["batch.prompts=2", "batch.generations=2", "validation.prompts=4", "validation.k=1",
             "task.options.prompts=50"]  # fmt: skip
    found = ProcessCrew(RunSetup.from_recipe(Recipe.load("scalerl", "tiny", overrides=small)))
    yield found
    found.stop(at_once=True)


def heard(crew, until):
    """Events until one of them is as wanted."""
    deadline, found = time.monotonic() + 2 * LIMIT, []
    while time.monotonic() < deadline:
        found += crew.poll(0.5)
        if any(map(until, found)):
            return found
    raise AssertionError(found)


def test_all_parts_of_a_crew_say_that_they_are_up_and_where_they_are(crew):
    names = {"trainer", "generator 0", *(c.name for c in crew.checkers)}
    ready = set()
    deadline = time.monotonic() + 2 * LIMIT
    while ready != names and time.monotonic() < deadline:
        said = [e for e in crew.poll(0.5) if isinstance(e, MessageReceived)]
        ready |= {e.worker.name for e in said if isinstance(e.message, m.WorkerReady)}
    assert ready == names
    assert crew.pids().keys() == names | {"main"}


def test_a_part_that_is_replaced_is_heard_of_once_as_gone_and_then_as_ready(crew):
    """Runs after the test above: the crew is up."""
    checker = crew.checkers[0]
    os.kill(checker.process.pid, signal.SIGKILL)
    (gone,) = [
        e for e in heard(crew, lambda e: isinstance(e, WorkerLost)) if isinstance(e, WorkerLost)
    ]
    assert gone.worker is checker and gone.why == "died: killed by signal 9"
    new = crew.replace(checker)
    assert new is crew.checkers[0] and new.name == checker.name
    found = heard(crew, lambda e: e.worker is new and e.message == m.WorkerReady())
    assert not any(isinstance(e, WorkerLost) for e in found)


def test_weights_that_cannot_leave_a_process_are_refused():
    recipe = Recipe.load("scalerl", "tiny", overrides=["placement.weights=direct"])
    with pytest.raises(InputError, match="stays within one process"):
        ProcessCrew(RunSetup.from_recipe(recipe))
