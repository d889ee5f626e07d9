"""Which episodes to show: conditions on their columns, and on their text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from scalerl.errors import InputError
from scalerl.runs.episode_entries import CORRECT, FINISHES, finish_number, name_hash
from scalerl.runs.episode_table import Entries

Order = Literal["newest", "oldest", "reward", "-reward", "length", "-length"]
#: Characters of a text or pattern to look for: longer than any phrase, and bounds its cost.
MAX_PATTERN = 500
#: Values of a yes-or-no condition.
_YES_NO = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True, slots=True)
class EpisodeFilter:
    """Conditions that an episode must meet, all of them; None: any value.

    >>> EpisodeFilter.from_text("correct=false step>100").step_from
    101
    """

    #: `training`, `validation`, or the name of a file of another framework.
    source: str | None = None
    #: First and last step.
    step_from: int | None = None
    step_to: int | None = None
    task: str | None = None
    prompt: str | None = None
    finish: str | None = None
    #: `true`, `false`, or `none`: could not be scored.
    correct: str | None = None
    truncated: bool | None = None
    tool_failed: bool | None = None
    #: Lowest and highest reward; episodes without a reward meet neither.
    reward_min: float | None = None
    reward_max: float | None = None
    #: Fewest and most tokens that were written.
    length_min: int | None = None
    length_max: int | None = None
    #: Text in the question, in a segment or in what the check found, in any case of letters.
    text: str | None = None
    #: Regular expression for the same texts.
    regex: str | None = None

    @classmethod
    def from_values(cls, given: Mapping[str, str]) -> EpisodeFilter:
        """The filter in texts by the name of the field, as a query has them; empty texts count as
        left out. InputError for a name or value that is none."""
        return cls(**{name: _value(name, text) for name, text in given.items() if text != ""})

    @classmethod
    def from_text(cls, text: str) -> EpisodeFilter:
        """The filter in conditions with spaces between: `correct=false step>100 reward<=0.5`.
        A value with spaces is quoted: `task="long sums"`."""
        found = cls()
        for part in _split(text):
            match = _CONDITION.fullmatch(part)
            if match is None:
                raise InputError(
                    f"--where: {part!r} is no condition: write NAME=VALUE, or step>100"
                )
            name, sign, value = match.groups()
            found = found.with_condition(name, sign, value)
        return found

    def with_condition(self, name: str, sign: str, value: str) -> EpisodeFilter:
        """The filter with one more condition; `sign` is one of = < <= > >=."""
        bounds = _BOUNDS.get(name)
        if bounds is None:
            if sign != "=":
                raise InputError(f"--where: {name}{sign}: only {', '.join(_BOUNDS)} have an order")
            return replace(self, **{name: _value(name, value)})
        low, high = bounds
        given = _value(low, value)
        changes: dict[str, Any] = {}
        if sign in ("=", ">", ">="):
            changes[low] = _next(given, 1) if sign == ">" else given
        if sign in ("=", "<", "<="):
            changes[high] = _next(given, -1) if sign == "<" else given
        return replace(self, **changes)

    @property
    def looks_at_text(self) -> bool:
        """Whether lines have to be read, and not only the index."""
        return self.text is not None or self.regex is not None

    def mask(self, found: Entries) -> npt.NDArray[np.bool_]:
        """Which entries meet the conditions on columns (all but `source`, `text` and `regex`)."""
        mask = np.ones(len(found), np.bool_)
        for column, low, high in (
            ("step", self.step_from, self.step_to),
            ("reward", self.reward_min, self.reward_max),
            ("length", self.length_min, self.length_max),
        ):
            # As the column's own type: 0.1 as float32 is more than 0.1.
            if low is not None:
                mask &= found[column] >= _as(column, low)
            if high is not None:
                mask &= found[column] <= _as(column, high)
        for column, wanted in (("task", self.task), ("prompt", self.prompt)):
            if wanted is not None:
                mask &= found[column] == np.uint64(name_hash(wanted))
        if self.finish is not None:
            mask &= found["finish"] == finish_number(self.finish)
        if self.correct is not None:
            mask &= found["correct"] == CORRECT.index(_CORRECT[self.correct])
        if self.truncated is not None:
            mask &= (found["finish"] == FINISHES.index("length")) == self.truncated
        if self.tool_failed is not None:
            mask &= (found["tool_failures"] > 0) == self.tool_failed
        return mask


#: A condition of `--where`.
_CONDITION = re.compile(r"([A-Za-z_]+)(<=|>=|=|<|>)(.*)", re.DOTALL)
#: Names of `--where` with an order, and the fields of their bounds.
_BOUNDS = {
    "step": ("step_from", "step_to"),
    "reward": ("reward_min", "reward_max"),
    "length": ("length_min", "length_max"),
}
_CORRECT = {"true": True, "false": False, "none": None}
_STEPS = np.iinfo(np.int32)
_LENGTHS = np.iinfo(np.uint32)


def _split(text: str) -> list[str]:
    import shlex

    try:
        return shlex.split(text)
    except ValueError:
        raise InputError(f"--where {text!r}: a quotation mark is missing its other") from None


def _as(column: str, value: float) -> Any:
    if column == "reward":
        return np.float32(value)
    limits = _STEPS if column == "step" else _LENGTHS
    return min(max(int(value), int(limits.min)), int(limits.max))


def _next(value: float, direction: int) -> float:
    """The next value that the column can have."""
    if isinstance(value, int):
        return value + direction
    return float(np.nextafter(np.float32(value), np.float32(direction * np.inf)))


def _value(name: str, text: str) -> Any:
    kinds: dict[str, Callable[[str, str], Any]] = {
        "correct": _correct, "truncated": _yes_no, "tool_failed": _yes_no, "finish": _finish,
        "reward_min": _number, "reward_max": _number, "text": _short, "regex": _short,
    }  # fmt: skip
    if name not in (field.name for field in fields(EpisodeFilter)):
        names = [*_BOUNDS, *(field.name for field in fields(EpisodeFilter))]
        near = get_close_matches(name, names, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
        raise InputError(f"episodes have no {name!r}: {hint}")
    if name.startswith(("step_", "length_")):
        return _whole(name, text)
    return kinds[name](name, text) if name in kinds else text


def _whole(name: str, text: str) -> int:
    # 12 digits: steps and lengths have fewer, and int() of a million digits takes seconds.
    if not re.fullmatch(r"-?\d{1,12}", text, re.ASCII):
        raise InputError(f"{name} is a whole number, not {text[:40]!r}")
    return int(text)


def _number(name: str, text: str) -> float:
    try:
        found = float(text[:40])
    except ValueError:
        found = np.nan
    if not np.isfinite(found):
        raise InputError(f"{name} is a number, not {text[:40]!r}")
    return found


def _correct(name: str, text: str) -> str:
    if text not in _CORRECT:
        raise InputError(f"correct is true, false or none (no score), not {text[:40]!r}")
    return text


def _yes_no(name: str, text: str) -> bool:
    if text not in _YES_NO:
        raise InputError(f"{name} is true or false, not {text[:40]!r}")
    return _YES_NO[text]


def _finish(name: str, text: str) -> str:
    if text not in FINISHES:
        names = ", ".join(filter(None, FINISHES))
        raise InputError(f"finish is one of {names}, not {text[:40]!r}")
    return text


def _short(name: str, text: str) -> str:
    if len(text) > MAX_PATTERN:
        raise InputError(f"{name} has {len(text)} characters: at most {MAX_PATTERN}")
    return text


def order_of(text: str) -> Order:
    """The order with this name."""
    found = next((each for each in get_args(Order) if each == text), None)
    if found is None:
        raise InputError(f"sort is one of {', '.join(get_args(Order))}, not {text[:40]!r}")
    order: Order = found
    return order


def in_order(entries: Entries, order: Order) -> npt.NDArray[np.intp]:
    """The numbers of entries in an order; equals in the order of their steps, newest first."""
    newest = np.argsort(entries["step"], kind="stable")[::-1]
    if order == "newest":
        return newest
    if order == "oldest":
        return newest[::-1]
    column = entries[order.removeprefix("-")][newest].astype(np.float64)
    # Without a reward last, whatever the direction.
    key = -column if order.startswith("-") else column
    return newest[np.argsort(np.where(np.isnan(key), np.inf, key), kind="stable")]
