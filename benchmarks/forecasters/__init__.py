"""Forecasters from the literature, as rivals in the back-test. For benchmarks only.

The trained networks LC-PFN (Adriaensen et al. 2023) and FT-PFN (Rakotoarison et al. 2024) are not
run: no release of `lcpfn` or `ifbo` on PyPI contains their weights. Both are networks that were
trained to reproduce the posterior under a prior over curves which the packages do contain. Here the
posterior under that same prior is sampled, so an error of the network's approximation is not held
against them, and no pickle is loaded.

The sums of families (LC-PFN, FT-PFN, Domhan) know what their axis needs and ours is not given: the
last compute of the whole run, its budget. Scores are in [0, 1] and the axis is linear in compute,
as in their papers.
"""

from __future__ import annotations

from collections.abc import Iterable

from forecasters.bootstrap import fit_bootstrap
from forecasters.families import Domhan, LcPfn
from forecasters.ft_pfn import FtPfn
from forecasters.gaussian_process import FreezeThaw, PowerLawProcess, fit_process
from forecasters.posterior import fit_curves
from scalerl import Run, fit
from scalerl.curves.backtest import Forecaster
from scalerl.curves.laws.law import Law, Method
from scalerl.curves.laws.no_change import fit_mean


def forecasters(runs: Iterable[Run]) -> dict[str, Forecaster]:
    """Every rival by its name in the tables. The budgets are those of the runs."""
    budget = {run.name: float(run.compute[-1]) for run in runs}
    methods: dict[str, Method] = {
        "pow3, bootstrap": fit_bootstrap,
        "LC-PFN's prior": fit_curves(LcPfn(), budget),
        "FT-PFN's prior": fit_curves(FtPfn(), budget),
        "freeze-thaw GP": fit_process(FreezeThaw()),
        "power-law GP": fit_process(PowerLawProcess()),
        "Domhan ensemble": fit_curves(Domhan(), budget),
    }
    return {name: _forecaster(name, method) for name, method in methods.items()}


def _forecaster(name: str, method: Method) -> Forecaster:
    # The least-squares search is required of a law, but the back-test never calls it.
    law = Law(name, title=name, least_squares=fit_mean, methods={"rival": method})
    return lambda run: fit(run, law=law)
