"""Every RL run comes with a forecast.

>>> from scalerl import fit, load_run
>>> f = fit(load_run("example:paper-8b"), lo=1500, hi=50_000)
>>> [round(float(v), 1) for v in f.predict(100_000).quantiles([0.05, 0.5, 0.95])[0]]
[0.6, 0.6, 0.7]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

#: Public names and the module each lives in: nothing is imported before it is used, so that
#: `import scalerl` and `scalerl --help` stay instant.
_HOME = {
    "Arm": "scalerl.curves.arms",
    "BacktestResult": "scalerl.curves.backtest",
    "BacktestScore": "scalerl.curves.backtest",
    "Comparison": "scalerl.curves.compare",
    "ComputeNeeded": "scalerl.curves.compute_needed",
    "Crossing": "scalerl.curves.decision",
    "Evaluation": "scalerl.evaluation.scores",
    "Fit": "scalerl.curves.result",
    "Forecast": "scalerl.curves.forecast",
    "Gain": "scalerl.curves.forecast",
    "InputError": "scalerl.errors",
    "Law": "scalerl.curves.laws",
    "Listener": "scalerl.runs.listener",
    "Pair": "scalerl.curves.compare",
    "Prediction": "scalerl.curves.prediction",
    "Recipe": "scalerl.recipe.schema",
    "Recommendation": "scalerl.curves.forecast",
    "Run": "scalerl.runs.record",
    "RunEnd": "scalerl.training",
    "Study": "scalerl.study.study",
    "StudyEnd": "scalerl.study.running",
    "StudyRow": "scalerl.study.table",
    "Target": "scalerl.curves.forecast",
    "backtest": "scalerl.curves.backtest",
    "compare": "scalerl.curves.compare",
    "evaluate": "scalerl.evaluation.evaluate",
    "fit": "scalerl.curves.fit",
    "fit_all": "scalerl.curves.fit",
    "forecast": "scalerl.curves.forecast",
    "load_run": "scalerl.runs",
    "load_runs": "scalerl.runs",
    "train": "scalerl.training",
}

__all__ = [*sorted(_HOME), "__version__"]

if TYPE_CHECKING:
    from scalerl.curves.arms import Arm as Arm
    from scalerl.curves.backtest import BacktestResult as BacktestResult
    from scalerl.curves.backtest import BacktestScore as BacktestScore
    from scalerl.curves.backtest import backtest as backtest
    from scalerl.curves.compare import Comparison as Comparison
    from scalerl.curves.compare import Pair as Pair
    from scalerl.curves.compare import compare as compare
    from scalerl.curves.compute_needed import ComputeNeeded as ComputeNeeded
    from scalerl.curves.decision import Crossing as Crossing
    from scalerl.curves.fit import fit as fit
    from scalerl.curves.fit import fit_all as fit_all
    from scalerl.curves.forecast import Forecast as Forecast
    from scalerl.curves.forecast import Gain as Gain
    from scalerl.curves.forecast import Recommendation as Recommendation
    from scalerl.curves.forecast import Target as Target
    from scalerl.curves.forecast import forecast as forecast
    from scalerl.curves.laws import Law as Law
    from scalerl.curves.prediction import Prediction as Prediction
    from scalerl.curves.result import Fit as Fit
    from scalerl.errors import InputError as InputError
    from scalerl.evaluation.evaluate import evaluate as evaluate
    from scalerl.evaluation.scores import Evaluation as Evaluation
    from scalerl.recipe.schema import Recipe as Recipe
    from scalerl.runs import load_run as load_run
    from scalerl.runs import load_runs as load_runs
    from scalerl.runs.listener import Listener as Listener
    from scalerl.runs.record import Run as Run
    from scalerl.study.running import StudyEnd as StudyEnd
    from scalerl.study.study import Study as Study
    from scalerl.study.table import StudyRow as StudyRow
    from scalerl.training import RunEnd as RunEnd
    from scalerl.training import train as train


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'scalerl' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
