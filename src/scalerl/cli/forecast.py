"""scalerl forecast: what a run will score, when it will reach a target, whether to go on."""

from __future__ import annotations

import argparse

from scalerl.cli import notes, options


def add(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Predict the score at more compute and the compute to reach a target, and say whether to "
        "stop or continue."
    )
    command.epilog = "Example: scalerl forecast example:paper-8b --to 25k --at 50k --target 0.65"
    options.add_sources(command)
    ask = command.add_argument_group("what to ask")
    ask.add_argument("--at", nargs="+", metavar="C", default=[], help=options.AT)
    ask.add_argument("--target", nargs="+", metavar="R", default=[], help="scores to reach")
    ask.add_argument("--price", type=options.number, help="price of one unit of compute (GPU-hour)")
    ask.add_argument("--value", type=options.number, help="value of one point (0.01) of pass rate")
    options.add_fit_options(command)
    options.add_sort(
        command,
        ("run", "end", "A", "score", "gain"),
        "score: at the first --at, gain: of the next doubling; default: as given; more than six "
        "runs by A, best first",
    )
    options.add_explain(command)


def run(args: argparse.Namespace) -> None:
    options.refuse_explained_json(args)
    at, target = options.amounts(args, args.at), options.scores(args, args.target)
    fits = options.fits(args, options.load(args))
    from scalerl.curves.forecast import forecast
    from scalerl.report import sorting
    from scalerl.report.json_results import forecast_results, win_probabilities

    where = [options.amounts_on(f, at) for f in fits]
    forecasts = [
        forecast(f, here or None, target, price=args.price, value=args.value)
        for f, (here, _) in zip(fits, where, strict=True)
    ]
    # By fit, since sorting changes the order.
    converted = {id(f): how for f, (_, how) in zip(fits, where, strict=True)}
    forecasts = sorting.sort_by(forecasts, sorting.FORECAST, args.sort)
    fits = [ahead.fit for ahead in forecasts]
    win_chances = win_probabilities(fits, options.shared_by_all([here for here, _ in where]))
    if args.json:
        found = forecast_results(forecasts, win_chances)
        for answer, f in zip(found, fits, strict=True):
            answer["notes"] += converted[id(f)]
        options.print_json(found)
        return
    from scalerl.cli.explain import ExplainedOutput
    from scalerl.report import terminal, words

    out = ExplainedOutput(args)
    out.say(terminal.forecast_table(forecasts))
    for line in dict.fromkeys(filter(None, map(words.breaks, fits))):
        out.say(terminal.wrap(line))
    for a, b, c, p in win_chances:
        out.say(terminal.wrap(f"{a} beats {b} at {words.compute(c)} with probability {p:.2f}"))
    notes.print_columns([f.run for f in fits])
    notes.print_notes([f.run.replace(notes=(*f.run.notes, *converted[id(f)])) for f in fits])
    out.finish()
