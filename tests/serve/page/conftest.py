"""A real Chromium, the system's; without one these tests are skipped."""

import os
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

#: Where the screenshots of a run of these tests go.
SHOTS = os.environ.get("SCALERL_SHOTS")


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.page)


@pytest.fixture(scope="session")
def browser():
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("no Chromium here: make page installs it")
    drive = pytest.importorskip("playwright.sync_api")
    with drive.sync_playwright() as play:
        found = play.chromium.launch(
            executable_path=program,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        yield found
        found.close()


@pytest.fixture
def open_page(browser):
    """`open_page(address, width, scheme)`; every error on the page fails the test."""
    opened, errors = [], []

    def start(address, width=1280, height=900, scheme="light"):
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, accept_downloads=True
        )
        context.set_default_timeout(60_000)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda said: _heard(said, errors))
        page.goto(address)
        opened.append(context)
        return page

    yield start
    for context in opened:
        context.close()
    assert not errors, errors


def _heard(said, errors):
    # A server that is gone on purpose is no error of the page.
    expected = ("net::", "status of 4", "status of 503")
    if said.type == "error" and not any(each in said.text for each in expected):
        errors.append(said.text)


@pytest.fixture
def shot():
    def take(page, name, **more):
        if SHOTS:
            Path(SHOTS).mkdir(parents=True, exist_ok=True)
            page.screenshot(path=f"{SHOTS}/{name}.png", **more)

    return take
