"""Taint analysis of a unit test: which of its values come from the program that it tests.

A comparison of values that all come from the program is no test: `assert f(1) == f(1)` passes for
any program. So every value of the program is followed through the test, whatever syntax binds it
(assignments of all kinds, loops, comprehensions, patterns, helper functions and their parameters,
containers that it is put into). `unscorable_tests.py` refuses a test that only such values decide.

The analysis ignores the order of statements and branches: a value that may come from the program
counts as one that does. A test that is refused without need is one test less; a test that is kept
although the program decides it would reward any answer.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Sequence
from typing import TypeAlias

Body: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Comprehension: TypeAlias = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
BODIES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

#: Methods and functions that put their arguments into the object, or into the first argument.
PUTS = frozenset(
    ("append", "appendleft", "add", "extend", "extendleft", "insert", "update", "setdefault",
     "put", "put_nowait", "push", "__setitem__", "__setattr__", "setattr", "setitem", "heappush",
     "heappushpop", "heapreplace", "insort", "insort_left", "insort_right")
)  # fmt: skip


class TaintAnalysis(ast.NodeVisitor):
    """Follows the program's values through a test; `names` may hold such values."""

    def __init__(self, names: set[str], trees: Sequence[ast.Module]) -> None:
        self.given = frozenset(names)
        #: Names of the current scope that may hold a value of the program.
        self.names = set(names)
        #: The same for the scope of each function: parameters and other local names.
        self.own: dict[Body, set[str]] = {}
        #: Functions of the test, by the names under which they can be called.
        self.functions: dict[str, list[Body]] = {}
        #: Method → all methods of its class.
        self.siblings: dict[Body, list[Body]] = {}
        self.imported: set[str] = set()
        self._mentioned: dict[ast.AST, frozenset[str]] = {}
        #: Functions used as values: a call of an unknown function may call them.
        self.loose: list[Body] = []
        every = [node for tree in trees for node in ast.walk(tree)]
        for node in every:
            self._collect(node)
        called = {id(node.func) for node in every if isinstance(node, ast.Call)}
        for node in every:
            if isinstance(node, ast.Name | ast.Lambda) and id(node) not in called:
                self.loose += self._bodies(node)

    def _collect(self, node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self.functions.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    self.functions.setdefault(target.id, []).append(node.value)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self.imported |= {(a.asname or a.name).split(".")[0] for a in node.names}
        elif isinstance(node, ast.ClassDef):  # calling it calls __init__
            methods: list[Body] = [n for n in node.body if isinstance(n, ast.FunctionDef)]
            self.siblings |= dict.fromkeys(methods, methods)
            made = [n for n in methods if getattr(n, "name", "") == "__init__"]
            self.functions.setdefault(node.name, []).extend(made)

    def _bodies(self, node: ast.AST) -> list[Body]:
        """The functions of the test that an expression may refer to."""
        if isinstance(node, ast.Lambda):
            return [node]
        name = name_of(node)
        return self.functions.get(name, []) if name not in self.given else []

    @property
    def size(self) -> int:
        return len(self.names) + sum(map(len, self.own.values()))

    # -- which expressions are the program's ------------------------------------------------------

    def mentions(self, node: ast.AST) -> frozenset[str]:
        """All names in a piece of code. Cached, because a test may contain long lists of data."""
        found = self._mentioned.get(node)
        if found is None:
            below = {name for part in ast.iter_child_nodes(node) for name in self.mentions(part)}
            found = frozenset(below | {node.id} if isinstance(node, ast.Name) else below)
            self._mentioned[node] = found
        return found

    def visit(self, node: ast.AST) -> None:
        if not isinstance(node, ast.expr) or self.mentions(node):
            super().visit(node)

    def touches(self, node: ast.AST, without: frozenset[str] = frozenset()) -> bool:
        """Whether the value of an expression may depend on the program."""
        if not self.mentions(node) & self.names:
            return False
        if isinstance(node, ast.Name):
            return node.id in self.names and node.id not in without
        if isinstance(node, COMPREHENSIONS):
            if any(self.touches(part.iter, without) for part in node.generators):
                return True
            without |= bound_names(part.target for part in node.generators)
        elif isinstance(node, BODIES):
            without |= parameters(node)
        return any(self.touches(child, without) for child in ast.iter_child_nodes(node))

    # -- what binds names -------------------------------------------------------------------------

    def bind(self, target: ast.AST, value: ast.expr) -> None:
        """`target = value`."""
        if isinstance(target, ast.Starred):
            self.bind(target.value, value)
        elif isinstance(target, ast.Tuple | ast.List):
            for part, item in paired(target.elts, value):
                self.bind(part, item)
        elif self.touches(value):
            self._taint(target)

    def bind_each(self, target: ast.AST, values: ast.expr) -> None:
        """`for target in values`."""
        parts = target.elts if isinstance(target, ast.Tuple | ast.List) else []
        called = values.func if isinstance(values, ast.Call) else None
        name = called.id if isinstance(called, ast.Name) else ""
        if isinstance(values, ast.Call) and not any(map(starred, [*values.args, *parts])):
            if name == "zip" and len(parts) == len(values.args):
                for part, value in zip(parts, values.args, strict=True):
                    self.bind_each(part, value)
                return
            if name == "enumerate" and len(parts) == 2 and values.args:
                self.bind_each(parts[1], values.args[0])
                return
        if isinstance(values, ast.List | ast.Tuple | ast.Set):
            for value in values.elts:
                self.bind(target, value)
        else:
            self.bind(target, values)

    def _taint(self, target: ast.AST) -> None:
        """Mark a name, or the object that an attribute or an item belongs to."""
        owner = root(target)
        if isinstance(owner, ast.Name) and owner.id not in self.imported:
            self.names.add(owner.id)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            self.bind(target, node.value)
        # Two names of one object: a value that is put into it under one name is in the other too.
        aliases = [n for n in (*node.targets, node.value) if isinstance(n, ast.Name)]
        if any(map(self.touches, aliases)):
            for name in aliases:
                self._taint(name)

    def visit_AnnAssign(self, node: ast.AnnAssign | ast.AugAssign | ast.NamedExpr) -> None:
        self.generic_visit(node)
        if node.value is not None:  # `x: int` has no value
            self.bind(node.target, node.value)

    visit_AugAssign = visit_NamedExpr = visit_AnnAssign

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.bind_each(node.target, node.iter)
        self.generic_visit(node)

    visit_AsyncFor = visit_For

    def visit_withitem(self, node: ast.withitem) -> None:
        self.generic_visit(node)
        if node.optional_vars is not None:
            self.bind(node.optional_vars, node.context_expr)

    def visit_Match(self, node: ast.Match) -> None:
        if self.touches(node.subject):
            for part in (part for case in node.cases for part in ast.walk(case.pattern)):
                name = getattr(part, "rest", None) or getattr(part, "name", None)
                if isinstance(name, str):
                    self.names.add(name)
        self.generic_visit(node)

    def visit_Try(self, node: ast.Try) -> None:
        touched = any(map(self.touches, node.body))
        for handler in node.handlers:
            if handler.name and touched:
                self.names.add(handler.name)
        self.generic_visit(node)

    def _comprehension(self, node: Comprehension) -> None:
        before, own = set(self.names), bound_names(part.target for part in node.generators)
        self.names -= own
        for part in node.generators:
            self.bind_each(part.target, part.iter)
        self.generic_visit(node)
        self.names = before | (self.names - own)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension

    def visit_Call(self, node: ast.Call) -> None:
        self._enter(node)
        self.generic_visit(node)
        values = [*node.args, *(word.value for word in node.keywords)]
        if name_of(node.func) in PUTS and any(map(self.touches, values)):
            if isinstance(node.func, ast.Attribute):
                self._taint(node.func.value)
            if isinstance(values[0], ast.Name):
                self._taint(values[0])  # heapq.heappush(heap, value)

    # -- functions of the test --------------------------------------------------------------------

    def _body(self, node: Body) -> None:
        before, own = set(self.names), local_names(node)
        used = any(self.touches(part, frozenset(own)) for part in statements(node))
        self.names = (self.names - own) | self.own.get(node, set())
        self.generic_visit(node)
        self._own(node, self.names & own)
        self.names = before | (self.names - own)
        if used and not isinstance(node, ast.Lambda):
            self.names.add(node.name)  # its result may come from the program

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = _body

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.generic_visit(node)
        if any(self.touches(part) for part in node.body):
            self.names.add(node.name)
        if any(self.touches(part) for part in node.body if not isinstance(part, BODIES)):
            for method in (part for part in node.body if isinstance(part, ast.FunctionDef)):
                self._own(method, set(arguments(method)[:1]))

    def _own(self, function: Body, names: set[str]) -> None:
        """Mark names in the scope of a function. A marked `self` counts for all methods."""
        self.own.setdefault(function, set()).update(names)
        if names & set(arguments(function)[:1]):
            for method in self.siblings.get(function, []):
                self.own.setdefault(method, set()).update(arguments(method)[:1])

    def _give(self, function: Body, values: Sequence[ast.expr], *, skip: int = 0) -> None:
        """Mark the parameters of a function that get values of the program, in order."""
        places = [*function.args.posonlyargs, *function.args.args][skip:]
        if any(map(starred, values)) or len(values) > len(places):
            if any(map(self.touches, values)):
                self._own(function, set(parameters(function)))
            return
        for place, value in zip(places, values, strict=False):
            if self.touches(value):
                self._own(function, {place.arg})

    def _enter(self, node: ast.Call) -> None:
        """Follow values into functions of the test that are called, or passed as arguments."""
        bodies = self._bodies(node.func)
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        for body in bodies:
            first = set(arguments(body)[:1]) & {"self", "cls"}
            self._give(body, node.args, skip=len(first))
            for word in node.keywords:
                if self.touches(word.value):
                    known = parameters(body)
                    self._own(body, {word.arg} if word.arg in known else set(known))
            if owner is not None and self.touches(owner):
                self._own(body, first)
            if owner is not None and first & self.own.get(body, set()):
                self._taint(owner)
        values = [*node.args, *(word.value for word in node.keywords)]
        if bodies and self.touches(node.func):
            for value in values:  # it may put the program's values into its arguments
                self._taint(value)
        if not bodies and self._unknown(node.func) and any(map(self.touches, values)):
            for body in self.loose:
                self._own(body, set(parameters(body)))
        self._give_to_arguments(node, values)

    def _unknown(self, called: ast.expr) -> bool:
        """Whether a call may reach any function of the test."""
        base = root(called)
        if isinstance(called, ast.Name) and hasattr(builtins, called.id):
            return False
        return not (isinstance(base, ast.Name) and base.id in self.given | self.imported)

    def _give_to_arguments(self, node: ast.Call, values: Sequence[ast.expr]) -> None:
        """Follow values into functions that another function calls, as in
        `map(lambda a, b: a == b, f(1), g(1))`."""
        plain = isinstance(node.func, ast.Name) and node.func.id == "map"
        for i, value in enumerate(values):
            others = [other for other in values if other is not value]
            for body in self._bodies(value) if not isinstance(value, ast.Attribute) else []:
                if plain and i == 0:
                    for place, other in zip(arguments(body), others, strict=False):
                        if self.touches(other):
                            self._own(body, {place})
                elif any(map(self.touches, others)):
                    self._own(body, set(parameters(body)))


# -- questions about Python's syntax trees --------------------------------------------------------


def paired(targets: Sequence[ast.expr], value: ast.expr) -> Iterable[tuple[ast.expr, ast.expr]]:
    """Each target of an assignment, with the part of the value that it gets."""
    items = value.elts if isinstance(value, ast.Tuple | ast.List) else []
    if len(items) == len(targets) and not any(map(starred, [*targets, *items])):
        return zip(targets, items, strict=True)
    return [(target, value) for target in targets]


def starred(node: ast.AST) -> bool:
    """Whether this is `*values`."""
    return isinstance(node, ast.Starred)


def bound_names(targets: Iterable[ast.AST]) -> frozenset[str]:
    """Names that targets bind."""
    every = (node for target in targets for node in ast.walk(target))
    return frozenset(node.id for node in every if isinstance(node, ast.Name))


def arguments(function: Body) -> list[str]:
    """The names of a function's parameters, in order."""
    args = function.args
    every = [*args.posonlyargs, *args.args, *args.kwonlyargs]
    return [one.arg for one in (*every, *filter(None, (args.vararg, args.kwarg)))]


def parameters(function: Body) -> frozenset[str]:
    """The names of a function's parameters."""
    return frozenset(arguments(function))


def statements(function: Body) -> Sequence[ast.AST]:
    """The body of a function."""
    return [function.body] if isinstance(function, ast.Lambda) else function.body


def local_names(function: Body) -> set[str]:
    """Parameters, and names that the body binds locally."""
    found, outer = set(parameters(function)), set()
    for node in (node for part in statements(function) for node in ast.walk(part)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            outer.update(node.names)
    return found - outer


def root(node: ast.AST) -> ast.AST:
    """`a` of `a.b[0].c`."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
        node = node.value
    return node


def name_of(node: ast.AST) -> str:
    """The name of a name, and of an attribute; empty for anything else."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
