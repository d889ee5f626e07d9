"""What the page's chart and report.json hold, as plain numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from scalerl.curves.compare import Comparison
from scalerl.curves.forecast import Forecast
from scalerl.files import to_json
from scalerl.report import words
from scalerl.report.comparison_figures import refit_with_ceiling
from scalerl.report.run_record import RunRecord
from scalerl.report.series import DrawnCurve, Points, Series, downsample

#: Points of all runs together that the chart draws without effort; a run keeps at least MIN_POINTS.
MAX_POINTS = 9000
MIN_POINTS = 80


def chart(
    drawn: Sequence[DrawnCurve],
    level: float,
    at: Sequence[float | None] | None = None,
    truth: float | None = None,
) -> dict[str, Any]:
    """The data of the interactive chart, with bands that hold with the probability `level`; `at` is
    where each curve is read at first, and `truth` the ceiling that all runs have by construction of
    their task."""
    most = max(MIN_POINTS, MAX_POINTS // max(len(drawn), 1))
    kinds = list(dict.fromkeys(c.x_kind for c in drawn))
    return {
        "level": words.percent(level),
        "truth": None if truth is None else rounded(truth),
        "kinds": [words.KIND[k] for k in kinds],
        "runs": [
            _curve(c, kinds.index(c.x_kind), most) | {"at": first}
            for c, first in zip(drawn, at or [None] * len(drawn), strict=True)
        ],
    }


def _curve(c: DrawnCurve, kind: int, most: int) -> dict[str, Any]:
    return {
        "name": words.shorten(c.name, 120),
        "kind": kind,
        "end": c.end,
        "alarm": c.alarm,
        "breaks": [amount(v) for v in c.breaks],
        "ceiling": None if c.ceiling is None else [rounded(v) for v in c.ceiling],
        "law": scores(c.law),
        "used": _points(c.used, most),
        "held": _points(c.held, most),
        "x": [amount(v) for v in c.x],
        "median": scores(c.median),
        "low": scores(c.band[:, 0]),
        "high": scores(c.band[:, 1]),
        "seenLow": scores(c.seen[:, 0]),
        "seenHigh": scores(c.seen[:, 1]),
        "powerA": None if c.power is None else rounded(c.power.A),
        "power": None if c.power is None else scores(c.power_curve()),
    }


def _points(points: Points, most: int) -> list[list[float | None]]:
    x, y = downsample(*points, most)
    return [[amount(v) for v in x], scores(y)]


def amount(value: float) -> float:
    # More than a pixel shows; further digits would only make the page larger.
    return float(f"{float(value):.5g}")


def rounded(value: float) -> float | None:
    """Four digits, unless the page would then print other three digits than the tables do.

    >>> rounded(0.62341), rounded(0.62349)
    (0.6234, 0.62349)
    """
    if not math.isfinite(value):
        return None
    short = round(float(value), 4)
    return short if words.score(short) == words.score(value) else float(value)


def scores(values: npt.NDArray[np.float64]) -> list[float | None]:
    return [rounded(float(v)) for v in values]


def numbers(
    forecasts: Sequence[Forecast],
    drawn: Sequence[Series],
    comparison: Comparison | None,
    title: str,
    command: str | None,
    records: Sequence[RunRecord | None],
) -> dict[str, Any]:
    """Everything the page shows, for report.json."""
    fits = []
    for s in drawn:
        power = None if s.power is None else s.power.params()
        fits.append(s.fit.to_dict() | {"power_law": power})
    out: dict[str, Any] = {
        "title": title,
        "command": command,
        "fits": fits,
        "forecasts": [ahead.to_dict() for ahead in forecasts],
        "comparison": None,
        "efficiency": None,
        "records": [None if one is None else one.to_dict() for one in records],
    }
    if comparison is not None:
        found = comparison.to_dict()
        # The fits are in the file already.
        del found["runs"]
        out["comparison"] = found
        a = comparison.mean_a
        laws = [(f.name, refit_with_ceiling(f, a)) for f in comparison.fits]
        out["efficiency"] = {
            "A": a,
            "runs": [{"run": name, "B": law.B, "C_mid": law.C_mid} for name, law in laws],
        }
    return out


def embedded(value: Any) -> str:
    """JSON that may stand inside a <script> element, whatever names are in it.

    >>> embedded({"run": "</script><b>&"})
    '{"run": "\\\\u003c/script\\\\u003e\\\\u003cb\\\\u003e\\\\u0026"}'
    """
    text = to_json(value, ascii_only=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    # Half of a surrogate pair cannot be written as UTF-8.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
