"""The live page at size: how soon it opens, how soon a filter and a dragged window are answered,
what it takes of memory, and whether that grows with a file.

python benchmarks/serve.py [--only opens many] [--seconds 600] [--runs 1000] [--episodes 200000]

Needs Chromium and requirements/page.txt (`make page`). Times (`opens`, `many`) are for a machine
that does nothing else, and go to results/serve.json, the server's processor time beside them;
memory while a file grows (`grows`, ten minutes) does not mind, and goes to
results/serve_grows.json. With `many`, one of the runs has all of the episodes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Browser, Page, sync_playwright

from episodes import PER_STEP, generated
from record import RESULTS, save
from scalerl.recipe import Recipe
from scalerl.runs.store import RunStore

SRC = Path(__file__).parent.parent / "src"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
PARTS = ("opens", "many", "grows")
#: Milliseconds between two moves of the hand, and moves.
PAUSE, MOVES = 60, 60
#: Times that each filter of episodes is asked for; the median counts.
REPEATS = 5
#: Metrics that are asked for of twelve runs at once.
STEP_METRICS = [f"metric={name}" for name in ("reward", "entropy", "grad_norm", "length/mean")]


def make_runs(folder: Path, runs: int, evals: int) -> None:
    """Runs with a known curve, and as many steps as evaluations."""
    base = Recipe.load("scalerl", "tiny")
    # Three seeds of each learning rate, so that the list has columns and groups.
    rates = [float(f"{1e-4 * 1.2**i:.3g}") for i in range(8)]
    recipes = [
        base.replace({"optimiser.lr": rate, "seed": seed}).to_toml()
        for rate in rates
        for seed in range(3)
    ]
    rng = np.random.default_rng(0)
    for i in range(runs):
        path = folder / f"run-{i:04d}"
        path.mkdir(parents=True)
        (path / "recipe.toml").write_text(recipes[i % len(recipes)])
        top, mid = rng.uniform(0.5, 0.9), rng.uniform(0.1, 0.6)
        c = np.arange(evals) / evals
        true = 0.1 + (top - 0.1) / (1 + (mid / np.maximum(c, 1e-9)) ** 1.5)
        seen = rng.binomial(2000, true) / 2000
        compute = [
            {"device_hours": 0.01 * s, "flops": 1e10 * s, "generated_tokens": 24_000 * s,
             "trained_tokens": 13_000 * s, "samples": 512 * s, "steps": s, "minutes": 0.1 * s}
            for s in range(evals)
        ]  # fmt: skip
        (path / "evals.jsonl").write_text("".join(eval_line(s, float(y), compute[s])
                                                  for s, y in enumerate(seen)))  # fmt: skip
        (path / "steps.jsonl").write_text("".join(step_line(s, compute[s]) for s in range(evals)))
        (path / "events.jsonl").write_text(
            json.dumps({"step": evals - 1, "event": "end", "reason": "budget"}) + "\n"
        )


def eval_line(step: int, score: float, compute: dict[str, float]) -> str:
    return json.dumps({
        "step": step, "version": step, "pass_rate": score, "stderr": 0.01, "n_prompts": 500,
        "k": 4, "unscored": 0, "truncated": 0.0, "tasks": {}, "compute": compute, "scored": 2000,
    }) + "\n"  # fmt: skip


def step_line(step: int, compute: dict[str, float]) -> str:
    return json.dumps({
        "step": step, "loss": -0.02, "grad_norm": 0.4, "lr": 2e-5, "entropy": 0.3, "reward": 0.1,
        "ratio": {"mean": 1.0, "max": 1.5, "min": 0.5, "truncated": 0.0}, "ess": 0.99,
        "truncated": 0.01, "length": {"mean": 40, "max": 70}, "compute": compute,
        "staleness": {"mean": 1.2, "max": 2, "histogram": {"1": 3}},
        "prompts": [f"running-sums/{i:016x}" for i in range(24)],
    }) + "\n"  # fmt: skip


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    env = os.environ | {"PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "scalerl", "serve", str(folder), "--port", "0"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    assert running.stdout is not None
    try:
        yield running.stdout.readline().strip(), running
    finally:
        running.terminate()
        running.wait(timeout=30)


def ask(address: str, path: str) -> Any:
    with urllib.request.urlopen(address + path, timeout=120) as answer:
        return json.loads(answer.read())


def memory(pid: int) -> float:
    """Resident megabytes of the server."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


def processor_seconds(pid: int) -> float:
    """Processor time that the server has used; other load on the machine hardly changes it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def until(what: Any, seconds: float = 600.0) -> float:
    start = time.perf_counter()
    while not what():
        if time.perf_counter() - start > seconds:
            raise TimeoutError
        time.sleep(0.02)
    return time.perf_counter() - start


def opened(browser: Browser, address: str, rows: int) -> tuple[Page, float]:
    """A fresh page, and how long it took until its rows could be seen."""
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    start = time.perf_counter()
    page.goto(address)
    page.locator(f".list tbody tr:nth-child({rows})").wait_for(state="attached", timeout=300_000)
    page.locator(".list tbody tr").first.wait_for(state="visible")
    return page, time.perf_counter() - start


def painted(page: Page) -> float:
    """Seconds from the request until the browser painted anything."""
    entries = page.evaluate(
        "performance.getEntriesByName('first-contentful-paint').map(e => e.startTime)"
    )
    return float(entries[0]) / 1000 if entries else float("nan")


def many_runs(page: Page, address: str) -> dict[str, Any]:
    """Filter by a key of the recipe, group by recipe, and step metrics of twelve runs: seconds."""
    search = page.get_by_label("Find a run")
    begun = time.perf_counter()
    search.fill("lr=1.2e-4 seed=1")
    # Asked again and again: the page's policy refuses to evaluate text inside of it.
    until(lambda: "run-0003" not in page.locator(".list").inner_text())
    filtered = time.perf_counter() - begun
    search.fill("")
    begun = time.perf_counter()
    page.get_by_role("button", name="group by recipe").click()
    page.locator("tr.grouped").nth(7).wait_for()
    grouped = time.perf_counter() - begun
    chosen = [run["id"] for run in ask(address, "api/runs")[:12]]
    path = "api/steps?" + "&".join([*(f"run={key}" for key in chosen), *STEP_METRICS])
    times = []
    for _ in range(2):  # read from disk, and from memory
        begun = time.perf_counter()
        ask(address, path)
        times.append(time.perf_counter() - begun)
    page.get_by_role("button", name="group by recipe").click()
    return {
        "filter_s": filtered, "group_s": grouped,
        "steps_first_s": times[0], "steps_again_s": times[1],
    }  # fmt: skip


#: In the page: does something, and resolves with the milliseconds until the count of episodes is of
#: a finished answer to it, and has been drawn.
FILTERED = """([act, selector, value]) => new Promise((done, failed) => {
    const count = () => document.querySelector(".found .count [role=status]").textContent;
    const before = count(), begun = performance.now();
    const node = document.querySelector(selector);
    if (act === "click") node.click();
    else {
        node.value = value;
        node.dispatchEvent(new Event("change"));
    }
    const look = () => {
        if (performance.now() - begun > 60000) failed(new Error(before));
        else if (count() !== before && !document.querySelector(".found.busy"))
            requestAnimationFrame(() => done(performance.now() - begun));
        else requestAnimationFrame(look);
    };
    look();
})"""


def read_episodes(page: Page, address: str, episodes: int, pid: int) -> dict[str, Any]:
    """Open the episodes of the first run, and filter them by clicks and fields: milliseconds until
    the answer has been drawn, and of the server's processor time."""
    key = next(run["id"] for run in ask(address, "api/runs") if run["name"] == "run-0000")
    begun, used = time.perf_counter(), processor_seconds(pid)
    page.goto(f"{address}#/episodes/{key}")
    whole = f"{episodes:,} episodes"
    count = page.locator(".found .count [role=status]")
    until(lambda: count.count() and count.inner_text() == whole)
    found: dict[str, Any] = {
        "episodes": episodes, "first_answer_s": time.perf_counter() - begun,
        "first_answer_processor_s": processor_seconds(pid) - used,
    }  # fmt: skip
    steps = episodes // PER_STEP
    ways = {
        "reward": ("click", ".histogram:nth-child(1) .bars button", ""),
        "length": ("click", ".histogram:nth-child(2) .bars button:nth-child(7)", ""),
        "wrong": ("click", '.values [data-value="false"]', ""),
        "task": ("click", '.values [data-value="sums"]', ""),
        "cut off": ("click", '.values [data-value="length"]', ""),
        "step": ("change", '[aria-label="From step"]', str(steps // 2)),
        "prompt": ("change", '[aria-label="Prompt"]', "sums/7"),
        # What is found so far: the search goes on through the other texts.
        "text": ("change", '[aria-label="Find in text"]', "found 30"),
    }
    taken: dict[str, list[float]] = {}
    worked: dict[str, list[float]] = {}
    for _ in range(REPEATS):
        for name, way in ways.items():
            used = processor_seconds(pid)
            taken.setdefault(name, []).append(page.evaluate(FILTERED, list(way)))
            worked.setdefault(name, []).append(1000 * (processor_seconds(pid) - used))
            page.get_by_role("button", name="clear filters").click()
            until(lambda: count.inner_text() == whole)
    found["filter_ms"] = {name: statistics.median(each) for name, each in taken.items()}
    found["filter_slowest_ms"] = {name: max(each) for name, each in taken.items()}
    found["filter_processor_ms"] = {name: statistics.median(each) for name, each in worked.items()}
    return found


def opens(
    browser: Browser, folder: Path, runs: int, evals: int, episodes: int = 0
) -> dict[str, Any]:
    make_runs(folder, runs, evals)
    if episodes:
        store = RunStore(folder / "run-0000", resume=True)
        store.append_episodes(map(generated, range(episodes)), 10**12)
    start = time.perf_counter()
    shown = min(runs, 100)
    with serving(folder) as (address, running):
        up = time.perf_counter() - start
        page, cold = opened(browser, address, shown)
        page.context.close()
        listed = up + cold + until(lambda: len(ask(address, "api/runs")) == runs)
        forecast = listed + until(
            lambda: all(r["forecast"] for r in ask(address, "api/runs")), 1800.0
        )
        times, paints = [], []
        for _ in range(5):
            page, took = opened(browser, address, shown)
            times.append(took)
            paints.append(painted(page))
            page.context.close()
        page, _ = opened(browser, address, shown)
        begun = time.perf_counter()
        page.get_by_label("Find a run").fill("run-0007")
        page.locator(".list tbody tr:nth-child(2)").wait_for(state="detached")
        found = time.perf_counter() - begun
        page.get_by_label("Find a run").fill("")
        out = {
            "many_runs": many_runs(page, address),
            "first_paint_s": statistics.median(paints), "first_paint_all_s": paints,
            "runs": runs, "evaluations": evals,
            "server_up_s": up, "first_open_s": cold, "all_listed_s": listed,
            "all_forecast_s": forecast, "open_s": statistics.median(times), "open_all_s": times,
            "find_s": found,
        }  # fmt: skip
        out["drag"] = drag(page, running.pid)
        if episodes:
            out["reading"] = read_episodes(page, address, episodes, running.pid)
        page.context.close()
        return out | {"server_mb": memory(running.pid)}


def drag(page: Page, pid: int) -> dict[str, Any]:
    """The end of the window moved to and fro, as a hand does it."""
    page.locator(".list tbody tr a").first.click()
    page.locator(".facts b").first.wait_for(timeout=300_000)
    page.wait_for_timeout(3000)
    box = page.get_by_role("slider", name="End of the fitted window").bounding_box()
    assert box is not None
    x, y = box["x"] + 12, box["y"] + box["height"] / 2
    used = processor_seconds(pid)
    page.mouse.move(x, y)
    page.mouse.down()
    for i in range(MOVES):
        page.mouse.move(x - 4 * (i + 1), y)
        page.wait_for_timeout(PAUSE)
    used = processor_seconds(pid) - used
    page.mouse.up()
    page.wait_for_timeout(1500)
    times: list[float] = page.evaluate("performance.getEntriesByName('refit').map(e => e.duration)")
    ordered = sorted(times)
    return {
        "refits": len(times),
        "median_ms": statistics.median(times),
        "p90_ms": ordered[int(0.9 * (len(ordered) - 1))],
        "best_ms": ordered[0],
        "processor_ms": 1000 * used / len(times),
    }


def grows(browser: Browser, folder: Path, seconds: float) -> dict[str, Any]:
    """A CSV that grows by a hundred lines a second, and a run of ours by fifty steps and five
    validations; both are open, each in a page of its own."""
    make_runs(folder, 1, 50)
    run = folder / "run-0000"
    (run / "events.jsonl").unlink()
    log = folder / "log.csv"
    log.write_text("step,val_acc\n" + "".join(f"{i},{0.2 + i / 500}\n" for i in range(1, 50)))
    stop = threading.Event()

    def write() -> None:
        with (
            (run / "steps.jsonl").open("a") as steps,
            (run / "evals.jsonl").open("a") as evals,
            log.open("a") as rows,
        ):
            begun, n = time.monotonic(), 0
            while not stop.wait(0.1):
                due = int((time.monotonic() - begun) * 100)
                for i in range(n, due):
                    at = 50 + i
                    used = {"device_hours": 0.01 * at, "flops": 1e10 * at, "steps": at}
                    score = 0.2 + 0.5 * at / (at + 2000)
                    rows.write(f"{at},{score:.4f}\n")
                    if i % 2 == 0:
                        steps.write(step_line(at, used))
                    if i % 20 == 0:
                        evals.write(eval_line(at, score, used))
                n = max(n, due)
                for file in (steps, rows, evals):
                    file.flush()

    with serving(folder) as (address, running):
        until(lambda: len(ask(address, "api/runs")) == 2)
        pages = {}
        for name in ("run-0000", "log"):
            page, _ = opened(browser, address, 2)
            page.get_by_role("link", name=name, exact=True).click()
            page.locator(".facts b").first.wait_for(timeout=300_000)
            pages[name] = page, page.context.new_cdp_session(page)
        threading.Thread(target=write, daemon=True).start()
        looks = []
        for _ in range(max(int(seconds / 30), 2)):
            page.wait_for_timeout(min(30, seconds / 2) * 1000)
            look: dict[str, Any] = {"lines": _lines(log), "server_mb": memory(running.pid)}
            for name, (each, session) in pages.items():
                session.send("HeapProfiler.collectGarbage")
                look[f"page_{name}_mb"] = each.evaluate("performance.memory.usedJSHeapSize") / 1e6
            looks.append(look)
            print(look, flush=True)
        stop.set()
        points = {r["name"]: r["points"] for r in ask(address, "api/runs")}
        return {"seconds": seconds, "looks": looks, "points_known": points}


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--runs", type=int, default=1000, help="of `many`")
    parser.add_argument("--episodes", type=int, default=200_000, help="of `many`")
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=PARTS)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="scalerl-serve-"))
    out: dict[str, Any] = {}
    try:
        with sync_playwright() as play:
            program = shutil.which("chromium")
            browser = play.chromium.launch(executable_path=program, args=FLAGS)
            if "opens" in arguments.only:
                out["opens"] = opens(browser, folder / "opens", 200, 500)
                print(json.dumps(out["opens"]), flush=True)
            if "many" in arguments.only:
                out["many"] = opens(
                    browser, folder / "many", arguments.runs, 500, arguments.episodes
                )
                print(json.dumps(out["many"]), flush=True)
            if out:
                save("serve", out)
            if "grows" in arguments.only:
                found = grows(browser, folder / "grows", arguments.seconds)
                save("serve", found, RESULTS / "serve_grows.json", "--only grows")
            browser.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
