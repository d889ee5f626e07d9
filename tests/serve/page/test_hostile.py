"""Script in every field that the page shows: it is text, wherever it came from."""

import json
import os
import time

import pytest
from made_episodes import made_episodes
from made_records import made_run
from reading import episodes_of
from serving import get, process, wait_for
from test_hostile_episodes import fuzzed_lines

from made_study import made_study
from scalerl.runs.lines import EpisodeLine

#: Fuzzed episodes: few here, 10,000 by `make hostile`.
COUNT = int(os.environ.get("FUZZED_EPISODES", "150"))
#: Seconds that the page may take for one episode on a machine that does other work as well.
SLOW = 20.0
EVIL = "<img src=x onerror=alert(1)><script>alert(2)<\\script>"
QUOTED = '"' + EVIL.replace('"', '""') + '"'


@pytest.fixture
def hostile(tmp_path):
    """Names of files, runs, columns, recipes, groups; prompts, answers, warnings, ends, waits."""
    root = tmp_path / "runs"
    run = made_run(root / EVIL, n=12, steps=60, answer=EVIL, warning=EVIL, set=EVIL)
    recipe = run / "recipe.toml"
    name = f"name = {json.dumps(EVIL)}"
    recipe.write_text(recipe.read_text().replace('name = "scalerl+tiny"', name))
    (run / "recipe.json").write_text(json.dumps({"recipe": {"name": EVIL}}))
    with (run / "events.jsonl").open("a") as file:
        file.write(json.dumps({"step": 61, "event": "failed", "why": EVIL}) + "\n")
    waits = made_run(root / "waits", n=8, steps=20, seed=1)
    (waits / "events.jsonl").unlink()
    told = {"step": 20, "waits_for": EVIL, "time": time.time() + 3600}
    (waits / "status.json").write_text(json.dumps(told))
    rows = "".join(f"{QUOTED},{i},{2 * i},0.{i + 10}\n" for i in range(1, 30))
    (root / "log.csv").write_text(f"run,step,{QUOTED},val_acc\n" + rows)
    (root / f"{EVIL}.csv").write_text("a,b\n1,x\n")
    made_study(root / "study <script>alert(3)<script>", variants=2, seeds=1, evals=11, steps=20)
    return root


def test_no_field_runs_a_script(open_page, hostile):
    with process(hostile) as (address, _):
        page = open_page(address)
        alerts = []
        page.on("dialog", lambda dialog: (alerts.append(dialog.message), dialog.dismiss()))
        page.wait_for_selector(".list tbody tr")
        wait_for(lambda: "trainer" in page.locator(".list").inner_text() or EVIL in waiting(page))
        seen = [page.locator("#view").inner_text()]
        # Before they are grouped: a group is folded and has no links.
        links = page.evaluate("[...document.querySelectorAll('.list tbody th a')].map(a => a.hash)")
        page.get_by_role("button", name="group by recipe").click()
        for box in page.locator(".list .pick input").all()[:4]:
            box.check()
        wait_for(lambda: page.locator(".chosen tbody tr").count() > 1)
        clean(page, alerts)
        assert len(links) == 6
        for link in links:
            view(page, address, link)
            clean(page, alerts)
            seen.append(page.locator("#view").inner_text())
        view(page, address, "#/studies")
        page.locator(".members a").first.click()
        page.locator("#variants table").wait_for()
        clean(page, alerts)
        seen.append(page.locator("#view").inner_text())
        assert sum("<img src=x" in text for text in seen) >= 4, seen


def waiting(page):
    return " ".join(page.locator(".list td .small").all_inner_texts())


def view(page, address, link):
    page.goto(f"{address}{link}")
    page.wait_for_timeout(200)
    wait_for(lambda: page.evaluate("document.querySelector('h1')?.textContent !== '…'"))
    page.wait_for_timeout(1500)


def clean(page, alerts):
    assert page.locator("#view :is(img, script, iframe, [onload], [onerror])").count() == 0
    assert not page.evaluate("document.title").startswith("undefined")
    assert not alerts


def test_fuzzed_episodes_are_listed_and_read_and_nothing_runs(open_page, tmp_path):
    store = made_episodes(tmp_path / "runs" / "run", training=5)
    with (store.path / EpisodeLine.FILE).open("ab") as file:
        for line in fuzzed_lines(COUNT):
            file.write(line + b"\n")
    with process(tmp_path / "runs") as (address, _):
        wait_for(lambda: json.loads(get(address, "/api/runs")[2]))
        page = open_page(episodes_of(address, "run"))
        alerts = []
        page.on("dialog", lambda dialog: (alerts.append(dialog.message), dialog.dismiss()))
        listed = page.locator(".episode-list a")
        listed.first.wait_for()
        more = page.get_by_role("button", name="show more")
        while more.is_visible():
            before, begun = listed.count(), time.monotonic()
            more.click()
            wait_for(lambda before=before: listed.count() > before, SLOW)
            assert time.monotonic() - begun < SLOW
        assert listed.count() > 0.7 * COUNT
        clean(page, alerts)
        # Each of a few, and each twentieth of many: as a reader opens them.
        for i in range(0, listed.count(), max(COUNT // 500, 3)):
            link = listed.nth(i)
            key = link.get_attribute("data-id")
            begun = time.monotonic()
            link.evaluate("each => each.click()")
            wait_for(lambda key=key: key in page.locator(".facts-line").inner_text(), SLOW)
            assert time.monotonic() - begun < SLOW, key
            clean(page, alerts)
