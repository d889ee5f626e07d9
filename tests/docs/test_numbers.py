"""Every number in the prose of the docs has a source in docs/numbers.toml, and the source agrees.

The census takes decimals, percentages and numbers with thousands separators: what a reader takes
for a measurement. docs/numbers.toml describes the kinds of source."""

import importlib
import json
import re
import tomllib

import pytest
from doc_pages import PAGES, PASTED, ROOT, generated, prose, run_commands

SOURCES = tomllib.loads((ROOT / "docs/numbers.toml").read_text(encoding="utf-8"))
NUMBER = re.compile(
    r"(?<![\w.,/-])(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d*\.\d+|\d+(?=\s?%))(?:\s?%)?(?!\.\d)"
)
#: Kinds of source that a test can look up, and those that state where the number comes from.
CHECKED = ("printed", "table", "code", "result")
STATED = ("paper", "given", "once")


def written(page):
    """Pages about results: reference pages are of code."""
    return not str(page.relative_to(ROOT)).startswith("docs/reference/")


WRITTEN = {str(page.relative_to(ROOT)): page for page in PAGES if written(page)}


def numbers(text):
    return {match.group().strip() for match in NUMBER.finditer(text)}


def plain(number):
    """A number in the form in which two spellings of it agree: `.57` and `0.57`."""
    number = number.replace(",", "").replace(" ", "")
    return f"0{number}" if number.startswith(".") else number


def same(number, value):
    """Whether a value, rounded as the text rounds it, is the number."""
    digits = plain(number)
    if digits.endswith("%"):
        value, digits = 100.0 * value, digits[:-1]
    decimals = len(digits.partition(".")[2])
    return f"{float(value):.{decimals}f}" == digits


def look_up(data, path):
    """The value at a path such as `by_class[method=scalerl].crps` or `looks.0.server_mb`."""
    for part in re.findall(r"[^.\[\]]+(?:\[[^\]]+\])?", path):
        name, _, wanted = part.partition("[")
        data = data[int(name)] if isinstance(data, list) else data[name]
        if wanted:
            key, _, value = wanted.rstrip("]").partition("=")
            data = next(row for row in data if str(row[key]) == value)
    return data


def read(value, part):
    return value[part] if isinstance(value, dict) else getattr(value, part)


def read_result(path):
    file, _, inside = path.partition(":")
    return look_up(json.loads((ROOT / "benchmarks/results" / f"{file}.json").read_text()), inside)


@pytest.mark.parametrize("name", sorted(WRITTEN))
def test_every_number_has_a_source_and_every_source_a_number(name):
    listed = SOURCES.get(name, {})
    assert not set(listed) - {*CHECKED, *STATED}, "an unknown kind of source"
    known = {number for kind in listed.values() for number in kind}
    text = prose(WRITTEN[name])
    new = numbers(text) - known
    assert not new, f"state where these come from in docs/numbers.toml: {sorted(new)}"
    gone = {number for number in known if number not in text}
    assert not gone, f"docs/numbers.toml lists what {name} does not say: {sorted(gone)}"


def test_no_page_is_listed_that_is_not_there():
    assert set(SOURCES) <= set(WRITTEN)


@pytest.mark.parametrize("name", sorted(n for n in SOURCES if "printed" in SOURCES[n]))
def test_printed_numbers_are_printed_by_the_commands_of_the_page(name):
    page = WRITTEN[name]
    assert page in PASTED, "only pages in PASTED have commands that the tests run"
    text = "".join(done.stdout + done.stderr for _, done in run_commands(page))
    for number in SOURCES[name]["printed"]:
        assert re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", text), number


@pytest.mark.parametrize("name", sorted(n for n in SOURCES if "table" in SOURCES[n]))
def test_numbers_from_tables_are_in_the_generated_tables_of_the_page(name):
    tables = {plain(number) for number in re.findall(r"[\d.,]+(?:\s?%)?", generated(WRITTEN[name]))}
    rounded = {f"{float(n):.2f}" for n in tables if re.fullmatch(r"\d+\.\d{3}", n)}
    for number in SOURCES[name]["table"]:
        assert plain(number) in tables | rounded, number


@pytest.mark.parametrize("name", sorted(n for n in SOURCES if "code" in SOURCES[n]))
def test_numbers_from_the_code_are_the_constants_of_the_code(name):
    for number, path in SOURCES[name]["code"].items():
        module, _, attribute = path.partition(":")
        value = importlib.import_module(module)
        for part in attribute.split("."):
            if part.endswith("()"):  # defaults of a dataclass are read off an instance
                value = getattr(value, part[:-2])()
            else:
                value = value[int(part)] if part.isdigit() else read(value, part)
        assert same(number, value), f"{path} is {value}, {name} says {number}"


@pytest.mark.parametrize("name", sorted(n for n in SOURCES if "result" in SOURCES[n]))
def test_numbers_from_benchmarks_are_in_their_results(name):
    for number, path in SOURCES[name]["result"].items():
        values = [read_result(part) for part in path.split(" / ")]
        value = values[0] / values[1] if len(values) == 2 else values[0]
        assert same(number, value), f"{path} is {value}, {name} says {number}"
