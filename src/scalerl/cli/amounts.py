"""`--at` and `--target`: amounts of compute on each run's own axis, and scores to reach."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from scalerl.cli.options import amount

if TYPE_CHECKING:
    from scalerl.curves.result import Fit
    from scalerl.runs.amounts import Amount

#: What `--at` takes.
AT = (
    "amounts of compute: 50k, or in another unit that the record counts: 300steps, 2Mtokens; 2x is "
    "twice the compute spent"
)


def amounts(args: argparse.Namespace, items: list[str]) -> list[Amount]:
    """The amounts among the items, commas allowed; what is none was meant as a source."""
    from scalerl.errors import InputError

    found: list[Amount] = []
    for item in items:
        try:
            found += [amount(part) for part in item.split(",") if part]
        except argparse.ArgumentTypeError as error:
            if ":" in item or "/" in item or "." in item:
                args.source.append(item)
            else:
                raise InputError(str(error)) from None
    return found


def scores(args: argparse.Namespace, items: list[str]) -> list[float]:
    """As `amounts`, of scores to reach."""
    from scalerl.errors import InputError

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
