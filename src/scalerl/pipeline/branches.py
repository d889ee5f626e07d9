"""Resuming a run from an earlier checkpoint, or with a changed recipe, without losing its record.

    before                            after `--resume RUN --from 20 optimiser.lr=1e-6`
    RUN/steps.jsonl      1 … 30       1 … 20, 21 …
    RUN/checkpoints      20  25  30   20
    RUN/branches/1/      -            the record as it was, 1 … 30, and checkpoints 20 25 30

The old record is kept complete under `branches/N`: a run like any other, that can be fitted,
reported and resumed. Checkpoints beyond the step are moved there; the one of the step itself is in
both (as hard links, where the file system has them).

All changes are written down first, in `recipe.json`, with the new recipe. Each of them can be made
twice, so that after a kill the next process that opens the run makes the rest: before that file is
on the disk nothing has changed, after it only `complete_pending` is left to do.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from scalerl.files import flush_to_disk
from scalerl.pipeline import checkpoints
from scalerl.recipe import Recipe
from scalerl.recipe.diff import allowed_changes, shown, with_date_of
from scalerl.runs.lines import (
    EpisodeLine,
    EvalAnswers,
    EvalLine,
    EventLine,
    KnobChange,
    StepLine,
    ValidationEpisodeLine,
)
from scalerl.runs.store import RunStore

FOLDER = "branches"
#: Files and folders of a record that a branch keeps, beside the recipe.
RECORD = (
    *(EvalLine.FILE, StepLine.FILE, EventLine.FILE),
    *(EvalAnswers.FOLDER, Path(EpisodeLine.FILE).parent.name),
)


def recipe_of(path: Path) -> Recipe:
    """The recipe that a run is resumed with: `recipe.toml`, hand-edited or not; or, after a kill in
    the middle of a change, the one that was about to be written there."""
    used, pending = RunStore(path, resume=True).read_used_recipe()
    if used is not None and pending is not None:
        return Recipe.from_dict(used)
    if not (path / "recipe.toml").exists():
        raise InputError(f"{path} holds no run: give the directory that --out named")
    return Recipe.load(path / "recipe.toml")


def write_recipe(store: RunStore, recipe: Recipe) -> None:
    """Write the recipe of a run into its directory."""
    store.write_recipe(recipe.to_toml())
    store.write_used_recipe(recipe.to_dict())


def with_saved_date(store: RunStore, recipe: Recipe) -> Recipe:
    """The recipe with the date that the prompts of the run have had so far."""
    return with_date_of(_recipe_used(store) or recipe, recipe)


def prepare_resume(
    store: RunStore, recipe: Recipe, since: int | str | None = None
) -> EventLine | None:
    """Prepare a run to be resumed with this recipe, from the checkpoint `since` (a step, or
    `healthy`; None: the last one). Returns the recorded event, or None where nothing changed."""
    complete_pending(store)
    old = _recipe_used(store) or recipe
    changed = _changes(store, old, recipe)
    path = store.path
    chosen = None if since is None else checkpoints.resolve(path, since)
    step = _last_step(store) if chosen is None else checkpoints.step_of(chosen)
    branch = None
    if chosen is not None and _beyond(store, step):
        branch = f"{FOLDER}/{_next(path)}"
    if not changed and branch is None:
        write_recipe(store, recipe)
        return None
    event = EventLine(
        step=step,
        event="branch",
        why=_describe(changed, branch, step),
        branch=branch,
        changes=tuple(changed),
    )
    pending = {"step": step, "old": old.to_dict(), "event": event.to_dict()}
    store.write_used_recipe(recipe.to_dict(), pending)
    try:
        complete_pending(store)
    except OSError as error:
        if branch is not None and not (path / branch).exists():  # nothing has been changed yet
            shutil.rmtree(path / f"{branch}.tmp", ignore_errors=True)
            store.write_used_recipe(old.to_dict())
        raise InputError(
            f"{path}: the old record cannot be kept: {error.strerror or error}; free disk space, "
            "then repeat the command"
        ) from None
    return event


def complete_pending(store: RunStore) -> None:
    """Make the changes that `recipe.json` says are still to be made, if any."""
    used, pending = store.read_used_recipe()
    if used is None or pending is None:
        return
    event = EventLine.from_dict(pending["event"])
    assert event is not None, "we wrote it"
    if event.branch is not None:
        _copy_to_branch(store.path, event.branch, pending)
        _truncate_record(store, int(pending["step"]))
    # Before a kill it may have been appended already.
    if store.last(EventLine) != event:
        store.append(event)
    write_recipe(store, Recipe.from_dict(used))


def _copy_to_branch(path: Path, branch: str, pending: dict[str, Any]) -> None:
    """Copy the record into the branch, and move the checkpoints beyond the step there."""
    folder, step = path / branch, int(pending["step"])
    if not folder.exists():
        half = path / f"{branch}.tmp"
        shutil.rmtree(half, ignore_errors=True)
        half.mkdir(parents=True)
        write_recipe(RunStore(half, resume=True), Recipe.from_dict(pending["old"]))
        for name in RECORD:
            if (path / name).is_dir():
                shutil.copytree(path / name, half / name)
            elif (path / name).exists():
                shutil.copy2(path / name, half / name)
        for file in [p for p in half.rglob("*") if p.is_file()]:
            flush_to_disk(file)
        # Last, so that a folder of this name is always a whole record.
        half.rename(folder)
        flush_to_disk(folder.parent)
    there = checkpoints.folder_of(folder)
    there.mkdir(exist_ok=True)
    for each in checkpoints.list_checkpoints(path):
        target = there / each.name
        if checkpoints.step_of(each) > step:
            each.rename(target)
        elif checkpoints.step_of(each) == step and not target.exists():
            half = there / f"{each.name}.tmp"
            shutil.rmtree(half, ignore_errors=True)
            shutil.copytree(each, half, copy_function=_link)
            half.rename(target)


def _link(source: str, target: str) -> None:
    """Make a hard link, or a copy where that is impossible. (Checkpoints are never modified, so the
    two names cannot diverge.)"""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _truncate_record(store: RunStore, step: int) -> None:
    """Remove the lines of the record after the checkpoint of this step."""
    saved = checkpoints.folder_of(store.path) / f"step_{step}" / checkpoints.STATE
    validated = json.loads(saved.read_text())["last_validation"]
    for kind in (StepLine, EpisodeLine):
        store.cut_after(kind, step)
    for answers in (EvalLine, ValidationEpisodeLine):
        store.cut_after(answers, -1 if validated is None else validated)


def _recipe_used(store: RunStore) -> Recipe | None:
    """The recipe that the run was last run with; None where it is missing or cannot be read."""
    used, _ = store.read_used_recipe()
    try:
        return None if used is None else Recipe.from_dict(used)
    except InputError:
        return None


def _changes(store: RunStore, old: Recipe, new: Recipe) -> list[KnobChange]:
    """The fields that differ, and for each whether it was edited in `recipe.toml`, rather than set
    by a command."""
    found = allowed_changes(old, new)
    try:
        by_hand = allowed_changes(old, Recipe.load(store.path / "recipe.toml"))
    except InputError:  # unreadable or refused: then none of its values is in the new recipe
        by_hand = []
    edited = {d.path: d.b for d in by_hand}
    return [
        KnobChange(d.path, shown(d.a), shown(d.b), d.path in edited and edited[d.path] == d.b)
        for d in found
    ]


def _describe(changed: Sequence[KnobChange], branch: str | None, step: int) -> str:
    parts = [
        f"{c.key} {c.old} → {c.new}" + (" (recipe.toml was edited)" if c.by_hand else "")
        for c in changed
    ]
    where = [] if branch is None else [f"from step {step}", f"the record as it was is in {branch}"]
    return "; ".join([*where, *parts])


def _last_step(store: RunStore) -> int:
    """The step of the newest checkpoint; 0 if there is none."""
    return max(
        (checkpoints.step_of(p) for p in checkpoints.list_checkpoints(store.path)), default=0
    )


def _beyond(store: RunStore, step: int) -> bool:
    """Whether the record continues after this step."""
    last = [line.step for kind in (StepLine, EvalLine) if (line := store.last(kind)) is not None]
    return max([*last, _last_step(store)]) > step


def _next(path: Path) -> int:
    taken = [int(p.name) for p in (path / FOLDER).glob("*") if p.name.isdecimal()]
    return max(taken, default=0) + 1
