"""scalerl scale: more generators, or fewer, for a run that goes on."""

from __future__ import annotations

import argparse
from pathlib import Path

from scalerl.errors import InputError


def add(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Change the number of generators of a running run. New generators pull the newest weights "
        "by themselves; unfinished work of removed ones is given to the others. The run follows "
        "within about a second and notes it in its record."
    )
    command.epilog = "Example: scalerl scale runs/first --generators 3"
    command.add_argument("run", metavar="RUN", help="directory of a running run")
    command.add_argument("--generators", type=int, required=True, metavar="N", help="new number")


def run(args: argparse.Namespace) -> None:
    from scalerl.pipeline import branches
    from scalerl.runs import commands
    from scalerl.runs.lock import is_locked
    from scalerl.runs.store import RunStore

    path, key = Path(args.run), f"placement.generators={args.generators}"
    store = RunStore(path, resume=True)
    # Refuses a number that no recipe allows, before the run is asked.
    recipe = branches.recipe_of(path).replace({"placement.generators": args.generators})
    if recipe.placement.deterministic:
        raise InputError(f"{path} is a deterministic run: it keeps its generators")
    if not is_locked(path):
        raise InputError(
            f"{path} is not running: go on with it and {args.generators} generators: "
            f"{commands.resume(path, key)}"
        )
    store.ask_for(args.generators)
    print(f"asked {path} for {args.generators} generators; its events.jsonl says when it has them")
