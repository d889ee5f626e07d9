"""From presets, files and `dotted.key=value` overrides to a recipe.

Later layers override earlier ones, key by key; a layer with `over = "tiny"` is laid over that
preset. A layer that chooses another loss, length control, curriculum or decay of the learning rate
drops the constants of the old choice: a clip of 0.2 would make no sense for GSPO.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from scalerl.files import read_limited
from scalerl.recipe.diff import diff, shown
from scalerl.recipe.problems import (
    CHOOSING,
    about_adapters,
    fields_of,
    known_keys,
    nearest,
    open_sections,
    unknown_key,
)
from scalerl.recipe.schema import IDENTITY, Recipe
from scalerl.recipe.sections_runtime import DECAY_CONSTANTS, OptimiserSection
from scalerl.recipe.toml import write

PRESETS = resources.files("scalerl.recipe") / "presets"


#: Section → the field that chooses, and the fields that do not depend on the choice. All other
#: fields are constants of a choice.
SWITCHES: dict[str, tuple[str, set[str]]] = {
    **{home: (switch, set(made.model_fields)) for home, (switch, made, _) in CHOOSING.items()},
    "optimiser": ("decay", set(OptimiserSection.model_fields) - set(DECAY_CONSTANTS)),
}
#: Key of a preset: the fields about which the paper is silent, kept as in `scalerl`.
NOT_STATED = "not_stated"
#: The order in which presets are listed; any others follow.
ORDER = (
    *("scalerl", "base", "deepseek-grpo", "qwen-dapo", "magistral", "minimax-m1"),
    *("scalerl-32k", "scalerl-bs512", "scalerl-bs2048"),
    *("scalerl-8gen", "scalerl-24gen", "scalerl-32gen", "scalerl-scout"),
)


def presets() -> dict[str, str]:
    """The presets that come with the package: name → one-line summary."""
    found = {}
    for path in PRESETS.iterdir():
        # Presets are built on a file that begins with _, which is none itself.
        if path.name.endswith(".toml") and not path.name.startswith("_"):
            name = path.name.removesuffix(".toml")
            found[name] = preset_text(name).splitlines()[0].removeprefix("# ")
    rank = {name: i for i, name in enumerate(ORDER)}
    return dict(sorted(found.items(), key=lambda item: (rank.get(item[0], len(rank)), item[0])))


def preset_text(name: str) -> str:
    """The file of a preset: a summary in its first line, then what it changes."""
    return (PRESETS / f"{name}.toml").read_text(encoding="utf-8")


def read_preset(name: str) -> dict[str, Any]:
    """The keys of a preset. A file with a `source` is a recipe of its own and is returned complete:
    the preset in `over`, or else the schema's defaults, with the file's keys laid over it. A file
    without one (`tiny`) is an overlay: only the keys that it sets."""
    text = preset_text(name)
    layer = tomllib.loads(text)
    # It is for `provenance`; it is no key of a recipe.
    layer.pop(NOT_STATED, None)
    if "source" not in layer:
        return layer
    below = layer.pop("over", None)
    lower = read_preset(below) if below else _set_keys(Recipe().to_dict())
    summary = text.splitlines()[0].removeprefix("# ")
    return merge(lower, {**layer, "name": name, "description": summary})


def _set_keys(data: Mapping[str, Any]) -> dict[str, Any]:
    """The data without the keys that are None, as TOML would hold it."""
    sections = {k: _set_keys(v) if isinstance(v, Mapping) else v for k, v in data.items()}
    return {key: value for key, value in sections.items() if value is not None}


def provenance(name: str) -> dict[str, str]:
    """Where each number of a preset comes from: dotted key → mark. A mark is the comment after the
    value in the preset's file; for keys that no file sets, it is that of the schema.

    >>> provenance("minimax-m1")["batch.prompts"]
    'paper: 1,280 completions'
    """
    marks = {}
    for path, info in fields_of(load(name)).items():
        extra = info.json_schema_extra
        if path not in IDENTITY and isinstance(extra, dict):
            marks[path] = str(extra["source"])
    return marks | _marks_in_file(name)


def _marks_in_file(name: str) -> dict[str, str]:
    text = preset_text(name)
    data = tomllib.loads(text)
    marks = _marks_in_file(data["over"]) if "over" in data else {}
    marks |= dict.fromkeys(data.get(NOT_STATED, ()), "not stated: kept as in scalerl")
    section = ""
    # tomllib drops comments, so they are read from the text.
    for line in text.splitlines():
        if found := re.fullmatch(r"\[(\w+)\]", line):
            section = f"{found[1]}."
        elif found := re.fullmatch(r"(\w+) = .*?  # (.+)", line):
            marks[section + found[1]] = found[2]
    return marks


def annotated(recipe: Recipe, preset: str) -> str:
    """The recipe as TOML, with where each number comes from as a comment: the preset's mark, or
    "changed here" where the recipe differs from the preset. An overlay is compared with scalerl."""
    if preset not in presets():
        raise InputError(f"{preset} is not a preset, so where its numbers come from is not known")
    base = preset if "source" in tomllib.loads(preset_text(preset)) else "scalerl"
    # An overlay sets a few keys only: all other numbers come from scalerl.
    marks = provenance(base)
    for changed in diff(load(base), recipe):
        marks[changed.path] = f"changed here: {shown(changed.a)} in {base}"
    return write(recipe.to_dict(), marks)


def load(*sources: str | Path | Mapping[str, Any], overrides: Iterable[str] = ()) -> Recipe:
    """See `Recipe.load`."""
    data: dict[str, Any] = {}
    for source in sources:
        data = _lay(data, source)
    changes: dict[str, Any] = {}
    for path, value in map(parse_override, overrides):
        # `task.options=` after `task.options.size=9` undoes it. Before it, it empties the table of
        # the layers, and size is set in the empty table (by the loop below).
        changes = {k: v for k, v in changes.items() if not k.startswith(f"{path}.")}
        changes[path] = value
    for path in [p for p in changes if any(other.startswith(f"{p}.") for other in changes)]:
        data = merge(data, nest({path: changes.pop(path)}))
    return Recipe.from_dict(_over(data, nest(changes)))


def recipe_from(given: Any) -> Recipe:
    """The recipe for a name, a path, a mapping, or a list of them with overrides, as on the command
    line; a recipe is returned as it is.

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
            f"{type(given).__name__} is not a recipe: "
            'give Recipe.load("scalerl", "tiny"), or names such as ["scalerl", "tiny"]'
        )
    changes = [item for item in items if isinstance(item, str) and "=" in item]
    layers = [item for item in items if not (isinstance(item, str) and "=" in item)]
    if not layers:
        raise InputError('which recipe? give "scalerl", or ["scalerl", "tiny"], for example')
    return load(*layers, overrides=changes)


def _lay(data: Mapping[str, Any], source: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    """A source laid over `data`, together with the preset that it names in `over`."""
    label, layer = read(source)
    below = layer.pop("over", None)
    # A list, since `over` may be any TOML value, also one that cannot be hashed.
    if below is not None and below not in list(presets()):
        raise InputError(
            f"over = {below!r} in {label or 'a layer'} is not a preset; see `scalerl recipe list`"
        )
    if label and "name" not in layer:
        named = f"{data.get('name', 'scalerl')}+{label}" if data else label
        layer = {**layer, "name": named}
    return _over(data if below is None else _lay(data, below), layer, label)


def _over(data: Mapping[str, Any], layer: Mapping[str, Any], label: str = "") -> dict[str, Any]:
    """`merge`, but an unknown key of the layer is an InputError."""
    # Merged first: which constants [loss] may have depends on the loss of all layers together.
    merged = merge(data, layer)
    problem = unknown_key(layer, open_sections(merged), label)
    if problem:
        raise InputError(problem)
    return merged


def read(source: str | Path | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """A short name for a source (a preset, a TOML file or a mapping), and its keys."""
    if isinstance(source, Mapping):
        return "", dict(source)
    names = presets()
    # A Path is always a file, even one with the name of a preset.
    if isinstance(source, str) and source in names:
        return source, read_preset(source)
    path = Path(source)
    if not path.is_file():
        close = nearest(str(source), names)
        hint = f"did you mean {close}?" if close else "see `scalerl recipe list`"
        raise InputError(f"{source} is neither a preset nor a file; {hint}")
    try:
        text = read_limited(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{path} cannot be read as text ({reason}); give a TOML file") from None
    try:
        return path.stem, tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{source} is not TOML: {error}") from None


def merge(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """`upper` laid over `lower`, key by key."""
    merged = dict(lower)
    for key, item in upper.items():
        below = merged.get(key)
        if not (isinstance(item, Mapping) and isinstance(below, Mapping)):
            merged[key] = item
            continue
        if key in SWITCHES:
            switch, lasting = SWITCHES[key]
            # A lower layer that names no choice has left it open: its constants stay.
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
    """The key and value of `dotted.key=value`. The value is TOML, or a bare word for a string; an
    empty value unsets the key.

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
    # A key of [loss] may be a constant of any loss, also of the user's own: it is checked when all
    # layers are known. Likewise for length controls and curricula.
    section, _, leaf = path.partition(".")
    constant = section in CHOOSING and leaf != "" and "." not in leaf
    if base not in known and not constant:
        sections = {k.partition(".")[0] for k in known if "." in k}
        if path in sections:
            raise InputError(f"{path} is a section, not a value; write {path}.KEY=VALUE")
        if (line := about_adapters(path)) is not None:
            raise InputError(line)
        guess = nearest(path, known)
        hint = f"did you mean {guess}?" if guess else "see `scalerl recipe show scalerl`"
        raise InputError(f"{path} is not a key of a recipe; {hint}")
    return path, _parse_value(path, raw)


def _parse_value(path: str, raw: str) -> Any:
    if not raw:
        return None
    # A line break could add further keys to the TOML below.
    if "\n" not in raw:
        try:
            return tomllib.loads(f"value = {raw}")["value"]
        except tomllib.TOMLDecodeError:
            pass
    if raw[0] in "\"'[{" or "\n" in raw:
        raise InputError(f"{path}={raw!r} is not a TOML value; quote text, close brackets")
    return raw
