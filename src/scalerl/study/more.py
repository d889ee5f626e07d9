"""The rest of a study's table: what the members' records say of each variant beside its fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from scalerl.curves.arms import Arm
from scalerl.curves.compare import Pair
from scalerl.runs.lines import EvalLine
from scalerl.study.beside import beside
from scalerl.study.members import Member, look
from scalerl.study.paired import Answered, paired_rows
from scalerl.study.table import MemberFinding, StudyRow


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """A member that counts: fitted, and not unstable."""

    member: Member
    finding: MemberFinding
    evals: Sequence[EvalLine]


def with_more(
    rows: Sequence[StudyRow],
    members: Sequence[Shown],
    arms: Mapping[str, Arm],
    pairs: Mapping[str, Pair],
    target: float | None = None,
) -> list[StudyRow]:
    """The rows, the reference's among them, with what is in `paired.py` and `beside.py`."""
    reference = next((row.variant for row in rows if row.verdict == "reference"), "")
    answered: dict[str, list[Answered]] = {}
    for one in members:
        run, variant = one.finding.run, one.member.variant
        if run is not None:
            answered.setdefault(variant, []).append(Answered(one.member.path, run, one.evals))
    evals = {one.member.name: one.evals for one in members}
    found = beside(arms, evals, pairs, reference, _budget(members, reference), target)
    same_prompts = paired_rows(answered, reference)
    return [
        replace(
            row,
            paired=same_prompts.get(row.variant),
            beside=found.get(row.variant, row.beside),
        )
        for row in rows
    ]


def _budget(members: Sequence[Shown], reference: str) -> float:
    """Compute of the reference's whole budget, as far as its runs show it; on the curve's axis."""
    ends = [0.0]
    for one in members:
        if one.member.variant == reference and one.finding.fit is not None:
            share = look(one.member).share(one.member.recipe)
            ends.append(one.finding.fit.end / share if share > 0 else one.finding.fit.end)
    return max(ends)
