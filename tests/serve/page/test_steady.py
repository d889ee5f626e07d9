"""The page while it fills and while it is handled: what is there does not move, and the numbers,
the handles and the sentence are of one question."""

import json
import math
import random
import re
from pathlib import Path

import pytest
from made_records import made_run
from reading import violations
from serving import process, wait_for
from test_page import fact, open_run, taken, until

from made_study import made_study
from scalerl.cli import main

#: Largest sum of layout shifts of a page while it loads: web.dev calls up to 0.1 good.
MOST_SHIFT = 0.1
#: Points before a fall that may share a bin of the fit with it.
BESIDE_THE_FALL = 2
SHIFTS = """
window.shifted = 0;
new PerformanceObserver((list) => {
  for (const each of list.getEntries()) if (!each.hadRecentInput) window.shifted += each.value;
}).observe({ type: "layout-shift", buffered: true });
"""


def rewritten(run, change):
    """The run with other validations."""
    file = run / "evals.jsonl"
    lines = change([json.loads(line) for line in file.open()])
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def collapse(lines):
    """To 0.86, and in the last sixth down to 0.13."""
    noise = random.Random(0)
    for i, line in enumerate(lines):
        high = 0.86 - 0.7 * math.exp(-i / 3) + noise.gauss(0, 0.006)
        line["pass_rate"] = high if i < 0.84 * len(lines) else 0.13 + noise.gauss(0, 0.01)
    return lines


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs")
    made_run(path / "first", n=31, steps=300)
    made_run(path / "second", n=31, steps=300, seed=1)
    rewritten(made_run(path / "fallen", n=31, steps=300, seed=3), collapse)
    rewritten(made_run(path / "young", n=31, steps=300, seed=2), lambda lines: lines[:1])
    made_study(path / "study", variants=3, seeds=1, evals=21, steps=60)
    with process(path) as (found, _):
        yield found


@pytest.fixture(scope="module")
def ids(address, browser):
    page = browser.new_page()
    page.goto(address)
    wait_for(lambda: page.locator(".list tbody tr").count() >= 7)
    wait_for(lambda: "being fitted" not in page.locator(".list").inner_text())
    links = page.locator(".list tbody th a")
    found = {a.inner_text(): a.get_attribute("href").split("/")[-1] for a in links.all()}
    page.get_by_role("link", name="Studies (1)").click()
    study = page.get_by_role("link", name="study", exact=True)
    found["study"] = study.get_attribute("href").split("/")[-1]
    page.close()
    return found


#: View → its address, and what is there when it is filled.
VIEWS = {
    "list": ("#/", "document.querySelectorAll('.list tbody .range').length > 3"),
    "run": ("#/run/{first}", "document.querySelector('.lead')?.textContent.includes('doubling')"),
    "fallen": ("#/run/{fallen}", "document.querySelector('.alarm')?.textContent.length > 9"),
    "young": ("#/run/{young}", "document.querySelector('.lead')?.textContent.length > 9"),
    "over": ("#/?with={first},{second}",
             "document.querySelector('#over + .lead')?.textContent.length > 9"),
    "group": ("#/?group=1", "document.querySelectorAll('.list tbody tr.grouped').length > 2"),
    "metrics": ("#/metrics?with={first},{second}", "document.querySelector('.metric canvas')"),
    "studies": ("#/studies", "document.querySelector('.members')"),
    "study": ("#/study/{study}", "document.querySelector('#variants table')"),
}  # fmt: skip


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_nothing_moves_while_a_page_fills_and_it_is_accessible(
    browser, address, ids, view, width, height, shot
):
    where, filled = VIEWS[view]
    scheme = "dark" if width < 500 else "light"
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    context.add_init_script(SHIFTS)
    page = context.new_page()
    page.goto(address + where.format(**ids))
    until(page, filled)
    page.wait_for_timeout(1200)  # the slow answer, and panels
    assert page.evaluate("window.shifted") < MOST_SHIFT
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    until(page, "!document.querySelector('.busy, .stale')")  # fainter until the answer is there
    assert violations(page) == {}
    shot(page, f"steady-{view}-{width}", full_page=True)
    context.close()


def test_a_collapsed_run_promises_nothing_and_stands_last(open_page, address, ids):
    page = open_page(address)
    wait_for(lambda: page.locator(".list tbody tr").count() >= 7)
    wait_for(lambda: "being fitted" not in page.locator(".list").inner_text())
    page.get_by_role("button", name="Next doubling").click()
    names = page.locator(".list tbody th a").all_inner_texts()
    assert names.index("fallen") >= len(names) - 2, "with the young run, which has no forecast"
    page.goto(f"{address}#/run/{ids['fallen']}")
    until(page, "document.querySelector('.facts b')")
    assert fact(page, "Next doubling") == "none"
    until(page, "document.querySelector('.lead').textContent.includes('No gain of a further')")


def test_the_line_stays_at_points_that_stay(open_page, address, ids):
    page = open_page(f"{address}#/run/{ids['fallen']}")
    until(page, "window.runChart?.runs[0]?.curve.x.length > 60")
    curve = page.evaluate("window.runChart.runs[0].curve")
    xs, ys = curve["used"]
    high = [x for x, y in zip(xs, ys, strict=True) if y > 0.84]
    # The fit bins its points: beside the fall, in one bin with it, the line is between both levels.
    end = high[-BESIDE_THE_FALL]
    level = [m for x, m in zip(curve["x"], curve["median"], strict=True) if high[0] < x <= end]
    assert min(level) > 0.8


def test_while_a_window_is_dragged_one_budget_is_named_everywhere(open_page, address):
    page = open_page(address)
    open_run(page, "first")

    def named():
        return page.evaluate(
            """() => [
              [...document.querySelectorAll('.facts dt')].map(n => n.textContent)[1],
              'At ' + document.querySelector('.handle.budget').getAttribute('aria-valuetext'),
              /At \\S+ FLOPs/.exec(document.querySelector('.lead').textContent)?.[0],
            ]"""
        )

    assert len(set(named())) == 1
    before = named()[0]
    x, y = taken(page, "End of the fitted window", "runChart")
    for i in range(1, 10):
        page.mouse.move(x - 20 * i, y)
        page.wait_for_timeout(60)
        assert len(set(named())) == 1, named()
    page.mouse.up()
    until(page, "location.hash.includes('to=')")
    wait_for(lambda: named()[0] != before)
    assert len(set(named())) == 1
    page.get_by_label("price").fill("1e-12")
    page.get_by_label("price").press("Enter")
    page.get_by_label("value").fill("10")
    page.get_by_label("value").press("Enter")
    page.locator(".facts div", has_text="Advice").wait_for()
    budget = named()[1].removeprefix("At ").removesuffix(" FLOPs")
    assert f"to the budget of {budget} it is" in page.locator(".facts").inner_text()


def test_a_target_in_percent_is_read_and_what_cannot_be_is_said(open_page, address):
    page = open_page(address)
    open_run(page, "first")
    target = page.get_by_label("target")
    target.fill("80%")
    target.press("Enter")
    page.locator(".facts div", has_text="Target 0.8").wait_for()
    assert target.get_attribute("aria-invalid") == "false"
    target.fill("80")
    target.press("Enter")
    page.get_by_text("“80” cannot be read; write a pass rate above 0 and up to 1").wait_for()
    page.get_by_role("button", name="whole run").click()
    assert page.locator("[role=alert]", has_text="cannot be read").is_hidden()


def test_a_young_run_shows_its_points_and_what_is_missing(open_page, address, ids):
    page = open_page(f"{address}#/run/{ids['young']}")
    until(page, "window.runChart?.runs[0]?.curve.used[0].length === 1")
    until(page, "document.querySelector('.lead').textContent.includes('1 of 5 validations')")
    assert fact(page, "Forecast") == "1 of 5 validations"
    assert page.locator(".said").first.inner_text() == ""
    assert page.locator(".handle:visible").count() == 0, "handles of one point would overlap"
    labels = page.evaluate("window.runChart.plot.axes.map(a => a._values.filter(Boolean))")
    for axis in labels:
        assert len(axis) == len(set(axis))
    page.goto(address)
    row = page.locator(".list tbody tr", has_text="young")
    wait_for(lambda: "1 of 5 validations" in row.inner_text())


def test_a_study_of_many_runs_prints_on_four_sheets(browser, tmp_path):
    recipes = Path(__file__).parents[3] / "docs" / "replication" / "recipes"
    assert main(["report", str(recipes), "-o", str(tmp_path)]) == 0
    page = browser.new_page()
    page.goto((tmp_path / "report.html").as_uri())
    printed = page.pdf(prefer_css_page_size=True)
    page.close()
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) <= 4
    assert b"/MediaBox [0 0 594.9" in printed, "A4, in points"
