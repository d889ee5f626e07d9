"""Refuses unit tests that the program itself would decide, or that cannot run in another process.

`assert f(1) == f(1)` passes for any program: training on such a test would reward any answer.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence

from scalerl.tasks.taint_analysis import TaintAnalysis, name_of

#: Functions that compare their arguments, and methods that compare their object with an argument.
#: (Methods of unittest, `assert…`, are recognised by their prefix.)
COMPARES = frozenset(
    ("isclose", "allclose", "approx", "eq", "ne", "lt", "le", "gt", "ge", "is_", "is_not",
     "contains", "compare_digest", "startswith", "endswith", "issubset", "issuperset",
     "isdisjoint", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__contains__",
     "match", "fullmatch", "search")
)  # fmt: skip
#: Functions that run text as code, or look up names by text.
RUNS_TEXT = frozenset(
    ("eval", "exec", "compile", "__import__", "globals", "locals", "vars", "breakpoint")
)
#: Modules that run code from data, or reach into the interpreter.
RUN_DATA = frozenset(
    ("pickle", "marshal", "shelve", "importlib", "runpy", "code", "codeop", "ctypes", "builtins")
)
#: Built-in functions with results that are not data.
ITERATORS = frozenset(
    ("iter", "map", "filter", "zip", "reversed", "enumerate", "open", "object", "type",
     "memoryview")
)  # fmt: skip
#: Exceptions that end the program's process, so that no test can catch them.
ENDS = frozenset(("SystemExit", "KeyboardInterrupt", "GeneratorExit"))
#: Limit of passes over a test. Each pass but the last finds a further value of the program.
MOST_PASSES = 50


class UnscorableTest(ValueError):
    """The test cannot be scored; the text says why."""


def refuse_unscorable(names: set[str], before: ast.Module, test: ast.Module) -> None:
    """Raise UnscorableTest if the program, which defines `names`, would decide the test itself.

    >>> test = ast.parse("assert (r := f(3)) == f(3)")
    >>> refuse_unscorable({"f"}, ast.parse(""), test)
    Traceback (most recent call last):
        ...
    scalerl.tasks.unscorable_tests.UnscorableTest: both sides are the program's
    """
    taint = ScorabilityCheck(names, [before, test])
    seen = -1
    for _ in range(MOST_PASSES):
        if seen == taint.size:
            break
        seen = taint.size
        taint.visit(before)
        taint.visit(test)
    else:
        raise UnscorableTest("is too complicated to be analysed")
    if not any(taint.touches(node) for node in test.body):
        raise UnscorableTest("says nothing about the program")


class ScorabilityCheck(TaintAnalysis):
    """Raises UnscorableTest where only values of the program are compared, where they would run as
    code, or where the program would get an argument that is not data."""

    def __init__(self, names: set[str], trees: Sequence[ast.Module]) -> None:
        super().__init__(names, trees)
        self.trying = 0

    def visit_Compare(self, node: ast.Compare) -> None:
        self.generic_visit(node)
        if all(self.touches(side) for side in (node.left, *node.comparators)):
            raise UnscorableTest("both sides are the program's")

    def visit_Call(self, node: ast.Call) -> None:
        super().visit_Call(node)
        called = name_of(node.func)
        self._refuse_comparison(node, called)
        if called in ("isinstance", "issubclass") and any(map(self.touches, node.args[1:])):
            raise UnscorableTest("asks the program for a class, which is not data")
        if called in ("getattr", "hasattr", "setattr") and any(map(self.touches, node.args[1:2])):
            raise UnscorableTest("lets the program choose an attribute")
        if self.touches(node.func) and called not in self.functions:
            for value in (*node.args, *(word.value for word in node.keywords)):
                self._refuse_no_data(value)

    def visit_Try(self, node: ast.Try) -> None:
        for kind in (h.type for h in node.handlers if h.type is not None):
            if any(name_of(part) in ENDS for part in ast.walk(kind)):
                raise UnscorableTest("waits for the program to end, which ends its process")
        # Inside `try`, a call without a use of its value may be there for its exception.
        self.trying += 1
        super().visit_Try(node)
        self.trying -= 1

    def visit_TryStar(self, node: ast.AST) -> None:
        raise UnscorableTest("uses except*, which is not supported")

    def _refuse_comparison(self, node: ast.Call, called: str) -> None:
        sides: list[ast.expr] = node.args[:2]
        if isinstance(node.func, ast.Attribute) and len(sides) == 1:
            sides = [node.func.value, *sides]
        compares = called in COMPARES or called.startswith("assert")
        if compares and len(sides) > 1 and all(map(self.touches, sides)):
            raise UnscorableTest("both sides are the program's")

    def _refuse_no_data(self, value: ast.expr) -> None:
        """Refuse an argument for the program that cannot be sent to its process."""
        if isinstance(value, ast.Lambda) or self._is_function(value):
            raise UnscorableTest("gives the program a function, which is not data")
        called = value.func if isinstance(value, ast.Call) else None
        iterator = isinstance(called, ast.Name) and called.id in ITERATORS - self.names
        if isinstance(value, ast.GeneratorExp) or iterator:
            raise UnscorableTest("gives the program an iterator, which is not data")

    def _is_function(self, node: ast.expr) -> bool:
        if not isinstance(node, ast.Name) or node.id in self.given:
            return False
        return node.id in self.functions or (
            node.id not in self.names and callable(getattr(builtins, node.id, None))
        )

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in RUNS_TEXT and node.id not in self.given:
            raise UnscorableTest(f"uses {node.id}, by which a value could run as code")

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._refuse_module(alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self._refuse_module(node.module or "")

    def _refuse_module(self, name: str) -> None:
        if name.split(".")[0] in RUN_DATA:
            raise UnscorableTest(f"uses {name}, by which a value could run as code")

    def visit_Expr(self, node: ast.Expr) -> None:
        self.generic_visit(node)
        call = node.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and not self.trying:
            name = call.func.id
            if name in self.names and name not in self.functions and not name[:1].isupper():
                raise UnscorableTest(
                    "what the program does to its arguments cannot be seen from outside"
                )
