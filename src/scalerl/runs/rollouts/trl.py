"""TRL: `completions/completions_00012.parquet`, with a completion a row and a column for each
reward function."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scalerl.parquet import open_parquet
from scalerl.runs.importers.text_files import check_file
from scalerl.runs.limits import ImportLimits
from scalerl.runs.rollouts import CERTAIN, RolloutFormat
from scalerl.runs.rollouts.messages import number, step_of, text_episode, whole

#: Rows that are decoded at a time: a completion may have megabytes.
BATCH_ROWS = 64
#: Columns that are no rewards.
OTHERS = ("step", "prompt", "completion", "advantage", "mode", "image")


def records(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file of completions."""
    check_file(path)
    with open_parquet(path) as file:
        meta = file.metadata
        sizes = (meta.row_group(i).total_byte_size for i in range(meta.num_row_groups))
        # A small file can describe a table that fills the memory.
        ImportLimits.from_environment().check(path, "bytes", sum(max(0, size) for size in sizes))
        for batch in file.iter_batches(BATCH_ROWS):
            yield from batch.to_pylist()


def convert(record: dict[str, Any], path: Path) -> dict[str, Any] | None:
    if "prompt" not in record or "completion" not in record:
        return None
    named = {name: number(value) for name, value in record.items() if name not in OTHERS}
    rewards = {name: value for name, value in named.items() if value is not None}
    parts = [f"{name} {value:g}" for name, value in rewards.items()]
    advantage = number(record.get("advantage"))
    parts += [] if advantage is None else [f"advantage {advantage:g}"]
    return text_episode(
        step=whole(record.get("step"), step_of(path)),
        question=record["prompt"],
        answer=record["completion"],
        # TRL's sum of all reward functions, without the weights, which the file does not have.
        reward=sum(rewards.values()) if rewards else None,
        why=", ".join(parts),
    )


def _sniff(path: Path, head: bytes) -> float:
    return CERTAIN if head.startswith(b"PAR1") and path.name.startswith("completions") else 0.0


FORMAT = RolloutFormat(convert, sniff=_sniff, records=records)
