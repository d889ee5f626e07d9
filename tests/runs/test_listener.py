"""Everybody who listens hears everything."""

import inspect
from pathlib import Path

import pytest

from scalerl.runs.listener import Listener, Listeners

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
