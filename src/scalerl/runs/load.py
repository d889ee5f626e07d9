"""`load_runs`: from any source to cleaned runs."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.errors import InputError
from scalerl.runs.clean import clean
from scalerl.runs.examples import load_example
from scalerl.runs.importers.frames import is_frame, read_frame
from scalerl.runs.importers.wandb_online import read_wandb_online
from scalerl.runs.names import listing, shorten
from scalerl.runs.record import Array, Run
from scalerl.runs.scale import guess_scale, rescale
from scalerl.runs.select import ColumnChoice, Curve, to_curve
from scalerl.runs.sources import open_path
from scalerl.runs.split import split_runs, split_scores
from scalerl.runs.table import Table


def load_runs(
    *sources: Any,
    x: str | None = None,
    y: str | None = None,
    run: str | None = None,
    group_by: str | None = None,
    n_eval: str | float | None = None,
    scale: str | float | None = None,
) -> list[Run]:
    """Every run in the sources.

    A source is a path to a file, a directory or a pattern, `example:NAME`,
    `wandb:ENTITY/PROJECT[/RUN]`, a data frame, or a Run.

    x: the compute column, or `column*factor`, for example `hours*8` for 8 devices.
    y: the score column. Found by name where the framework is known. A pattern such as
        `val-core/*/mean@16` makes one run of each column it matches.
    run: keep only runs whose name matches this pattern.
    group_by: the column or configuration key that says which runs are replicates.
    n_eval: samples behind each score: a column or a number.
    scale: "percent", "pm1", "fraction", or what to divide the score by.

    >>> load_runs("example:paper-8b", "example:paper-moe", run="*moe")
    [Run('paper-moe', 32 points, gpu_hours 1241..44162, score 0.5177..0.7115)]
    >>> load_runs({"hours": [1, 2], "val_acc": [30.0, 40.0]}, x="hours*8")
    [Run('table', 2 points, gpu_hours 8..16, score 0.3..0.4)]
    """
    if not sources:
        raise InputError("no source given: name a log file, a directory or example:paper-8b")
    choice = ColumnChoice(x=x, y=y, n_eval=n_eval, group_by=group_by)
    runs: list[Run] = []
    names: list[str] = []
    for source in sources:
        try:
            found, seen = _load(source, choice, run, scale)
        except InputError as error:
            # Names come from files: they may hold line ends.
            raise InputError(shorten(str(error), 600)) from None
        runs += found
        names += seen
    if not runs:
        raise InputError(f"no run matches {run!r}: there is {listing(names)}")
    return _unique_names(runs)


def load_run(*sources: Any, **options: Any) -> Run:
    """The one run in the sources; an InputError if there are none or several.

    >>> load_run("example:paper-8b").r0
    0.4017
    """
    runs = load_runs(*sources, **options)
    if len(runs) != 1:
        names = listing(run.name for run in runs)
        raise InputError(f"{len(runs)} runs, choose one with --run: {names}")
    return runs[0]


def _load(
    source: Any, choice: ColumnChoice, pattern: str | None, scale: str | float | None
) -> tuple[list[Run], list[str]]:
    """The runs of one source that match, and the names of all."""
    if isinstance(source, Run):
        return _matching([source], pattern), [source.name]
    if isinstance(source, str) and source.startswith("example:"):
        example = load_example(source.removeprefix("example:"))
        return _matching([example], pattern), [example.name]
    tables, problems = _read(source, pattern)
    parts = [
        piece
        for table in tables
        for part in split_runs(table)
        for piece in split_scores(part, choice.y)
    ]
    for part in parts:
        part.name = shorten(part.name, 200) or "run"
    wanted = [part for part in parts if _matches(part.name, pattern)]
    curves, more_problems = _curves(wanted, choice)
    problems += more_problems
    # The other runs of a file help to tell percent from fractions.
    others, _ = _curves([part for part in parts if not _matches(part.name, pattern)], choice)
    runs = _finish(curves, others, scale, problems)
    if not runs and problems:
        raise problems[0]
    if problems:
        left_out = f"{len(problems)} left out: {shorten(str(problems[0]), 160)}"
        runs = [run.replace(notes=(*run.notes, left_out)) for run in runs]
    return runs, [part.name for part in parts]


def _curves(tables: list[Table], choice: ColumnChoice) -> tuple[list[Curve], list[InputError]]:
    curves: list[Curve] = []
    problems: list[InputError] = []
    for table in tables:
        try:
            curves.append(to_curve(table, choice))
        except InputError as error:
            problems.append(error)
    return curves, problems


def _read(source: Any, pattern: str | None) -> tuple[list[Table], list[InputError]]:
    if isinstance(source, str) and source.startswith("wandb:"):
        address = source.removeprefix("wandb:")
        return read_wandb_online(address, lambda name: _matches(name, pattern)), []
    if isinstance(source, str | os.PathLike):
        tables: list[Table] = []
        problems: list[InputError] = []
        for _, reader in open_path(source):
            try:
                tables += reader()
            except InputError as error:
                problems.append(error)
        return tables, problems
    if is_frame(source):
        return [read_frame(source, "table")], []
    raise InputError(f"a {type(source).__name__} is no source: give a path, a data frame or a Run")


def _finish(
    curves: list[Curve],
    others: list[Curve],
    scale: str | float | None,
    problems: list[InputError],
) -> list[Run]:
    """Bring scores to [0, 1], deciding once for each name in a file, and clean every curve."""
    kin: dict[tuple[str, str], list[Curve]] = {}
    for curve in others:
        kin.setdefault((curve.source, curve.y_name), []).append(curve)
    mine: dict[tuple[str, str], list[Curve]] = {}
    for curve in curves:
        mine.setdefault((curve.source, curve.y_name), []).append(curve)
    scales = {key: scale or _decide(group, kin.get(key, [])) for key, group in mine.items()}
    runs = []
    for curve in curves:
        try:
            score, notes = rescale(curve.y, curve.y_name, scales[curve.source, curve.y_name])
            runs.append(_to_run(curve, score, notes))
        except InputError as error:
            problems.append(InputError(f"{curve.name}: {error}"))
    return runs


def _decide(curves: list[Curve], others: list[Curve]) -> str:
    scores = np.concatenate([curve.y for curve in (*curves, *others)])
    try:
        return guess_scale(scores[np.isfinite(scores)], curves[0].y_name)
    except InputError as error:
        if others:
            return _decide(curves, [])
        inside = [np.nanmin(curve.y) >= 0 and np.nanmax(curve.y) <= 1 for curve in curves]
        if sum(inside) * 2 > len(curves):
            # Most are fractions: the others are refused one by one.
            return "fraction"
        widest = max(curves, key=lambda curve: np.nanmax(np.abs(curve.y), initial=0.0))
        raise InputError(f"{widest.name}: {error}") from None


def _to_run(curve: Curve, score: Array, notes: list[str]) -> Run:
    done = clean(curve.x, score, curve.x_kind)
    n_eval = None if curve.n_eval is None else curve.n_eval[done.rows]
    extra: list[str] = []
    if n_eval is not None and not (np.isfinite(n_eval) & (n_eval >= 1)).all():
        n_eval = None
        extra.append("evaluation sizes are missing on some rows: not used")
    return Run(
        name=curve.name,
        compute=done.compute,
        score=score[done.rows],
        x_kind=curve.x_kind,
        x_name=curve.x_name,
        y_name=curve.y_name,
        n_eval=n_eval,
        group=curve.group,
        source=curve.source,
        notes=tuple(shorten(n, 300) for n in (*curve.notes, *notes, *done.notes, *extra)),
    )


def _matches(name: str, pattern: str | None) -> bool:
    return pattern is None or name == pattern or fnmatch.fnmatchcase(name, pattern)


def _matching(runs: Iterable[Run], pattern: str | None) -> list[Run]:
    return [run for run in runs if _matches(run.name, pattern)]


def _unique_names(runs: list[Run]) -> list[Run]:
    """Runs of one name get the part of their path that differs before it, or a number after it."""
    same: dict[str, list[tuple[str, ...]]] = {}
    for run in runs:
        same.setdefault(run.name, []).append(Path(run.source).parts[::-1])
    differs = {
        name: next(
            (i for i, parts in enumerate(zip(*paths, strict=False)) if len(set(parts)) > 1), 0
        )
        for name, paths in same.items()
    }
    taken: set[str] = set()
    result = []
    for run in runs:
        at = differs[run.name]
        name = plain = f"{Path(run.source).parts[::-1][at]}/{run.name}" if at else run.name
        count = 2
        while name in taken:
            name = f"{plain} #{count}"
            count += 1
        taken.add(name)
        result.append(run if name == run.name else run.replace(name=name))
    return result
