"""What verl configs use of Hydra: interpolations, and overrides such as `trainer.nnodes=2`."""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from scalerl.errors import InputError

#: `${a.b}` and `${oc.select:a.b,default}`; relative paths and other resolvers stay as they are.
_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?([A-Za-z_][\w.]*)(?:,(.*))?\}")
# With a dot at least: NAME=VALUE without one sets a variable of the shell.
_OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_]\w*(?:\.\w+)+)=(.*)", re.DOTALL)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$\{(\w+)(?::?-([^{}]*))?\}|\$(\w+)")
_ARITHMETIC = re.compile(r"\$\(\((.*?)\)\)")
# The shell divides without a rest.
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
}
#: Depth to which references to references are followed; a cycle ends there.
MAX_DEPTH = 8


def resolve(config: Mapping[str, Any]) -> dict[str, Any]:
    """A flat config with references to its own keys replaced by their values.

    >>> resolve({"a.b": 3, "c": "${a.b}", "d": "${oc.select:x.y,true}"})
    {'a.b': 3, 'c': 3, 'd': True}
    """
    return {key: _follow(value, config) for key, value in config.items()}


def _follow(value: Any, config: Mapping[str, Any]) -> Any:
    for _ in range(MAX_DEPTH):
        found = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
        if found is None:
            break
        if found[1] in config:
            value = config[found[1]]
        elif found[2] is not None:
            value = scalar(found[2])
        else:
            break
    return None if value == "???" else value  # Hydra's mark for "must be set"


def read_overrides(text: str, what: str) -> dict[str, Any]:
    """The nested config in the overrides of a shell script, or of a list of them. Nothing is
    executed: of the shell, only variables and whole-number arithmetic are understood.

    >>> read_overrides('n=8 \\n python -m verl.trainer.main_ppo a.n=$n +a.m=$((n * 2))', "x.sh")
    {'a': {'n': 8, 'm': 16}}
    """
    try:
        # A backslash at the end of a line continues it.
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise InputError(f"{what} is no shell script: {error}") from None
    variables: dict[str, str] = {}
    config: dict[str, Any] = {}
    for word in _joined(words):
        if override := _OVERRIDE.fullmatch(word):
            _put(config, override[1].split("."), scalar(_expand(override[2], variables)), what)
        elif assignment := _ASSIGNMENT.fullmatch(word):
            variables[assignment[1]] = _expand(assignment[2], variables)
    return config


def _joined(words: list[str]) -> list[str]:
    """Words, with arithmetic that has blanks in it as one word again."""
    joined: list[str] = []
    for word in words:
        if joined and joined[-1].count("(") > joined[-1].count(")"):
            joined[-1] += f" {word}"
        else:
            joined.append(word)
    return joined


def _expand(text: str, variables: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        return variables.get(found[1] or found[3], found[2] if found[2] is not None else found[0])

    def total(found: re.Match[str]) -> str:
        names = re.sub(r"[A-Za-z_]\w*", lambda name: variables.get(name[0], name[0]), found[1])
        try:
            return str(_calculate(ast.parse(names.strip(), mode="eval").body))
        except (ValueError, SyntaxError, ZeroDivisionError, RecursionError, MemoryError):
            return found[0]

    return _ARITHMETIC.sub(total, _VARIABLE.sub(value, text))


def _calculate(node: ast.expr) -> int:
    """The value of a sum or product of whole numbers."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_calculate(node.left), _calculate(node.right))
    raise ValueError("not a sum or product")


def _put(config: dict[str, Any], path: list[str], value: Any, what: str) -> None:
    *outer, last = path
    for name in outer:
        config = config.setdefault(name, {})
        if not isinstance(config, dict):
            raise InputError(f"{what}: {'.'.join(path)} is set below a value: remove one of them")
    config[last] = value


def scalar(text: str) -> Any:
    """A value as YAML and Hydra write it.

    >>> [scalar(text) for text in ("8", "1e-6", "True", "null", "[a, 2]", "vllm")]
    [8, 1e-06, True, None, ['a', 2], 'vllm']
    """
    text = text.strip()
    words = {"true": True, "false": False, "null": None, "none": None, "": None}
    if text.lower() in words:
        return words[text.lower()]
    if text.startswith("[") and text.endswith("]"):
        return [scalar(part) for part in text[1:-1].split(",") if part.strip()]
    # int first, which refuses 8.0 and 1e-6.
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text.strip("'\"")
