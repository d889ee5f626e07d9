"""Where a run of scalerl was changed under way, by the events in its record.

A `branch` with a change of what is learnt or measured is an intervention. A resume with the same
recipe is none, nor is a change of where or how long the run trains. A run that went back to an
earlier checkpoint has lost what was changed after it: events are never cut, but evaluations are.
"""

from __future__ import annotations

from collections.abc import Iterable

from scalerl.runs.lines import EventLine

#: Sections and keys of a recipe that change neither what a step learns nor what is measured.
SAME_CURVE = ("budget", "checkpoint", "compute", "placement", "record", "validation.every")


def interventions(events: Iterable[EventLine]) -> list[tuple[int, str]]:
    """The step of each intervention that the record still holds, with what was changed.

    >>> from scalerl.runs.lines import KnobChange
    >>> cut = KnobChange("optimiser.lr", "1e-5", "1e-6", False)
    >>> longer = KnobChange("budget.steps", "100", "200", False)
    >>> interventions([EventLine(40, "branch", changes=(cut,)), EventLine(60, "resume"),
    ...                EventLine(80, "branch", changes=(longer,))])
    [(40, 'optimiser.lr 1e-5 → 1e-6')]
    """
    found: list[tuple[int, str]] = []
    for event in events:
        if event.event != "branch":
            continue
        if event.branch is not None:
            found = [each for each in found if each[0] <= event.step]
        changed = [c for c in event.changes or () if not c.key.startswith(SAME_CURVE)]
        if changed:
            found.append((event.step, "; ".join(f"{c.key} {c.old} → {c.new}" for c in changed)))
    return found
