"""Data frames: anything with named columns that turn into lists. Neither pandas nor polars is
imported; what counts is what the object can do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalerl.errors import InputError
from scalerl.runs.table import Table


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
