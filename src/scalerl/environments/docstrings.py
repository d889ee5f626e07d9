"""What a docstring says about a function and its parameters."""

from __future__ import annotations

import re

_SECTION = re.compile(r"(Args|Arguments|Parameters):\s*$")
#: A heading that ends a list of parameters in Google's style.
_HEADING = re.compile(r"[A-Z][A-Za-z ]*:\s*$")
#: `name: text`, `name (int): text`
_GOOGLE = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)")
#: `name : int`, with the text on the next lines
_NUMPY = re.compile(r"(\w+)\s*(?::.*)?$")
_SPHINX = re.compile(r":param\s+(?:[^:\s]+\s+)?(\w+):\s*(.*)")


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """The description of a function, and those of its parameters by name. The text is without
    indentation, as `inspect.getdoc` gives it.

    >>> read_docstring("Look a word up.\\n\\nParameters\\n----------\\nword : str\\n    The word.")
    ('Look a word up.', {'word': 'The word.'})
    """
    lines = text.splitlines()
    about: list[str] = []
    for i, line in enumerate(lines):
        if _SECTION.match(line):
            return _joined(about), _google(lines[i + 1 :])
        if line.strip() == "Parameters" and _is_rule(lines[i + 1 : i + 2]):
            return _joined(about), _numpy(lines[i + 2 :])
        if _SPHINX.match(line):
            return _joined(about), _sphinx(lines[i:])
        if _HEADING.match(line) and about and not about[-1].strip():
            break  # "Returns:" of a function without parameters
        about.append(line)
    return _joined(about), {}


def _joined(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())


def _is_rule(lines: list[str]) -> bool:
    return bool(lines) and set(lines[0].strip()) == {"-"}


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _google(lines: list[str]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    level, name = None, ""
    for line in lines:
        if not line.strip():
            continue
        if _indent(line) == 0:
            break  # the next section
        level = _indent(line) if level is None else level
        match = _GOOGLE.match(line.strip()) if _indent(line) <= level else None
        if match:
            name = match[1]
            found[name] = [match[2]]
        elif name:
            found[name].append(line)
    return {name: _joined(text) for name, text in found.items()}


def _numpy(lines: list[str]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    name = ""
    for i, line in enumerate(lines):
        if _is_rule(lines[i + 1 : i + 2]):
            break  # the heading of the next section
        match = _NUMPY.match(line) if line and _indent(line) == 0 else None
        if match:
            name = match[1]
            found[name] = []
        elif name:
            found[name].append(line)
    return {name: _joined(text) for name, text in found.items()}


def _sphinx(lines: list[str]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    name = ""
    for line in lines:
        match = _SPHINX.match(line)
        if match:
            name = match[1]
            found[name] = [match[2]]
        elif line.startswith(":") or not line.strip():
            name = ""
        elif name:
            found[name].append(line)
    return {name: _joined(text) for name, text in found.items()}
