"""The reference page says everything the schema knows."""

import re
import runpy
from pathlib import Path

from scalerl.recipe.problems import known_keys

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "reference" / "recipe.md").read_text(encoding="utf-8")
LISTS = runpy.run_path(str(DOCS / "reference_lists.py"))


def test_every_field_says_what_it_means_and_where_its_default_is_from():
    for path, info in known_keys().items():
        assert info.description, path
        assert info.json_schema_extra["source"], path


def test_the_page_names_every_key():
    named = set(re.findall(r"^- `([\w.]+)(?: = .*?)?`(?: \(|: )", PAGE, re.MULTILINE))
    assert named >= set(known_keys())


def test_the_committed_page_is_up_to_date():
    assert LISTS["recipe_presets"]() in PAGE and LISTS["recipe_keys"]() in PAGE, "run `make docs`"
