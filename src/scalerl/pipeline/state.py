"""The state of the loop in a checkpoint, beside the trainer's own files."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalerl.pipeline import groups

if TYPE_CHECKING:
    from scalerl.pipeline.loop import Loop

#: Sections of a recipe that decide how rollouts are written: where one of them has changed, the
#: rollouts of a checkpoint that are not trained on yet are of no use.
ROLLOUT_SECTIONS = ("batch", "sampling", "length", "schedule")


def save(loop: Loop, folder: Path) -> None:
    """Write groups under way, curriculum, ledger and counters; and the tokenizer, so that the
    folder is a model that other programs can load."""
    groups.save(folder, [*loop.pending.values(), *loop.requeued])
    state = {
        "begun_by": _begun_by(loop),
        "version": loop.version,
        "serial": loop.serial,
        "last_validation": loop.last_validation,
        "curriculum": loop.setup.curriculum.state_dict(),
        "ledger": loop.ledger.state(),
    }
    (folder / "run.json").write_text(json.dumps(state))
    loop.setup.tokenizer.save_pretrained(folder)


def restore(loop: Loop, path: Path) -> None:
    """Set the loop to the state that `save` wrote."""
    state = json.loads((path / "run.json").read_text())
    loop.version = loop.last_checkpoint = int(state["version"])
    loop.serial = int(state["serial"])
    loop.last_validation = state["last_validation"]
    loop.setup.curriculum.load_state_dict(state["curriculum"])
    loop.ledger.restore(state["ledger"])
    loop.pending = groups.load(path, loop.setup.prompts, loop.setup)
    if loop.setup.dated and groups.lacks_prompts(path):
        loop.restored.append(
            f"checkpoint {path.name} was written by an earlier version and does not hold the "
            "tokens of its prompts; the chat template writes a date into them: rollouts under way "
            f"are trained under {loop.setup.recipe.model.chat_date}, whichever day they were "
            "written on"
        )
    if state.get("begun_by", _begun_by(loop)) != _begun_by(loop):
        _discard_rollouts(loop)
    for p in loop.pending.values():
        if p.stage == "writing":  # written from their beginning, with the checkpoint's weights
            p.started = loop.version


def _begun_by(loop: Loop) -> dict[str, Any]:
    recipe = loop.setup.recipe.to_dict()
    return {section: recipe[section] for section in ROLLOUT_SECTIONS}


def _discard_rollouts(loop: Loop) -> None:
    """Drop the rollouts of a checkpoint and submit their prompts again: written under another
    recipe, they may be too old, too long or too few."""
    for p in loop.pending.values():
        tokens = sum(len(r) for r in p.rollouts.values())
        loop.ledger.waste("stale", len(p.rollouts), tokens)
        p.rollouts, p.group = {}, None
        p.token_ids = loop.setup.tokens_of(p.prompt)
    # Pipeline: as the new schedule has room for them. Off-policy: all at once, since a phase cannot
    # change its size.
    if loop.setup.schedule.name == "pipeline":
        loop.requeued, loop.pending = deque(loop.pending.values()), {}
