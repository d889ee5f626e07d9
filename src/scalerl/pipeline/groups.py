"""Groups under way: being written, or finished and waiting for the trainer.

Their state goes into checkpoints as plain arrays and JSON: finished groups are kept, groups that
are still being written are asked again from their beginning, under the same serial number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.algorithm.length import penalised_reward
from scalerl.algorithm.rollout import Group, Rollout
from scalerl.engine.interface import Written
from scalerl.pipeline.checking import Checker
from scalerl.pipeline.plan import Plan
from scalerl.pipeline.schedule import Ticket
from scalerl.tasks.task import Prompt

_ARRAYS = ("token_ids", "logprobs", "versions", "forced")


@dataclass(slots=True, eq=False)
class UnderWay:
    """One group, from the draw of its prompt to its optimiser step."""

    prompt: Prompt
    token_ids: Any
    #: Version of the generator when it was started: no token of the group is older.
    started: int
    generator: int
    written: dict[int, Written] = field(default_factory=dict)
    group: Group | None = None

    @property
    def writing(self) -> bool:
        return self.group is None

    def ticket(self, serial: int) -> Ticket:
        """What the schedule needs to know of it."""
        if self.group is None:
            return Ticket(serial, self.started)
        oldest = min((int(r.versions.min()) for r in self.group.rollouts if len(r)), default=None)
        return Ticket(serial, self.started if oldest is None else oldest, finished=True)

    def started_again(self, version: int) -> None:
        """Its generator is new: rollouts that were not finished begin anew at this version."""
        kept = [int(w.versions.min()) for w in self.written.values() if len(w.versions)]
        self.started = min([version, *kept])


def finished_group(u: UnderWay, plan: Plan, checker: Checker) -> Group:
    """All rollouts are written: check them, reward them."""
    written = [u.written[i] for i in sorted(u.written)]
    checked = checker.check_all([(u.prompt, plan.text_of(w.token_ids)) for w in written])
    rollouts = []
    for w, c in zip(written, checked, strict=True):
        reward = None if c.reward is None else _penalised(c.reward, bool(c.correct), w, plan)
        arrays = (w.token_ids, w.logprobs, w.versions, w.forced)
        rollouts.append(Rollout(*arrays, w.finish or "failed", reward, c.correct))
    return Group(u.prompt.id, u.token_ids, tuple(rollouts))


def _penalised(reward: float, correct: bool, w: Written, plan: Plan) -> float:
    length = plan.recipe.length
    if length.control != "penalty" or not length.penalty_max:
        return reward
    longest, cache = length.penalty_max, length.penalty_cache or 1
    return penalised_reward(reward, correct, len(w.token_ids), longest, cache)


def save(path: Path, under_way: Mapping[int, UnderWay]) -> None:
    """Write `groups.json` and `groups.npz`."""
    about = []
    arrays: dict[str, list[Any]] = {name: [] for name in _ARRAYS}
    for serial, u in under_way.items():
        rollouts = () if u.group is None else u.group.rollouts
        for rollout in rollouts:
            for name in _ARRAYS:
                arrays[name].append(getattr(rollout, name))
        about.append(
            {
                "serial": serial,
                "prompt": u.prompt.id,
                "started": u.started,
                "rollouts": [[len(r), r.finish, r.reward, r.correct] for r in rollouts],
            }
        )
    (path / "groups.json").write_text(json.dumps(about))
    empty = {"token_ids": np.int64, "logprobs": np.float32, "versions": np.int64, "forced": bool}
    flat: dict[str, Any] = {
        name: np.concatenate(values) if values else np.zeros(0, dtype=empty[name])
        for name, values in arrays.items()
    }
    np.savez(path / "groups.npz", **flat)


def load(path: Path, prompts: Mapping[str, Prompt], tokens_of: Any) -> dict[int, UnderWay]:
    """What `save` wrote; groups without rollouts are still to be written."""
    about = json.loads((path / "groups.json").read_text())
    with np.load(path / "groups.npz", allow_pickle=False) as file:
        arrays = {name: file[name] for name in _ARRAYS}
    found: dict[int, UnderWay] = {}
    at = 0
    for item in about:
        prompt = prompts[item["prompt"]]
        u = UnderWay(prompt, tokens_of(prompt), int(item["started"]), generator=0)
        rollouts = []
        for length, finish, reward, correct in item["rollouts"]:
            part = {name: values[at : at + length] for name, values in arrays.items()}
            rollouts.append(Rollout(**part, finish=finish, reward=reward, correct=correct))
            at += length
        if rollouts:
            u.group = Group(prompt.id, u.token_ids, tuple(rollouts))
        found[int(item["serial"])] = u
    return found
