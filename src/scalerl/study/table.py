"""What a study shows: one row a variant, with the verdict against the reference.

Everything that turns fits into rows is here, behind `pairs_of` and `rows`: another way of pooling
seeds has these two functions to replace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scalerl.curves.compare import Pair, comparable, compare
from scalerl.curves.result import Fit
from scalerl.curves.verdict import Arm, seed_spread
from scalerl.runs.record import Run
from scalerl.study.beside import Beside
from scalerl.study.paired import Paired
from scalerl.study.stability import HalfCheck, Stability

PARAMETERS = ("A", "B", "C_mid")
#: Central interval of the table.
LEVEL = 0.9


@dataclass(frozen=True, slots=True)
class MemberFinding:
    """What is known of a member: how stable it is, its fit where it may be fitted, and the check of
    the forecast at half its compute."""

    variant: str
    seed: int
    stability: Stability
    fit: Fit | None = None
    half: HalfCheck | None = None
    #: Its validations, also where they may not be fitted.
    run: Run | None = None


@dataclass(frozen=True, slots=True)
class StudyRow:
    """One variant of a study: what `Study.table` gives.

    >>> from scalerl import Study
    >>> row = Study("out/my-first", ["scalerl", "tiny"]).table()[0]
    >>> row.variant, row.seeds, row.verdict
    ('scalerl+tiny', 0, 'reference')
    """

    variant: str
    #: Seeds that the numbers are from.
    seeds: int
    estimates: Mapping[str, float | None]
    intervals: Mapping[str, tuple[float, float] | None]
    identified: bool
    #: Against the reference: that of `compare`; "reference" for itself; None before there is one.
    verdict: str | None
    winner: str | None
    #: The verdict in words.
    words: str
    #: Seed → what the rules say, for every member begun.
    stability: Mapping[int, Stability]
    #: Members whose forecast at half their compute held, of those that could be checked.
    held: tuple[int, int]
    #: Against the reference on the same prompts; None where there are no such answers.
    paired: Paired | None = None
    #: Compute to a target, crossing, fixed A, other axes.
    beside: Beside = field(default_factory=Beside)

    def to_dict(self) -> dict[str, Any]:
        return {
            "variant": self.variant,
            "seeds": self.seeds,
            **{name: self.estimates[name] for name in PARAMETERS},
            "intervals": {k: None if v is None else list(v) for k, v in self.intervals.items()},
            "identified": self.identified,
            "verdict": self.verdict,
            "winner": self.winner,
            "words": self.words,
            "stability": {
                "state": worst(self.stability.values()),
                "seeds": {str(seed): s.to_dict() for seed, s in self.stability.items()},
            },
            "half": {"held": self.held[0], "checked": self.held[1]},
            "paired": None if self.paired is None else self.paired.to_dict(),
            **self.beside.to_dict(),
        }


def worst(found: Any) -> str:
    """Of several seeds: unstable if one is, else undecided if one is."""
    states = {s.state for s in found}
    return next((s for s in ("unstable", "undecided", "stable") if s in states), "undecided")


def pairs_of(judged: Sequence[MemberFinding], reference: str) -> dict[str, Pair]:
    """The pair of each variant with the reference, of members that are not unstable."""
    return _pairs([j.fit for j in judged if _counts(j) and j.fit is not None], reference)


def rows(
    judged: Sequence[MemberFinding], reference: str, pairs: Mapping[str, Pair]
) -> list[StudyRow]:
    """A row for every variant, in the order of the members. Unstable members are in no number."""
    groups: dict[str, list[MemberFinding]] = {}
    for each in judged:
        groups.setdefault(each.variant, []).append(each)
    return [_row(name, group, reference, pairs.get(name)) for name, group in groups.items()]


def _counts(each: MemberFinding) -> bool:
    return each.fit is not None and each.stability.state != "unstable"


def _pairs(fits: Sequence[Fit], reference: str) -> dict[str, Pair]:
    """The pair of each variant with the reference. (`compare` of all at once would spend most time
    on pairs of variants.) What seeds alone do is learned from all of them together."""
    groups: dict[str, list[Fit]] = {}
    for each in fits:
        groups.setdefault(each.run.group or each.name, []).append(each)
    mine = groups.pop(reference, [])
    if not mine or not groups or not comparable(fits):
        return {}
    spread = seed_spread([Arm(n, tuple(fs)) for n, fs in ({reference: mine} | groups).items()])
    found = {
        name: compare(mine, others, group_by="recipe", seed_sd=spread)
        for name, others in groups.items()
    }
    return {name: comparison.pairs[0] for name, comparison in found.items()}


def _row(name: str, group: Sequence[MemberFinding], reference: str, pair: Pair | None) -> StudyRow:
    fits = [j.fit for j in group if _counts(j) and j.fit is not None]
    estimates: dict[str, float | None] = dict.fromkeys(PARAMETERS)
    intervals: dict[str, tuple[float, float] | None] = dict.fromkeys(PARAMETERS)
    for parameter in PARAMETERS if fits else ():
        draws = np.mean([f.belief.parameter(parameter) for f in fits], axis=0)
        if parameter == "C_mid":
            draws = np.exp(np.mean([np.log(f.belief.parameter(parameter)) for f in fits], axis=0))
        low, median, high = np.quantile(draws, [(1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2])
        estimates[parameter], intervals[parameter] = float(median), (float(low), float(high))
    unstable = [j for j in group if j.stability.state == "unstable"]
    verdict, winner, words = None, None, "nothing to fit yet"
    if name == reference:
        verdict, words = "reference", "the reference"
    elif pair is not None:
        verdict, winner, words = pair.verdict, pair.winner, str(pair)
    elif unstable and len(unstable) == len(group):
        verdict, words = "unstable", "unstable, not fitted"
    elif fits:
        words = "the reference has no fit to compare with yet"
    checked = [j.half for j in group if j.half is not None]
    return StudyRow(
        variant=name,
        seeds=len(fits),
        estimates=estimates,
        intervals=intervals,
        identified=bool(fits) and all(f.identified for f in fits),
        verdict=verdict,
        winner=winner,
        words=words,
        stability={j.seed: j.stability for j in group},
        held=(sum(h.held for h in checked), len(checked)),
    )
