"""Parquet files, opened for prompts and for logs alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from scalerl.text import one_line


@contextmanager
def open_parquet(path: Path, **options: Any) -> Iterator[Any]:
    """A `pyarrow.parquet.ParquetFile`; an InputError without pyarrow, or where the file cannot be
    read while it is open."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise InputError("reading Parquet needs pyarrow: pip install 'scalerl[parquet]'") from None
    try:
        with pq.ParquetFile(path, **options) as file:
            yield file
    except InputError:
        raise
    # A damaged file raises any of these, not only pyarrow's own.
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, MemoryError) as error:
        reason = one_line(str(error), 120)
        raise InputError(f"{path}: not a readable Parquet file: {reason}") from None
