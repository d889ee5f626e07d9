"""Results of evaluation harnesses: one file for each checkpoint.

    lm-eval       results: {task: {"acc,none": .3, "acc_stderr,none": .01}}, n-samples
    lighteval     results: {"lighteval|gsm8k|5": {"qem": .3, "qem_stderr": .01}, "all": {...}}
    OLMES         metrics.json: {"metrics" or "tasks": [{task, primary_score}]}, metrics-all.jsonl

Each becomes one row: `task/metric`, `task/metric_stderr` and `task/n`. Which checkpoint it was is
in the path, else in what the file says about its model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from scalerl.runs.table import to_float

_STEP = re.compile(
    r"(?:^|[^a-z])(?:global_?step|checkpoint|ckpt|step|iteration|iter|update|rollout|completion)s?"
    r"[_\-=. ]?(\d{1,12})(?![\d.]*[a-z])",
    re.IGNORECASE,
)
# lm-eval's `effective` is the number after --limit, `original` the size of the whole set.
_BEHIND = ("effective", "original")


def step_in_name(text: str) -> int | None:
    """The step that a file's or folder's name holds, the last one if it holds several.

    >>> [step_in_name(n) for n in ("checkpoint-200", "global_step_40", "0007", "seed-3")]
    [200, 40, 7, None]
    """
    # More digits than that are a date or an id.
    if text.isdigit() and text.isascii() and len(text) <= 12:
        return int(text)
    found = _STEP.findall(text)
    return int(found[-1]) if found else None


def is_result(value: object) -> bool:
    """Whether a JSON value is the result of an evaluation harness."""
    if not isinstance(value, dict):
        return False
    results = value.get("results")
    if isinstance(results, dict) and results and all(isinstance(v, dict) for v in results.values()):
        return bool(value.keys() & {"config", "config_general", "versions", "n-samples", "configs"})
    return bool(_olmes(value))


def row_of(value: dict[str, Any]) -> dict[str, object]:
    """The scores of one result file, as a row."""
    row: dict[str, object] = {}
    for entry in _olmes(value):
        task = str(entry.get("task_name") or entry.get("task") or entry.get("alias"))
        inside = entry.get("metrics")
        metrics = inside if isinstance(inside, dict) else entry
        row |= {f"{task}/{key}": number for key, number in _numbers(metrics)}
        row.pop(f"{task}/num_instances", None)
        if (n := to_float(entry.get("num_instances"))) >= 1:
            row[f"{task}/n"] = n
    results = value.get("results")
    sizes = value.get("n-samples")
    for name, metrics in results.items() if isinstance(results, dict) else ():
        if not isinstance(metrics, dict):
            continue
        task = _task(str(name))
        for key, number in _numbers(metrics):
            # `acc_stderr,none` stays beside `acc,none`; a filter named none says nothing.
            row[f"{task}/{key.removesuffix(',none')}"] = number
        size = sizes.get(name) if isinstance(sizes, dict) else None
        if isinstance(size, dict):
            known = [to_float(size[k]) for k in _BEHIND if to_float(size.get(k)) >= 1]
            if known:
                row[f"{task}/n"] = known[0]
    if len({key.split("/")[0] for key in row} - {"all"}) == 1:
        # The average over one task is that task.
        row = {key: cell for key, cell in row.items() if not key.startswith("all/")}
    return row


def step_inside(value: dict[str, Any]) -> int | None:
    """The step in what the file says about its model."""
    for path in (
        ("model_name",), ("config", "model_args"), ("config", "model"), ("model_name_or_path",),
        ("config_general", "model_name"), ("config_general", "model_config", "model_name"),
        ("config_general", "model_config", "revision"), ("model_config", "model"),
        ("model_config", "model_path"), ("model_config", "revision"),
    ):  # fmt: skip
        found: Any = value
        for key in path:
            found = found.get(key) if isinstance(found, Mapping) else None
        text = " ".join(map(str, found.values())) if isinstance(found, dict) else str(found or "")
        if (step := step_in_name(text)) is not None:
            return step
    return None


def _olmes(value: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries of an OLMES file: several tasks, or one."""
    if "task_name" in value and isinstance(value.get("metrics"), dict):
        return [value]
    for key in ("metrics", "tasks"):
        entries = value.get(key)
        if isinstance(entries, list) and "all_primary_scores" in value:
            return [entry for entry in entries if isinstance(entry, dict)]
    return []


def _numbers(metrics: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for key, cell in metrics.items():
        number = to_float(cell)
        if number == number:
            yield str(key), number


def _task(name: str) -> str:
    """lighteval's `suite|task|shots` by its task; a slash would read as a folder."""
    parts = name.split("|")
    return (parts[1] if len(parts) > 2 else name).replace("/", "_")
