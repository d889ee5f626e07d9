"""The numbers that `fit --json` and `forecast --json` print, and that the live page receives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from scalerl.curves.compute_needed import ComputeNeeded, compute_to_identify
from scalerl.curves.forecast import Forecast, WindowCeiling, beats, sensitivity
from scalerl.curves.result import Fit

#: Simulating what would identify a ceiling takes 0.7 s a run: only for this many.
MAX_PLANNED = 4
#: Probabilities that one run beats another are worked out for this many runs.
MAX_RIVALS = 12


@dataclass(frozen=True, slots=True)
class FitExtras:
    """What was worked out beside the first few fits, by their ids."""

    needs: dict[int, ComputeNeeded] = field(default_factory=dict)
    moved: dict[int, list[WindowCeiling]] = field(default_factory=dict)

    @staticmethod
    def from_fits(fits: Sequence[Fit]) -> FitExtras:
        """The compute that would identify ceilings that are not, and what other windows say."""
        unclear = [f for f in fits if f.law.identifiable and not f.identified and f.alarm is None]
        # The paper's procedure takes seconds a fit: too slow to be repeated.
        return FitExtras(
            {id(f): compute_to_identify(f) for f in unclear[:MAX_PLANNED] if f.method != "paper"},
            {id(f): sensitivity(f) for f in fits[:MAX_PLANNED] if f.method != "paper"},
        )


def fit_results(fits: Sequence[Fit], planned: FitExtras) -> list[dict[str, Any]]:
    """One item a fit."""
    return [
        f.to_dict()
        | {
            "would_identify": planned.needs[id(f)].to_dict() if id(f) in planned.needs else None,
            "sensitivity": [s.to_dict() for s in planned.moved.get(id(f), [])],
        }
        for f in fits
    ]


def win_probabilities(
    fits: Sequence[Fit], at: Sequence[float]
) -> list[tuple[str, str, float, float]]:
    """(a, b, compute, probability that a beats b there), of runs on one kind of compute."""
    one_kind = len({f.run.x_kind for f in fits}) == 1
    rivals = fits if 1 < len(fits) <= MAX_RIVALS and one_kind else []
    return [
        (a.name, b.name, c, beats(a, b, c))
        for i, a in enumerate(rivals)
        for b in rivals[i + 1 :]
        for c in at
    ]


def forecast_results(
    forecasts: Sequence[Forecast], fought: Sequence[tuple[str, str, float, float]] = ()
) -> list[dict[str, Any]]:
    """One item a forecast; `fought` are the `win_probabilities` of their fits."""
    return [
        ahead.to_dict()
        | {
            "beats": [
                {"run": b, "compute": c, "probability": p}
                for a, b, c, p in fought
                if a == ahead.fit.name
            ]
        }
        for ahead in forecasts
    ]
