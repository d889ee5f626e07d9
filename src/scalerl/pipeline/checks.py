"""Scoring answers while the loop goes on: jobs are sent to checkers, scores collected.

A verifier is a user's program. It may be slow, hang, or end its process; that must cost its own
answers only, and no other worker's time:

- a checker gives up on an answer after `seconds`, and reports it as unscored. The call may run on
  in the checker for ever; a checker with several such calls is replaced as soon as it is idle;
- a checker that dies, that has sent no heartbeat for `placement.patience`, or that is past the
  deadline of a job, is replaced. Its answers are suspect and are checked again, one at a time, in a
  checker that does nothing else meanwhile: an answer that ends its checker a second time is the
  cause, and stays unscored.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from scalerl.errors import PipelineError
from scalerl.pipeline import messages as m
from scalerl.pipeline.crew import Clock, Handle
from scalerl.tasks.task import Answer, AnswerScore, Task

#: Answers in a row that the verifier did not finish, after which the run fails.
MAX_FAILURES = 24
#: Seconds beyond the time limits of its calls after which a job counts as lost with its checker.
GRACE_SECONDS = 10.0
#: Share of a checker's places that hanging calls may take up before it is replaced.
MAX_HUNG_SHARE = 1 / 8
#: Seconds of estimated work that are kept queued at each checker, so that fast checks do not pay a
#: round trip each.
PREFETCH_SECONDS = 0.02
#: Weight of the newest job in the moving average of seconds per call.
EWMA_ALPHA = 0.2
#: Distinct reasons for missing scores that a run counts: a verifier may put anything into them.
MAX_REASONS = 20
#: Reasons that the line of a step lists.
MAX_LISTED = 5
#: Stands for all reasons beyond those.
OTHER_REASONS = "further reasons"
#: A reason is reported again when its count is this many times what was last reported.
REPORT_FACTOR = 10


@dataclass(slots=True, eq=False)
class Job:
    """Answers that are sent to a checker together."""

    number: int
    key: Hashable
    #: Positions of the answers among all answers of the key.
    places: tuple[int, ...]
    answers: tuple[Answer, ...]
    #: Number of verifier calls that the job takes.
    calls: int
    #: Whether it was in a checker that was lost.
    suspect: bool = False
    #: Time at which it was sent to its checker.
    sent: float = 0.0
    #: Time by which the checker must have answered.
    deadline: float = math.inf


@dataclass(slots=True, eq=False)
class CheckerState:
    """What is known of one checker."""

    handle: Handle
    starting: bool = True
    #: Calls that it has given up on and that still run.
    hung: int = 0
    #: Jobs that it was sent and has not answered, by number.
    jobs: dict[int, Job] = field(default_factory=dict)

    @property
    def calls(self) -> int:
        return sum(job.calls for job in self.jobs.values())


@dataclass(frozen=True, slots=True, eq=False)
class ScoredAnswers:
    """The scores of all answers of a key, in their order."""

    key: Hashable
    scores: tuple[AnswerScore, ...]


class Checks:
    """Distributes answers over checkers. `checkers` calls run at once in all, each for at most
    `seconds`."""

    def __init__(
        self, task: Task, handles: Sequence[Handle], checkers: int, seconds: float, clock: Clock
    ) -> None:
        self.task = task
        self.states = {h.name: CheckerState(h) for h in handles}
        #: Calls that one checker makes at once.
        self.places = -(-checkers // max(len(handles), 1))
        self.seconds = seconds
        self.clock = clock
        #: Warnings for the loop to report.
        self.notes: list[str] = []
        self._queue: deque[Job] = deque()
        self._suspects: deque[Job] = deque()
        self._open: dict[Hashable, dict[int, AnswerScore]] = {}
        self._sizes: dict[Hashable, int] = {}
        self._number = 0
        self._failures = 0
        #: Moving average of seconds per call; infinite until the first job is done.
        self._call_seconds = math.inf

    @property
    def pending(self) -> int:
        """Number of keys with answers that are not scored yet."""
        return len(self._sizes)

    def submit(self, key: Hashable, answers: Sequence[Answer]) -> None:
        """Queue the answers to one prompt for scoring."""
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
        """Send jobs to checkers that have room; a suspect only to a checker without other jobs."""
        for state in self.states.values():
            if state.starting or self._needs_replacement(state):
                continue
            # Alone: a suspect may end its checker, and every other job in it would be lost too.
            if self._suspects and not state.jobs:
                self._send(state, self._suspects.popleft())
                continue
            quarantined = any(job.suspect for job in state.jobs.values())
            while self._queue and not quarantined and self._has_room(state):
                self._send(state, self._queue.popleft())

    def _has_room(self, state: CheckerState) -> bool:
        """Whether a checker has a free place, or only fast checks queued."""
        return state.calls < self.places or state.calls * self._call_seconds < PREFETCH_SECONDS

    def _send(self, state: CheckerState, job: Job) -> None:
        state.jobs[job.number] = job
        # A checker makes calls in the order in which it received them: this job is done when all
        # that were sent before it are, and what is sent later does not move its deadline.
        rounds = -(-state.calls // self.places)
        job.sent = self.clock.now()
        job.deadline = job.sent + rounds * self.seconds + GRACE_SECONDS
        state.handle.send(m.ScoreAnswers(job.number, job.answers))

    def on_ready(self, handle: Handle) -> None:
        self.states[handle.name] = CheckerState(handle, starting=False)
        self.dispatch()

    def on_scores(self, handle: Handle, message: m.Scores) -> list[ScoredAnswers]:
        """Record a checker's message; keys that are now scored completely."""
        state = self.states[handle.name]
        state.starting, state.hung = False, message.hung
        job = None if message.job is None else state.jobs.pop(message.job, None)
        if job is None:  # a heartbeat, or a job that was given to another checker meanwhile
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
        """Whether too many of its calls hang: it gets no new jobs, and is replaced once idle."""
        return state.hung > self.places * MAX_HUNG_SHARE

    def replaceable(self, patience: float, start: float) -> list[tuple[Handle, str]]:
        """Checkers that should be replaced now, and why. `patience` is the longest allowed silence
        in seconds of a checker that runs (it sends heartbeats, also during long calls), `start` of
        one that is starting."""
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
            return f"has sent nothing for {silence:.0f} s"
        return f"has not answered a check for {now - min(late):.0f} s" if late else ""

    def shift_deadlines(self, seconds: float) -> None:
        """Move all deadlines by the seconds for which no message could be received."""
        for state in self.states.values():
            for job in state.jobs.values():
                job.deadline += seconds

    def on_checker_lost(self, handle: Handle, replacement: Handle, why: str) -> list[ScoredAnswers]:
        """Replace a checker: its answers become suspect, and those that were suspect are given
        up. Keys that are now scored completely."""
        state = self.states[handle.name]
        self.states[handle.name] = CheckerState(replacement)
        found: list[ScoredAnswers] = []
        for job in state.jobs.values():
            if job.suspect:
                line = f"the verifier of task {self.task.name} ended its checker process ({why})"
                self._note_failures(line, len(job.answers))
                found += self._record(job, [AnswerScore(None, None, line, True)] * len(job.answers))
            # A single call cannot be divided further, and is tried once more as it is.
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
        # Twice the places, since a verifier that hangs fails all calls side by side at once.
        if self._failures >= max(MAX_FAILURES, 2 * self.places):
            raise PipelineError(
                f"{why}; {self._failures} answers in a row: repair the verifier, then --resume"
            )
        many = "answer stays" if answers == 1 else "answers stay"
        self.notes.append(f"{why}: {answers} {many} unscored")


@dataclass(slots=True)
class UnscoredReasons:
    """Counts answers without a score, by reason. A reason is reported when it first occurs, and
    again whenever its count has grown tenfold."""

    totals: Counter[str] = field(default_factory=Counter)
    #: Count of each reason when it was last reported.
    _reported: dict[str, int] = field(default_factory=dict)

    def add(self, scores: Sequence[AnswerScore]) -> list[tuple[str, int]]:
        """Warnings to report now, each with the number of answers so far.

        >>> unscored = UnscoredReasons()
        >>> unscored.add([AnswerScore.unscored("no gold answer")] * 4)
        [('4 answers could not be scored: no gold answer', 4)]
        >>> unscored.add([AnswerScore.unscored("no gold answer")] * 4)
        []
        """
        # Answers that were given up have a warning of their own: `Checks.notes`.
        for score in scores:
            if not score.scored and not score.gave_up:
                why = score.why
                known = why in self.totals or len(self.totals) < MAX_REASONS
                self.totals[why if known else OTHER_REASONS] += 1
        lines = []
        for why, total in self.totals.items():
            if total >= REPORT_FACTOR * self._reported.get(why, 0):
                self._reported[why] = total
                many = "answer" if total == 1 else "answers"
                lines.append((f"{total} {many} could not be scored: {why}", total))
        return lines


def commonest(whys: Counter[str]) -> dict[str, int]:
    """The most common reasons with their counts, and the number of answers with other reasons.

    >>> commonest(Counter({"a": 9, "b": 8, "c": 7, "d": 6, "e": 5, "f": 4, "g": 3}))
    {'a': 9, 'b': 8, 'c': 7, 'd': 6, 'e': 5, 'further reasons': 7}
    """
    found = dict(whys.most_common(MAX_LISTED))
    rest = whys.total() - sum(found.values())
    return found | ({OTHER_REASONS: rest} if rest else {})
