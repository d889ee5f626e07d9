"""What a source is: a file by its content, a directory by what lies in it, a pattern by its files.

Formats are told by their first bytes, never by the suffix alone. A directory is one run where it
holds a run of a kind we know, and otherwise a collection: everything in it that looks like a log.
Files that differ in a step alone are points of one run.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from scalerl.errors import InputError
from scalerl.files import is_file, is_folder
from scalerl.runs import metrics
from scalerl.runs.importers import hugging_face, mlflow, run_directory, tensorboard, wandb_runs
from scalerl.runs.importers.console import looks_printed, read_console
from scalerl.runs.importers.delimited import looks_delimited, read_delimited
from scalerl.runs.importers.json_logs import is_json_lines, read_json, read_jsonl
from scalerl.runs.importers.parquet import read_parquet
from scalerl.runs.importers.per_step import StepFiles, find_series, home_of, read_series
from scalerl.runs.importers.swanlab import MAGIC as SWANLAB
from scalerl.runs.importers.swanlab import read_swanlab
from scalerl.runs.importers.text_files import check_file, read_head
from scalerl.runs.importers.trackio import read_trackio
from scalerl.runs.table import Table

#: Files that are tried when they lie in a directory; a file named outright is always tried.
_LOGS = {".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".pq", ".db", ".sqlite", ".wandb",
         ".swanlab"}  # fmt: skip
#: Files that are tried if there are lines of metrics in them.
_PRINTED = {".log", ".out", ".txt", ".err"}
#: A JSON file is tried if it opens as a list of records, a trainer's state, or steps.
_JSON_LOG = re.compile(rb'\s*(?:\[|\{\s*"[a-z_\-]*\d+"\s*:\s*\{|\{.*"log_history")', re.DOTALL)
#: What one file of several of a run is called; of these, evaluations are preferred.
_PART_OF_A_RUN = re.compile(
    r"(?:(?:train|training|rollouts?|rewards?|metrics?|logs?|history|steps?|progress|evals?"
    r"|evaluations?|val|validation|test|results?|summary|summaries|scores?|curves?)[_\-. ]?)+",
    re.IGNORECASE,
)
#: A directory is searched this deep, and over this many entries.
MAX_DEPTH = 8
MAX_ENTRIES = 20_000

Tables = list[Table]
Reader = Callable[[], Tables]


def open_path(text: str | os.PathLike[str]) -> list[tuple[str, Reader]]:
    """The readers of everything a path stands for, each with the place it reads from."""
    try:
        path = Path(text).expanduser()
        exists = path.exists()
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"{text!s}: {error}") from None
    if exists:
        return _open(path)
    if glob.has_magic(str(path)):
        matches = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207 (absolute patterns)
        if matches:
            paths = [Path(match) for match in matches]
            series, used = (
                find_series(paths[0].parent, paths) if _are_beside(paths) else ([], set())
            )
            found = [(str(path.parent), _series_reader(series))] if series else []
            return found + [r for each in paths if each not in used for r in _open(each)]
        raise InputError(f"{text}: no file matches the pattern")
    raise InputError(f"{text}: no such file or directory")


def _open(path: Path) -> list[tuple[str, Reader]]:
    if not path.is_dir():
        return [(str(path), lambda: read_file(path))]
    found = list(_walk(path, 0, set(), [0]))
    if not found:
        raise InputError(f"{path}: no log in the directory: give a file, or see the import how-tos")
    return found


def find_logs(path: Path, leave_out: Callable[[Path], bool]) -> list[tuple[str, Reader]]:
    """As `open_path`, without what is to be left out, and nothing where nothing is found."""
    if leave_out(path):
        return []
    if not path.is_dir():
        return [(str(path), lambda: read_file(path))]
    return list(_walk(path, 0, set(), [0], leave_out))


def part_of_a_run(path: Path) -> Path | None:
    """The folder of the run that a file is one of several files of, by its name."""
    return home_of(path.resolve().parent) if _PART_OF_A_RUN.fullmatch(path.stem) else None


def read_file(path: Path) -> Tables:
    """The tables of one file, whatever its format."""
    check_file(path)
    head = read_head(path)
    name = path.stem
    if not head.strip():
        raise InputError(f"{path}: the file is empty")
    if head.startswith(b"PAR1"):
        return [read_parquet(path, name)]
    if head.startswith(b"SQLite format 3\0"):
        return mlflow.read_store(path) if mlflow.is_store(path) else read_trackio(path)
    if head.startswith(SWANLAB):
        return [read_swanlab(path)]
    if head.startswith(wandb_runs.MAGIC):
        return [wandb_runs.read_wandb(path)]
    if tensorboard.is_event_file(head):
        return [tensorboard.read_events([path], path.resolve().parent.name)]
    if head.startswith((b"\x1f\x8b", b"PK\x03\x04")):
        raise InputError(f"{path}: a compressed file: unpack it, or save a spreadsheet as CSV")
    if b"\0" in head and not head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"{path}: a binary file of no known format")
    return _read_text(path, head, name)


def _read_text(path: Path, head: bytes, name: str) -> Tables:
    tables = _read_kind(path, head, name)
    if _PART_OF_A_RUN.fullmatch(path.stem):
        # `eval_log.jsonl`, `train_metrics.csv`: what the scores were taken on is in the name.
        stage = metrics.stage_of_rows(path.stem)
        for table in tables if stage != "unknown" else ():
            table.stage = table.stage or stage
    return tables


def _read_kind(path: Path, head: bytes, name: str) -> Tables:
    if path.name == run_directory.FILE:
        return [run_directory.read_run_directory(path.parent)]
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if start.startswith(b"{") and not start.startswith(b"{'"):
        if is_json_lines(path):
            return [read_jsonl(path, name)]
        if path.name == hugging_face.FILE or b'"log_history"' in head:
            return [hugging_face.read_trainer_state(path)]
        return read_json(path, name)
    # A console log may open with a bracket: [2026-01-01 10:00:00] [INFO] ...
    if re.match(rb"\[\s*(?:[{\[\]\d\"-][^ ]|\])", start) and not re.match(rb"\[\d+-\d", start):
        return read_json(path, name)
    if not looks_delimited(path) and looks_printed(path):
        return [read_console(path, name)]
    return read_json(path, name) if start.startswith(b"[") else [read_delimited(path, name)]


def _walk(
    folder: Path,
    depth: int,
    seen: set[str],
    entries: list[int],
    leave_out: Callable[[Path], bool] = lambda _: False,
) -> Iterator[tuple[str, Reader]]:
    """The runs and logs in a directory, sorted by name. A directory reached twice counts once."""
    real = os.path.realpath(folder)
    if depth > MAX_DEPTH or real in seen:
        return
    seen.add(real)
    reader = _one_run(folder)
    if reader is not None:
        yield str(folder), reader
        return
    try:
        children = [child for child in sorted(folder.iterdir()) if not leave_out(child)]
    except OSError as error:
        if depth == 0:
            raise InputError(f"{folder}: {(error.strerror or str(error)).lower()}") from None
        return
    entries[0] += len(children)
    if entries[0] > MAX_ENTRIES:
        raise InputError(f"{folder}: over {MAX_ENTRIES} entries: name the log itself")
    states = hugging_face.states_below(folder)
    if states:
        yield str(folder), lambda: hugging_face.read_states(states)
        children = [child for child in children if child / hugging_face.FILE not in states]
    series, used = find_series(folder, children)
    if series:
        yield str(folder), _series_reader(series)
        children = [child for child in children if child not in used]
    if folder.name == ".aim" or folder / ".aim" in children:
        yield str(folder), _aim_reader(folder)
    events = [child for child in children if "tfevents" in child.name and child.is_file()]
    if events:
        name = folder.resolve().name
        yield str(folder), lambda: [tensorboard.read_events(events, name)]
    for child in children:
        if is_folder(child):
            if not child.name.startswith("."):
                yield from _walk(child, depth + 1, seen, entries, leave_out)
        elif is_file(child) and _looks_like_a_log(child):
            real = os.path.realpath(child)
            if real not in seen:
                seen.add(real)
                yield str(child), _part_reader(child)


def _one_run(folder: Path) -> Reader | None:
    try:
        if (folder / run_directory.FILE).is_file():
            return lambda: [run_directory.read_run_directory(folder)]
        state = hugging_face.find_trainer_state(folder)
        if state is not None:
            return lambda: [hugging_face.read_trainer_state(state)]
        if mlflow.is_run(folder):
            return lambda: mlflow.read_run(folder)
        logs = sorted([*folder.glob("*.wandb"), *folder.glob("*.swanlab")])
        if len(logs) == 1:
            return lambda: read_file(logs[0])
    except OSError:
        return None
    return None


def _part_reader(path: Path) -> Reader:
    """A file in a directory: it may be one of several of a run."""

    def read() -> Tables:
        tables = read_file(path)
        if (home := part_of_a_run(path)) is not None:
            for table in tables:
                table.home = str(home)
        return tables

    return read


def _series_reader(series: list[StepFiles]) -> Reader:
    return lambda: read_series(series)


def _aim_reader(folder: Path) -> Reader:
    def refuse() -> Tables:
        raise InputError(
            f"{folder}: Aim keeps its runs in RocksDB, which only aim reads: export them as CSV "
            "(docs/how-to/import-logs.md)"
        )

    return refuse


def _are_beside(paths: list[Path]) -> bool:
    return len({path.parent for path in paths}) == 1


def _looks_like_a_log(path: Path) -> bool:
    suffix = path.suffix.lower()
    if suffix in _LOGS:
        return True
    try:
        if suffix in _PRINTED:
            return looks_printed(path)
        return suffix == ".json" and bool(_JSON_LOG.match(read_head(path)))
    except InputError:
        return False
