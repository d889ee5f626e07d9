"""The page in examples/ shows a run by the API alone, from a file."""

from pathlib import Path

import pytest
from made_records import made_run
from serving import process, wait_for

PAGE = Path(__file__).parents[3] / "examples" / "run_page.html"
TOKEN = "a-token-of-some-length_123"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    made_run(folder / "first", n=31, steps=300)
    (folder.parent / "token").write_text(TOKEN)
    with process(folder, "--token-file", folder.parent / "token", "--cors", "null") as (found, _):
        yield found.rstrip("/")


def test_it_has_forty_lines():
    assert len(PAGE.read_text().splitlines()) <= 40


def test_it_shows_a_run_from_a_file(open_page, address, shot):
    page = open_page(f"file://{PAGE}#server={address}&token={TOKEN}")
    wait_for(lambda: page.locator("#name").inner_text() == "first")
    assert page.locator("circle").count() == 31
    assert page.locator(".median").get_attribute("d").count("L") > 10
    assert "ended; " in page.locator("#status").inner_text()
    row = page.locator("tr", has_text="entropy").first.inner_text()
    assert "nats" in row and "Mean over tokens" in row
    shot(page, "example-page")


def test_without_the_token_it_says_so(open_page, address):
    page = open_page(f"file://{PAGE}#server={address}&token=wrong-token-of-a-length")
    wait_for(lambda: "token is needed" in page.locator("#status").inner_text())
