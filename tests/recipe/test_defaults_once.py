"""Defaults are stated once, in the recipe's schema: no other code gives a recipe field a literal
default of its own.

Checked on the source: a default that refers to the recipe (`DEFAULTS.ratio_cap`) states nothing, a
number or a text does, also by way of a constant of the same module."""

import ast
from pathlib import Path

import pytest
from pydantic import BaseModel

from scalerl.recipe import Recipe
from scalerl.recipe.choices import CURRICULUM_CONSTANTS, LENGTH_CONSTANTS
from scalerl.recipe.losses import LOSS_CONSTANTS

SRC = Path(__file__).parents[2] / "src" / "scalerl"
PACKAGES = ("algorithm", "trainer", "engine", "pipeline", "placement")
def recipe_fields():
    """Names of all fields of a recipe, those of sections and of their constants included."""
    found = {"seed"}
    for section in vars(Recipe()).values():
        if isinstance(section, BaseModel):
            found |= set(type(section).model_fields)
    for constants in LOSS_CONSTANTS.values():
        found |= set(constants.model_fields)
    for table in (CURRICULUM_CONSTANTS, LENGTH_CONSTANTS):
        for constants in table.values():
            found |= set(constants)
    return found


def literal_defaults(tree):
    """(owner, name, line) of every parameter and dataclass field with a literal default."""
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }

    def literal(value):
        if isinstance(value, ast.Name):
            value = constants.get(value.id)
        try:
            ast.literal_eval(value)
        except (ValueError, TypeError, SyntaxError):
            return False
        return value is not None

    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            a = node.args
            by_place = [*a.posonlyargs, *a.args]
            pairs = list(zip(by_place[len(by_place) - len(a.defaults) :], a.defaults, strict=True))
            pairs += [(p, d) for p, d in zip(a.kwonlyargs, a.kw_defaults, strict=True) if d]
            for parameter, default in pairs:
                if literal(default):
                    yield getattr(node, "name", "lambda"), parameter.arg, default.lineno
        elif isinstance(node, ast.ClassDef):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and field.value is not None:
                    value = field.value
                    if isinstance(value, ast.Call):  # field(default=…)
                        value = next((k.value for k in value.keywords if k.arg == "default"), None)
                    if value is not None and literal(value):
                        yield node.name, field.target.id, field.lineno
