"""`trainer_state.json` of a Hugging Face or TRL trainer, alone or in its output directory."""

from __future__ import annotations

import re
from pathlib import Path

from scalerl.errors import InputError
from scalerl.runs.importers.records import load_json
from scalerl.runs.table import Table, from_rows

FILE = "trainer_state.json"
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


def find_trainer_state(directory: Path) -> Path | None:
    """The newest trainer state of an output directory: its own, else the last checkpoint's."""
    own = directory / FILE
    if own.is_file():
        return own
    steps = [
        (int(match[1]), child)
        for child in directory.glob("checkpoint-*")
        if (match := _CHECKPOINT.fullmatch(child.name)) and (child / FILE).is_file()
    ]
    return max(steps)[1] / FILE if steps else None


def read_trainer_state(path: Path, name: str | None = None) -> Table:
    """The log history of a trainer. The run is named after its output directory."""
    value = load_json(path)
    history = value.get("log_history") if isinstance(value, dict) else None
    if not isinstance(history, list) or not all(isinstance(row, dict) for row in history):
        raise InputError(f"{path}: no log_history: not a trainer state")
    if not history:
        raise InputError(f"{path}: the log history is empty: set logging_steps and eval_steps")
    try:
        columns = from_rows(history)
    except RecursionError:
        raise InputError(f"{path}: nested too deeply for a log of metrics") from None
    folder = path.resolve().parent
    if _CHECKPOINT.fullmatch(folder.name):
        folder = folder.parent
    return Table(name or folder.name, columns, str(path))
