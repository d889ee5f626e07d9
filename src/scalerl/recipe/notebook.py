"""A recipe as HTML for notebooks: its differences from ScaleRL, and all fields folded away."""

from __future__ import annotations

from html import escape
from typing import Any

from scalerl.recipe.diff import diff, flat
from scalerl.recipe.problems import fields_of
from scalerl.recipe.schema import IDENTITY, Recipe


def recipe_html(recipe: Recipe) -> str:
    """The recipe as HTML: name, differences from ScaleRL, and every field. It has no styles, so
    that it fits the light and dark themes of notebooks."""
    special = [
        (d.path, d.b, f"{_value(d.a)} in ScaleRL; {d.meaning}") for d in diff(Recipe(), recipe)
    ]
    about = fields_of(recipe)
    every = [
        (path, value, about[path].description or "")
        for path, value in flat(recipe, about).items()
        if path not in IDENTITY
    ]
    lines = [line for line in (recipe.description, recipe.source) if line]
    return (
        f"<p><b>{_text(f'Recipe {recipe.name}')}</b>"
        + "".join(f"<br/>{_text(line)}" for line in lines)
        + "</p>"
        + (_table(special) if special else "<p>as in the paper</p>")
        + f"<details><summary>all {len(every)} fields</summary>{_table(every)}</details>"
    )


def _table(rows: list[tuple[str, Any, str]]) -> str:
    body = "".join(
        f"<tr><td><code>{_text(path)}</code></td><td>{_text(_value(value))}</td>"
        f"<td>{_text(meaning)}</td></tr>"
        for path, value, meaning in rows
    )
    head = "<tr><th>field</th><th>value</th><th>meaning</th></tr>"
    return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"


def _value(value: Any) -> str:
    return "unset" if value is None else str(value)


def _text(text: str) -> str:
    """The text escaped for HTML, without control characters."""
    return escape("".join(c if c.isprintable() else "·" for c in text), quote=True)
