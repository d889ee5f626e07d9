"""Runs that write a file for each step: `rollouts/step_7.json`, `iteration_000007/eval.jsonl`,
`checkpoint-200/results_2026-01-01.json`.

Files with paths that differ in their step alone are one series, and a series is one run. Each file
is a row: its scalars, the result of an evaluation harness, or the means over the samples it lists.
Whether they are evaluations or training rollouts is decided by the names of folder and file:
rollouts are read only where there are no evaluations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scalerl.errors import InputError
from scalerl.runs import metrics
from scalerl.runs.importers import Collected, Importer, apply_to_each, harness_results, parquet
from scalerl.runs.importers.json_logs import parse, parse_document
from scalerl.runs.importers.text_files import check_file, read_text
from scalerl.runs.record import Stage
from scalerl.runs.table import Table, flatten, from_rows, to_float

#: Bytes of a file of one step: the rollouts of a batch of thousands fit, a dataset does not.
MAX_FILE = 200_000_000
#: Least files of a series: one file is read by itself.
MIN_FILES = 2
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T_ ][\d\-:]+(?:\.\d+)?|\d{8}[-_]\d{6}")
#: Samples and transcripts beside the results that sum them up, and what belongs to a checkpoint.
_NOT_RESULTS = re.compile(
    r"samples_|.*(?:-predictions|-requests|-recorded-inputs|_logtree)\.json|.*config.*|.*token.*"
    r"|vocab|merges|.*\.index\.json|.*args\.json|trainer_state|latest|chat_template|params\.json"
)
_ROLE = re.compile(
    r"(?:rollouts?(?:_data|_dumps?)?|samples?|evals?|evaluations?|eval_results|val|validation"
    r"(?:_data)?|test|train|training|logs?|metrics|results|outputs?|iterations|steps|checkpoints)",
    re.IGNORECASE,
)


@dataclass
class StepFiles:
    """Files that differ in their step alone."""

    place: Path
    template: str
    files: dict[int, Path] = field(default_factory=dict)

    @property
    def stage(self) -> Stage:
        """What its samples were, by the folder and the file's name, the nearest word first."""
        words = [self.template, *(part.name for part in (self.place, self.place.parent))]
        for word in words:
            for part in reversed(word.split("/")):
                stage = metrics.stage_of_rows(re.sub(r"\.\w+$|\*", "", part).strip("_-. "))
                if stage == "validation" or (stage == "training" and "step" not in part):
                    return stage
        return "unknown"


def collect(folder: Path, entries: Iterable[Path]) -> Collected | None:
    """The series among these entries of a directory, as one reader."""
    series, used = find_series(folder, entries)
    return (lambda: read_series(series), used) if series else None


def find_series(folder: Path, children: Iterable[Path]) -> tuple[list[StepFiles], set[Path]]:
    """The series among these children of a folder, and the children they are made of."""
    found: dict[str, StepFiles] = {}
    of: dict[str, set[Path]] = {}
    for child in children:
        step = harness_results.step_in_name(child.stem if child.suffix in _SUFFIXES else child.name)
        inside = _below(child) if step is not None and child.is_dir() else [child]
        for file in inside:
            if file.suffix not in _SUFFIXES or _NOT_RESULTS.match(file.name):
                continue
            if step is None and not _TIME.search(file.name):
                continue
            key = "/".join(_template(part) for part in file.relative_to(folder).parts)
            at = _step_inside(file) if step is None else step
            if at is not None:
                # Of several results of one step, the one with the latest time in its name.
                found.setdefault(key, StepFiles(folder, key)).files[at] = file
                of.setdefault(key, set()).add(child)
    for key in [k for k in found if k.endswith(("metrics-all.jsonl", "/metrics.json"))]:
        # OLMES writes the same scores three times: all in one file, and a file for each task.
        beside = key.rpartition("/")[0]
        for other in [k for k in found if k.rpartition("/")[0] == beside and k != key]:
            if re.search(r"/task-\d+-.*metrics\.json$|/metrics\.json$", other):
                del found[other]
    series = [s for s in found.values() if len(s.files) >= MIN_FILES and _is_of_steps(s)]
    return series, {child for s in series for child in of[s.template]}


_SUFFIXES = (".json", ".jsonl", ".parquet")


def read_series(series: list[StepFiles]) -> list[Table]:
    """One table for each series that holds scores: evaluations, or else what there is."""
    tables: list[Table] = []
    problems: list[InputError] = []
    # In this order, because training rollouts are read only where nothing else holds scores.
    for stage in ("validation", "unknown", "training"):
        read, bad = apply_to_each(_read, [each for each in series if each.stage == stage])
        tables += read
        problems += bad
        scored = [t for t in tables if metrics.score_columns(t.columns)[0]]
        if scored and any(each.stage != stage for each in series):
            left = [each.template for each in series if each.stage == "training"]
            if stage != "training" and left:
                scored[0].notes.append(f"training rollouts left out: {', '.join(left[:3])}")
            return scored
    if not tables:
        raise problems[0] if problems else InputError(f"{series[0].place}: nothing in its files")
    return tables


def home_of(path: Path) -> Path:
    """The folder of the run that a file or a series is of: `run/rollouts` is of `run`."""
    folder = path
    while _ROLE.fullmatch(folder.name) or harness_results.step_in_name(folder.name) is not None:
        if folder.parent == folder:
            break
        folder = folder.parent
    return folder


def _read(series: StepFiles) -> Table:
    rows: list[dict[str, object]] = []
    bad: list[Path] = []
    results = False
    for step, file in sorted(series.files.items()):
        value = _value(file)
        if isinstance(value, dict) and harness_results.is_result(value):
            row, results = harness_results.row_of(value), True
        else:
            row = _row(value)
        if row:
            rows.append({"step": step} | {k: v for k, v in row.items() if k != "step"})
        else:
            bad.append(file)
    if not rows:
        raise InputError(f"{series.place}/{series.template}: no numbers in its {len(bad)} files")
    stage: Stage = "validation" if results else series.stage
    columns = from_rows(rows, series.place / series.template)
    if not results and stage != "unknown":
        word = "eval" if stage == "validation" else "train"
        shared = ("step", "n_eval")
        columns = {
            c if c in shared else metrics.under_stage(c, word): v for c, v in columns.items()
        }
    home = home_of(series.place.resolve())
    notes = [f"{len(rows)} files {series.template}, one a step"]
    if bad:
        notes.append(f"{len(bad)} files without numbers left out ({bad[0].name})")
    return Table(
        _name(series, home), columns, str(series.place / series.template), notes, x="step",
        stage=stage, home=str(home),
    )  # fmt: skip


def _name(series: StepFiles, home: Path) -> str:
    """The run's folder, or what a harness makes of the model's path: `out__run__checkpoint-*`."""
    first = series.template.split("/")[0].split("__")
    named = [part for part in first if "*" not in part and not part.endswith(_SUFFIXES)]
    return named[-1] if len(first) > 1 and named else home.name


def _value(file: Path) -> object:
    """The JSON value in a file, or the list of those on its lines; None where it cannot be read."""
    try:
        if check_file(file) > MAX_FILE:
            return None
        if file.suffix == ".parquet":
            columns = parquet.read_parquet(file, file.stem).columns
            return [
                dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
            ]
        text = read_text(file)
        value = parse_document(text, file)
    except InputError:
        return None
    if isinstance(value, dict | list):
        return value
    rows = [parse(line) for line in text.splitlines() if line.strip()]
    return [row for row in rows if isinstance(row, dict)]


def _row(value: object) -> dict[str, object]:
    """Scalars, and means over what is listed; `n_eval` is how many were listed."""
    try:
        if isinstance(value, list):
            return _means([row for row in value if isinstance(row, dict)])
        if not isinstance(value, dict):
            return {}
        row = {k: v for k, v in flatten(value) if _float(v) == _float(v)}
        lists = [v for v in value.values() if isinstance(v, list) and v and isinstance(v[0], dict)]
        if len(lists) == 1:
            row = _means([each for each in lists[0] if isinstance(each, dict)]) | row
        return row
    except RecursionError:
        return {}


def _means(rows: list[dict[str, object]]) -> dict[str, object]:
    sums: dict[str, list[float]] = {}
    if all("task_name" in row and isinstance(row.get("metrics"), Mapping) for row in rows):
        merged: dict[str, object] = {}
        for row in rows:
            merged |= harness_results.row_of(row)
        return merged
    for row in rows:
        for key, cell in flatten(row):
            number = _float(cell)
            if number == number:
                sums.setdefault(key, []).append(number)
    found: dict[str, object] = {
        key: sum(cells) / len(cells) for key, cells in sums.items() if len(cells) * 2 > len(rows)
    }
    return found | {"n_eval": len(rows)} if found else {}


def _float(cell: object) -> float:
    """A number; right and wrong are numbers here."""
    return float(cell) if isinstance(cell, bool) else to_float(cell)


def _template(part: str) -> str:
    if (stem := _stem(part)).isdigit():
        return "*" + part[len(stem) :]
    named = _TIME.sub("*", part)
    step = harness_results.step_in_name(_stem(named))
    if step is None:
        return named
    at = [m for m in re.finditer(r"\d+", named) if int(m[0]) == step][-1]
    return named[: at.start()] + "*" + named[at.end() :]


def _stem(name: str) -> str:
    return next((name.removesuffix(s) for s in _SUFFIXES if name.endswith(s)), name)


def _below(folder: Path, depth: int = 3) -> list[Path]:
    files: list[Path] = []
    try:
        for child in sorted(folder.iterdir()):
            if child.is_file():
                files.append(child)
            elif depth > 1 and child.is_dir() and not child.name.startswith("."):
                files += _below(child, depth - 1)
    except OSError:
        return []
    return files


def _step_inside(file: Path) -> int | None:
    value = _value(file)
    if not isinstance(value, dict) or not harness_results.is_result(value):
        return None
    return harness_results.step_inside(value)


def _is_of_steps(series: StepFiles) -> bool:
    """Whether its files are points, and not runs of their own that happen to be numbered."""
    values = map(_value, series.files.values())
    value = next((found for found in values if found), None)
    if not isinstance(value, list):
        return isinstance(value, dict) and "log_history" not in value
    try:
        columns = from_rows(row for row in value if isinstance(row, dict))
    except InputError:  # too large for one step; reading the file says so
        return False
    for name in metrics.compute_columns(columns):
        if metrics.compute_kind(name)[0] == "steps":
            found = {to_float(cell) for cell in columns[name]}
            return len(found) == 1
    return bool(columns)


IMPORTER = Importer(
    read=lambda folder: read_series(find_series(folder, sorted(folder.iterdir()))[0]),
    collect=collect,
)
