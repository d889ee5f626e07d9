"""Episodes hold what a model wrote: markup, control characters, marks that turn text around, values
of any type, lines of megabytes. Nothing of it runs, hangs, or reaches a terminal.

A small number is tried here; `make hostile` tries 10,000.
"""

import io
import json
import os
import random
import time
import unicodedata
from contextlib import redirect_stdout

import pytest
from made_episodes import episode, made_episodes
from serving import Page

from scalerl.cli import main
from scalerl.report.episode_text import episode_text, width_of
from scalerl.runs.episode_log import EpisodeLog
from scalerl.runs.episode_view import detail
from scalerl.runs.lines import EpisodeLine

COUNT = int(os.environ.get("FUZZED_EPISODES", "150"))
#: Seconds that one request may take on a machine that does other work as well.
SLOW = 20.0
TEXTS = [
    "<script>alert(1)</script><img src=x onerror=alert(1)>", "</pre></body><svg onload=alert(1)>",
    "\x1b[2J\x1b]0;title\x07\x1b[31mred", "\u202eabc\u2066def\u2069\u200f", "\x00\x01\x7f\x9b1m",
    "\ud800 half", "a\u0300" * 400, "\u200b\ufeff\u00ad", "=cmd|' /C calc'!A0", "\r\rover",
    "x" * 20_000, "\n" * 3000, "答え" * 300, "{{7*7}}${7*7}", "../../etc/passwd", "\u2028\u2029",
    "😀👩‍👩‍👧" * 20, "\t" * 200, '"}],"rows":[', "%s%n%x", "", " " * 500,
]  # fmt: skip
VALUES = [None, True, -1, 10**400, 1e308, float("nan"), float("inf"), "", "x", [], {}, [[]], [None],
          {"a": {"b": 1}}, [[[[1]]]], "9" * 400, -0.0, 2**63]  # fmt: skip


def mutated(value, rng):
    """The value with some of its parts replaced, at any depth."""
    if rng.random() < 0.04:
        return rng.choice(VALUES)
    if isinstance(value, dict):
        return {rng.choice(TEXTS)[:50] if rng.random() < 0.02 else key: mutated(each, rng)
                for key, each in value.items()}  # fmt: skip
    if isinstance(value, list | tuple):
        return [mutated(each, rng) for each in value] * (3 if rng.random() < 0.02 else 1)
    if isinstance(value, str):
        return rng.choice(TEXTS) if rng.random() < 0.4 else value
    return value


def fuzzed_lines(count):
    rng = random.Random(7)
    for i in range(count):
        line = json.dumps(mutated(episode(i).to_dict(), rng), ensure_ascii=rng.random() < 0.5)
        data = line.encode("utf-8", "surrogatepass")
        kind = rng.random()
        if kind < 0.03:
            at = rng.randrange(len(data))
            data = data[:at] + bytes(rng.randrange(256) for _ in range(9)) + data[at + 5 :]
        elif kind < 0.05:
            data = data[: rng.randrange(len(data))]
        elif kind < 0.06:
            data = b'{"step": 1, "rows": ' + b"[" * 5000
        yield data.replace(b"\n", b"")
    yield json.dumps(episode(0, why="w" * 10_000_000).to_dict()).encode()
    yield json.dumps(episode(1, why="<b>" * 1_000_000).to_dict()).encode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("hostile")
    store = made_episodes(path / "run", training=5)
    with (store.path / EpisodeLine.FILE).open("ab") as file:
        for line in fuzzed_lines(COUNT):
            file.write(line + b"\n")
    return path


@pytest.fixture(scope="module")
def page(folder):
    return Page(folder)


@pytest.fixture(scope="module")
def base(page):
    return f"/api/v1/runs/{page.runs()['run']['id']}/episodes"


def ask(page, path):
    begun = time.monotonic()
    answer = page.ask(path)
    assert time.monotonic() - begun < SLOW
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert len(answer.body) < 40_000_000
    return answer


def whole(page, path):
    """The answer when all lines are indexed: of many, a first answer has those so far."""
    for _ in range(200):
        found = ask(page, path).json()
        if found["complete"]:
            return found
    raise AssertionError("the index is never complete")


def test_lists_and_episodes_are_plain_json(page, base):
    found = whole(page, f"{base}?limit=500")
    assert found["total"] > COUNT * 0.7
    ids = [each["id"] for each in found["episodes"]]
    while found["next"]:
        found = ask(page, f"{base}?limit=500&after={found['next']}").json()
        ids += [each["id"] for each in found["episodes"]]
    assert len(ids) == len(set(ids)) == found["total"]
    for sort in ("reward", "-reward", "length", "-length"):
        assert ask(page, f"{base}?limit=500&sort={sort}").status == 200
    rng = random.Random(3)
    for key in rng.sample(ids, min(len(ids), max(40, COUNT // 5))):
        one = ask(page, f"{base}/{key}")
        assert one.status == 200 and one.json()["id"] == key
        for row in one.json()["rows"]:
            for segment in row:
                assert segment["tokens"] is None or "".join(segment["tokens"]) == segment["text"]


def test_histograms_and_searches_end(page, base):
    assert ask(page, f"{base}/histograms").status == 200
    for pattern in ("(a+)%2B$", "(.*)*x", "(x%2Bx%2B)%2By", "[^a]{900}b", ".*.*.*.*%3Dz",
                    "(?i)(a|aa)%2B$", "%5Cw%2B%5Cs%2B%5Cw%2B$"):  # fmt: skip
        answer = ask(page, f"{base}?regex={pattern}")
        assert answer.status in (200, 400), answer.text
    for text in ("script", "%E2%80%AE", "%00", "%F0%9F%98%80", "%5C"):
        assert whole(page, f"{base}?text={text}")["matched"] >= 0


def test_a_terminal_gets_no_control_characters(folder):
    log = EpisodeLog.from_run(folder / "run")
    log.refresh(None)
    for number in range(len(log.entries)):
        shown = detail(log, number)
        for full in (False, True) if number % 10 == 0 else (False,):
            text = episode_text(shown, full=full)
            assert all(ch.isprintable() or ch == "\n" for ch in text)
            assert not any(unicodedata.bidirectional(ch) in ("RLO", "LRO", "RLI") for ch in text)
            assert all(sum(map(width_of, line)) <= 80 for line in text.split("\n"))


def test_the_command_prints_them_all(folder):
    for more in ([], ["--json"], ["--full", "--where", "correct=true"]):
        out = io.StringIO()
        begun = time.monotonic()
        with redirect_stdout(out):
            assert main(["episodes", str(folder / "run"), "--limit", "400", *more]) == 0
        assert time.monotonic() - begun < 10 * SLOW
        text = out.getvalue()
        assert all(ch.isprintable() or ch == "\n" for ch in text)
        if more == ["--json"]:
            assert all(json.loads(line)["id"] for line in text.splitlines())
