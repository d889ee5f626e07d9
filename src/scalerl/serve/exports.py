"""Take it with you: figures, data and the offline report, made in memory."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

from scalerl.curves.compare import comparable, compare
from scalerl.errors import InputError
from scalerl.report.figures import plot_fit
from scalerl.report.html import report_files
from scalerl.report.many_figures import plot_runs, sentence
from scalerl.report.payload import to_json
from scalerl.report.run_record import RunRecord
from scalerl.report.series import many
from scalerl.report.theme import drawing, named, render
from scalerl.runs.record import Run
from scalerl.serve.questions import Question, answer, asked, fitted
from scalerl.serve.studies import DRAWING

TYPES = {
    "png": "image/png",
    "svg": "image/svg+xml",
    "csv": "text/csv; charset=utf-8",
    "json": "application/json",
    "zip": "application/zip",
}


def figure(runs: Sequence[Run], q: Question, kind: str, theme: str = "light") -> bytes:
    """The picture of the report: of one run with what was asked, or of several."""
    named(theme)
    fits = [fitted(run, q) for run in runs]
    with DRAWING, drawing(theme):
        if len(fits) == 1:
            to = max(q.at, default=None)
            made = plot_fit(fits[0], theme=theme, to=to)  # type: ignore[arg-type]
        else:
            if len({f.run.x_kind for f in fits}) > 1:
                raise InputError("these runs count different kinds of compute: choose an axis")
            title = sentence(compare(fits)) if comparable(fits) else ""
            made = plot_runs(many(fits), theme=theme, title=title)  # type: ignore[arg-type]
        return render(made, kind)


def data_csv(run: Run, q: Question) -> bytes:
    """Points and curve, one a line: fitted, left out, or the law with its band."""
    f = fitted(run, q)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["kind", run.x_kind, "pass_rate", "low", "high", "n_eval"])
    for i in range(len(run)):
        inside = f.window[0] <= run.compute[i] <= f.window[1]
        size = "" if run.n_eval is None else f"{run.n_eval[i]:g}"
        row = [f"{run.compute[i]:.10g}", f"{run.score[i]:.6g}", "", "", size]
        writer.writerow(["fitted" if inside else "left out", *row])
    [s] = many([f])
    for x, median, (low, high) in zip(s.x, s.median, s.band, strict=True):
        kind = "law" if x <= f.end else "forecast"
        row = [f"{v:.6g}" for v in (x, median, low, high)]
        writer.writerow([kind, *row, ""])
    return out.getvalue().encode()


def data_json(run: Run, q: Question) -> bytes:
    """The points, and the whole answer."""
    found: dict[str, Any] = {"run": run.to_dict(), **answer(run, q)}
    return to_json(found, indent=1).encode("utf-8", "backslashreplace")


def report_zip(
    runs: Sequence[Run], q: Question, records: Sequence[RunRecord | None], command: str
) -> bytes:
    """`scalerl report`, packed."""
    fits = [fitted(run, q) for run in runs]
    with DRAWING:
        made = report_files(
            fits, forecasts=[asked(f, q) for f in fits], records=records, command=command
        )
    return packed(made)


def packed(content: Mapping[str, bytes]) -> bytes:
    """The files in a zip, the same for the same files."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as pack:
        for name, data in content.items():
            pack.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), data)
    return out.getvalue()
