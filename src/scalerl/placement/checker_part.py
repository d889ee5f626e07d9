"""A checker: judges answers, many at a time, each with a limit. Its verifiers are somebody else's.

Calls of ordinary functions run in threads, async ones on an event loop of their own. A thread that
hangs cannot be ended: it is left behind, its answer unscored and its place taken by a new thread,
and the loop is told, which replaces the whole process when too many hang. An async call that blocks
the event loop is left behind with it: the other calls are made again on a new one. Where a call
takes the process with it, the loop finds out which one it was (pipeline/checks.py).
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from scalerl.errors import PipelineError
from scalerl.pipeline import messages as m
from scalerl.tasks.task import Answer, AnswerScore, Task, named

#: Seconds beyond its limit after which an async call has not been cancelled because it blocks.
BLOCKED = 1.0


@dataclass(slots=True, eq=False)
class _Job:
    """Answers of one prompt and the verdicts so far."""

    number: int
    size: int
    verdicts: dict[int, AnswerScore] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(slots=True, eq=False)
class _Call:
    """One call of a verifier: an answer, or several that it judges together."""

    job: _Job
    places: tuple[int, ...]
    answers: tuple[Answer, ...]
    began: float | None = None
    over: bool = False
    #: Given up, and still running.
    hung: bool = False
    #: Its place on the event loop, if it is async.
    task: asyncio.Task[Any] | None = None


class CheckerPart:
    """Runs `places` calls at once, each for at most `seconds`; `say` is called from any thread."""

    def __init__(
        self, task: Task, places: int, seconds: float, say: Callable[[m.Verdicts], None]
    ) -> None:
        self.task = task
        self.seconds = seconds
        self.say = say
        self.hung = 0
        self._lock = threading.Lock()
        self._calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        self._running: set[_Call] = set()
        self._places = places
        self._threads = 0
        self._events: asyncio.AbstractEventLoop | None = None
        self._room: asyncio.Semaphore | None = None
        self._waiting: set[_Call] = set()

    def take(self, message: Any) -> None:
        """A job: its calls are made as places become free."""
        if not isinstance(message, m.Check):
            raise PipelineError(f"a checker does not understand {type(message).__name__!r}")
        job = _Job(message.job, len(message.answers))
        places = range(len(message.answers))
        if self.task.scores_together(message.answers[0].prompt):
            calls = [_Call(job, tuple(places), message.answers)]
        else:
            calls = [_Call(job, (i,), (message.answers[i],)) for i in places]
        for call in calls:
            if self._async_task(call) is not None:
                self._begin_async(call)
                continue
            self._calls.put(call)
            if self._threads < self._places:
                self._new_thread()

    @property
    def busy(self) -> bool:
        return bool(self._running or self._waiting) or not self._calls.empty()

    def give_up(self) -> None:
        """Leave behind the calls that have used up their time; to be called now and then."""
        now = time.monotonic()
        with self._lock:
            late = [c for c in self._running if c.began is not None
                    and now - c.began > self.seconds]  # fmt: skip
        for call in late:
            self._finish(call, [self._gave_up()] * len(call.answers), hung=True)
            self._new_thread()
        self._leave_a_blocked_loop(now)

    def _gave_up(self) -> AnswerScore:
        why = f"the verifier of task {self.task.name} has not answered for {self.seconds:g} s"
        return AnswerScore(None, None, why, gave_up=True)

    def _raised(self, call: _Call, error: BaseException) -> list[AnswerScore]:
        return [AnswerScore.unscored(f"the verifier raised {named(error)}")] * len(call.answers)

    # -- threads ----------------------------------------------------------------------------------

    def _new_thread(self) -> None:
        self._threads += 1
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            call = self._calls.get()
            with self._lock:
                call.began = time.monotonic()
                self._running.add(call)
            try:
                verdicts = self.task.check_all(call.answers)
            except BaseException as error:  # somebody else's verifier: what it raises is data
                verdicts = self._raised(call, error)
            if not self._finish(call, verdicts):
                return  # it took too long and somebody else has this place

    def _finish(self, call: _Call, verdicts: list[AnswerScore], *, hung: bool = False) -> bool:
        """Book the verdicts of a call, once; the last of a job is said. False if it was over."""
        job = call.job
        with self._lock:
            if call.over:
                self.hung -= call.hung  # it came back after all
                return False
            call.over, call.hung = True, hung
            self._running.discard(call)
            self._waiting.discard(call)
            self.hung += hung
            job.verdicts |= dict(zip(call.places, verdicts, strict=True))
            job.seconds += 0.0 if call.began is None else time.monotonic() - call.began
            whole = len(job.verdicts) == job.size
            found = tuple(job.verdicts[i] for i in sorted(job.verdicts))
        if whole:
            self.say(m.Verdicts(job.number, found, job.seconds, self.hung))
        return True

    # -- async ------------------------------------------------------------------------------------

    def _async_task(self, call: _Call) -> Task | None:
        part = self.task.member_for(call.answers[0].prompt)
        return part if part.is_async else None

    def _begin_async(self, call: _Call) -> None:
        if self._events is None:
            self._events = asyncio.new_event_loop()
            self._room = asyncio.Semaphore(self._places)
            threading.Thread(target=_run_for_ever, args=(self._events,), daemon=True).start()
        with self._lock:
            self._waiting.add(call)
        asyncio.run_coroutine_threadsafe(self._await(call, self._room), self._events)

    async def _await(self, call: _Call, room: asyncio.Semaphore | None) -> None:
        """An async reward function, ended for good when its time is over."""
        task = self._async_task(call)
        assert task is not None and room is not None
        async with room:
            call.began, call.task = time.monotonic(), asyncio.current_task()
            limit = asyncio.timeout(self.seconds)
            try:
                async with limit:
                    verdicts = await task.check_together(call.answers)
            except BaseException as error:  # somebody else's verifier: what it raises is data
                verdicts = self._raised(call, error)
            if limit.expired():
                verdicts = [self._gave_up()] * len(call.answers)
            self._finish(call, verdicts, hung=limit.expired() and not task.can_be_cancelled)

    def _leave_a_blocked_loop(self, now: float) -> None:
        """A call that does not give its event loop back is over; the others begin anew."""
        limit = self.seconds + BLOCKED
        with self._lock:
            late = any(c.began is not None and now - c.began > limit for c in self._waiting)
        if not late or self._events is None:
            return
        running = asyncio.current_task(self._events)
        if running is None:
            return
        blocked, self._events = self._events, None
        blocked.call_soon_threadsafe(blocked.stop)  # should it ever go on
        with self._lock:
            waiting, self._waiting = self._waiting, set()
            for call in waiting:
                call.over = call.task is not running  # what it still says is not listened to
        for call in waiting:
            if call.over:
                self._begin_async(replace(call, began=None, over=False, task=None))
            else:
                self._finish(call, [self._gave_up()] * len(call.answers), hung=True)


def _run_for_ever(events: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(events)
    while True:
        try:
            return events.run_forever()
        except BaseException:  # SystemExit of a task ends its loop; whoever awaits it is told
            continue
