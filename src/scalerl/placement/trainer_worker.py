"""The trainer's side of the protocol: one answer to every message, in every placement."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError

from scalerl.engine.adapter_proof import with_proof
from scalerl.errors import PipelineError
from scalerl.models.adapter import AdapterSpec
from scalerl.pipeline import messages as m
from scalerl.trainer.interface import (
    KeepsTokenStats,
    NonFiniteGradient,
    TokenStats,
    Trainer,
    TrainerSpec,
)
from scalerl.weights.interface import Channel, NullSender, Sender


class TrainerWorker:
    """A trainer and the sender of its weights. `now` is the clock of its placement; `adapter` what
    is trained, unless it is all weights."""

    def __init__(
        self,
        trainer: Trainer,
        sender: Sender,
        now: Callable[[], float],
        adapter: AdapterSpec | None = None,
    ) -> None:
        self.trainer = trainer
        self.adapter = adapter
        self.sender = sender
        self.now = now

    @staticmethod
    def for_rank(
        trainer: Trainer, spec: TrainerSpec, channel: Channel, now: Callable[[], float]
    ) -> TrainerWorker:
        """The worker of one rank: only the first rank publishes weights."""
        first = spec.ranks is None or spec.ranks.rank == 0
        sender = channel.sender() if first else NullSender()
        return TrainerWorker(trainer, sender, now, spec.adapter)

    def start(self) -> m.WorkerReady:
        """Publish the first weights."""
        self._publish()
        return m.WorkerReady(self.trainer.version)

    def answer(self, message: Any, began: float) -> Any:
        """The answer to a message; `began` is the time at which work on it began."""
        if isinstance(message, m.TrainStep):
            return self._step(message, began)
        if isinstance(message, m.SaveCheckpoint):
            return self._save(Path(message.path))
        if isinstance(message, m.CompareLogprobs):
            return self._score(message)
        if isinstance(message, m.PublishWeights):
            self._publish()
            return m.TrainerDone()
        raise PipelineError(f"the trainer does not understand {type(message).__name__!r}")

    def _step(self, message: m.TrainStep, began: float) -> m.StepDone | m.StepRefused:
        cpu = time.process_time()
        try:
            report = self.trainer.step(message.groups)
        except NonFiniteGradient as error:
            return m.StepRefused(str(error), self.now() - began)
        trained = self.now()
        if message.publish:
            self._publish()
        notes: list[str] = getattr(self.sender, "notes", [])
        if notes:
            report = replace(report, notes=(*report.notes, *notes))
            notes.clear()
        stats: tuple[TokenStats | None, ...] = ()
        if message.recorded and isinstance(self.trainer, KeepsTokenStats):
            stats = self.trainer.token_stats(
                [message.groups[g].episodes[n] for g, n in message.recorded]
            )
        now = self.now()
        spent = time.process_time() - cpu
        return m.StepDone(report, now - began, now - trained, spent, stats)

    def _save(self, path: Path) -> m.TrainerDone:
        if not path.is_dir():  # the loop has made it, on a disk that this machine does not share
            return m.TrainerDone(
                problem=f"the trainer, on {socket.gethostname()}, does not see it: a run over "
                "several machines needs a directory that all of them share"
            )
        try:
            self.trainer.save(path)
        except (OSError, SafetensorError) as error:
            # The loop reports a problem of the disk; the trainer goes on.
            return m.TrainerDone(problem=getattr(error, "strerror", None) or str(error))
        return m.TrainerDone()

    def _publish(self) -> None:
        version, weights = self.trainer.version, self.trainer.weights()
        if self.adapter is not None and weights:  # a simulated trainer has none
            weights = with_proof(weights, version, self.trainer.probe(self.adapter.probe))
        self.sender.publish(version, weights)

    def _score(self, message: m.CompareLogprobs) -> m.TrainerDone:
        """|trainer's log-prob - generator's| of every token that the policy sampled."""
        gaps: list[float] = []
        for group, scored in zip(message.groups, self.trainer.score(message.groups), strict=True):
            for episode, logprobs in zip(group.episodes, scored, strict=True):
                own = np.concatenate([row.logprobs[row.written_N] for row in episode.rows])
                policy = np.concatenate([row.policy_N[row.written_N] for row in episode.rows])
                gaps += abs(logprobs - own)[policy].tolist()
        return m.TrainerDone(gaps=tuple(gaps))
