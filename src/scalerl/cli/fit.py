"""scalerl fit: the law of a run, with intervals."""

from __future__ import annotations

import argparse
from typing import Any

from scalerl.cli import notes, options

MAX_CURVES = 3


def add(command: argparse.ArgumentParser) -> None:
    command.description = "Fit R = R_0 + (A - R_0) / (1 + (C_mid/C)^B) to each run, with intervals."
    command.epilog = "Example: scalerl fit example:paper-8b --from 5000 --to 50000 --method paper"
    options.add_sources(command)
    options.add_fit_options(command)
    options.add_sort(
        command,
        ("run", "n", "end", "A", "B", "C_mid", "rmse"),
        "default: as given; more than six runs by A, best first",
    )
    options.add_explain(command)


def run(args: argparse.Namespace) -> None:
    options.refuse_explained_json(args)
    fits = options.fits(args, options.load(args))
    from scalerl.report import sorting
    from scalerl.report.json_results import FitExtras, fit_results

    fits = sorting.sort_by(fits, sorting.FIT, args.sort)
    planned = FitExtras.from_fits(fits)
    if args.json:
        options.print_json(fit_results(fits, planned))
        return
    from scalerl.cli.explain import ExplainedOutput
    from scalerl.report import terminal, words
    from scalerl.report.terminal_curve import curve

    out = ExplainedOutput(args)
    out.say(terminal.fit_table(fits))
    notes.print_columns([f.run for f in fits])
    for f in fits[:MAX_CURVES]:
        title = f"\n{terminal.wrap(f.name)}" if len(fits) > 1 else ""
        out.say(f"{title}\n{curve(f)}")
        for line in (words.law_begins(f), words.breaks(f), *words.past_alarms(f)):
            if line:
                out.say(terminal.wrap(line))
        if id(f) in planned.needs:
            need = str(planned.needs[id(f)])
            out.say(terminal.wrap(f"{need[0].upper()}{need[1:]}."))
        if planned.moved.get(id(f)):
            out.say(terminal.wrap(_moves(planned.moved[id(f)])))
    notes.print_notes([f.run for f in fits])
    out.finish()


def _moves(found: list[Any]) -> str:
    low = min(s.a for s in found)
    high = max(s.a for s in found)
    return (
        f"Other windows (up to 25 % of the points left out at either end) put the ceiling at "
        f"{low:.3f} to {high:.3f}."
    )
