"""Tool calls in the forms that models write them, and everything that is not one."""

import random
import time

import pytest

from scalerl.environments.interface import ToolCall
from scalerl.environments.parsers import TOOL_FORMATS, detect
from scalerl.errors import InputError


def parse(name, text):
    return TOOL_FORMATS[name](text)


def only(name, text):
    _, (call,) = parse(name, text)
    return call


@pytest.mark.parametrize(
    ("name", "text", "rest", "calls"),
    [
        ("hermes", "no call <b>", "no call <b>", []),
        (
            "hermes",
            'a <tool_call>\n{"name": "f", "arguments": {"x": [1, null]}}\n</tool_call> b',
            "a  b",
            [("f", {"x": [1, None]})],
        ),
        (
            "hermes",
            '<tool_call>{"name":"f"}</tool_call><tool_call>{"name":"g","arguments":"{\\"y\\":2}"}'
            "</tool_call>",
            "",
            [("f", {}), ("g", {"y": 2})],
        ),
        ("llama3", "The answer is {4}.", "The answer is {4}.", []),
        ("llama3", '{"answer": 4}', '{"answer": 4}', []),
        ("llama3", '{"name": "Ada", "born": 1815}', '{"name": "Ada", "born": 1815}', []),
        ("llama3", '{"name": "f", "parameters": {"x": 1}}', "", [("f", {"x": 1})]),
        (
            "llama3",
            'I call.<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "arguments": {}}',
            "I call.",
            [("f", {}), ("g", {})],
        ),
        ("plain", "<tool_call>f()</tool_call>", "", [("f", {})]),
        (
            "plain",
            "<tool_call> f(1, 'a, (b', k=[1, 2], w=blue whale, t=true, it's) </tool_call>",
            "",
            [("f", {"0": 1, "1": "a, (b", "k": [1, 2], "w": "blue whale", "t": True, "5": "it's"})],
        ),
        ("plain", "<tool_call>f(a==b)</tool_call>", "", [("f", {"0": "a==b"})]),
    ],
)
def test_calls_and_the_text_without_them(name, text, rest, calls):
    assert parse(name, text) == (rest, tuple(ToolCall(n, a) for n, a in calls))


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("hermes", '<tool_call>{"name": "f"', "</tool_call> is missing"),
        ("hermes", "<tool_call>{'name': 'f'}</tool_call>", "not JSON"),
        ("hermes", "<tool_call>[1]</tool_call>", 'an object with a "name"'),
        ("hermes", '<tool_call>{"name": 3}</tool_call>', 'an object with a "name"'),
        ("hermes", '<tool_call>{"name":"f","arguments":[1]}</tool_call>', "must be an object"),
        ("hermes", '<tool_call>{"name":"f","arguments":"x"}</tool_call>', "is text"),
        ("llama3", '{"name": "f", "parameters": {', "not JSON"),
        ("llama3", "<|python_tag|>print(1)", "not JSON"),
        ("llama3", "<|python_tag|>[1]", 'an object with a "name"'),
        ("plain", "<tool_call>f</tool_call>", "write it as name(argument, key=value)"),
        ("plain", "<tool_call>f(x=[1)</tool_call>", "not closed"),
        ("plain", "<tool_call>f('x)</tool_call>", "not closed"),
        ("plain", "<tool_call>f(x=[os.system('ls')])</tool_call>", "is not a value"),
        ("plain", f"<tool_call>f({'9' * 20_000})</tool_call>", "longer than 10000"),
    ],
)
def test_a_call_that_cannot_be_read_says_why_in_one_line(name, text, problem):
    call = only(name, text)
    assert problem in call.problem
    assert "\n" not in call.problem
    assert call.arguments == {}


def test_code_in_an_argument_stays_text():
    call = only("plain", "<tool_call>f(__import__('os').getcwd())</tool_call>")
    assert call.arguments == {"0": "__import__('os').getcwd()"}


GARBAGE = {
    "opens": "<tool_call>" * 95_000,
    "closes": "</tool_call>" * 87_000,
    "pairs": "<tool_call></tool_call>" * 45_000,
    "braces": "<tool_call>" + "{" * 1_000_000 + "</tool_call>",
    "brackets": '<tool_call>{"name": "f", "arguments": ' + "[" * 1_000_000 + "</tool_call>",
    "call of brackets": "<tool_call>f(" + "(" * 1_000_000 + ")</tool_call>",
    "minus signs": "<tool_call>f(" + "-" * 1_000_000 + "1)</tool_call>",
    "commas": "<tool_call>f(" + "," * 1_000_000 + ")</tool_call>",
    "commas and values": "<tool_call>f(" + "1," * 100_000 + ")</tool_call>",
    "quotes": "<tool_call>f(" + "'" * 1_000_000 + ")</tool_call>",
    "spaces": "<tool_call>" + " " * 1_000_000 + "</tool_call>",
    "spaces in a call": "<tool_call>f(" + " " * 1_000_000 + "'x)</tool_call>",
    "words": "<tool_call>" + "a" * 1_000_000 + "</tool_call>",
    "bare": "<tool_call>f(" + "a '" * 300_000 + ")</tool_call>",
    "llama": '{"name": ' * 100_000,
    "llama lists": '<|python_tag|>{"name": "f", "parameters": ' + "[" * 1_000_000,
    "llama calls": "<|python_tag|>" + '{"name": "f", "parameters": {}};' * 30_000,
    "digits": '<tool_call>{"name": "f", "arguments": {"x": ' + "9" * 1_000_000 + "}}</tool_call>",
}


@pytest.mark.parametrize("kind", GARBAGE)
@pytest.mark.parametrize("name", ["hermes", "llama3", "plain"])
def test_a_megabyte_of_garbage_takes_no_seconds(name, kind):
    before = time.process_time()
    parse(name, GARBAGE[kind])
    assert time.process_time() - before < 2.5


@pytest.mark.parametrize("name", ["hermes", "llama3", "plain"])
def test_random_pieces_never_raise(name):
    pieces = ["<tool_call>", "</tool_call>", "<|python_tag|>", '{"name": "f"', '"parameters": {',
              "}", "{", "[", "]", "(", ")", "f(", "x=", "'", '"', "\\", ",", ";", "1", "é", "\n",
              "\0", "null", ": ", " "]  # fmt: skip
    draw = random.Random(7)
    for _ in range(3000):
        text, calls = parse(name, "".join(draw.choices(pieces, k=draw.randint(1, 25))))
        assert isinstance(text, str)
        assert all(isinstance(call, ToolCall) for call in calls)


def test_formats_of_others_are_found_by_name_and_by_path(monkeypatch):
    monkeypatch.setattr(TOOL_FORMATS, "_found", dict(TOOL_FORMATS._found))

    def shout(text):
        return text, (ToolCall(text.upper()),)

    TOOL_FORMATS.register("shout-for-a-test")(shout)
    assert TOOL_FORMATS["shout-for-a-test"] is shout
    assert TOOL_FORMATS["scalerl.environments.parsers:hermes"] is TOOL_FORMATS["hermes"]
    with pytest.raises(InputError, match="no tool format 'hermse': did you mean 'hermes'"):
        TOOL_FORMATS["hermse"]


def test_the_format_of_published_templates():
    templates = pytest.importorskip("trl").__path__[0]
    from pathlib import Path

    def found(name):
        return detect((Path(templates) / "chat_templates" / f"{name}.jinja").read_text("utf-8"))

    assert [found(n) for n in ("qwen2_5", "qwen3", "qwen3_instruct_2507")] == ["hermes"] * 3
    assert [found(n) for n in ("llama3_1", "llama3_2")] == ["llama3"] * 2
    assert [found(n) for n in ("llama3", "gemma", "phi3")] == ["plain"] * 3
