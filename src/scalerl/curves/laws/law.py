"""Law: a family of curves, its fitting methods, and whether its fits have a ceiling to compare.

A new law is one object in one file. It needs a formula and a least-squares search:

    add_law(Law("log-linear", title="log-linear law", least_squares=fit_log_linear))

and then `fit(run, law="log-linear")`, forecasts, reports and `--law log-linear` accept it. On the
command line `--law package.module:NAME` imports a law from any module.
tests/curves/test_own_law.py is a whole example.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from scalerl.curves.formula import Array, Formula, PointFit
from scalerl.curves.prediction import PointPredictive, normal_quantiles
from scalerl.curves.result import Fit, Window
from scalerl.registry import Registry

#: (compute, score, R_0 if it is known) -> the formula that leaves the least sum of squares.
Search = Callable[[Array, Array, float | None], PointFit[Formula]]
Method = Callable[[Window], Fit]


def fit_least_squares(w: Window) -> Fit:
    """The default method of a law: the least-squares formula, with intervals of one width from its
    residuals."""
    inside = w.inside
    found = w.law.least_squares(inside.compute, inside.score, None)
    params = found.formula.params()
    positive = inside.compute > 0
    sd = float(np.sqrt(found.sse / max(int(positive.sum()) - len(params), 1)))
    n = len(normal_quantiles())
    samples = {k: np.full(n, v) for k, v in params.items()}
    warnings = []
    if "A" in params:
        bound = ", the largest possible score" if params["A"] >= 1.0 - 1e-9 else ""
        warnings.append(
            f"the {w.law.title} puts the ceiling at {params['A']:.3f}{bound}; it gives no honest "
            "interval, so the ceiling is not identified: compare the sigmoid's"
        )
    # A law may diverge at C = 0: use its value at the first positive compute there.
    curve = found.formula.value(np.maximum(inside.compute, inside.compute[positive][0]))
    return w.build(
        PointPredictive(found.formula, sd, samples), params, curve, w.fall(), warnings=warnings
    )


@dataclass(frozen=True, slots=True, eq=False)
class Law:
    """A family of curves, found by its name in `scalerl.curves.laws.LAWS`.

    name           what `fit(law=...)` and `--law` call it
    title          what figures and sentences call it
    least_squares  (compute, score, R_0 or None) -> PointFit: its point estimate
    methods        ways to fit it, by name, the first by default
    identifiable   its ceiling A has an honest interval, so that it may be quoted
    comparable     its draws pair up with those of other runs, so that runs may be ranked by them

    >>> from scalerl import fit, load_run
    >>> law = fit(load_run("example:paper-8b")).law
    >>> law, list(law.methods), law.identifiable
    (Law('sigmoid'), ['posterior', 'paper'], True)
    """

    name: str
    title: str
    least_squares: Search
    methods: Mapping[str, Method] = field(
        default_factory=lambda: MappingProxyType({"least-squares": fit_least_squares})
    )
    identifiable: bool = False
    comparable: bool = False

    def __repr__(self) -> str:
        return f"Law({self.name!r})"


LAWS: Registry[Law] = Registry("law", accepts=lambda thing: isinstance(thing, Law))


def add_law(law: Law) -> Law:
    """Make a law available under its name."""
    return LAWS.add(law.name, law)
