"""The trainer: a process that learns from one batch after the other and hands over its weights."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from scalerl.algorithm.objective import Prepared, prepare
from scalerl.pipeline import messages as m
from scalerl.pipeline.weights import SharedWeights
from scalerl.pipeline.workers import guarded, load_model
from scalerl.trainer.interface import NonFiniteGradient, StepReport, TokenIds
from scalerl.trainer.local import LocalTrainer
from scalerl.trainer.micro import micro_batches


def run_trainer(conn: Connection, spec: m.TrainerSpec, shared: SharedWeights) -> None:
    """Entry point of the trainer process."""
    guarded(conn, lambda: _Trainer(conn, spec, shared).serve())


class _Trainer:
    """Takes batches in turn; hands over weights when told to."""

    def __init__(self, conn: Connection, spec: m.TrainerSpec, shared: SharedWeights) -> None:
        torch.set_num_threads(spec.threads)
        self.conn = conn
        self.shared = shared
        self.trainer = _make_trainer(spec)
        # A KL term is taken to the starting model, which stays as it is.
        self.reference = _make_trainer(spec) if spec.options.kl_coefficient else None
        if spec.checkpoint is not None:
            self.trainer.load(Path(spec.checkpoint))

    def serve(self) -> None:
        self._publish()
        self.conn.send(m.Ready(self.trainer.version))
        parent = os.getppid()
        while True:
            if not self.conn.poll(1.0):
                if os.getppid() != parent:
                    return  # orphaned by a kill
                continue
            message = self.conn.recv()
            if isinstance(message, m.Stop):
                return
            self.conn.send(self._answer(message))

    def _answer(self, message: Any) -> Any:
        if isinstance(message, m.Step):
            return self._step(message)
        if isinstance(message, m.Save):
            return self._save(Path(message.path))
        if isinstance(message, m.Publish):
            self._publish()
        elif isinstance(message, m.Score):
            return m.Done(_gaps(self.trainer, message))
        return m.Done()

    def _save(self, path: Path) -> m.Done:
        try:
            self.trainer.save(path)
        except (OSError, SafetensorError) as error:  # the disk's affair, not the trainer's
            return m.Done(problem=getattr(error, "strerror", None) or str(error))
        return m.Done()

    def _publish(self) -> None:
        self.shared.publish(self.trainer.weights(), self.trainer.version)

    def _step(self, message: m.Step) -> m.Stepped | m.Refused:
        start = time.perf_counter()
        budget = self.trainer.token_budget
        prepared = prepare(message.groups, self.trainer.options)
        prompt_of = {id(r): g.prompt_token_ids for g in message.groups for r in g.rollouts}
        prompts = [prompt_of[id(r)] for r in prepared.rollouts]
        if self.reference is not None:
            prepared = _with_reference(self.reference, prompts, prepared)
        try:
            report = _smaller_when_full(self.trainer, prompts, prepared)
        except NonFiniteGradient as error:
            names = ", ".join(g.prompt_id for g in message.groups[:4])
            return m.Refused(f"{error}; prompts {names} ...", time.perf_counter() - start)
        if message.publish:
            self._publish()
        return m.Stepped(
            self.trainer.version,
            report.to_dict(),
            prepared.filtered.to_dict(),
            report.forward_tokens,
            sum(len(r) for r in prepared.rollouts),
            time.perf_counter() - start,
            self._notes(budget),
        )

    def _notes(self, budget: int) -> tuple[str, ...]:
        if self.trainer.token_budget == budget:
            return ()
        return (f"memory was short: micro-batches of {self.trainer.token_budget} tokens from now",)


def _make_trainer(spec: m.TrainerSpec) -> LocalTrainer:
    return LocalTrainer(
        load_model(spec.model, spec.dtype, spec.device),
        spec.options,
        spec.optimiser,
        head_precision=spec.head,
        temperature=spec.temperature,
        token_budget=spec.token_budget,
    )


def _smaller_when_full(
    trainer: LocalTrainer, prompts: list[TokenIds], prepared: Prepared
) -> StepReport:
    """One step; where memory does not suffice, with micro-batches of half the size from now on."""
    while True:
        try:
            return trainer.step(prompts, prepared)
        except (RuntimeError, MemoryError) as error:
            if not _is_full(error):
                raise
        longest = max(len(p) + len(r) for p, r in zip(prompts, prepared.rollouts, strict=True))
        if trainer.token_budget <= longest:
            raise MemoryError(
                f"one rollout of {longest} tokens does not fit this device's memory: "
                "lower length.max_tokens, take a smaller model, or more memory"
            )
        trainer.token_budget = max(trainer.token_budget // 2, longest)


def _is_full(error: Exception) -> bool:
    text = str(error).lower()
    known = ("out of memory", "t allocate memory", "not enough memory")
    return isinstance(error, MemoryError) or any(words in text for words in known)


@torch.no_grad()
def _with_reference(
    reference: LocalTrainer, prompts: list[TokenIds], prepared: Prepared
) -> Prepared:
    """The batch with the log-probs of the starting model."""
    reference.model.eval()
    found_BT = torch.zeros(prepared.batch.mask_BT.shape)
    lengths = [len(p) + len(r) for p, r in zip(prompts, prepared.rollouts, strict=True)]
    for rows in micro_batches(lengths, reference.token_budget):
        scored, _ = reference.logprobs(
            [prompts[i] for i in rows], [prepared.rollouts[i].token_ids for i in rows]
        )
        found_BT[torch.tensor(rows), : scored.shape[1]] = scored.float().cpu()
    batch = replace(prepared.batch, reference_logprobs_BT=found_BT)
    return replace(prepared, batch=batch)


@torch.no_grad()
def _gaps(trainer: LocalTrainer, message: m.Score) -> tuple[float, ...]:
    """|trainer's log-prob - generator's| of every token that the policy wrote."""
    out: list[float] = []
    trainer.model.eval()
    for group in message.groups:
        prompts = [group.prompt_token_ids] * len(group.rollouts)
        found, _ = trainer.logprobs(prompts, [r.token_ids for r in group.rollouts])
        for row, rollout in zip(found, group.rollouts, strict=True):
            scored = row[: len(rollout)].cpu().numpy()
            out += abs(scored - rollout.logprobs)[~rollout.forced].tolist()
    return tuple(out)
