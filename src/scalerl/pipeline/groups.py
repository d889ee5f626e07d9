"""Groups under way: being written, being checked, or ready for the trainer.

They are saved in checkpoints as plain arrays and JSON. After a resume, complete groups are kept
(those without scores are checked again), and incomplete ones are written again from their
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
import numpy.typing as npt

from scalerl.algorithm.length import penalised_reward
from scalerl.algorithm.rollout import Group, Rollout
from scalerl.engine.interface import Request
from scalerl.pipeline.schedule import GroupAge
from scalerl.pipeline.setup import RunSetup
from scalerl.tasks.task import Answer, AnswerScore, Prompt, seed_from

_ARRAYS: dict[str, Any] = {
    "token_ids": np.int64, "logprobs": np.float32, "versions": np.int64, "forced": bool,
}  # fmt: skip


@dataclass(slots=True, eq=False)
class CheckSummary:
    """What checks return besides rewards."""

    #: Number of rollouts without a score, by reason.
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


@dataclass(slots=True, eq=False)
class PendingGroup:
    """One group, from the draw of its prompt to its optimiser step."""

    serial: int
    prompt: Prompt
    token_ids: npt.NDArray[np.int64]
    #: Number of rollouts it will have.
    size: int
    #: Version of the weights when it was started: no token of the group is older.
    started: int
    #: Name of the generator that writes it.
    generator: str = ""
    rollouts: dict[int, Rollout] = field(default_factory=dict)
    #: The group with rewards, once it is scored.
    group: Group | None = None
    check_summary: CheckSummary = field(default_factory=CheckSummary)
    _age: GroupAge | None = None

    @property
    def stage(self) -> Literal["writing", "checking", "ready"]:
        if self.group is not None:
            return "ready"
        return "writing" if len(self.rollouts) < self.size else "checking"

    @property
    def age(self) -> GroupAge:
        """What the schedule needs to know of it."""
        if self.group is None:
            return GroupAge(self.serial, self.started)
        # The age of a finished group does not change, and the loop asks for it at every message.
        if self._age is None:
            oldest = self.group.oldest
            age = self.started if oldest is None else oldest
            self._age = GroupAge(self.serial, age, finished=True)
        return self._age

    def request(self, setup: RunSetup) -> Request:
        """The request for the rollouts that are still missing."""
        missing = [row for row in range(self.size) if row not in self.rollouts]
        seed = setup.recipe.seed
        return Request(
            str(self.serial),
            tuple(self.token_ids.tolist()),
            setup.control,
            {row: seed_from(seed, "rollout", self.serial, row) for row in missing},
            setup.sampling,
        )

    def restart_at(self, version: int) -> None:
        """Update `started`: the missing rollouts are written again from this version on."""
        kept = [int(r.versions.min()) for r in self.rollouts.values() if len(r)]
        self.started = min([version, *kept])

    def answers(self, setup: RunSetup, step: int) -> list[Answer]:
        """The answers as checkers get them, at this step of the run."""
        return [setup.answer(self.prompt, r.token_ids, step) for r in self._in_order()]

    def apply_rewards(self, scores: Sequence[AnswerScore], setup: RunSetup) -> Group:
        """Give all rollouts their rewards, which makes the group ready."""
        rollouts = tuple(
            r.with_reward(_reward(r, score, setup), score.correct)
            for r, score in zip(self._in_order(), scores, strict=True)
        )
        self.group = Group(self.prompt.id, self.token_ids, rollouts)
        self.check_summary = CheckSummary.from_scores(scores)
        return self.group

    def _in_order(self) -> list[Rollout]:
        return [self.rollouts[row] for row in sorted(self.rollouts)]


def _reward(rollout: Rollout, score: AnswerScore, setup: RunSetup) -> float | None:
    length = setup.recipe.length
    if score.reward is None or length.control != "penalty" or not length.penalty_max:
        return score.reward
    return penalised_reward(
        score.reward,
        bool(score.correct),
        len(rollout),
        length.penalty_max,
        length.penalty_cache or 1,
    )


def save(path: Path, pending: Iterable[PendingGroup]) -> None:
    """Write `groups.json` and `groups.npz`."""
    about = []
    arrays: dict[str, list[Any]] = {name: [] for name in _ARRAYS}
    experts = []
    prompts = []
    for p in pending:
        prompts.append(p.token_ids)
        # Incomplete groups are written again, so their rollouts are not kept.
        kept: Sequence[Rollout] = () if p.stage == "writing" else p._in_order()
        if p.group is not None:
            kept = p.group.rollouts
        for rollout in kept:
            for name in _ARRAYS:
                arrays[name].append(getattr(rollout, name))
            if rollout.experts is not None:
                experts.append(rollout.experts)
        about.append(
            {
                "serial": p.serial,
                "prompt": p.prompt.id,
                "prompt_tokens": len(p.token_ids),
                "started": p.started,
                "checked": p.group is not None,
                "rollouts": [[len(r), r.finish, r.reward, r.correct] for r in kept],
                "unscored": p.check_summary.unscored,
                "metrics": p.check_summary.metrics,
            }
        )
    (path / "groups.json").write_text(json.dumps(about))
    flat: dict[str, Any] = {
        name: np.concatenate(values) if values else np.zeros(0, dtype=_ARRAYS[name])
        for name, values in arrays.items()
    }
    # With an empty array, because np.concatenate refuses an empty list.
    flat["prompts"] = np.concatenate([*prompts, np.zeros(0, dtype=np.int64)])
    if experts:
        flat["experts"] = np.concatenate(experts)
    np.savez(path / "groups.npz", **flat)


def load(path: Path, prompts: Mapping[str, Prompt], setup: RunSetup) -> dict[int, PendingGroup]:
    """Read what `save` wrote; groups without rollouts are still to be written. Rollouts keep the
    prompt tokens that they were written for. Checkpoints of earlier versions do not hold these, and
    their prompts are rendered again (`lacks_prompts`)."""
    about = json.loads((path / "groups.json").read_text())
    with np.load(path / "groups.npz", allow_pickle=False) as file:
        arrays = {name: file[name] for name in _ARRAYS}
        experts, saved = file.get("experts"), file.get("prompts")
    found: dict[int, PendingGroup] = {}
    at = routed = asked = 0
    for item in about:
        prompt = prompts[item["prompt"]]
        size = setup.recipe.batch.generations
        if saved is None:
            ids = setup.tokens_of(prompt)
        else:
            ids = saved[asked : asked + item["prompt_tokens"]]
            asked += len(ids)
        p = PendingGroup(int(item["serial"]), prompt, ids, size, int(item["started"]))
        for row, (length, finish, reward, correct) in enumerate(item["rollouts"]):
            part = {name: values[at : at + length] for name, values in arrays.items()}
            if experts is not None and length:
                seen = len(p.token_ids) + length - 1  # the model never reads the last token
                part["experts"] = experts[routed : routed + seen]
                routed += seen
            p.rollouts[row] = Rollout(**part, finish=finish, reward=reward, correct=correct)
            at += length
        if item["checked"]:
            p.group = Group(prompt.id, p.token_ids, tuple(p.rollouts.values()))
            # (Checkpoints of earlier versions do not hold these.)
            p.check_summary = CheckSummary(Counter(item.get("unscored")), item.get("metrics", {}))
        found[p.serial] = p
    return found


def lacks_prompts(path: Path) -> bool:
    """Whether a checkpoint holds rollouts without the prompt tokens that they were written for."""
    about = json.loads((path / "groups.json").read_text())
    return any(item["rollouts"] and "prompt_tokens" not in item for item in about)
