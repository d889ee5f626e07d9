"""The page in a real browser, keyboard and pointer and all."""

import csv
import io
import json
import math
import shutil
import zipfile

import pytest
from made_records import made_run
from serving import process, wait_for

from made_study import made_study

EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs")
    made_run(path / "first", n=41, steps=300)
    made_run(path / "second", n=41, steps=300, seed=1)
    slow = made_run(path / "slow", n=41, steps=300, seed=4)
    lines = [json.loads(line) for line in (slow / "evals.jsonl").open()]
    for line in lines:  # a lower ceiling, which only its end shows
        line["pass_rate"] = 0.1 + 0.3 * (1 - math.exp(-(line["pass_rate"] - 0.1) / 0.3))
    (slow / "evals.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    made_run(path / "hostile", n=12, steps=60, seed=2, answer=EVIL, warning=EVIL, set=EVIL)
    rows = "".join(f"{EVIL},{i * 10},{0.2 + 0.5 * i / (i + 20):.4f}\n" for i in range(1, 30))
    (path / "log.csv").write_text("run,step,val_acc\n" + rows)
    made_study(path / "study", variants=3, seeds=1, evals=21, steps=60)
    return path


@pytest.fixture(scope="module")
def address(runs):
    with process(runs) as (found, _):
        yield found


def until(page, what):
    """By asking again and again: waiting inside the page would evaluate text, which its policy
    refuses."""
    wait_for(lambda: page.evaluate(what))


def open_run(page, name):
    page.wait_for_selector(".list tbody tr")
    page.get_by_role("link", name=name, exact=True).click()
    until(page, "document.querySelector('.facts b') && document.querySelector('.lead').textContent")


def fact(page, name):
    return page.locator(".facts div", has_text=name).locator("b").first.inner_text()


def taken(page, name, chart):
    """A handle of a chart in the hand, and where: wherever the page has moved it to meanwhile."""
    handle = page.get_by_role("slider", name=name)
    handle.hover()
    page.mouse.down()
    until(page, f"window.{chart}.holding !== null")
    box = handle.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def drag_left(page, chart, each):
    """The end of the window, in twelve moves of so many pixels."""
    x, y = taken(page, "End of the fitted window", chart)
    for i in range(1, 13):
        page.mouse.move(x - each * i, y)
        page.wait_for_timeout(40)
    page.mouse.up()
    until(page, "location.hash.includes('to=')")


def test_a_run_that_grows_is_drawn_without_reload(open_page, tmp_path, shot):
    whole = made_run(tmp_path / "whole", n=31, steps=150)
    lines = (whole / "evals.jsonl").read_text().splitlines(keepends=True)
    folder = tmp_path / "runs"
    run = folder / "grows"
    run.mkdir(parents=True)
    shutil.copy(whole / "recipe.toml", run)
    (run / "evals.jsonl").write_text("".join(lines[:10]))
    with process(folder) as (address, _):
        page = open_page(address)
        open_run(page, "grows")
        page.evaluate("window.unchanged = true")
        before = fact(page, "Now")
        for line in lines[10:20]:
            with (run / "evals.jsonl").open("a") as file:
                file.write(line)
        until(page, "document.querySelector('.sub').textContent.includes('20 evaluations')")
        until(page, "window.runChart.runs[0].curve.used[0].length === 20")
        until(page, f"document.querySelector('.facts b').textContent !== '{before}'")
        made_run(folder / "another", n=8, steps=20)
        page.get_by_role("link", name="Runs", exact=True).click()
        page.get_by_role("link", name="another", exact=True).wait_for()
        assert page.evaluate("window.unchanged")


def test_an_empty_directory_says_what_to_do_until_a_run_comes(open_page, tmp_path):
    with process(tmp_path) as (address, _):
        page = open_page(address)
        page.get_by_text("No runs yet").wait_for()
        assert "scalerl train" in page.locator(".empty").inner_text()
        made_run(tmp_path / "first", n=8, steps=20)
        page.get_by_role("link", name="first", exact=True).wait_for()
        until(page, "document.querySelector('.empty').hidden")


def test_the_window_and_the_budget_are_dragged(open_page, address, shot):
    page = open_page(address)
    open_run(page, "first")
    shot(page, "run-light", full_page=True)
    before = {name: fact(page, name) for name in ("Now", "Next doubling")}
    drag_left(page, "runChart", 20)
    until(page, "window.runChart.runs[0].curve.held[0].length > 3")
    until(page, f"document.querySelector('.facts b').textContent !== '{before['Now']}'")
    assert page.evaluate("performance.getEntriesByName('refit').length") > 0
    budget = page.get_by_role("slider", name="Budget")
    at = float(budget.get_attribute("aria-valuenow"))
    x, y = taken(page, "Budget", "runChart")
    page.mouse.move(x - 72, y, steps=5)
    page.mouse.up()
    until(page, "location.hash.includes('budget=')")
    assert float(budget.get_attribute("aria-valuenow")) < at
    # The link restores it all.
    said = page.locator(".facts").inner_text()
    again = open_page(page.url)
    until(again, "document.querySelector('.lead')?.textContent.length > 10")
    wait_for(lambda: again.locator(".facts").inner_text() == page.locator(".facts").inner_text())
    assert said


def test_axis_scale_target_and_price(open_page, address):
    page = open_page(address)
    open_run(page, "first")
    page.get_by_label("Kind of compute").select_option(label="optimizer steps")
    until(page, "window.runChart.runs[0].curve.unit === 'optimizer steps'")
    until(page, "location.hash.includes('axis=steps')")
    page.get_by_role("button", name="log axis").click()
    until(page, "window.runChart.log === false && location.hash.includes('linear=1')")
    page.get_by_label("target").fill("0.7")
    page.get_by_label("target").press("Enter")
    page.locator(".facts div", has_text="Target 0.7").wait_for()
    page.get_by_label("price").fill("2")
    page.get_by_label("price").press("Enter")
    page.locator(".facts div", has_text="Cost of going on").wait_for()
    page.get_by_label("value").fill("1k")
    page.get_by_label("value").press("Enter")
    page.locator(".facts div", has_text="Advice").wait_for()
    page.get_by_label("value").fill("lots")
    page.get_by_label("value").press("Enter")
    assert page.get_by_label("value").get_attribute("aria-invalid") == "true"


def test_what_was_known_earlier_is_replayed(open_page, address):
    page = open_page(address)
    open_run(page, "first")
    slider = page.get_by_role("slider", name="As it was known at")
    slider.focus()
    for _ in range(4):
        slider.press("PageDown")
    until(page, "location.hash.includes('known=')")
    until(page, "window.runChart.runs[0].curve.held[0].length > 3")
    assert "points" in slider.get_attribute("aria-valuetext")
    slider.press("End")
    until(page, "!location.hash.includes('known=')")
    until(page, "window.runChart.runs[0].curve.held[0].length === 0")


def test_chosen_runs_are_drawn_over_each_other_with_a_verdict(open_page, address, shot):
    page = open_page(address)
    page.wait_for_selector(".list tbody tr")
    shot(page, "list-light")
    page.get_by_label("Show first in the chart").check()
    page.get_by_label("Show second in the chart").check()
    until(page, "window.overlayChart?.runs.length === 2")
    lead = page.locator("section[aria-labelledby=over] .lead")
    wait_for(lambda: "first" in lead.inner_text() and "second" in lead.inner_text())
    assert "with=" in page.url
    again = open_page(page.url)
    until(again, "window.overlayChart?.runs.length === 2")
    shot(again, "overlay-light")


def test_window_and_budget_of_chosen_runs_move_their_verdict(open_page, address, shot):
    page = open_page(address)
    page.wait_for_selector(".list tbody tr")
    page.get_by_label("Show first in the chart").check()
    page.get_by_label("Show slow in the chart").check()
    lead = page.locator("section[aria-labelledby=over] .lead")
    wait_for(lambda: "higher ceiling" in lead.inner_text())
    drag_left(page, "overlayChart", 32)
    until(page, "window.overlayChart.runs.every(r => r.curve.held[0].length > 3)")
    wait_for(lambda: "higher ceiling" not in lead.inner_text() and "busy" not in classes(lead))
    assert "first" in lead.inner_text() and "slow" in lead.inner_text()
    field = page.get_by_label("budget", exact=True)
    field.fill("9T")
    field.press("Enter")
    page.get_by_role("columnheader", name="At 9T FLOPs").wait_for()
    page.get_by_role("button", name="whole runs").click()
    wait_for(lambda: "higher ceiling" in lead.inner_text())
    shot(page, "overlay-verdict")


def test_a_run_that_drops_out_under_the_hand_does_not_end_the_drag(open_page, address):
    page = open_page(address)
    page.wait_for_selector(".list tbody tr")
    page.get_by_label("Show first in the chart").check()
    page.get_by_label("Show hostile in the chart").check()
    until(page, "window.overlayChart?.runs.length === 2")
    x, y = taken(page, "Start of the fitted window", "overlayChart")
    end = page.get_by_role("slider", name="End of the fitted window").bounding_box()
    far = end["x"] + end["width"] / 2 - x
    for i in range(1, 12):
        page.mouse.move(x + 0.06 * i * far, y)
        page.wait_for_timeout(80)
    until(page, "window.overlayChart.runs.length === 1")
    at = page.evaluate("window.overlayChart.marks.lo")
    page.mouse.move(x + 0.75 * far, y)
    wait_for(lambda: page.evaluate("window.overlayChart.marks.lo") > at)
    page.mouse.up()
    until(page, "window.overlayChart.holding === null && location.hash.includes('from=')")


def classes(node):
    return node.get_attribute("class")


def test_chosen_runs_are_taken_away_together(open_page, address):
    page = open_page(address)
    page.wait_for_selector(".list tbody tr")
    page.get_by_label("Show first in the chart").check()
    page.get_by_label("Show second in the chart").check()
    until(page, "window.overlayChart?.runs.length === 2")
    with page.expect_download() as coming:
        page.locator(".exports").get_by_role("link", name="CSV", exact=True).click()
    rows = list(csv.DictReader(coming.value.path().open()))
    assert {row["run"] for row in rows} == {"first", "second"}


def test_the_list_is_sorted_filtered_and_grouped(open_page, address):
    page = open_page(address)
    until(page, "document.querySelectorAll('.list tbody tr').length >= 7")
    wait_for(lambda: "being fitted" not in page.locator(".list").inner_text())
    page.get_by_role("button", name="Pass rate").click()
    rates = [float(t) for t in page.locator("tbody td:nth-child(6)").all_inner_texts() if t != "–"]
    assert rates == sorted(rates, reverse=True)
    assert page.locator("th[aria-sort=descending]").inner_text().startswith("Pass rate")
    page.get_by_label("Find a run").fill("study")
    until(page, "document.querySelectorAll('.list tbody tr').length === 3")
    page.get_by_label("Find a run").fill("")
    page.get_by_role("button", name="group by recipe").click()
    page.locator("tr.grouped").first.wait_for()
    group = page.locator("tr.grouped", has_text="lr-0.00011 (1)")
    group.get_by_role("button", name="draw these").click()
    until(page, "window.overlayChart?.runs.length === 1")


def test_a_study_shows_its_table_and_its_map(open_page, address, shot):
    page = open_page(address)
    page.get_by_role("link", name="Studies (1)").click()
    page.get_by_role("link", name="study", exact=True).click()
    page.locator("#variants table").wait_for()
    assert page.locator("#variants tbody tr").count() == 3
    page.locator("#knobs svg path").first.wait_for(state="attached")
    drawn = page.locator("#knobs svg path").first.evaluate("n => n.getAttribute('style')")
    assert drawn and "fill" in drawn  # colours are set although the policy refuses style in markup
    assert page.locator(".members .card").count() == 3
    shot(page, "study-light", full_page=True)
    page.locator(".members a").first.click()
    until(page, "document.querySelector('.facts b')")


def test_a_racing_study_fills_while_the_page_is_open(open_page, tmp_path, shot):
    study = made_study(tmp_path / "runs" / "race", variants=3, seeds=1, evals=21, steps=60)
    plan = study.path / "study.toml"
    plan.write_text("race = true\n" + plan.read_text())
    member = study.members[1].path
    later = tmp_path / "later"
    shutil.copytree(member, later)
    short = {"evals.jsonl": 9, "steps.jsonl": 24, "events.jsonl": 0}
    for name, lines in short.items():
        text = (later / name).read_text().splitlines(keepends=True)
        (member / name).write_text("".join(text[:lines]))
    for file in (member / "evals").iterdir():
        file.unlink()
    with process(tmp_path / "runs") as (address, _):
        page = open_page(address)
        page.get_by_role("link", name="Studies (1)").click()
        page.get_by_role("link", name="race", exact=True).click()
        page.get_by_text("Next is").wait_for()
        assert member.name in page.get_by_text("Next is").inner_text()
        assert "2 done" in page.locator(".sub").inner_text()
        shot(page, "race-light", full_page=True)
        before = page.locator("#variants").inner_text()
        for name, lines in short.items():
            text = (later / name).read_text().splitlines(keepends=True)
            with (member / name).open("a") as file:
                file.write("".join(text[lines:]))
        until(page, "document.querySelector('.sub').textContent.includes('3 done')")
        page.get_by_text("It is over").wait_for()
        assert page.locator("#variants").inner_text() != before


def test_a_link_to_a_run_has_the_recipe_beside_another(open_page, address):
    page = open_page(address)
    open_run(page, "first")
    again = open_page(page.url)
    choice = again.get_by_label("Compare the recipe with that of")
    until(again, "document.querySelector('[aria-labelledby=beside] select')?.options.length > 2")
    label = choice.locator("option", has_text="second").inner_text()
    choice.select_option(label=label)
    again.get_by_role("cell", name="seed", exact=True).or_(
        again.locator("[aria-labelledby=beside] th", has_text="seed")
    ).first.wait_for()
    assert "beside=" in again.url


def test_figures_data_and_report_are_taken_away(open_page, address):
    page = open_page(address)
    open_run(page, "first")
    starts = {
        "PNG": b"\x89PNG",
        "SVG": b"<?xml",
        "CSV": b"run,kind,",
        "JSON": b"{",
        "report": b"PK",
    }
    for label, start in starts.items():
        with page.expect_download() as coming:
            page.locator(".exports").get_by_role("link", name=label, exact=True).click()
        data = coming.value.path().read_bytes()
        assert data.startswith(start), label
        if label == "JSON":
            assert json.loads(data)["fit"]["run"] == "first"
        if label == "report":
            assert "report.html" in zipfile.ZipFile(io.BytesIO(data)).namelist()


def test_a_server_that_is_gone_is_said_and_its_return_is_not(open_page, runs):
    with process(runs) as (address, _):
        page = open_page(address)
        open_run(page, "first")
        port = address.rstrip("/").rpartition(":")[2]
    page.get_by_text("The connection to the server is lost").wait_for()
    page.get_by_role("link", name="Runs", exact=True).click()
    with process(runs, "--port", port):
        until(page, "document.getElementById('gone').hidden")
        open_run(page, "second")
        assert fact(page, "Now")


def test_everything_is_done_by_keyboard(open_page, address):
    page = open_page(address)
    page.wait_for_selector(".list tbody tr")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.type") == "search"
    page.keyboard.type("first")
    until(page, "document.querySelectorAll('.list tbody tr').length === 1")
    for _ in range(30):  # past the buttons and the heads of the columns
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.type") == "checkbox":
            break
    page.keyboard.press("Space")
    until(page, "window.overlayChart?.runs.length === 1")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "first"
    page.keyboard.press("Enter")
    until(page, "document.querySelector('.facts b') && document.querySelector('.lead').textContent")
    names = []
    for _ in range(40):
        page.keyboard.press("Tab")
        names.append(page.evaluate("document.activeElement.getAttribute('aria-label')"))
        if names[-1] == "End of the fitted window":
            break
    assert {"Kind of compute", "budget", "target", "Start of the fitted window"} <= set(names)
    for _ in range(6):
        page.keyboard.press("ArrowLeft")
    until(page, "location.hash.includes('to=')")
    until(page, "window.runChart.runs[0].curve.held[0].length === 6")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == names[-1]
    page.keyboard.press("Escape")
    until(page, "location.hash === '#/'")


def test_every_control_has_a_name(open_page, address):
    page = open_page(address)
    open_run(page, "first")
    nameless = page.evaluate(
        """() => [...document.querySelectorAll('a, button, input, select, [role=slider]')]
        .filter(n => n.offsetParent && !(n.getAttribute('aria-label') || n.textContent.trim()
            || n.labels?.length)).map(n => n.outerHTML)"""
    )
    assert nameless == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_has_room_for_everything(open_page, address, scheme, shot):
    page = open_page(address, width=390, height=844, scheme=scheme)
    page.wait_for_selector(".list tbody tr")
    until(page, "document.querySelector('.list .range')")
    wide = "document.documentElement.scrollWidth <= innerWidth"
    assert page.evaluate(wide)
    shot(page, f"list-phone-{scheme}")
    open_run(page, "first")
    assert page.evaluate(wide)
    shot(page, f"run-phone-{scheme}")
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 26)"}[scheme]


def test_hostile_text_is_shown_as_text(open_page, address):
    page = open_page(address)
    alerts = []
    page.on("dialog", lambda dialog: (alerts.append(dialog.message), dialog.dismiss()))
    page.get_by_text("<img src=x").first.wait_for()
    open_run(page, "hostile")
    page.get_by_text("<img src=x").first.wait_for()
    assert page.locator("#view img, #view script").count() == 0
    assert not alerts


def test_dark_mode_follows_the_reader(open_page, address, shot):
    page = open_page(address, scheme="dark")
    page.wait_for_selector(".list tbody tr")
    shot(page, "list-dark")
    open_run(page, "first")
    shot(page, "run-dark", full_page=True)
    before = page.evaluate("window.runChart.plot.axes[0].stroke()")
    page.emulate_media(color_scheme="light")
    until(page, f"window.runChart.plot.axes[0].stroke() !== '{before}'")
