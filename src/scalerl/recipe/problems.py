"""One-line errors about recipes: unknown keys with the nearest known one, and wrong values."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from scalerl.recipe.choices import Choice, section_of
from scalerl.recipe.curriculum import CurriculumSection
from scalerl.recipe.fields import Section, field
from scalerl.recipe.length import LengthSection
from scalerl.recipe.losses import LOSS_CONSTANTS, LossSection
from scalerl.recipe.schema import Recipe

#: Section → the field that chooses, the class with the fields that do not depend on the choice, and
#: the built-in choices. With a choice of the user, any further key is one of its constants.
CHOOSING: dict[str, tuple[str, type[Section], Mapping[str, type[Section]]]] = {
    "loss": ("name", LossSection, LOSS_CONSTANTS),
    "length": ("control", LengthSection, LengthSection.types),
    "curriculum": ("name", CurriculumSection, CurriculumSection.types),
}

#: Names of keys in other frameworks → our key, for the "did you mean" of an unknown key.
ELSEWHERE = {
    "learning_rate": "optimiser.lr",
    "max_grad_norm": "optimiser.grad_clip",
    "max_norm": "optimiser.grad_clip",
    "adam_epsilon": "optimiser.eps",
    "num_generations": "batch.generations",
    "group_size": "batch.generations",
    "rollouts_per_example": "batch.generations",
    "max_steps": "budget.steps",
    "beta": "loss.kl_coefficient",
    "epsilon_max": "loss.ratio_cap",
    "loss_type": "loss.name",
    "max_async_level": "schedule.k",
    "max_staleness": "schedule.k",
    "scale_rewards": "advantage.normalisation",
    "lora_rank": "adapter.rank",
    "lora_alpha": "adapter.alpha",
    "target_modules": "adapter.targets",
}
#: Errors for values below a limit that needs its reason.
TOO_SMALL = {
    "loss.ratio_cap": "loss.ratio_cap = {} would shrink even on-policy tokens: it is the absolute "
    "cap on the ratio, so a clip of 4 above 1 elsewhere is 5 here",
    "batch.generations": "batch.generations must be at least 2: advantages are centred within a "
    "prompt, so the advantage of a single rollout is always 0",
}


def fields(section: type[Section], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every field with its dotted path, in the order of the schema."""
    for name, info in section.all_fields().items():
        inner = section_of(info)
        if inner is not None:
            yield from fields(inner, f"{prefix}{name}.")
        else:
            yield prefix + name, info


def known_fields() -> dict[str, FieldInfo]:
    """Dotted path → field, for a whole recipe; the constants of losses are not among them."""
    return dict(fields(Recipe))


def known_keys() -> dict[str, FieldInfo]:
    """Dotted path → field, with the constants of all built-in losses."""
    constants = {k: v for loss in LOSS_CONSTANTS.values() for k, v in fields(loss, "loss.")}
    return known_fields() | constants


def fields_of(*recipes: Recipe) -> dict[str, FieldInfo]:
    """Dotted path → field, in the order in which recipes are written: with the constants of the
    choices that these recipes make, after the choice, and without those of other choices."""
    found: dict[str, FieldInfo] = {}
    for path, info in known_fields().items():
        home, _, leaf = path.partition(".")
        if home not in CHOOSING or leaf in CHOOSING[home][1].model_fields:
            found[path] = info
        if home in CHOOSING and leaf == CHOOSING[home][0]:
            for recipe in recipes:
                found |= _constants_of(recipe, home)
    return found


def _constants_of(recipe: Recipe, home: str) -> dict[str, FieldInfo]:
    """The constants of a recipe's choice."""
    switch, shared, builtin = CHOOSING[home]
    section: LossSection | Choice = getattr(recipe, home)
    choice = getattr(section, switch)
    made = builtin.get(choice, type(section))
    known = {k: info for k, info in made.model_fields.items() if k not in shared.model_fields}
    kind = "length control" if home == "length" else home
    about: FieldInfo = field(None, f"constant of the {kind} {choice}", "ours")
    return {f"{home}.{key}": known.get(key, about) for key in section.constants}


def open_sections(data: Mapping[str, Any]) -> set[str]:
    """The sections in which this data chooses something of the user's own: any key may be one of
    its constants."""
    found = set()
    for home, (switch, made, builtin) in CHOOSING.items():
        section = data.get(home)
        choice = section.get(switch) if isinstance(section, Mapping) else None
        choice = made.model_fields[switch].default if choice is None else choice
        if not (isinstance(choice, str) and choice in builtin):
            found.add(home)
    return found


def nearest(path: str, known: Collection[str]) -> str | None:
    """The known key most similar to this one, or None."""
    # In order: another framework's name, a typing error in the same section, the right name in the
    # wrong section, and any similar key.
    section, _, leaf = path.rpartition(".")
    if ELSEWHERE.get(leaf) in known:
        return ELSEWHERE[leaf]
    here = [k for k in known if k.rpartition(".")[0] == section]
    # Stricter than below: all keys of a section have its name in common.
    inside = difflib.get_close_matches(path, here, n=1, cutoff=0.75)
    if inside:
        return inside[0]
    same_leaf = [k for k in known if k.rpartition(".")[2] == leaf]
    if same_leaf:
        return max(same_leaf, key=lambda k: difflib.SequenceMatcher(None, k, path).ratio())
    close = difflib.get_close_matches(path, list(known), n=1, cutoff=0.6)
    return close[0] if close else None


#: Keys about adapters, as other frameworks name them.
ADAPTER = re.compile(r"lora|peft|adapter", re.IGNORECASE)


def about_adapters(path: str) -> str | None:
    """The error for an unknown key about adapters that has no near one in [adapter]; else None.

    >>> about_adapters("model.use_peft")
    'model.use_peft is not a key of a recipe; LoRA is set by adapter.rank=8, see [adapter]'
    """
    if ADAPTER.search(path) is None:
        return None
    if "dropout" in path.lower():
        return (
            f"{path}: adapters have no dropout here, because the tokens would be written by other "
            "weights than the trainer's; leave the key out"
        )
    if (nearest(path, known_keys()) or "").startswith("adapter."):
        return None
    return f"{path} is not a key of a recipe; LoRA is set by adapter.rank=8, see [adapter]"


def unknown_key(data: Mapping[str, Any], free: set[str], where: str = "") -> str | None:
    """The error for the first unknown key; None if all are known. In the sections `free` every key
    is accepted (`open_sections`)."""
    known = known_keys()
    sections = {path.rpartition(".")[0] for path in known} - {""}
    start = f"{where}: " if where else ""
    for key, value in data.items():
        if key in known:
            continue
        # Not in [loss]: a constant of a custom loss may have any name.
        names = value if isinstance(value, Mapping) and key not in CHOOSING else ()
        for path in (key, *(f"{key}.{name}" for name in names)):
            new = path not in known and path not in sections
            if new and (line := about_adapters(path)) is not None:
                return f"{start}{line}"
        if key not in sections:
            inner = next(iter(value), "") if isinstance(value, Mapping) else ""
            full = f"{key}.{inner}" if inner else key
            section = difflib.get_close_matches(key, sorted(sections), n=1, cutoff=0.6)
            guess = nearest(full, known) or (section[0] if section else None)
            if inner and section and f"{section[0]}.{inner}" in known:
                guess = f"{section[0]}.{inner}"
            return f"{start}{full} is not a key of a recipe; " + _advice(guess)
        if not isinstance(value, Mapping):
            return f"{start}{key} is a section, not a value; give {key}.KEY = VALUE"
        for name in value:
            path = f"{key}.{name}"
            if path not in known and key not in free:
                return f"{start}{path} is not a key of a recipe; {_advice(nearest(path, known))}"
    return None


def _advice(guess: str | None) -> str:
    if guess:
        return f"did you mean {guess}?"
    return "see `scalerl recipe show scalerl` for all of them"


def explain(error: ValidationError) -> str:
    """The first problem that pydantic found, as one line."""
    # Only the first, since the others often follow from it; their number is given.
    problems = error.errors(include_url=False)
    first = problems[0]
    where = list(first["loc"])
    home = where[0] if where else None  # None: a check of the whole recipe
    if home in CHOOSING and home != "loss":
        del where[1:2]  # the tag of the choice
    # Without positions in a list: a recipe's key names the whole list.
    path = ".".join(part for part in where if isinstance(part, str))
    reason = first["msg"].removeprefix("Value error, ")
    if path.startswith("task.options."):
        # Further parts are pydantic's names of the types that were tried.
        names = ".".join(map(str, where[:3]))
        return f"{names} must be text, a number, true or false, or a list or table of those"
    constant = ".".join(map(str, where[:2]))
    if home in CHOOSING and len(where) > 1 and constant not in known_keys():
        return f"{constant} must be text, a number, true or false, or a list of those"
    if first["type"] == "value_error":
        # Our own checks name the keys; those of a field's type do not.
        names_a_key = any(key in reason for key in known_keys() if "." in key)
        line = reason if names_a_key or not path else f"{path}: {reason}"
    elif path in TOO_SMALL and first["type"] == "greater_than_equal":
        line = TOO_SMALL[path].format(first["input"])
    elif first["type"] in ("missing", "too_long"):
        line = f"{path} = {_shown(first['input'])} has the wrong number of values"
    elif first["input"] is None:
        line = f"{path} cannot be unset; give a value"
    elif reason.startswith("Input should be "):
        reason = reason.removeprefix("Input should be ").replace("'", '"')
        line = f"{path} must be {reason}, not {_shown(first['input'])}"
    else:
        line = f"{path} = {_shown(first['input'])}: {reason}"
    more = len(problems) - 1
    return line.replace("\n", " ") + (
        f" (and {more} more problem{'s' * (more > 1)})" if more else ""
    )


def _shown(value: Any) -> str:
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
