"""A trainer that learns nothing, for the planner and for tests of the loop: it counts versions and
measures the staleness of its tokens."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import Tensor

from scalerl.algorithm.diagnostics import Diagnostics
from scalerl.algorithm.episode import Group
from scalerl.algorithm.filters import FilterTally
from scalerl.models.adapter import AdapterProbe
from scalerl.trainer.interface import StepReport, TrainerSpec


class SimulatedTrainer:
    """A Trainer without a model: every step succeeds and changes nothing but the version."""

    def __init__(self, version: int = 0) -> None:
        self.version = version

    @staticmethod
    def from_spec(spec: TrainerSpec) -> SimulatedTrainer:
        """The trainer "simulated" of a recipe."""
        trainer = SimulatedTrainer()
        if spec.checkpoint is not None:
            trainer.load(Path(spec.checkpoint))
        return trainer

    def step(self, groups: Sequence[Group]) -> StepReport:
        episodes = [e for group in groups for e in group.episodes]
        histogram: Counter[int] = Counter()
        for segment in (s for e in episodes for row in e.rows for s in row.segments):
            for version, tokens in segment.versions:
                histogram[self.version - version] += tokens
        tokens = histogram.total()
        self.version += 1
        return StepReport(
            version=self.version,
            loss=0.0,
            kl=0.0,
            grad_norm=0.0,
            lr=0.0,
            forward_tokens=tokens,
            loss_tokens=tokens,
            kept_tokens=tokens,
            micro_batches=1,
            seconds=0.0,
            diagnostics=Diagnostics(
                tokens=tokens,
                staleness_mean=sum(age * n for age, n in histogram.items()) / max(tokens, 1),
                staleness_max=max(histogram, default=0),
                staleness_histogram=dict(sorted(histogram.items())),
            ),
            filtered=FilterTally(
                prompts=len(groups),
                rollouts=len(episodes),
                unscored=sum(e.reward is None for e in episodes),
                truncated=0,
                zero_variance_prompts=0,
                effective_prompts=len(groups),
                effective_rollouts=len(episodes),
            ),
        )

    def score(self, groups: Sequence[Group]) -> list[list[npt.NDArray[np.float32]]]:
        return [
            [np.concatenate([row.logprobs[row.written_N] for row in e.rows]) for e in g.episodes]
            for g in groups
        ]

    def weights(self) -> Mapping[str, Tensor]:
        return {}

    def probe(self, tokens: Sequence[int]) -> AdapterProbe:
        return AdapterProbe((), (), ())

    def save(self, path: Path) -> None:
        (path / "trainer.json").write_text(json.dumps({"version": self.version}))

    def load(self, path: Path) -> None:
        self.version = int(json.loads((path / "trainer.json").read_text())["version"])
