"""Answers are checked beside the loop: handed to checkers, collected as they come back.

A verifier is somebody else's program. It may take its time, hang, or take its process with it; each
costs its own answers and nobody else's time:

- a checker gives up on an answer after `seconds` and says so: unscored. The call may go on in it
  for ever; a checker with several such calls is replaced as soon as it is idle;
- a checker that dies, that has sent no heartbeat for `placement.patience`, or that is past the
  deadline of a check, is replaced. Whatever it was checking is suspect and checked again, one
  answer at a time in a checker that does nothing else meanwhile: an answer that ends its checker a
  second time is the cause, and stays unscored.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from scalerl.errors import PipelineError
from scalerl.pipeline import messages as m
from scalerl.pipeline.crew import Clock, Handle
from scalerl.tasks.task import Answer, AnswerScore, Task

#: Answers in a row that no checker could bring to an end, after which the verifier is hopeless.
MAX_FAILURES = 24
#: Seconds beyond its own limit after which a checker that has not answered is taken for dead.
GRACE = 10.0
#: A checker is replaced when this share of its places is taken up by calls that hang.
MAX_HUNG_SHARE = 1 / 8
#: Quick checks are given ahead, so that they do not wait for the line: what takes a checker so many
#: seconds one after the other. Of the mean of a call, the weight of the newest.
PREFETCH_SECONDS, EWMA_ALPHA = 0.02, 0.2


@dataclass(slots=True, eq=False)
class Job:
    """Answers that are checked together, and their places among all answers of one key."""

    number: int
    key: Hashable
    places: tuple[int, ...]
    answers: tuple[Answer, ...]
    #: Calls of the verifier that it takes.
    calls: int
    suspect: bool = False
    #: When it was sent to its checker, and when that must have answered it.
    sent: float = 0.0
    deadline: float = math.inf


@dataclass(slots=True, eq=False)
class CheckerState:
    """What is known of one checker."""

    handle: Handle
    starting: bool = True
    hung: int = 0
    jobs: dict[int, Job] = field(default_factory=dict)

    @property
    def calls(self) -> int:
        return sum(job.calls for job in self.jobs.values())


@dataclass(frozen=True, slots=True, eq=False)
class ScoredAnswers:
    """All verdicts of a key, in the order of its answers."""

    key: Hashable
    scores: tuple[AnswerScore, ...]


class Checks:
    """Jobs for checkers. `checkers` calls run at once, each for at most `seconds`."""

    def __init__(
        self, task: Task, handles: Sequence[Handle], checkers: int, seconds: float, clock: Clock
    ) -> None:
        self.task = task
        self.states = {h.name: CheckerState(h) for h in handles}
        #: Calls that one checker makes at once.
        self.places = -(-checkers // max(len(handles), 1))
        self.seconds = seconds
        self.clock = clock
        #: Lines worth a warning, for the loop to take.
        self.notes: list[str] = []
        self._queue: deque[Job] = deque()
        self._suspects: deque[Job] = deque()
        self._open: dict[Hashable, dict[int, AnswerScore]] = {}
        self._sizes: dict[Hashable, int] = {}
        self._number = 0
        self._failures = 0
        #: Seconds of a call, smoothed; nothing is known of them yet.
        self._call_seconds = math.inf

    @property
    def pending(self) -> int:
        """Keys that are not judged yet."""
        return len(self._sizes)

    def submit(self, key: Hashable, answers: Sequence[Answer]) -> None:
        """Check the answers of one prompt."""
        self._sizes[key], self._open[key] = len(answers), {}
        places = tuple(range(len(answers)))
        together = self.task.scores_together(answers[0].prompt)
        self._queue.append(self._job(key, places, tuple(answers), 1 if together else len(answers)))
        self.dispatch()

    def _job(
        self, key: Hashable, places: tuple[int, ...], answers: tuple[Answer, ...], calls: int,
        suspect: bool = False,
    ) -> Job:  # fmt: skip
        self._number += 1
        return Job(self._number, key, places, answers, calls, suspect)

    def dispatch(self) -> None:
        """Hand out what may be handed out: suspects to a checker that has nothing else."""
        for state in self.states.values():
            if state.starting or self._needs_replacement(state):
                continue
            if self._suspects and not state.jobs:
                self._send(state, self._suspects.popleft())
                continue
            quarantined = any(job.suspect for job in state.jobs.values())
            while self._queue and not quarantined and self._has_room(state):
                self._send(state, self._queue.popleft())

    def _has_room(self, state: CheckerState) -> bool:
        """A free place, or nothing but quick checks before it."""
        return state.calls < self.places or state.calls * self._call_seconds < PREFETCH_SECONDS

    def _send(self, state: CheckerState, job: Job) -> None:
        state.jobs[job.number] = job
        # A checker makes calls in the order in which it received them: this job is done when all
        # that were sent before it are, and what is sent later does not move its deadline.
        rounds = -(-state.calls // self.places)
        job.sent = self.clock.now()
        job.deadline = job.sent + rounds * self.seconds + GRACE
        state.handle.send(m.ScoreAnswers(job.number, job.answers))

    def on_ready(self, handle: Handle) -> None:
        self.states[handle.name] = CheckerState(handle, starting=False)
        self.dispatch()

    def on_scores(self, handle: Handle, message: m.Scores) -> list[ScoredAnswers]:
        """What has become whole by this message."""
        state = self.states[handle.name]
        state.starting, state.hung = False, message.hung
        job = None if message.job is None else state.jobs.pop(message.job, None)
        if job is None:  # a sign of life, or an old story
            return []
        mean = message.seconds / job.calls
        known = math.isfinite(self._call_seconds)
        self._call_seconds = (
            mean + (1 - EWMA_ALPHA) * (self._call_seconds - mean) if known else mean
        )
        unfinished = [v.why for v in message.scores if v.gave_up]
        if unfinished:
            self._note_failures(unfinished[0], len(unfinished))
        if len(unfinished) < len(message.scores):
            self._failures = 0
        found = self._record(job, message.scores)
        self.dispatch()
        return found

    def _needs_replacement(self, state: CheckerState) -> bool:
        """Too many of its calls hang: it gets nothing new."""
        return state.hung > self.places * MAX_HUNG_SHARE

    def replaceable(self, patience: float, start: float) -> list[tuple[Handle, str]]:
        """Checkers that should be replaced now, and why. `patience` is the longest silence in
        seconds of one that is up (it sends heartbeats, also during long calls), `start` of one that
        is starting."""
        found = [(state.handle, self._fault(state, patience, start))
                 for state in self.states.values()]  # fmt: skip
        return [(handle, why) for handle, why in found if why]

    def _fault(self, state: CheckerState, patience: float, start: float) -> str:
        """Why a checker should be replaced; empty if it should not."""
        now, silence = self.clock.now(), state.handle.silence
        late = [job.sent for job in state.jobs.values() if now > job.deadline]
        if state.starting:
            return f"did not start in {start:.0f} s" if silence > start else ""
        if self._needs_replacement(state) and not state.jobs:
            many = "check that hangs" if state.hung == 1 else "checks that hang"
            return f"has {state.hung} {many}"
        if silence > patience:
            return f"has said nothing for {silence:.0f} s"
        return f"has not answered a check for {now - min(late):.0f} s" if late else ""

    def shift_deadlines(self, seconds: float) -> None:
        """Move all deadlines: for so many seconds no answer could be received."""
        for state in self.states.values():
            for job in state.jobs.values():
                job.deadline += seconds

    def on_checker_lost(self, handle: Handle, replacement: Handle, why: str) -> list[ScoredAnswers]:
        """A checker is gone: what it had is suspect, and what was suspect already is given up."""
        state = self.states[handle.name]
        self.states[handle.name] = CheckerState(replacement)
        found: list[ScoredAnswers] = []
        for job in state.jobs.values():
            if job.suspect:
                line = f"the verifier of task {self.task.name} took its checker with it ({why})"
                self._note_failures(line, len(job.answers))
                found += self._record(job, [AnswerScore(None, None, line, True)] * len(job.answers))
            elif job.calls == 1:
                job.suspect = True
                self._suspects.append(job)
            else:
                for place, answer in zip(job.places, job.answers, strict=True):
                    self._suspects.append(self._job(job.key, (place,), (answer,), 1, True))
        self.dispatch()
        return found

    def _record(self, job: Job, scores: Sequence[AnswerScore]) -> list[ScoredAnswers]:
        if job.key not in self._sizes:
            return []
        have = self._open[job.key]
        have |= dict(zip(job.places, scores, strict=True))
        if len(have) < self._sizes[job.key]:
            return []
        del self._open[job.key], self._sizes[job.key]
        return [ScoredAnswers(job.key, tuple(have[place] for place in sorted(have)))]

    def _note_failures(self, why: str, answers: int) -> None:
        self._failures += answers
        if self._failures >= max(MAX_FAILURES, 2 * self.places):
            raise PipelineError(
                f"{why}; {self._failures} answers in a row: repair the verifier, then --resume"
            )
        many = "answer stays" if answers == 1 else "answers stay"
        self.notes.append(f"{why}: {answers} {many} unscored")
