"""scalerl report: one page and its pictures for any number of runs."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from scalerl.cli import notes, options
from scalerl.errors import InputError

#: Options that do not apply to a study: its runs are fitted as they are for its table.
NOT_FOR_STUDIES = (
    "run", "x", "gpus", "seconds_per_step", "y", "n_eval", "scale", "group_by", "at", "r0", "lo",
    "hi", "method",
)  # fmt: skip
#: Options with other names than the attributes that they set.
OPTION_NAMES = {"lo": "from", "hi": "to"}


def add(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Write a self-contained HTML page (works offline), the same as Markdown, figures as PNG, "
        "SVG and PDF, and JSON. For a run that scalerl trained, also: where its compute went, its "
        "steps, its answers, its recipe and what went wrong. For a study (its directory alone), "
        "its table, its knob map, and the same for each of its runs."
    )
    command.epilog = "Example: scalerl report example:paper-8b --from 1500 --to 50000 -o out/"
    options.add_sources(command)
    command.add_argument("-o", "--out", required=True, metavar="DIR", help="where to write")
    command.add_argument("--title", help="heading of the page")
    command.add_argument("--group-by", metavar="NAME", help="replicates, as in compare")
    command.add_argument("--at", nargs="+", default=[], metavar="C", help=options.AT)
    command.add_argument("--target", nargs="+", default=[], metavar="R", help="scores to reach")
    command.add_argument(
        "--downstream",
        action="append",
        default=[],
        metavar="[NAME=]DIR",
        help="what `scalerl eval RUN --task … -o DIR` wrote for checkpoints of the runs; shown as "
        "a downstream set next to the validation",
    )
    options.add_fit_options(command)
    options.add_explain(command)


def run(args: argparse.Namespace) -> None:
    options.refuse_explained_json(args)
    lines: list[str] = []
    if _is_study(args):
        files = _of_study(args)
    else:
        files, lines = _of_runs(args)
    if args.json:
        options.print_json([str(path) for path in files])
        return
    for path in files:
        print(path)
    from scalerl.cli.explain import ExplainedOutput
    from scalerl.report import terminal

    out = ExplainedOutput(args)
    for line in lines:
        out.say(terminal.wrap(line))
    # What the page shows is the result here; its Markdown twin is the same in plain text.
    pages = [path for path in files if path.suffix == ".md"]
    out.finish("".join(path.read_text(encoding="utf-8") for path in pages))


def _of_runs(args: argparse.Namespace) -> tuple[list[Path], list[str]]:
    """The files written, and the measured end of each run beside its forecast."""
    at, target = options.amounts(args, args.at), options.scores(args, args.target)
    fits = options.fits(args, options.load(args, group_by=args.group_by))
    from scalerl.curves.compare import comparable, compare
    from scalerl.curves.forecast import forecast
    from scalerl.report import words
    from scalerl.report.html import write_report
    from scalerl.report.run_record import find_evaluations, read_records

    further = find_evaluations(args.downstream)
    where = [options.amounts_on(f, at) for f in fits]
    forecasts = [
        forecast(f, here or None, target) for f, (here, _) in zip(fits, where, strict=True)
    ]
    # The answer on stdout is the list of files.
    notes.print_columns([f.run for f in fits], sys.stderr)
    notes.print_notes(
        [f.run.replace(notes=(*f.run.notes, *how)) for f, (_, how) in zip(fits, where, strict=True)]
    )
    comparison = None
    if comparable(fits):
        # Simulating what would decide a pair takes about a second: only for few.
        comparison = compare(
            fits, group_by="recipe" if args.group_by else None, planning=len(fits) < 5
        )
    files = write_report(
        fits,
        args.out,
        comparison=comparison,
        forecasts=forecasts,
        title=args.title,
        command=shlex.join(["scalerl", *sys.argv[1:]]),
        records=read_records([f.run for f in fits], further),
    )
    return files, [f"{a.fit.name}: {line}" for a in forecasts for line in words.measured(a)]


def _is_study(args: argparse.Namespace) -> bool:
    """Whether the source is a study. A study takes no other source and no options of a fit:
    InputError says so."""
    studies = [s for s in args.source if (Path(s) / "study.toml").is_file()]
    if not studies:
        return False
    if len(args.source) > 1:
        raise InputError(f"{studies[0]} is a study, which has a report of its own: give it alone")
    given = [name for name in NOT_FOR_STUDIES if getattr(args, name)]
    if args.law != "sigmoid":
        given.append("law")
    if args.level != 0.9:
        given.append("level")
    if given:
        name = OPTION_NAMES.get(given[0], given[0]).replace("_", "-")
        raise InputError(
            f"--{name} does not apply to a study, because its runs are fitted as in its table: "
            f"leave it out, or report its runs: {studies[0]}/runs/*"
        )
    return True


def _of_study(args: argparse.Namespace) -> list[Path]:
    """The files written for a study."""
    from scalerl.report.study_page import write_study_report
    from scalerl.report.study_report_data import collect
    from scalerl.study.study import Study

    study = Study(args.source[0])
    targets = options.scores(args, args.target)
    if len(targets) > 1:
        raise InputError("the table of a study has one target: give one score")
    study.target = targets[0] if targets else None
    if study.force is not None:
        from scalerl.report.force_page import write_force_report

        line = shlex.join(["scalerl", *sys.argv[1:]])
        return write_force_report(study, args.out, args.title, line)
    command = shlex.join(["scalerl", *sys.argv[1:]])
    return write_study_report(collect(study, args.downstream, args.title, command), args.out)
