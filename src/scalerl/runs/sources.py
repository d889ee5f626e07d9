"""What a path stands for: a file by its content, a directory or pattern by the files in it.

The importers (`importers/`) are asked which of them reads a file, by its first bytes and never by
its suffix alone. A directory is one run where an importer says so, and otherwise a collection:
everything in it that looks like a log.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from scalerl.errors import InputError
from scalerl.files import is_file, is_folder
from scalerl.runs import metrics
from scalerl.runs.importers import (
    CERTAIN,
    IMPORTERS,
    Collected,
    Importer,
    Reader,
    Tables,
    console,
    delimited,
    hugging_face,
    json_logs,
    mlflow,
    parquet,
    per_step,
    run_directory,
    swanlab,
    tensorboard,
    trackio,
    wandb_runs,
)
from scalerl.runs.importers.text_files import check_file, is_compressed, is_text, read_head

#: What one file of several of a run is called; of these, evaluations are preferred.
_PART_OF_A_RUN = re.compile(
    r"(?:(?:train|training|rollouts?|rewards?|metrics?|logs?|history|steps?|progress|evals?"
    r"|evaluations?|val|validation|test|results?|summary|summaries|scores?|curves?)[_\-. ]?)+",
    re.IGNORECASE,
)
#: Directories below the given one that are searched: `project/run/logs/version_0/…` has four.
MAX_DEPTH = 8
#: Entries of all directories that are searched. More is a home directory or a dataset.
MAX_ENTRIES = 20_000


def _collect_aim(folder: Path, entries: list[Path]) -> Collected | None:
    there = folder.name == ".aim" or folder / ".aim" in entries
    return (lambda: _refuse_aim(folder), set()) if there else None


def _refuse_aim(folder: Path) -> Tables:
    raise InputError(
        f"{folder}: Aim keeps its runs in RocksDB, which only aim reads: export them as CSV "
        "(docs/how-to/import-logs.md)"
    )


#: In the order in which they are asked. Our own record comes first, since a run directory may hold
#: a tracker's log as well. JSON Lines come before a trainer's state, which is one JSON object, and
#: that before any other JSON.
BUILT_IN = {
    "scalerl": run_directory.IMPORTER,
    "parquet": parquet.IMPORTER,
    "jsonl": json_logs.LINES_IMPORTER,
    "trainer_state": hugging_face.IMPORTER,
    "mlflow": mlflow.IMPORTER,
    "trackio": trackio.IMPORTER,
    "swanlab": swanlab.IMPORTER,
    "wandb": wandb_runs.IMPORTER,
    "per_step": per_step.IMPORTER,
    "aim": Importer(_refuse_aim, collect=_collect_aim),
    "tensorboard": tensorboard.IMPORTER,
    "json": json_logs.IMPORTER,
    "console": console.IMPORTER,
    "delimited": delimited.IMPORTER,
}
for _name, _importer in BUILT_IN.items():
    IMPORTERS.add(_name, _importer)


def importers() -> list[Importer]:
    """All importers in the order in which they are asked."""
    added = [IMPORTERS[name] for name in IMPORTERS if name not in BUILT_IN]
    return [*reversed(added), *BUILT_IN.values()]


def open_path(text: str | os.PathLike[str]) -> list[tuple[str, Reader]]:
    """The readers of everything a path stands for, each with the place it reads from."""
    try:
        path = Path(text).expanduser()
        exists = path.exists()
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"{text!s}: {error}") from None
    if exists:
        return _open(path)
    if not glob.has_magic(str(path)):
        raise InputError(f"{text}: no such file or directory")
    paths = [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]  # noqa: PTH207
    if not paths:
        raise InputError(f"{text}: no file matches the pattern")
    found: list[tuple[str, Reader]] = []
    used: set[Path] = set()
    beside = len({each.parent for each in paths}) == 1
    if beside and (series := per_step.collect(paths[0].parent, paths)) is not None:
        reader, used = series
        found.append((str(path.parent), reader))
    return found + [r for each in paths if each not in used for r in _open(each)]


def _open(path: Path) -> list[tuple[str, Reader]]:
    found = find_logs(path)
    if not found:
        raise InputError(f"{path}: no log in the directory: give a file, or see the import how-tos")
    return found


def find_logs(
    path: Path, leave_out: Callable[[Path], bool] = lambda _: False
) -> list[tuple[str, Reader]]:
    """As `open_path`, without what is to be left out; an empty list where nothing is found."""
    if leave_out(path):
        return []
    if not path.is_dir():
        return [(str(path), lambda: read_file(path))]
    return list(_walk(path, 0, set(), [0], leave_out))


def part_of_a_run(path: Path) -> Path | None:
    """The folder of the run that a file is one of several files of, by its name."""
    is_part = _PART_OF_A_RUN.fullmatch(path.stem)
    return per_step.home_of(path.resolve().parent) if is_part else None


def read_file(path: Path) -> Tables:
    """The tables of one file, by the importer that is surest of it."""
    check_file(path)
    head = read_head(path)
    if not head.strip():
        raise InputError(f"{path}: the file is empty")
    surest: Importer | None = None
    best = 0.0
    for importer in importers():
        sure = importer.sniff(path, head)
        if sure > best:
            surest, best = importer, sure
        if best >= CERTAIN:
            break
    if surest is None:
        if is_compressed(head):
            raise InputError(f"{path}: a compressed file: unpack it, or save a spreadsheet as CSV")
        raise InputError(f"{path}: a binary file of no known format")
    tables = surest.read(path)
    if is_text(head) and _PART_OF_A_RUN.fullmatch(path.stem):
        # `eval_log.jsonl`, `train_metrics.csv`: what the scores were taken on is in the name.
        stage = metrics.stage_of_rows(path.stem)
        for table in tables if stage != "unknown" else ():
            table.stage = table.stage or stage
    return tables


def _walk(
    folder: Path,
    depth: int,
    seen: set[str],
    entries: list[int],
    leave_out: Callable[[Path], bool],
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
    # A list of one number, so that all levels of the search count together.
    entries[0] += len(children)
    if entries[0] > MAX_ENTRIES:
        raise InputError(f"{folder}: over {MAX_ENTRIES} entries: name the log itself")
    for importer in importers():
        collected = importer.collect(folder, children)
        if collected is not None:
            reader, used = collected
            yield str(folder), reader
            children = [child for child in children if child not in used]
    for child in children:
        if is_folder(child):
            if not child.name.startswith(".") and not _is_copy_of_traces(child, children):
                yield from _walk(child, depth + 1, seen, entries, leave_out)
        elif is_file(child) and _looks_like_a_log(child):
            real = os.path.realpath(child)
            if real not in seen:
                seen.add(real)
                yield str(child), _part_reader(child)


def _is_copy_of_traces(folder: Path, beside: Sequence[Path]) -> bool:
    """Whether a folder holds the files, one for each trace, in which trackio repeats what its
    project's database has."""
    return folder.name == "traces" and any((folder / p.stem).is_dir() for p in beside
                                           if p.suffix == ".db")  # fmt: skip


def _one_run(folder: Path) -> Reader | None:
    try:
        for importer in importers():
            if importer.is_run(folder):
                return partial(importer.read, folder)
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


def _looks_like_a_log(path: Path) -> bool:
    # A file that cannot be opened is passed over here; given by its own path, the error is shown.
    try:
        return any(importer.is_log(path) for importer in importers())
    except InputError:
        return False
