"""Generator and trainer behind a line to the main process: the parts, a weights channel, and what
is said on the line. Of a process the line is a pipe; other placements have their own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection

import torch

from scalerl.engine.interface import Engine, EngineSpec
from scalerl.pipeline import messages as m
from scalerl.placement.child import guarded, orphaned
from scalerl.placement.generator_part import GeneratorPart
from scalerl.placement.line import PartLine
from scalerl.placement.memory import keep_freed_memory
from scalerl.placement.trainer_part import TrainerPart
from scalerl.trainer.interface import RankLost, Trainer, TrainerSpec
from scalerl.trainer.rendezvous import raising_rank_lost
from scalerl.weights.interface import Channel, close

#: A part with nothing to do looks for messages and weights this often.
IDLE = 0.01


def device_kind(device: str) -> str:
    """What a device is called in the ledger."""
    return torch.cuda.get_device_name() if device.startswith("cuda") else device


def serve_generator(
    line: PartLine,
    make: Callable[[EngineSpec], Engine],
    spec: EngineSpec,
    channel: Channel,
    deterministic: bool,
) -> None:
    """A generator, until it is told to stop."""
    keep_freed_memory()
    torch.set_num_threads(spec.threads)
    part = GeneratorPart(
        make(spec), channel.receiver(), time.perf_counter, deterministic=deterministic
    )

    def begin(life: int) -> None:
        ready = part.start()
        while ready is None and not orphaned():
            time.sleep(IDLE)
            ready = part.start()
        if ready is not None:
            line.send(replace(ready, device=device_kind(spec.device), life=life))

    begin(0)
    while not orphaned():
        while line.poll(0 if part.busy else IDLE):
            message = line.recv()
            if isinstance(message, m.Stop):
                close(part.receiver)
                return
            if isinstance(message, m.Renew):
                # What the old channel still waits for is nobody's affair.
                threading.Thread(target=close, args=(part.receiver,), daemon=True).start()
                part.renew(message.channel.receiver())
                begin(message.life)
                continue
            part.take(message)
        for report in part.work(time.perf_counter()):
            line.send(report)


def serve_trainer(
    line: PartLine, make: Callable[[TrainerSpec], Trainer], spec: TrainerSpec, channel: Channel
) -> None:
    """A trainer, or one rank of it, until it is told to stop. Of a rank that has lost another, that
    is its last word."""

    def serve() -> None:
        keep_freed_memory()
        torch.set_num_threads(spec.threads)
        part = TrainerPart.of(make(spec), spec, channel, time.perf_counter)
        line.send(replace(part.start(), device=device_kind(spec.device)))
        while not orphaned():
            if not line.poll(1.0):
                continue
            message = line.recv()
            if isinstance(message, m.Stop):
                close(part.sender)
                return
            line.send(part.answer(message, time.perf_counter()))

    if spec.ranks is None:
        serve()
        return
    try:
        with raising_rank_lost():
            serve()
    except RankLost as error:
        line.send(m.Failed(str(error), lost=True))


def run_generator(
    conn: Connection,
    make: Callable[[EngineSpec], Engine],
    spec: EngineSpec,
    channel: Channel,
    deterministic: bool,
) -> None:
    """Entry point of a generator process."""
    guarded(conn, lambda: serve_generator(conn, make, spec, channel, deterministic))


def run_trainer(
    conn: Connection, make: Callable[[TrainerSpec], Trainer], spec: TrainerSpec, channel: Channel
) -> None:
    """Entry point of the trainer process, or of one rank of a trainer."""
    guarded(conn, lambda: serve_trainer(conn, make, spec, channel))
