"""Numbers that a table writes as something else: right and wrong as truth values, a step as a name.

solved: true, false, true                    ->  1, 0, 1
checkpoint: out/checkpoint-100               ->  100
global_step/max_steps: 5/1000                ->  global_step: 5
"""

from __future__ import annotations

import re
from itertools import islice

from scalerl.runs import metrics
from scalerl.runs.importers.harness_results import step_in_name
from scalerl.runs.table import Table, is_missing, to_float

#: Cells of a column that are examined to decide what it holds.
SAMPLE = 50
_TRUTH: dict[str, float] = {"true": 1.0, "false": 0.0}
_NAMED_STEP = re.compile(
    r"(?:.+[/_.\- ])?(?:checkpoint|ckpt|step|iteration)(?:_?(?:name|path|dir|id))?", re.IGNORECASE
)
#: ms-swift's `global_step/max_steps`.
_OF_ALL = re.compile(r"((?:.*[/_])?(?:step|iter|iteration|epoch)s?)/max_\w+", re.IGNORECASE)
_SHARE = re.compile(r"(\d+)\s*/\s*\d+")


def read_named_numbers(table: Table) -> Table:
    """The table with such cells as numbers; the names of runs stay as they are.

    >>> t = Table("mine", {"checkpoint": ["out/checkpoint-5"], "solved": [True], "tool": [True]})
    >>> read_named_numbers(t).columns
    {'checkpoint': [5], 'solved': [1.0], 'tool': [True]}
    """
    columns: dict[str, list[object]] = {}
    for name, cells in table.columns.items():
        sample = list(islice((c for c in cells if not is_missing(c)), SAMPLE))
        if not sample or (isinstance(sample[0], int | float) and not isinstance(sample[0], bool)):
            columns[name] = cells
        elif metrics.is_about_being_right(name) and all(_truth(c) is not None for c in sample):
            columns[name] = [_or_same(_truth(c), c) for c in cells]
        elif (share := _OF_ALL.fullmatch(name.strip())) and all(
            _part(c) is not None for c in sample
        ):
            columns.setdefault(share[1], [_part(c) for c in cells])
        elif _NAMED_STEP.fullmatch(name.strip()) and all(_step(c) is not None for c in sample):
            columns[name] = [_or_same(_step(c), c) for c in cells]
        else:
            columns[name] = cells
    same = columns.keys() == table.columns.keys() and all(
        columns[name] is cells for name, cells in table.columns.items()
    )
    return table if same else table.made(columns)


def _or_same(number: float | None, cell: object) -> object:
    return cell if number is None else number


def _truth(cell: object) -> float | None:
    return _TRUTH.get(str(cell).strip().lower())


def _part(cell: object) -> int | None:
    found = _SHARE.fullmatch(str(cell).strip())
    return None if found is None else int(found[1])


def _step(cell: object) -> int | None:
    """The step in a name or a path; a plain number is none of these."""
    text = str(cell).strip().rstrip("/")
    if to_float(text) == to_float(text):
        return None
    return step_in_name(text.rpartition("/")[2]) or step_in_name(text)
