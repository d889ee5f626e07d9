"""The definition of a study, and the variants that it makes of a recipe.

    asked = StudyDefinition(recipe=("scalerl", "tiny"), leave_one_out=True, seeds=3, steps=300)
    variants(asked)     {"scalerl+tiny": Recipe, "loo-plan": Recipe, ...}

The first variant is the reference: every other one is compared with it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from scalerl.errors import InputError
from scalerl.files import read_limited
from scalerl.recipe import Recipe, diff, forward, leave_one_out
from scalerl.recipe import toml as recipe_toml
from scalerl.recipe.load import parse_override, presets, recipe_from
from scalerl.recipe.problems import nearest
from scalerl.study.axes import AXES, HERE, axis_changes
from scalerl.study.force import HOME_WORD, find_force, force_variants

FILE = "study.toml"
RateRule = Literal["kept", "sqrt"]
#: Share of the budget that a member is screened with before it is given the rest.
SCREEN = 0.25
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")


@dataclass(frozen=True, slots=True)
class StudyDefinition:
    """The definition of a study: the keys of a study file, or of the command line."""

    #: Presets, files and KEY=VALUE, as `scalerl train` takes them.
    recipe: tuple[str, ...] = ()
    leave_one_out: bool = False
    forward: bool = False
    #: Rival recipes: each takes the place of the first word of `recipe`.
    recipes: tuple[str, ...] = ()
    #: Dotted key → values, one variant each; several keys are varied one at a time.
    sweep: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    #: Axis → values; none: those of the paper, or for the tiny model smaller ones.
    axis: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    #: Learning rate on the batch axis: as it is, or times the root of the batch's growth.
    learning_rate: RateRule = "kept"
    #: A force by its name or file: a variant for each of its lines at each dose.
    forces: str = ""
    #: Only these of the variants (and the reference); none: all.
    variants: tuple[str, ...] = ()
    seeds: int = 1
    #: Variant → runs, where they are not `seeds`.
    more_seeds: Mapping[str, int] = field(default_factory=dict)
    #: Budget of each member; None: that of the recipe.
    steps: int | None = None
    #: Share of the budget for screening; 1: no screening.
    screen: float = SCREEN
    #: Compute goes where it decides most, instead of to all alike.
    race: bool = False

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise InputError(f"{self.seeds} seeds: give 1 or more")
        if self.steps is not None and self.steps < 1:
            raise InputError(f"{self.steps} steps: give 1 or more")
        if not 0 < self.screen <= 1:
            raise InputError(f"screening with {self.screen:g} of the budget: give a share up to 1")
        if self.learning_rate not in ("kept", "sqrt"):
            raise InputError(f"learning rate {self.learning_rate!r}: kept, or sqrt")
        if self.learning_rate != "kept" and "batch" not in self.axis:
            raise InputError("a learning rate that goes with the batch needs the axis batch")
        for name in self.axis:
            if name not in AXES:
                raise InputError(f"no axis {name!r}: choose from {', '.join(AXES)}")
        others = ("leave_one_out", "forward", "recipes", "sweep", "axis", "race")
        if self.forces and (other := next((k for k in others if getattr(self, k)), None)):
            # Its reference and its verdicts are about doses alone.
            raise InputError(f"a study of the force {self.forces} has no {other}: leave it out")
        for name, count in self.more_seeds.items():
            if count < 1:
                raise InputError(f"{count} seeds of {name}: give 1 or more")

    def seeds_of(self, variant: str) -> int:
        """Runs of a variant."""
        return self.more_seeds.get(variant, self.seeds)

    def given(self) -> dict[str, Any]:
        """The keys that differ from their defaults, as a study file has them."""
        return {
            each.name: dict(value) if isinstance(value, Mapping) else value
            for each in fields(self)
            if (value := getattr(self, each.name)) not in (each.default, {}, None)
            or each.name == "recipe"
        }

    def to_toml(self) -> str:
        """The text of a study file; reading it gives this definition back."""
        return recipe_toml.write(self.given())


def read_definition(path: Path) -> StudyDefinition:
    """The definition in a study file."""
    try:
        data = tomllib.loads(read_limited(path).decode())
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{path} cannot be read: {reason}") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not TOML: {error}") from None
    return definition_from(data, str(path))


def definition_from(data: Mapping[str, Any], where: str) -> StudyDefinition:
    """A definition from the keys of a study file."""
    known = {each.name: each for each in fields(StudyDefinition)}
    given: dict[str, Any] = {}
    for key, value in data.items():
        if key not in known:
            close = nearest(key, known)
            hint = f"did you mean {close}?" if close else f"choose from {', '.join(known)}"
            raise InputError(f"{where}: {key} is not a key of a study; {hint}")
        given[key] = _typed(where, key, value)
    return StudyDefinition(**given)


#: Key of a study file → what it has to be.
_KINDS: dict[str, tuple[type, ...]] = {
    "leave_one_out": (bool,), "forward": (bool,), "race": (bool,), "seeds": (int,), "steps": (int,),
    "screen": (int, float), "learning_rate": (str,), "sweep": (dict,), "axis": (dict,),
    "recipe": (list, str), "recipes": (list, str), "variants": (list, str),
    "forces": (str,), "more_seeds": (dict,),
}  # fmt: skip


def _typed(where: str, key: str, value: Any) -> Any:
    kinds: tuple[Any, ...] = _KINDS[key]
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise InputError(f"{where}: {key} = {value!r} is not a value for it; see `scalerl study`")
    if key in ("recipe", "recipes", "variants"):
        words = value.split() if isinstance(value, str) else value
        if not all(isinstance(word, str) for word in words):
            raise InputError(f"{where}: {key} holds something that is no text")
        return tuple(words)
    if key == "more_seeds" and not all(type(count) is int for count in value.values()):
        raise InputError(f"{where}: more_seeds holds something that is no whole number")
    if key in ("sweep", "axis"):
        return {k: tuple(v) if isinstance(v, list | tuple) else (v,) for k, v in value.items()}
    return value


def is_study_file(word: str) -> bool:
    """Whether a word names a study file: TOML that says which recipe the study is about."""
    path = Path(word)
    if "=" in word or not path.is_file():
        return False
    try:
        return "recipe" in tomllib.loads(read_limited(path).decode())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return False


def parse_sweep(text: str) -> tuple[str, tuple[Any, ...]]:
    """`KEY=V1,V2`, each value as in a recipe; where values hold commas themselves, separate them
    by `;`.

    >>> parse_sweep("loss.ratio_cap=4,8"), parse_sweep("loss.name=cispo,dapo")
    (('loss.ratio_cap', (4, 8)), ('loss.name', ('cispo', 'dapo')))
    """
    key, _, raw = text.partition("=")
    parts = [part for part in raw.split(";" if ";" in raw else ",") if part.strip()]
    if not parts:
        raise InputError(f"{text!r} sweeps nothing: write section.key=value1,value2")
    return key.strip(), tuple(parse_override(f"{key}={part}")[1] for part in parts)


def parse_axis(text: str) -> tuple[str, tuple[Any, ...]]:
    """`NAME`, or `NAME=V1,V2`.

    >>> parse_axis("batch"), parse_axis("batch=256,1024")
    (('batch', ()), ('batch', (256, 1024)))
    """
    name, _, raw = text.partition("=")
    values = [part.strip() for part in raw.split(",") if part.strip()]
    return name.strip(), tuple(int(v) if v.isdecimal() else v for v in values)


# -- variants -------------------------------------------------------------------------------------


def variants(
    asked: StudyDefinition,
    known: Mapping[str, Recipe] | None = None,
    home: Path = HERE,
    old_rivals: Collection[str] = (),
) -> dict[str, Recipe]:
    """Every variant by name, the reference first. `known` are those that the study has already:
    they stay what they are, whatever has become of the files that they were made from. `home` is
    its directory, and `old_rivals` those that it has made variants of: their files may be gone, as
    after a move of the study.

    >>> list(variants(StudyDefinition(recipe=("scalerl",), sweep={"loss.ratio_cap": (4, 5, 8)})))
    ['scalerl', 'ratio_cap-4', 'ratio_cap-8']
    """
    kept = dict(known or {})
    base = next(iter(kept.values())) if kept else _base(asked)
    if asked.forces:
        return _only(asked, _of_force(asked, kept, home), kept)
    if asked.steps is not None:
        base = base.replace({"budget.steps": asked.steps})
    # By the whole budget, before a member is screened with a part of it.
    fixed = base.with_decay_fixed()
    budget = {f"budget.{k}": v for k, v in base.to_dict()["budget"].items()}
    if not any(budget.values()):
        raise InputError("how long is each run? give --steps N")
    found = {name: recipe.replace(budget) for name, recipe in ({base.name: fixed} | kept).items()}
    made: set[str] = set()
    for name, recipe in _others(asked, base, home, old_rivals):
        same_budget = recipe.replace({"name": name, **budget}).with_decay_fixed()
        # A value of a sweep may be that of the reference.
        if not diff(fixed, same_budget):
            continue
        if name in made:
            raise InputError(f"two variants are called {name}: ask for one of them")
        made.add(name)
        found.setdefault(name, same_budget)
    return _only(asked, found, kept)


def _of_force(asked: StudyDefinition, kept: Mapping[str, Recipe], home: Path) -> dict[str, Recipe]:
    """The variants of a study of a force: each line at each dose, with the same budget."""
    plain = _base(asked)
    if HOME_WORD in plain.model.path:
        plain = plain.replace({"model.path": plain.model.path.replace(HOME_WORD, str(home))})
    if not any(plain.to_dict()["budget"].values()):
        raise InputError("how long is each run? give --steps N")
    found: dict[str, Recipe] = {}
    for name, changes in force_variants(find_force(asked.forces, home)):
        made = _one(plain, name, changes)[1].replace({"name": name}).with_decay_fixed()
        if name not in kept:
            found[name] = made
            continue
        # What has been run stays what it is; its budget may grow.
        budget = {} if asked.steps is None else {"budget.steps": asked.steps}
        found[name] = kept[name].replace(budget)
    return found | {name: recipe for name, recipe in kept.items() if name not in found}


def _others(
    asked: StudyDefinition, base: Recipe, home: Path, old_rivals: Collection[str]
) -> Iterator[tuple[str, Recipe]]:
    if asked.leave_one_out:
        yield from leave_one_out(base)
    if asked.forward:
        yield from forward(base)
    yield from _rivals(asked, old_rivals)
    yield from _swept(asked, base)
    yield from _scaled(asked, base, home)


def _base(asked: StudyDefinition) -> Recipe:
    layers = [word for word in asked.recipe if "=" not in word]
    if not layers:
        raise InputError("which recipe? for example: scalerl study out/loo scalerl tiny")
    recipe = recipe_from([*asked.recipe, *_steps(asked)])
    # The name of a variant is also that of a file and of a directory.
    return recipe.replace({"name": safe(recipe.name)})


def _steps(asked: StudyDefinition) -> list[str]:
    """The budget as a word of a recipe: a decay of the learning rate needs to know it."""
    return [] if asked.steps is None else [f"budget.steps={asked.steps}"]


def safe(name: str) -> str:
    """
    >>> safe("my recipe=2")
    'my-recipe-2'
    """
    return _UNSAFE.sub("-", name).strip("-.") or "recipe"


def _rivals(asked: StudyDefinition, old_rivals: Collection[str]) -> Iterator[tuple[str, Recipe]]:
    """Other recipes, with the same overlays and changes over them."""
    first = next((i for i, word in enumerate(asked.recipe) if "=" not in word), 0)
    rest = (*asked.recipe[:first], *asked.recipe[first + 1 :])
    for rival in asked.recipes:
        # The recipe that was made of it is in the study's own folder of recipes.
        if rival in old_rivals and rival not in presets() and not Path(rival).is_file():
            continue
        recipe = recipe_from([rival, *rest, *_steps(asked)])
        yield safe(recipe.name), recipe


def _swept(asked: StudyDefinition, base: Recipe) -> Iterator[tuple[str, Recipe]]:
    leaves = [key.rpartition(".")[2] for key in asked.sweep]
    for key, values in asked.sweep.items():
        leaf = key.rpartition(".")[2]
        short = leaf if leaves.count(leaf) == 1 else key
        for value in values:
            text = value if isinstance(value, str) else recipe_toml.value(value)
            yield _one(base, safe(f"{short}-{text}"), {key: value})


def _scaled(asked: StudyDefinition, base: Recipe, home: Path) -> Iterator[tuple[str, Recipe]]:
    for axis, values in asked.axis.items():
        for name, changes in axis_changes(base, axis, values, asked.learning_rate, home):
            yield _one(base, safe(name), changes)


def _one(base: Recipe, name: str, changes: Mapping[str, Any]) -> tuple[str, Recipe]:
    try:
        return name, base.replace(changes)
    except InputError as error:
        raise InputError(f"variant {name}: {error}") from None


def _only(
    asked: StudyDefinition, found: dict[str, Recipe], kept: Mapping[str, Recipe]
) -> dict[str, Recipe]:
    """The variants that are asked for, and those that the study has already."""
    if not asked.variants:
        return found
    for name in asked.variants:
        if name not in found:
            close = nearest(name, found)
            hint = f"did you mean {close}?" if close else f"there is {', '.join(found)}"
            raise InputError(f"no variant {name!r}: {hint}")
    wanted = {next(iter(found)), *asked.variants, *kept}
    return {name: recipe for name, recipe in found.items() if name in wanted}
