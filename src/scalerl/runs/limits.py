"""How much an importer may read: bytes, cells, columns and processor seconds.

Logs come from other programs and other people. A file of a few kilobytes can describe a table that
fills the memory, so sizes are checked before anything is allocated for them. The limits are far
above any log of scalar metrics; `SCALERL_IMPORT_LIMITS` raises them one by one:

    SCALERL_IMPORT_LIMITS=cells=50000000,seconds=300 scalerl fit history.parquet
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass, fields

from scalerl.errors import InputError

#: The environment variable that raises limits.
VARIABLE = "SCALERL_IMPORT_LIMITS"


@dataclass(frozen=True, slots=True)
class ImportLimits:
    """Upper bounds for one file.

    >>> ImportLimits.from_text("cells=50,seconds=1e3")
    ImportLimits(bytes=2000000000, cells=50, columns=20000, seconds=1000)
    """

    #: Bytes of the file, with the write-ahead log of a database and after decompression.
    bytes: int = 2_000_000_000
    #: Rows times columns. 10 million numbers take about 400 MB as Python objects.
    cells: int = 10_000_000
    #: Columns of a table. Choosing a column by its name takes 3 s of 20,000.
    columns: int = 20_000
    #: Processor seconds for reading one file. The slowest format (TensorBoard) takes 10 s for a
    #: table with as many cells as allowed.
    seconds: int = 60

    @classmethod
    def from_text(cls, text: str) -> ImportLimits:
        """The default limits with the changes that a text such as `cells=5e7` makes."""
        names = [field.name for field in fields(cls)]
        changes: dict[str, int] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, _, value = (piece.strip() for piece in part.partition("="))
            try:
                number = float(value)
            except ValueError:
                number = math.nan
            if name not in names or not 1 <= number < math.inf:
                raise InputError(
                    f"{VARIABLE}: {part!r} is no limit: write NAME=NUMBER, with a name of "
                    f"{', '.join(names)}"
                )
            changes[name] = int(number)
        return cls(**changes)

    @classmethod
    def from_environment(cls) -> ImportLimits:
        """The limits that hold in this process."""
        return cls.from_text(os.environ.get(VARIABLE, ""))

    def check_table(self, source: object, rows: int, columns: int) -> None:
        """Refuse a table of more columns or cells than the limits allow."""
        self.check(source, "columns", columns)
        self.check(source, "cells", rows * columns)

    def check(self, source: object, name: str, count: float) -> None:
        """Refuse a count above the named limit, with the setting that would allow it."""
        limit = getattr(self, name)
        if count > limit:
            raise InputError(
                f"{source}: {_excess(name, count, limit)}: export only the metrics you need, or "
                f"set {VARIABLE}={name}={_round_up(max(count, 2 * limit))}"
            )


def _excess(name: str, count: float, limit: int) -> str:
    if name == "bytes":
        return f"{count / 1e9:.3g} GB is over the limit of {limit / 1e9:.3g} GB"
    if name == "seconds":
        return f"reading it takes over {limit:,} processor seconds"
    return f"{count:,.0f} {name} are over the limit of {limit:,}"


class Meter:
    """Counts what is read of one file, and refuses the rest when a limit is passed."""

    def __init__(self, source: object) -> None:
        self.source = source
        self.limits = ImportLimits.from_environment()
        self.cells = 0
        # Processor time, not wall time: a busy machine or a slow disk is no fault of the file.
        self._start = time.thread_time()

    def add(self, cells: int = 0) -> None:
        """Count cells, and check the time that has been used."""
        self.cells += cells
        self.limits.check(self.source, "cells", self.cells)
        self.limits.check(self.source, "seconds", self.seconds())

    def seconds(self) -> float:
        """Processor seconds of this thread since the file was opened."""
        return time.thread_time() - self._start

    def is_out_of_time(self) -> bool:
        """Whether the processor seconds are used up; SQLite asks this between instructions."""
        return self.seconds() > self.limits.seconds


def _round_up(count: float) -> int:
    """The next number with one digit that is not zero, which is easy to type.

    >>> _round_up(6_000_000_001), _round_up(200_002), _round_up(60)
    (7000000000, 300000, 60)
    """
    step: int = 10 ** max(0, math.floor(math.log10(count)))
    return math.ceil(count / step) * step
