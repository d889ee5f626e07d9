"""From presets, files and `dotted.key=value` overrides to a recipe.

Layers are laid over each other key by key; a layer that says `over = "tiny"` brings that preset
along, below itself. Where a layer chooses another loss, length control, curriculum or decay of the
learning rate, the constants of the old choice go with it: an epsilon of 0.2 means nothing to GSPO.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from scalerl.files import read_limited
from scalerl.recipe.choices import CURRICULUM_CONSTANTS, LENGTH_CONSTANTS
from scalerl.recipe.length import LengthSection
from scalerl.recipe.losses import LossSection
from scalerl.recipe.problems import known_keys, loss_named, nearest, not_yet, unknown_key
from scalerl.recipe.schema import Recipe
from scalerl.recipe.sections_algorithm import CurriculumSection
from scalerl.recipe.sections_runtime import DECAY_CONSTANTS, OptimiserSection

PRESETS = resources.files("scalerl.recipe") / "presets"


def _constants(table: Mapping[str, Mapping[str, Any]]) -> set[str]:
    return {key for constants in table.values() for key in constants}


#: Section → the field that chooses, and the fields that stay whatever is chosen: all others are
#: constants of a choice.
SWITCHES: dict[str, tuple[str, set[str]]] = {
    "loss": ("name", set(LossSection.model_fields)),
    "length": ("control", set(LengthSection.model_fields) - _constants(LENGTH_CONSTANTS)),
    "optimiser": ("decay", set(OptimiserSection.model_fields) - set(DECAY_CONSTANTS)),
    "curriculum": ("name", set(CurriculumSection.model_fields) - _constants(CURRICULUM_CONSTANTS)),
}
#: The order in which presets are listed; any others follow.
ORDER = (
    *("scalerl", "base", "deepseek-grpo", "qwen-dapo", "magistral", "minimax-m1"),
    *("scalerl-32k", "scalerl-bs512", "scalerl-bs2048"),
    *("scalerl-8gen", "scalerl-24gen", "scalerl-32gen", "scalerl-scout"),
)


def presets() -> dict[str, str]:
    """Names of the presets that come with the package, each with its one-line summary."""
    found = {}
    for path in PRESETS.iterdir():
        if path.name.endswith(".toml"):
            first = path.read_text(encoding="utf-8").splitlines()[0]
            found[path.name.removesuffix(".toml")] = first.removeprefix("# ")
    rank = {name: i for i, name in enumerate(ORDER)}
    return dict(sorted(found.items(), key=lambda item: (rank.get(item[0], 99), item[0])))


def load(*sources: str | Path | Mapping[str, Any], overrides: Iterable[str] = ()) -> Recipe:
    """See `Recipe.load`."""
    data: dict[str, Any] = {}
    for source in sources:
        data = _lay(data, source)
    changes: dict[str, Any] = {}
    for path, value in map(parse_override, overrides):
        # `task.options=` after `task.options.size=9` undoes it; before it, it empties the table.
        changes = {k: v for k, v in changes.items() if not k.startswith(f"{path}.")}
        changes[path] = value
    for path in [p for p in changes if any(other.startswith(f"{p}.") for other in changes)]:
        data = merge(data, nest({path: changes.pop(path)}))
    return Recipe.from_dict(_over(data, nest(changes)))


def recipe_from(given: Any) -> Recipe:
    """A recipe, or what stands for one: a name, a path or a mapping, or several laid over each
    other, overrides among them, as on the command line.

    >>> recipe_from(["scalerl", "tiny", "budget.steps=5"]).budget.steps
    5
    """
    if isinstance(given, Recipe):
        return given
    items = [given] if isinstance(given, str | Path | Mapping) else given
    if not isinstance(items, list | tuple) or not all(
        isinstance(item, str | Path | Mapping) for item in items
    ):
        raise InputError(
            f"a recipe is wanted, not {type(given).__name__}: "
            'give Recipe.load("scalerl", "tiny"), or such names'
        )
    changes = [item for item in items if isinstance(item, str) and "=" in item]
    layers = [item for item in items if not (isinstance(item, str) and "=" in item)]
    if not layers:
        raise InputError('which recipe? for example "scalerl", or ["scalerl", "tiny"]')
    return load(*layers, overrides=changes)


def _lay(data: Mapping[str, Any], source: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    """A source over `data`, with the preset below it that it names."""
    label, layer = read(source)
    below = layer.pop("over", None)
    if below is not None and below not in list(presets()):
        raise InputError(f"over = {below!r} in {label or 'a layer'}: name a preset")
    if label and "name" not in layer:
        named = f"{data.get('name', 'scalerl')}+{label}" if data else label
        layer = {**layer, "name": named}
    return _over(data if below is None else _lay(data, below), layer, label)


def _over(data: Mapping[str, Any], layer: Mapping[str, Any], label: str = "") -> dict[str, Any]:
    """`merge`, once every key of the layer is known to the recipe that it makes."""
    merged = merge(data, layer)
    problem = unknown_key(layer, loss_named(merged), label)
    if problem:
        raise InputError(problem)
    return merged


def read(source: str | Path | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """A short name for the source, and what it says: a preset, a TOML file or a mapping."""
    if isinstance(source, Mapping):
        return "", dict(source)
    names = presets()
    if isinstance(source, str) and source in names:
        label, text = source, (PRESETS / f"{source}.toml").read_text(encoding="utf-8")
    else:
        path = Path(source)
        if not path.is_file():
            close = nearest(str(source), names)
            hint = f"did you mean {close}?" if close else "see `scalerl recipe list`"
            raise InputError(f"{source} is neither a preset nor a file; {hint}")
        try:
            label, text = path.stem, read_limited(path).decode()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise InputError(
                f"{path} cannot be read as text ({reason}); give a TOML file"
            ) from None
    try:
        return label, tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{source} is not TOML: {error}") from None


def merge(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """`upper` laid over `lower`, section by section."""
    merged = dict(lower)
    for key, item in upper.items():
        below = merged.get(key)
        if not (isinstance(item, Mapping) and isinstance(below, Mapping)):
            merged[key] = item
            continue
        if key in SWITCHES:
            switch, lasting = SWITCHES[key]
            if switch in item and item[switch] != below.get(switch, item[switch]):
                below = {k: v for k, v in below.items() if k in lasting}
        merged[key] = merge(below, item)
    return merged


def nest(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as sections.

    >>> nest({"seed": 1, "loss.name": "dapo"})
    {'seed': 1, 'loss': {'name': 'dapo'}}
    """
    nested: dict[str, Any] = {}
    for path, item in changes.items():
        *sections, leaf = path.split(".")
        place = nested
        for section in sections:
            place = place.setdefault(section, {})
        place[leaf] = item
    return nested


def parse_override(text: str) -> tuple[str, Any]:
    """`dotted.key=value`, the value as TOML; a bare word is a string. Nothing unsets the key: text,
    lists and tables are then empty.

    >>> parse_override("loss.ratio_cap=4"), parse_override("loss.name=dapo")
    (('loss.ratio_cap', 4), ('loss.name', 'dapo'))
    >>> parse_override("budget.gpu_hours=")
    ('budget.gpu_hours', None)
    """
    path, equals, raw = text.partition("=")
    path, raw = path.strip(), raw.strip()
    if not equals or not path:
        raise InputError(f"{text!r} is not an override; write section.key=value")
    known = known_keys()
    base = "task.options" if path.startswith("task.options.") else path
    # A key of [loss] may be a constant of any loss: which one is known only with the other layers.
    constant = path.startswith("loss.") and path.count(".") == 1 and path != "loss."
    if base not in known and not constant:
        sections = {k.partition(".")[0] for k in known if "." in k}
        if path in sections:
            raise InputError(f"{path} is a section, not a value; write {path}.KEY=VALUE")
        if (line := not_yet(path)) is not None:
            raise InputError(line)
        guess = nearest(path, known)
        hint = f"did you mean {guess}?" if guess else "see `scalerl recipe show scalerl`"
        raise InputError(f"{path} is not a key of a recipe; {hint}")
    return path, _parse_value(path, raw)


def _parse_value(path: str, raw: str) -> Any:
    if not raw:
        return None
    if "\n" not in raw:
        try:
            return tomllib.loads(f"value = {raw}")["value"]
        except tomllib.TOMLDecodeError:
            pass
    if raw[0] in "\"'[{" or "\n" in raw:
        raise InputError(f"{path}={raw!r} is not a TOML value; quote text, close brackets")
    return raw
