"""What a notebook shows of a result: a sentence and a small table, as HTML without styles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from scalerl.curves.backtest import BacktestResult
from scalerl.curves.compare import Comparison
from scalerl.curves.forecast import Forecast
from scalerl.curves.prediction import Prediction
from scalerl.curves.result import Fit
from scalerl.report import words
from scalerl.report.blocks import Bullets
from scalerl.report.table import ReportTable, columns, row
from scalerl.report.table import escape_html as text

if TYPE_CHECKING:
    from scalerl.study.study import StudyResults

#: Rows of a table before the rest is only counted.
MAX_ROWS = 20


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return ReportTable("", columns(*head), [row(*cells) for cells in rows]).to_plain_html(MAX_ROWS)


def fit_html(fit: Fit) -> str:
    rows = [
        (name, f"{value:.5g}", f"[{low:.5g}, {high:.5g}]")
        for name, value in fit.params.items()
        for low, high in [fit.interval(name)]
    ]
    notes = ([f"Alarm: {fit.alarm}"] if fit.alarm else []) + list(fit.warnings)
    head = f"{fit.name}: {fit.law.title}, {len(fit.points)} points, {words.KIND[fit.run.x_kind]}"
    return (
        f"<p><b>{text(head)}</b><br/>{text(words.ceiling_in_words(fit))}</p>"
        + _table(("", "median", words.percent(fit.level)), rows)
        + (Bullets(notes).to_html() if notes else "")
    )


def prediction_html(prediction: Prediction) -> str:
    return f"<p><b>{text(prediction.run)}</b></p>{_scores(prediction)}"


def _scores(prediction: Prediction) -> str:
    level = words.percent(prediction.level)
    head = ("compute", "pass rate", f"{level} true", f"{level} observed")
    return _table(head, words.prediction_rows(prediction))


def forecast_html(forecast: Forecast) -> str:
    return f"<p>{text(' '.join(words.headline(forecast)))}</p>{_scores(forecast.at)}"


def comparison_html(comparison: Comparison) -> str:
    level = comparison.fits[0].level
    rows = [
        (pair.a, pair.b, words.verdict(pair), words.signed(pair.delta_a), words.paper_verdict(pair))
        for pair in comparison.pairs
    ]
    lead = ""
    if len(comparison.pairs) == 1:
        lead = f"<p>{text(words.verdict_sentence(comparison.pairs[0], level))}</p>"
    return lead + _table(("first", "second", "verdict", "ΔA", "the paper's rule says"), rows)


def backtest_html(result: BacktestResult) -> str:
    rows = [words.method_cells(each, no_skill="") for each in result.summary()]
    head = ("method", "tasks", "median error", "CRPS", "skill", "50 % holds", "90 % holds")
    return _table(head, rows)


def study_html(head: str, results: StudyResults) -> str:
    """The table of a study."""
    keys = ("variant", "seeds", "A", "paired", "stability")
    known = {c.key: c for c in (*results.columns("fit"), *results.columns("pairwise"))}
    shown = [known[key] for key in keys]
    rows = [[*(words.cell_text(c, each) for c in shown), each.words] for each in results.rows]
    return f"<p><b>{text(head)}</b></p>{_table([*(c.short for c in shown), 'verdict'], rows)}"
