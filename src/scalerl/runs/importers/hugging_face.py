"""`trainer_state.json` of a Hugging Face or TRL trainer, alone or in its output directory."""

from __future__ import annotations

import re
from pathlib import Path

from scalerl.errors import InputError
from scalerl.runs.importers import LIKELY, Collected, Importer, apply_to_each
from scalerl.runs.importers.json_logs import load_json, opens_object, to_columns
from scalerl.runs.table import Table

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


def read_states(paths: list[Path]) -> list[Table]:
    """The runs of these states: one that another goes on from is an earlier state of that run."""
    tables, problems = apply_to_each(read_trainer_state, paths)
    if not tables:
        raise problems[0]
    newest = [t for t in tables if not any(_begins(t, other) for other in tables if other is not t)]
    for table in newest:
        folder = Path(table.source).resolve().parent
        if any(_begins(t, table) for t in tables if t is not table):
            # Folders that hold states of one run are its checkpoints: the run is what holds them.
            table.name = folder.parent.name
        table.notes += [f"left out: {problem}" for problem in problems[:3]]
    return newest


def _begins(state: Table, later: Table) -> bool:
    """Whether a state's history is the beginning of another's; of two that are equal the first."""
    length = len(state)
    if length > len(later) or (length == len(later) and state.source >= later.source):
        return False
    # A column that the later state lacks has no cells to compare: it is another run.
    return all(
        name in later.columns
        and all(
            x == y or (x != x and y != y) for x, y in zip(cells, later.columns[name], strict=False)
        )
        for name, cells in state.columns.items()
    )


def read_trainer_state(path: Path) -> Table:
    """The log history of a trainer. The run is named after its output directory."""
    value = load_json(path)
    history = value.get("log_history") if isinstance(value, dict) else None
    if not isinstance(history, list) or not all(isinstance(row, dict) for row in history):
        raise InputError(f"{path}: no log_history: not a trainer state")
    if not history:
        raise InputError(f"{path}: the log history is empty: set logging_steps and eval_steps")
    columns = to_columns(history, path)
    folder = path.resolve().parent
    if _CHECKPOINT.fullmatch(folder.name):
        folder = folder.parent
    # A renamed file says in its name what it is of.
    own = "" if path.name == FILE else path.stem.replace("trainer_state", "").strip("_-. ")
    return Table(own or folder.name, columns, str(path))


def collect(folder: Path, entries: list[Path]) -> Collected | None:
    """Trainer states in folders of this one, whatever the folders are called."""
    states = sorted(folder.glob(f"*/{FILE}"))
    used = {entry for entry in entries if entry / FILE in states}
    return (lambda: read_states(states), used) if states else None


def _read(path: Path) -> list[Table]:
    state = find_trainer_state(path) if path.is_dir() else path
    if state is None:
        raise InputError(f"{path}: no {FILE} in the directory any more")
    return [read_trainer_state(state)]


def _sniff(path: Path, head: bytes) -> float:
    named = path.name == FILE or b'"log_history"' in head
    return LIKELY if named and opens_object(head) else 0.0


IMPORTER = Importer(
    read=_read,
    sniff=_sniff,
    is_run=lambda folder: find_trainer_state(folder) is not None,
    collect=collect,
)
