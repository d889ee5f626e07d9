"""Thousands separators and decimal commas, in any table, and what is said where one is unread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from known_curve import FIXTURES, LOW, STEPS

from scalerl.errors import InputError
from scalerl.runs import load_run
from scalerl.runs.number_formats import normalise_numbers
from scalerl.runs.table import Table

SCORES = ["0.20", "0.30", "0.35", "0.38"]


def hours(*cells: object, **columns: list[Any]) -> list[float]:
    return load_run({"gpu_hours": list(cells), "val_acc": SCORES} | columns).compute.tolist()


def test_thousands_separators_are_read_and_that_is_said(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    rows = ["0,0.5,0.2", '100,"1,250.5",0.3', '200,"2,500.5",0.35', '300,"1,003,750.5",0.38']
    path.write_text("step,gpu_hours,val_acc\n" + "\n".join(rows) + "\n")
    run = load_run(path)
    assert (run.x_name, run.compute.tolist()) == ("gpu_hours", [0.5, 1250.5, 2500.5, 1003750.5])
    assert "thousands separators in gpu_hours: 1,250.5 is read as 1250.5" in run.notes


@pytest.mark.parametrize(
    "cells",
    [
        ("950", "1,250", "1,500", "12,000"),  # the scores have points: a comma is no decimal mark
        ("950", "1 250", "1 500", "12 000"),
        ("950", "1'250", "1'500", "12'000"),
        ("950", "1\u202f250", "1\u202f500", "12\u202f000"),
        (950, "1,250", "1,500", "12,000"),
    ],
)
def test_groups_of_three_digits_are_one_number(cells: tuple[object, ...]) -> None:
    assert hours(*cells) == [950, 1250, 1500, 12000]


def test_decimal_commas_are_read_whatever_separates_the_columns(tmp_path: Path) -> None:
    for separator in ("\t", ";", "|"):
        path = tmp_path / "log.tsv"
        rows = [
            ("step", "gpu_hours", "val_acc"),
            ("900", "0,5", "0,2"),
            ("1.100", "1.250,5", "0,3"),
        ]
        path.write_text("\n".join(separator.join(row) for row in rows) + "\n", encoding="utf-8")
        run = load_run(path)
        assert run.compute.tolist() == [0.5, 1250.5]
        assert run.score.tolist() == [0.2, 0.3]
        assert run.conversions["steps"][1].tolist() == [900, 1100]
        assert "decimal commas read as points" in run.notes


def test_a_file_of_pandas_with_decimal_commas_and_tabs_is_read() -> None:
    run = load_run(FIXTURES / "decimal-comma.tsv")
    assert run.compute.tolist() == STEPS.tolist()
    assert run.score == pytest.approx(LOW)


def test_a_file_of_pandas_with_thousands_separators_is_read() -> None:
    run = load_run(FIXTURES / "thousands.csv")
    assert (run.x_name, run.x_kind) == ("gpu_hours", "gpu_hours")
    assert run.compute.tolist() == [12.5 * s + 0.5 for s in STEPS]
    assert run.score == pytest.approx(LOW)


def test_what_a_comma_means_is_not_guessed() -> None:
    cells = ["1,250", "1,500", "2,000", "2,250"]
    table = {"step": [1, 2, 3, 4], "gpu_hours": cells, "val_acc": ["10", "20", "30", "40"]}
    run = load_run(table)
    assert run.x_name == "step"
    assert "gpu_hours is passed over: '1,250' is not a number" in run.notes


def test_a_column_that_cannot_be_read_is_named() -> None:
    cells = ["1 h", "2 h", "3 h", "4 h"]
    run = load_run({"step": [1, 2, 3, 4], "gpu_hours": cells, "val_acc": SCORES})
    assert "gpu_hours is passed over: '1 h' is not a number" in run.notes
    scores = {"step": [1, 2, 3], "val_acc": ["bad", "worse", "-"], "accuracy": [0.1, 0.2, 0.3]}
    assert "val_acc is passed over: 'bad' is not a number" in load_run(scores).notes
    with pytest.raises(InputError, match=r"no column of scores \(acc is passed over: '~1'"):
        load_run({"step": [1, 2], "acc": ["~1", "~2"]})


def test_names_of_runs_and_texts_stay_as_they_are() -> None:
    columns: dict[str, list[object]] = {
        "run": ["1,250", "1,250"], "layers": ["1,2", "1,2,3"], "acc": ["0.1", "0.2"],
    }  # fmt: skip
    table = Table("mine", columns)
    assert normalise_numbers(table).columns == columns


@settings(max_examples=300, deadline=None)
@given(st.lists(st.floats(0, 1e9, allow_subnormal=False), min_size=2, max_size=8))
def test_numbers_written_in_either_way_come_back(values: list[float]) -> None:
    english = [f"{v:,.2f}" for v in values]
    german = [t.translate(str.maketrans(",.", ".,")) for t in english]
    for cells in (english, german):
        found = normalise_numbers(Table("mine", {"x": list(cells)})).numbers("x").tolist()
        assert found == [round(v, 2) for v in values]
