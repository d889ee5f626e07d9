"""A checker: calls the task's verifier on answers, many at a time, each with a time limit.

Calls of ordinary functions run in threads, async ones on an event loop of their own. A thread that
hangs cannot be ended: it is abandoned, its answer stays unscored, a new thread takes its place, and
the loop, which is sent the number of such threads, replaces the process when there are too many. An
async call that blocks the event loop is abandoned together with it: the other calls are made again
on a new one. Where a call ends the process, the loop finds out which one it was
(`pipeline/checks.py`). Imports no torch, so that a new checker starts at once.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any

from scalerl.errors import PipelineError
from scalerl.pipeline import messages as m
from scalerl.placement.child import end_group, guarded, orphaned
from scalerl.placement.connection import WorkerConnection
from scalerl.tasks.task import Answer, AnswerScore, Task, named

#: Seconds beyond its limit after which an async call that is still there blocks its event loop: one
#: that can be cancelled has been by then.
BLOCKED_SECONDS = 1.0
#: Seconds between two searches for calls that have used up their time.
POLL_SECONDS = 0.05
#: Seconds between two heartbeats.
HEARTBEAT_SECONDS = 0.5


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


class CheckerWorker:
    """Runs up to `places` calls at once, each for at most `seconds`. `send` receives the scores and
    is called from any thread."""

    def __init__(
        self, task: Task, places: int, seconds: float, send: Callable[[m.Scores], None]
    ) -> None:
        self.task = task
        self.seconds = seconds
        self.send = send
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
        """Start a job: its calls are made as threads, or places on the event loop, become free."""
        if not isinstance(message, m.ScoreAnswers):
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
        """Abandon the calls that have used up their time; to be called every POLL_SECONDS."""
        now = time.monotonic()
        with self._lock:
            late = [c for c in self._running if c.began is not None
                    and now - c.began > self.seconds]  # fmt: skip
        for call in late:
            self._finish(call, [self._gave_up()] * len(call.answers), hung=True)
            self._new_thread()
        self._replace_blocked_event_loop(now)

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

    def _finish(self, call: _Call, scores: list[AnswerScore], *, hung: bool = False) -> bool:
        """Record the scores of a call, and send those of its job if it was the last one. False if
        the call was over already."""
        job = call.job
        with self._lock:
            if call.over:
                self.hung -= call.hung  # it returned after all
                return False
            call.over, call.hung = True, hung
            self._running.discard(call)
            self._waiting.discard(call)
            self.hung += hung
            job.scores |= dict(zip(call.places, scores, strict=True))
            job.seconds += 0.0 if call.began is None else time.monotonic() - call.began
            complete = len(job.scores) == job.size
            found = tuple(job.scores[i] for i in sorted(job.scores))
        if complete:
            self.send(m.Scores(job.number, found, job.seconds, self.hung))
        return True

    # -- async ------------------------------------------------------------------------------------

    def _async_task(self, call: _Call) -> Task | None:
        task = self.task.member_for(call.answers[0].prompt)
        return task if task.is_async else None

    def _begin_async(self, call: _Call) -> None:
        if self._events is None:
            self._events = asyncio.new_event_loop()
            self._room = asyncio.Semaphore(self._places)
            threading.Thread(target=_run_for_ever, args=(self._events,), daemon=True).start()
        with self._lock:
            self._waiting.add(call)
        asyncio.run_coroutine_threadsafe(self._await(call, self._room), self._events)

    async def _await(self, call: _Call, room: asyncio.Semaphore | None) -> None:
        """Await an async reward function, and cancel it when its time is over."""
        task = self._async_task(call)
        assert task is not None and room is not None
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

    def _replace_blocked_event_loop(self, now: float) -> None:
        """If a call blocks the event loop, give that call up and start the others again on a new
        loop."""
        limit = self.seconds + BLOCKED_SECONDS
        with self._lock:
            late = any(c.began is not None and now - c.began > limit for c in self._waiting)
        if not late or self._events is None:
            return
        running = asyncio.current_task(self._events)
        if running is None:
            return
        blocked, self._events = self._events, None
        blocked.call_soon_threadsafe(blocked.stop)  # takes effect if the call ever returns
        with self._lock:
            waiting, self._waiting = self._waiting, set()
            for call in waiting:
                call.over = call.task is not running  # a late result of the old loop is ignored
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
        except BaseException:
            # SystemExit in a task ends `run_forever`. The loop must go on for the other calls; the
            # one that raised it gets its exception from `await`.
            continue


def serve_checker(connection: WorkerConnection, task: Task, places: int, seconds: float) -> None:
    """Run a checker until `StopWorker`."""
    lock = threading.Lock()

    def send(message: Any) -> None:
        with lock:
            connection.send(message)

    worker = CheckerWorker(task, places, seconds, send)
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
                send(m.Scores(None, hung=worker.hung))
    finally:
        task.close()


def run_checker(conn: Connection, task: Task, places: int, seconds: float) -> None:
    """Entry point of a checker process."""
    # It leads a process group of its own, to which programs belong that a verifier starts: what
    # hangs in it, or in them, ends with it.
    if hasattr(os, "setpgid"):  # Windows has no process groups
        os.setpgid(0, 0)
    guarded(conn, serve_checker, task, places, seconds)
    end_group(os.getpid())
    os._exit(0)
