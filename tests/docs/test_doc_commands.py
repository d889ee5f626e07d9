"""Every `scalerl` command that a page shows has commands and options that exist."""

import shlex
from itertools import takewhile

import pytest
from doc_pages import PAGES, blocks

from scalerl.cli import _parsed


def commands_of_all_pages():
    for page in PAGES:
        for block in [*blocks(page, "sh"), *blocks(page, "")]:
            for line in block.replace("\\\n", " ").splitlines():
                if not line.strip().startswith("scalerl "):
                    continue
                words = shlex.split(line.strip(), comments=True)[1:]
                words = list(takewhile(lambda word: word not in (">", "|"), words))
                yield pytest.param(words, id=f"{page.name}: {' '.join(words)}"[:80])


@pytest.mark.parametrize("words", list(commands_of_all_pages()))
def test_a_command_on_a_page_has_options_that_exist(words):
    _parsed(words)
