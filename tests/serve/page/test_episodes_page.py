"""Episodes are found, read and compared in a real browser."""

from dataclasses import replace
from random import Random

import pytest
from made_reading import add, empty_passes, hostile, made_reading, tool_times_out
from made_records import add_play, made_run
from reading import episodes_of, is_wide, layout_shift, until, violations
from serving import process, wait_for

from scalerl.runs.store import RunStore, encode


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs")
    made_reading(path / "plain")
    made_reading(path / "grows", steps=range(1, 41))
    made_reading(path / "empty passes", empty_passes)
    made_reading(path / "tool times out", tool_times_out)
    made_reading(path / "hostile", hostile, steps=range(1, 26))
    add_play(made_reading(path / "from health", tool_times_out))
    made_run(path / "without", n=8, steps=20)
    return path


@pytest.fixture(scope="module")
def address(runs):
    with process(runs) as (found, _):
        yield found


@pytest.fixture
def read(open_page):
    """`read(address, width, height, scheme)`: the page, when its list is there."""

    def start(*where, **how):
        page = open_page(*where, **how)
        page.locator(".episode-list a").first.wait_for(state="attached")
        return page

    return start


def count(page):
    return page.locator(".found .count [role=status]").inner_text()


def bars(page, name):
    return page.get_by_role("group", name=f"{name}: choose a range").get_by_role("button")


def read_first(page):
    page.locator("h1").click()  # keys in a field are letters
    page.keyboard.press("j")
    page.locator(".segment.policy").first.wait_for()


def test_bars_of_histograms_filter_by_pointer_and_by_keyboard(read, address):
    page = read(episodes_of(address, "plain"))
    assert count(page) == "640 episodes"
    wrong = bars(page, "reward").first
    assert "reward 0:" in wrong.get_attribute("aria-label")
    wrong.click()
    until(page, "location.hash.includes('reward_max=')")
    wait_for(lambda: " of 640 episodes" in count(page))
    assert wrong.get_attribute("aria-pressed") == "true"
    assert page.locator(".episode-list .mark-right").count() == 0
    matched = int(count(page).split()[0])
    assert f"reward 0: {matched} of {matched} episodes" == wrong.get_attribute("aria-label")
    # By keyboard: one stop for each histogram, arrows inside it, Shift for a range.
    bars(page, "step").first.focus()
    page.keyboard.press("Enter")
    until(page, "location.hash.includes('step_to=7')")
    page.keyboard.press("Shift+ArrowRight")
    until(page, "location.hash.includes('step_to=14')")
    wait_for(lambda: 0 < int(count(page).split()[0]) < matched)
    page.get_by_role("button", name="clear filters").click()
    wait_for(lambda: count(page) == "640 episodes")
    assert "reward" not in page.url and "step" not in page.url


def test_an_address_restores_filters_episode_and_colour(read, address):
    page = read(episodes_of(address, "plain"))
    page.get_by_role("group", name="Filter by task").get_by_role("button", name="lookup").click()
    page.get_by_label("Find in text").fill("Answer: 7")
    page.get_by_label("From step").fill("30")
    page.get_by_label("From step").press("Enter")
    page.get_by_label("Order").select_option("oldest")
    wait_for(lambda: " of 640" in count(page) and "step=30" not in page.url)
    until(page, "document.querySelector('.episode-list .head').textContent.includes('step 31')")
    read_first(page)
    page.keyboard.press("c")
    until(page, "document.querySelectorAll('.legend li').length > 0")
    again = read(page.url)
    again.locator(".segment.policy .t").first.wait_for()
    assert again.get_by_label("Find in text").input_value() == "Answer: 7"
    assert again.get_by_label("From step").input_value() == "30"
    wait_for(lambda: count(again) == count(page))
    assert again.locator(".reader h2").inner_text() == page.locator(".reader h2").inner_text()
    assert again.locator(".legend").inner_text() == page.locator(".legend").inner_text()
    # A pattern that is none is said, and the next one is asked.
    again.get_by_role("button", name=".*", exact=True).click()
    again.get_by_label("Find in text").fill("(")
    again.get_by_text("unclosed group").wait_for()
    again.get_by_label("Find in text").fill("Answer: [5-7]$")
    wait_for(lambda: again.locator(".episodes > .said").inner_text() == "")


def test_an_episode_is_read_by_source_and_token_by_token(read, address):
    page = read(episodes_of(address, "tool times out", "?tool_failed=1"))
    page.locator(".episode-list a").first.click()
    page.locator(".segment.environment").wait_for()
    kinds = page.locator(".segment .about b").all_inner_texts()
    assert kinds == ["prompt", "policy", "environment", "policy"]
    head = page.locator(".reader-head").inner_text()
    assert "wrong" in head and "why: no answer" in head and "tool failed" in head
    assert "calls a tool" in page.locator(".segment.policy .about").first.inner_text()
    assert "reward 0.1" in page.locator(".segment.policy .about").first.inner_text()
    assert "timed out" in page.locator(".segment.environment").inner_text()
    options = page.get_by_label("Colour tokens by").locator("option").all_inner_texts()
    assert options == ["source", "version", "log-prob"]  # no ratio or entropy is recorded
    page.get_by_label("Colour tokens by").select_option("version")
    wait_for(lambda: page.locator(".legend li").count() == 2)
    assert page.locator(".segment.policy sup").count() >= 2
    page.get_by_label("Colour tokens by").select_option("logprob")
    page.locator(".t.s4").first.wait_for()
    page.locator(".text.tokens").first.focus()
    page.keyboard.press("ArrowRight")
    until(page, "document.querySelector('.token-facts').textContent.startsWith('token 1 · id 1')")
    assert "log-prob" in page.locator(".token-facts").inner_text()
    # The legend counts every token that the policy wrote.
    counted = page.locator(".legend li").all_inner_texts()
    tokens = page.locator(".segment.policy .t").count()
    assert sum(int(text.rsplit(None, 1)[1]) for text in counted) == tokens


def test_keys_go_through_episodes_and_find_failures(read, address):
    page = read(episodes_of(address, "plain", "?sort=oldest"))
    chosen = page.locator(".episode-list a[aria-current]")
    read_first(page)
    first = chosen.get_attribute("data-id")
    page.keyboard.press("j")
    wait_for(lambda: chosen.get_attribute("data-id") != first)
    page.keyboard.press("k")
    wait_for(lambda: chosen.get_attribute("data-id") == first)
    for _ in range(3):
        before = chosen.get_attribute("data-id")
        page.keyboard.press("n")
        wait_for(lambda: chosen.get_attribute("data-id") != before)  # noqa: B023
        assert "✗" in chosen.inner_text() or "length" in chosen.inner_text()
    page.keyboard.press("f")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Find in text"
    page.keyboard.type("j")  # a letter, not a key
    until(page, "location.hash.includes('text=j')")
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    page.get_by_role("heading", name="Keys").wait_for()
    page.keyboard.press("Escape")
    until(page, "!document.querySelector('dialog').open")
    page.keyboard.press("Escape")
    until(page, "location.hash.startsWith('#/run/')")


def test_a_page_ends_and_the_next_follows_under_the_hand(read, address):
    page = read(episodes_of(address, "plain"))
    assert page.locator(".episode-list a").count() == 50
    page.get_by_role("button", name="show more").click()
    wait_for(lambda: page.locator(".episode-list a").count() == 100)
    page.locator(".episode-list a").nth(99).click()
    page.keyboard.press("j")
    wait_for(lambda: page.locator(".episode-list a").count() == 150)
    box = page.locator(".episode-list").bounding_box()
    at = page.locator(".episode-list a[aria-current]").bounding_box()
    assert box["y"] <= at["y"] and at["y"] + at["height"] <= box["y"] + box["height"]


def test_a_group_stands_side_by_side(read, address):
    page = read(episodes_of(address, "plain"), width=900)
    read_first(page)
    page.keyboard.press("g")
    wait_for(lambda: page.locator(".column").count() == 4)
    assert page.locator(".column[aria-current]").count() == 1
    tops = {round(each.bounding_box()["y"]) for each in page.locator(".column").all()}
    assert len(tops) == 1
    assert page.evaluate("(n => n.scrollWidth > n.clientWidth)(document.querySelector('.columns'))")
    assert not is_wide(page)
    # A member is opened alone by its heading.
    other = page.locator(".column:not([aria-current]) h3 a").first
    to = other.get_attribute("href")
    other.click()
    until(page, f"location.hash === '{to}'")
    wait_for(lambda: page.locator(".column[aria-current] h3 a").get_attribute("href") == to)


def test_a_prompt_is_compared_across_versions(read, address):
    page = read(episodes_of(address, "plain", "?prompt=add%2F0"))
    read_first(page)
    page.keyboard.press("v")
    page.locator(".difference del").first.wait_for()
    assert page.locator(".versions tbody tr").count() == 100
    page.locator(".difference ins").first.wait_for()
    before = page.locator(".difference").inner_text()
    page.get_by_role("radio", name="Compare from").nth(5).check()
    wait_for(lambda: page.locator(".difference").inner_text() != before)
    assert "a=training" in page.url
    # An episode has no difference from itself.
    page.get_by_role("radio", name="Compare to").nth(5).check()
    page.get_by_text("the same text").wait_for()
    again = read(page.url)
    again.get_by_text("the same text").wait_for()


def test_new_episodes_wait_until_they_are_asked_for(read, address, runs):
    page = read(episodes_of(address, "grows"))
    page.locator(".episode-list").evaluate("n => { n.scrollTop = 300; }")
    first = page.locator(".episode-list a").first.get_attribute("data-id")
    add(runs / "grows", steps=range(41, 44))
    page.get_by_role("button", name="12 new episodes: show them").wait_for()
    assert page.locator(".episode-list").evaluate("n => n.scrollTop") == 300
    assert page.locator(".episode-list a").first.get_attribute("data-id") == first
    page.get_by_role("button", name="12 new episodes: show them").click()
    wait_for(lambda: count(page) == "172 episodes")
    assert page.locator(".episode-list a").first.get_attribute("data-id") != first
    assert page.locator(".fresh").is_hidden()


def test_a_run_without_episodes_says_what_to_set(open_page, address):
    page = open_page(address)
    page.wait_for_selector(".list tbody tr")
    page.get_by_role("link", name="without", exact=True).click()
    page.get_by_role("link", name="Episodes", exact=True).click()
    page.get_by_text("No episodes are recorded").wait_for()
    assert "record.episodes_per_step" in page.locator(".empty").inner_text()
    assert page.locator(".panes").is_hidden()


def test_hostile_episodes_are_text_in_their_own_direction(read, address, shot):
    page = read(episodes_of(address, "hostile"))
    alerts = []
    page.on("dialog", lambda dialog: (alerts.append(dialog.message), dialog.dismiss()))
    for _ in range(20):
        page.keyboard.press("j")
        page.wait_for_timeout(20)
    page.locator(".segment.forced").wait_for()
    text = page.locator(".segment.policy .text").inner_text()
    assert "<img src=x onerror=alert(" in text
    for hidden, escape in (("\u202e", "\\u202e"), ("\x1b", "\\u001b"), ("\u200b", "\\u200b")):
        assert hidden not in page.locator("#view").inner_text()
        assert escape in text
    assert "\\u{e0041}" in text
    page.get_by_label("Colour tokens by").select_option("logprob")
    page.locator(".t").first.wait_for()
    isolated = page.locator(".t").first.evaluate("n => getComputedStyle(n).unicodeBidi")
    assert isolated == "isolate"
    assert "more characters" in page.locator(".segment.policy").inner_text()
    shot(page, "episodes-hostile")
    for key in ("g", "v"):
        page.keyboard.press(key)
        page.locator(".columns, .difference .text").first.wait_for()
        assert page.locator("#view img, #view script").count() == 0
        assert "\u202e" not in page.locator("#view").inner_text()
    assert not alerts and not is_wide(page)


@pytest.mark.parametrize("width, height", [(1280, 900), (390, 844)], ids=["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_part_is_accessible_and_nothing_jumps(read, address, width, height, scheme, shot):
    link = episodes_of(address, "tool times out", "?task=lookup")
    page = read(link, width, height, scheme)
    page.wait_for_timeout(500)
    assert layout_shift(page) < 0.1
    found, name = {}, f"episodes-{'phone' if width < 500 else 'desktop'}-{scheme}"

    def check(part):
        page.wait_for_timeout(200)
        until(page, "!document.querySelector('.busy')")  # fainter until the answer is there
        shot(page, f"{name}-{part}")
        found[part] = violations(page) | ({"wide": True} if is_wide(page) else {})

    check("list")
    read_first(page)
    check("episode")
    for colour in ("version", "logprob"):
        page.get_by_label("Colour tokens by").select_option(colour)
        page.locator(".legend li").first.wait_for()
        check(colour)
    page.locator(".reader h2").click()
    page.keyboard.press("g")
    page.locator(".column").first.wait_for()
    check("group")
    page.keyboard.press("v")
    page.locator(".difference .text").wait_for()
    check("prompt")
    page.keyboard.press("?")
    page.get_by_role("heading", name="Keys").wait_for()
    check("keys")
    assert not any(found.values()), found
    # Opened at an episode, as a link does it.
    again = read(page.url.replace("beside=prompt", "beside="), width, height, scheme)
    again.locator(".segment.policy").first.wait_for(state="attached")
    again.wait_for_timeout(500)
    assert layout_shift(again) < 0.1


def test_on_a_phone_back_leads_from_the_episode_to_the_list(read, address):
    page = read(episodes_of(address, "plain"), width=390, height=844)
    page.locator(".episode-list a").nth(9).click()
    page.locator(".segment.policy").wait_for()
    assert not page.locator(".episode-list").is_visible()
    page.get_by_role("button", name="next failure").click()
    wait_for(lambda: "wrong" in page.locator(".reader h2").inner_text())
    page.go_back()
    page.locator(".episode-list").wait_for()
    assert "open=" not in page.url and page.evaluate("scrollY") > 500
    page.locator(".episode-list a").nth(2).click()
    page.get_by_role("button", name="← list").click()
    page.locator(".episode-list").wait_for()


def test_a_verifier_that_passes_empty_answers_is_found(read, address, shot):
    """Short answers that are all right are odd; the histogram of steps says when they began."""
    page = read(episodes_of(address, "empty passes"))
    bars(page, "tokens").first.click()
    until(page, "location.hash.includes('length_max=')")
    results = page.get_by_role("group", name="Filter by result")
    wait_for(lambda: "/" in results.get_by_role("button", name="right").inner_text())
    assert "0/" in results.get_by_role("button", name="wrong").inner_text()
    begun = [
        i for i, each in enumerate(bars(page, "step").all())
        if ": 0 of" not in each.get_attribute("aria-label")
    ]  # fmt: skip
    assert "step 99 to 105:" in bars(page, "step").nth(begun[0]).get_attribute("aria-label")
    shot(page, "bug-empty-1")
    page.get_by_label("Order").select_option("oldest")
    until(page, "document.querySelector('.episode-list .head').textContent.includes('step 101')")
    read_first(page)
    assert page.locator(".segment.policy .text").inner_text() == "<eos>"
    assert "why: equal" in page.locator(".facts-line").inner_text()
    shot(page, "bug-empty-2")


def test_a_tool_that_times_out_for_one_task_is_found(read, address, shot):
    """Failed tool calls are all of one task, and the first one says why."""
    page = read(episodes_of(address, "tool times out"))
    page.get_by_role("button", name="tool failed").click()
    tasks = page.get_by_role("group", name="Filter by task")
    wait_for(lambda: "/" in tasks.get_by_role("button", name="lookup").inner_text())
    counts = {
        each.get_attribute("data-value"): int(each.inner_text().split()[-1].split("/")[0])
        for each in tasks.get_by_role("button").all()
    }
    assert counts["lookup"] > 100 and counts["add"] == counts["sort"] == 0
    shot(page, "bug-tool-1")
    read_first(page)
    assert "lookup timed out after 5 s" in page.locator(".segment.environment").inner_text()
    shot(page, "bug-tool-2")


def test_the_numbers_of_health_lead_to_their_episodes(open_page, address):
    """A run's page says that tool calls fail, and its link shows the episodes."""
    page = open_page(episodes_of(address, "from health").replace("#/episodes/", "#/run/"))
    card = page.locator(".vital", has=page.get_by_role("heading", name="Environment"))
    card.get_by_role("link", name="those in which a tool failed").click()
    until(page, "location.hash.includes('/episodes/') && location.hash.includes('tool_failed=1')")
    page.locator(".episode-list a").first.wait_for()
    failed = page.locator(".found .count [role=status]").inner_text().split()
    assert 0 < int(failed[0]) < int(failed[2].replace(",", ""))


def test_names_of_tasks_are_shown_without_what_all_begin_with(open_page, runs, address):
    lines = [
        replace(empty_passes(step, 0, Random(1)), task=f"environment:games:{name}", prompt=name)
        for step, name in enumerate(("Stock", "Weather", "Sport"), start=1)
    ]
    RunStore(made_run(runs / "named", n=8, steps=20), resume=True).append_episodes(
        map(encode, lines), 10**9
    )
    page = open_page(episodes_of(address, "named"))
    tasks = page.get_by_role("group", name="Filter by task").get_by_role("button")
    wait_for(lambda: tasks.count() == 3)
    assert {each.inner_text().split()[0] for each in tasks.all()} == {"Stock", "Weather", "Sport"}
    assert "environment:games:Stock: 1" in {each.get_attribute("title") for each in tasks.all()}
