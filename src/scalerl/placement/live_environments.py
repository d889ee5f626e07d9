"""The environments that a worker holds: one object per episode, all of them on one event loop.

Everything here runs on that event loop: calls wait side by side, and one that hangs costs its own
episode. Blocking environments run in threads (`environments/threads.py`).

An environment is gone after the last reply of its episode, after an error and after a call that
took too long: it is closed exactly once, in the background, so that closing delays no reply.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from scalerl.environments.interface import Environment, Observation, Outcome
from scalerl.environments.replies import CheckedEnvironment, fingerprint, shortened
from scalerl.environments.threads import THREAD_LIMIT, TIME_LIMIT, ThreadLimit
from scalerl.errors import InputError
from scalerl.pipeline import messages as m
from scalerl.tasks.task import Task, named
from scalerl.text import one_line

T = TypeVar("T")

#: Characters of an observation that are passed on: some 64,000 tokens, more than an episode has
#: room for. A page of a website may have millions, which the loop would have to tokenise.
MAX_CHARACTERS = 1 << 18
#: Seconds that an environment gets to close: stopping a container takes a few.
CLOSE_SECONDS = 10.0


class _Late(Exception):
    """A call has used up its time."""


class _CannotReplay(Exception):
    """A replay differs from what the model was shown."""


@dataclass(slots=True, eq=False)
class _Held:
    """An environment, and the number of turns that it has replied to."""

    environment: Environment
    turns: int = 0


@dataclass(slots=True, eq=False)
class RunningCall:
    """A call of an environment that is under way."""

    began: float
    #: What was asked for; None: the environment is being closed.
    asked: m.CallEnvironment | None = None
    #: The environment, once it is there.
    held: _Held | None = None
    #: The task of the event loop that runs it.
    task: asyncio.Task[None] | None = None
    #: Its time limit.
    limit: asyncio.Timeout | None = None
    #: Whether it was answered; a later result is ignored.
    over: bool = False
    #: Whether it was given up and still runs.
    hung: bool = False

    def overdue(self, now: float) -> float:
        """Seconds by which its time is over; negative while it is not, and while it waits."""
        when = None if self.limit is None else self.limit.when()
        return -1.0 if when is None else now - when


class LiveEnvironments:
    """Environments by episode. `make` makes one for a call; each of its methods has `seconds`;
    `places` blocking calls run at once. `done` gets the reply to a call, or None if the environment
    is not here, or is closed."""

    def __init__(
        self,
        make: Callable[[m.EnvironmentCall], Environment],
        seconds: float,
        places: int,
        done: Callable[[RunningCall, m.EnvironmentReply | None], None],
    ) -> None:
        self.under_way: set[RunningCall] = set()
        self.threads = ThreadLimit(places)
        self._make, self._seconds, self._done = make, seconds, done
        self._held: dict[str, _Held] = {}
        #: Calls under way, by episode: an episode has one at a time.
        self._calls: dict[str, RunningCall] = {}

    def __len__(self) -> int:
        return len(self._held)

    def begin(self, message: m.CallEnvironment) -> None:
        """Start a call."""
        running = RunningCall(time.monotonic(), message)
        self._calls[message.call.episode] = running
        self._start(running, self._answer(running, message))

    def close(self, episodes: Iterable[str]) -> None:
        """Close environments, and cancel their calls."""
        for episode in episodes:
            running = self._calls.get(episode)
            if running is None or running.task is None:
                self._drop(episode, self._held.get(episode))
            else:
                # Not at once: a task that is cancelled before it has begun would never answer.
                asyncio.get_running_loop().call_soon(running.task.cancel)

    def close_all(self) -> None:
        """Close all environments, and cancel all calls."""
        self.close([*self._held, *self._calls])

    async def closed(self, seconds: float) -> None:
        """Close all environments, in at most this many seconds."""
        end = time.monotonic() + seconds
        self.close_all()
        await asyncio.sleep(0)  # calls are cancelled, and their environments begin to close
        while self.under_way and (left := end - time.monotonic()) > 0:
            tasks = [running.task for running in self.under_way if running.task is not None]
            await asyncio.wait(tasks, timeout=left)

    # -- one call ---------------------------------------------------------------------------------

    def _start(self, running: RunningCall, work: Coroutine[Any, Any, None]) -> None:
        self.under_way.add(running)
        running.task = asyncio.get_running_loop().create_task(self._run(running, work))

    async def _run(self, running: RunningCall, work: Coroutine[Any, Any, None]) -> None:
        THREAD_LIMIT.set(self.threads)
        try:
            await work
        finally:
            self.under_way.discard(running)

    async def _answer(self, running: RunningCall, message: m.CallEnvironment) -> None:
        call, held, reply, problem, late = message.call, None, None, "", False
        try:
            held = await self._environment(running, message)
            reply = None if held is None else await self._reply(running, held, call)
        except BaseException as error:  # environments may raise anything, SystemExit included
            problem, late = self._problem(call, error), isinstance(error, _Late)
        if self._calls.get(call.episode) is running:
            del self._calls[call.episode]
        if problem or running.over or isinstance(reply, Outcome) or call.kind == "cut_off":
            self._drop(call.episode, running.held)
        elif held is None:
            self._done(running, None)
            return
        seconds = time.monotonic() - running.began
        self._done(running, m.EnvironmentReply(
            call.episode, call.kind, reply, fingerprint(reply), problem, late, seconds
        ))  # fmt: skip

    async def _environment(self, running: RunningCall, message: m.CallEnvironment) -> _Held | None:
        """The environment of a call, as it was before the call; None if it should be here, and is
        not."""
        call = message.call
        running.held = held = self._held.get(call.episode)
        if message.held is not None and held is not None and held.turns == message.held:
            return held
        self._drop(call.episode, held)
        if message.held is not None:
            return None
        running.held = held = self._held[call.episode] = _Held(self._make(call))
        if call.kind != "reset":
            await self._replay(running, held, call)
        return held

    async def _replay(self, running: RunningCall, held: _Held, call: m.EnvironmentCall) -> None:
        """Reset an environment and repeat the turns so far."""
        environment, shown = held.environment, iter(call.shown)
        reply = await self._limited(running, environment.reset(call.prompt, call.seed))
        _compare(reply, next(shown, None), "reset")
        for action in call.history:
            found = await self._limited(running, environment.step(action))
            held.turns += 1
            _compare(found, next(shown, None), f"turn {held.turns}")

    async def _reply(
        self, running: RunningCall, held: _Held, call: m.EnvironmentCall
    ) -> Observation | Outcome | None:
        environment = held.environment
        if call.kind == "cut_off":
            return await self._limited(running, environment.cut_off())
        if call.kind == "reset":
            return _passed_on(
                await self._limited(running, environment.reset(call.prompt, call.seed))
            )
        assert call.action is not None
        found = await self._limited(running, environment.step(call.action))
        held.turns += 1
        return _passed_on(found)

    async def _limited(
        self, running: RunningCall, call: Awaitable[T], seconds: float | None = None
    ) -> T:
        """Await one call of an environment, and cancel it when its time is over."""
        running.limit = limit = asyncio.timeout(self._seconds if seconds is None else seconds)
        TIME_LIMIT.set(limit)
        try:
            async with limit:
                return await call
        except BaseException:  # it may raise something else when it is cancelled
            if limit.expired():
                raise _Late from None
            raise
        finally:
            running.limit = None

    def _problem(self, call: m.EnvironmentCall, error: BaseException) -> str:
        """Why a call failed, in one line."""
        what = f"the environment of task {call.prompt.task}"
        if isinstance(error, _Late):
            return late_text(call, self._seconds)
        if isinstance(error, _CannotReplay):
            return f"{what} cannot be replayed: {error}"
        if isinstance(error, InputError):  # its text names the environment
            return one_line(str(error))
        if isinstance(error, asyncio.CancelledError):
            return f"{what} was cancelled"
        return one_line(f"{what} raised {named(error)}")

    # -- closing ----------------------------------------------------------------------------------

    def _drop(self, episode: str, held: _Held | None) -> None:
        """Forget an environment, and close it in the background; nothing if the episode has another
        one meanwhile."""
        if held is not None and self._held.get(episode) is held:
            del self._held[episode]
            running = RunningCall(time.monotonic())
            self._start(running, self._close(running, held.environment))

    async def _close(self, running: RunningCall, environment: Environment) -> None:
        # The episode has its reply: what closing raises changes nothing.
        with suppress(BaseException):
            await self._limited(running, environment.close(), CLOSE_SECONDS)
        self._done(running, None)


def _compare(reply: Observation | Outcome, shown: str | None, what: str) -> None:
    if shown is not None and fingerprint(_passed_on(reply)) != shown:
        raise _CannotReplay(f"it replied to {what} otherwise than before")


def _passed_on(reply: Observation | Outcome) -> Observation | Outcome:
    return shortened(reply, MAX_CHARACTERS) if isinstance(reply, Observation) else reply


def late_text(call: m.EnvironmentCall, seconds: float) -> str:
    """What is reported of an environment that was given up."""
    return f"the environment of task {call.prompt.task} has not answered for {seconds:g} s"


def environment_of(task: Task, call: m.EnvironmentCall) -> Environment:
    """A new environment for a call; its replies are checked."""
    made = task.new_environment(call.prompt)
    if not isinstance(made, Environment):
        raise InputError(f"task {call.prompt.task} has no environment for its prompts")
    if isinstance(made, CheckedEnvironment):
        return made
    return CheckedEnvironment(made, call.prompt.task)


def run_event_loop(events: asyncio.AbstractEventLoop) -> None:
    """Run an event loop in this thread until it is stopped, and close it."""
    asyncio.set_event_loop(events)
    while True:
        try:
            events.run_forever()
        except BaseException:
            # SystemExit in a task ends `run_forever`. The loop must go on for the other calls; the
            # one that raised it gets its exception from `await`.
            continue
        events.close()
        return
