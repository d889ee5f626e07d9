"""Who is told what happens in a run: views, trackers, tests, pictures, pages."""

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
    """Does nothing; override what you want to hear of. It is called by the run's own thread, which
    waits meanwhile: be quick. Times are seconds of the run's clock.

    A context manager, for those that hold something (a terminal, a connection) and give it back.

    >>> class Points(Listener):
    ...     def evaluated(self, line, look):
    ...         print(f"step {line.step}: {line.pass_rate:.2f}")

    and then `train(recipe, "runs/first", listener=Points())`.
    """

    def begin(self, recipe: Recipe, out: Path, resumed_at: int | None) -> None:
        """The run is about to start, or to start again from the checkpoint of this step."""

    def say(self, line: str) -> None:
        """Anything worth a line; also before `begin` and after `end`."""

    def asked(self, at: float, ids: Sequence[str]) -> None:
        """These rollouts were sent to a generator."""

    def wrote(self, at: float, version: int, rollouts: Sequence[tuple[str, Any]]) -> None:
        """A generator whose weights are `version` has finished these: (id, Rollout)."""

    def trained(self, began: float, ended: float, version: int) -> None:
        """The trainer took the step that made `version`."""

    def batch(self, groups: Sequence[Any]) -> None:
        """The Groups of the next step, before they go to the trainer."""

    def step(self, line: StepLine) -> None:
        """A step was taken; its line is in the record."""

    def validating(self, step: int, written: int, checked: int, total: int) -> None:
        """A validation is under way: so many of its answers are written, and checked. Told when it
        begins, and about once a second."""

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


class Listeners(Listener):
    """Tells several, in this order."""

    def __init__(self, *listeners: Listener) -> None:
        self.listeners = listeners

    def begin(self, recipe: Recipe, out: Path, resumed_at: int | None) -> None:
        for each in self.listeners:
            each.begin(recipe, out, resumed_at)

    def say(self, line: str) -> None:
        for each in self.listeners:
            each.say(line)

    def asked(self, at: float, ids: Sequence[str]) -> None:
        for each in self.listeners:
            each.asked(at, ids)

    def wrote(self, at: float, version: int, rollouts: Sequence[tuple[str, Any]]) -> None:
        for each in self.listeners:
            each.wrote(at, version, rollouts)

    def trained(self, began: float, ended: float, version: int) -> None:
        for each in self.listeners:
            each.trained(began, ended, version)

    def batch(self, groups: Sequence[Any]) -> None:
        for each in self.listeners:
            each.batch(groups)

    def step(self, line: StepLine) -> None:
        for each in self.listeners:
            each.step(line)

    def validating(self, step: int, written: int, checked: int, total: int) -> None:
        for each in self.listeners:
            each.validating(step, written, checked, total)

    def evaluated(self, line: EvalLine, look: LiveForecast | None) -> None:
        for each in self.listeners:
            each.evaluated(line, look)

    def noted(self, line: EventLine) -> None:
        for each in self.listeners:
            each.noted(line)

    def end(self, reason: str) -> None:
        for each in self.listeners:
            each.end(reason)


class DetachableListener(Listener):
    """Tells a listener whatever happens. When the streams it writes to have lost their reader, the
    run goes on without: `lost` is told so, in one line."""

    def __init__(self, listener: Listener, lost: Callable[[str], None]) -> None:
        self._listener: Listener | None = listener
        self._lost = lost

    def _tell(self, name: str, *what: Any) -> None:
        if self._listener is None:
            return
        try:
            getattr(self._listener, name)(*what)
        except (OSError, ValueError) as error:
            if not is_closed_stream(error):
                raise
            names = redirect_unread_streams()
            if not names:  # a stream of its own
                self._listener = None
            closed = " and ".join(names) or "the listener's stream"
            self._lost(f"nobody listens any more ({closed} is closed); the run goes on")


def _telling(name: str) -> Callable[..., None]:
    return lambda self, *what: self._tell(name, *what)


# Everything that a listener can be told, now and in later versions.
for _name in [name for name in vars(Listener) if not name.startswith("_")]:
    setattr(DetachableListener, _name, _telling(_name))
