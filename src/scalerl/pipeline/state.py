"""The state of a run: what its parts share, and what a checkpoint holds of it."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalerl.pipeline import groups

if TYPE_CHECKING:
    from scalerl.pipeline.loop import Loop

#: Sections of a recipe that decide how episodes are written: where one of them has changed, the
#: episodes of a checkpoint that are not trained on yet are of no use.
ROLLOUT_SECTIONS = ("batch", "sampling", "length", "schedule", "environment")


@dataclass(slots=True)
class RunState:
    """What the parts of the loop share."""

    #: Optimiser steps behind the trainer's weights.
    version: int = 0
    #: Version of the weights that were published last.
    published: int = 0
    #: Why the run was asked to stop; None if it was not.
    stop: str | None = None
    #: Whether groups may be started: from the first validation on ...
    started: bool = False
    #: ... until the run is over.
    over: bool = False


class Stopped(Exception):
    """The run was asked to end; its text is the reason."""


def save(loop: Loop, folder: Path) -> None:
    """Write groups under way, curriculum, ledger and counters; and the tokenizer, so that the
    folder is a model that other programs can load."""
    intake = loop.intake
    groups.save(folder, [*intake.pending.values(), *intake.requeued])
    state = {
        "begun_by": _begun_by(loop),
        "version": loop.state.version,
        "serial": intake.serial,
        "last_validation": loop.validator.last,
        "curriculum": loop.setup.curriculum.state_dict(),
        "ledger": loop.ledger.state(),
    }
    (folder / "run.json").write_text(json.dumps(state))
    loop.setup.tokenizer.save_pretrained(folder)


def restore(loop: Loop, path: Path) -> list[str]:
    """Set the loop to the state that `save` wrote; warnings for the user."""
    state = json.loads((path / "run.json").read_text())
    intake, setup = loop.intake, loop.setup
    loop.state.version = loop.learner.last_checkpoint = int(state["version"])
    intake.serial = int(state["serial"])
    loop.validator.last = state["last_validation"]
    setup.curriculum.load_state_dict(state["curriculum"])
    loop.ledger.restore(state["ledger"])
    intake.pending = {
        p.serial: p for p in groups.load(path, setup.prompts, setup, intake.writing).values()
    }
    warnings = []
    if setup.dated and groups.lacks_prompts(path):
        warnings.append(
            f"checkpoint {path.name} was written by an earlier version and does not hold the "
            "tokens of its prompts; the chat template writes a date into them: rollouts under way "
            f"are trained under {setup.recipe.model.chat_date}, whichever day they were written on"
        )
    if state.get("begun_by", _begun_by(loop)) != _begun_by(loop):
        _discard_episodes(loop)
    for p in intake.pending.values():
        if p.stage == "writing":  # written from their beginning, with the checkpoint's weights
            p.started = loop.state.version
    return warnings


def _begun_by(loop: Loop) -> dict[str, Any]:
    recipe = loop.setup.recipe.to_dict()
    return {section: recipe[section] for section in ROLLOUT_SECTIONS}


def _discard_episodes(loop: Loop) -> None:
    """Drop the episodes of a checkpoint and submit their prompts again: written under another
    recipe, they may be too old, too long or too few."""
    intake = loop.intake
    for p in intake.pending.values():
        loop.ledger.waste("stale", len(p.episodes), sum(map(len, p.episodes.values())))
        p.begin_again(loop.setup.first_tokens(p.prompt))
    # Pipeline: as the new schedule has room for them. Off-policy: all at once, since a phase cannot
    # change its size.
    if loop.setup.schedule.streams:
        intake.requeued, intake.pending = deque(intake.pending.values()), {}
