"""Everybody who listens hears everything."""

import errno
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scalerl.runs.listener import DetachableListener, Listener, Listeners

METHODS = [name for name, _ in inspect.getmembers(Listener, inspect.isfunction)
           if not name.startswith("_")]  # fmt: skip


class Notes(Listener):
    """Writes down every call."""

    def __init__(self):
        self.heard = []

    def __getattribute__(self, name):
        if name in METHODS:
            return lambda *given: self.heard.append((name, given))
        return super().__getattribute__(name)


def given(name):
    return tuple(inspect.signature(getattr(Listener, name)).parameters)[1:]


@pytest.mark.parametrize("name", METHODS)
def test_several_listeners_hear_the_same(name):
    first, second = Notes(), Notes()
    getattr(Listeners(first, Listener(), second), name)(*given(name))
    assert first.heard == second.heard == [(name, given(name))]


@pytest.mark.parametrize("name", METHODS)
def test_a_listener_that_wants_to_hear_nothing_is_told_all_the_same(name):
    assert getattr(Listener(), name)(*given(name)) is None


def test_what_there_is_to_hear():
    assert set(METHODS) == {"begin", "say", "asked", "wrote", "trained", "batch", "step",
                            "validating", "evaluated", "noted", "end"}  # fmt: skip


def test_a_listener_can_be_left_like_one_that_holds_something():
    with Listener() as listener:
        listener.begin(None, Path("run"), None)


class Prints(Listener):
    """Writes to a stream."""

    def __init__(self, stream):
        self.stream = stream

    def say(self, line):
        self.stream.write(line)
        self.stream.flush()


def test_a_listener_whose_reader_is_gone_is_left_alone_and_that_is_told_once():
    ours, theirs = os.pipe()
    told = []
    heard = DetachableListener(Prints(os.fdopen(theirs, "w")), told.append)
    heard.say("one")
    assert os.read(ours, 10) == b"one"
    os.close(ours)
    for _ in range(3):
        heard.say("two")
    assert told == [
        "output has no reader any more (the listener's stream is closed); the run goes on"
    ]  # fmt: skip


def test_what_else_goes_wrong_in_a_listener_is_not_hidden():
    class Full(Listener):
        def say(self, line):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        DetachableListener(Full(), print).say("one")


def test_everything_that_a_listener_can_be_told_is_passed_on():
    told = []

    class Every(Listener):
        def __getattribute__(self, name):
            return lambda *what: told.append((name, what))

    heard = DetachableListener(Every(), print)
    names = [name for name in vars(Listener) if not name.startswith("_")]
    for name in names:
        getattr(heard, name)(1, 2)
    assert told == [(name, (1, 2)) for name in names]


SILENT = """
import os, sys
from scalerl.streams import redirect_unread_streams, ignore_unread_output
print("first", flush=True)
sys.stdin.read()                     # the reader of stdout is gone
{}
print("second", flush=True)
print("done", file=sys.stderr)
"""


@pytest.mark.parametrize(
    "how", ["assert redirect_unread_streams() == ['stdout']", "ignore_unread_output()"]
)
def test_a_stream_that_nobody_reads_swallows_what_it_is_given(how):
    """And no complaint when Python ends."""
    process = subprocess.Popen([sys.executable, "-c", SILENT.format(how)], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    assert process.stdout.readline() == b"first\n"
    process.stdout.close()
    process.stdin.close()
    assert (process.stderr.read(), process.wait(60)) == (b"done\n", 0)
