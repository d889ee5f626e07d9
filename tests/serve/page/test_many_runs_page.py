"""Many runs on the page: columns and filters, seeds, step metrics, values under the pointer, pins
and tags, health."""

import json
from urllib.request import urlopen

import pytest
from made_records import add_play, made_run
from serving import process, wait_for

from made_study import made_study
from scalerl.serve.annotations import FILE


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs")
    study = made_study(path / "study", variants=2, seeds=2, evals=21, steps=60)
    assert len(study.members) == 4
    add_play(made_run(path / "plays", n=31, steps=300))
    return path


@pytest.fixture(scope="module")
def address(runs):
    with process(runs) as (found, _):
        yield found


@pytest.fixture(scope="module")
def ids(address):
    def listed():
        found = json.loads(urlopen(address + "api/runs").read())
        return found if len(found) == 5 and all(r["forecast"] for r in found) else None

    return {run["name"]: run["id"] for run in wait_for(listed)}


def until(page, what):
    wait_for(lambda: page.evaluate(what))


def rows(page):
    return page.locator(".list tbody tr:not(.grouped)")


def opened(open_page, address, view="#/", **more):
    page = open_page(address + view, **more)
    page.wait_for_selector(".list tbody tr")
    return page


SHIFTS = """
    window.shifted = 0;
    new PerformanceObserver((list) => {
        for (const each of list.getEntries())
            if (!each.hadRecentInput) window.shifted += each.value;
    }).observe({ type: "layout-shift", buffered: true });
"""


def shift(page):
    page.evaluate(SHIFTS)
    page.wait_for_timeout(300)
    return page.evaluate("window.shifted")


def test_the_list_has_a_line_a_run_and_columns_that_differ(open_page, address, ids, shot):
    page = opened(open_page, address)
    heads = page.locator(".list thead th.knob").all_inner_texts()
    assert any("lr" in head for head in heads) and not any("generations" in head for head in heads)
    heights = page.evaluate(
        "[...document.querySelectorAll('.list tbody tr')].map(r => r.offsetHeight)"
    )
    assert len(heights) == 5 and max(heights) <= 36
    assert shift(page) < 0.1
    page.locator("summary", has_text="columns").click()
    page.get_by_label("Find a key of the recipe").fill("batch.generations")
    page.get_by_label("batch.generations").check()
    page.get_by_role("columnheader", name="generations").wait_for()
    assert "cols=" in page.url
    shot(page, "list-columns")


def test_conditions_filter_by_recipe_facts_and_words(open_page, address, ids):
    page = opened(open_page, address)
    search = page.get_by_label("Find a run")
    for text, count in (
        ("seed=1", 2), ("lr>1e-4 seed=0", 2), ("optimiser.lr=0.00011", 2), ("name=lr-*", 2),
        ("seed!=0", 2), ("pass>2", 0), ("batch.generations=16", 5), ("lr=no", 0), ("plays", 1),
    ):  # fmt: skip
        search.fill(text)
        wait_for(lambda count=count: rows(page).count() == count)
    search.fill("seed=1")
    wait_for(lambda: rows(page).count() == 2)
    again = open_page(page.evaluate("location.href"))
    wait_for(lambda: rows(again).count() == 2)


def test_seeds_are_one_line_and_one_curve(open_page, address, ids, shot):
    page = opened(open_page, address, "#/?group=1")
    line = page.locator("tr.grouped", has_text="lr-0.00011 (2)")
    assert "±" in line.inner_text() and rows(page).count() == 0
    shot(page, "list-grouped")
    line.locator(".fold").click()
    wait_for(lambda: rows(page).count() == 2)
    page.get_by_label("Show the runs of lr-0.00011 in the chart").check()
    page.get_by_label("Show the runs of scalerl+tiny in the chart").first.check()
    page.get_by_role("button", name="mean of seeds").click()
    until(page, "window.overlayChart?.runs.some(r => r.curve.used[0].length === 42)")
    page.get_by_text("mean of 2 seeds").first.wait_for()
    assert "seeds=1" in page.url
    shot(page, "overlay-seeds")


def test_runs_are_pinned_tagged_and_hidden(open_page, address, ids, runs, shot):
    page = opened(open_page, address, f"#/?with={ids['scalerl+tiny-s1']}")
    page.get_by_role("button", name="pin", exact=True).click()
    page.locator(".star:not([hidden])").wait_for()
    assert page.locator(".list tbody th a").first.inner_text() == "scalerl+tiny-s1"
    tag = page.get_by_label("Tag for the chosen runs")
    tag.fill("to beat")
    tag.press("Enter")
    page.locator(".list .tag", has_text="to beat").wait_for()
    shot(page, "list-annotated")
    page.get_by_label("Find a run").fill('tag="to beat"')
    wait_for(lambda: rows(page).count() == 1)
    page.get_by_label("Find a run").fill("")
    page.get_by_role("button", name="hide", exact=True).click()
    wait_for(lambda: rows(page).count() == 4)
    page.get_by_role("button", name="1 hidden").click()
    wait_for(lambda: rows(page).count() == 5)
    kept = json.loads((runs / FILE).read_text())["runs"]["study/runs/scalerl+tiny-s1"]
    assert kept["pinned"] and kept["hidden"] and kept["tags"] == ["to beat"]
    page.get_by_role("button", name="unhide").click()
    page.get_by_role("button", name="unpin").click()


def test_a_view_is_saved_under_a_name(open_page, address, ids):
    page = opened(open_page, address, "#/?q=seed%3D1")
    page.locator("summary", has_text="views").click()
    page.get_by_label("Name of this view").fill("second seeds")
    page.get_by_role("button", name="save").click()
    page.locator("option", has_text="second seeds").wait_for(state="attached")
    other = opened(open_page, address)
    other.locator("summary", has_text="views").click()
    other.locator("option", has_text="second seeds").wait_for(state="attached")
    other.get_by_label("Saved views").select_option(label="second seeds")
    wait_for(lambda: rows(other).count() == 2)


def test_a_point_shows_its_value_interval_and_step(open_page, address, ids, shot):
    page = open_page(f"{address}#/run/{ids['plays']}")
    until(page, "window.runChart?.runs[0]?.curve.median.length > 0")
    page.locator(".marks .event").first.wait_for()
    x, y = page.evaluate("""() => {
        const { plot, runs } = window.runChart, box = plot.over.getBoundingClientRect();
        const [xs, ys] = runs[0].curve.used;
        return [box.left + plot.valToPos(xs[12], 'x'), box.top + plot.valToPos(ys[12], 'y')];
    }""")
    page.mouse.move(x - 30, y - 60)
    page.mouse.move(x + 2, y + 2)
    tip = page.locator("#curve .tip")
    tip.wait_for()
    assert "one evaluation" in tip.inner_text() and "step 120" in tip.inner_text()
    shot(page, "run-point")
    mark = page.locator(".marks .event").first
    mark.hover()
    wait_for(lambda: "warning at step 40" in tip.inner_text())
    small = page.locator("#inside svg[data-x]").first
    small.hover()
    wait_for(lambda: "step" in page.locator("#inside .tip").inner_text())


def test_health_is_shown_with_the_cost_of_a_price(open_page, address, ids, shot):
    page = open_page(f"{address}#/run/{ids['plays']}")
    page.locator(".vital").first.wait_for()
    said = page.locator(".vitals").inner_text()
    for words in (
        "Staleness",
        "waits for rollouts",
        "with gradient",
        "in the environment",
        "token",
    ):
        assert words in said, words
    page.get_by_label("Cost of a device-hour").fill("2")
    page.get_by_label("Cost of a device-hour").press("Enter")
    page.get_by_text("so far").wait_for()
    # 300 steps of .001 device-hours each.
    assert "0.6" in page.locator(".vital", has_text="Cost").inner_text() and "hour=2" in page.url
    page.evaluate("document.getElementById('health').scrollIntoView()")
    shot(page, "run-health")


def metrics(open_page, address, ids, query="", **more):
    chosen = ",".join(key for name, key in ids.items() if name != "plays")
    page = open_page(f"{address}#/metrics?with={chosen}{query}", **more)
    until(page, "window.stepCharts?.size && [...window.stepCharts.values()][0].chart.lines.length")
    return page


def test_step_metrics_are_drawn_zoomed_smoothed_and_read(open_page, address, ids, shot):
    page = metrics(open_page, address, ids, "&m=reward,grad_norm")
    first = "[...window.stepCharts.values()][0].chart"
    assert page.evaluate(f"{first}.lines.length") == 4
    assert shift(page) < 0.1
    box = page.locator(".metric .u-over").first.bounding_box()
    page.mouse.move(box["x"] + 60, box["y"] + 90)
    tip = page.locator(".metric .tip").first
    tip.wait_for()
    assert tip.inner_text().count("step ") == 4
    shot(page, "metrics-read")
    page.mouse.down()
    page.mouse.move(box["x"] + 160, box["y"] + 90, steps=5)
    page.mouse.up()
    until(page, "location.hash.includes('from=') && location.hash.includes('to=')")
    until(page, f"{first}.range().last < 50")
    rough = page.evaluate(f"{first}.lines[0].y")
    page.get_by_label("Smoothing").fill("0.8")
    smooth = page.evaluate(f"{first}.lines[0].y")
    assert max(smooth) - min(smooth) < max(rough) - min(rough)
    page.get_by_role("button", name="log y").click()
    assert page.evaluate("[...window.stepCharts.values()][1].chart.plot.scales.y.distr") == 3
    page.get_by_role("button", name="whole").click()
    until(page, f"{first}.range().last === 60")
    page.get_by_role("button", name="mean of seeds").click()
    until(page, f"{first}.lines.length === 2 && {first}.lines[0].low.length > 10")
    page.get_by_label("Horizontal axis").select_option(label="FLOPs")
    until(page, f"{first}.range().last > 1e11")
    page.locator("summary", has_text="metrics").click()
    page.get_by_label("Find a metric").fill("entropy")
    page.get_by_label("entropy").first.check()
    until(page, "window.stepCharts.size === 3")
    again = open_page(page.url)
    until(again, "window.stepCharts?.size === 3")
    shot(page, "metrics-seeds")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", ["list", "group", "overlay", "metrics", "run"])
def test_a_phone_shows_it_without_sideways_scroll(open_page, address, ids, scheme, view, shot):
    some = f"{ids['scalerl+tiny-s0']},{ids['lr-0.00011-s0']}"
    where = {
        "list": "#/", "group": "#/?group=1", "overlay": f"#/?with={some}",
        "metrics": f"#/metrics?with={some}", "run": f"#/run/{ids['plays']}",
    }[view]  # fmt: skip
    ready = {"overlay": ".chosen a", "metrics": ".metric canvas", "run": ".vital"}
    page = open_page(address + where, width=390, height=844, scheme=scheme)
    page.locator(ready.get(view, ".list tbody tr")).first.wait_for()
    page.wait_for_timeout(500)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    shot(page, f"many-{view}-phone-{scheme}", full_page=True)


def test_a_study_begins_with_its_curves(open_page, address, ids, shot):
    page = open_page(address)
    page.get_by_role("link", name="Studies (1)").click()
    page.get_by_role("link", name="study", exact=True).click()
    page.locator("#curves svg").first.wait_for()
    assert page.locator("#curves svg").count() == 2
    order = page.locator("#view h2:visible").all_inner_texts()
    assert order[0] == "Curves"
    page.locator("#curves svg").nth(1).hover()
    wait_for(lambda: "FLOPs" in page.locator("#curves .tip").inner_text())
    shot(page, "study-curves")
