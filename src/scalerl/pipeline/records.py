"""One line of steps.jsonl: what a batch was like and what the trainer made of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from scalerl.algorithm.rollout import Group
from scalerl.pipeline import messages as m


def step_record(message: m.Stepped, batch: Sequence[Group]) -> dict[str, Any]:
    """The trainer's report and the batch's own numbers."""
    rollouts = [r for g in batch for r in g.rollouts]
    rewards = [r.reward for r in rollouts if r.reward is not None]
    lengths = [len(r) for r in rollouts]
    mixed = [len(r) > 0 and r.versions[0] != r.versions[-1] for r in rollouts]
    return {
        **message.report,
        "step": message.version,
        "reward": float(np.mean(rewards)) if rewards else None,
        "pass_rate": float(np.mean([bool(r.correct) for r in rollouts])),
        "truncated": float(np.mean([r.truncated for r in rollouts])),
        "interrupted": float(np.mean([r.finish == "interrupted" for r in rollouts])),
        "mixed_versions": float(np.mean(mixed)),
        "prompts": [g.prompt_id for g in batch],
        "zero_variance": message.filtered["zero_variance_prompts"] / len(batch),
        "length": {"mean": float(np.mean(lengths)), "max": int(max(lengths))},
        "filtered": message.filtered,
    }
