"""Other sizes of the tiny model, for a study of the model's size: made once, in its directory.

    --axis model=1x64,2x128     1 layer of width 64, 2 layers of width 128
    DIR/models/tiny-1x64        what the variant's recipe names as its model
    --axis model=vocab8192      the tiny model with a vocabulary of 8,192 tokens
    DIR/models/tiny-vocab8192   its name; of tiny-vocab8192-logits40 logits are near 40 (default 20)

Each size is made like the tiny model: the same teacher, seed and lessons (`scalerl warmstart
--size`); a larger vocabulary is derived without training (`--from tiny --vocabulary`). A study
finds these names in any recipe, also where a sweep gives `model.path` itself. An existing
model is kept, so that a study continues with the weights it started with.
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
_SIZE = re.compile(r"(\d+)x(\d+)|vocab(\d+)(?:-logits(\d+))?")
_MADE = re.compile(rf"({'|'.join(TEACHERS)})-(?:{_SIZE.pattern})")
#: Tokens of a warm start.
TOKENS = 3.6e6
#: Parameters × tokens that one core trains in a second.
RATE = 5.5e9
#: Minutes to derive a model with a larger vocabulary, most of them for imports.
DERIVED = 0.1


@dataclass(frozen=True, slots=True)
class GeneratedModel:
    """A model that a study makes."""

    path: Path
    #: The options of `scalerl warmstart` that make it.
    words: tuple[str, ...]
    #: Estimated minutes on one idle core.
    minutes: float

    @staticmethod
    def sized(path: Path, teacher: str, layers: int, width: int) -> GeneratedModel:
        """A model of another size, taught as the tiny one was."""
        # Each layer has 4 width² parameters in attention, 12 width² in its feed-forward part.
        parameters = 16 * layers * width**2 + 80 * width
        words = ("--teacher", teacher, "--size", str(layers), str(width))
        return GeneratedModel(path, words, TOKENS * parameters / RATE / 60)

    @staticmethod
    def with_vocabulary(path: Path, source: str, tokens: str, logits: str | None) -> GeneratedModel:
        """A tiny model with a larger vocabulary, and logits of this size."""
        words = ("--from", source, "--vocabulary", tokens)
        more = () if logits is None else ("--logits", logits)
        return GeneratedModel(path, words + more, DERIVED)

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
        words = ["warmstart", *self.words, "--json", "--out", str(making)]
        done = subprocess.run(
            [sys.executable, "-m", "scalerl", *words],
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
    >>> is_size("2x128"), is_size("vocab8192"), is_size("tiny-noisy")
    (True, True, False)
    """
    return isinstance(value, str) and _SIZE.fullmatch(value) is not None


def size_path(base: Recipe, size: str, home: Path) -> str:
    """Where a study in `home` keeps a size of the model that its recipe names."""
    if base.model.path not in TEACHERS:
        raise InputError(
            f"axis model: {size} is a size of the tiny model, and {base.model.path} is another: "
            "name directories or ids of models"
        )
    if size.startswith("vocab"):
        return str(home / FOLDER / f"{base.model.path}-{size}")
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
            found[path] = _generated(path, name)
    return list(found.values())


def _generated(path: Path, name: re.Match[str]) -> GeneratedModel:
    source, layers, width, tokens, logits = name.groups()
    if tokens is not None:
        return GeneratedModel.with_vocabulary(path, source, tokens, logits)
    return GeneratedModel.sized(path, TEACHERS[source], int(layers), int(width))


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
