"""scalerl backtest: would the forecast have been right on runs that are already known?"""

from __future__ import annotations

import argparse
from pathlib import Path

from scalerl.cli import notes, options
from scalerl.errors import InputError

#: Classes of a run that count as declining.
DECLINING = ("decline", "collapse", "declining")


def add(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Fit the first part of each run, predict the rest, and score the predictions."
    )
    command.epilog = "Example: scalerl backtest runs.csv --fractions 0.25,0.5,0.75"
    options.add_sources(command)
    command.add_argument(
        "--fractions",
        type=options.numbers,
        default=[0.25, 0.5, 0.75],
        metavar="F,F…",
        help="shares of the compute that the fit sees",
    )
    command.add_argument("--group-by", metavar="NAME", help="column with the source of each run")
    command.add_argument(
        "--classes", metavar="CSV", help="a table with columns run_id and cls: class of each run"
    )
    options.add_json(command)


def run(args: argparse.Namespace) -> None:
    runs = options.load(args, group_by=args.group_by)
    from scalerl.curves.backtest import backtest
    from scalerl.report.progress import ProgressBar

    classes = _classes(args.classes) if args.classes else None
    with ProgressBar("back-testing") as tick:
        result = backtest(runs, args.fractions, classes=classes, progress=tick)
    if args.json:
        options.print_json(result.to_dict() | {"runs": notes.columns_of(runs)})
        return
    from scalerl.report import terminal

    terminal.say(terminal.backtest_table(result))
    notes.print_columns(runs)
    notes.print_notes(runs)


def _classes(path: str) -> dict[str, str]:
    """Class of each run from a CSV."""
    import csv

    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            rows = [(row["run_id"], row["cls"]) for row in csv.DictReader(file)]
    except (OSError, KeyError, csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{path} is no table with columns run_id and cls: {error!r}") from None
    return {name: "declining" if kind in DECLINING else "healthy" for name, kind in rows}
