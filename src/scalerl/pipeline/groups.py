"""Groups under way: their episodes are written, scored, and then ready for the trainer.

They are saved in checkpoints as plain arrays and JSON. After a resume, groups with all their turns
are kept (those without scores are checked again), and the others are written again from their
beginning, under the same serial number.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from scalerl.algorithm.episode import (
    Episode,
    EpisodeFacts,
    Group,
    Segment,
    TokenIds,
    TokenRow,
    Turn,
)
from scalerl.algorithm.length import LengthControl, penalised_reward
from scalerl.engine.interface import Lane, Request, Sampling
from scalerl.pipeline import messages as m
from scalerl.pipeline.episodes import Attempt, Opening
from scalerl.pipeline.schedule import GroupAge
from scalerl.pipeline.setup import RunSetup
from scalerl.recipe.length import PenaltyLength
from scalerl.runs.lines import GroupSeconds
from scalerl.tasks.task import Answer, AnswerScore, Prompt, seed_from

Stage = Literal["writing", "checking", "ready"]


@dataclass(slots=True, eq=False)
class CheckSummary:
    """What checks return besides rewards."""

    #: Number of episodes without a score, by reason.
    unscored: Counter[str] = field(default_factory=Counter)
    #: Values that reward functions log, by name.
    metrics: dict[str, list[float]] = field(default_factory=dict)

    @staticmethod
    def from_scores(scores: Iterable[AnswerScore]) -> CheckSummary:
        summary = CheckSummary()
        for score in scores:
            if not score.scored:
                summary.unscored[score.why] += 1
            for name, value in score.metrics:
                summary.metrics.setdefault(name, []).append(value)
        return summary

    @staticmethod
    def merged(groups: Iterable[PendingGroup]) -> CheckSummary:
        summary = CheckSummary()
        for p in groups:
            summary.unscored.update(p.check_summary.unscored)
            for name, values in p.check_summary.metrics.items():
                summary.metrics.setdefault(name, []).extend(values)
        return summary


@dataclass(frozen=True, slots=True, eq=False)
class Writing:
    """How the episodes of a group are written."""

    lane: Lane
    control: LengthControl
    sampling: Sampling
    #: What the seeds of the group follow from.
    seed_parts: tuple[object, ...]

    def seed(self, row: int, turn: int) -> int:
        """The seed of a turn: another one for every turn, because an engine draws by the seed and
        the position in the request, and would draw the same numbers again."""
        return seed_from(*self.seed_parts, row, *([turn] if turn else []))

    @property
    def environment_seed(self) -> int:
        """The seed of the group's environments."""
        return seed_from(*self.seed_parts, "environment")


@dataclass(slots=True, eq=False)
class PendingGroup:
    """The episodes of one prompt, from the draw of the prompt to their scores."""

    #: Its name in requests: the serial number of a training group.
    key: str
    prompt: Prompt
    #: Number of episodes it will have.
    size: int
    how: Writing
    #: Tokens of the prompt; None until its environment is reset.
    token_ids: TokenIds | None = None
    #: Version of the weights when it was started: no token of the group is older.
    started: int = 0
    #: Episodes with all their turns, by row.
    episodes: dict[int, Episode] = field(default_factory=dict)
    #: Scores, by row.
    scores: dict[int, AnswerScore] = field(default_factory=dict)
    #: With an environment: what the names of its episodes' environments begin with.
    environments: str = ""
    #: With an environment: the reset that its episodes begin with.
    opening: Opening | None = None
    #: Episodes that are played in an environment and not over, by row.
    attempts: dict[int, Attempt] = field(default_factory=dict)
    #: Number of rows with a turn that a generator writes.
    writing: int = 0
    #: The group with rewards, once it is scored.
    group: Group | None = None
    #: Time at which it was begun, had all its turns, and was scored; None until then.
    begun_at: float | None = None
    written_at: float | None = None
    ready_at: float | None = None
    check_summary: CheckSummary = field(default_factory=CheckSummary)
    _age: GroupAge | None = None

    @property
    def serial(self) -> int:
        """Serial number of a training group."""
        return int(self.key)

    @property
    def stage(self) -> Stage:
        if self.group is not None:
            return "ready"
        begun = len(self.episodes) + len(self.attempts)
        return "writing" if self.writing or begun < self.size else "checking"

    @property
    def age(self) -> GroupAge:
        """What the schedule needs to know of it."""
        if self.group is None:
            return GroupAge(self.serial, self.started)
        # The age of a finished group does not change, and the loop asks for it often.
        if self._age is None:
            oldest = self.group.oldest
            age = self.started if oldest is None else oldest
            self._age = GroupAge(self.serial, age, finished=True)
        return self._age

    def request(self) -> Request:
        """The request for the first turn of the episodes that are missing."""
        assert self.token_ids is not None, "a group is asked for after its environment is reset"
        missing = [row for row in range(self.size) if row not in self.episodes]
        self.writing = len(missing)
        return Request(
            self.key,
            tuple(self.token_ids.tolist()),
            self.how.control,
            {row: self.how.seed(row, 0) for row in missing},
            self.how.sampling,
            one_by_one=self.opening is not None,
        )

    def next_request(self, row: int) -> Request:
        """The request for the next turn of an episode in an environment."""
        attempt = self.attempts[row]
        self.writing += 1
        name, turns = f"{self.key}#{row}#", attempt.turns
        return Request(
            f"{name}{turns}",
            tuple(attempt.row.token_ids.tolist()),
            self.how.control,
            {row: self.how.seed(row, turns)},
            self.how.sampling,
            one_by_one=True,
            # The first turns of a group's episodes are one request.
            continues=f"{name}{turns - 1}" if turns > 1 else self.key,
        )

    def restart_at(self, version: int) -> None:
        """Update `started`: the missing turns are written again from this version on."""
        kept = [e.versions[0] for e in self.episodes.values() if e.versions]
        kept += [v for a in self.attempts.values() if (v := a.oldest) is not None]
        self.started = min([version, *kept])

    def answers(self, setup: RunSetup, step: int) -> list[Answer]:
        """The answers of a task of a single turn as checkers get them, at this step of the run."""
        return [setup.answer(self.prompt, e.completion, step) for e in self.in_order()]

    def apply_scores(self, setup: RunSetup) -> Group:
        """Give all episodes their rewards, which makes the group ready."""
        scores = [self.scores[row] for row in sorted(self.scores)]
        episodes = tuple(
            episode.with_reward(_reward(episode, score, setup), score.correct)
            for episode, score in zip(self.in_order(), scores, strict=True)
        )
        self.group = Group(self.prompt.id, episodes)
        self.check_summary = CheckSummary.from_scores(scores)
        return self.group

    def in_order(self) -> list[Episode]:
        """The episodes with all their turns, by row."""
        return [self.episodes[row] for row in sorted(self.episodes)]

    def played_in(self, reply: m.EnvironmentReply) -> bool:
        """Whether a reply comes from one of its environments."""
        return reply.episode.rpartition("#")[0] == self.environments

    def begin_again(self, token_ids: TokenIds | None) -> None:
        """Forget all episodes: they are to be written from their beginning."""
        self.episodes, self.attempts, self.scores = {}, {}, {}
        self.opening, self.group, self._age = None, None, None
        self.token_ids, self.writing = token_ids, 0


def mean_stage_seconds(groups: Sequence[PendingGroup], now: float) -> GroupSeconds | None:
    """Mean seconds of groups in each stage, when the trainer takes them; None where a checkpoint
    has forgotten them."""
    known = [
        (p.begun_at, p.written_at, p.ready_at)
        for p in groups
        if p.begun_at is not None and p.written_at is not None and p.ready_at is not None
    ]
    if not known:
        return None
    begun, written, ready = (float(np.mean(times)) for times in zip(*known, strict=True))
    return GroupSeconds(writing=written - begun, checking=ready - written, ready=now - ready)


def group_key(request: str) -> str:
    """The key of the group that a request belongs to.

    >>> group_key("12"), group_key("validation//3#0#2")
    ('12', 'validation//3')
    """
    return request.partition("#")[0]


def _reward(episode: Episode, score: AnswerScore, setup: RunSetup) -> float | None:
    length = setup.recipe.length
    if score.reward is None or not isinstance(length, PenaltyLength):
        return score.reward
    top, cache = length.penalty_max, length.penalty_cache
    return penalised_reward(score.reward, bool(score.correct), len(episode), top, cache)


# -- in checkpoints -------------------------------------------------------------------------------


def save(path: Path, pending: Iterable[PendingGroup]) -> None:
    """Write `groups.json` and `groups.npz`."""
    about = []
    tokens: list[TokenIds] = []
    logprobs: list[Any] = []
    experts: list[Any] = []
    for p in pending:
        prompt = np.zeros(0, np.int64) if p.token_ids is None else p.token_ids
        tokens.append(prompt)
        logprobs.append(np.zeros(len(prompt), np.float32))
        # Incomplete groups are written again, so their turns are not kept. What an environment
        # has scored row by row is not kept either: its other rows would have to be replayed.
        whole = p.group is not None or (p.stage == "checking" and p.opening is None)
        kept = p.group.episodes if p.group is not None else p.in_order() if whole else []
        for episode in kept:
            for row in episode.rows:
                tokens.append(row.token_ids)
                logprobs.append(row.logprobs)
            if episode.experts is not None:
                experts.append(episode.experts)
        about.append(
            {
                "serial": p.serial,
                "prompt": p.prompt.id,
                "prompt_tokens": len(prompt),
                "started": p.started,
                "checked": p.group is not None,
                "episodes": [_episode_dict(e) for e in kept],
                "unscored": p.check_summary.unscored,
                "metrics": p.check_summary.metrics,
            }
        )
    (path / "groups.json").write_text(json.dumps(about))
    # With an empty array, because np.concatenate refuses an empty list.
    flat: dict[str, Any] = {
        "token_ids": np.concatenate([np.zeros(0, np.int64), *tokens]),
        "logprobs": np.concatenate([np.zeros(0, np.float32), *logprobs]),
    }
    if experts:
        flat["experts"] = np.concatenate(experts)
    np.savez(path / "groups.npz", **flat)


def _episode_dict(episode: Episode) -> dict[str, Any]:
    facts = episode.facts
    return {
        "finish": episode.finish,
        "reward": episode.reward,
        "correct": episode.correct,
        "facts": [facts.turns, facts.tool_calls, facts.tool_failures, facts.environment_seconds],
        "rows": [[[s.source, s.tokens, s.versions, s.reward] for s in r.segments]
                 for r in episode.rows],
        "experts": None if episode.experts is None else len(episode.experts),
    }  # fmt: skip


class _SavedArrays:
    """Reads the arrays of a checkpoint one after the other."""

    def __init__(self, path: Path) -> None:
        # allow_pickle=False: a checkpoint may come from elsewhere, and a pickle executes code.
        with np.load(path, allow_pickle=False) as found:
            self.arrays = {name: found[name] for name in found.files}
        self._at = dict.fromkeys(self.arrays, 0)

    def take(self, name: str, n: int) -> Any:
        at = self._at[name]
        self._at[name] = at + n
        return self.arrays[name][at : at + n]


def load(
    path: Path, prompts: Mapping[str, Prompt], setup: RunSetup, how: Any
) -> dict[str, PendingGroup]:
    """Read what `save` wrote. `how` gives the `Writing` of a serial number."""
    about = json.loads((path / "groups.json").read_text())
    arrays = _SavedArrays(path / "groups.npz")
    found: dict[str, PendingGroup] = {}
    for item in about:
        prompt, serial = prompts[item["prompt"]], int(item["serial"])
        p = PendingGroup(str(serial), prompt, setup.recipe.batch.generations, how(serial))
        p.started = int(item["started"])
        if "rollouts" in item:
            _load_rollouts(p, item, arrays, setup)
        else:
            p.token_ids = arrays.take("token_ids", item["prompt_tokens"])
            arrays.take("logprobs", item["prompt_tokens"])
            p.episodes = {row: _episode(e, arrays) for row, e in enumerate(item["episodes"])}
        if setup.plays(prompt) and not item["checked"]:
            p.begin_again(None)
        if item["checked"]:
            p.group = Group(prompt.id, tuple(p.in_order()))
            # (Checkpoints of early versions do not hold these.)
            p.check_summary = CheckSummary(Counter(item.get("unscored")), item.get("metrics", {}))
        found[p.key] = p
    return found


def _episode(saved: Mapping[str, Any], arrays: _SavedArrays) -> Episode:
    rows = []
    for segments in saved["rows"]:
        found = tuple(
            Segment(source, n, tuple((v, k) for v, k in versions), reward)
            for source, n, versions, reward in segments
        )
        n = sum(segment.tokens for segment in found)
        rows.append(TokenRow(arrays.take("token_ids", n), arrays.take("logprobs", n), found))
    routed = saved["experts"]
    experts = None if routed is None else arrays.take("experts", routed)
    facts = EpisodeFacts(*saved["facts"])
    return Episode(tuple(rows), saved["finish"], saved["reward"], saved["correct"], facts, experts)


def _load_rollouts(
    p: PendingGroup, item: Mapping[str, Any], arrays: _SavedArrays, setup: RunSetup
) -> None:
    """Read a group as version 0.2 wrote it: prompts apart, one completion for each rollout."""
    n = item.get("prompt_tokens")
    p.token_ids = setup.tokens_of(p.prompt) if n is None else arrays.take("prompts", n)
    for row, (length, finish, reward, correct) in enumerate(item["rollouts"]):
        names = ("token_ids", "logprobs", "versions", "forced")
        token_ids, logprobs, versions, forced = (arrays.take(name, length) for name in names)
        experts = None
        if "experts" in arrays.arrays and length:
            experts = arrays.take("experts", len(p.token_ids) + length - 1)
        turn = Turn(token_ids, logprobs, versions, forced, finish, experts)
        p.episodes[row] = Episode.from_turn(p.token_ids, turn).with_reward(reward, correct)


def lacks_prompts(path: Path) -> bool:
    """Whether a checkpoint holds rollouts without the prompt tokens that they were written for."""
    about = json.loads((path / "groups.json").read_text())
    return any(item.get("rollouts") and "prompt_tokens" not in item for item in about)
