"""The one reader of a run's record: typed lines, chosen columns, a cursor, whole documents.

Everything that reads a run directory reads it here: regular files only, of bounded size, also while
the run writes. Damaged lines and a last line that a kill cut short are left out; of a file that is
not there, there are no lines.
"""

from __future__ import annotations

import math
import tomllib
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from scalerl.errors import InputError
from scalerl.files import MAX_DOCUMENT, lines_backwards, lines_of, open_regular, read_limited
from scalerl.runs.lines import EvalAnswers, Line, Status, StepLine
from scalerl.runs.tail import TailReader, parse_line, select_columns

L = TypeVar("L", bound=Line)
RECIPE = "recipe.toml"
#: The recipe as the run last used it, and what is left to do before the directory agrees with it.
USED_RECIPE = "recipe.json"
#: Bytes read at a time from the end of a file.
BLOCK = 1 << 16
#: Bytes read at most from the end of a file: sixteen lines of the longest that are read. Without a
#: limit a file of zeros would be read whole every time that its last line is read.
MAX_TAIL = 64_000_000
#: Bytes of the answers of a validation, `evals/step_N.json`.
MAX_ANSWERS = 20_000_000


class RunReader:
    """The record in one run directory.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "steps.jsonl").write_text('{"step": 1, "loss": 0.5}\\n{"step": 2}')
    ...     RunReader(folder).columns(StepLine, "step", "loss")
    [(1, 0.5), (2, None)]
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        #: By name of a document that is there: why it could not be read the last time.
        self.problems: dict[str, str] = {}

    # -- files of lines ---------------------------------------------------------------------------

    def read(self, kind: type[L]) -> list[L]:
        """All lines of a type so far."""
        made = (kind.from_dict(parse_line(line)) for line in self.raw_lines(kind))
        return [line for line in made if line is not None]

    def columns(self, kind: type[Line], *names: str) -> list[tuple[Any, ...]]:
        """Some values of every line, as JSON has them (`length/mean` leads into an object); None
        where a line has none. Faster than whole lines, which have some sixty values."""
        select = select_columns(names)
        made = (select(parse_line(line)) for line in self.raw_lines(kind))
        return [values for values in made if values is not None]

    def sample(self, kind: type[L], most: int) -> list[L]:
        """At most `most` evenly picked lines of a type, the last one always; none from a file that
        cannot be read. Lines that are not picked are not parsed."""
        path = self.path / kind.FILE
        try:
            # Read twice, so that a record of any length takes the memory of the picked lines only.
            count = sum(1 for line in lines_of(path) if line)
            every = max(-(-count // most), 1)
            lines = (line for line in lines_of(path) if line)
            picked = islice(lines, (count - 1) % every, count, every) if count else ()
            made = [kind.from_dict(parse_line(line)) for line in picked]
        except OSError:
            return []
        return [line for line in made if line is not None]

    def tail(self, kind: type[L], count: int) -> list[L]:
        """The last lines of a type, oldest first; reads no more of the file than they take."""
        found: deque[L] = deque()
        path = self.path / kind.FILE
        with _reading(path), open_regular(path, buffering=0) as file:
            for line in lines_backwards(file, BLOCK, MAX_TAIL):
                made = kind.from_dict(parse_line(line))
                if made is not None:
                    found.appendleft(made)
                    if len(found) >= count:
                        break
        return list(found)

    def last(self, kind: type[L]) -> L | None:
        """The last line of a type, or None."""
        return next(iter(self.tail(kind, 1)), None)

    def follow(self, kind: type[L], max_bytes: int | None = None) -> TailReader[L]:
        """A cursor over the lines of a type: each call of `new` gives those that were added."""
        return TailReader(self.path / kind.FILE, kind.from_dict, max_bytes)

    def follow_columns(
        self, kind: type[Line], *names: str, max_bytes: int | None = None
    ) -> TailReader[tuple[Any, ...]]:
        """A cursor over some values of every line, as `columns` gives them."""
        return TailReader(self.path / kind.FILE, select_columns(names), max_bytes)

    def raw_lines(self, kind: type[Line]) -> Iterator[bytes]:
        """The bytes of every line of a type, damaged ones included."""
        with _reading(self.path / kind.FILE):
            yield from lines_of(self.path / kind.FILE)

    # -- documents --------------------------------------------------------------------------------

    def read_status(self) -> Status | None:
        """What the run is doing; None before the first status, or where it cannot be read."""
        return Status.from_dict(self.document(Status.FILE))

    def read_answers(self, step: int) -> EvalAnswers | None:
        """The answers of the validation at this step; None where there is nothing to read."""
        return EvalAnswers.from_dict(self.document(answers_file(step), MAX_ANSWERS))

    def answered(self) -> list[int]:
        """Steps of the validations with answers to read, ascending."""
        names = [p.stem[5:] for p in (self.path / EvalAnswers.FOLDER).glob("step_*.json")]
        return sorted(int(name) for name in names if name.isdecimal())

    def read_used_recipe(self) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """What `RunStore.write_used_recipe` wrote; None for what cannot be read."""
        found = self.document(USED_RECIPE) or {}
        recipe, pending = found.get("recipe"), found.get("pending")
        return (
            recipe if isinstance(recipe, dict) else None,
            pending if isinstance(pending, dict) else None,
        )

    def read_recipe(self) -> dict[str, Any] | None:
        """The values of `recipe.toml`; None where it cannot be read. (Without the checks and
        defaults of `scalerl.recipe`, which the forecasting half does not import.)"""
        self.problems.pop(RECIPE, None)
        try:
            return tomllib.loads(read_limited(self.path / RECIPE).decode())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            self.problems[RECIPE] = str(error)
            return None

    def document(self, name: str, most: int = MAX_DOCUMENT) -> dict[str, Any] | None:
        """The JSON object in a file of at most `most` bytes; None where it cannot be read."""
        self.problems.pop(name, None)
        try:
            return parse_line(read_limited(self.path / name, most))
        except FileNotFoundError:
            return None
        except OSError as error:
            self.problems[name] = f"{name}: {error.strerror or error}: not read"
            return None


def answers_file(step: int) -> str:
    """The file of a validation's answers, in the run directory."""
    return f"{EvalAnswers.FOLDER}/step_{step}.json"


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """A file that is not there has no lines; one that cannot be read is an InputError."""
    try:
        yield
    except FileNotFoundError:
        return
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"{path}: {reason}: put the run's own file in its place") from None


# -- the health of a run, step by step ------------------------------------------------------------

#: The columns of a step by which trouble is recognised, in the order of `StepHealthRow`.
HEALTH_COLUMNS = (
    "step", "loss", "grad_norm", "entropy", "truncated", "length/mean", "ratio/max", "ess",
    "non_finite",
)  # fmt: skip


class StepHealthRow(NamedTuple):
    """The health of one optimiser step, as `StepLine` has it; nan where the line has no number."""

    step: int
    loss: float
    grad_norm: float
    entropy: float
    truncated: float
    length_mean: float
    ratio_max: float
    ess: float
    #: Tokens without a finite log-prob.
    non_finite: int


def read_step_health(run: Path) -> tuple[StepHealthRow, ...]:
    """The health of every step of a run; damaged lines are left out. A file that was just read and
    has not changed is not read again."""
    try:
        now = (run / StepLine.FILE).stat()
        return _read_health(run, now.st_ino, now.st_size, now.st_mtime_ns)
    except (OSError, InputError):
        return ()


@lru_cache(maxsize=1)
def _read_health(run: Path, *_version: int) -> tuple[StepHealthRow, ...]:
    made = map(health_row, RunReader(run).columns(StepLine, *HEALTH_COLUMNS))
    return tuple(each for each in made if each is not None)


def health_row(values: tuple[Any, ...]) -> StepHealthRow | None:
    """The row of values in the order of HEALTH_COLUMNS; None without a whole number as its step."""
    step, *numbers, bad = values
    if type(step) is not int and not (type(step) is float and step.is_integer()):
        return None
    whole = bad if type(bad) is int else 0
    return StepHealthRow._make((int(step), *map(_number, numbers), whole))


def _number(value: Any) -> float:
    # By exact type, because true and false are integers to isinstance.
    if type(value) is float:
        return value
    try:
        return float(value) if type(value) is int else math.nan
    except OverflowError:
        return math.nan
