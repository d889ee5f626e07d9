"""Window: the points and options that a fitting method is given, and how it builds a Fit."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from scalerl.curves.alarm import Fall, find_fall
from scalerl.curves.formula import Array
from scalerl.curves.noise import bin_curve
from scalerl.curves.posterior import DRAWS
from scalerl.curves.predictive import Predictive
from scalerl.curves.result import Fit, R0Choice
from scalerl.curves.warning_signs import WarningSign
from scalerl.runs.record import Run

if TYPE_CHECKING:
    from scalerl.curves.laws.law import Law


#: A fit of fewer points than this carries a warning.
FEW_POINTS = 10


@dataclass(frozen=True, slots=True)
class Window:
    """The points and options that a method fits with."""

    #: The whole run.
    run: Run
    #: The points to fit.
    inside: Run
    law: Law
    method: str
    #: Probability of the intervals.
    level: float
    #: R_0 as `fit` was given it.
    r0: R0Choice = None
    #: Caveats found before fitting.
    notes: tuple[str, ...] = ()
    #: Grid over A, for method "paper" only.
    a_grid: npt.ArrayLike | None = None
    #: Grid over C_mid, for method "paper" only.
    mid_grid: npt.ArrayLike | None = None
    #: Called with the share done, by method "paper" only: the others take milliseconds.
    progress: Callable[[float], None] | None = None
    #: Number of posterior draws.
    draws: int = DRAWS
    #: Seed of the draws; None: derived from the scores.
    fixed_seed: int | None = None

    @property
    def ends(self) -> tuple[float, float]:
        """First and last compute of the points."""
        return float(self.inside.compute[0]), float(self.inside.compute[-1])

    @property
    def seed(self) -> int:
        """Seed of the draws: `fixed_seed`, or a checksum of the scores to nine digits."""
        if self.fixed_seed is not None:
            return self.fixed_seed
        # The compute is left out, so that a curve has the same draws in every unit of compute. Runs
        # must have different seeds: their draws are paired by index and must be independent.
        return zlib.crc32(np.round(self.inside.score, 9).tobytes())

    def fall(self) -> Fall | None:
        """The fall of the last points, if there are enough of them."""
        points = bin_curve(self.inside.compute, self.inside.score, self.inside.n_eval)
        return find_fall(self.inside.compute, self.inside.score, points)

    def build(
        self,
        predictive: Predictive,
        params: dict[str, float],
        curve: Array,
        fall: Fall | None,
        r0_source: str = "none",
        identified: bool = False,
        warnings: Iterable[str] = (),
        early: tuple[tuple[float, float], ...] = (),
        no_gain: float = 0.0,
        signs: tuple[WarningSign, ...] = (),
    ) -> Fit:
        """The Fit; `curve` is the law at the points, for its RMSE."""
        found = [*self.notes, *warnings]
        alarm = fall is not None and fall.alarm
        if alarm:
            found.append(
                "the law describes healthy runs; do not read a ceiling off a declining one"
            )
        if signs:
            found.append(
                f"signs of trouble: {'; '.join(map(str, signs))}: a fall is likelier than usual"
            )
        if len(self.inside) < FEW_POINTS:
            found.append(
                f"only {len(self.inside)} points: intervals rest on the prior more than usual"
            )
        return Fit(
            run=self.run,
            window=self.ends,
            law=self.law,
            method=self.method,
            level=self.level,
            r0_source=r0_source,
            params=params,
            identified=identified,
            alarm=str(fall) if alarm else None,
            law_rmse=float(np.sqrt(np.mean((curve - self.inside.score) ** 2))),
            warnings=tuple(found),
            early=early,
            no_gain=no_gain,
            signs=signs,
            predictive=predictive,
            seed=self.seed,
            r0=self.r0,
        )
