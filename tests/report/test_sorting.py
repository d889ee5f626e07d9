"""In which order tables of many runs stand."""

from __future__ import annotations

import json

import pytest
from made_runs import climbing, known, unknown

from scalerl.cli import main, parser
from scalerl.curves.compare import compare
from scalerl.curves.fit import fit
from scalerl.curves.forecast import forecast
from scalerl.errors import InputError
from scalerl.report import sorting

FITS = [
    fit(climbing("run-10", ceiling=0.6)),
    unknown("run-9"),
    fit(climbing("run-1", ceiling=0.7, n=30, seed=2)),
]


def names(column: str | None, fits: list = FITS) -> list[str]:  # type: ignore[type-arg]
    return [f.name for f in sorting.sort_by(fits, sorting.FIT, column)]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (None, ["run-10", "run-9", "run-1"]),
        ("run", ["run-1", "run-9", "run-10"]),
        ("-run", ["run-10", "run-9", "run-1"]),
        ("A", ["run-1", "run-10", "run-9"]),
        ("-A", ["run-10", "run-1", "run-9"]),
        ("n", ["run-10", "run-1", "run-9"]),
        ("end", ["run-10", "run-1", "run-9"]),
    ],
)
def test_runs_stand_by_a_column_and_those_without_a_number_last(column, expected) -> None:  # type: ignore[no-untyped-def]
    assert names(column) == expected


def test_many_runs_stand_best_first_unless_told_otherwise() -> None:
    many = [fit(climbing(f"r{i}", ceiling=0.6 + 0.01 * ((3 * i) % 7), n=20)) for i in range(7)]
    ceilings = [f.params["A"] for f in sorting.sort_by(many, sorting.FIT, None) if f.identified]
    assert ceilings == sorted(ceilings, reverse=True) and len(ceilings) > 3
    assert names(None, many[:6]) == [f.name for f in many[:6]]


def test_every_column_sorts_everything_and_others_are_refused() -> None:
    ahead = [forecast(f) for f in FITS]
    pairs = compare([known("a"), known("b", seed=1), fit(climbing("c", ceiling=0.7))]).pairs
    for items, columns in (
        (FITS, sorting.FIT),
        (ahead, sorting.FORECAST),
        (pairs, sorting.COMPARE),
    ):
        for column in columns:
            once = sorting.sort_by(items, columns, column)
            assert len(once) == len(items) and set(map(id, once)) == set(map(id, items))
            sorting.sort_by(items, columns, f"-{column}")
    with pytest.raises(InputError, match="no column 'mood' to sort by: choose one of run"):
        sorting.sort_by(FITS, sorting.FIT, "mood")


def test_the_commands_offer_the_columns_there_are() -> None:
    commands = parser()._subparsers._group_actions[0].choices  # type: ignore[union-attr]
    for name, columns in (("fit", sorting.FIT), ("forecast", sorting.FORECAST),
                          ("compare", sorting.COMPARE)):  # fmt: skip
        (sort,) = [a for a in commands[name]._actions if "--sort" in a.option_strings]  # type: ignore[index]
        assert [c for c in sort.choices if c[0] != "-"] == list(columns)


def test_a_table_is_sorted_on_the_command_line(capsys) -> None:  # type: ignore[no-untyped-def]
    sources = ["example:paper-8b", "example:paper-moe"]
    for command, flag, expected in (
        ("fit", "--sort=A", ["paper-moe", "paper-8b"]),
        ("fit", "--sort=-A", ["paper-8b", "paper-moe"]),
        ("forecast", "--sort=A", ["paper-moe", "paper-8b"]),
    ):
        assert main([command, *sources, flag, "--json"]) == 0
        assert [f["run"] for f in json.loads(capsys.readouterr().out)] == expected
