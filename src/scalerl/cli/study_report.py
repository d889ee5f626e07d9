"""scalerl report of a study: what it found, handed to the page."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from scalerl.errors import InputError

if TYPE_CHECKING:
    from scalerl.report.study_page import StudyTold
    from scalerl.study.study import Study

#: Options of `report` that a study has no use for: its members are fitted as its table has them.
NOT_HERE = (
    "run",
    "x",
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
    from scalerl.cli.forecast import values
    from scalerl.report.study_page import write_study_report
    from scalerl.study.study import Study

    study = Study(args.source[0])
    study.target = _one(values(args, args.target))
    command = shlex.join(["scalerl", *sys.argv[1:]])
    return write_study_report(told(study, args.downstream, args.title, command), args.out)


def _one(targets: list[float]) -> float | None:
    if len(targets) > 1:
        raise InputError("the table of a study has one target: give one score")
    return targets[0] if targets else None


def told(
    study: Study,
    downstream: list[str] | tuple[str, ...] = (),
    title: str | None = None,
    command: str | None = None,
) -> StudyTold:
    """What the page shows of a study."""
    from scalerl.recipe import diff
    from scalerl.report.run_record import evaluations_of, records_of
    from scalerl.report.study_curves import MemberCurve
    from scalerl.report.study_page import StudyTold

    further = evaluations_of(downstream)
    found = study.to_dict()
    curves = []
    for member in study.members:
        judged = study.judged(member)
        if judged.run is not None and len(judged.run):
            first = None if judged.half is None else judged.half.first
            run = judged.run.replace(name=member.name)
            curves.append(MemberCurve(member.name, member.variant, run, judged.fit, first))
    reference = study.variants[study.reference]
    return StudyTold(
        path=str(study.path),
        reference=study.reference,
        found=found,
        curves=curves,
        differs={
            name: diff(reference, recipe)
            for name, recipe in study.variants.items()
            if name != study.reference
        },
        records=records_of(
            [c.run for c in curves], further, {m.name: study.evals(m) for m in study.members}
        ),
        title=title,
        command=command,
    )
