"""scalerl train: run a recipe, with a live forecast."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from scalerl.cli import options
from scalerl.errors import InputError, PipelineError

if TYPE_CHECKING:
    from scalerl.recipe.schema import Recipe


def add(command: argparse.ArgumentParser) -> None:
    command.description = "Train a model by one or more recipes, each laid over the one before."
    command.epilog = "Example: scalerl train scalerl tiny --out runs/first"
    command.add_argument(
        "recipe",
        nargs="*",
        metavar="PRESET|FILE|KEY=VALUE",
        help="a preset (scalerl recipe list), a TOML file, or a key to change",
    )
    command.add_argument("--out", metavar="RUN", help="directory of the run")
    command.add_argument(
        "--resume",
        metavar="RUN",
        help="continue from a run's last checkpoint; KEY=VALUE, --steps and --minutes change its "
        "recipe from there on",
    )
    command.add_argument(
        "--from",
        dest="from_step",
        type=options.step,
        metavar="STEP|healthy",
        help="with --resume: continue from the checkpoint of this step, or from the last one "
        "written without an alarm; the record as it was is kept in RUN/branches",
    )
    command.add_argument("--steps", type=int, help="budget in optimiser steps")
    command.add_argument("--minutes", type=options.number, help="budget in minutes")
    command.add_argument("--seed", type=int, help="random seed of the run")
    command.add_argument(
        "--stop-when", metavar="RULE", help='stop early, as in "gain < 0.01 per doubling"'
    )
    command.add_argument(
        "--track",
        action="append",
        default=[],
        metavar="NAME",
        help="also write to tensorboard, wandb, trackio, or your own as package.module:Class; "
        "may be repeated",
    )
    command.add_argument(
        "--dry-run",
        action="store_true",
        help="check and print the resolved recipe, the placement, and what is missing for it",
    )
    options.add_measure(command)
    command.add_argument("--plain", action="store_true", help="one line per event, for logs")
    command.add_argument(
        "--json",
        action="store_true",
        help="a line of JSON per step, validation and event as they come; the last says how it "
        "ended; words go to stderr",
    )


def run(args: argparse.Namespace) -> int:
    if args.resume and (args.out or any("=" not in item for item in args.recipe)):
        raise InputError(
            "--resume takes its recipe and directory from the run: name nothing else but KEY=VALUE"
        )
    if args.from_step is not None and not args.resume:
        raise InputError("--from says where a run continues: name the run with --resume RUN")
    recipe = _recipe(args)
    if args.dry_run:
        _check_own_loss(recipe)
        print(recipe.to_toml(), end="")
        _print_dry_run(args, recipe)
        return 0
    options.refuse_measure(args)
    if not args.resume and not args.out:
        raise InputError("no directory for the run: give --out RUN")
    return _train(args, recipe)


def _print_dry_run(args: argparse.Namespace, recipe: Recipe) -> None:
    """After the recipe, as comments of it: time, memory and disk; the machine of each worker, and
    what is missing there."""
    from scalerl.cli.estimate import estimate_lines, measure
    from scalerl.placement.preflight import describe_placement

    sys.stdout.flush()  # a measurement takes a while, and the recipe is known already
    measured = None if args.measure_steps is None else measure(recipe, args.measure_steps)
    print()
    for line in estimate_lines(recipe, measured, args.price):
        print(f"# {line}")
    for line in describe_placement(recipe):
        print(f"# {line}")


def _recipe(args: argparse.Namespace) -> Recipe:
    from scalerl.recipe.load import recipe_from

    changes = list(args.recipe)
    if not args.resume and all("=" in item for item in changes):
        raise InputError("which recipe? for example: scalerl train scalerl tiny --out runs/first")
    # Last of all, so that an option wins over files and KEY=VALUE.
    if args.steps is not None:
        changes.append(f"budget.steps={args.steps}")
    if args.minutes is not None:
        changes.append(f"budget.minutes={args.minutes}")
    if args.seed is not None:
        if args.resume:
            raise InputError("a run keeps its seed: --resume takes none")
        changes.append(f"seed={args.seed}")
    if args.resume:
        from scalerl.pipeline.branches import recipe_of

        return recipe_from([recipe_of(Path(args.resume)).to_dict(), *changes])
    return recipe_from(changes)


def _check_own_loss(recipe: Recipe) -> None:
    """Constants of a loss or aggregation given by import path are compared with its signature.
    (Built-in ones were checked when the recipe was read, without torch.)"""
    if ":" not in recipe.loss.name + recipe.loss.aggregation:
        return
    with options.required_for("your own loss"):
        from scalerl.algorithm.options import options_from_recipe
    options_from_recipe(recipe)


def _train(args: argparse.Namespace, recipe: Recipe) -> int:
    from scalerl.cli.view import JsonView, make_view
    from scalerl.streams import redirect_unread_streams

    with options.required_for("training"):
        from scalerl.training import train
    with JsonView() if args.json else make_view(plain=args.plain) as view:
        try:
            ended = train(
                recipe,
                args.resume or args.out,
                resume=bool(args.resume),
                from_step=args.from_step,
                stop_when=args.stop_when,
                track=args.track,
                listener=view,
            )
        except (PipelineError, InputError) as error:
            redirect_unread_streams()
            # `--json` promises a last line that says how the run ended.
            if isinstance(view, JsonView):
                view.failed(error)
            if isinstance(error, InputError):
                raise
            view.say(f"scalerl: {error}")
            return 1
        redirect_unread_streams()  # closing the view needs no terminal
        if isinstance(view, JsonView):
            view.ended(ended)
    # As shells report a process that was ended by a signal.
    return 0 if ended.signal is None else 128 + ended.signal
