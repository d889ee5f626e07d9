"""The prior distributions behind a fit and its forecast, by the kind of score.

Their numbers are in `priors.json`, which `python benchmarks/learn_priors.py` writes: learned from
the curves of other projects and of our own runs, with whole sources left out in turn to measure how
well they carry over (docs/explanation/calibration.md). Scores on held-out prompts ("validation")
and rewards on training prompts ("training") have different ones: a training reward is noisier, is
flat more rarely and rises later.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, fields
from importlib import resources
from typing import Any, Literal

import numpy as np

from scalerl.curves.formula import Array
from scalerl.curves.noise import BinnedCurve
from scalerl.runs.record import Run

PriorKind = Literal["validation", "training"]

#: Noise sd of one score from which on a score of unknown kind is read as a training reward: rewards
#: of one batch scatter more than evaluations of a fixed set.
TRAINING_NOISE = 0.03


@dataclass(frozen=True, slots=True)
class Priors:
    """Prior distributions of a learning curve's parameters, inside its window."""

    # ln B ~ N(ln b_median, b_log_sd).
    b_median: float
    b_log_sd: float
    #: sd of ln v, the exponent of the approach to the ceiling (`posterior.fraction`). The mean is
    #: 0: v = 1 is the sigmoid.
    shape_log_sd: float
    #: Prior probability that no gain is under way (A = R_0).
    flat_weight: float
    #: sd of ln(C_mid / last C), mean 0.
    mid_log_sd: float
    # A ~ N(level now + a_step + a_share x gain so far, a_sd + a_sd_share x gain so far), truncated
    # to 0 <= R_0 <= A <= 1: a curve that has risen is expected to rise further.
    a_step: float
    a_share: float
    a_sd: float
    a_sd_share: float
    #: Prior weight of no cut (the law begins at the first point), in units of a cut's.
    no_cut_weight: float

    #: Range of B covered by the grid.
    b_range: tuple[float, float] = (0.25, 6.0)
    #: Grid cells in ln B; the second grid has as many over the part that holds the weight.
    b_cells: int = 14
    #: Exponents v; the first is the sigmoid.
    shapes: tuple[float, ...] = (1.0, 0.25, 0.5, 2.0, 4.0)
    #: Number of them in the coarse grid: the others peak at similar B and C_mid.
    coarse_shapes: int = 2
    #: Grid cells in ln C_mid.
    mid_cells: int = 32
    # The grid in ln C_mid runs from mid_margin below the first point, or mid_below before the end
    # of a short window, to mid_above after the end.
    mid_below: float = 3.0
    mid_margin: float = 0.5
    mid_above: float = 3.5
    #: sd of R_0 about the first score: wide, since the data fix it.
    r0_sd: float = 0.5
    #: Sizes of the residual walk, tau, in units of the curve's rise.
    tau: tuple[float, ...] = (0.006, 0.02, 0.06, 0.18)
    #: Prior probability of each tau. Not learned: the curves here would make it, and the forecasts,
    #: narrower than the paper's own curve allows.
    tau_weight: tuple[float, ...] = (0.1, 0.25, 0.35, 0.3)
    #: Degrees of freedom of the inverse-gamma prior of s2, which has scale 1.
    nu0: float = 6.0
    #: Shares of the compute after which the law may begin.
    cuts: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2, 0.3)
    #: Fewest points that a cut must leave.
    cut_leaves: int = 6
    #: Size of the residual walk before the cut, in units of the rise: so rough that the points
    #: there hardly affect the law.
    rough: float = 0.3

    @property
    def shape_weight(self) -> Array:
        """Prior probability of each shape."""
        weight = np.exp(-0.5 * (np.log(self.shapes) / self.shape_log_sd) ** 2)
        return np.asarray(weight / weight.sum())


@dataclass(frozen=True, slots=True)
class FuturePriors:
    """How a run may depart from its law after the window."""

    #: Rate per unit of ln C at which the present departure from the law fades.
    reversion: float
    #: Share of the present departure from the law that its ceiling keeps.
    ceiling_keeps: float
    #: Rate per unit of ln C at which a run that still rises begins to fall.
    hazard: float
    #: Added to that rate for each unit of ln C since the run has reached nine tenths of its gain.
    plateau_hazard: float
    #: Probability of each of FALL_DEPTHS.
    fall_weight: tuple[float, ...]
    #: Probability that a run without a gain takes off: by U(0, 1) (1 - level), over one ln C.
    takeoff_probability: float

    # Not learned, as `Priors.tau_weight`.
    #: sd of ln g, the log error of the law's remaining gain, after one doubling of compute.
    gain_sd: float = 0.3
    #: Probability that the walk is rougher than inside the window.
    jump_probability: float = 0.05
    #: Factor on the sd of a rougher walk.
    jump_size: float = 4.0
    # The rest are judgements: the curves hold too few falls in progress to learn them.
    #: Probability that a fall under way continues.
    fall_continues: float = 0.4
    #: Loss of a continued fall: Exp(1) times this share of the drop so far per sqrt(ln C).
    continued_fall_speed: float = 0.8
    #: Probability that a fall under way recovers, by U(0, 1) of the drop; otherwise it stays.
    recovery_probability: float = 0.25
    #: Rate per unit of ln C at which a recovery completes.
    recovery_rate: float = 3.0


@dataclass(frozen=True, slots=True)
class CurvePriors:
    """All priors of one kind of score."""

    window: Priors
    future: FuturePriors

    @staticmethod
    def from_dict(values: dict[str, Any]) -> CurvePriors:
        """The priors with these learned numbers."""
        return CurvePriors(_filled(Priors, values), _filled(FuturePriors, values))


def _filled(kind: Any, values: dict[str, Any]) -> Any:
    chosen = {f.name: values[f.name] for f in fields(kind) if f.name in values}
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in chosen.items()})


@functools.cache
def learned_priors(kind: PriorKind) -> CurvePriors:
    """The committed priors of a kind of score.

    >>> flat = [learned_priors(k).window.flat_weight for k in ("training", "validation")]
    >>> flat[0] < flat[1]
    True
    """
    text = resources.files("scalerl.curves").joinpath("priors.json").read_text("utf-8")
    table = json.loads(text)["priors"]
    return CurvePriors.from_dict({**table["both"], **table[kind]})


def prior_kind(run: Run, points: BinnedCurve) -> PriorKind:
    """The kind of a run's score: as the run states it; or else a training reward if there is one at
    every step, or if it is very noisy."""
    if run.score_kind != "unknown":
        return run.score_kind
    step = np.diff(run.compute)
    every_step = bool(np.median(step) == 1.0 and (step == np.round(step)).all())
    noisy = points.score_variance > TRAINING_NOISE**2
    return "training" if every_step or noisy else "validation"
