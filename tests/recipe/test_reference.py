"""The reference page says everything the schema knows."""

import re
import subprocess
import sys
from pathlib import Path

from scalerl.recipe.problems import known_keys

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "reference" / "recipe.md").read_text(encoding="utf-8")


def test_every_field_says_what_it_means_and_where_its_default_is_from():
    for path, info in known_keys().items():
        assert info.description, path
        assert info.json_schema_extra["source"], path


def test_the_page_names_every_key():
    named = set(re.findall(r"^- `([\w.]+)(?: = .*?)?`(?: \(|: )", PAGE, re.MULTILINE))
    assert named >= set(known_keys())


def test_the_committed_page_is_up_to_date():
    # In a process of its own: other tests register names, which the lists would contain.
    code = "import reference_lists as r; print(r.recipe_presets(), r.recipe_keys(), sep=chr(0))"
    lists = subprocess.run(
        [sys.executable, "-c", code], cwd=DOCS, capture_output=True, text=True, check=True
    ).stdout
    assert all(part.strip() in PAGE for part in lists.split("\0")), "run `make docs`"
