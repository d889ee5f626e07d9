"""JSON Lines, a JSON list of records, a JSON object of columns, of steps or of runs.

A last line that is cut off is left out and noted: the run may be going on. Other lines that are
not JSON objects are left out and noted up to one in ten; more, and the file is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import chain, islice
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from scalerl.runs import metrics
from scalerl.runs.importers import FALLBACK, LIKELY, Importer, by_suffix
from scalerl.runs.importers.harness_results import step_in_name
from scalerl.runs.importers.text_files import Lines, is_text, read_head, read_text
from scalerl.runs.limits import ImportLimits
from scalerl.runs.table import Table, from_rows


def read_jsonl(path: Path, name: str, some: Lines | None = None) -> Table:
    """The table in a JSON Lines file, or in `some` of its lines."""
    lines = Lines(path) if some is None else some
    bad: list[int] = []
    last = records = 0

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal last, records
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            last = number
            value = parse(line)
            if isinstance(value, dict):
                records += 1
                yield value
            else:
                bad.append(number)

    # Rows become columns one by one, so that the limits hold while the file is being read.
    columns = to_columns(rows(), path)
    notes = []
    if bad and bad[-1] == last and not lines.complete:
        bad.pop()
        notes.append("the last line is cut off: left out")
    if not records or len(bad) > max(1, last // 10):
        raise InputError(f"{path}: line {bad[0] if bad else 1} is not a JSON object")
    if bad:
        notes.append(f"{len(bad)} lines that are not JSON left out (line {bad[0]})")
    return Table(name, columns, str(path), notes)


def read_json(path: Path, name: str) -> list[Table]:
    """The tables in a JSON file: a list of records, an object of equally long lists, an object of
    steps (`{"200": {...}}`), or an object of runs, each of which is one of these."""
    value = load_json(path)
    table = _table(value, name, path)
    if table is not None:
        return [table]
    runs = value.items() if isinstance(value, dict) else ()
    tables = [t for key, inner in runs if (t := _table(inner, str(key), path)) is not None]
    if not tables:
        raise InputError(f"{path}: JSON, but not a list of records: one object for each evaluation")
    if len(tables) == 1 and tables[0].name.lower() in _LISTS:
        tables[0].name = name
    elif all(table.name.lower() in _STAGES for table in tables):
        return [_of_stage(table, name) for table in tables]
    return tables


_STAGES = frozenset({"train", "training", "rollout", "rollouts", "eval", "evals", "evaluation",
                     "evaluations", "val", "validation", "test"})  # fmt: skip


def _of_stage(table: Table, name: str) -> Table:
    """`{"train": [...], "eval": [...]}`: not two runs, but two kinds of rows of one."""
    shared = metrics.compute_columns(table.columns)
    columns = {
        column if column in shared else metrics.under_stage(column, table.name): cells
        for column, cells in table.columns.items()
    }
    return table.made(columns, name=name, home=table.source)


#: What a list of records is called where it is the only one in a file.
_LISTS = frozenset({"history", "log_history", "logs", "log", "metrics", "results", "evals", "rows",
                    "records", "data", "evaluations", "steps", "curve", "checkpoints"})  # fmt: skip


def _table(value: Any, name: str, path: Path) -> Table | None:
    if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
        return Table(name, to_columns(value, path), str(path))
    if isinstance(value, list) and value and all(map(_is_triple, value)):
        # What TensorBoard downloads as JSON.
        rows = [dict(zip(("wall_time", "step", "value"), row, strict=True)) for row in value]
        return Table(name, to_columns(rows, path), str(path))
    if not isinstance(value, dict) or not value:
        return None
    columns = {k: v for k, v in value.items() if isinstance(v, list)}
    if columns and len({len(v) for v in columns.values()}) == 1 and not _of_records(columns):
        limits = ImportLimits.from_environment()
        limits.check_table(path, len(next(iter(columns.values()))), len(columns))
        return Table(name, columns, str(path))
    if len(columns) == len(value) > 2 and not _of_records(columns):
        return _of_unequal_lists(columns, name, path)
    steps = [(step_in_name(str(key)), row) for key, row in value.items()]
    known = [(step, row) for step, row in steps if step is not None and isinstance(row, dict)]
    # One key in ten may be something else, such as a summary.
    if len(known) < 2 or len(known) * 10 < len(steps) * 9:
        return None
    notes = [f"{len(steps) - len(known)} keys that are no steps left out"]
    rows = [{"step": step} | row for step, row in known]
    return Table(name, to_columns(rows, path), str(path), notes if len(steps) > len(known) else [])


def _is_triple(row: Any) -> bool:
    return isinstance(row, list) and len(row) == 3 and all(type(v) in (int, float) for v in row)


def _of_unequal_lists(columns: dict[str, list[Any]], name: str, path: Path) -> Table | None:
    """`{"train_steps": [...], "train_reward": [...], "eval_steps": [...], "eval_acc": [...]}`:
    lists of one length belong together, and each length has steps of its own."""
    rows: list[dict[str, Any]] = []
    for length in dict.fromkeys(map(len, columns.values())):
        together = {k: v for k, v in columns.items() if len(v) == length}
        known = metrics.compute_columns(together)
        if not known or len(together) < 2:
            return None
        renamed = {"step" if k == known[0] else k: v for k, v in together.items()}
        rows += [
            dict(zip(renamed, row, strict=True)) for row in zip(*renamed.values(), strict=True)
        ]
    return Table(name, to_columns(rows, path), str(path))


def _of_records(columns: dict[str, list[Any]]) -> bool:
    return any(isinstance(cell, dict | list) for cells in columns.values() for cell in cells[:1])


def is_json_lines(path: Path) -> bool:
    """Whether a file that opens with a brace is JSON Lines, rather than one object.

    It is when its first line is a whole record, or damaged but followed by another line that opens
    one. An object of nothing but lists, or of several objects, is a table by columns or by steps.
    """
    with closing(iter(Lines(path))) as lines:
        first, second = islice(chain((line for line in lines if line.strip()), ("", "")), 2)
    value = parse(first)
    if isinstance(value, dict):
        nested = len(value) > 1 and all(isinstance(v, list | dict) for v in value.values())
        lists = all(isinstance(v, list) for v in value.values())
        whole = "log_history" in value or lists or nested
        return bool(second) or not whole
    return first.strip() != "{" and (not second or second.lstrip().startswith("{"))


def load_json(path: Path) -> Any:
    """The value of a whole JSON file, or an InputError."""
    value = parse_document(read_text(path), path)
    if value is _NOT_JSON:
        raise InputError(f"{path}: not valid JSON, or cut off")
    return value


def parse_document(text: str, path: Path) -> Any:
    """As `parse`, for the text of a whole file: refused if it holds more values than the limit of
    cells. Each value follows a comma or an opening bracket, so that they are counted without being
    made: an empty list takes 3 bytes in a file and 64 in memory."""
    values = sum(text.count(mark) for mark in ",[{")
    ImportLimits.from_environment().check(path, "cells", values)
    return parse(text)


_NOT_JSON = object()


def parse(text: str) -> Any:
    """The JSON value of a text; an object that is no JSON type where it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _NOT_JSON


def to_columns(rows: Iterable[dict[str, Any]], path: Path) -> dict[str, list[object]]:
    """`from_rows` for values of JSON, which may be nested deeper than Python can follow."""
    try:
        return from_rows(rows, path)
    except RecursionError:
        raise InputError(f"{path}: nested too deeply for a log of metrics") from None


def opens_object(head: bytes) -> bool:
    """Whether a file with these first bytes is text that opens with a JSON object. A dict that
    Python printed (`{'loss': …}`) is none."""
    start = _start(head)
    return is_text(head) and start.startswith(b"{") and not start.startswith(b"{'")


def opens_list(head: bytes) -> bool:
    """Whether a file with these first bytes is text that opens with a JSON list. A console log may
    open with a bracket as well: `[2026-01-01 10:00:00] [INFO] …`."""
    start = _start(head)
    return is_text(head) and bool(
        re.match(rb"\[\s*(?:[{\[\]\d\"-][^ ]|\])", start) and not re.match(rb"\[\d+-\d", start)
    )


def _start(head: bytes) -> bytes:
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()


def _sniff_json(path: Path, head: bytes) -> float:
    if opens_object(head) or opens_list(head):
        return LIKELY
    return FALLBACK if is_text(head) and _start(head).startswith(b"[") else 0.0


#: A JSON file in a directory is read if it opens as a list, a trainer's state, or steps.
_JSON_LOG = re.compile(rb'\s*(?:\[|\{\s*"[a-z_\-]*\d+"\s*:\s*\{|\{.*"log_history")', re.DOTALL)

LINES_IMPORTER = Importer(
    read=lambda path: [read_jsonl(path, path.stem)],
    sniff=lambda path, head: LIKELY if opens_object(head) and is_json_lines(path) else 0.0,
    is_log=by_suffix(".jsonl", ".ndjson"),
)
IMPORTER = Importer(
    read=lambda path: read_json(path, path.stem),
    sniff=_sniff_json,
    is_log=lambda path: path.suffix.lower() == ".json" and bool(_JSON_LOG.match(read_head(path))),
)
