"""What the page's chart and report.json hold, as plain numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from scalerl.curves.compare import Comparison
from scalerl.curves.forecast import Forecast
from scalerl.files import to_json
from scalerl.report import words
from scalerl.report.comparison_figures import refit_with_ceiling
from scalerl.report.run_record import RunRecord
from scalerl.report.series import Series, downsample

if TYPE_CHECKING:
    from scalerl.report.study_curves import VariantCurve

#: Points of all runs together that the chart draws without effort; a run keeps at least MIN_POINTS.
MAX_POINTS = 9000
MIN_POINTS = 80


def chart(
    drawn: Sequence[Series], forecasts: Sequence[Forecast], truth: float | None = None
) -> dict[str, Any]:
    """The data of the interactive chart; `forecasts` are those of the series, in their order, and
    `truth` is the ceiling that all runs have by construction of their task."""
    most = max(MIN_POINTS, MAX_POINTS // max(len(drawn), 1))
    kinds = list(dict.fromkeys(s.fit.run.x_kind for s in drawn))
    level = drawn[0].fit.level
    return {
        "level": words.percent(level),
        "truth": None if truth is None else rounded(truth),
        "kinds": [words.KIND[k] for k in kinds],
        "runs": [
            # Where the chart is read at first: what the tables say there.
            _run(s, kinds.index(s.fit.run.x_kind), most) | {"at": float(ahead.at.compute[0])}
            for s, ahead in zip(drawn, forecasts, strict=True)
        ],
    }


def _run(s: Series, kind: int, most: int) -> dict[str, Any]:
    fit = s.fit
    ceiling = None
    if fit.identified:
        low, high = fit.interval("A")
        ceiling = [rounded(fit.params["A"]), rounded(low), rounded(high)]
    return {
        "name": words.shorten(fit.name, 120),
        "kind": kind,
        "end": fit.end,
        "alarm": fit.alarm,
        "ceiling": ceiling,
        "law": scores(s.law),
        **drawn_curve(s, most),
        "powerA": None if s.power is None else rounded(s.power.A),
        "power": None if s.power is None else scores(s.power_curve()),
    }


def drawn_curve(c: Series | VariantCurve, most: int) -> dict[str, Any]:
    """Points, median and intervals of a curve, with at most `most` points of each kind."""
    return {
        "used": _points(c.used, most),
        "held": _points(c.held, most),
        "x": [amount(v) for v in c.x],
        "median": scores(c.median),
        "low": scores(c.band[:, 0]),
        "high": scores(c.band[:, 1]),
        "seenLow": scores(c.seen[:, 0]),
        "seenHigh": scores(c.seen[:, 1]),
    }


def _points(
    points: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]], most: int
) -> list[list[float | None]]:
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
