"""The curve of a run, score against compute: what training and forecasting share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
#: Indices of rows of a table.
Rows = npt.NDArray[np.intp]

#: What the prompts behind a score were: held out, trained on, or not said by the log.
Stage = Literal["validation", "training", "unknown"]
#: What a point of the curve is plotted against. "unknown" is shown as such, never guessed.
ComputeKind = Literal["gpu_hours", "hours", "flops", "tokens", "samples", "steps", "unknown"]


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """The evaluations of one run, cleaned: compute ascending and unique, scores in [0, 1].

    >>> import numpy as np
    >>> Run("mine", compute=np.array([1.0, 2.0]), score=np.array([0.1, 0.2]), x_kind="steps")
    Run('mine', 2 points, steps 1..2, score 0.1..0.2)
    """

    name: str
    compute: Array
    score: Array
    x_kind: ComputeKind
    #: Names of the columns the numbers came from, as the source spells them.
    x_name: str = ""
    y_name: str = ""
    #: What the score was taken on: "validation", "training", or "unknown" where nothing says it.
    score_kind: Stage = "unknown"
    #: Samples behind each score (prompts x generations), where the source says so.
    n_eval: Array | None = None
    #: Score at zero compute where the source states it apart from the points.
    r0: float | None = None
    #: Recipe the run belongs to: runs that share it are replicates.
    group: str | None = None
    #: Where it was read from.
    source: str = ""
    #: What the importer did to the points, one plain line each.
    notes: tuple[str, ...] = ()
    #: Side metrics at the points, by the names of runs/select.py; nan where there was none.
    signs: Mapping[str, Array] = field(default_factory=dict, repr=False)

    #: By kind of compute: (amounts of this run's compute, amounts of that kind) at its points, for
    #: amounts that are given in another unit. Not cut by `window`.
    conversions: Mapping[str, tuple[Array, Array]] = field(default_factory=dict, repr=False)

    #: Amounts of compute, ascending, at which the run was changed (data, learning rate, a restart
    #: from an earlier step): points up to one of them lie before it. Between the first and the last
    #: point; a fit lets level and slope of the curve change there.
    breaks: tuple[float, ...] = ()
    #: Training scores of the same log, by the name that `--y` takes, with their number of values;
    #: only where the run has few points.
    training_scores: Mapping[str, int] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        columns = {"score": self.score, "n_eval": self.n_eval, **self.signs}
        for name, values in columns.items():
            if values is not None and len(values) != len(self.compute):
                raise ValueError(f"{len(values)} values of {name} for {len(self.compute)} points")

    def __len__(self) -> int:
        return len(self.compute)

    def window(self, lo: float | None = None, hi: float | None = None) -> Run:
        """The same run with only the points lo <= compute <= hi."""
        keep = np.ones(len(self), dtype=bool)
        if lo is not None:
            keep &= self.compute >= lo
        if hi is not None:
            keep &= self.compute <= hi
        return self.replace(
            compute=self.compute[keep],
            score=self.score[keep],
            n_eval=None if self.n_eval is None else self.n_eval[keep],
            signs={name: values[keep] for name, values in self.signs.items()},
        ).with_breaks(self.breaks)

    def with_breaks(self, breaks: Iterable[float]) -> Run:
        """The same run, changed at these amounts of compute; those without points on either side
        are left out.

        >>> run = Run("mine", np.array([1.0, 2.0, 3.0]), np.array([0.1, 0.2, 0.3]), "steps")
        >>> run.with_breaks([2.5, 2, 3, 9]).breaks
        (2.0, 2.5)
        """
        first, last = (self.compute[0], self.compute[-1]) if len(self) else (0.0, 0.0)
        inside = sorted({float(b) for b in breaks if b > 0 and first <= b < last})
        return self.replace(breaks=tuple(inside))

    def replace(self, **changes: Any) -> Run:
        """A copy with some fields changed."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, ready for JSON."""
        return {
            "name": self.name,
            "x": self.x_kind,
            "x_name": self.x_name,
            "y_name": self.y_name,
            "score_kind": self.score_kind,
            "compute": self.compute.tolist(),
            "score": self.score.tolist(),
            "n_eval": None if self.n_eval is None else self.n_eval.tolist(),
            "r0": self.r0,
            "group": self.group,
            "breaks": list(self.breaks),
            "source": self.source,
            "notes": list(self.notes),
        }

    def __repr__(self) -> str:
        if not len(self):
            return f"Run({self.name!r}, no points)"
        return (
            f"Run({self.name!r}, {len(self)} points, {self.x_kind} "
            f"{self.compute[0]:g}..{self.compute[-1]:g}, "
            f"score {self.score.min():g}..{self.score.max():g})"
        )
