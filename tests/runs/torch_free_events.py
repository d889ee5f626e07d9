"""Event files through TensorBoard's own writer, for cases that need no fixture."""

from __future__ import annotations

from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter


def write_events(path: Path, points: list[tuple[int, float]], tag: str = "eval/accuracy") -> None:
    """One event for each (step, value)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        writer = RecordWriter(file)
        for step, value in points:
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
            writer.write(Event(wall_time=1.0, step=step, summary=summary).SerializeToString())
        writer.flush()
