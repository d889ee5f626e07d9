"""Accelerators: peak rates and memory of one device, from a table that users can extend."""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from scalerl.errors import InputError

#: The table that comes with the package.
TABLE = Path(__file__).with_name("accelerators.toml")


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One kind of device; TFLOP/s are dense.

    >>> Accelerator.named("h100-sxm").gb_s
    3350.0
    """

    name: str
    #: TFLOP/s of matrix products in BF16.
    bf16: float
    #: TFLOP/s outside the tensor cores.
    fp32: float
    #: Memory in GB.
    gb: float
    #: Bandwidth of the memory in GB/s.
    gb_s: float
    #: Bandwidth to other devices of the node in GB/s.
    link_gb_s: float
    #: Where the numbers were read.
    source: str
    #: "high", "medium" or "low".
    confidence: str
    #: TFLOP/s in FP8 and TF32; None where the device has none.
    fp8: float | None = None
    tf32: float | None = None

    @staticmethod
    def named(name: str, more: Path | None = None) -> Accelerator:
        """The accelerator of this name, from the user's file or the table of the package."""
        found = {**_read(TABLE), **(_read(more) if more else {})}
        if name not in found:
            near = [n for n in found if name and n.startswith(name)]
            near = near or difflib.get_close_matches(name, found, n=1)
            hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(found)}"
            raise InputError(
                f"no accelerator {name!r}: {hint} (--accelerators FILE describes further ones)"
            )
        return found[name]


def accelerators() -> dict[str, Accelerator]:
    """The table that comes with the package."""
    return _read(TABLE)


def _read(path: Path) -> dict[str, Accelerator]:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path} cannot be read as a table of accelerators: {error}") from None
    return {name: _one(name, row, path) for name, row in data.items()}


def _one(name: str, row: Any, path: Path) -> Accelerator:
    kinds = {f.name: f for f in fields(Accelerator) if f.name != "name"}
    if not isinstance(row, dict):
        raise InputError(f"{path}: {name} must be a table, such as [{name}]")
    for key in row:
        if key not in kinds:
            raise InputError(f"{path}: [{name}] has an unknown key {key!r}: see {TABLE}")
    values: dict[str, Any] = {}
    for key in kinds:
        value = row.get(key)
        text = key in ("source", "confidence")
        if value is None and key not in ("fp8", "tf32"):
            raise InputError(f"{path}: [{name}] lacks {key}: give it, with its source")
        if value is not None and not text:
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise InputError(f"{path}: [{name}] {key} = {value!r}: give a number above 0")
            value = float(value)
        values[key] = value
    return Accelerator(name, **values)
