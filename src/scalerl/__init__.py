"""Every RL run comes with a forecast.

>>> from scalerl import fit, load_run
>>> f = fit(load_run("example:paper-8b"), lo=1500, hi=50_000)
>>> [round(float(v), 1) for v in f.predict(100_000).quantiles([0.05, 0.5, 0.95])[0]]
[0.6, 0.6, 0.7]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

__all__ = [
    "Arm", "BacktestResult", "BacktestScore", "Comparison", "ComputeNeeded", "Crossing",
    "Evaluation", "Fit", "Forecast", "Gain", "InputError", "Law", "Listener", "Pair", "Plan",
    "Prediction", "Recipe", "Recommendation", "Run", "RunEnd", "Study", "StudyEnd", "StudyRow",
    "Target", "__version__", "backtest", "compare", "evaluate", "fit", "fit_all", "forecast",
    "load_run", "load_runs", "plan", "train",
]  # fmt: skip

#: Module → the public names in it. Nothing is imported before it is used, so that `import scalerl`
#: and `scalerl --help` stay instant.
_NAMES = {
    "scalerl.curves.arms": ("Arm",),
    "scalerl.curves.backtest": ("BacktestResult", "BacktestScore", "backtest"),
    "scalerl.curves.compare": ("Comparison", "Pair", "compare"),
    "scalerl.curves.compute_needed": ("ComputeNeeded",),
    "scalerl.curves.decision": ("Crossing",),
    "scalerl.curves.fit": ("fit", "fit_all"),
    "scalerl.curves.forecast": ("Forecast", "Gain", "Recommendation", "Target", "forecast"),
    "scalerl.curves.laws": ("Law",),
    "scalerl.curves.prediction": ("Prediction",),
    "scalerl.curves.result": ("Fit",),
    "scalerl.errors": ("InputError",),
    "scalerl.evaluation.evaluate": ("evaluate",),
    "scalerl.evaluation.scores": ("Evaluation",),
    "scalerl.planner.plan": ("Plan", "plan"),
    "scalerl.recipe.schema": ("Recipe",),
    "scalerl.runs": ("load_run", "load_runs"),
    "scalerl.runs.listener": ("Listener",),
    "scalerl.runs.record": ("Run",),
    "scalerl.study.running": ("StudyEnd",),
    "scalerl.study.study": ("Study",),
    "scalerl.study.table": ("StudyRow",),
    "scalerl.training": ("RunEnd", "train"),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

# For type checkers and editors, which do not run `__getattr__`.
if TYPE_CHECKING:
    from scalerl.curves.arms import Arm
    from scalerl.curves.backtest import BacktestResult, BacktestScore, backtest
    from scalerl.curves.compare import Comparison, Pair, compare
    from scalerl.curves.compute_needed import ComputeNeeded
    from scalerl.curves.decision import Crossing
    from scalerl.curves.fit import fit, fit_all
    from scalerl.curves.forecast import Forecast, Gain, Recommendation, Target, forecast
    from scalerl.curves.laws import Law
    from scalerl.curves.prediction import Prediction
    from scalerl.curves.result import Fit
    from scalerl.errors import InputError
    from scalerl.evaluation.evaluate import evaluate
    from scalerl.evaluation.scores import Evaluation
    from scalerl.planner.plan import Plan, plan
    from scalerl.recipe.schema import Recipe
    from scalerl.runs import load_run, load_runs
    from scalerl.runs.listener import Listener
    from scalerl.runs.record import Run
    from scalerl.study.running import StudyEnd
    from scalerl.study.study import Study
    from scalerl.study.table import StudyRow
    from scalerl.training import RunEnd, train


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'scalerl' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
