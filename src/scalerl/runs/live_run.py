"""A run directory that is still being written, kept up to date at the cost of what is new.

Of a line only a few numbers are kept, in packed columns, so that two hundred runs of five hundred
validations take a few megabytes. `table()` gives what `read_run_directory` reads of whole files.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import deque
from pathlib import Path
from typing import Any

from scalerl.runs.compute import Compute
from scalerl.runs.importers.run_directory import (
    FILE,
    MAX_STEPS_BYTES,
    SIGNS,
    STEPS,
    assign_roles,
    run_name,
    signs_of,
)
from scalerl.runs.lines import EvalLine, EventLine, Status, StepLine
from scalerl.runs.reader import HEALTH_COLUMNS, USED_RECIPE, RunReader, health_row
from scalerl.runs.table import Table, to_float
from scalerl.runs.tail import TailReader

#: Bytes of a file that are read at a time, which bounds the memory of its lines.
BLOCK_BYTES = 4_000_000
#: Bytes of all files read in one refresh. A longer record takes several refreshes, so that one
#: large run does not keep the page from showing the others.
MAX_REFRESH_BYTES = 64_000_000
#: Events that are kept, the latest.
MAX_EVENTS = 60
#: Columns that are kept of a validation.
EVAL_COLUMNS = (
    "step", "pass_rate", "n_prompts", "k", "scored", "truncated",
    *(f"compute/{key}" for key in Compute.__dataclass_fields__),
)  # fmt: skip


class LiveRun:
    """One run directory. `refresh()` reads what is new, evaluations before steps.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "evals.jsonl").write_text('{"step": 0, "pass_rate": 0.25}\\n')
    ...     run = LiveRun(Path(folder))
    ...     run.refresh(), len(run), run.refresh()
    (True, 1, False)
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        #: The recipe as the run uses it; empty where none can be read.
        self.recipe: dict[str, Any] = {}
        self.status: Status | None = None
        #: By file name: size and time at the last refresh.
        self._stamps: dict[str, tuple[int, int] | None] = {}
        self._reader = RunReader(path)
        self._reset()

    def _reset(self) -> None:
        self._evals = self._reader.follow_columns(
            EvalLine, *EVAL_COLUMNS, "failed", max_bytes=BLOCK_BYTES
        )
        self._steps = self._reader.follow_columns(
            StepLine, *HEALTH_COLUMNS, "compute", max_bytes=BLOCK_BYTES
        )
        self._events = self._reader.follow(EventLine, BLOCK_BYTES)
        self._columns = {name: array("d") for name in EVAL_COLUMNS}
        #: By the row of a failed validation: the reason.
        self._failed: dict[int, str] = {}
        #: Sum and count of each warning sign, for every validation.
        self._signs = {name: (array("d"), array("d")) for name in SIGNS}
        #: Steps after the last validation, flat: the number of a step, then its warning signs.
        self._pending = array("d")
        self.events: deque[EventLine] = deque(maxlen=MAX_EVENTS)
        #: Events so far that report a problem.
        self.warnings = 0
        #: Number and compute of the latest step, as its line has them.
        self._last_step: Any = None
        self._last_compute: Any = None

    def __len__(self) -> int:
        """Validations so far."""
        return len(self._columns["step"])

    # -- reading ----------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Read what is new; whether there was anything."""
        left = MAX_REFRESH_BYTES
        while left > 0 and (cost := self._refresh_lines()):
            left -= cost
        changed = self._refresh_documents()
        return changed or left < MAX_REFRESH_BYTES

    @property
    def problems(self) -> list[str]:
        """Files, and lines of them, that could not be read; one text each."""
        found = [each.problem for each in self._tails if each.problem is not None]
        return [*found, *self._reader.problems.values()]

    @property
    def _tails(self) -> tuple[TailReader[Any], ...]:
        return self._evals, self._steps, self._events

    def _refresh_lines(self) -> int:
        """Read the next block of each file; the bytes that this cost, 0 where nothing was new."""
        names = (FILE, STEPS, EventLine.FILE)
        # Taken before the files are read, so that the next refresh notices what is written while
        # they are being read.
        stamps = {name: file_stamp(self.path / name) for name in names}
        if all(self._stamps.get(name) == stamp for name, stamp in stamps.items()):
            return 0
        before = [(each.at, each.bytes_read) for each in self._tails]
        evals, steps, events = self._evals.new(), self._steps.new(), self._events.new()
        after = [(each.at, each.bytes_read) for each in self._tails]
        # At least 1, because 0 means that nothing was new.
        cost = max(sum(b[1] - a[1] for a, b in zip(before, after, strict=True)), 1)
        if any(each.restarted for each in self._tails):
            self._reset()  # a resumed run has cut what it will write again
            self._stamps.clear()
            return cost
        for line in evals:
            self._add_eval(line)
        for line in steps:
            self._add_step(line)
        for event in events:
            self.events.append(event)
            self.warnings += event.event in ("warning", "lost", "checker", "refused")
        if [at for at, _ in before] != [at for at, _ in after]:
            return cost
        self._stamps |= stamps
        return 0

    def _refresh_documents(self) -> bool:
        new = False
        if self._changed(Status.FILE):
            self.status, new = self._reader.read_status(), True
        if self._changed(USED_RECIPE):
            self.recipe, new = self._reader.read_used_recipe()[0] or {}, True
        return new

    def _changed(self, name: str) -> bool:
        """Whether a file differs from the last refresh in size or time."""
        stamp = file_stamp(self.path / name)
        if self._stamps.get(name) == stamp:
            return False
        self._stamps[name] = stamp
        return True

    def _add_eval(self, values: tuple[Any, ...]) -> None:
        *numbers, failed = values
        for column, number in zip(self._columns.values(), numbers, strict=True):
            column.append(to_float(number))
        if failed is not None:
            self._failed[len(self) - 1] = str(failed)[:400]
        for total, count in self._signs.values():
            total.append(0.0)
            count.append(0.0)
        end, width = self._columns["step"][-1], len(SIGNS) + 1
        if not math.isfinite(end):
            return
        left = array("d")
        for i in range(0, len(self._pending), width):
            row = self._pending[i : i + width]
            if row[0] <= end:
                self._sum(len(self) - 1, row[1:])
            else:
                left.extend(row)
        self._pending = left

    def _add_step(self, values: tuple[Any, ...]) -> None:
        *health, self._last_compute = values
        self._last_step = health[0]
        step = to_float(self._last_step)
        if not math.isfinite(step):
            return
        signs = array("d", signs_of(health_row(tuple(health))))
        ends = self._columns["step"]
        if not len(ends) or step > ends[-1]:
            self._pending.append(step)
            self._pending.extend(signs)
        else:
            self._sum(bisect_left(ends, step), signs)

    def _sum(self, at: int, values: array[float]) -> None:
        for (total, count), value in zip(self._signs.values(), values, strict=True):
            if math.isfinite(value):
                total[at] += value
                count[at] += 1

    # -- what is known ----------------------------------------------------------------------------

    def table(self) -> Table:
        """The validations so far, as the importer of run directories gives them."""
        columns: dict[str, list[object]] = {
            name: [None if v != v else v for v in values]
            for name, values in self._columns.items()
            if name == "step" or any(v == v for v in values)
        }
        if self._failed:
            columns["failed"] = [self._failed.get(i) for i in range(len(self))]
        if self._steps.bytes_read <= MAX_STEPS_BYTES:
            for name, (total, count) in self._signs.items():
                if name not in columns and any(count):
                    columns[name] = [
                        t / c if c else None for t, c in zip(total, count, strict=True)
                    ]
        table = Table(run_name(self.path), columns, str(self.path / FILE))
        return assign_roles(table, self.path, self.events)

    @property
    def step(self) -> int:
        """The newest step on any line."""
        known = [to_float(self._last_step), *self._columns["step"][-1:]]
        return int(max((v for v in known if math.isfinite(v)), default=0))

    @property
    def compute(self) -> Compute:
        """Compute of the latest step, else of the latest validation."""
        found = Compute.from_dict(self._last_compute)
        if found is not None:
            return found
        last = {k.partition("/")[2]: v[-1] for k, v in self._columns.items() if v and "/" in k}
        return Compute.from_dict({k: v for k, v in last.items() if v == v}) or Compute()

    @property
    def pass_rate(self) -> float | None:
        """Pass rate of the latest validation that has one."""
        return next((v for v in reversed(self._columns["pass_rate"]) if v == v), None)

    @property
    def ended(self) -> EventLine | None:
        """The event `end` or `failed`, unless the run was resumed after it."""
        for event in reversed(self.events):
            if event.event in ("end", "failed"):
                return event
            if event.event in ("resume", "branch"):
                return None
        return None


def file_stamp(path: Path) -> tuple[int, int] | None:
    """Size and modification time of a file; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns
