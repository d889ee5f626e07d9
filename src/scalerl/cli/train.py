"""scalerl train: run a recipe, with a live forecast."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalerl.cli import options

if TYPE_CHECKING:
    from scalerl.recipe.schema import Recipe


def add(commands: Any) -> None:
    command = commands.add_parser(
        "train",
        help="run a recipe, with a live forecast",
        description="Train by one or more recipes, each laid over the one before.",
        epilog="Example: scalerl train scalerl tiny --out runs/first",
    )
    command.add_argument("recipe", nargs="*", metavar="PRESET|FILE|KEY=VALUE")
    command.add_argument("--out", metavar="RUN", help="directory of the run")
    command.add_argument(
        "--resume",
        metavar="RUN",
        help="go on from a run's last checkpoint; --steps and --minutes may raise its budget",
    )
    command.add_argument("--steps", type=int, help="budget in optimiser steps")
    command.add_argument("--minutes", type=options.number, help="budget in minutes")
    command.add_argument("--seed", type=int)
    command.add_argument("--stop-when", metavar="RULE", help='as in "gain < 0.01 per doubling"')
    command.add_argument(
        "--track",
        action="append",
        default=[],
        metavar="NAME",
        help="also write to tensorboard, wandb, trackio, or your own as package.module:Class; "
        "may be repeated",
    )
    command.add_argument(
        "--dry-run", action="store_true", help="check and print the resolved recipe only"
    )
    command.add_argument("--plain", action="store_true", help="one line per event, for logs")
    command.add_argument("--json", action="store_true", help="print how it ended as JSON")
    command.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    from scalerl.errors import InputError

    if args.resume and (args.recipe or args.out):
        raise InputError("--resume takes its recipe and directory from the run: name nothing else")
    recipe = _recipe(args)
    if args.dry_run:
        _check_own_loss(recipe)
        print(recipe.to_toml(), end="")
        return 0
    if not args.resume and not args.out:
        raise InputError("where to? give --out RUN")
    return _train(args, recipe)


def _recipe(args: argparse.Namespace) -> Recipe:
    from scalerl.errors import InputError
    from scalerl.recipe import Recipe

    layers = [item for item in args.recipe if "=" not in item]
    changes = [item for item in args.recipe if "=" in item]
    if args.resume:
        layers = [str(Path(args.resume) / "recipe.toml")]
        if not Path(layers[0]).exists():
            raise InputError(f"{args.resume} holds no run: start one with --out {args.resume}")
    if not layers:
        raise InputError("which recipe? for example: scalerl train scalerl tiny --out runs/first")
    if args.steps is not None:
        changes.append(f"budget.steps={args.steps}")
    if args.minutes is not None:
        changes.append(f"budget.minutes={args.minutes}")
    if args.seed is not None:
        if args.resume:
            raise InputError("a run keeps its seed: --resume takes none")
        changes.append(f"seed={args.seed}")
    return Recipe.load(*layers, overrides=changes)


def _check_own_loss(recipe: Recipe) -> None:
    """Constants of a loss or aggregation given by import path are compared with its signature.
    (Built-in ones were checked when the recipe was read, without torch.)"""
    from scalerl.errors import InputError

    if ":" not in recipe.loss.name + recipe.loss.aggregation:
        return
    try:
        from scalerl.algorithm.options import options_of
    except ModuleNotFoundError as error:
        raise InputError(
            f"your own loss needs {error.name}: pip install 'scalerl[train]'"
        ) from None
    options_of(recipe)


def _train(args: argparse.Namespace, recipe: Recipe) -> int:
    from scalerl.cli.view import PlainView, make_view
    from scalerl.errors import InputError, PipelineError
    from scalerl.streams import let_go

    try:
        from scalerl.training import train
    except ModuleNotFoundError as error:
        raise InputError(f"training needs {error.name}: pip install 'scalerl[train]'") from None

    out = args.resume or args.out
    with PlainView(sys.stderr) if args.json else make_view(plain=args.plain) as view:
        try:
            ended = train(
                recipe,
                out,
                resume=bool(args.resume),
                stop_when=args.stop_when,
                track=args.track,
                listener=view,
            )
        except PipelineError as error:
            let_go()
            view.say(f"scalerl: {error}")
            return 1
        let_go()  # who closes the view needs no terminal for it
    if args.json:
        print(json.dumps(ended.to_dict()))
    return 0 if ended.signal is None else 128 + ended.signal
