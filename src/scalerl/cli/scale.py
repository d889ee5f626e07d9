"""scalerl scale: more generators, or fewer, for a run that goes on."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from scalerl.errors import InputError


def add(commands: Any) -> None:
    command = commands.add_parser(
        "scale",
        help="more generators, or fewer, while a run goes on",
        description="Ask a run that goes on for so many generators. Those that join pull the "
        "newest weights by themselves; what those that leave had not finished is written by "
        "others. The run takes it up within about a second and notes it in its record.",
        epilog="Example: scalerl scale runs/first --generators 3",
    )
    command.add_argument("run", metavar="RUN", help="directory of a run that goes on")
    command.add_argument("--generators", type=int, required=True, metavar="N", help="how many")
    command.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    from scalerl.pipeline import branches
    from scalerl.runs import commands
    from scalerl.runs.lock import is_locked
    from scalerl.runs.store import RunStore

    path, key = Path(args.run), f"placement.generators={args.generators}"
    store = RunStore(path, resume=True)
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
    return 0
