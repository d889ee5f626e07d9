"""Configs of other frameworks as recipes, with a list of everything that has no counterpart."""

from __future__ import annotations

import importlib
import json
import tomllib
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from scalerl.recipe.importers.prime_rl import from_prime_rl
from scalerl.recipe.importers.result import Imported
from scalerl.recipe.importers.trl import from_trl

__all__ = ["Imported", "from_prime_rl", "from_trl", "import_config"]


def import_config(
    path: str | Path, *, framework: str | None = None, processes: int = 1
) -> Imported:
    """The recipe in a TRL GRPOConfig (YAML or JSON) or a prime-rl TOML file.

    framework: "trl" or "prime-rl"; by default .toml is prime-rl and anything else TRL.
    processes: training processes of the TRL run, which its config does not say.
    """
    path = Path(path)
    framework = framework or ("prime-rl" if path.suffix == ".toml" else "trl")
    data = _read(path)
    if framework == "trl":
        return from_trl(data, processes=processes)
    if framework == "prime-rl":
        return from_prime_rl(data)
    raise InputError(f"cannot import from {framework}; choose trl or prime-rl")


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise InputError(f"{path} cannot be read: {reason}") from None
    try:
        if path.suffix == ".toml":
            return tomllib.loads(text)
        data = json.loads(text) if path.suffix == ".json" else _yaml(text)
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path} is not valid {path.suffix[1:] or 'YAML'}: {reason}") from None
    if not isinstance(data, dict):
        raise InputError(f"{path} holds no keys and values: give the config of a run")
    return data


def _yaml(text: str) -> Any:
    try:
        yaml: Any = importlib.import_module("yaml")
    except ImportError:
        raise InputError("reading YAML needs pyyaml: pip install pyyaml, or give JSON") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(error) from None
