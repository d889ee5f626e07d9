"""scalerl compare: a higher ceiling, a faster climb, no difference, or undecided."""

from __future__ import annotations

import argparse
from dataclasses import replace

from scalerl.cli import notes, options

#: Simulating what would decide takes about 1 s a pair: only for this many.
MAX_PLANNED_PAIRS = 10


def add(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Compare every pair of runs or recipes: the paper's rule and the verdict of scalerl, side "
        "by side."
    )
    command.epilog = "Example: scalerl compare runs.csv --group-by recipe"
    options.add_sources(command)
    command.add_argument(
        "--group-by",
        metavar="NAME",
        help="runs that share this column (or config key) are replicates of one recipe",
    )
    command.add_argument(
        "--seed-sd",
        type=options.number,
        metavar="SD",
        help="standard deviation of the ceiling between seeds (default with --group-by: 0.01, "
        "corrected by the runs)",
    )
    command.add_argument(
        "--budget",
        type=options.amount,
        metavar="C",
        help="compute at which the runs end, as for --at of forecast: 50k, 300steps; 1x: they have "
        "ended (default: by the recipe in their record, or else 2x). A verdict is given if it "
        "would survive until then",
    )
    options.add_fit_options(command)
    options.add_sort(
        command,
        ("A", "run", "delta_A", "verdict"),
        "of pairs; verdict: the decided ones first; default: by A",
    )
    options.add_explain(command)


def run(args: argparse.Namespace) -> None:
    options.refuse_explained_json(args)
    fits = options.fits(args, options.load(args, group_by=args.group_by))
    from scalerl.curves.compare import compare
    from scalerl.report import sorting
    from scalerl.report.progress import ProgressBar

    budget = None
    if args.budget is not None:
        budget = [options.amounts_on(f, [args.budget], "--budget")[0][0] for f in fits]
    with ProgressBar("comparing") as tick:
        comparison = compare(
            fits,
            group_by="recipe" if args.group_by else None,
            seed_sd=args.seed_sd,
            budget=budget,
            planning=len(fits) * (len(fits) - 1) // 2 <= MAX_PLANNED_PAIRS,
            progress=tick,
        )
    pairs = sorting.sort_by(comparison.pairs, sorting.COMPARE, args.sort or "A")
    comparison = replace(comparison, pairs=tuple(pairs))
    if args.json:
        options.print_json(comparison.to_dict())
        return
    from scalerl.cli.explain import ExplainedOutput
    from scalerl.report import terminal, words

    out = ExplainedOutput(args)
    out.say(terminal.comparison_table(comparison))
    for line in filter(None, map(words.breaks, fits)):
        out.say(terminal.wrap(line))
    notes.print_columns([f.run for f in fits])
    notes.print_notes([f.run for f in fits])
    out.finish()
