"""Options that the commands share, and what they load."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from scalerl.errors import InputError
from scalerl.files import to_json

if TYPE_CHECKING:
    from scalerl.curves.result import Fit, R0Choice
    from scalerl.runs.amounts import Amount
    from scalerl.runs.record import Run

#: What `--at` takes.
AT = (
    "amounts of compute: 50k, or in another unit of the record, as 300steps or 2Mtokens; 2x is "
    "twice the compute so far"
)


def number(text: str) -> float:
    """A number, with a suffix if that is handier.

    >>> number("50k"), number("1.5M"), number("1e-3")
    (50000.0, 1500000.0, 0.001)
    """
    found = amount(text)
    if found.unit:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number (try 50000 or 50k)")
    return found.value


def amount(text: str) -> Amount:
    """Compute: a number, with a unit, or as a share or a multiple of what the run has spent.

    >>> amount("50k").value, amount("50%").unit, amount("300steps").unit
    (50000.0, 'percent', 'steps')
    """
    from scalerl.runs.amounts import Amount

    try:
        return Amount.parse(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def numbers(text: str) -> list[float]:
    """Numbers with commas between.

    >>> numbers("0.25,0.5")
    [0.25, 0.5]
    """
    return [number(part) for part in text.split(",") if part]


def r0(text: str) -> R0Choice:
    """A score, "first" or "fit"."""
    return text if text in ("first", "fit") else number(text)  # type: ignore[return-value]


@contextmanager
def required_for(doing: str, extra: str = "train") -> Iterator[None]:
    """Imports in this context that fail are reported with what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise InputError(f"{doing} needs {error.name}: pip install 'scalerl[{extra}]'") from None


def add_sources(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "source",
        nargs="+",
        metavar="SOURCE",
        help="a log file or directory, example:paper-8b, or wandb:ENTITY/PROJECT[/RUN]",
    )
    pick = command.add_argument_group("which numbers")
    pick.add_argument(
        "--run",
        metavar="GLOB|COLUMN",
        help="only runs with a name that matches; or the column that names the runs, COLUMN=GLOB "
        "for some of them",
    )
    pick.add_argument(
        "--x",
        metavar="NAME",
        help="compute column, NAME*FACTOR (hours*8), or an expression and what it counts: "
        "'step*8*31.2/3600 as gpu_hours'",
    )
    pick.add_argument(
        "--gpus",
        type=number,
        metavar="N",
        help="compute is GPU-hours on N GPUs, from the clock in the log",
    )
    pick.add_argument(
        "--seconds-per-step",
        type=number,
        metavar="S",
        help="with --gpus: GPU-hours from steps of S seconds each",
    )
    pick.add_argument(
        "--y",
        metavar="NAME",
        help="score column; an error rate is read as 1 minus it; or an expression: '1 - val_error'",
    )
    pick.add_argument(
        "--event",
        action="append",
        default=[],
        type=amount,
        metavar="C",
        help="compute at which the run was changed (data, learning rate, a restart): 300, or "
        "300steps; points before it do not fix the level; may be repeated",
    )
    pick.add_argument(
        "--n-eval", metavar="NAME|N", help="samples behind each score: a column or a number"
    )
    pick.add_argument(
        "--scale",
        metavar="HOW",
        help="score in percent, pm1 (a +1/-1 reward), fraction, or a number to divide by",
    )


def add_fit_options(command: argparse.ArgumentParser) -> None:
    how = command.add_argument_group("how to fit")
    how.add_argument(
        "--r0", type=r0, metavar="VALUE|first|fit", help="score at zero compute (default: fit)"
    )
    # `from` is a keyword of Python, and no name of an attribute.
    how.add_argument("--from", dest="lo", type=amount, metavar="C", help="leave out compute < C")
    how.add_argument(
        "--to",
        dest="hi",
        type=amount,
        metavar="C",
        help="leave out compute > C; 50%% is half of the run's compute, 300steps as in "
        "forecast --at",
    )
    how.add_argument(
        "--law",
        metavar="NAME",
        default="sigmoid",
        help="sigmoid (default), power, no-change, or your own as package.module:NAME",
    )
    how.add_argument(
        "--method",
        metavar="NAME",
        help="for the sigmoid: posterior (default), or paper (its Appendix A.5)",
    )
    how.add_argument(
        "--level", type=number, default=0.9, help="probability of the intervals (default 0.9)"
    )
    add_json(command)


def add_sort(command: argparse.ArgumentParser, columns: Sequence[str], about: str) -> None:
    """`columns` are those of `scalerl.report.sorting`."""
    # As one word, --sort=-A: argparse would read a separate -A as an option.
    command.add_argument(
        "--sort",
        metavar="COLUMN",
        choices=[sign + column for sign in ("", "-") for column in columns],
        help=f"order of the table: {', '.join(columns)}; --sort=-COLUMN reverses it ({about})",
    )


def step(text: str) -> int | str:
    """The step of a checkpoint, or `healthy`."""
    if text == "healthy":
        return text
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a step nor `healthy`") from None


def add_measure(command: argparse.ArgumentParser) -> None:
    """Options of a dry run that measures."""
    command.add_argument(
        "--measure-steps",
        type=int,
        metavar="N",
        help="with --dry-run: run N steps (3 or more) in a temporary directory to estimate hours, "
        "device-hours and memory",
    )
    command.add_argument(
        "--price",
        type=number,
        metavar="P",
        help="with --measure-steps: cost of a device-hour, to estimate the cost",
    )


def refuse_measure(args: argparse.Namespace) -> None:
    """These options mean nothing to a run that is not dry."""
    for name in ("measure_steps", "price"):
        if getattr(args, name) is not None:
            raise InputError(f"--{name.replace('_', '-')} estimates a run: give --dry-run as well")


def add_explain(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--explain",
        action="store_true",
        help="say below the result what its verdicts and terms mean",
    )


def refuse_explained_json(args: argparse.Namespace) -> None:
    """JSON has no room for explanations: docs/reference/json.md says what its fields mean."""
    if args.explain and args.json:
        raise InputError("--explain is for text: leave out --json")


def add_json(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print JSON")


def load(args: argparse.Namespace, group_by: str | None = None) -> list[Run]:
    """The runs the options name."""
    from scalerl.runs import load_runs

    return load_runs(
        *args.source,
        x=args.x,
        y=args.y,
        run=args.run,
        group_by=group_by,
        n_eval=_number_or_name(args.n_eval),
        scale=_number_or_name(args.scale),
        gpus=args.gpus,
        seconds_per_step=args.seconds_per_step,
        events=args.event,
    )


def _number_or_name(text: str | None) -> str | float | None:
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        return text


def fits(args: argparse.Namespace, runs: list[Run]) -> list[Fit]:
    """Fit every run. One that cannot be fitted is named on stderr and left out; if none can, the
    first reason is the error."""
    from scalerl.curves.fit import fit
    from scalerl.report.progress import ProgressBar

    done, problems = [], []
    with ProgressBar("fitting") as tick:
        for i, run in enumerate(runs):
            # `i=i` keeps the number of this run: a closure alone would see the last.
            def part(share: float, i: int = i) -> None:
                tick((i + share) / len(runs))

            try:
                done.append(
                    fit(
                        run,
                        r0=args.r0,
                        law=args.law,
                        method=args.method,
                        level=args.level,
                        lo=_resolved(args.lo, run),
                        hi=_resolved(args.hi, run),
                        progress=part,
                    )
                )
            except InputError as error:
                problems.append(error)
            part(1.0)
    if not done:
        raise problems[0]
    for problem in problems:
        print(f"scalerl: left out: {problem}", file=sys.stderr)
    return done


def _resolved(value: Amount | None, run: Run) -> float | None:
    return None if value is None else value.on(run, float(run.compute[-1]))[0]


def amounts(args: argparse.Namespace, items: list[str]) -> list[Amount]:
    """The amounts among the items, commas allowed; what is none was meant as a source."""
    found: list[Amount] = []
    for item in items:
        try:
            found += [amount(part) for part in item.split(",") if part]
        except argparse.ArgumentTypeError as error:
            # `--at 50k runs/a.csv`: nargs="+" also takes a source after the option.
            if ":" in item or "/" in item or "." in item:
                args.source.append(item)
            else:
                raise InputError(str(error)) from None
    return found


def scores(args: argparse.Namespace, items: list[str]) -> list[float]:
    """As `amounts`, of scores to reach."""
    found = amounts(args, items)
    for each in found:
        if each.unit:
            raise InputError(f"--target {each.text}: a target is a score in (0, 1]")
    return [each.value for each in found]


def amounts_on(
    fit: Fit, asked: Sequence[Amount], flag: str = "--at"
) -> tuple[list[float], list[str]]:
    """The amounts on the axis of a fit's run, and a line for each that was converted."""
    found = [each.checked_on(fit.run, fit.end, flag) for each in asked]
    return [value for value, _ in found], [how for _, how in found if how]


def shared_by_all(each: Sequence[Sequence[float]]) -> list[float]:
    """The amounts that are the same for every run: only there can runs be compared."""
    return [values[0] for values in zip(*each, strict=True) if len(set(values)) == 1]


def print_json(value: Any) -> None:
    """Print a value as strict JSON, indented."""
    print(to_json(value, indent=2))
