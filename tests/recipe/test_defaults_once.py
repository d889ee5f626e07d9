"""A default is stated once, in the recipe's schema: no other code gives a recipe field a literal
default.

The check reads the source. A default that refers to the recipe (`DEFAULTS.ratio_cap`) repeats
nothing; a number or a text does, also by way of a constant of the same module. None is not a
default value but the absence of one."""

import ast
from pathlib import Path

from scalerl.engine.interface import Sampling
from scalerl.recipe import Recipe
from scalerl.recipe.problems import known_keys

SRC = Path(__file__).parents[2] / "src" / "scalerl"
PACKAGES = ("algorithm", "trainer", "engine", "pipeline", "placement")
#: Defaults that may stay, with the reason.
ALLOWED = {
    # A public type that stands for "the model's own distribution"; held equal to the recipe below.
    ("Sampling", "temperature"),
    ("Sampling", "top_p"),
    ("Sampling", "top_k"),
    # Not the recipe's field: optimiser steps counted so far.
    ("Ledger", "steps"),
    # Not the recipe's field: the device that a worker reports, as "cpu" or "NVIDIA H100".
    ("WorkerReady", "device"),
    # Not the recipe's field: whether a lost worker is the trainer.
    ("IrreplaceableWorkerLost", "trainer"),
    # Not the recipe's field: seconds to wait for a cluster's resources when a run is resumed.
    ("connect", "patience"),
    # Not the recipe's fields: the faults and the randomness of a simulated world.
    ("Fault", "generators"),
    ("World", "seed"),
    ("Fault", "seconds"),
    # Not the recipe's field: whether the model is a mixture of experts.
    ("RunSetup", "experts"),
    # Not the recipe's fields: turns counted, seconds measured, and the turns of one episode.
    ("EpisodeFacts", "turns"),
    ("GeneratorState", "turns"),
    ("Job", "turns"),
    ("WorkerState", "turns"),
    ("_Held", "turns"),
    ("_Job", "seconds"),
    ("EnvironmentReply", "seconds"),
    ("WorkDone", "seconds"),
    ("EnvironmentCall", "history"),
}


def recipe_fields():
    """Names of all fields of a recipe, those of sections and of their constants included."""
    return {path.rpartition(".")[2] for path in known_keys()} - {"name", "description", "source"}


def literal_defaults(tree):
    """(function, or class of a method or field; name; line) of each literal default."""
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
            return value is not None and ast.literal_eval(value) is not None
        except ValueError:
            return False

    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            a = node.args
            by_place = [*a.posonlyargs, *a.args]
            pairs = list(zip(by_place[len(by_place) - len(a.defaults) :], a.defaults, strict=True))
            pairs += [(p, d) for p, d in zip(a.kwonlyargs, a.kw_defaults, strict=True) if d]
            owner = parents[node] if isinstance(parents[node], ast.ClassDef) else node
            for parameter, default in pairs:
                if literal(default):
                    yield getattr(owner, "name", "lambda"), parameter.arg, default.lineno
        elif isinstance(node, ast.ClassDef):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and field.value is not None:
                    value = field.value
                    if isinstance(value, ast.Call):  # field(default=…)
                        value = next((k.value for k in value.keywords if k.arg == "default"), None)
                    if value is not None and literal(value):
                        yield node.name, field.target.id, field.lineno


def stated_again(source):
    """(function or class, recipe field, line) of each default that a source states again."""
    names = recipe_fields()
    found = literal_defaults(ast.parse(source))
    return [each for each in found if each[1] in names and each[:2] not in ALLOWED]


def test_no_default_of_the_recipe_is_stated_again():
    files = [f for package in PACKAGES for f in sorted((SRC / package).rglob("*.py"))]
    assert len(files) > 50
    found = {
        f"{file.relative_to(SRC)}:{line} {owner}.{name}"
        for file in files
        for owner, name, line in stated_again(file.read_text(encoding="utf-8"))
    }
    assert not found, f"take these defaults from the recipe's schema: {sorted(found)}"


def test_every_exception_is_still_needed():
    files = [f for package in PACKAGES for f in (SRC / package).rglob("*.py")]
    trees = [ast.parse(f.read_text(encoding="utf-8")) for f in files]
    assert {each[:2] for tree in trees for each in literal_defaults(tree)} >= ALLOWED


def test_plain_sampling_is_the_recipes():
    ours, recipe = Sampling(), Recipe().sampling
    assert (ours.temperature, ours.top_p, ours.top_k) == (
        recipe.temperature, recipe.top_p, recipe.top_k
    )  # fmt: skip


def test_a_default_that_is_stated_again_is_found():
    """In each of the ways to write one; and one that refers to the recipe is not."""
    for source in (
        "def f(x, ddof=0): ...",
        "def f(*, epsilon: float = 1e-6): ...",
        "async def f(truncated='keep'): ...",
        "f = lambda top_k=0: top_k",
        "class Options:\n    aggregation: str = 'prompt'",
        "class Options:\n    lr: float = field(default=5e-7)",
        "CAP = 5.0\ndef loss(ratio_cap=CAP): ...",
        "EPS = 1e-15\nclass Settings:\n    eps: float = EPS",
    ):
        assert stated_again(source), source
    for source in (
        "def loss(x, *, ratio_cap=DEFAULTS.ratio_cap): ...",
        "def f(ddof, epsilon): ...",
        "def f(weights=None, other=0): ...",
        "class Rule:\n    threshold: float = DEFAULTS.threshold",
    ):
        assert not stated_again(source), source
