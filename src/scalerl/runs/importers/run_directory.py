"""Run directories that scalerl wrote: `evals.jsonl`, one validation a line, and the recipe.

`evals.jsonl` is read as any JSON Lines log, not by its type: every column can be fitted, also those
of downstream sets and of later versions, and a damaged file is refused with the line.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from scalerl.runs.importers import CERTAIN, Importer
from scalerl.runs.importers.json_logs import read_jsonl
from scalerl.runs.importers.text_files import is_text
from scalerl.runs.interventions import interventions
from scalerl.runs.lines import EvalLine, EventLine, StepLine
from scalerl.runs.reader import RunReader, StepHealthRow, read_step_health
from scalerl.runs.table import Table, to_float

FILE = EvalLine.FILE
STEPS = StepLine.FILE
#: Columns of a step that are warning signs (`runs/select.py`).
SIGNS = ("grad_norm", "entropy", "truncated", "length/mean", "ratio/max", "ess")
#: Bytes of a record of steps above which no warning signs are read: it would take seconds.
MAX_STEPS_BYTES = 200_000_000
#: By the value of the recipe's `compute.axis`: the column that holds it.
AXIS_COLUMNS = {
    "gpu_hours": "compute/device_hours",
    "flops": "compute/flops",
    "tokens": "compute/generated_tokens",
    "samples": "compute/samples",
    "steps": "compute/steps",
}


def read_run_directory(directory: Path) -> Table:
    """The validations of a run, also while it is going on.

    Compute is what the recipe's `compute.axis` says (device-hours where there is none), unless
    another of its kinds is asked for by name; the evaluation size is the number of answers that
    were scored, for each set its own; the group is the recipe's `name`.
    """
    table = read_jsonl(directory / FILE, run_name(directory))
    _add_signs(table, directory)
    return assign_roles(table, directory, RunReader(directory).read(EventLine))


def assign_roles(table: Table, directory: Path, events: Iterable[EventLine]) -> Table:
    """The validations of a run with compute, score, evaluation sizes, group and changes filled
    in."""
    table.changes = interventions(events)
    table.x, table.y, table.stage = "compute/device_hours", "pass_rate", "validation"
    for name in [c for c in table.columns if c.rpartition("/")[2] == "pass_rate"]:
        _add_size(table, name)
    _note_failed(table)
    reader = RunReader(directory)
    facts = reader.read_recipe()
    if facts is None:
        if reader.problems:
            table.notes.append("recipe.toml beside it cannot be read: no group")
        return table
    table.facts = {k: str(v) for k, v in facts.items() if isinstance(v, str | int | float)}
    table.group = table.facts.get("name")
    axis = facts.get("compute")
    if isinstance(axis, dict) and AXIS_COLUMNS.get(str(axis.get("axis"))) in table.columns:
        table.x = AXIS_COLUMNS[str(axis["axis"])]
    return table


def _add_size(table: Table, score: str) -> None:
    """Answers behind a score, as a column of its own beside it: `n_eval`, and for downstream sets
    and further temperatures `downstream/NAME/n_eval`."""
    start = score.removesuffix("pass_rate")
    prompts, k = table.columns.get(f"{start}n_prompts"), table.columns.get(f"{start}k")
    if not (prompts and k):
        return
    size = f"{start}n_eval"
    if size not in table.columns:
        asked = [to_float(a) * to_float(b) for a, b in zip(prompts, k, strict=True)]
        scored = map(to_float, table.columns.get(f"{start}scored", [None] * len(asked)))
        table.columns[size] = [
            a if math.isnan(s) else s for a, s in zip(asked, scored, strict=True)
        ]
    table.sizes[score] = size


def _add_signs(table: Table, directory: Path) -> None:
    """The mean of each warning sign over the steps since the validation before, as a column."""
    ends = np.array([to_float(step) for step in table.columns.get("step", [])])
    steps = directory / STEPS
    if not len(ends) or not steps.is_file():
        return
    size = steps.stat().st_size
    if size > MAX_STEPS_BYTES:
        table.notes.append(
            f"{STEPS} has {size / 1e9:.1f} GB, over {MAX_STEPS_BYTES / 1e9:g} GB: no signs of "
            "trouble are read from it"
        )
        return
    found = read_step_health(directory)
    at = np.searchsorted(ends, [float(each.step) for each in found])
    signs = np.array([signs_of(each) for each in found], dtype=np.float64)
    for name, values in zip(SIGNS, signs.reshape(-1, len(SIGNS)).T, strict=True):
        known = np.isfinite(values) & (at < len(ends))
        count = np.bincount(at[known], minlength=len(ends)).tolist()
        total = np.bincount(at[known], values[known], len(ends)).tolist()
        if name not in table.columns and any(count):
            table.columns[name] = [s / n if n else None for s, n in zip(total, count, strict=True)]


def signs_of(row: StepHealthRow | None) -> list[float]:
    """The warning signs of a step in the order of SIGNS; nan for those it does not have."""
    fields = (name.replace("/", "_") for name in SIGNS)
    return [math.nan if row is None else getattr(row, field) for field in fields]


def _note_failed(table: Table) -> None:
    """Validations without a pass rate are no points of the curve: note which, and why."""
    whys, steps = table.columns.get("failed"), table.columns.get("step")
    if not whys or not steps:
        return
    failed = [(step, why) for step, why in zip(steps, whys, strict=True) if why is not None]
    if failed:
        named = ", ".join(str(step) for step, _ in failed[:5]) + (" …" if len(failed) > 5 else "")
        many = "validation" if len(failed) == 1 else "validations"
        table.notes.append(f"{len(failed)} failed {many} left out (step {named}): {failed[-1][1]}")


def run_name(directory: Path) -> str:
    """That of the directory; what a run left behind when it went on from an earlier checkpoint is
    called after the run.

    >>> run_name(Path("runs/first")), run_name(Path("runs/first/branches/1"))
    ('first', 'first, branch 1')
    """
    directory = directory.resolve()
    if directory.parent.name != "branches":
        return directory.name
    return f"{directory.parent.parent.name}, branch {directory.name}"


IMPORTER = Importer(
    read=lambda path: [read_run_directory(path if path.is_dir() else path.parent)],
    sniff=lambda path, head: CERTAIN if path.name == FILE and is_text(head) else 0.0,
    is_run=lambda folder: (folder / FILE).is_file(),
)
