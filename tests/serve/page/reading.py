"""What tests of the live page do as a reader does, and what they measure."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from serving import get, wait_for

#: Rules of axe-core that tests hold: WCAG 2.2 A and AA, and its best practices.
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


def until(page, what):
    """By asking again and again: waiting inside the page would evaluate text, which its policy
    refuses."""
    wait_for(lambda: page.evaluate(what), 60)


def episodes_of(address, name, query=""):
    """The address of a run's episodes."""

    def ids():
        found = json.loads(get(address, "/api/runs")[2])
        return [run["id"] for run in found if run["name"] == name]

    return f"{address}#/episodes/{wait_for(ids)[0]}{query}"


def violations(page):
    """What axe-core finds on the page, by rule."""
    found = importlib.util.find_spec("axe_playwright_python")
    if found is None:
        pytest.skip("no axe-core here: make page installs it")
    page.evaluate((Path(found.origin).parent / "axe.min.js").read_text())
    results = page.evaluate(
        "tags => axe.run(document, {runOnly: {type: 'tag', values: tags}})", TAGS
    )
    return {
        each["id"]: [node["html"][:200] for node in each["nodes"]][:3]
        for each in results["violations"]
    }


def layout_shift(page):
    """The sum of layout shifts since the page was loaded, without those after a key or a click."""
    return page.evaluate(
        """() => new Promise(done => {
            let sum = 0;
            const watch = new PerformanceObserver(list => {
                for (const each of list.getEntries()) if (!each.hadRecentInput) sum += each.value;
            });
            watch.observe({type: 'layout-shift', buffered: true});
            setTimeout(() => done(sum), 300);
        })"""
    )


def is_wide(page):
    """Whether the page scrolls sideways."""
    return page.evaluate("document.documentElement.scrollWidth > innerWidth")
