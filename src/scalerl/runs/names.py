"""Names: columns that a user names, suggestions where there is none, distinct names of runs."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scalerl.errors import InputError
from scalerl.runs.record import Run
from scalerl.runs.step_costs import StepCost
from scalerl.runs.table import Table, rows_by_name
from scalerl.text import listed


@dataclass(frozen=True)
class LoadOptions:
    """The columns, runs and scale that the user chose (see `load_runs`); None: found by names."""

    x: str | None = None
    y: str | None = None
    run: str | None = None
    group_by: str | None = None
    n_eval: str | float | None = None
    scale: str | float | None = None
    gpus: float | None = None
    seconds_per_step: float | None = None

    def __post_init__(self) -> None:
        for flag, value in (("--gpus", self.gpus), ("--seconds-per-step", self.seconds_per_step)):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InputError(f"{flag} {value:g}: give a number above 0")
        if self.seconds_per_step is not None and self.gpus is None:
            raise InputError("--seconds-per-step gives GPU-hours with --gpus N: add the number")


#: Everything is found by the names of columns.
ANY = LoadOptions()


def resolve(asked: str, table: Table, usable: list[str], flag: str) -> str:
    """The column meant by a name: exact, else in another case, else by its last part if unique."""
    if asked in usable:
        return asked
    lower = asked.lower()
    for match in (
        [c for c in usable if c.lower() == lower],
        [c for c in usable if c.lower().endswith("/" + lower)],
    ):
        if len(match) == 1:
            return match[0]
        if match:
            raise InputError(f"{table.name}: {flag} {asked} could be {listed(match)}")
    if asked in table.columns:
        raise InputError(f"{table.name}: {asked} holds no numbers: {suggest(asked, usable, flag)}")
    raise InputError(f"{table.name}: no column {asked!r}: {suggest(asked, usable, flag)}")


def find(asked: str, table: Table, usable: list[str], flag: str) -> str | None:
    """As `resolve`, and None where no column is meant."""
    try:
        return resolve(asked, table, usable, flag)
    except InputError:
        return None


def suggest(asked: str, known: list[str], flag: str = "") -> str:
    """What was probably meant, nearest first."""
    by_lower = {c.lower(): c for c in known}
    near = [by_lower[c] for c in difflib.get_close_matches(asked.lower(), by_lower, 8, 0.5)]
    near += [c for c in known if asked.lower() in c.lower() and c not in near]
    use = f"use {flag} with" if flag else "try"
    return f"{use} {listed(near or known)}" if known else "the table has no such columns"


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """A run, with the id and configuration in its log, which distinguish runs of one name."""

    run: Run
    id: str = ""
    facts: dict[str, str] = field(default_factory=dict)
    #: Where the run is plotted against steps by default: how the cost of a step changes.
    cost: StepCost | None = None


def unique_names(found: Sequence[LoadedRun]) -> list[Run]:
    """The runs with distinct names. Runs that share one get what differs between them: a part of
    the path before the name, else a value of the configuration, the id, or a number after it.

    >>> import numpy as np
    >>> run = Run("grpo", np.array([1.0]), np.array([0.5]), "steps", source="runs.db")
    >>> both = [LoadedRun(run, facts={"lr": "1", "seed": seed}) for seed in "12"]
    >>> [r.name for r in unique_names(both)]
    ['grpo seed=1', 'grpo seed=2']
    """
    names = [each.run.name for each in found]
    for name, places in rows_by_name(names).items():
        if len(places) > 1:
            distinct = _distinct_names(name, [found[i] for i in places])
            for i, new in zip(places, distinct, strict=True):
                names[i] = new
    taken: set[str] = set()
    result = []
    for each, plain in zip(found, names, strict=True):
        name, count = plain, 2
        while name in taken:
            name = f"{plain} #{count}"
            count += 1
        taken.add(name)
        result.append(each.run if name == each.run.name else each.run.replace(name=name))
    return result


def _distinct_names(name: str, runs: list[LoadedRun]) -> list[str]:
    paths = [Path(each.run.source).parts[::-1] for each in runs]
    at = next((i for i, parts in enumerate(zip(*paths, strict=False)) if len(set(parts)) > 1), 0)
    names = [f"{path[at]}/{name}" if at else name for path in paths]
    for each, places in rows_by_name(names).items():
        if len(places) > 1:
            for i, word in zip(places, _differences([runs[i] for i in places]), strict=True):
                names[i] = f"{each}{word}"
    return names


def _differences(runs: list[LoadedRun]) -> list[str]:
    """What to put after a name that several runs share, where something differs for all of them."""
    # Replicates differ in their seed, so that is tried first.
    keys = sorted({key for each in runs for key in each.facts}, key=lambda k: ("seed" not in k, k))
    for key in keys:
        values = [each.facts.get(key, "-") for each in runs]
        # Longer values (a prompt, a path) would make names that no table can show.
        if len(set(values)) == len(runs) and max(map(len, values)) <= 40:
            return [f" {key.rpartition('/')[2]}={value}" for value in values]
    ids = [each.id[:8] for each in runs]
    return [f" ({i})" for i in ids] if len(set(ids)) == len(ids) else [""] * len(ids)
