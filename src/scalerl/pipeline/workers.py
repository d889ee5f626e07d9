"""The two kinds of worker processes: a generator around an engine, and the trainer."""

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from scalerl.algorithm.logits import use_head_precision
from scalerl.algorithm.objective import prepare
from scalerl.engine.local import LocalEngine
from scalerl.errors import InputError
from scalerl.pipeline import messages as m
from scalerl.pipeline.weights import SharedWeights
from scalerl.trainer.interface import NonFiniteGradient
from scalerl.trainer.local import LocalTrainer

#: A generator with nothing to do looks for messages this often.
IDLE = 0.01
#: A generator reports at least this often, so that the loop sees it is alive.
HEARTBEAT = 0.5


def load_model(path: str, dtype: str, device: str) -> Any:
    """A causal LM from a directory or hub id."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype))
    except (OSError, ValueError) as error:
        raise InputError(f"model {path}: {str(error).splitlines()[0]}") from None
    return model.to(device)


def run_generator(conn: Connection, spec: m.GeneratorSpec, shared: SharedWeights) -> None:
    """Entry point of a generator process."""
    _guarded(conn, lambda: _Generator(conn, spec, shared).serve())


def run_trainer(conn: Connection, spec: m.TrainerSpec, shared: SharedWeights) -> None:
    """Entry point of the trainer process."""
    _guarded(conn, lambda: _serve_trainer(conn, spec, shared))


def _guarded(conn: Connection, serve: Callable[[], None]) -> None:
    """Ctrl-C is for the main process; what goes wrong here is told to it in one line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        serve()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the main process is gone: nothing is left to do
    except Exception as error:  # told, not hidden
        text = str(error).splitlines()
        conn.send(m.Failed(f"{type(error).__name__}: {text[0] if text else ''}"))


class _Generator:
    """Takes requests, weights and decode steps in turn."""

    def __init__(self, conn: Connection, spec: m.GeneratorSpec, shared: SharedWeights) -> None:
        torch.set_num_threads(spec.threads)
        self.conn = conn
        self.shared = shared
        model = load_model(spec.model, spec.dtype, spec.device)
        use_head_precision(model, spec.head)
        self.training = LocalEngine(model, slots=spec.slots, columns=spec.columns)
        self.validation = LocalEngine(model, slots=spec.slots, columns=spec.columns)
        self.seconds: dict[str, float] = defaultdict(float)
        self.parent = os.getppid()
        self.told = time.monotonic()
        self.tokens = 0

    def serve(self) -> None:
        self._load()
        self.conn.send(m.Ready(self.training.version))
        while True:
            busy = bool(self._engine().running or self._engine().waiting)
            while self.conn.poll(0 if busy else IDLE):
                message = self.conn.recv()
                if isinstance(message, m.Stop):
                    return
                self._take(message)
                busy = True
            if os.getppid() != self.parent:
                return  # orphaned by a kill
            self._work()

    def _engine(self) -> LocalEngine:
        """Validation goes first; training rollouts stand still meanwhile."""
        validating = self.validation.running or self.validation.waiting
        return self.validation if validating else self.training

    def _take(self, message: m.Submit) -> None:
        if message.validation:
            while self.shared.version < message.version and os.getppid() == self.parent:
                time.sleep(IDLE)
            self._load()
            self.validation.version = self.training.version
            self.validation.submit(message.requests)
        else:
            self.training.submit(message.requests)

    def _load(self) -> None:
        """The newest weights, if they are new."""
        start = time.perf_counter()
        while self.shared.version != self.training.version or self.training.version < 0:
            ticket = self.shared.ticket()
            weights, version = self.shared.read()
            if version < 0:
                time.sleep(IDLE)
                continue
            self.training.load_weights(weights, version)
            if self.shared.intact(ticket):
                break
        self.seconds["load"] += time.perf_counter() - start

    def _work(self) -> None:
        engine = self._engine()
        validating = engine is self.validation
        if not validating and self.shared.version != self.training.version:
            self._load()
        start = time.perf_counter()
        before = engine.written_tokens
        finished = engine.step()
        written = engine.written_tokens - before
        kind = "validate" if validating else ("generate" if written else "wait")
        self.seconds[kind] += time.perf_counter() - start if written else IDLE
        self.tokens += written if not validating else 0
        if finished or time.monotonic() - self.told > HEARTBEAT:
            self.conn.send(
                m.Finished(
                    tuple(finished),
                    validating,
                    self.training.version,
                    dict(self.seconds),
                    self.tokens,
                    len(self.training.running) + len(self.training.waiting),
                )
            )
            self.seconds.clear()
            self.tokens = 0
            self.told = time.monotonic()


def _serve_trainer(conn: Connection, spec: m.TrainerSpec, shared: SharedWeights) -> None:
    torch.set_num_threads(spec.threads)
    model = load_model(spec.model, spec.dtype, spec.device)
    trainer = LocalTrainer(
        model,
        spec.options,
        spec.optimiser,
        head_precision=spec.head,
        temperature=spec.temperature,
        token_budget=spec.token_budget,
    )
    if spec.checkpoint is not None:
        trainer.load(Path(spec.checkpoint))
    shared.publish(trainer.weights(), trainer.version)
    conn.send(m.Ready(trainer.version))
    parent = os.getppid()
    while True:
        if not conn.poll(1.0):
            if os.getppid() != parent:
                return
            continue
        message = conn.recv()
        if isinstance(message, m.Stop):
            return
        if isinstance(message, m.Step):
            conn.send(_step(trainer, message, shared))
        elif isinstance(message, m.Save):
            trainer.save(Path(message.path))
            conn.send(m.Done())
        elif isinstance(message, m.Publish):
            shared.publish(trainer.weights(), trainer.version)
            conn.send(m.Done())
        elif isinstance(message, m.Score):
            conn.send(m.Done(_gaps(trainer, message)))


def _step(trainer: LocalTrainer, message: m.Step, shared: SharedWeights) -> m.Stepped | m.Failed:
    start = time.perf_counter()
    prepared = prepare(message.groups, trainer.options)
    prompt_of = {id(r): g.prompt_token_ids for g in message.groups for r in g.rollouts}
    try:
        report = trainer.step([prompt_of[id(r)] for r in prepared.rollouts], prepared)
    except NonFiniteGradient as error:
        names = ", ".join(g.prompt_id for g in message.groups[:4])
        return m.Failed(f"{error}; prompts {names} ...")
    if message.publish:
        shared.publish(trainer.weights(), trainer.version)
    return m.Stepped(
        trainer.version,
        report.to_dict(),
        prepared.filtered.to_dict(),
        report.forward_tokens,
        time.perf_counter() - start,
    )


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
