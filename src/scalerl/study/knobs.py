"""The knob map: what each change does to the ceiling, and what to the speed.

For every variant against the reference

    ΔA      its ceiling minus the reference's
    Δ ln C  ln of the compute it needs, over the reference's, for a score that both have reached

with their intervals, and the region that the verdict puts it in: "ceiling" (ΔA has a sign), "speed"
(one ceiling, and Δ ln C has a sign), "neither" (the same in both), or "undecided".

A verdict is wrong in at most 3 % of comparisons (1 - WINNER_PROBABILITY), or 5 % if it is kept
from an earlier look (curves/decision.py). With m of them the chance that one is wrong is up to m
times that: `family_wise` says which verdicts also hold with that allowed for, by Holm's step-down
(the surest is held to .03 / m, the next to .03 / (m - 1), ...).

    knob          P(wrong)   bar          with the family allowed for
    loss          .0002      .03 / 3      holds
    fp32 head     .008       .03 / 2      holds
    curriculum    .021       .03 / 1      holds: .021 < .03
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from scalerl.curves.arms import WINNER_PROBABILITY
from scalerl.curves.compare import Pair

Region = Literal["ceiling", "speed", "neither", "undecided"]
REGIONS: dict[str, Region] = {"higher-ceiling": "ceiling", "faster": "speed", "same": "neither"}


@dataclass(frozen=True, slots=True)
class Knob:
    """What a variant does differently, and what comes of it.

    >>> Knob("lr", {}, -.05, (-.08, -.02), None, None, "ceiling", "lr", .001, True).region
    'ceiling'
    """

    variant: str
    #: Key → value of what differs from the reference.
    differs: Mapping[str, Any]
    delta_a: float
    delta_a_interval: tuple[float, float]
    #: ln of (its compute / the reference's) to one score; None where no score was reached by both.
    delta_log_compute: float | None
    delta_log_compute_interval: tuple[float, float] | None
    region: Region
    winner: str | None
    #: Probability that the verdict is wrong; None where there is no side.
    p_wrong: float | None
    #: Whether the verdict also holds with all comparisons of the study allowed for.
    family_wise: bool

    @property
    def compute_ratio(self) -> tuple[float, float, float] | None:
        """Low end, median and high end of its compute over the reference's, to one score; None
        where no score was reached by both."""
        if self.delta_log_compute is None or self.delta_log_compute_interval is None:
            return None
        low, high = self.delta_log_compute_interval
        return math.exp(low), math.exp(self.delta_log_compute), math.exp(high)

    def to_dict(self) -> dict[str, Any]:
        speed = None
        if self.compute_ratio is not None and self.delta_log_compute_interval is not None:
            low, ratio, high = self.compute_ratio
            speed = {
                "delta_log_compute": self.delta_log_compute,
                "interval": list(self.delta_log_compute_interval),
                "compute_ratio": {"median": ratio, "interval": [low, high]},
            }
        return {
            "variant": self.variant,
            "differs": dict(self.differs),
            "delta_A": {"median": self.delta_a, "interval": list(self.delta_a_interval)},
            "speed": speed,
            "region": self.region,
            "winner": self.winner,
            "p_wrong": self.p_wrong,
            "family_wise": self.family_wise,
        }


def knob_map(
    pairs: Mapping[str, Pair], reference: str, differs: Mapping[str, Mapping[str, Any]]
) -> list[Knob]:
    """One for each variant that could be compared, the largest ΔA first."""
    wrong = {name: _p_wrong(pair) for name, pair in pairs.items()}
    held = holm([p for p in wrong.values() if p is not None], len(pairs))
    knobs = []
    for name, pair in pairs.items():
        # A pair is ordered by ceiling: turn it so that the reference comes first.
        sign = 1.0 if pair.a == reference else -1.0
        low, high = sorted(sign * v for v in pair.delta_a_interval)
        speed, ends = None, None
        if pair.speed is not None:
            first, speed, last = (sign * v for v in pair.speed)
            ends = (min(first, last), max(first, last))
        # None where no side was taken: there is no side to be wrong about.
        p = wrong[name]
        knobs.append(
            Knob(
                name, dict(differs.get(name, {})), sign * pair.delta_a, (low, high), speed, ends,
                REGIONS.get(pair.verdict, "undecided"), pair.winner, p, p is None or p <= held,
            )
        )  # fmt: skip
    return sorted(knobs, key=lambda knob: -abs(knob.delta_a))


def _p_wrong(pair: Pair) -> float | None:
    """Of a verdict that takes a side, the probability of the other."""
    if pair.verdict == "higher-ceiling":
        return 1.0 - max(pair.p_a_higher, pair.p_b_higher)
    if pair.verdict == "faster" and pair.p_b_faster is not None:
        return min(pair.p_b_faster, 1.0 - pair.p_b_faster)
    return None


def holm(wrong: Sequence[float], comparisons: int, bar: float = 1.0 - WINNER_PROBABILITY) -> float:
    """The largest of these probabilities that still holds when `comparisons` were made; below 0 if
    none does.

    >>> holm([0.021, 0.0002, 0.008], 3), holm([0.02, 0.025], 13)
    (0.021, -1.0)
    """
    best = -1.0
    for i, p in enumerate(sorted(wrong)):
        if p > bar / max(comparisons - i, 1):
            break
        best = p
    return best
