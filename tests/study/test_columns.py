"""The columns of a study's table are declared once, and every output uses that list."""

import json
from dataclasses import replace

import pytest

from scalerl.report.words import NUMBER_FORMATS, cell_text
from scalerl.study.columns import COLUMNS, columns_in, verdict_text
from scalerl.study.paired import PairedDifference
from scalerl.study.stability import Stability
from scalerl.study.table import StudyRow

PAIRED = PairedDifference(
    0.02, (0.01, 0.03), (-0.02, 0.06), "flops", 1e12, ((10,), (10,)), 100, (1, 1), 0.01
)
ROW = StudyRow(
    "loo-lp", 2, {"A": 0.6, "B": 1.5, "C_mid": 3e12},
    {"A": (0.58, 0.62), "B": (1.0, 2.0), "C_mid": (1e12, 4e12)}, True, "faster", "loo-lp",
    "loo-lp is faster", {0: Stability("stable")}, (1, 2), PAIRED,
)  # fmt: skip


def test_json_has_the_keys_that_it_had():
    assert list(ROW.to_dict()) == [
        "variant", "seeds", "A", "B", "C_mid", "intervals", "identified", "verdict", "winner",
        "words", "stability", "half", "paired", "target", "crossing", "fixed_A", "axes",
        "axes_disagree",
    ]  # fmt: skip
    json.dumps(ROW.to_dict(), allow_nan=False)


def test_every_column_says_what_it_means_and_has_a_format():
    for column in COLUMNS:
        assert column.meaning.endswith(".") and "\n" not in column.meaning
        if column.group != "json":
            assert column.heading and column.short and column.cell is not None
            assert column.format == "text" or column.format in NUMBER_FORMATS


def test_a_cell_in_one_line():
    shown = {c.key: cell_text(c, ROW) for c in (*columns_in("fit"), *columns_in("pairwise"))}
    assert shown["A"] == "0.600 [0.580, 0.620]"
    assert shown["C_mid"] == "3T [1T, 4T]"
    assert shown["seeds"] == "2"
    assert shown["half"] == "1/2"
    assert shown["paired"] == "+0.020 [+0.010, +0.030]"
    assert shown["target"] == ""
    not_identified = replace(ROW, identified=False)
    assert cell_text(COLUMNS[2], not_identified) == "open [0.580, 0.620]"


@pytest.mark.parametrize(
    ("verdict", "winner", "words"),
    [
        ("higher-ceiling", "loo-lp", "higher ceiling"),
        ("higher-ceiling", "scalerl", "lower ceiling"),
        ("faster", "loo-lp", "same ceiling, faster"),
        ("faster", "scalerl", "same ceiling, slower"),
        ("same", None, "no difference"),
        ("undecided", None, "undecided"),
        ("reference", None, "reference"),
        (None, None, ""),
    ],
)
def test_the_verdict_is_said_from_the_side_of_the_variant(verdict, winner, words):
    assert verdict_text(replace(ROW, verdict=verdict, winner=winner)) == words


def test_the_old_name_of_the_pairwise_summary_works_and_warns():
    with pytest.warns(DeprecationWarning, match="StudyRow.beside is now StudyRow.pairwise"):
        assert ROW.beside is ROW.pairwise
    assert not hasattr(ROW, "nothing")
