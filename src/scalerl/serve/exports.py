"""Downloads: figures, data and the offline report, made in memory."""

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
from scalerl.serve.queries import Query, compare_runs, fit_response, fitted, forecast_for
from scalerl.serve.studies import DRAWING

TYPES = {
    "png": "image/png",
    "svg": "image/svg+xml",
    "csv": "text/csv; charset=utf-8",
    "json": "application/json",
    "zip": "application/zip",
}


def figure(runs: Sequence[Run], q: Query, kind: str, theme: str = "light") -> bytes:
    """The figure of the report, for one run or several, as PNG or SVG."""
    get_theme(theme)
    fits = _on_one_axis(runs, q)
    with DRAWING, drawing(theme):
        if len(fits) == 1:
            to = max(q.at, default=None)
            made = plot_fit(fits[0], theme=theme, to=to)  # type: ignore[arg-type]
        else:
            title = comparison_title(compare(fits)) if comparable(fits) else ""
            made = plot_runs(series_of_runs(fits), theme=theme, title=title)  # type: ignore[arg-type]
        return render(made, kind)


def data_csv(runs: Sequence[Run], q: Query) -> bytes:
    """Points and curves as CSV: points that were fitted or left out, the law with its band."""
    fits = _on_one_axis(runs, q)
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
    """A name that no spreadsheet reads as a formula.

    >>> _cell("first"), _cell("=1+1")
    ('first', "'=1+1")
    """
    return f"'{name}" if name[:1] in ("=", "+", "-", "@", "\t", "\r") else name


def data_json(runs: Sequence[Run], q: Query) -> bytes:
    """Points, fit and forecast of a run as JSON; for several runs a list, and the verdicts."""
    each: list[dict[str, Any]] = [{"run": run.to_dict(), **fit_response(run, q)} for run in runs]
    found: dict[str, Any] = each[0]
    if len(runs) > 1:
        found = {"runs": each, "pairs": compare_runs(runs, q)["pairs"]}
    return to_json_bytes(found, indent=1)


def _on_one_axis(runs: Sequence[Run], q: Query) -> list[Fit]:
    """Fits of all runs, refused where their kinds of compute differ."""
    fits = [fitted(run, q) for run in runs]
    if len({f.run.x_kind for f in fits}) > 1:
        raise InputError("these runs count different kinds of compute: choose an axis")
    return fits


def report_zip(
    runs: Sequence[Run], q: Query, records: Sequence[RunRecord | None], command: str
) -> bytes:
    """The files of `scalerl report` as a zip."""
    fits = [fitted(run, q) for run in runs]
    with DRAWING:
        made = report_files(
            fits, forecasts=[forecast_for(f, q) for f in fits], records=records, command=command
        )
    return zipped(made)


def zipped(content: Mapping[str, bytes]) -> bytes:
    """Files as a zip, byte for byte the same for the same files."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as pack:
        for name, data in content.items():
            pack.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), data)
    return out.getvalue()
