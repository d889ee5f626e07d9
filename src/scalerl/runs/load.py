"""`load_runs`: from any source to cleaned runs."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.errors import InputError
from scalerl.runs import metrics
from scalerl.runs.amounts import Amount
from scalerl.runs.cells import read_named_numbers
from scalerl.runs.clean import clean
from scalerl.runs.examples import load_example
from scalerl.runs.expressions import quoted
from scalerl.runs.importers import apply_to_each
from scalerl.runs.importers.wandb_runs import read_wandb_online
from scalerl.runs.names import LoadedRun, LoadOptions, unique_names
from scalerl.runs.number_formats import normalise_numbers
from scalerl.runs.record import Array, Run
from scalerl.runs.score import guess_scale, rescale
from scalerl.runs.select import FEW, Curve, to_curve
from scalerl.runs.sources import open_path
from scalerl.runs.split import names_runs, split_runs, split_scores
from scalerl.runs.step_costs import StepCost
from scalerl.runs.table import Table, is_frame, read_frame
from scalerl.text import listed, shorten

#: Sources that could not be read are named up to this number; the others are only counted.
MAX_NAMED = 3


def load_runs(
    *sources: Any,
    x: str | None = None,
    y: str | None = None,
    run: str | None = None,
    group_by: str | None = None,
    n_eval: str | float | None = None,
    scale: str | float | None = None,
    gpus: float | None = None,
    seconds_per_step: float | None = None,
    events: Sequence[float | str | Amount] = (),
) -> list[Run]:
    """Every run in the sources.

    A source is a path to a file, a directory or a pattern, `example:NAME`,
    `wandb:ENTITY/PROJECT[/RUN]`, a data frame, a list of tables, or a Run.

    x: the compute column, `column*factor` (`hours*8` for 8 devices), or an expression and its unit:
        `step*8*31.2/3600 as gpu_hours`
    y: the score column, or an expression; found by name where the framework is known. A pattern
        such as `val-core/*/mean@16` makes one run of each column it matches
    run: a pattern of the runs' names; or the column that names the runs, as `column=pattern` for
        some of them
    group_by: the column or configuration key that replicates share
    n_eval: samples behind each score: a column or a number
    scale: "percent", "pm1", "fraction", or what to divide the score by
    gpus: number of GPUs: compute is GPU-hours, from the column of a clock
    seconds_per_step: with `gpus`: compute is GPU-hours, from the column of steps
    events: amounts of compute at which the runs were changed under way (data, learning rate, a
        restart from an earlier step): 300, "300steps"; they become `Run.breaks`

    >>> load_runs("example:paper-8b", "example:paper-moe", run="*moe")
    [Run('paper-moe', 32 points, gpu_hours 1241..44162, score 0.5177..0.7115)]
    >>> load_runs({"hours": [1, 2], "val_acc": [30.0, 40.0]}, x="hours*8")
    [Run('table', 2 points, gpu_hours 8..16, score 0.3..0.4)]
    """
    if not sources:
        raise InputError("no source given: name a log file, a directory or example:paper-8b")
    choice = LoadOptions(x, y, run, group_by, n_eval, scale, gpus, seconds_per_step)
    found: list[LoadedRun] = []
    names: list[str] = []
    problems: list[InputError] = []
    for source in sources:
        try:
            more, seen, bad = _load(source, choice)
        except InputError as error:
            # Names come from files: they may hold line ends.
            raise InputError(shorten(str(error), 600)) from None
        found += more
        names += seen
        problems += bad
    if not found and problems:
        raise InputError(shorten(str(problems[0]), 600))
    if not found:
        raise InputError(f"no run matches {run!r}: there is {listed(names)}")
    left_out = tuple(f"left out: {shorten(str(p), 240)}" for p in problems[:MAX_NAMED])
    if len(problems) > MAX_NAMED:
        left_out += (f"left out: {len(problems) - MAX_NAMED} more that could not be read",)
    if x is None and gpus is None and (cost := _hidden_cost(found)) is not None:
        options = {"y": y, "run": run, "group_by": group_by, "n_eval": n_eval, "scale": scale}
        if runs := _against(cost, found, sources, options | {"events": events}):
            return runs
    asked = [each if isinstance(each, Amount) else Amount.parse(str(each)) for each in events]
    runs = [_with_events(run, asked) for run in unique_names(found)]
    return [r.replace(notes=(*r.notes, *left_out)) if left_out else r for r in runs]


def _hidden_cost(found: list[LoadedRun]) -> StepCost | None:
    """The change of a step's cost for which runs are better plotted against that cost: one of them
    has it, all are on steps by default, and it is a count of work, which no pause changes."""
    costs = [each.cost for each in found]
    changing = [cost for cost in costs if cost is not None and cost.changes and cost.counts_work]
    return changing[0] if changing and None not in costs else None


def _against(
    cost: StepCost, found: list[LoadedRun], sources: tuple[Any, ...], options: dict[str, Any]
) -> list[Run]:
    """The runs against what their steps cost; none where that is not known at every point of every
    run: runs on different axes cannot be compared."""
    try:
        runs = load_runs(*sources, x=cost.name, **options)
    except InputError:
        return []
    if [len(run) for run in runs] != [len(each.run) for each in found]:
        return []
    steps = found[0].run.x_name
    why = f"compute is {cost.kind}, not steps, because {cost}; --x {steps} fits on steps"
    return [run.replace(notes=(*run.notes, why)) for run in runs]


def _with_events(run: Run, events: Sequence[Amount]) -> Run:
    """The run with breaks at these amounts, and a note of each that has no points on one side."""
    if not events:
        return run
    end = float(run.compute[-1])
    places = [each.checked_on(run, end, "--event") for each in events]
    broken = run.with_breaks([*run.breaks, *(value for value, _ in places)])
    notes = [how for _, how in places if how]
    notes += [
        f"no evaluation on one side of {value:g}: the event there changes nothing"
        for value, _ in places
        if value not in broken.breaks
    ]
    return broken.replace(notes=(*run.notes, *notes))


def load_run(*sources: Any, **options: Any) -> Run:
    """The one run in the sources; an InputError if there are none or several.

    >>> load_run("example:paper-8b").r0
    0.4017
    """
    runs = load_runs(*sources, **options)
    if len(runs) != 1:
        names = listed(run.name for run in runs)
        raise InputError(f"{len(runs)} runs, choose one with --run: {names}")
    return runs[0]


def _load(source: Any, choice: LoadOptions) -> tuple[list[LoadedRun], list[str], list[InputError]]:
    """The runs of one source that match, the names of all, and what could not be read."""
    if isinstance(source, str) and source.startswith("example:"):
        source = load_example(source.removeprefix("example:"))
    if isinstance(source, Run):
        found = [LoadedRun(source)] if _matches(source.name, choice.run) else []
        return found, [source.name], []
    tables, problems = _read(source, choice.run)
    wanted: list[Table] = []
    rest: list[Table] = []
    # Before runs are separated, because what a comma means is decided once for a table.
    for table in map(read_named_numbers, map(normalise_numbers, tables)):
        column, names = _run_column(table, choice.run)
        for run in split_runs(table, choice, column):
            for part in split_scores(run, choice):
                part.name = shorten(part.name, 200) or "run"
                (wanted if _matches(part.name, names) else rest).append(part)
    to_chosen = partial(to_curve, choice=choice)
    curves, more_problems = apply_to_each(to_chosen, wanted)
    problems += more_problems
    if choice.y is None:
        curves = _prefer_evaluations(curves)
    # The other runs of a file help to tell percent from fractions.
    others, _ = apply_to_each(to_chosen, rest)
    seen = [part.name for part in (*wanted, *rest)]
    return _finish(curves, others, choice.scale, problems), seen, problems


def _run_column(table: Table, asked: str | None) -> tuple[str | None, str | None]:
    """The column that `--run` names, if its values can separate runs, and the pattern for the
    names of runs: `--run recipe`, `--run 'recipe=grpo*'`, `--run 'grpo*'`."""
    if asked is None:
        return None, None
    column = names_runs(table, asked)
    if column is not None:
        return column, None
    name, equals, pattern = asked.partition("=")
    column = names_runs(table, name) if equals else None
    return (column, pattern) if column is not None else (None, asked)


def _prefer_evaluations(curves: list[Curve]) -> list[Curve]:
    """Of the files of one run's folder, those with evaluations, where there are any."""
    homes = {c.table.home: c for c in curves if c.table.home and c.stage == "validation"}
    kept = []
    for curve in curves:
        better = homes.get(curve.table.home)
        if better is None or curve.stage == "validation":
            kept.append(curve)
        else:
            better.training |= {curve.y_name: len(curve.y)} if len(better.y) < FEW else {}
            where = "/".join(Path(curve.table.source).parts[-2:])
            better.notes.append(
                f"{where} holds training scores: left out; --y {curve.y_name} reads them"
            )
    return kept


def _read(source: Any, pattern: str | None) -> tuple[list[Table], list[InputError]]:
    if isinstance(source, str) and source.startswith("wandb:"):
        address = source.removeprefix("wandb:")
        return read_wandb_online(address, lambda name: _matches(name, pattern)), []
    if isinstance(source, str | os.PathLike):
        found, problems = apply_to_each(lambda each: each[1](), open_path(source))
        return list(chain.from_iterable(found)), problems
    if isinstance(source, list) and all(isinstance(each, Table) for each in source):
        return list(source), []
    if is_frame(source):
        return [read_frame(source, "table")], []
    raise InputError(f"a {type(source).__name__} is no source: give a path, a data frame or a Run")


def _finish(
    curves: list[Curve],
    others: list[Curve],
    scale: str | float | None,
    problems: list[InputError],
) -> list[LoadedRun]:
    """Bring scores to [0, 1], deciding once for each name in a file, and clean every curve. A curve
    where that fails is added to `problems` and does not keep the others from being loaded."""
    same_score = _by_score(others)
    scales: dict[tuple[str, str], str | float] = {}
    for key, group in _by_score(curves).items():
        try:
            scales[key] = scale or _decide(group, same_score.get(key, []))
        except InputError as error:
            problems.append(error)
    found: list[LoadedRun] = []
    for curve in curves:
        if (how := scales.get((curve.table.source, curve.y_name))) is None:
            continue
        try:
            score, notes = rescale(curve.y, curve.y_name, how)
            if curve.is_error:
                score = 1.0 - score
                notes.append(f"{curve.y_name} is an error rate: read as 1 - {curve.y_name}")
            # A format that names its own axis is not overruled.
            cost = curve.cost if curve.table.x is None else None
            run = _to_run(curve, score, notes)
            found.append(LoadedRun(run, curve.table.id, curve.table.facts, cost))
        except InputError as error:
            problems.append(InputError(f"{curve.table.name}: {error}{_instead(curve)}"))
    return found


def _by_score(curves: list[Curve]) -> dict[tuple[str, str], list[Curve]]:
    """The curves by file and name of the score: a file has one scale for all scores of a name."""
    found: dict[tuple[str, str], list[Curve]] = {}
    for curve in curves:
        found.setdefault((curve.table.source, curve.y_name), []).append(curve)
    return found


def _instead(curve: Curve) -> str:
    """The columns that could serve in place of a score that is refused."""
    return f"; or choose --y {listed(curve.alternatives, 4)}" if curve.alternatives else ""


def _decide(curves: list[Curve], others: list[Curve]) -> str:
    scores = np.concatenate([curve.y for curve in (*curves, *others)])
    try:
        return guess_scale(scores[np.isfinite(scores)], curves[0].y_name)
    except InputError as error:
        # Runs that were not asked for must not make the asked ones unreadable.
        if others:
            return _decide(curves, [])
        inside = [np.nanmin(curve.y) >= 0 and np.nanmax(curve.y) <= 1 for curve in curves]
        if sum(inside) * 2 > len(curves):
            # Most are fractions: the others are refused one by one.
            return "fraction"
        widest = max(curves, key=lambda curve: np.nanmax(np.abs(curve.y), initial=0.0))
        if _falls(widest):
            low, high = np.nanmin(widest.y), np.nanmax(widest.y)
            raise InputError(
                f"{widest.table.name}: {widest.y_name} falls from {high:g} to {low:g}, as a loss "
                f"does, which is no score: choose another --y{_instead(widest)}"
            ) from None
        raise InputError(f"{widest.table.name}: {error}{_instead(widest)}") from None


def _falls(curve: Curve) -> bool:
    """Whether values above 1 under no known name go down over the run, by the means of its first
    and last third."""
    if metrics.score_columns([curve.y_name])[0]:
        return False
    y = curve.y[np.isfinite(curve.y)]
    third = len(y) // 3
    return bool(third and y.min() >= 0 and y[-third:].mean() < y[:third].mean())


def _to_run(curve: Curve, score: Array, notes: list[str]) -> Run:
    done = clean(curve.x, score, curve.x_kind, curve.n_eval)
    # What is counted beside a training score is the batch, which is not an evaluation.
    n_eval = done.n_eval if curve.n_eval is not None or curve.stage != "training" else None
    extra: list[str] = []
    if n_eval is not None and not (np.isfinite(n_eval) & (n_eval >= 1)).all():
        n_eval = None
        extra.append("evaluation sizes are missing on some rows: not used")
    y_name = curve.table.y_title or curve.y_name
    conversions = {
        kind: (done.compute[known], there[known])
        for kind, values in curve.axes.items()
        if (known := np.isfinite(there := values[done.rows])).any()
    }
    for name, count in list(curve.training.items())[:1]:
        if count > len(done.rows):
            extra.append(f"{name} has {count} training scores: --y {name} reads them")
    run = Run(
        name=curve.table.name,
        compute=done.compute,
        score=done.score,
        x_kind=curve.x_kind,
        x_name=curve.x_name,
        y_name=f"1 - {quoted(y_name)}" if curve.is_error else y_name,
        score_kind=curve.stage,
        n_eval=n_eval,
        group=curve.group,
        source=curve.table.source,
        notes=tuple(shorten(n, 300) for n in (*curve.notes, *notes, *done.notes, *extra)),
        signs={name: values[done.rows] for name, values in curve.signs.items()},
        conversions=conversions,
        training_scores={name: n for name, n in curve.training.items() if n > len(done.rows)},
    )
    return _with_changes(run, curve.table.changes)


def _with_changes(run: Run, changes: list[tuple[int, str]]) -> Run:
    """The run with breaks at the steps at which its record says that it was changed."""
    known = run.x_kind == "steps" or "steps" in run.conversions
    if not changes or not known:
        return run
    end = float(run.compute[-1])
    places = [Amount(step, "steps", f"step {step}").on(run, end)[0] for step, _ in changes]
    notes = [f"changed at step {step}: {what}" for step, what in changes]
    return run.with_breaks(places).replace(notes=(*run.notes, *(shorten(n, 300) for n in notes)))


def _matches(name: str, pattern: str | None) -> bool:
    return pattern is None or name == pattern or fnmatch.fnmatchcase(name, pattern)
