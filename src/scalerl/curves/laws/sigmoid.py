"""The sigmoid, Equation 1 of the paper: the default law. It has two methods.

"posterior" (the default) samples the posterior of the sigmoid with correlated noise (posterior.py).
"paper" is the paper's own procedure (paper.py), to check published numbers.
"""

from __future__ import annotations

import numpy as np

from scalerl.curves.formula import one_thread
from scalerl.curves.identified import why_not_identified
from scalerl.curves.laws.law import Law, add_law
from scalerl.curves.least_squares import fit_sigmoid
from scalerl.curves.noise import bin_curve
from scalerl.curves.paper import fit_paper_cells
from scalerl.curves.paths import FutureScenarios
from scalerl.curves.posterior import sample_posterior
from scalerl.curves.prediction import SigmoidPredictive
from scalerl.curves.priors import learned_priors, prior_kind
from scalerl.curves.result import Fit, Window
from scalerl.curves.warning_signs import find_signs, hazard_factor
from scalerl.runs.record import Run

#: Difference between the probabilities of a faster and of a slower approach than the sigmoid's from
#: which on a fit says so.
CLEAR_TAIL = 0.8


@one_thread
def fit_posterior(w: Window) -> Fit:
    """The posterior of the sigmoid, with scenarios beyond the window."""
    inside = w.inside
    fixed: float | None = None
    source = "measured" if inside.compute[0] == 0 else "fitted"
    warnings = []
    # Where the level may have jumped, the first score is only a point like the others.
    if w.r0 == "first" and not inside.breaks:
        fixed, source = float(inside.score[0]), "first"
    elif isinstance(w.r0, int | float):
        inside, source = _with_r0(inside, float(w.r0)), "given"
    elif source == "fitted" and w.run.r0 is not None:
        warnings.append(f"R_0 fitted; the source states {w.run.r0:g} (--r0 {w.run.r0:g} uses it)")
    points = bin_curve(inside.compute, inside.score, inside.n_eval, inside.breaks)
    kind = prior_kind(w.inside, points)
    priors = w.priors or learned_priors(kind)
    rng = np.random.default_rng((w.seed, 0))
    posterior = sample_posterior(
        points, float(np.log(inside.compute[-1])), fixed, rng, priors.window, w.draws
    )
    fall = w.fall(points)
    signs = find_signs(w.inside.signs)
    scenarios = FutureScenarios.draw(posterior, fall, priors.future, w.seed, hazard_factor(signs))
    predictive = SigmoidPredictive(posterior, scenarios, priors.future, w.seed)
    samples = {k: predictive.parameter(k) for k in ("R_0", "A", "B", "C_mid")}
    params = {k: float(np.median(v)) for k, v in samples.items()}
    alarm = fall is not None and fall.alarm
    why_not = why_not_identified(predictive, alarm)
    if why_not and not alarm:
        warnings.append(why_not)
    if abs(posterior.tail) > CLEAR_TAIL:
        how = "faster" if posterior.tail > 0 else "more slowly"
        warnings.append(
            f"the curve nears its ceiling {how} than a sigmoid: A allows for it, the sigmoid drawn "
            "through the same points would not"
        )
    if inside.score_kind == "unknown" and kind == "training":
        warnings.append("read as a training reward, by its noise or because every step has one")
    curve = posterior.median_law(w.inside.compute)
    return w.build(
        predictive,
        params,
        curve,
        fall,
        source,
        not why_not,
        warnings,
        posterior.early,
        posterior.no_gain,
        signs,
    )


def _with_r0(run: Run, r0: float) -> Run:
    """The run with a given R_0 as its evaluation at C = 0, as noisy as the others."""
    positive = run.compute > 0
    n_eval = run.n_eval
    if n_eval is not None:
        n_eval = np.concatenate([[np.median(n_eval)], n_eval[positive]])
    return run.replace(
        compute=np.concatenate([[0.0], run.compute[positive]]),
        score=np.concatenate([[r0], run.score[positive]]),
        n_eval=n_eval,
        signs={name: np.append(np.nan, values[positive]) for name, values in run.signs.items()},
    )


SIGMOID = add_law(
    Law(
        "sigmoid",
        title="sigmoid",
        least_squares=fit_sigmoid,
        methods={"posterior": fit_posterior, "paper": fit_paper_cells},
        identifiable=True,
        comparable=True,
    )
)
