"""scalerl report of a study: what it found, handed to the page."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from scalerl.cli import amounts
from scalerl.errors import InputError

#: Options of `report` that a study has no use for: its members are fitted as its table has them.
NOT_HERE = (
    "run",
    "x",
    "gpus",
    "seconds_per_step",
    "y",
    "n_eval",
    "scale",
    "group_by",
    "at",
    "r0",
    "lo",
    "hi",
    "method",
)
NAMES = {"lo": "from", "hi": "to"}


def is_study(args: argparse.Namespace) -> bool:
    """Whether a study is asked for: InputError where something else is beside it."""
    studies = [s for s in args.source if (Path(s) / "study.toml").is_file()]
    if not studies:
        return False
    if len(args.source) > 1:
        raise InputError(f"{studies[0]} is a study, which has a report of its own: give it alone")
    given = [name for name in NOT_HERE if getattr(args, name)]
    if args.law != "sigmoid":
        given.append("law")
    if args.level != 0.9:
        given.append("level")
    if given:
        name = NAMES.get(given[0], given[0]).replace("_", "-")
        raise InputError(
            f"--{name} is not for a study, whose members are fitted as in its table: leave it out, "
            f"or report its runs: {studies[0]}/runs/*"
        )
    return True


def write(args: argparse.Namespace) -> list[Path]:
    from scalerl.report.study_page import write_study_report
    from scalerl.report.study_report_data import collect
    from scalerl.study.study import Study

    study = Study(args.source[0])
    study.target = _one(amounts.scores(args, args.target))
    command = shlex.join(["scalerl", *sys.argv[1:]])
    return write_study_report(collect(study, args.downstream, args.title, command), args.out)


def _one(targets: list[float]) -> float | None:
    if len(targets) > 1:
        raise InputError("the table of a study has one target: give one score")
    return targets[0] if targets else None
