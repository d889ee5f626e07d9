"""A quantity is printed alike wherever it stands: in the tables and sentences of the page, in its
chart, in the Markdown twin, in report.json and in the terminal."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from scalerl.cli import main
from scalerl.report import words

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial"
CASES = {
    "window": ["example:paper-8b", "--from", "1500", "--to", "50000"],
    "two": ["example:paper-8b", "example:paper-moe"],
    "export": [str(TUTORIAL / "wandb_export.csv")],
    "later": [str(TUTORIAL / "wandb_export_later.csv"), "--at", "3000", "4000", "--target", "0.55"],
}


@pytest.fixture(scope="module", params=CASES)
def report(request, tmp_path_factory):
    out = tmp_path_factory.mktemp(request.param)
    assert main(["report", *CASES[request.param], "-o", str(out)]) == 0
    page = (out / "report.html").read_text()
    data = re.search(r'id="data">(.*?)</script>', page, re.S)
    return {
        "args": CASES[request.param],
        "page": page,
        "path": out / "report.html",
        "twin": (out / "report.md").read_text(),
        "json": json.loads((out / "report.json").read_text()),
        "chart": json.loads(data[1]),
    }


def rows(twin: str, caption: str) -> list[list[str]]:
    """The cells of the table with this caption."""
    lines = twin.split(caption)[1].strip().split("\n")[4:]
    found = []
    for line in lines:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def to(interval) -> str:
    return " to ".join(words.score(v) for v in interval)


def test_a_forecast_is_alike_in_table_sentence_chart_and_json(report):
    table = rows(report["twin"], "Forecasts, with")
    runs = {run["name"]: run for run in report["chart"]["runs"]}
    for ahead in report["json"]["forecasts"]:
        mine = [row for row in table if row[0] == ahead["run"]]
        for row, at in zip(mine, ahead["at"], strict=True):
            median, true, seen = (
                words.score(at["median"]),
                to(at["interval"]),
                to(at["observed_interval"]),
            )
            assert row[2] == f"{median} ({true})" and row[3] == seen
            amount = words.compute(at["compute"])
            sentence = (
                f"At {amount} {words.KIND[ahead['x']]} the forecast is {median} (90 %: {true})"
            )
            assert sentence in report["twin"] and sentence in report["page"]
            run = runs[ahead["run"]]
            k = min(range(len(run["x"])), key=lambda i: abs(run["x"][i] - at["compute"]))
            assert words.compute(run["x"][k]) == amount
            assert words.score(run["median"][k]) == median
            assert to((run["low"][k], run["high"][k])) == true
            assert to((run["seenLow"][k], run["seenHigh"][k])) == seen


def test_the_score_of_now_is_alike_in_the_sentence_and_the_chart(report):
    for run in report["chart"]["runs"]:
        said = re.search(rf"{re.escape(run['name'])} scores (0\.\d+) after", report["twin"])
        k = max(i for i, x in enumerate(run["x"]) if x <= run["end"] * 1.00001)
        assert said[1] == words.score(run["median"][k])


def test_a_ceiling_is_alike_in_table_sentence_chart_and_json(report):
    table = {row[0]: row for row in rows(report["twin"], "Fitted law, with")}
    runs = {run["name"]: run for run in report["chart"]["runs"]}
    for found in report["json"]["fits"]:
        if not found["identified"]:
            assert table[found["run"]][3].startswith("not identified")
            continue
        a, interval = words.score(found["params"]["A"]), to(found["intervals"]["A"])
        assert table[found["run"]][3] == f"{a} ({interval})"
        assert f"a ceiling of {a} (90 %: {interval})" in report["twin"]
        drawn = runs[found["run"]]["ceiling"]
        assert words.score(drawn[0]) == a and to(drawn[1:]) == interval


def test_the_fixed_ceiling_is_the_mean_of_those_that_the_page_names(report):
    if report["json"]["comparison"] is None:
        return
    fits = {f["run"]: f for f in report["json"]["fits"]}
    mean = sum(f["params"]["A"] for f in fits.values()) / len(fits)
    shown = words.score(mean)
    assert report["json"]["efficiency"]["A"] == pytest.approx(mean)
    assert report["json"]["comparison"]["mean_A"] == pytest.approx(mean)
    told = re.search(
        r"A fixed at (0\.\d+), the mean of the median ceilings (.*?)\. F", report["twin"]
    )
    assert told[1] == shown and f"Efficiency, A fixed at {shown}" in report["page"]
    for name, f in fits.items():
        known = "" if f["identified"] else ", not identified"
        assert f"{words.score(f['params']['A'])} ({name}{known})" in told[2]


def test_a_comparison_is_alike_in_table_sentence_json_and_terminal(report, capsys):
    found = report["json"]["comparison"]
    if found is None:
        return
    (pair,) = found["pairs"]
    low, high = (words.signed(v) for v in pair["delta_A"]["interval"])
    median = words.signed(pair["delta_A"]["median"])
    assert rows(report["twin"], "Verdicts on")[0][2] == f"{median} ({low} to {high})"
    sources = [each for each in report["args"] if "paper" in each or each.endswith(".csv")]
    assert main(["compare", *sources]) == 0
    terminal = capsys.readouterr().out
    assert f"{median} [{low}, {high}]" in terminal
    as_compared = report["twin"].split("Ceilings as compared: ")[1].split(" (fitted")[0]
    for arm in found["ceilings"]:
        shown = words.score(arm["A"]) if arm["identified"] else "not identified"
        assert f"{arm['name']} {shown}" in as_compared
        assert re.search(rf"{re.escape(arm['name'])} +{shown}\n", terminal)


def test_the_terminal_prints_the_forecasts_of_the_page(report, capsys):
    assert main(["forecast", *report["args"]]) == 0
    said = capsys.readouterr().out
    for ahead in report["json"]["forecasts"]:
        for at in ahead["at"]:
            assert re.search(
                rf"{words.compute(at['compute'])} +{words.score(at['median'])} +"
                rf"{re.escape(words.span(at['interval']))} +"
                rf"{re.escape(words.span(at['observed_interval']))}",
                said,
            )


def test_the_chart_in_a_browser_reads_what_the_table_says(report):
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("no Chromium here: make page installs it")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    done = subprocess.run(
        [program, *flags, "--dump-dom", report["path"].as_uri()],
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    table = re.search(r'class="readout".*?<table>(.*?)</table>', done.stdout, re.S)[1]
    heading = re.search(r"At ([\d.]+\w?) ", table)[1]
    read = {
        re.sub(r"<[^>]*>", "", name).strip().removesuffix(" (forecast)"): cells
        for name, *cells in re.findall(
            r'<th scope="row">(.*?)</th><td>(.*?)</td><td>(.*?)</td><td>(.*?)</td>', table
        )
    }
    shown = [row for row in rows(report["twin"], "Forecasts, with") if row[1].split()[0] == heading]
    assert shown
    for name, _, true, seen, *_ in shown:
        median, interval, one = read[name]
        assert true == f"{median} ({interval})" and seen == one
