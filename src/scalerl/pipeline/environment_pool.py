"""The queue in front of the environment workers: answers to score and calls of environments.

A verifier or an environment is a user's program. It may be slow, hang, or end its process; that
must cost its own answers or episode only, and no other worker's time:

- a worker gives up on a call after `seconds`, and reports it. The call may run on in the worker for
  ever; a worker with several such calls is replaced as soon as it is idle;
- a worker that dies, that has sent no heartbeat for `placement.patience`, or that is past the
  deadline of a job, is replaced. Its jobs are suspect and are repeated, one at a time, in a worker
  that does nothing else meanwhile: one that ends its worker a second time is the cause, and is
  given up.

The environment of an episode stays in the worker that made it, which gets the next calls without
their history. Any other worker gets the history and replays it: after the loss of the worker, and
while it may get no jobs because it is to be replaced or has a suspect.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scalerl.environments.interface import Observation
from scalerl.errors import PipelineError
from scalerl.pipeline import messages as m
from scalerl.pipeline.crew import Clock, Handle
from scalerl.tasks.task import Answer, AnswerScore, Task

#: Answers or calls in a row that did not finish, after which the run fails.
MAX_FAILURES = 24
#: Seconds beyond the time limits of its calls after which a job counts as lost with its worker.
GRACE_SECONDS = 10.0
#: Share of a worker's places that hanging calls may take up before it is replaced.
MAX_HUNG_SHARE = 1 / 8
#: Calls of environments in one worker at once. They mostly wait, so that `places`, which bounds
#: threads, would be far too few; a process may have 1024 open files by default, and each call may
#: need a connection.
MAX_CALLS = 512
#: Seconds of estimated work that are kept queued at each worker, so that fast checks do not pay a
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
    """Work that is sent to a worker as one message."""

    number: int
    #: Verifier calls that it takes; 0 for the call of an environment, which takes no place.
    calls: int = 0
    #: Key of the answers.
    key: Hashable = None
    #: Positions of the answers among all answers of the key.
    places: tuple[int, ...] = ()
    answers: tuple[Answer, ...] = ()
    #: The call of an environment, with its whole history; None for answers.
    call: m.EnvironmentCall | None = None
    #: Calls of the environment that it takes one after another, with those of a replay.
    turns: int = 0
    #: Whether it was in a worker that was lost.
    suspect: bool = False
    #: Time at which it was sent to its worker.
    sent: float = 0.0
    #: Time by which the worker must have answered.
    deadline: float = math.inf


@dataclass(slots=True, eq=False)
class WorkerState:
    """What is known of one worker."""

    handle: Handle
    starting: bool = True
    #: Calls that it has given up on and that still run.
    hung: int = 0
    #: Jobs that it was sent and has not answered, by number.
    jobs: dict[int, Job] = field(default_factory=dict)
    #: Verifier calls of these jobs.
    calls: int = 0
    #: Calls of environments of these jobs.
    turns: int = 0
    #: Whether one of the jobs is suspect: then it is the only one.
    quarantined: bool = False
    #: Episodes that have their environment here.
    held: set[str] = field(default_factory=set)

    def add(self, job: Job) -> None:
        self.jobs[job.number] = job
        self.calls += job.calls
        self.turns += job.turns
        self.quarantined = job.suspect

    def pop(self, number: int | None) -> Job | None:
        """Take out a job that is done; None if it is not here."""
        job = None if number is None else self.jobs.pop(number, None)
        if job is not None:
            self.calls -= job.calls
            self.turns -= job.turns
            self.quarantined = False
        return job


@dataclass(frozen=True, slots=True, eq=False)
class ScoredAnswers:
    """The scores of all answers of a key, in their order."""

    key: Hashable
    scores: tuple[AnswerScore, ...]


#: What the pool returns: the scores of all answers of a key, or the reply to one call.
Done = ScoredAnswers | m.EnvironmentReply


class EnvironmentPool:
    """Distributes answers and calls of environments over workers. `checkers` blocking calls run at
    once in all, each for at most `seconds`."""

    def __init__(
        self, task: Task, handles: Sequence[Handle], checkers: int, seconds: float, clock: Clock
    ) -> None:
        self.task = task
        self.states = {h.name: WorkerState(h) for h in handles}
        #: Blocking calls that one worker makes at once.
        self.places = -(-checkers // max(len(handles), 1))
        self.seconds = seconds
        self.clock = clock
        #: Warnings for the loop to report.
        self.notes: list[str] = []
        #: Answers that no worker has a place for yet.
        self._queue: deque[Job] = deque()
        #: Calls of environments that no worker can take yet.
        self._call_queue: deque[Job] = deque()
        self._suspects: deque[Job] = deque()
        self._open: dict[Hashable, dict[int, AnswerScore]] = {}
        self._sizes: dict[Hashable, int] = {}
        #: Calls that are not answered, by episode, and the most that there were at once.
        self._calls: dict[str, Job] = {}
        self._most_calls = 0
        #: The worker that holds the environment, by episode.
        self._holders: dict[str, WorkerState] = {}
        self._number = 0
        self._failures = 0
        #: Moving average of seconds per verifier call; infinite until the first job is done.
        self._call_seconds = math.inf

    @property
    def pending(self) -> int:
        """Number of keys with answers that are not scored yet, and of calls without a reply."""
        return len(self._sizes) + len(self._calls)

    def score(self, key: Hashable, answers: Sequence[Answer]) -> None:
        """Queue the answers to one prompt for scoring."""
        self._sizes[key], self._open[key] = len(answers), {}
        places = tuple(range(len(answers)))
        together = self.task.scores_together(answers[0].prompt)
        calls = 1 if together else len(answers)
        self._queue.append(self._job(calls, key, places, tuple(answers)))
        self.dispatch()

    def call(self, call: m.EnvironmentCall) -> None:
        """Queue a call of an environment; an episode has one call at a time."""
        if call.episode in self._calls:
            raise PipelineError(f"episode {call.episode} waits for its environment already")
        job = self._calls[call.episode] = self._job(call=call)
        self._most_calls = max(self._most_calls, len(self._calls))
        self._call_queue.append(job)
        self.dispatch()

    def close(self, episodes: Iterable[str]) -> None:
        """Forget episodes: their environments are closed, and calls get no reply."""
        by_worker: dict[str, list[str]] = {}
        for episode in episodes:
            self._calls.pop(episode, None)
            if (name := self._release(episode)) is not None:
                by_worker.setdefault(name, []).append(episode)
        for name, gone in by_worker.items():
            self.states[name].handle.send(m.CloseEpisodes(tuple(gone)))

    def _release(self, episode: str) -> str | None:
        """Forget where an environment is; the name of the worker that held it."""
        holder = self._holders.pop(episode, None)
        if holder is None:
            return None
        holder.held.discard(episode)
        return holder.handle.name

    def _job(
        self, calls: int = 0, key: Hashable = None, places: tuple[int, ...] = (),
        answers: tuple[Answer, ...] = (), call: m.EnvironmentCall | None = None,
        suspect: bool = False,
    ) -> Job:  # fmt: skip
        self._number += 1
        return Job(self._number, calls, key, places, answers, call, suspect=suspect)

    def _wanted(self, job: Job) -> bool:
        """Whether an answer to the job is still waited for."""
        return job.call is None or self._calls.get(job.call.episode) is job

    # -- sending ----------------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Send jobs to workers that have room; a suspect only to a worker without other jobs."""
        self._drain(self._suspects, self._idle_worker)
        self._drain(self._call_queue, self._worker_for_call)
        self._drain(self._queue, self._worker_for_answers)

    def _drain(self, jobs: deque[Job], find: Callable[[Job], WorkerState | None]) -> None:
        """Send jobs in their order, until there is no worker for one of them."""
        while jobs:
            if self._wanted(jobs[0]):
                state = find(jobs[0])
                if state is None:
                    return
                self._send(state, jobs[0])
            jobs.popleft()

    def _idle_worker(self, job: Job) -> WorkerState | None:
        """A worker without jobs, for a suspect: it may end the worker, and every other job in it
        would be lost too. So would the environments in it: there should be few."""
        idle = (state for state in self._available() if not state.jobs)
        return min(idle, key=lambda state: len(state.held), default=None)

    def _worker_for_call(self, job: Job) -> WorkerState | None:
        """The worker that holds the environment, or the one with the fewest environments."""
        holder = self._holders.get(job.call.episode) if job.call is not None else None
        if holder is not None and self._may_get_jobs(holder):
            return holder
        free = (state for state in self._available() if len(state.jobs) < MAX_CALLS)
        return min(free, key=lambda state: len(state.held), default=None)

    def _worker_for_answers(self, job: Job) -> WorkerState | None:
        """The first worker with a free place, or with only fast checks queued."""
        return next((state for state in self._available() if self._has_place(state)), None)

    def _has_place(self, state: WorkerState) -> bool:
        return state.calls < self.places or state.calls * self._call_seconds < PREFETCH_SECONDS

    def _may_get_jobs(self, state: WorkerState) -> bool:
        return not (state.starting or state.quarantined or self._needs_replacement(state))

    def _available(self) -> Iterator[WorkerState]:
        return (state for state in self.states.values() if self._may_get_jobs(state))

    def _send(self, state: WorkerState, job: Job) -> None:
        if job.call is None:
            message: Any = m.ScoreAnswers(job.number, job.answers)
        else:
            message = self._call_message(state, job, job.call)
        state.handle.send(message)
        # A worker makes verifier calls in the order in which it received them: this job is done
        # when all that were sent before it are, and what is sent later does not move its deadline.
        # Of the environments, those that block take turns in the places too.
        rounds = -(-state.turns // self.places) if job.turns else 0
        state.add(job)
        rounds += job.turns or -(-state.calls // self.places)
        job.sent = self.clock.now()
        job.deadline = job.sent + rounds * self.seconds + GRACE_SECONDS

    def _call_message(
        self, state: WorkerState, job: Job, call: m.EnvironmentCall
    ) -> m.CallEnvironment:
        """The message with a call, with its history unless the worker holds the environment."""
        if self._holders.get(call.episode) is state:
            job.turns = 1
            bare = replace(call, history=(), shown=())
            return m.CallEnvironment(job.number, bare, len(call.history))
        if (name := self._release(call.episode)) is not None:
            self.states[name].handle.send(m.CloseEpisodes((call.episode,)))
        state.held.add(call.episode)
        self._holders[call.episode] = state
        job.turns = len(call.history) + 2  # reset, the turns so far, and this one
        return m.CallEnvironment(job.number, call)

    # -- receiving --------------------------------------------------------------------------------

    def on_ready(self, handle: Handle) -> None:
        self.states[handle.name].starting = False
        self.dispatch()

    def on_done(self, handle: Handle, message: m.WorkDone) -> list[Done]:
        """Record a worker's message; what is now complete."""
        state = self.states[handle.name]
        state.starting, state.hung = False, message.hung
        job = state.pop(message.job)
        if job is None:  # a heartbeat, or a job that was given to another worker meanwhile
            return []
        found: list[Done]
        if job.call is None:
            found = self._on_scores(job, message)
        else:
            found = self._on_reply(job, job.call, message.reply)
        self.dispatch()
        return found

    def _on_scores(self, job: Job, message: m.WorkDone) -> list[Done]:
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
        return self._record(job, message.scores)

    def _on_reply(
        self, job: Job, call: m.EnvironmentCall, reply: m.EnvironmentReply | None
    ) -> list[Done]:
        if not self._wanted(job):
            return []
        if reply is None:  # the worker has lost the environment: repeated, with the history
            self._release(call.episode)
            (self._suspects if job.suspect else self._call_queue).append(job)
            return []
        del self._calls[call.episode]
        if call.kind == "cut_off" or not isinstance(reply.reply, Observation):
            self._release(call.episode)  # the worker has closed it
        if reply.gave_up:
            self._note_failures(reply.problem, 1, "episode")
        else:
            self._failures = 0
        return [reply]

    # -- replacing --------------------------------------------------------------------------------

    def _needs_replacement(self, state: WorkerState) -> bool:
        """Whether too many of its calls hang: it gets no new jobs, and is replaced once idle."""
        return state.hung > self.places * MAX_HUNG_SHARE

    def replaceable(self, patience: float, start: float) -> list[tuple[Handle, str]]:
        """Workers that should be replaced now, and why. `patience` is the longest allowed silence
        in seconds of a worker that runs (it sends heartbeats, also during long calls), `start` of
        one that is starting."""
        found = [(state.handle, self._fault(state, patience, start))
                 for state in self.states.values()]  # fmt: skip
        return [(handle, why) for handle, why in found if why]

    def _fault(self, state: WorkerState, patience: float, start: float) -> str:
        """Why a worker should be replaced; empty if it should not."""
        now, silence = self.clock.now(), state.handle.silence
        late = [job.sent for job in state.jobs.values() if now > job.deadline]
        if state.starting:
            return f"did not start in {start:.0f} s" if silence > start else ""
        if self._needs_replacement(state) and not state.jobs:
            many = "call that hangs" if state.hung == 1 else "calls that hang"
            return f"has {state.hung} {many}"
        if silence > patience:
            return f"has sent nothing for {silence:.0f} s"
        return f"has not answered a call for {now - min(late):.0f} s" if late else ""

    def shift_deadlines(self, seconds: float) -> None:
        """Move all deadlines by the seconds for which no message could be received."""
        for state in self.states.values():
            for job in state.jobs.values():
                job.deadline += seconds

    def on_worker_lost(self, handle: Handle, replacement: Handle, why: str) -> list[Done]:
        """Replace a worker: its jobs become suspect, and those that were suspect are given up. What
        is now complete."""
        state = self.states[handle.name]
        self.states[handle.name] = WorkerState(replacement)
        for episode in tuple(state.held):
            self._release(episode)
        found: list[Done] = []
        for job in state.jobs.values():
            if not self._wanted(job):
                continue
            if job.suspect:
                found += self._give_up(job, why)
            # A single call cannot be divided further, and is tried once more as it is.
            elif job.calls <= 1:
                job.suspect = True
                self._suspects.append(job)
            else:
                for place, answer in zip(job.places, job.answers, strict=True):
                    self._suspects.append(self._job(1, job.key, (place,), (answer,), suspect=True))
        self.dispatch()
        return found

    def _give_up(self, job: Job, why: str) -> list[Done]:
        """Fail a job that has ended two workers."""
        call = job.call
        if call is None:
            line = f"the verifier of task {self.task.name} ended its checker process ({why})"
            self._note_failures(line, len(job.answers))
            return self._record(job, [AnswerScore(None, None, line, True)] * len(job.answers))
        del self._calls[call.episode]
        line = f"the environment of task {call.prompt.task} ended its worker process ({why})"
        self._note_failures(line, 1, "episode")
        return [m.EnvironmentReply(call.episode, call.kind, None, problem=line, gave_up=True)]

    def _record(self, job: Job, scores: Sequence[AnswerScore]) -> list[Done]:
        if job.key not in self._sizes:
            return []
        have = self._open[job.key]
        have |= dict(zip(job.places, scores, strict=True))
        if len(have) < self._sizes[job.key]:
            return []
        del self._open[job.key], self._sizes[job.key]
        return [ScoredAnswers(job.key, tuple(have[place] for place in sorted(have)))]

    def _note_failures(self, why: str, count: int, of: str = "answer") -> None:
        self._failures += count
        # Twice as many as run at once: a verifier that hangs fails all calls side by side.
        if self._failures >= max(MAX_FAILURES, 2 * self.places, 2 * self._most_calls):
            program = "verifier" if of == "answer" else "environment"
            raise PipelineError(
                f"{why}; {self._failures} {of}s in a row: repair the {program}, then --resume"
            )
        many = f"{of} stays" if count == 1 else f"{of}s stay"
        self.notes.append(f"{why}: {count} {many} unscored")


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
        # Answers that were given up have a warning of their own: `EnvironmentPool.notes`.
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
