"""Moves groups from their request to their scores, between generators and environments.

    a task of a single turn    generator ─► all turns of the group ─► scores
    an environment             reset ─► generator ⇄ environment, episode by episode ─► scores

Training, validation and `scalerl eval` all use it. Each message costs the same, however many groups
are under way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from scalerl.algorithm.episode import Episode, FinishReason
from scalerl.engine.interface import Lane, Request, TurnResult
from scalerl.environments.interface import Observation, Outcome
from scalerl.pipeline import messages as m
from scalerl.pipeline.crew import Clock
from scalerl.pipeline.environment_pool import Done, EnvironmentPool, ScoredAnswers
from scalerl.pipeline.episodes import Attempt, Opening
from scalerl.pipeline.groups import PendingGroup, Stage, group_key
from scalerl.pipeline.setup import RunSetup
from scalerl.tasks.task import AnswerScore

#: Submits requests of a lane to generators; returns the oldest version that they may write with.
Place = Callable[[Sequence[Request], Lane], int]


@dataclass(slots=True, eq=False)
class LaneCounts:
    """Groups of a lane under way, by stage, without those that are ready."""

    writing: int = 0
    checking: int = 0

    def moved(self, before: Stage | None, after: Stage | None) -> None:
        self.writing += (after == "writing") - (before == "writing")
        self.checking += (after == "checking") - (before == "checking")


class Rollouts:
    """The groups under way, of all lanes.

    place  submits requests to generators
    done   is called with each group that is scored, by lane
    """

    def __init__(
        self,
        setup: RunSetup,
        pool: EnvironmentPool,
        clock: Clock,
        place: Place,
        done: dict[Lane, Callable[[PendingGroup], None]],
    ) -> None:
        self.setup, self.pool, self.clock = setup, pool, clock
        self.place, self.done = place, done
        self.groups: dict[str, PendingGroup] = {}
        self.counts: dict[Lane, LaneCounts] = {"train": LaneCounts(), "validate": LaneCounts()}
        #: Number of changes of any group's age so far.
        self.age_changes = 0
        #: Optimiser steps that the run has taken, for reward functions that ask.
        self.step = 0
        self._stages: dict[str, Stage] = {}
        #: Number of resets so far: it keeps the names of environments unique, since validations
        #: and groups that are written again have the same keys.
        self._resets = 0
        #: (deadline, group, row) of episodes in environments, the earliest first.
        self._deadlines: deque[tuple[float, str, int]] = deque()

    # -- beginning --------------------------------------------------------------------------------

    def begin(self, groups: Iterable[PendingGroup]) -> None:
        """Start groups: submit their requests, or reset their environment first. Groups of a
        checkpoint that are written but not scored are scored."""
        requests: dict[Lane, list[Request]] = {"train": [], "validate": []}
        for p in groups:
            self.groups[p.key] = p
            p.begun_at = self.clock.now()
            if len(p.episodes) == p.size:
                self._check(p)
            elif p.token_ids is None:
                self._open(p)
            else:
                requests[p.how.lane].append(p.request())
            self._moved(p)
        for lane, found in requests.items():
            if found:
                self.place(found, lane)

    def _open(self, p: PendingGroup) -> None:
        self._resets += 1
        p.environments = f"{p.key}#{self._resets}"
        self.pool.call(
            m.EnvironmentCall(_episode_name(p, 0), p.prompt, p.how.environment_seed, "reset")
        )

    def _opened(self, p: PendingGroup, reply: m.EnvironmentReply) -> None:
        rules = self.setup.episode_rules
        if not isinstance(reply.reply, Observation):
            self._fail_all(p, reply)
            return
        shown = reply.reply.conversation or (
            *self.setup.messages_of(p.prompt), *rules.limited(reply.reply.messages)
        )  # fmt: skip
        ids = np.asarray(rules.opening_ids(shown, reply.reply.tools), np.int64)
        longest = self.setup.recipe.sampling.max_prompt_tokens
        if not 0 < len(ids) <= longest:
            why = f"the environment's prompt has {len(ids)} tokens, of at most {longest}"
            self._fail_all(p, m.EnvironmentReply(reply.episode, "reset", None, problem=why))
            return
        p.token_ids = ids
        p.opening = Opening(tuple(shown), reply.reply.tools, ids, reply.fingerprint)
        deadline = self.clock.now() + rules.seconds
        for row in range(p.size):
            p.attempts[row] = Attempt.from_opening(
                _episode_name(p, row), p.prompt, p.how.environment_seed, p.opening, deadline
            )
            self._deadlines.append((deadline, p.key, row))
        p.started = max(p.started, self.place([p.request()], p.how.lane))
        self.age_changes += 1

    def _fail_all(self, p: PendingGroup, reply: m.EnvironmentReply) -> None:
        """End all episodes of a group with an environment that cannot be reset."""
        self.pool.close([reply.episode])
        p.token_ids = np.zeros(0, np.int64)
        for row in range(p.size):
            p.episodes[row] = Episode((), "failed")
            p.scores[row] = AnswerScore(None, None, reply.problem, reply.gave_up)
        self._finish(p)

    # -- turns ------------------------------------------------------------------------------------

    def on_turn(self, written: TurnResult) -> None:
        """Add a turn that a generator has finished."""
        p = self.groups.get(group_key(written.request))
        if p is None:
            return  # its group was dropped meanwhile
        p.writing -= 1
        attempt = p.attempts.get(written.row)
        if attempt is None:
            assert p.token_ids is not None
            p.episodes[written.row] = Episode.from_turn(p.token_ids, written.turn)
            if not p.writing:
                self._check(p)
        else:
            call = attempt.add_turn(written.turn, self.setup.episode_rules)
            if self.clock.now() > attempt.deadline:
                self._too_long(p, written.row)
            else:
                self.pool.call(call)
        self._moved(p)

    def _check(self, p: PendingGroup) -> None:
        p.written_at = self.clock.now()
        self.pool.score(p.key, p.answers(self.setup, self.step))

    # -- results of the pool ----------------------------------------------------------------------

    def on_results(self, results: Iterable[Done]) -> None:
        """Record scores and replies of environments; episodes that go on ask for their next turn,
        all of them together."""
        requests: dict[Lane, list[Request]] = {"train": [], "validate": []}
        for result in results:
            key = (
                str(result.key) if isinstance(result, ScoredAnswers) else group_key(result.episode)
            )
            p = self.groups.get(key)
            if p is None or (not isinstance(result, ScoredAnswers) and not p.played_in(result)):
                continue  # its group was dropped, or begun again, meanwhile
            if isinstance(result, ScoredAnswers):
                p.scores = dict(enumerate(result.scores))
                self._finish(p)
            elif result.kind == "reset":
                self._opened(p, result)
            else:
                request = self._replied(p, result)
                if request is not None:
                    requests[p.how.lane].append(request)
            self._moved(p)
        for lane, found in requests.items():
            if found:
                self.place(found, lane)

    def _replied(self, p: PendingGroup, reply: m.EnvironmentReply) -> Request | None:
        """Record a reply; the request for the next turn if the episode goes on."""
        row = int(reply.episode.rpartition("#")[2])
        attempt = p.attempts.get(row)
        if attempt is None:  # it took too long, and is over
            return None
        attempt.add_reply(reply)
        found = reply.reply
        if reply.problem:
            attempt.finish = "failed"
            self._end(p, row, AnswerScore(None, None, reply.problem, reply.gave_up))
        elif isinstance(found, Outcome):
            self._end(p, row, found.score)
        elif reply.kind == "cut_off":
            self._end(p, row, self._unfinished(p, attempt.finish))
        elif isinstance(found, Observation):
            limit = attempt.continues(found, self.setup.episode_rules, p.how.control.max_tokens)
            if limit is None:
                return p.next_request(row)
            self.pool.call(attempt.cut_off(limit))
        return None

    def _unfinished(self, p: PendingGroup, finish: FinishReason) -> AnswerScore:
        """The score of an episode that the environment has none for: wrong."""
        rules = self.setup.episode_rules
        why = f"no outcome after {rules.turns} turns"
        if finish == "length":
            why = f"no outcome within {rules.columns} tokens"
        return self.setup.task.member_for(p.prompt).rules.score(False, why)

    def _end(self, p: PendingGroup, row: int, score: AnswerScore) -> None:
        attempt = p.attempts.pop(row)
        self.pool.close([attempt.name])
        p.episodes[row], p.scores[row] = attempt.ended(), score
        if len(p.episodes) == p.size:
            self._finish(p)

    def _finish(self, p: PendingGroup) -> None:
        del self.groups[p.key]
        p.ready_at = self.clock.now()
        # In an environment the last turn is written and scored at once.
        p.written_at = p.ready_at if p.written_at is None else p.written_at
        p.apply_scores(self.setup)
        self.age_changes += 1
        self._moved(p)
        self.done[p.how.lane](p)

    # -- limits and losses ------------------------------------------------------------------------

    def end_late_episodes(self) -> list[str]:
        """End episodes that have taken too long; a line about each."""
        lines, now = [], self.clock.now()
        while self._deadlines and self._deadlines[0][0] < now:
            _, key, row = self._deadlines.popleft()
            p = self.groups.get(key)
            attempt = None if p is None else p.attempts.get(row)
            # A turn that is being written ends its episode when it arrives. (The entry may be about
            # an episode of an earlier validation, which has the same key.)
            if p is not None and attempt is not None and attempt.called and attempt.deadline < now:
                name = self.setup.task.member_for(p.prompt).name
                lines.append(f"an episode of {name} took more than environment.seconds: ended")
                self._too_long(p, row)
                self._moved(p)
        return lines

    def _too_long(self, p: PendingGroup, row: int) -> None:
        p.attempts[row].finish = "failed"
        limit = self.setup.episode_rules.seconds
        self._end(p, row, AnswerScore.unscored(f"the episode took more than {limit:g} s"))

    def shift_deadlines(self, seconds: float) -> None:
        """Move all deadlines by the seconds for which no message could be received."""
        self._deadlines = deque((at + seconds, key, row) for at, key, row in self._deadlines)
        for p in self.groups.values():
            for attempt in p.attempts.values():
                attempt.deadline += seconds

    def restarted(self, requests: Iterable[Request], version: int) -> None:
        """Record that the missing turns of these requests are written from this version on."""
        for request in requests:
            p = self.groups.get(group_key(request.id))
            if p is not None:
                p.restart_at(version)
                self.age_changes += 1

    def _moved(self, p: PendingGroup) -> None:
        """Follow a change of a group's stage in the counts."""
        before = self._stages.get(p.key)
        after = None if p.key not in self.groups else p.stage
        if before != after:
            self.counts[p.how.lane].moved(before, after)
        if after is None:
            self._stages.pop(p.key, None)
        else:
            self._stages[p.key] = after


def _episode_name(p: PendingGroup, row: int) -> str:
    return f"{p.environments}#{row}"
