"""A table: what every importer makes of its file, before anything is chosen from it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property
from numbers import Real
from typing import Any

import numpy as np

from scalerl.errors import InputError
from scalerl.runs.limits import ImportLimits
from scalerl.runs.record import Array, Stage

_MISSING = frozenset({"", "nan", "na", "n/a", "none", "null", "-", "<na>"})
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]?inf(?:inity)?", re.ASCII)


@dataclass
class Table:
    """Named columns of equal length, in log order, with None where a row has no value.

    >>> Table("mine", {"step": [1, 2], "acc": [0.1, None]}).numbers("acc")
    array([0.1, nan])
    """

    name: str
    columns: dict[str, list[object]]
    source: str = ""
    notes: list[str] = field(default_factory=list)
    #: Facts about the whole run (its configuration), for `group_by`.
    facts: dict[str, str] = field(default_factory=dict)
    group: str | None = None
    #: Column names the format itself prefers; used before the table of known names.
    x: str | None = None
    y: str | None = None
    #: Score column → column with its evaluation size, where scores have sizes of their own.
    sizes: dict[str, str] = field(default_factory=dict)
    #: The tracker's id of the run, shown where two runs share a name.
    id: str = ""
    #: Where the format itself says what its scores were taken on.
    stage: Stage | None = None
    #: The folder of the run this is one file of: of its files, evaluations are preferred.
    home: str = ""
    #: What the source calls the column of scores, where the reader gave it another name.
    y_title: str = ""
    #: Where the run was changed under way: the step, and what was changed.
    changes: list[tuple[int, str]] = field(default_factory=list)
    #: Columns that were computed from others, as the user asked.
    expressions: tuple[str, ...] = ()
    _numbers: dict[str, Array] = field(default_factory=dict, repr=False)
    _missing: dict[str, int] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return max((len(c) for c in self.columns.values()), default=0)

    def numbers(self, column: str) -> Array:
        """The column as floats, nan where there is no number."""
        if column not in self._numbers:
            self._numbers[column] = _to_floats(self.columns[column])
        return self._numbers[column]

    @cached_property
    def numeric(self) -> list[str]:
        """The columns of numbers, as the table was when it was first asked."""
        return [column for column in self.columns if self.is_numeric(column)]

    def is_numeric(self, column: str) -> bool:
        """Whether at least half of the cells that hold something hold a finite number."""
        numbers = self.numbers(column)
        found = int(np.isfinite(numbers).sum())
        return found > 0 and found >= len(numbers) - found - self._count_missing(column)

    def count_unreadable(self, column: str) -> int:
        """Cells that hold something which is not a number."""
        return int(np.isnan(self.numbers(column)).sum()) - self._count_missing(column)

    def _count_missing(self, column: str) -> int:
        if column not in self._missing:
            holes = np.flatnonzero(np.isnan(self.numbers(column)))
            cells = self.columns[column]
            self._missing[column] = sum(is_missing(cells[i]) for i in holes)
        return self._missing[column]

    def texts(self, column: str) -> list[str | None]:
        """The cells as names, None where a row has no value."""
        return [None if is_missing(cell) else to_text(cell) for cell in self.columns[column]]

    def called(self, names: Iterable[str]) -> list[str]:
        """The columns with these names, which are lower case, in any case; in the names' order."""
        lower = {column.strip().lower(): column for column in self.columns}
        return [lower[name] for name in names if name in lower]

    def take(self, rows: list[int], name: str) -> Table:
        """The table with only these rows, under another name."""
        columns = {key: [values[i] for i in rows] for key, values in self.columns.items()}
        return self.made(columns, name=name)

    def made(self, columns: dict[str, list[object]], **changes: Any) -> Table:
        """A table of the same run with other columns."""
        copies = {
            "notes": list(self.notes),
            "facts": dict(self.facts),
            "sizes": dict(self.sizes),
            "changes": list(self.changes),
            "_numbers": {},
            "_missing": {},
        }
        return replace(self, columns=columns, **(copies | changes))


def from_rows(
    rows: Iterable[Mapping[str, object]], source: object = "the table"
) -> dict[str, list[object]]:
    """Columns from records that may differ in their keys; nested mappings become `outer/inner`.

    source: named in the InputError for a table over the limits (`runs/limits.py`).

    >>> from_rows([{"step": 1, "eval": {"acc": 0.5}}, {"step": 2}])
    {'step': [1, 2], 'eval/acc': [0.5, None]}
    """
    columns: dict[str, list[object]] = {}
    count = 0
    limits = ImportLimits.from_environment()
    for row in rows:
        for key, value in flatten(row):
            column = columns.setdefault(key, [])
            column.extend([None] * (count - len(column)))
            if len(column) == count:
                column.append(value)
            else:
                column[count] = value
        count += 1
        limits.check_table(source, count, len(columns))
    for column in columns.values():
        column.extend([None] * (count - len(column)))
    return columns


def rows_by_name(names: Iterable[str | None]) -> dict[str, list[int]]:
    """By name, the rows that have it; rows without a name are left out."""
    rows: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        if name is not None:
            rows.setdefault(name, []).append(i)
    return rows


def flatten(row: Mapping[str, object], prefix: str = "") -> Iterable[tuple[str, object]]:
    """The scalars of a nested mapping with their paths; lists are left out."""
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}/")
        elif not isinstance(value, list | tuple):
            yield f"{prefix}{key}", value


def to_facts(config: Mapping[str, object]) -> dict[str, str]:
    """A run's configuration as texts by path, without values that are not set.

    >>> to_facts({"optimiser": {"lr": 1e-06, "decay": None}, "seed": 1})
    {'optimiser/lr': '1e-06', 'seed': '1'}
    """
    return {key: str(value) for key, value in flatten(config) if value is not None}


def is_missing(value: object) -> bool:
    """Whether a cell holds nothing: None, NaN, or text such as "", "NA" or "null"."""
    if isinstance(value, str):
        return value.strip().lower() in _MISSING
    if isinstance(value, float):
        return math.isnan(value)
    return value is None or type(value).__name__ in {"NAType", "NaTType"}


def to_float(value: object) -> float:
    """The cell as a number, nan if it holds none. Truth values and `1_000` are not numbers.

    >>> [to_float(v) for v in ("0.5", " 1e3 ", "1_000", True, None)]
    [0.5, 1000.0, nan, nan, nan]
    """
    if type(value) is float:  # most cells are, and the abstract classes below are slow to ask
        return value
    if isinstance(value, str):
        text = value.strip()
        return float(text) if _NUMBER.fullmatch(text.lower()) else math.nan
    if type(value) is int or (
        isinstance(value, Real | Decimal) and not isinstance(value, bool | np.bool_)
    ):
        try:
            return float(value)
        except OverflowError:
            return math.inf
        except ValueError:  # a signalling NaN of decimal
            return math.nan
    return math.nan


def to_text(value: object) -> str:
    """The cell as a name; whole floats, as pandas makes of integers with holes, as integers."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def _to_floats(cells: list[object]) -> Array:
    # numpy converts plain numbers at once, many times as fast as cell by cell.
    if set(map(type, cells)) <= {int, float, type(None)}:
        try:
            return np.array(cells, dtype=np.float64)
        except OverflowError:
            pass
    return np.array([to_float(cell) for cell in cells], dtype=np.float64)


def to_timestamp(value: object) -> float:
    """Seconds since 1970 from a number (seconds or milliseconds) or an ISO 8601 text."""
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
        try:
            return moment.timestamp()
        except (OverflowError, ValueError):
            return math.nan
    number = to_float(value)
    if isinstance(value, str) and math.isnan(number):
        try:
            return to_timestamp(datetime.fromisoformat(value.strip()))
        except ValueError:
            return math.nan
    # 1e11 seconds lie in the year 5138, 1e11 milliseconds in 1973, before any log.
    return number / 1000 if number > 1e11 else number


# -- data frames ----------------------------------------------------------------------------------


def is_frame(source: object) -> bool:
    """Whether the object is a table: pandas, polars, pyarrow, or a mapping of columns."""
    return isinstance(source, Mapping) or hasattr(source, "collect") or hasattr(source, "columns")


def read_frame(frame: Any, name: str) -> Table:
    """The table in a data frame; a named index counts as a column.

    >>> read_frame({"step": [1, 2], "acc": [0.1, 0.2]}, "mine").columns["acc"]
    [0.1, 0.2]
    """
    if hasattr(frame, "collect") and not hasattr(frame, "to_dict"):
        frame = frame.collect()
    index = getattr(frame, "index", None)
    if getattr(index, "name", None) is not None or getattr(index, "nlevels", 1) > 1:
        frame = frame.reset_index()
    if isinstance(frame, Mapping):
        columns = {str(key): _to_list(values) for key, values in frame.items()}
    elif hasattr(frame, "to_pydict"):
        columns = {str(key): list(values) for key, values in frame.to_pydict().items()}
    else:
        columns = {str(key): _to_list(frame[key]) for key in frame.columns}
    if len({len(values) for values in columns.values()}) > 1:
        raise InputError("the columns of the table differ in length: make them equal")
    return Table(name, columns, "data frame")


def _to_list(values: Any) -> list[object]:
    for method in ("to_list", "tolist"):
        if hasattr(values, method):
            found = getattr(values, method)()
            return found if isinstance(found, list) else [found]
    try:
        return list(values)
    except TypeError:
        raise InputError("a table needs a list of values for every column") from None
