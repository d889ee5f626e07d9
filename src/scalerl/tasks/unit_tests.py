"""Reads the unit tests of a row, and finds the names that the program has to define.

Tests are Python and run as written, but in another process than the program (`inside/tester.py`).
The names that the program has to define are those that neither the tests nor Python define. A test
that cannot be scored is refused before a run, with its reason (`unscorable_tests.py`).
"""

from __future__ import annotations

import ast
import builtins
import json
import symtable
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scalerl.errors import InputError
from scalerl.tasks.unscorable_tests import UnscorableTest, refuse_unscorable

#: Names that tests use without importing them, because programs usually import them.
USUAL = {"np": "numpy", "pd": "pandas", "plt": "matplotlib"}


@dataclass(frozen=True, slots=True)
class UnitTests:
    """What a program must do: print `outputs` for `inputs`, and pass `tests`."""

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    #: Python code that runs before the tests.
    setup: str = ""
    #: The import statements of the set-up, which run before the program too.
    imports: str = ""
    tests: tuple[str, ...] = ()
    #: Names in the tests that the program has to define.
    names: tuple[str, ...] = ()
    #: Reasons why tests were left out.
    refused: tuple[str, ...] = ()

    @property
    def usable(self) -> bool:
        return bool(self.inputs or self.tests)


def read_tests(row: Mapping[str, Any], where: str, most: int) -> UnitTests:
    """The tests of a row, from any of the usual columns; at most `most` of each kind."""
    pairs = row.get("input_output", row)
    if isinstance(pairs, str):
        pairs = _json(pairs, where)
    listed = row.get("tests")
    if isinstance(listed, str):
        listed = _json(listed, where)
    if isinstance(listed, Sequence) and listed and isinstance(listed[0], Mapping):
        inputs = [str(t.get("input", "")) for t in listed]
        outputs = [str(t.get("output", "")) for t in listed]
        listed = ()
    else:
        inputs = [str(text) for text in pairs.get("inputs") or ()]
        outputs = [str(text) for text in pairs.get("outputs") or ()]
    if len(inputs) != len(outputs):
        raise InputError(
            f"{where} has {len(inputs)} inputs and {len(outputs)} outputs: give an output for each"
        )
    setup, texts, entry = _texts(row, listed)
    if not inputs and not texts:
        raise InputError(f"{where} has no tests: name the columns inputs and outputs, or test_list")
    found = read_asserts(texts, setup, entry, where)
    return replace(
        found,
        inputs=tuple(inputs[:most]),
        outputs=tuple(outputs[:most]),
        tests=found.tests[:most],
    )


def _texts(row: Mapping[str, Any], listed: Any) -> tuple[str, list[str], str]:
    """The set-up, the tests and, if the row has it, the name of the tested function (HumanEval has
    a function `check` that is called with it)."""
    setup = []
    for column in ("test_imports", "test_setup_code"):
        value = row.get(column) or ()
        setup += [value] if isinstance(value, str) else [str(line) for line in value]
    entry = row.get("entry_point")
    if isinstance(row.get("test"), str) and isinstance(entry, str) and entry.isidentifier():
        return "\n".join([*setup, row["test"]]), [f"check({entry})"], entry
    return "\n".join(setup), [str(test) for test in row.get("test_list") or listed or ()], ""


def read_asserts(
    texts: Sequence[str], setup: str = "", entry: str = "", where: str = "test"
) -> UnitTests:
    """The tests that can be scored, and why the others are refused.

    >>> found = read_asserts(["assert set(f(3)) == {1, 3}", "assert f(1) == f(1)"])
    >>> found.names, found.tests, found.refused[0][-30:]
    (('f',), ('assert set(f(3)) == {1, 3}',), ": both sides are the program's")
    """
    kept: list[str] = []
    names: set[str] = set()
    refused: list[str] = []
    found = [_builtin(texts, setup)] if not entry else [entry]
    imports: list[str] = []
    for text in texts:
        try:
            wanted, more = _examine(text, setup, {n for n in found if n}, bool(entry))
        except UnscorableTest as reason:
            refused.append(f"{where}: {text.strip()[:60]!r}: {reason}")
            continue
        kept.append(text.strip())
        names |= wanted
        imports += [line for line in more if line not in imports]
    whole = "\n".join([*imports, setup])
    return UnitTests(
        setup=whole,
        imports=_imports(whole) if kept else "",
        tests=tuple(kept),
        names=tuple(sorted(names)),
        refused=tuple(refused),
    )


def _examine(text: str, setup: str, given: set[str], only: bool) -> tuple[set[str], list[str]]:
    """The names that the program has to define for a test (those in `given`; with `only`, no
    others), and imports that the test lacks."""
    before, test = _parse(setup), _parse(text.strip())
    asserts = [n for tree in (before, test) for n in ast.walk(tree) if isinstance(n, ast.Assert)]
    if not asserts:
        raise UnscorableTest("is not `assert EXPRESSION`")
    free = _free(f"{setup}\n{text.strip()}")
    modules = {name for name in free if name in sys.stdlib_module_names and _is_base(name, test)}
    for name in free & set(USUAL):
        raise UnscorableTest(f"needs {USUAL[name]}, and the sandbox has the standard library only")
    names = given | (free - modules)
    if only and names != given:
        raise UnscorableTest(f"{', '.join(sorted(names - given))} is not defined by the test")
    for tree in (before, test):
        for module in _imported(tree):
            if module not in sys.stdlib_module_names:
                raise UnscorableTest(
                    f"needs {module}, and the sandbox has the standard library only"
                )
    if not names:
        raise UnscorableTest("says nothing about the program")
    refuse_unscorable(names, before, test)
    return names, [f"import {name}" for name in sorted(modules)]


def _parse(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UnscorableTest("is not Python") from None


def _free(text: str) -> set[str]:
    """Global names that a text uses, and that neither it nor Python defines."""
    top = symtable.symtable(text, "test", "exec")
    bound = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}

    def used(table: symtable.SymbolTable) -> Iterator[str]:
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (symbol.is_global() or table is top):
                yield symbol.get_name()
        for inner in table.get_children():
            yield from used(inner)

    return {name for name in used(top) if name not in bound and not hasattr(builtins, name)}


def _builtin(texts: Sequence[str], setup: str) -> str:
    """The name of a built-in function that the program has to redefine, or "". Some rows ask for
    one (`assert sum(10, 15) == 6`): their tests name nothing else and call only this function."""
    try:
        trees = [_parse(text.strip()) for text in texts]
        if any(_free(f"{setup}\n{text.strip()}") for text in texts):
            return ""
    except UnscorableTest:
        return ""
    calls = {
        node.func.id
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    return calls.pop() if len(calls) == 1 else ""


def _is_base(name: str, test: ast.Module) -> bool:
    """Whether a name is used only for its attributes: `math.pi`, and not `math(3)`."""
    inner = [n.value for n in ast.walk(test) if isinstance(n, ast.Attribute)]
    every = [n for n in ast.walk(test) if isinstance(n, ast.Name) and n.id == name]
    return all(any(n is base for base in inner) for n in every)


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]


def _imports(setup: str) -> str:
    """The import statements of the set-up, which the program may rely on as well."""
    kept = [n for n in ast.parse(setup).body if isinstance(n, ast.Import | ast.ImportFrom)]
    return "\n".join(ast.unparse(node) for node in kept)


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: the tests are not JSON ({error.msg}): fix the column") from None
