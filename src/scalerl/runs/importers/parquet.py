"""Parquet, through pyarrow: tables of any tool, and the history W&B exports.

The footer says how many rows and columns there are and how large they are without compression, so
that a small file of a large table is refused before it is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from scalerl.parquet import open_parquet
from scalerl.runs.importers import CERTAIN, Importer, by_suffix
from scalerl.runs.importers.text_files import check_file
from scalerl.runs.limits import ImportLimits, Meter
from scalerl.runs.table import Table, from_rows

#: Rows that are decoded at a time.
BATCH_ROWS = 65_536
#: Arrow's types of texts.
TEXTS = ("string", "large_string", "binary", "large_binary")


def read_parquet(path: Path, name: str) -> Table:
    """The scalar columns of a Parquet file; page checksums are checked where it has them."""
    check_file(path)
    with open_parquet(path) as file:
        wanted = _scalar_columns(file.metadata, path)
        texts = [field.name for field in file.schema_arrow if str(field.type) in TEXTS]
    # Texts as dictionaries: one that stands in a million rows is in the memory once.
    options = {"page_checksum_verification": True, "read_dictionary": texts, "pre_buffer": False}
    with open_parquet(path, **options) as file:
        columns = _columns(file, wanted, path)
    if not any(columns.values()):
        raise InputError(f"{path}: the table has no rows")
    return Table(name, columns, str(path))


def _scalar_columns(meta: Any, path: Path) -> list[str]:
    """The columns that are no lists, checked against the limits by what the footer says."""
    limits = ImportLimits.from_environment()
    limits.check(path, "columns", meta.num_columns)
    leaves = [meta.schema.column(i) for i in range(meta.num_columns)]
    scalar = [i for i, leaf in enumerate(leaves) if leaf.max_repetition_level == 0]
    if meta.num_rows < 0:
        raise InputError(f"{path}: not a readable Parquet file: {meta.num_rows} rows")
    limits.check_table(path, meta.num_rows, len(scalar))
    # Row groups without rows take memory as well.
    limits.check_table(path, meta.num_row_groups, len(scalar))
    size = 0
    for i in range(meta.num_row_groups):
        group = meta.row_group(i)
        size += sum(max(0, group.column(j).total_uncompressed_size) for j in scalar)
    limits.check(path, "bytes", size)
    return [leaves[i].path for i in scalar]


def _columns(file: Any, wanted: list[str], path: Path) -> dict[str, list[object]]:
    import pyarrow as pa

    meter = Meter(path)

    def batches() -> Iterator[Any]:
        for batch in file.iter_batches(BATCH_ROWS, columns=wanted):
            meter.add(batch.num_rows * batch.num_columns)
            yield batch

    if any(pa.types.is_struct(field.type) for field in file.schema_arrow):
        return from_rows((row for batch in batches() for row in batch.to_pylist()), path)
    columns: dict[str, list[object]] = {name: [] for name in wanted}
    for batch in batches():
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            columns[name] += _cells(column)
    return columns


def _cells(column: Any) -> list[object]:
    if not hasattr(column, "dictionary"):
        return list(column.to_pylist())
    values = column.dictionary.to_pylist()
    return [None if i is None else values[i] for i in column.indices.to_pylist()]


IMPORTER = Importer(
    read=lambda path: [read_parquet(path, path.stem)],
    sniff=lambda path, head: CERTAIN if head.startswith(b"PAR1") else 0.0,
    is_log=by_suffix(".parquet", ".pq"),
)
