"""Other sizes of the tiny model, for a study of the model's size: made once, in its directory.

    --axis model=1x64,2x128     1 layer of width 64, 2 layers of width 128
    DIR/models/tiny-1x64        what the variant's recipe names as its model

Each is made like the tiny model: the same teacher, seed and lessons (`scalerl warmstart --size`).
An existing model is kept, so that a study continues with the weights it started with.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from scalerl.errors import InputError
from scalerl.recipe import Recipe

FOLDER = "models"
#: Tiny models that come with scalerl → the teacher of each.
TEACHERS = {"tiny": "forgetful", "tiny-noisy": "noisy"}
#: A smaller and a larger one than the default, which has 2 layers of width 64.
SIZES = ("1x64", "2x128")
#: Width of an attention head of theirs.
HEAD = 32
_SIZE = re.compile(r"(\d+)x(\d+)")
_MADE = re.compile(rf"({'|'.join(TEACHERS)})-(\d+)x(\d+)")
#: Tokens of a warm start.
TOKENS = 3.6e6
#: Parameters × tokens that one core trains in a second.
RATE = 5.5e9


@dataclass(frozen=True, slots=True)
class GeneratedModel:
    """A model that a study makes."""

    path: Path
    teacher: str
    layers: int
    width: int
    #: Further options of `scalerl warmstart`.
    options: tuple[str, ...] = ()

    @property
    def minutes(self) -> float:
        """Estimated minutes on one idle core."""
        # Each layer has 4 width² parameters in attention, 12 width² in its feed-forward part.
        parameters = 16 * self.layers * self.width**2 + 80 * self.width
        return TOKENS * parameters / RATE / 60

    @property
    def there(self) -> bool:
        return (self.path / "warmstart.json").exists()

    def make(self) -> None:
        """Make the model under another name, then rename it: what has its name is complete."""
        if self.there:
            return
        making = self.path.with_name(f"{self.path.name}.making")
        shutil.rmtree(making, ignore_errors=True)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        size = ["--size", str(self.layers), str(self.width)]
        words = ["warmstart", "--teacher", self.teacher, *size, *self.options, "--json"]
        done = subprocess.run(
            [sys.executable, "-m", "scalerl", *words, "--out", str(making)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines()
            raise InputError(
                f"{self.path} cannot be made: {lines[-1] if lines else 'scalerl warmstart failed'}"
            )
        making.rename(self.path)


def is_size(value: object) -> bool:
    """
    >>> is_size("2x128"), is_size("tiny-noisy")
    (True, False)
    """
    return isinstance(value, str) and _SIZE.fullmatch(value) is not None


def size_path(base: Recipe, size: str, home: Path) -> str:
    """Where a study in `home` keeps a size of the model that its recipe names."""
    if base.model.path not in TEACHERS:
        raise InputError(
            f"axis model: {size} is a size of the tiny model, and {base.model.path} is another: "
            "name directories or ids of models"
        )
    layers, width = map(int, size.split("x"))
    if layers < 1 or width < HEAD or width % HEAD:
        raise InputError(
            f"axis model: {size} is {layers} layers of width {width}: give 1 layer or more, and a "
            f"width that is a multiple of {HEAD}"
        )
    return str(home / FOLDER / f"{base.model.path}-{size}")


def models_of(recipes: Iterable[Recipe], home: Path) -> list[GeneratedModel]:
    """The models among these recipes' that a study in `home` makes."""
    found = {}
    for recipe in recipes:
        path = Path(recipe.model.path)
        name = _MADE.fullmatch(path.name)
        if name is not None and path.parent.resolve() == (home / FOLDER).resolve():
            found[path] = GeneratedModel(path, TEACHERS[name[1]], int(name[2]), int(name[3]))
    return list(found.values())


def relocated(recipe: Recipe, home: Path) -> Recipe:
    """The recipe with the model that its study makes where the study is now: a study may have been
    moved since the recipe was written. Other models, and one that is still where the recipe says,
    are left alone.

    >>> moved = Recipe.load("scalerl", "tiny").replace({"model.path": "old/models/tiny-1x64"})
    >>> relocated(moved, Path("new")).model.path
    'new/models/tiny-1x64'
    """
    path = Path(recipe.model.path)
    made = _MADE.fullmatch(path.name) is not None and path.parent.name == FOLDER
    if not made or (path / "warmstart.json").exists():
        return recipe
    return recipe.replace({"model.path": str(home / FOLDER / path.name)})


def make_all(
    models: Iterable[GeneratedModel], say: Callable[[str], None] = lambda line: None
) -> None:
    for model in models:
        if not model.there:
            say(f"making {model.path}, about {model.minutes:.1f} minutes on an idle core")
            model.make()
