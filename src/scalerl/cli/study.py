"""scalerl study: many recipes × seeds, run to tell them apart."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalerl.cli import options
from scalerl.errors import InputError

if TYPE_CHECKING:
    from scalerl.study.study import Study

ABOUT = """\
Run a set of recipes × seeds and compare them. The first variant is the recipe
itself: the reference, with which all others are compared.

  scalerl study DIR RECIPE [OVERLAY…] [KEY=VALUE…] OPTIONS
                                 start a study, or extend one
  scalerl study DIR study.toml   the same from a study file
  scalerl study DIR --forces NAME
                                 how much of a force a recipe bears
  scalerl study DIR              continue the study in DIR
  scalerl study commands DIR     print a `scalerl train` command for each run
                                 that is not done, to run elsewhere; runs are
                                 read from DIR/runs

Each run is first screened with a share of its budget; those that are not
unstable get the rest. With --race, compute goes to the runs with open verdicts.
The runs are the only state: after a kill, the same command continues."""


def add(command: argparse.ArgumentParser) -> None:
    command.description = ABOUT
    command.epilog = "Example: scalerl study out/loo scalerl tiny --leave-one-out --seeds 3"
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    command.add_argument(
        "words",
        nargs="*",
        metavar="DIR [RECIPE|FILE|KEY=VALUE]",
        help="directory of the study, then what `scalerl train` takes, or a study file",
    )
    which = command.add_argument_group("variants")
    which.add_argument(
        "--leave-one-out", action="store_true", help="the eight variants of the paper's Fig. 15"
    )
    which.add_argument(
        "--forward", action="store_true", help="the paper's single-axis ablations of its baseline"
    )
    which.add_argument(
        "--recipes", metavar="A,B", help="other recipes, with the same overlays and changes"
    )
    which.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="KEY=V1,V2",
        help="a variant for each value; may be repeated, and keys are then varied one at a time, "
        "not crossed (values that hold commas: separate them by ;)",
    )
    which.add_argument(
        "--axis",
        action="append",
        default=[],
        metavar="NAME[=V1,V2]",
        help="a scaling axis of the paper: model (paths, or sizes of the tiny one, "
        "as in 2x128), length (thinking tokens), batch (completions a step), generations (per "
        "prompt, at the same batch), mixture (tasks, as in math+code@0.8/0.2); without values the "
        "paper's, or smaller ones for the tiny model",
    )
    which.add_argument(
        "--batch-lr",
        choices=("kept", "sqrt"),
        help="learning rate on the batch axis: kept (default), or scaled by the square root of the "
        "batch size",
    )
    which.add_argument(
        "--forces",
        nargs="?",
        const="",
        metavar="NAME|FILE",
        help="a force in growing doses: a variant for each of its lines at each dose, with "
        "verdicts on the dose (without a name: the list of forces)",
    )
    which.add_argument("--variants", metavar="A,B", help="only these variants")
    size = command.add_argument_group("how much")
    size.add_argument("--seeds", type=int, metavar="N", help="runs of each variant (default 1)")
    size.add_argument("--steps", type=int, metavar="N", help="optimiser steps of each run")
    size.add_argument(
        "--screen",
        type=options.number,
        metavar="SHARE",
        help="share of the budget that runs are screened with (default 0.25); 1: no screening",
    )
    size.add_argument(
        "--jobs",
        type=int,
        metavar="J",
        help="runs at the same time (default: as many as the cores allow)",
    )
    size.add_argument(
        "--race",
        action="store_true",
        help="give compute to the runs that decide most, a chunk at a time; stop when every "
        "verdict is decided, or the budgets are not expected to decide it",
    )
    command.add_argument(
        "--dry-run",
        action="store_true",
        help="print the runs, what differs between them, compute and hours; write nothing",
    )
    options.add_measure(command)
    command.add_argument(
        "--target",
        type=options.number,
        metavar="R",
        help="target score: the table has the compute to it (default: 0.9 of the reference's "
        "ceiling)",
    )
    command.add_argument("--plain", action="store_true", help="one line per event, for logs")
    options.add_json(command)
    options.add_explain(command)


def run(args: argparse.Namespace) -> int:
    options.refuse_explained_json(args)
    words = list(args.words)
    if args.forces is not None and (not words or not args.forces):
        from scalerl.study.force import find_force

        find_force(args.forces)  # says which there are
    commands = words[:1] == ["commands"]
    if commands:
        words.pop(0)
    if not words:
        raise InputError(
            "which study? scalerl study commands DIR"
            if commands
            else "which study? name its directory: scalerl study DIR …"
        )
    if args.jobs is not None and args.jobs < 1:
        raise InputError(f"--jobs {args.jobs}: give 1 or more")
    study = _study(args, words)
    study.target = args.target
    if args.dry_run and not commands:
        return _dry_run(args, study)
    options.refuse_measure(args)
    if commands:
        return _commands(args, study)
    return _run(args, study)


def _study(args: argparse.Namespace, words: list[str]) -> Study:
    """What the words and options ask for."""
    from scalerl.study.definition import is_study_file, parse_axis, parse_sweep, read_definition
    from scalerl.study.study import Study

    directory, *recipe = words
    # A flag that is not given is None, so that it changes no existing study and no study file.
    given: dict[str, Any] = {
        "leave_one_out": args.leave_one_out or None,
        "forward": args.forward or None,
        "recipes": _names(args.recipes),
        "forces": args.forces,
        "variants": _names(args.variants),
        "sweep": _joined(map(parse_sweep, args.sweep)) or None,
        "axis": _joined(map(parse_axis, args.axis)) or None,
        "learning_rate": args.batch_lr,
        "seeds": args.seeds,
        "steps": args.steps,
        "screen": args.screen,
        "race": args.race or None,
    }
    given = {key: value for key, value in given.items() if value is not None}
    files = [word for word in recipe if is_study_file(word)]
    if not files:
        return Study(directory, recipe, **given)
    rest = [word for word in recipe if word not in files]
    if len(files) > 1 or any("=" not in word for word in rest):
        raise InputError(f"{files[0]} is a study file: name nothing beside it but KEY=VALUE")
    asked = read_definition(Path(files[0])).given()
    return Study(directory, [*asked.pop("recipe"), *rest], **(asked | given))


def _joined(pairs: Iterable[tuple[str, tuple[Any, ...]]]) -> dict[str, tuple[Any, ...]]:
    """One entry a key, also where an option was given twice for it."""
    found: dict[str, tuple[Any, ...]] = {}
    for key, values in pairs:
        found[key] = (*found.get(key, ()), *values)
    return found


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _commands(args: argparse.Namespace, study: Study) -> int:
    lines = study.commands()
    if args.json:
        options.print_json(lines)
    else:
        print("\n".join(lines), end="\n" if lines else "")
        done = len(study.members) - len(lines)
        if done:
            print(f"{done} of {len(study.members)} members are done", file=sys.stderr)
    return 0


def _dry_run(args: argparse.Namespace, study: Study) -> int:
    from scalerl.cli.study_view import dry_run_text

    if args.measure_steps is not None:
        from scalerl.cli.estimate import measure_all

        found = measure_all(study.variants.values(), args.measure_steps)
        study.measured = [(each.recipe, each.rate) for each in found]
    plan = study.dry_run_dict(args.jobs)
    hours = plan["compute"]["device_hours"]
    cost = None if args.price is None or hours is None else hours * args.price
    if args.json:
        options.print_json(plan | {"cost": cost})
        return 0
    print(dry_run_text(study, args.jobs))
    if cost is not None:
        print(f"cost: {cost:.3g}, at {args.price:g} a device-hour")
    return 0


def _run(args: argparse.Namespace, study: Study) -> int:
    from scalerl.cli.explain import ExplainedOutput
    from scalerl.cli.study_view import closing, make_view

    with make_view(plain=args.plain, to_stderr=args.json) as view:
        end = study.run(args.jobs, view)
    if args.json:
        options.print_json(study.to_dict(end))
    else:
        out = ExplainedOutput(args)
        out.say(closing(study, end))
        out.finish()
    if end.signal is not None:
        return 128 + end.signal
    return 1 if end.failed else 0
