"""The reference page says everything the schema knows."""

import re
from pathlib import Path

from scalerl.recipe.problems import known_keys
from scalerl.recipe.reference import page

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "recipe.md"


def test_every_field_says_what_it_means_and_where_its_default_is_from():
    for path, info in known_keys().items():
        assert info.description, path
        assert info.json_schema_extra["source"], path


def test_the_page_names_every_key():
    named = set(re.findall(r"^- `([\w.]+)(?: = .*)?` \(", page(), re.MULTILINE))
    assert named >= set(known_keys())


def test_the_committed_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == page()
