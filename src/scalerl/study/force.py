"""A force: something that hurts training, added in growing doses, as a file that a study runs.

    scalerl study DIR --forces lag              a force of the package (study/forces/lag.toml)
    scalerl study DIR --forces my-force.toml    a file of the same form

    question = "..."                     what the study answers
    recipe = ["scalerl", "tiny-short"]   the words of `scalerl train` that all runs share
    dose = "schedule.k"                  the key that is changed ...
    values = [1, 2, 4, 8]                ... to these values, the mildest first
    seeds = 2                            runs of each cell
    seeds_at = { "8" = 3 }               another number of runs at some doses
    [lines.cispo]                        one curve against the dose for each line:
    "loss.name" = "cispo"                changes that hold at every dose

Where a dose changes several keys, `values` is a list of tables: `{ dose = 4, "batch.generations" =
4, "batch.prompts" = 64 }`, with a further table for a line that needs keys of its own. The variant
of a line at a dose is called LINE@DOSE; the first line at the first dose is the reference.
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any, Literal, cast, get_args

from scalerl.errors import InputError
from scalerl.files import read_limited
from scalerl.recipe.problems import nearest

FORCES = resources.files("scalerl.study") / "forces"
#: Copy of the force file in the directory of its study.
FILE = "force.toml"
#: Stands for the directory of the study in the recipe's `model.path`.
HOME_WORD = "{study}"
Changes = dict[str, Any]
#: What is asked of the doses: from which one on a line falls; from which one on half of its runs
#: break; what each dose does against the first; which is best.
Asked = Literal["falls", "breaks", "differs", "best"]
_LINE = re.compile(r"[A-Za-z0-9._+-]+")


@dataclass(frozen=True, slots=True)
class Dose:
    """One value of the dose axis."""

    value: float
    #: Name on the axis; that of the number where the file gives none.
    label: str
    changes: Mapping[str, Any]
    #: Line → further changes of that line.
    of_line: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: The pass rate that can be reached at this dose by construction; None: the same at every dose.
    known: float | None = None


@dataclass(frozen=True, slots=True)
class ClaimedLaw:
    """A power law claimed for the dose at which lines fall: ln(dose) = a + slope · ln(key)."""

    #: Dotted key in which the lines differ.
    over: str
    slope: float


@dataclass(frozen=True, slots=True)
class DoseCell:
    """One line at one dose: a variant of the study."""

    line: str
    dose: Dose
    changes: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.line}@{self.dose.label}"


@dataclass(frozen=True, slots=True)
class ForceDefinition:
    """The definition of a force.

    >>> lag = find_force("lag")
    >>> lag.cells()[0].name, lag.dose_key, len(lag.doses)
    ('cispo@1', 'schedule.k', 5)
    """

    name: str
    question: str
    recipe: tuple[str, ...]
    #: Dotted key, or what the doses are called where each changes several keys.
    dose_key: str
    doses: tuple[Dose, ...]
    lines: Mapping[str, Changes]
    claim: str = ""
    source: str = ""
    seeds: int = 2
    #: Label of a dose → runs of each of its cells.
    seeds_at: Mapping[str, int] = field(default_factory=dict)
    asked: Asked = "falls"
    law: ClaimedLaw | None = None
    #: Text of its file.
    text: str = ""

    def cells(self) -> list[DoseCell]:
        """Every line at every dose, the first line first."""
        return [
            DoseCell(line, dose, {**changes, **dose.changes, **dose.of_line.get(line, {})})
            for line, changes in self.lines.items()
            for dose in self.doses
        ]

    def seeds_of(self) -> dict[str, int]:
        """Variant → runs, where they are not `seeds`."""
        wanted = {c.name: self.seeds_at.get(c.dose.label, self.seeds) for c in self.cells()}
        return {name: count for name, count in wanted.items() if count != self.seeds}


def force_names() -> list[str]:
    """The forces that come with the package.

    >>> "lag" in force_names()
    True
    """
    names = (p.name for p in FORCES.iterdir() if p.name.endswith(".toml"))
    return sorted(name.removesuffix(".toml") for name in names)


def find_force(word: str, home: Path | None = None) -> ForceDefinition:
    """A force by its name or by the path of its file; the copy in the study `home`, if there is
    one, goes before both."""
    if home is not None and (home / FILE).is_file():
        return _read(home / FILE, Path(word).stem)
    if word in force_names():
        return parse_force((FORCES / f"{word}.toml").read_text(encoding="utf-8"), word)
    path = Path(word)
    if path.suffix == ".toml":
        return _read(path, path.stem)
    close = nearest(word, force_names()) if word else None
    hint = f"did you mean {close}?" if close else f"there is {', '.join(force_names())}"
    what = f"no force {word!r}" if word else "which force?"
    raise InputError(f"{what}: {hint}; or give the path of a .toml file of your own")


def _read(path: Path, name: str) -> ForceDefinition:
    try:
        return parse_force(read_limited(path).decode(), name, str(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{path} cannot be read: {reason}") from None


def parse_force(text: str, name: str, where: str = "") -> ForceDefinition:
    """The force in the text of a file; InputError with one line where it is none."""
    where = where or f"force {name}"
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{where} is not TOML: {error}") from None
    _check_keys(data, where)
    key = _text(data, "dose", where)
    lines = data.get("lines") or {"all": {}}
    if not isinstance(lines, dict) or not all(isinstance(v, dict) for v in lines.values()):
        raise InputError(f"{where}: lines are tables: [lines.NAME] with the changes of each")
    for line in lines:
        if not _LINE.fullmatch(line):
            raise InputError(f"{where}: line {line!r}: use letters, digits and . _ + - only")
    doses = _doses(data.get("values"), key, lines, where)
    asked = data.get("asked", "falls")
    if asked not in get_args(Asked):
        raise InputError(f"{where}: asked = {asked!r}: choose from {', '.join(get_args(Asked))}")
    recipe = data.get("recipe")
    if not isinstance(recipe, list) or not all(isinstance(word, str) for word in recipe):
        raise InputError(f'{where}: recipe is a list of words, as in ["scalerl", "tiny-short"]')
    return ForceDefinition(
        name=name, question=_text(data, "question", where), recipe=tuple(recipe), dose_key=key,
        doses=doses, lines={line: dict(changes) for line, changes in lines.items()},
        claim=data.get("claim", ""), source=data.get("source", ""),
        seeds=_count(data.get("seeds", 2), "seeds", where),
        seeds_at=_seeds_at(data.get("seeds_at", {}), doses, where),
        asked=cast(Asked, asked), law=_law(data.get("law"), lines, where), text=text,
    )  # fmt: skip


def _check_keys(data: Mapping[str, Any], where: str) -> None:
    known = {each.name for each in fields(ForceDefinition)} - {"name", "text", "dose_key", "doses"}
    known |= {"dose", "values"}
    for key in data:
        if key not in known:
            close = nearest(key, known)
            hint = f"did you mean {close}?" if close else f"choose from {', '.join(sorted(known))}"
            raise InputError(f"{where}: {key} is not a key of a force; {hint}")


def _text(data: Mapping[str, Any], key: str, where: str) -> str:
    found = data.get(key)
    if not isinstance(found, str) or not found:
        raise InputError(f"{where}: {key} is missing: give it as a text")
    return found


def _count(found: Any, key: str, where: str) -> int:
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise InputError(f"{where}: {key} = {found!r}: give 1 or more")
    return found


def _is_number(found: Any) -> bool:
    return isinstance(found, int | float) and not isinstance(found, bool)


def _doses(values: Any, key: str, lines: Mapping[str, Any], where: str) -> tuple[Dose, ...]:
    if not isinstance(values, list) or len(values) < 2:
        raise InputError(f"{where}: values is a list of two doses or more, the mildest first")
    doses = tuple(_dose(value, key, lines, where) for value in values)
    rises = {b.value > a.value for a, b in itertools.pairwise(doses)}
    if len(rises) > 1 or len({dose.value for dose in doses}) < len(doses):
        said = ", ".join(f"{dose.value:g}" for dose in doses)
        raise InputError(f"{where}: values {said} are not in order: give the mildest dose first")
    if len({dose.label for dose in doses}) < len(doses):
        raise InputError(f"{where}: two doses have the same label: give each its own")
    return doses


def _dose(value: Any, key: str, lines: Mapping[str, Any], where: str) -> Dose:
    if _is_number(value):
        if "." not in key:
            raise InputError(
                f"{where}: dose = {key!r} is no key of a recipe, as schedule.k is: give the "
                "changes of each value as a table"
            )
        return Dose(float(value), f"{value:g}", {key: value})
    if not isinstance(value, dict) or not _is_number(value.get("dose")):
        raise InputError(f"{where}: a value is a number, or a table with dose = NUMBER")
    known = value.get("known")
    if known is not None and not (_is_number(known) and 0 < known <= 1):
        raise InputError(f"{where}: known = {known!r}: give a pass rate above 0, up to 1")
    rest = {k: v for k, v in value.items() if k not in ("dose", "label", "known")}
    of_line = {k: rest.pop(k) for k in list(rest) if k in lines}
    for k, v in rest.items():
        if isinstance(v, dict) or "." not in k:
            raise InputError(f"{where}: {k} is no line and no key of a recipe: write section.key")
    label = str(value.get("label", f"{value['dose']:g}"))
    if not _LINE.fullmatch(label):
        raise InputError(f"{where}: label {label!r}: use letters, digits and . _ + - only")
    return Dose(float(value["dose"]), label, rest, of_line, known)


def _seeds_at(found: Any, doses: Sequence[Dose], where: str) -> dict[str, int]:
    if not isinstance(found, dict):
        raise InputError(f'{where}: seeds_at is a table: {{ "8" = 3 }}')
    labels = [dose.label for dose in doses]
    for label, count in found.items():
        if label not in labels:
            raise InputError(f"{where}: seeds_at: no dose {label}: there is {', '.join(labels)}")
        _count(count, f"seeds_at {label}", where)
    return dict(found)


def _law(found: Any, lines: Mapping[str, Any], where: str) -> ClaimedLaw | None:
    if found is None:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("over"), str):
        raise InputError(f'{where}: law is a table: {{ over = "schedule.k", slope = -1.0 }}')
    if not _is_number(found.get("slope")):
        raise InputError(f"{where}: law.slope is missing: give the claimed slope as a number")
    over = found["over"]
    for line, changes in lines.items():
        if not _is_number(changes.get(over)) or changes[over] <= 0:
            raise InputError(f"{where}: law: line {line} sets no {over} above 0")
    return ClaimedLaw(over, float(found["slope"]))


def with_force(words: Sequence[str], given: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """The words and keys of a new study of the force that `given` names: the recipe of the force
    and its seeds, where none are given, and no screening (a run that recovers would be cut
    short)."""
    force = find_force(str(given["forces"]))
    if any("=" not in word for word in words):
        raise InputError(
            f"force {force.name} has a recipe of its own: name nothing beside it but KEY=VALUE"
        )
    own: dict[str, Any] = {"screen": 1.0, "seeds": force.seeds}
    if "seeds" not in given and force.seeds_of():
        own["more_seeds"] = force.seeds_of()
    return [*force.recipe, *words], own | dict(given)


def force_variants(force: ForceDefinition) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Name and changes of every variant, the reference first."""
    for cell in force.cells():
        yield cell.name, cell.changes
