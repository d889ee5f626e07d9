"""verl: `trainer.rollout_data_dir` and `trainer.validation_data_dir`, one JSON Lines file a step.

    DIR/12.jsonl    {"input": "…", "output": "…", "gts": "4", "score": 1.0, "step": 12, "acc": true}

Further columns are what the reward function returned (`reward_extra_info`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scalerl.runs.rollouts import CERTAIN, RolloutFormat
from scalerl.runs.rollouts.messages import step_of, text_episode, whole


def convert(record: dict[str, Any], path: Path) -> dict[str, Any] | None:
    if "input" not in record or "output" not in record:
        return None
    expected = record.get("gts")
    return text_episode(
        step=whole(record.get("step"), step_of(path)),
        question=record["input"],
        answer=record["output"],
        reward=record.get("score"),
        correct=record.get("acc"),
        task=str(record["data_source"]) if isinstance(record.get("data_source"), str) else "",
        why="" if expected is None else f"expected {expected}",
    )


FORMAT = RolloutFormat(
    convert,
    sniff=lambda path, head: (
        CERTAIN if all(key in head for key in (b'"input"', b'"output"', b'"score"')) else 0.0
    ),
)
