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
    is prompts times generations; the group is the recipe's `name`.
    """
    table = read_jsonl(directory / FILE, directory.resolve().name)
    table.x, table.y, table.stage = "compute/device_hours", "pass_rate", "validation"
    prompts, k = table.columns.get("n_prompts"), table.columns.get("k")
    if prompts and k and "n_eval" not in table.columns:
        table.columns["n_eval"] = [
            to_float(a) * to_float(b) for a, b in zip(prompts, k, strict=True)
        ]
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
