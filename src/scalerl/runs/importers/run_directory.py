"""Our own run directory: `evals.jsonl`, one validation a line, and the recipe beside it."""

from __future__ import annotations

import tomllib
from pathlib import Path

from scalerl.runs.importers.files import read_text
from scalerl.runs.importers.records import read_jsonl
from scalerl.runs.table import Table, to_float

FILE = "evals.jsonl"
#: What a recipe calls its compute axis, and the column that holds it.
AXES = {
    "gpu_hours": "compute/device_hours",
    "flops": "compute/flops",
    "tokens": "compute/generated_tokens",
    "samples": "compute/samples",
    "steps": "compute/steps",
}


def read_run_directory(directory: Path) -> Table:
    """The validations of a run, also while it is going on.

    Compute is what the recipe's `compute.axis` says (device-hours where there is none), unless
    another of its kinds is asked for by name; the evaluation size
    is prompts times generations, for each set its own; the group is the recipe's `name`.
    """
    table = read_jsonl(directory / FILE, directory.resolve().name)
    table.x, table.y = "compute/device_hours", "pass_rate"
    for name in [c for c in table.columns if c.rpartition("/")[2] == "pass_rate"]:
        _add_size(table, name)
    recipe = directory / "recipe.toml"
    if recipe.is_file():
        try:
            facts = tomllib.loads(read_text(recipe))
        except (tomllib.TOMLDecodeError, RecursionError):
            table.notes.append("recipe.toml beside it cannot be read: no group")
        else:
            table.facts = {k: str(v) for k, v in facts.items() if isinstance(v, str | int | float)}
            table.group = table.facts.get("name")
            axis = facts.get("compute")
            if isinstance(axis, dict) and AXES.get(str(axis.get("axis"))) in table.columns:
                table.x = AXES[str(axis["axis"])]
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
        table.columns[size] = [to_float(a) * to_float(b) for a, b in zip(prompts, k, strict=True)]
    table.sizes[score] = size
