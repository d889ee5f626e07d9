"""Schemas from signatures and docstrings, and calls that go wrong in every way."""

import asyncio
import enum
import threading
from typing import Annotated, Any, Literal, Optional

import pytest

from scalerl.environments.interface import ToolCall
from scalerl.environments.tools import Tool, ToolBox, schema_of
from scalerl.errors import InputError


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


def everything(
    a: str,
    b: int,
    c: float,
    d: bool,
    e: list[int],
    f: dict[str, float],
    g: Literal["x", "y"],
    h: Colour,
    i: Optional[int] = None,  # noqa: UP045 - the old spelling has to work too
    j: str | int = "z",
    k: tuple[str, ...] = (),
    m: Annotated[int, "about m"] = 3,
    n: Any = None,
    o: list = (),  # type: ignore[assignment]
) -> str:
    """Take everything.

    In two sentences.

    Args:
        a: A text,
            on two lines.
        b (int): A number: with a colon.
        **c: Starred.

    Returns:
        z: what is no parameter.
    """
    return repr((a, b, c, d, e, f, g, h, i, j, k, m, n, o))


GOOD = {"a": "t", "b": 1, "c": 2, "d": True, "e": ["1"], "f": {"k": 1}, "g": "x", "h": "red"}


def run(box, name, **arguments):
    return asyncio.run(box.call(ToolCall(name, arguments)))


def test_the_schema_of_every_type():
    facts = schema_of(everything)["function"]
    assert (facts["name"], facts["description"]) == (
        "everything",
        "Take everything. In two sentences.",
    )
    parameters = facts["parameters"]
    assert parameters["required"] == list("abcdefgh")
    assert parameters["properties"] == {
        "a": {"type": "string", "description": "A text, on two lines."},
        "b": {"type": "integer", "description": "A number: with a colon."},
        "c": {"type": "number", "description": "Starred."},
        "d": {"type": "boolean"},
        "e": {"type": "array", "items": {"type": "integer"}},
        "f": {"type": "object", "additionalProperties": {"type": "number"}},
        "g": {"type": "string", "enum": ["x", "y"]},
        "h": {"type": "string", "enum": ["red", "blue"]},
        "i": {"type": "integer", "nullable": True},
        "j": {"anyOf": [{"type": "string"}, {"type": "integer"}], "default": "z"},
        "k": {"type": "array", "items": {"type": "string"}},
        "m": {"type": "integer", "default": 3},
        "n": {},
        "o": {"type": "array"},
    }


def numpy_style(word: str, n: int):
    """Look up.

    Parameters
    ----------
    word : str
        The word.
        On two lines.
    n
        How many.

    Returns
    -------
    str
        What it means.
    """


def sphinx_style(word: str, n: int):
    """Look up.

    :param word: The word.
        On two lines.
    :param int n: How many.
    :returns: What it means.
    """


def plain_style(word: str, n: int):
    """Look up."""


@pytest.mark.parametrize("function", [numpy_style, sphinx_style, plain_style])
def test_docstrings_of_every_style(function):
    facts = schema_of(function)["function"]
    found = {k: v.get("description") for k, v in facts["parameters"]["properties"].items()}
    assert facts["description"] == "Look up."
    if function is plain_style:
        assert found == {"word": None, "n": None}
    else:
        assert found == {"word": "The word. On two lines.", "n": "How many."}


def test_a_schema_agrees_with_that_of_transformers():
    utils = pytest.importorskip("transformers.utils")

    def add(a: int, b: float, words: list[str], how: str = "fast") -> float:
        """Add numbers.

        Args:
            a: One.
            b: Another.
            words: Some.
            how: In which way.

        Returns:
            The sum.
        """
        return a + b

    theirs = utils.get_json_schema(add)["function"]
    ours = schema_of(add)["function"]
    ours["parameters"]["properties"]["how"].pop("default")  # which theirs leaves out
    theirs.pop("return", None)
    assert ours == theirs


def no_hint(a, b: int):
    """Add."""


def star(*a: int):
    """Add."""


def strange(a: threading.Lock):
    """Add."""


def unknown(a: "NoSuchType"):  # noqa: F821
    """Add."""


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (no_hint, "tool no_hint has no type hint for a: write `a: str`"),
        (star, r"tool star takes \*a"),
        (strange, "tool strange: a has the type"),
        (unknown, "tool unknown has type hints that cannot be read"),
    ],
)
def test_a_function_that_cannot_be_a_tool_is_refused_in_one_line(function, problem):
    with pytest.raises(InputError, match=problem) as caught:
        ToolBox([function])
    assert "\n" not in str(caught.value)


def test_arguments_are_converted_by_type():
    box = ToolBox([everything])
    assert run(box, "everything", **GOOD).text == (
        "('t', 1, 2.0, True, [1], {'k': 1.0}, 'x', <Colour.RED: 'red'>, None, 'z', (), 3, None, ())"
    )
    more = {"i": "7", "j": 4, "k": ["p"], "m": 2.0, "n": {"any": 1}, "o": [1], "a": 5, "d": "False"}
    assert run(box, "everything", **GOOD | more).text == (
        "('5', 1, 2.0, False, [1], {'k': 1.0}, 'x', <Colour.RED: 'red'>, 7, 4, ('p',), 2, "
        "{'any': 1}, [1])"
    )
    assert box.failures == 0


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"b": "one"}, "argument b must be an integer, not 'one'"),
        ({"b": 1.5}, "argument b must be an integer, not 1.5"),
        ({"b": True}, "argument b must be an integer, not True"),
        ({"c": "inf"}, "argument c must be a number, not 'inf'"),
        ({"d": "yes"}, "argument d must be true or false, not 'yes'"),
        ({"e": "1"}, "argument e must be a list, not '1'"),
        ({"e": ["x"]}, "argument e must be an integer, not ['x']"),
        ({"f": [1]}, "argument f must be an object, not [1]"),
        ({"g": "z"}, "argument g must be one of 'x', 'y', not 'z'"),
        ({"h": "green"}, "argument h must be one of 'red', 'blue', not 'green'"),
        ({"i": "x"}, "argument i must be an integer or nothing, not 'x'"),
        ({"a": None}, "argument a must be text, not None"),
        ({"zz": 1}, "has no argument 'zz', only a, b, c, d, e, f, g, h and 6 more"),
    ],
)
def test_wrong_arguments_come_back_as_text(wrong, text):
    box = ToolBox([everything])
    reply = run(box, "everything", **GOOD | wrong)
    assert reply.failed
    assert reply.text.startswith("error: everything")
    assert text in reply.text
    assert "\n" not in reply.text
    assert box.failures == 1


def fails(how: str) -> Any:
    """Fail."""
    if how == "exit":
        raise SystemExit(3)
    if how == "bytes":
        return b"bytes"
    raise ValueError("several\nlines")


def test_every_other_failure_comes_back_as_text_too():
    box = ToolBox([fails])
    assert run(box, "fails").text == "error: fails: argument how is missing"
    assert run(box, "fials", how="x").text == "error: there is no tool 'fials', only fails"
    assert run(box, "fails", how="x").text == "error: fails raised ValueError: several lines"
    assert run(box, "fails", how="exit").text == "error: fails raised SystemExit: 3"
    assert "returned bytes" in run(box, "fails", how="bytes").text
    broken = ToolCall("fails", problem="the tool call cannot be read: x")
    assert asyncio.run(box.call(broken)).text == "error: the tool call cannot be read: x"
    assert box.failures == 6


def test_results_as_the_model_sees_them():
    def give(what: str) -> Any:
        """Give."""
        return {"text": "é", "none": None, "dict": {"é": [1, None]}, "number": 2.5, "odd": {1}}[
            what
        ]

    box = ToolBox([give])
    found = {w: run(box, "give", what=w).text for w in ("text", "none", "dict", "number", "odd")}
    assert found == {
        "text": "é", "none": "", "dict": '{"é": [1, null]}', "number": "2.5", "odd": "{1}",
    }  # fmt: skip


def test_a_turn_with_several_calls_and_positional_arguments():
    def add(a: int, b: int = 1) -> int:
        """Add."""
        return a + b

    async def later(a: int) -> int:
        """Wait."""
        await asyncio.sleep(0)
        return a

    box = ToolBox([add, later])
    assert [s["function"]["name"] for s in box.schemas] == ["add", "later"]
    calls = [ToolCall("add", {"0": 1, "b": 5}), ToolCall("later", {"a": 2}), ToolCall("no")]
    messages, failed = asyncio.run(box.run(calls))
    assert [m["content"] for m in messages] == ["6", "2", "error: there is no tool 'no', only add, later"]  # fmt: skip # noqa: E501
    assert {m["role"] for m in messages} == {"tool"}
    assert failed == 1


def test_blocking_tools_run_in_one_thread_and_leave_the_loop_free():
    seen, held = [], threading.Event()

    def block(n: int) -> int:
        """Block."""
        seen.append(threading.get_ident())
        assert held.wait(60)
        return n

    async def play():
        box = ToolBox([block])
        waiting = asyncio.ensure_future(box.run([ToolCall("block", {"n": i}) for i in range(3)]))
        await asyncio.sleep(0.01)  # the loop goes on while the tool waits for this line:
        held.set()
        messages, _ = await waiting
        box.close()
        return [m["content"] for m in messages]

    assert asyncio.run(play()) == ["0", "1", "2"]
    assert len(set(seen)) == 1
    assert seen[0] != threading.get_ident()


def test_tools_with_a_schema_of_their_own_check_arguments_themselves():
    tool = Tool("far", {"type": "function", "function": {"name": "far"}}, lambda **a: sorted(a))
    assert run(ToolBox([tool]), "far", z=1, y=2).text == '["y", "z"]'


def test_two_tools_of_one_name_are_refused():
    with pytest.raises(InputError, match="two tools are named plain_style"):
        ToolBox([plain_style, plain_style])
