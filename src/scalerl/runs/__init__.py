"""The run record: its schema, store and reader, and the importers of other frameworks' logs.

The types of the record need no numpy, so that a view of a run starts at once: modules that do are
imported when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

_HOME = {
    "ComputeKind": "scalerl.runs.record",
    "Run": "scalerl.runs.record",
    "load_run": "scalerl.runs.load",
    "load_runs": "scalerl.runs.load",
}

__all__ = ["ComputeKind", "Run", "load_run", "load_runs"]

if TYPE_CHECKING:
    from scalerl.runs.load import load_run as load_run
    from scalerl.runs.load import load_runs as load_runs
    from scalerl.runs.record import ComputeKind as ComputeKind
    from scalerl.runs.record import Run as Run


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'scalerl.runs' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOME[name]), name)
