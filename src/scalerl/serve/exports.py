"""Take it with you: figures, data and the offline report, made in memory."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

from scalerl.curves.compare import comparable, compare
from scalerl.curves.result import Fit
from scalerl.errors import InputError
from scalerl.files import to_json_bytes
from scalerl.report.comparison_figures import comparison_title, plot_runs
from scalerl.report.figures import plot_fit
from scalerl.report.html import report_files
from scalerl.report.run_record import RunRecord
from scalerl.report.series import series_of_runs
from scalerl.report.theme import drawing, get_theme, render
from scalerl.runs.record import Run
from scalerl.serve.questions import Question, answer, asked, fitted, together
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
    get_theme(theme)
    fits = _alike(runs, q)
    with DRAWING, drawing(theme):
        if len(fits) == 1:
            to = max(q.at, default=None)
            made = plot_fit(fits[0], theme=theme, to=to)  # type: ignore[arg-type]
        else:
            title = comparison_title(compare(fits)) if comparable(fits) else ""
            made = plot_runs(series_of_runs(fits), theme=theme, title=title)  # type: ignore[arg-type]
        return render(made, kind)


def data_csv(runs: Sequence[Run], q: Question) -> bytes:
    """Points and curves, one a line: fitted, left out, or the law with its band."""
    fits = _alike(runs, q)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["run", "kind", runs[0].x_kind, "pass_rate", "low", "high", "n_eval"])
    for f, s in zip(fits, series_of_runs(fits), strict=True):
        run, name = f.run, _cell(f.name)
        for i in range(len(run)):
            inside = f.window[0] <= run.compute[i] <= f.window[1]
            size = "" if run.n_eval is None else f"{run.n_eval[i]:g}"
            row = [f"{run.compute[i]:.10g}", f"{run.score[i]:.6g}", "", "", size]
            writer.writerow([name, "fitted" if inside else "left out", *row])
        for x, median, (low, high) in zip(s.x, s.median, s.band, strict=True):
            kind = "law" if x <= f.end else "forecast"
            writer.writerow([name, kind, *(f"{v:.6g}" for v in (x, median, low, high)), ""])
    return out.getvalue().encode("utf-8", "backslashreplace")


def _cell(name: str) -> str:
    """A name that no spreadsheet takes for a formula.

    >>> _cell("first"), _cell("=1+1")
    ('first', "'=1+1")
    """
    return f"'{name}" if name[:1] in ("=", "+", "-", "@", "\t", "\r") else name


def data_json(runs: Sequence[Run], q: Question) -> bytes:
    """The points and the whole answer of a run; of several a list of them, and the verdicts."""
    each: list[dict[str, Any]] = [{"run": run.to_dict(), **answer(run, q)} for run in runs]
    found: dict[str, Any] = each[0]
    if len(runs) > 1:
        found = {"runs": each, "pairs": together(runs, q)["pairs"]}
    return to_json_bytes(found, indent=1)


def _alike(runs: Sequence[Run], q: Question) -> list[Fit]:
    """Fits on one axis."""
    fits = [fitted(run, q) for run in runs]
    if len({f.run.x_kind for f in fits}) > 1:
        raise InputError("these runs count different kinds of compute: choose an axis")
    return fits


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
