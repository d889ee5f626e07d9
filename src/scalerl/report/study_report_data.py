"""The data behind the page of a study: its runs, their curves, and how its recipes differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scalerl.recipe import diff
from scalerl.recipe.diff import Difference
from scalerl.report.run_record import RunRecord, find_evaluations, read_records

if TYPE_CHECKING:
    from scalerl.study.study import Study, StudyResults
    from scalerl.study.table import MemberFinding


@dataclass(frozen=True, slots=True, eq=False)
class StudyReportData:
    """What the page is made of."""

    path: str
    reference: str
    #: Its table and its knob map.
    results: StudyResults
    #: `Study.to_dict()`: members, table, knobs.
    found: Mapping[str, Any]
    findings: Sequence[MemberFinding] = ()
    #: Variant → what it does differently from the reference.
    differs: Mapping[str, Sequence[Difference]] = field(default_factory=dict)
    records: Sequence[RunRecord | None] = ()
    title: str | None = None
    command: str | None = None


def collect(
    study: Study,
    downstream: list[str] | tuple[str, ...] = (),
    title: str | None = None,
    command: str | None = None,
) -> StudyReportData:
    """Read everything that the page of a study shows.

    `downstream` names directories that `scalerl eval` wrote, each as DIR or NAME=DIR.
    """
    further = find_evaluations(downstream)
    results = study.results()
    found = study.to_dict(results=results)
    findings = [study.finding(member) for member in study.members]
    curves = [each.run for each in findings if each.run]
    reference = study.variants[study.reference]
    return StudyReportData(
        path=str(study.path),
        reference=study.reference,
        results=results,
        found=found,
        findings=findings,
        differs={
            name: diff(reference, recipe)
            for name, recipe in study.variants.items()
            if name != study.reference
        },
        records=read_records(curves, further, {f.member.name: f.evals for f in findings}),
        title=title,
        command=command,
    )
