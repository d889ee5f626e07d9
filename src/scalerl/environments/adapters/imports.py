"""Optional libraries, imported where they are used."""

from __future__ import annotations

import importlib
from typing import Any

from scalerl.errors import InputError
from scalerl.tasks.task import named
from scalerl.text import one_line


def imported(module: str, package: str) -> Any:
    """A module of an optional package; raises InputError if it cannot be imported."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise InputError(f"{package} cannot be imported: {one_line(named(error))}") from None
        raise InputError(f"{package} is not installed: pip install {package}") from None
    except Exception as error:  # a module may raise anything
        raise InputError(f"{package} cannot be imported: {one_line(named(error))}") from None
