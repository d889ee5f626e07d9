"""An environment worker ("checker"): scores answers and runs the environments of episodes, many at
a time, each call with a time limit.

Verifiers that are ordinary functions run in threads; async ones and environments run on an event
loop (`live_environments.py`). A thread that hangs cannot be ended: it is abandoned, its answer
stays unscored, a new thread takes its place, and the loop, which is sent the number of such
threads, replaces the process when there are too many. An async call that blocks the event loop is
abandoned together with it: the other calls are made again on a new one. Where a call ends the
process, the loop finds out which one it was (`pipeline/environment_pool.py`). Imports no torch, so
that a new worker starts at once.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from scalerl.errors import PipelineError
from scalerl.pipeline import messages as m
from scalerl.placement.child import end_group, guarded, orphaned
from scalerl.placement.connection import WorkerConnection
from scalerl.placement.live_environments import (
    LiveEnvironments,
    RunningCall,
    environment_of,
    late_text,
    run_event_loop,
)
from scalerl.tasks.task import Answer, AnswerScore, Task, named

#: Seconds beyond its limit after which an async call that is still there ignores that it was
#: cancelled, or blocks its event loop.
OVERDUE_SECONDS = 1.0
#: Seconds that an event loop gets to show that it is not blocked.
BLOCKED_SECONDS = 1.0
#: Seconds between two searches for calls that have used up their time.
POLL_SECONDS = 0.05
#: Seconds between two heartbeats.
HEARTBEAT_SECONDS = 0.5
#: Seconds that all environments together get to close when the worker stops: less than the crew
#: waits for it (`processes.PATIENCE`).
STOP_SECONDS = 3.0


@dataclass(slots=True, eq=False)
class _Job:
    """Answers of one prompt, and their scores so far."""

    number: int
    size: int
    scores: dict[int, AnswerScore] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(slots=True, eq=False)
class _Call:
    """One call of a verifier: one answer, or several that it scores together."""

    job: _Job
    places: tuple[int, ...]
    answers: tuple[Answer, ...]
    began: float | None = None
    over: bool = False
    #: Whether it was given up and still runs.
    hung: bool = False
    #: The task of the event loop that runs it, if it is async.
    task: asyncio.Task[Any] | None = None


@dataclass(slots=True, eq=False)
class _EventLoop:
    """An event loop in a thread of its own, and what runs on it."""

    events: asyncio.AbstractEventLoop
    #: Places of async verifiers.
    room: asyncio.Semaphore
    environments: LiveEnvironments
    #: Set by the loop itself, while it is asked whether it runs.
    answered: threading.Event = field(default_factory=threading.Event)
    #: Time at which it was asked; None if it was not.
    asked: float | None = None

    def blocked(self, now: float) -> bool | None:
        """Whether something blocks it; None until that is known."""
        if self.asked is None:
            self.asked = now
            self.answered.clear()
            self.events.call_soon_threadsafe(self.answered.set)
        if self.answered.is_set():
            self.asked = None
            return False
        return True if now - self.asked > BLOCKED_SECONDS else None


class EnvironmentWorker:
    """Runs up to `places` blocking calls at once, and any number that wait, each for at most
    `seconds`. `send` receives what is done and is called from any thread."""

    def __init__(
        self, task: Task, places: int, seconds: float, send: Callable[[m.WorkDone], None]
    ) -> None:
        self.task = task
        self.seconds = seconds
        self.send = send
        self._hung = 0
        self._lock = threading.Lock()
        self._calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        self._running: set[_Call] = set()
        self._places = places
        self._threads = 0
        self._loop: _EventLoop | None = None
        self._waiting: set[_Call] = set()

    def take(self, message: Any) -> None:
        """Start a job."""
        if isinstance(message, m.ScoreAnswers):
            self._score(message)
        elif isinstance(message, m.CallEnvironment):
            loop = self._event_loop()
            loop.events.call_soon_threadsafe(loop.environments.begin, message)
        elif isinstance(message, m.CloseEpisodes):
            if self._loop is not None:
                loop = self._loop
                loop.events.call_soon_threadsafe(loop.environments.close, message.episodes)
        else:
            raise PipelineError(f"a checker does not understand {type(message).__name__!r}")

    def _score(self, message: m.ScoreAnswers) -> None:
        """Start the calls of a job, as threads, or places on the event loop, become free."""
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
        acting = self._loop is not None and self._loop.environments.under_way
        return bool(self._running or self._waiting or acting) or not self._calls.empty()

    @property
    def hung(self) -> int:
        """Number of calls that were given up and still run."""
        return self._hung + (0 if self._loop is None else self._loop.environments.threads.hung)

    @property
    def live(self) -> int:
        """Number of environments."""
        return 0 if self._loop is None else len(self._loop.environments)

    def heartbeat(self) -> None:
        self._report(None)

    def _report(self, job: int | None, **done: Any) -> None:
        self.send(m.WorkDone(job, hung=self.hung, live=self.live, **done))

    def give_up(self) -> None:
        """Abandon the calls that have used up their time; to be called every POLL_SECONDS."""
        now = time.monotonic()
        with self._lock:
            late = [c for c in self._running if c.began is not None
                    and now - c.began > self.seconds]  # fmt: skip
        for call in late:
            self._finish(call, [self._gave_up()] * len(call.answers), hung=True)
            self._new_thread()
        self._give_up_async(now)

    def stop(self) -> None:
        """Close all environments, in STOP_SECONDS, and end the event loop."""
        if self._loop is None:
            return
        loop, self._loop = self._loop, None
        closing = asyncio.run_coroutine_threadsafe(
            loop.environments.closed(STOP_SECONDS), loop.events
        )
        # A blocked event loop does not answer: the process ends all the same.
        with suppress(TimeoutError):
            closing.result(STOP_SECONDS + BLOCKED_SECONDS)
        loop.events.call_soon_threadsafe(loop.events.stop)

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
                scores = self.task.check_all(call.answers)
            except BaseException as error:  # verifiers may raise anything, SystemExit included
                scores = self._raised(call, error)
            if not self._finish(call, scores):
                return  # it was given up, and a new thread has taken its place

    def _over(self, call: _Call | RunningCall, *, hung: bool) -> bool:
        """Mark a call as answered; False if it was already."""
        with self._lock:
            if call.over:
                self._hung -= call.hung  # it returned after all
                call.hung = False
                return False
            call.over, call.hung = True, hung
            self._hung += hung
            return True

    def _finish(self, call: _Call, scores: list[AnswerScore], *, hung: bool = False) -> bool:
        """Record the scores of a call, and send those of its job if it was the last one. False if
        the call was over already."""
        if not self._over(call, hung=hung):
            return False
        job = call.job
        with self._lock:
            self._running.discard(call)
            self._waiting.discard(call)
            job.scores |= dict(zip(call.places, scores, strict=True))
            job.seconds += 0.0 if call.began is None else time.monotonic() - call.began
            complete = len(job.scores) == job.size
            found = tuple(job.scores[i] for i in sorted(job.scores))
        if complete:
            self._report(job.number, scores=found, seconds=job.seconds)
        return True

    # -- the event loop ---------------------------------------------------------------------------

    def _event_loop(self) -> _EventLoop:
        if self._loop is None:
            environments = LiveEnvironments(
                partial(environment_of, self.task), self.seconds, self._places, self._replied
            )
            events = asyncio.new_event_loop()
            self._loop = _EventLoop(events, asyncio.Semaphore(self._places), environments)
            threading.Thread(target=run_event_loop, args=(events,), daemon=True).start()
        return self._loop

    def _replied(
        self, call: RunningCall, reply: m.EnvironmentReply | None, *, hung: bool = False
    ) -> None:
        """Send the reply to a call of an environment."""
        if self._over(call, hung=hung) and call.asked is not None:
            seconds = time.monotonic() - call.began
            self._report(call.asked.job, reply=reply, seconds=seconds)

    def _async_task(self, call: _Call) -> Task | None:
        task = self.task.member_for(call.answers[0].prompt)
        return task if task.is_async else None

    def _begin_async(self, call: _Call) -> None:
        loop = self._event_loop()
        with self._lock:
            self._waiting.add(call)
        asyncio.run_coroutine_threadsafe(self._await(call, loop.room), loop.events)

    async def _await(self, call: _Call, room: asyncio.Semaphore) -> None:
        """Await an async reward function, and cancel it when its time is over."""
        task = self._async_task(call)
        assert task is not None
        async with room:
            call.began, call.task = time.monotonic(), asyncio.current_task()
            limit = asyncio.timeout(self.seconds)
            try:
                async with limit:
                    scores = await task.check_together(call.answers)
            except BaseException as error:  # verifiers may raise anything, SystemExit included
                scores = self._raised(call, error)
            if limit.expired():
                scores = [self._gave_up()] * len(call.answers)
            self._finish(call, scores, hung=limit.expired() and not task.can_be_cancelled)

    def _give_up_async(self, now: float) -> None:
        """Give up async calls that are still there long after their time: those that ignore that
        they were cancelled, or the one that blocks the event loop, together with the loop."""
        loop = self._loop
        if loop is None:
            return
        with self._lock:
            late: list[_Call | RunningCall] = [
                c for c in self._waiting
                if c.began is not None and now - c.began > self.seconds + OVERDUE_SECONDS
            ]  # fmt: skip
        late += [
            c for c in list(loop.environments.under_way)
            if not c.over and c.overdue(now) > OVERDUE_SECONDS
        ]  # fmt: skip
        blocked = loop.blocked(now) if late else False
        if blocked:
            self._replace_event_loop(loop, late)
        elif blocked is False:
            for call in late:
                self._abandon(call)

    def _abandon(self, call: _Call | RunningCall) -> None:
        """Give up a call that goes on."""
        if isinstance(call, _Call):
            self._finish(call, [self._gave_up()] * len(call.answers), hung=True)
            return
        reply = None
        if call.asked is not None:
            asked = call.asked.call
            problem = late_text(asked, self.seconds)
            reply = m.EnvironmentReply(
                asked.episode, asked.kind, None, problem=problem, gave_up=True
            )
        self._replied(call, reply, hung=True)

    def _replace_event_loop(self, old: _EventLoop, late: list[_Call | RunningCall]) -> None:
        """Give up the call that blocks an event loop, and start the others again on a new one. The
        environments of the old one are lost: their next calls begin with a replay."""
        running = asyncio.current_task(old.events)
        with self._lock:
            calls: list[_Call | RunningCall] = [*self._waiting]
            self._waiting = set()
        calls += [c for c in list(old.environments.under_way) if not c.over]
        found = [c for c in calls if c.task is not None and c.task is running]
        culprits = found or late  # a task that a call has started is not known
        self._loop = None
        self._hung += old.environments.threads.hung
        old.events.call_soon_threadsafe(_close_and_stop, old)  # if the call ever returns
        for call in calls:
            if call in culprits:
                self._abandon(call)
            elif isinstance(call, RunningCall):
                self._replied(call, None)
            elif self._over(call, hung=False):  # a late result of the old loop is ignored
                self._begin_async(replace(call, began=None, over=False, task=None))


def _close_and_stop(loop: _EventLoop) -> None:
    closing = loop.events.create_task(loop.environments.closed(STOP_SECONDS))
    closing.add_done_callback(lambda _: loop.events.stop())


def serve_environments(
    connection: WorkerConnection, task: Task, places: int, seconds: float
) -> None:
    """Run an environment worker until `StopWorker`."""
    lock = threading.Lock()

    def send(message: Any) -> None:
        with lock:
            connection.send(message)

    worker = EnvironmentWorker(task, places, seconds, send)
    send(m.WorkerReady())
    sent_at = time.monotonic()
    try:
        while not orphaned():
            if connection.poll(POLL_SECONDS if worker.busy else 1.0):
                message = connection.recv()
                if isinstance(message, m.StopWorker):
                    return
                worker.take(message)
            worker.give_up()
            if time.monotonic() - sent_at > HEARTBEAT_SECONDS:
                sent_at = time.monotonic()
                worker.heartbeat()
    finally:
        worker.stop()
        task.close()


def run_environments(conn: Connection, task: Task, places: int, seconds: float) -> None:
    """Entry point of an environment worker's process."""
    # It leads a process group of its own, to which programs belong that a verifier or an
    # environment starts: what hangs in it, or in them, ends with it.
    if hasattr(os, "setpgid"):  # Windows has no process groups
        os.setpgid(0, 0)
    guarded(conn, serve_environments, task, places, seconds)
    end_group(os.getpid())
    os._exit(0)
