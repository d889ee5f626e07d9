"""Where a run is planned to end, read from the directory that the training loop writes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from scalerl.errors import InputError
from scalerl.runs.compute import budget_use
from scalerl.runs.lines import EvalLine, EventLine
from scalerl.runs.reader import RunReader
from scalerl.runs.record import Run

#: Limits of a budget, as a recipe names them.
LIMITS = ("steps", "gpu_hours", "minutes")


def planned_end(run: Run) -> float | None:
    """Compute at which the run ends, on its own axis: by the budget of its recipe, or where it has
    ended. None for runs of other programs, and for a budget without a limit."""
    path = Path(run.source)
    if path.name != EvalLine.FILE or not len(run):
        return None
    reader, end = RunReader(path.parent), float(run.compute[-1])
    try:
        scored, event = reader.last(EvalLine), reader.last(EventLine)
    except InputError:
        return None
    if event is not None and event.event == "end" and not _interrupted(event):
        return end
    budget = (reader.read_used_recipe()[0] or reader.read_recipe() or {}).get("budget")
    if scored is None or not isinstance(budget, dict):
        return None
    limits = SimpleNamespace(**{name: _positive(budget.get(name)) for name in LIMITS})
    use = budget_use(limits, scored.compute)
    return None if use is None or use.share <= 0.0 else end / min(use.share, 1.0)


def _interrupted(event: EventLine) -> bool:
    """Whether the run may be resumed: it was ended by a signal, not by its budget or a rule."""
    return (event.reason or "").startswith("interrupted")


def _positive(value: Any) -> Any:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    return value if usable else None
