"""Side metrics of a run that foretell trouble, aligned with its evaluations.

Trackers log them every step under many names. What a curve carries of each is its mean over the
rows since the evaluation before, under one name:

>>> from scalerl.runs.table import Table
>>> table = Table("mine", {"step": [1, 2, 3, 4], "actor/grad_norm": [1.0, 3.0, None, 5.0]})
>>> import numpy as np
>>> {k: v.tolist() for k, v in read_signs(table, np.array([1, 3])).items()}
{'grad_norm': [2.0, 5.0]}
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from scalerl.runs.record import Array
from scalerl.runs.table import Table

#: What each is called in the logs of trainers we know; the first column that matches is read.
NAMES: dict[str, re.Pattern[str]] = {
    name: re.compile(rf"(?:.*[/.])?(?:{pattern})", re.IGNORECASE)
    for name, pattern in {
        "grad_norm": r"grad(?:ient)?_?norm(?:/mean)?",
        "entropy": r"(?:policy_|mean_|actor_)?entropy(?:/mean)?",
        "truncated": r"truncated|truncation(?:_rate|_ratio)?|clipped_ratio"
        r"|response_length/clip_ratio",
        "length": r"(?:response_length|completion_length|completions?|length|response)/mean"
        r"|completions/mean_length|mean_(?:response_|completion_)?length",
        "ratio_max": r"ratio[/_]max",
        "ess": r"ess|effective_sample_size",
    }.items()
}


def read_signs(table: Table, rows: npt.NDArray[np.intp]) -> dict[str, Array]:
    """By name: the mean over the rows since the one before, for each of `rows` (ascending)."""
    found: dict[str, Array] = {}
    for name, pattern in NAMES.items():
        column = next((c for c in table.columns if pattern.fullmatch(c.strip())), None)
        if column is None or not table.is_numeric(column):
            continue
        values = table.numbers(column)[: rows[-1] + 1] if len(rows) else np.empty(0)
        if not np.isfinite(values).any():
            continue
        starts = np.concatenate([[0], rows[:-1] + 1])
        known = np.isfinite(values)
        count = np.add.reduceat(known.astype(np.float64), starts)
        total = np.add.reduceat(np.where(known, values, 0.0), starts)
        found[name] = np.where(count > 0, total / np.maximum(count, 1.0), np.nan)
    return found
