"""The data behind the page of a study: its runs, their curves, and how its recipes differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scalerl.recipe import diff
from scalerl.recipe.diff import Difference
from scalerl.report.run_record import RunRecord, find_evaluations, read_records
from scalerl.report.study_curves import MemberCurve

if TYPE_CHECKING:
    from scalerl.study.study import Study, StudyResults


@dataclass(frozen=True, slots=True, eq=False)
class StudyReportData:
    """What the page is made of."""

    path: str
    reference: str
    #: The rows of its table, and its knobs.
    results: StudyResults
    #: `Study.to_dict()`: members, table, knobs.
    found: Mapping[str, Any]
    curves: Sequence[MemberCurve]
    #: Variant → what it does differently from the reference.
    differs: Mapping[str, Sequence[Difference]]
    records: Sequence[RunRecord | None] = ()
    title: str | None = None
    command: str | None = None

    @property
    def knobs(self) -> Sequence[Mapping[str, Any]]:
        knobs: Sequence[Mapping[str, Any]] = self.found["knobs"]
        return knobs


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
    curves = []
    for member in study.members:
        finding = study.finding(member)
        if finding.run is not None and len(finding.run):
            first = None if finding.half is None else finding.half.first
            run = finding.run.replace(name=member.name)
            curves.append(MemberCurve(member.name, member.variant, run, finding.fit, first))
    reference = study.variants[study.reference]
    return StudyReportData(
        path=str(study.path),
        reference=study.reference,
        results=results,
        found=found,
        curves=curves,
        differs={
            name: diff(reference, recipe)
            for name, recipe in study.variants.items()
            if name != study.reference
        },
        records=read_records(
            [c.run for c in curves], further, {m.name: study.evals(m) for m in study.members}
        ),
        title=title,
        command=command,
    )
