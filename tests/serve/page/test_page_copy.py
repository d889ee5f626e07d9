"""A copy of the page, opened from disk: no server, no script errors, the same views."""

import os
import subprocess
import sys

import pytest
from made_records import add_play, made_run
from serving import SRC, wait_for

from made_study import made_study

EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>"


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    root = tmp_path_factory.mktemp("copy")
    add_play(made_run(root / "runs" / "first", n=21, steps=100, answer=EVIL, warning=EVIL))
    made_run(root / "runs" / "second", n=21, steps=100, seed=1)
    made_study(root / "runs" / "study", variants=2, seeds=1, evals=11, steps=20)
    # A process of its own, as for a user: this one has the event loop of the browser.
    command = [sys.executable, "-m", "scalerl", "serve", root / "runs", "--export", root / "out"]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": str(SRC)})
    return root / "out"


def test_a_copy_works_from_disk(open_page, copy, shot):
    page = open_page(f"file://{copy}/index.html")
    alerts = []
    page.on("dialog", lambda dialog: (alerts.append(dialog.message), dialog.dismiss()))
    page.wait_for_selector(".list tbody tr")
    assert page.locator(".list tbody tr").count() == 4
    assert "A copy of" in page.locator(".copy-notice").inner_text()
    shot(page, "copy-list")
    page.get_by_role("link", name="first", exact=True).click()
    wait_for(lambda: page.locator(".facts b").count() >= 4)
    wait_for(lambda: page.locator("#inside table, #inside svg").count() > 0)
    wait_for(lambda: "A copy" in page.locator("header").inner_text())
    assert page.locator("#curve canvas").count() >= 1
    assert page.locator(".handle:visible").count() == 0
    shot(page, "copy-run")
    page.goto(f"file://{copy}/index.html#/studies")
    page.locator(".members a").first.click()
    page.locator("#variants table").wait_for()
    assert not alerts and page.locator("#view img").count() == 0


def test_the_chosen_runs_of_a_copy_are_compared_where_that_is_in_it(open_page, copy):
    page = open_page(f"file://{copy}/index.html")
    page.wait_for_selector(".list tbody tr")
    for box in page.locator(".list .pick input").all():
        box.check()
    wait_for(lambda: page.locator(".chosen tbody tr").count() == 4)
    page.locator(".list .pick input").first.uncheck()
    wait_for(lambda: "not in this copy" in page.locator(".said").first.inner_text())


def test_the_episodes_of_a_copy_are_filtered_without_a_server(open_page, copy, shot):
    page = open_page(f"file://{copy}/index.html")
    page.wait_for_selector(".list tbody tr")
    link = page.get_by_role("link", name="first", exact=True).get_attribute("href")
    run = link.rpartition("/")[2]

    def listed(query):
        page.goto(f"file://{copy}/index.html#/episodes/{run}{query}")
        page.reload()
        page.wait_for_selector(".episode-list li")
        return page.locator(".episode-list li").count()

    assert listed("") == 3
    assert listed("?correct=false") == 2
    assert listed("?finish=turns") == 1
    assert listed("?text=AB%3D") == 3  # in the question
    shot(page, "copy-episodes")
    page.locator(".episode-list a").first.click()
    page.locator(".reader .text").first.wait_for()
    assert "ab=" in page.locator(".reader").inner_text()
