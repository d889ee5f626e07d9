"""The table of a study: one row per variant, with its verdict against the reference.

Seeds of a variant are fitted as one curve, and variants share a prior on what their curves have in
common (curves/arms.py, curves/shared_prior.py): a row is about the recipe, not about one of its
runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from scalerl.curves.arms import Arm, seed_spread, with_family_prior
from scalerl.curves.compare import Pair, comparable, compare_arms
from scalerl.curves.prediction import sample_quantiles, tails
from scalerl.curves.result import Fit
from scalerl.renamed import renamed_attributes
from scalerl.runs.lines import EvalLine
from scalerl.runs.record import Run
from scalerl.study.columns import COLUMNS
from scalerl.study.members import Member, read_progress
from scalerl.study.paired import PairedDifference, paired_differences
from scalerl.study.pairwise import PairwiseSummary, pairwise_summaries
from scalerl.study.stability import HalfCheck, Stability

PARAMETERS = ("A", "B", "C_mid")
#: Central interval of the table.
LEVEL = 0.9


@dataclass(frozen=True, slots=True)
class MemberFinding:
    """What is known of a member: how stable it is, its fit where it may be fitted, and the check of
    the forecast at half its compute."""

    member: Member
    stability: Stability
    fit: Fit | None = None
    half: HalfCheck | None = None
    #: Its curve, also where it may not be fitted.
    run: Run | None = None
    #: The lines of its validations.
    evals: Sequence[EvalLine] = ()

    @property
    def counts(self) -> bool:
        """Whether it enters the numbers of its variant: fitted, and not unstable."""
        return self.fit is not None and self.stability.state != "unstable"


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
    #: Members with a forecast at half their compute that held, of those that could be checked.
    held: tuple[int, int]
    #: Against the reference on the same prompts; None where there are no such answers.
    paired: PairedDifference | None = None
    #: Compute to a target, crossing, fixed A, other axes.
    pairwise: PairwiseSummary = field(default_factory=PairwiseSummary)

    __getattr__ = renamed_attributes({"beside": "pairwise"})

    def to_dict(self) -> dict[str, Any]:
        """The row as `scalerl study --json` prints it: a value for each of `COLUMNS`."""
        return {column.key: column.to_json(self) for column in COLUMNS}


@dataclass(frozen=True, slots=True)
class StudyArms:
    """Variant → the law through all its runs that are not unstable, each with what the others tell;
    and what seeds alone do to a ceiling (sd), learned from all of them together."""

    arms: Mapping[str, Arm]
    seed_sd: float

    @staticmethod
    def from_findings(findings: Sequence[MemberFinding]) -> StudyArms:
        groups: dict[str, list[MemberFinding]] = {}
        for each in findings:
            if each.fit is not None and each.counts:
                groups.setdefault(each.member.variant, []).append(each)
        alone = [
            Arm(name, tuple(e.fit for e in found if e.fit is not None), budget=_budget(found))
            for name, found in groups.items()
        ]
        # Spread of the arms alone: the shared prior draws ceilings together.
        return StudyArms({arm.name: arm for arm in with_family_prior(alone)}, seed_spread(alone))

    def pairs(self, reference: str) -> dict[str, Pair]:
        """The pair of each variant with the reference."""
        mine = self.arms.get(reference)
        if mine is None or not comparable([f for arm in self.arms.values() for f in arm.fits]):
            return {}
        others = {name: arm for name, arm in self.arms.items() if name != reference}
        found = compare_arms(mine, list(others.values()), self.seed_sd)
        return dict(zip(others, found, strict=True))

    def quantiles(self, variant: str, parameter: str) -> tuple[float, float, float] | None:
        """Low end, median and high end of a parameter of a recipe, seeds allowed for."""
        arm = self.arms.get(variant)
        if arm is None or parameter not in arm.fit.params:
            return None
        draws = arm.fit.predictive.parameter(parameter)
        median = float(np.median(draws))
        if parameter == "A":
            # Seeded by the fit, so that the same runs give the same table.
            rng = np.random.default_rng((arm.fit.seed, 43))
            draws = draws + self.seed_sd / np.sqrt(arm.seeds) * rng.standard_normal(len(draws))
            draws = np.clip(draws, 0.0, 1.0)
        low, high = sample_quantiles(draws, tails(LEVEL))
        return float(low), median, float(high)


def rows(
    findings: Sequence[MemberFinding],
    reference: str,
    arms: StudyArms,
    pairs: Mapping[str, Pair],
    target: float | None = None,
) -> list[StudyRow]:
    """A row for every variant, in the order of the members. Unstable members are in no number.
    Each row has its pairwise columns: the paired difference on the same prompts (`paired.py`) and
    the summary against the reference (`pairwise.py`), with the compute to the score `target`."""
    groups: dict[str, list[MemberFinding]] = {}
    for each in findings:
        groups.setdefault(each.member.variant, []).append(each)
    counted = {name: [j for j in group if j.counts] for name, group in groups.items()}
    evals = {j.member.name: j.evals for group in counted.values() for j in group}
    budget = _budget(counted.get(reference, []))
    found = pairwise_summaries(arms.arms, evals, pairs, reference, budget, target)
    same_prompts = paired_differences(counted, reference)
    return [
        replace(
            _row(name, group, reference, arms, pairs.get(name)),
            paired=same_prompts.get(name),
            pairwise=found.get(name, PairwiseSummary()),
        )
        for name, group in groups.items()
    ]


def _row(
    name: str, group: Sequence[MemberFinding], reference: str, arms: StudyArms, pair: Pair | None
) -> StudyRow:
    arm = arms.arms.get(name)
    known = {parameter: arms.quantiles(name, parameter) for parameter in PARAMETERS}
    estimates = {k: None if q is None else q[1] for k, q in known.items()}
    intervals = {k: None if q is None else (q[0], q[2]) for k, q in known.items()}
    unstable = [j for j in group if j.stability.state == "unstable"]
    verdict, winner, words = None, None, "nothing to fit yet"
    if name == reference:
        verdict, words = "reference", "the reference"
    elif pair is not None:
        verdict, winner, words = pair.verdict, pair.winner, str(pair)
    # A member without a curve says nothing yet.
    elif unstable and all(j in unstable or j.run is None for j in group):
        verdict, words = "unstable", "unstable, not fitted"
    elif arm is not None:
        words = "the reference has no fit to compare with yet"
    checked = [j.half for j in group if j.half is not None]
    return StudyRow(
        variant=name,
        seeds=0 if arm is None else len(arm.fits),
        estimates=estimates,
        intervals=intervals,
        identified=arm is not None and arm.fit.identified,
        verdict=verdict,
        winner=winner,
        words=words,
        stability={j.member.seed: j.stability for j in group},
        held=(sum(h.held for h in checked), len(checked)),
    )


def _budget(group: Sequence[MemberFinding]) -> float:
    """Compute of the whole budget of a variant, as far as its runs show it; on the curve's axis."""
    ends = [0.0]
    for each in group:
        if each.fit is not None:
            share = read_progress(each.member).share(each.member.recipe)
            ends.append(each.fit.end / share if share > 0 else each.fit.end)
    return max(ends)
