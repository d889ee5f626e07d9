"""What a checkpoint holds beside the trainer's own files: where the loop stood."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from scalerl.pipeline import groups

if TYPE_CHECKING:
    from scalerl.pipeline.loop import Loop


def save(loop: Loop, folder: Path) -> None:
    """Groups under way, curriculum, ledger, counters, and the tokenizer, so that the folder is a
    model that others can load."""
    groups.save(folder, loop.pending.values())
    state = {
        "version": loop.version,
        "serial": loop.serial,
        "last_validation": loop.last_validation,
        "curriculum": loop.plan.curriculum.state_dict(),
        "ledger": loop.ledger.state(),
    }
    (folder / "run.json").write_text(json.dumps(state))
    loop.plan.tokenizer.save_pretrained(folder)


def restore(loop: Loop, path: Path) -> None:
    """Go on from what `save` wrote."""
    state = json.loads((path / "run.json").read_text())
    loop.version = loop.last_checkpoint = int(state["version"])
    loop.serial = int(state["serial"])
    loop.last_validation = state["last_validation"]
    loop.plan.curriculum.load_state_dict(state["curriculum"])
    loop.ledger.restore(state["ledger"])
    loop.pending = groups.load(path, loop.plan.prompts, loop.plan)
    for p in loop.pending.values():
        if p.stage == "writing":  # begun anew, with the weights of the checkpoint
            p.started = loop.version
