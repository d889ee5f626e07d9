"""Parquet, through pyarrow: tables of any tool, and the history W&B exports."""

from __future__ import annotations

from pathlib import Path

from scalerl.errors import InputError
from scalerl.runs.importers.files import check_file
from scalerl.runs.table import Table, from_rows

#: Cells, not bytes: a small file may claim a table that does not fit into the memory.
MAX_CELLS = 200_000_000


def read_parquet(path: Path, name: str) -> Table:
    """The scalar columns of a Parquet file; page checksums are checked where it has them."""
    check_file(path)
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise InputError("reading Parquet needs pyarrow: pip install 'scalerl[parquet]'") from None
    broken = (pa.ArrowException, OSError, ValueError, TypeError, KeyError, MemoryError)
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            meta = file.metadata
            if meta.num_rows < 0 or meta.num_rows * max(meta.num_columns, 1) > MAX_CELLS:
                raise InputError(f"{path}: {meta.num_rows} rows are too many for a log of metrics")
            table = file.read()
            rows = table.num_rows
            nested = any(pa.types.is_nested(field.type) for field in table.schema)
            if nested:
                columns = from_rows(table.to_pylist())
            else:
                columns = {n: table.column(n).to_pylist() for n in table.column_names}
    except InputError:
        raise
    except broken as error:
        reason = " ".join(str(error).split())[:120]
        raise InputError(f"{path}: not a readable Parquet file: {reason}") from None
    if not rows:
        raise InputError(f"{path}: the table has no rows")
    return Table(name, columns, str(path))
