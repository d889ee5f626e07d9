"""trackio: the traces of a project, in its SQLite file.

trackio 0.38 and later keep them in a table `traces`, with messages and metadata as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scalerl.runs.importers.sqlite import MAGIC, columns_of, database
from scalerl.runs.importers.trackio import json_cell
from scalerl.runs.rollouts import LIKELY, RolloutFormat
from scalerl.runs.rollouts.messages import text_episode, whole

_NEEDED = {"run_name", "step", "key", "messages", "metadata"}


def records(path: Path) -> Iterator[dict[str, Any]]:
    """The traces of a project, in the order in which they were logged; none in another file."""
    with database(path) as found:
        if not columns_of(found, "traces") >= _NEEDED:
            return
        rows = found.execute(
            "SELECT run_name, step, key, messages, metadata FROM traces ORDER BY rowid"
        )
        for run, step, key, messages, metadata in rows:
            yield {
                "run": run, "step": step, "key": key, "messages": json_cell(messages),
                "metadata": json_cell(metadata),
            }  # fmt: skip


def convert(record: dict[str, Any], path: Path) -> dict[str, Any] | None:
    messages, metadata = record.get("messages"), record.get("metadata")
    if not isinstance(messages, list):
        return None
    metadata = metadata if isinstance(metadata, dict) else {}
    roles = [message.get("role") if isinstance(message, dict) else "" for message in messages]
    # What comes before the model's first message is the question.
    first = roles.index("assistant") if "assistant" in roles else len(roles)
    reward = next((metadata[k] for k in ("reward", "score") if k in metadata), None)
    prompt = metadata.get("prompt_id", metadata.get("example_id", ""))
    return text_episode(
        step=whole(record.get("step"), 0),
        question=messages[:first],
        answer=messages[first:],
        reward=reward,
        correct=metadata.get("correct"),
        prompt=str(prompt)[:300],
        task=str(record.get("key") or "")[:300],
    )


FORMAT = RolloutFormat(
    convert,
    sniff=lambda path, head: LIKELY if head.startswith(MAGIC) else 0.0,
    records=records,
)
