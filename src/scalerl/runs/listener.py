"""Listeners: what a run calls as it goes, for views, trackers, tests and pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from scalerl.streams import is_closed_stream, redirect_unread_streams

if TYPE_CHECKING:
    from scalerl.curves.live import LiveForecast
    from scalerl.recipe.schema import Recipe
    from scalerl.runs.lines import EvalLine, EventLine, StepLine


class Listener:
    """Does nothing; override the methods you need. They are called by the run's own thread, which
    waits until they return: be quick. Times are seconds of the run's clock.

    A context manager, for listeners that hold something (a terminal, a connection).

    >>> class Points(Listener):
    ...     def evaluated(self, line, look):
    ...         print(f"step {line.step}: {line.pass_rate:.2f}")

    and then `train(recipe, "runs/first", listener=Points())`.
    """

    def begin(self, recipe: Recipe, out: Path, resumed_at: int | None) -> None:
        """The run is about to start, or to resume from the checkpoint of step `resumed_at`."""

    def say(self, line: str) -> None:
        """A message for the user; also before `begin` and after `end`."""

    def asked(self, at: float, ids: Sequence[str]) -> None:
        """The rollouts with these ids were sent to a generator."""

    def wrote(self, at: float, version: int, rollouts: Sequence[tuple[str, Any]]) -> None:
        """A generator with weights of `version` has finished these rollouts: (id, Rollout)."""

    def trained(self, began: float, ended: float, version: int) -> None:
        """The trainer took the step that made `version`."""

    def batch(self, groups: Sequence[Any]) -> None:
        """The Groups of the next step, before they go to the trainer."""

    def step(self, line: StepLine) -> None:
        """A step was taken; its line is in the record."""

    def validating(self, step: int, written: int, checked: int, total: int) -> None:
        """A validation is under way, with so many of its answers written and checked. Called when
        it begins, and about once a second."""

    def evaluated(self, line: EvalLine, look: LiveForecast | None) -> None:
        """A validation is in the record; `look` is the fit of the points so far, once there are
        enough."""

    def noted(self, line: EventLine) -> None:
        """An event is in the record."""

    def end(self, reason: str) -> None:
        """The run is over."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


#: Every method that a run calls, now and in later versions.
_CALLS = [name for name in vars(Listener) if not name.startswith("_")]


class Listeners(Listener):
    """Passes every call on to several listeners, in this order."""

    def __init__(self, *listeners: Listener) -> None:
        self.listeners = listeners

    def _pass_on(self, name: str, *values: Any) -> None:
        for each in self.listeners:
            getattr(each, name)(*values)


class DetachableListener(Listener):
    """Passes every call on to a listener until the streams that it writes to have no reader left.

    The run then continues without it, and `lost` is called with one line about that.
    """

    def __init__(self, listener: Listener, lost: Callable[[str], None]) -> None:
        self._listener: Listener | None = listener
        self._lost = lost

    def _pass_on(self, name: str, *values: Any) -> None:
        if self._listener is None:
            return
        try:
            getattr(self._listener, name)(*values)
        except (OSError, ValueError) as error:
            if not is_closed_stream(error):
                raise
            names = redirect_unread_streams()
            if not names:  # not stdout or stderr, but a stream that the listener opened itself
                self._listener = None
            closed = " and ".join(names) or "the listener's stream"
            self._lost(f"output has no reader any more ({closed} is closed); the run goes on")


def _passing_on(name: str) -> Callable[..., None]:
    return lambda self, *values: self._pass_on(name, *values)


# Made in a loop, so that a method that is added to Listener reaches these two as well.
for _name in _CALLS:
    setattr(Listeners, _name, _passing_on(_name))
    setattr(DetachableListener, _name, _passing_on(_name))
