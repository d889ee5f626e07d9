"""Questions about Python's syntax trees: what a piece of code binds, and what it is given."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from typing import TypeAlias

Body: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Comprehension: TypeAlias = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
BODIES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def paired(targets: Sequence[ast.expr], value: ast.expr) -> Iterable[tuple[ast.expr, ast.expr]]:
    """Each target with what it is given of a value."""
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
    """What a function does."""
    return [function.body] if isinstance(function, ast.Lambda) else function.body


def local_names(function: Body) -> set[str]:
    """Parameters, and names that the body binds for itself."""
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
