"""Arithmetic over the columns of a table: `step*8*31.2/3600`, `1 - val_error`.

Numbers, column names, parentheses and the operators `+ - * / **`. A name that Python could not
read stands in backquotes, as in pandas: `` `eval/error rate` ``; the exact name of a column is
found without them. The text is parsed by `ast` and walked here: nothing in it is executed.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scalerl.errors import InputError
from scalerl.runs.names import resolve
from scalerl.runs.record import Array
from scalerl.runs.table import Table, to_float
from scalerl.text import shorten

#: Characters in an expression. A longer one is no conversion of units.
MAX_LENGTH = 500
#: Operators and operands in an expression: bounds the depth of the walk as well.
MAX_NODES = 100
#: Largest exponent, which has to be a literal number. Compute grows with a low power of a column.
MAX_EXPONENT = 8.0

_OPERATORS: dict[type[ast.operator], Callable[[Array, Array], Array]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_ARITHMETIC = re.compile(r"[*+/()`]|\s-|-\s|-\d")


@dataclass(frozen=True)
class Expression:
    """A parsed expression over columns of one table."""

    text: str
    #: Columns it reads, in the order of the text.
    columns: tuple[str, ...]
    _tree: ast.expr
    _names: dict[str, str]

    def evaluate(self, values: Callable[[str], Array], length: int) -> Array:
        """The result for every row, given the numbers of a column; a row that divides by 0 or
        overflows is nan or infinite, as a missing number is."""
        with np.errstate(all="ignore"):
            found = self._walk(self._tree, values)
            # A copy, because a broadcast array cannot be written to.
            return np.broadcast_to(np.asarray(found, dtype=np.float64), (length,)).copy()

    def _walk(self, node: ast.expr, values: Callable[[str], Array]) -> Array:
        if isinstance(node, ast.Constant):
            return np.asarray(float(node.value))  # type: ignore[arg-type]
        if isinstance(node, ast.Name):
            return values(self._names[node.id])
        if isinstance(node, ast.UnaryOp):
            inner = self._walk(node.operand, values)
            return -inner if isinstance(node.op, ast.USub) else inner
        assert isinstance(node, ast.BinOp)
        left, right = self._walk(node.left, values), self._walk(node.right, values)
        return _OPERATORS[type(node.op)](left, right)


def looks_like_arithmetic(text: str) -> bool:
    """Whether a text that names no column may be an expression.

    >>> [looks_like_arithmetic(t) for t in ("step*8", "1 - err", "val_acc", "val-core")]
    [True, True, False, False]
    """
    return bool(_ARITHMETIC.search(text))


def quoted(column: str) -> str:
    """The column's name as an expression holds it."""
    return column if column.isidentifier() else f"`{column}`"


def parse(text: str, table: Table, usable: list[str], flag: str) -> Expression:
    """The expression in a text, over the usable columns of a table; an InputError where it is
    none, or where a name is that of no column.

    >>> t = Table("mine", {"step": [1, 2]})
    >>> parse("step*8*31.2/3600", t, ["step"], "--x").columns
    ('step',)
    >>> parse("__import__('os')", t, ["step"], "--x")
    Traceback (most recent call last):
    scalerl.errors.InputError: mine: --x __import__('os'): use numbers, columns and + - * / ** only
    """
    shown = f"{table.name}: {flag} {shorten(text)}"
    if len(text) > MAX_LENGTH:
        raise InputError(f"{shown}: longer than {MAX_LENGTH} characters")
    names: dict[str, str] = {}
    source = _with_placeholders(text, table, usable, flag, names)
    try:
        tree = ast.parse(source.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError(f"{shown}: use numbers, columns and + - * / ** only") from None
    nodes = [n for n in ast.walk(tree) if isinstance(n, ast.expr)]
    if len(nodes) > MAX_NODES:
        raise InputError(f"{shown}: more than {MAX_NODES} numbers, columns and operators")
    for node in nodes:
        problem = _problem(node)
        if problem:
            raise InputError(f"{shown}: {problem}")
    has_number = any(isinstance(node, ast.Constant) for node in nodes)
    for node in nodes:
        if isinstance(node, ast.Name) and node.id not in names:
            # Without a number it was rather meant as the name of one column: `val-core/acc`.
            names[node.id] = resolve(node.id if has_number else text, table, usable, flag)
    used = [names[n.id] for n in nodes if isinstance(n, ast.Name)]
    if not used:
        raise InputError(f"{shown}: names no column")
    return Expression(text.strip(), tuple(dict.fromkeys(used)), tree, names)


def _with_placeholders(
    text: str, table: Table, usable: list[str], flag: str, names: dict[str, str]
) -> str:
    """The text with names of columns replaced by identifiers, the longest names first, so that
    `train/elapsed*8` is a column times 8 where there is such a column."""
    # A column that is called `8` needs backquotes: a number is a number.
    inside = [c for c in usable if c in text and c.strip() and np.isnan(to_float(c))]
    longest = sorted(inside, key=len, reverse=True)
    pattern = "|".join([r"`[^`]*`", *(rf"(?<![\w.]){re.escape(c)}(?!\w)" for c in longest)])

    def replaced(match: re.Match[str]) -> str:
        name = match[0]
        if name.startswith("`") and name not in usable:
            name = resolve(name.strip("`"), table, usable, flag)
        key = f"_column_{len(names)}_"
        names[key] = name
        return f" {key} "

    return re.sub(pattern, replaced, text)


def _problem(node: ast.expr) -> str:
    """What is wrong with a part of an expression; "" if nothing is."""
    if isinstance(node, ast.Name):
        return ""
    if isinstance(node, ast.Constant):
        number = type(node.value) in (int, float) and np.isfinite(_as_float(node.value))
        return "" if number else "use numbers, columns and + - * / ** only"
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        return ""
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        if not isinstance(node.op, ast.Pow):
            return ""
        exponent = node.right.operand if isinstance(node.right, ast.UnaryOp) else node.right
        small = isinstance(exponent, ast.Constant) and _as_float(exponent.value) <= MAX_EXPONENT
        return "" if small else f"an exponent has to be a number of at most {MAX_EXPONENT:g}"
    return "use numbers, columns and + - * / ** only"


def _as_float(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return float("inf")
