"""Generator and trainer as processes: the parts, between a pipe and a weights channel."""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch

from scalerl.engine.interface import Engine, EngineSpec
from scalerl.pipeline import messages as m
from scalerl.placement.child import guarded, orphaned
from scalerl.placement.generator_part import GeneratorPart
from scalerl.placement.trainer_part import TrainerPart
from scalerl.trainer.interface import RankLost, Trainer, TrainerSpec
from scalerl.trainer.meeting import others_there
from scalerl.weights.interface import Channel

#: A part with nothing to do looks for messages and weights this often.
IDLE = 0.01


def run_generator(
    conn: Connection,
    make: Callable[[EngineSpec], Engine],
    spec: EngineSpec,
    channel: Channel,
    deterministic: bool,
) -> None:
    """Entry point of a generator process."""

    def serve() -> None:
        torch.set_num_threads(spec.threads)
        part = GeneratorPart(
            make(spec), channel.receiver(), time.perf_counter, deterministic=deterministic
        )
        ready = part.start()
        while ready is None and not orphaned():
            time.sleep(IDLE)
            ready = part.start()
        conn.send(ready)
        while not orphaned():
            while conn.poll(0 if part.busy else IDLE):
                message = conn.recv()
                if isinstance(message, m.Stop):
                    return
                part.take(message)
            for report in part.work(time.perf_counter()):
                conn.send(report)

    guarded(conn, serve)


def run_trainer(
    conn: Connection, make: Callable[[TrainerSpec], Trainer], spec: TrainerSpec, channel: Channel
) -> None:
    """Entry point of the trainer process, or of one rank of a trainer."""

    def serve() -> None:
        torch.set_num_threads(spec.threads)
        part = TrainerPart.of(make(spec), spec, channel, time.perf_counter)
        conn.send(part.start())
        while not orphaned():
            if not conn.poll(1.0):
                continue
            message = conn.recv()
            if isinstance(message, m.Stop):
                return
            conn.send(part.answer(message, time.perf_counter()))

    def serve_together() -> None:
        try:
            with others_there():
                serve()
        except RankLost as error:
            conn.send(m.Failed(str(error), lost=True))

    guarded(conn, serve if spec.ranks is None else serve_together)
