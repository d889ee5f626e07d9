"""Configs of other frameworks as recipes, with a list of everything that has no counterpart."""

from __future__ import annotations

import importlib
import json
import tomllib
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from scalerl.recipe.importers.hydra import read_overrides
from scalerl.recipe.importers.prime_rl import SECTIONS as PRIME_RL
from scalerl.recipe.importers.prime_rl import from_prime_rl
from scalerl.recipe.importers.result import Imported
from scalerl.recipe.importers.trl import from_trl
from scalerl.recipe.importers.verl import SECTIONS as VERL
from scalerl.recipe.importers.verl import from_verl, is_verl

__all__ = ["Imported", "from_prime_rl", "from_trl", "from_verl", "import_config"]

#: How a config of each framework is recognised, for the error about a file that is none.
LOOKED_FOR = {
    "trl": "keys of a TRL GRPOConfig, such as num_generations, loss_type or learning_rate",
    "prime-rl": f"tables of a prime-rl config: {', '.join(PRIME_RL)}",
    "verl": f"tables of a verl config: {', '.join(VERL)}",
}
#: Tables of which a config has at least one.
TABLES = {"prime-rl": {*PRIME_RL}, "verl": {*VERL}}


def import_config(
    path: str | Path, *, framework: str | None = None, processes: int = 1
) -> Imported:
    """The recipe in a TRL GRPOConfig (YAML or JSON), a prime-rl TOML file, or a verl config (YAML,
    JSON, or a shell script with its overrides).

    framework: "trl", "prime-rl" or "verl"; by default .toml is prime-rl, .sh and a file with
        verl's tables verl, and anything else TRL.
    processes: training processes of the TRL run, which its config does not say.
    """
    path = Path(path)
    if framework not in (None, *LOOKED_FOR):
        raise InputError(f"cannot import from {framework}; choose {', '.join(LOOKED_FOR)}")
    data = _read(path)
    known = framework or _recognise(path, data)
    if not data.keys() & TABLES.get(known, data.keys()):
        raise _maps_to_nothing(path, framework)
    if known == "trl":
        found = from_trl(data, processes=processes)
    else:
        found = from_verl(data) if known == "verl" else from_prime_rl(data)
    if not found.read:
        raise _maps_to_nothing(path, framework)
    return found


def _maps_to_nothing(path: Path, framework: str | None) -> InputError:
    looked = LOOKED_FOR.values() if framework is None else [LOOKED_FOR[framework]]
    return InputError(
        f"{path}: nothing in it can be mapped; looked for {'; '.join(looked)}: give the config of "
        "a run"
    )


def _recognise(path: Path, data: dict[str, Any]) -> str:
    if path.suffix == ".toml":
        return "prime-rl"
    return "verl" if path.suffix == ".sh" or is_verl(data) else "trl"


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        # A UnicodeDecodeError has no strerror; its own text is long and about bytes.
        reason = getattr(error, "strerror", None) or "it is not text"
        raise InputError(f"{path} cannot be read: {reason}") from None
    try:
        if path.suffix == ".toml":
            return tomllib.loads(text)
        if path.suffix == ".sh":
            return read_overrides(text, str(path))
        data = json.loads(text) if path.suffix == ".json" else _yaml(text)
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path} is not valid {path.suffix[1:] or 'YAML'}: {reason}") from None
    if not isinstance(data, dict):
        raise InputError(f"{path} holds no keys and values: give the config of a run")
    return data


def _yaml(text: str) -> Any:
    try:
        # Here and not above: scalerl runs without PyYAML.
        yaml: Any = importlib.import_module("yaml")
    except ImportError:
        raise InputError("reading YAML needs pyyaml: pip install pyyaml, or give JSON") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(error) from None
