"""What a study found, as the page of a study is told it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scalerl.recipe import diff
from scalerl.report.run_record import evaluations_of, records_of
from scalerl.report.study_curves import MemberCurve
from scalerl.report.study_page import StudyTold

if TYPE_CHECKING:
    from scalerl.study.study import Study


def told(
    study: Study,
    downstream: list[str] | tuple[str, ...] = (),
    title: str | None = None,
    command: str | None = None,
) -> StudyTold:
    """What the page shows of a study."""
    further = evaluations_of(downstream)
    found = study.to_dict()
    curves = []
    for member in study.members:
        judged = study.finding(member)
        if judged.run is not None and len(judged.run):
            first = None if judged.half is None else judged.half.first
            run = judged.run.replace(name=member.name)
            curves.append(MemberCurve(member.name, member.variant, run, judged.fit, first))
    reference = study.variants[study.reference]
    return StudyTold(
        path=str(study.path),
        reference=study.reference,
        found=found,
        curves=curves,
        differs={
            name: diff(reference, recipe)
            for name, recipe in study.variants.items()
            if name != study.reference
        },
        records=records_of(
            [c.run for c in curves], further, {m.name: study.evals(m) for m in study.members}
        ),
        title=title,
        command=command,
    )
