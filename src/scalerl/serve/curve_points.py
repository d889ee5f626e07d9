"""What the page shows about a single point of a curve, and the events that happened beside it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from scalerl.report.series import downsample
from scalerl.runs.record import Run
from scalerl.serve.catalogue import Entry
from scalerl.serve.queries import MAX_POINTS
from scalerl.serve.sources import OwnRun
from scalerl.text import shorten

Array = npt.NDArray[np.float64]
#: Standard deviations of a 90 % interval.
Z = 1.645
#: Events that are marked on a curve: `note` says what was settled for the run, `end` is its end.
MARKED = ("warning", "lost", "checker", "refused", "scale", "resume", "branch", "failed")


def point_details(run: Run, steps: Array | None) -> dict[str, Any]:
    """The step of each point, and the 90 % interval of its score, as the curve's points are sent.
    Either is left out where the record does not have it."""
    found: dict[str, Any] = {}
    if steps is not None and len(steps) == len(run):
        found["step"] = [int(v) for v in downsample(run.compute, steps, MAX_POINTS)[1]]
    if run.n_eval is not None:
        low, high = wilson(run.score, run.n_eval)
        found["low"] = _rounded(downsample(run.compute, low, MAX_POINTS)[1])
        found["high"] = _rounded(downsample(run.compute, high, MAX_POINTS)[1])
    return found


def wilson(score: Array, n: Array) -> tuple[Array, Array]:
    """The ends of the 90 % interval of a share that was found in n answers.

    >>> low, high = wilson(np.array([0.5]), np.array([400.0]))
    >>> round(float(low[0]), 3), round(float(high[0]), 3)
    (0.459, 0.541)
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        z = Z * Z / n
        middle = (score + z / 2) / (1 + z)
        half = Z * np.sqrt(score * (1 - score) / n + z / (4 * n)) / (1 + z)
    return middle - half, middle + half


def _rounded(values: Array) -> list[float | None]:
    return [round(v, 4) if math.isfinite(v) else None for v in values.tolist()]


def marked_events(entry: Entry, run: Run, steps: Array | None) -> list[dict[str, Any]]:
    """Events of a run with the compute at which they happened, where its points have steps."""
    if not isinstance(entry.source, OwnRun) or steps is None or len(steps) != len(run):
        return []
    found = []
    for event in list(entry.source.live.events):
        if event.event not in MARKED:
            continue
        changes = [f"{c.key} {c.old} → {c.new}" for c in event.changes or ()]
        why = "; ".join(filter(None, [event.why, *changes]))
        at = float(np.interp(event.step, steps, run.compute))
        found.append(
            {
                "step": event.step,
                "event": event.event,
                "why": shorten(entry.source.roots.without_paths(why), 300),
                "x": at,
            }
        )
    return found
