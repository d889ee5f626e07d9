"""The reference page says everything the types know."""

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "reference" / "run-record.md").read_text(encoding="utf-8")
LISTS = runpy.run_path(str(DOCS / "reference_lists.py"))
SECTIONS, rows = LISTS["RECORDS"], LISTS["rows"]


def test_the_page_names_every_field_with_its_type_and_meaning():
    for kind in SECTIONS.values():
        for name, word, meaning in rows(kind):
            assert name and word and meaning
            shown = "" if word in ("integer", "number") else f" ({word})"
            assert f"\n- `{name}`{shown}: {meaning}\n" in PAGE


def test_fields_inside_are_named_by_their_path():
    names = {name for kind in SECTIONS.values() for name, _, _ in rows(kind)}
    assert {"staleness.histogram", "spent.check_wait", "wasted.stale.tokens"} <= names


def test_fields_of_tables_that_are_alike_are_listed_once():
    every = {name: meaning for kind in SECTIONS.values() for name, _, meaning in rows(kind)}
    assert every["wasted.failed"].endswith("Fields as in `wasted.stale`")
    assert "`pass_rate`, `stderr`" in every["downstream"]
    assert every["temperatures"].endswith("Fields as in `downstream`")


def test_the_committed_page_is_up_to_date():
    assert LISTS["run_record"]() in PAGE, "run `make docs`"
