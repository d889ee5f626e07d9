"""The reference page says everything the types know."""

from pathlib import Path

from scalerl.runs.reference import SECTIONS, page, rows

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "run-record.md"


def test_the_page_names_every_field_with_its_type_and_meaning():
    text = page()
    for kind in SECTIONS.values():
        for name, word, meaning in rows(kind):
            assert name and word and meaning
            assert f"\n- `{name}` ({word}): {meaning}\n" in text


def test_fields_inside_are_named_by_their_path():
    names = {name for kind in SECTIONS.values() for name, _, _ in rows(kind)}
    assert {"staleness.histogram", "spent.check_wait", "wasted.failed.tokens",
            "downstream.NAME.pass_rate"} <= names  # fmt: skip


def test_the_committed_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make docs`"
