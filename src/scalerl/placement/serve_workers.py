"""The generator and the trainer as programs: each receives messages, works, and sends the results.

They work over any connection (`connection.py`): a pipe of a process, or the queues of a Ray actor.
The checker's is in `environment_worker.py`, which imports no torch.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from scalerl.engine.interface import Engine, EngineSpec
from scalerl.pipeline import messages as m
from scalerl.placement.child import orphaned
from scalerl.placement.connection import WorkerConnection
from scalerl.placement.generator_worker import GeneratorWorker
from scalerl.placement.trainer_worker import TrainerWorker
from scalerl.trainer.interface import RankLost, Trainer, TrainerSpec
from scalerl.trainer.rendezvous import raising_rank_lost
from scalerl.weights.interface import Channel, close

#: Seconds for which an idle generator waits for a message before it looks for new weights.
IDLE_SECONDS = 0.01
#: Parameter numbers of glibc's mallopt.
M_MMAP_THRESHOLD = -3
M_TRIM_THRESHOLD = -1
#: Bytes from which on an array gets a mapping of its own: 32 MB is the most that glibc accepts.
MMAP_BYTES = 32 * 2**20
#: Bytes of free memory that are kept at the end of the heap: as many as fit the parameter.
KEPT_BYTES = 2**31 - 1


def keep_freed_memory() -> None:
    """Let the C library (glibc) keep memory that this process frees."""
    # A step allocates the same arrays of some megabytes again and again. By default glibc gives
    # each back to the system, which then clears every page anew: ten thousand page faults a step
    # at the default size, 6 % of its time.
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MMAP_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def device_kind(device: str) -> str:
    """The name of a device in the ledger: `cpu`, or the model of the GPU."""
    return torch.cuda.get_device_name() if device.startswith("cuda") else device


def serve_generator(
    connection: WorkerConnection,
    make: Callable[[EngineSpec], Engine],
    spec: EngineSpec,
    channel: Channel,
    deterministic: bool,
) -> None:
    """Run a generator until `StopWorker`."""
    keep_freed_memory()
    torch.set_num_threads(spec.threads)
    worker = GeneratorWorker(
        make(spec), channel.receiver(), time.perf_counter, deterministic=deterministic, spec=spec
    )

    def start(session: int) -> None:
        ready = worker.start()
        while ready is None and not orphaned():
            time.sleep(IDLE_SECONDS)
            ready = worker.start()
        if ready is not None:
            connection.send(replace(ready, device=device_kind(spec.device), session=session))

    start(0)
    while not orphaned():
        while connection.poll(0 if worker.busy else IDLE_SECONDS):
            message = connection.recv()
            if isinstance(message, m.StopWorker):
                close(worker.receiver)
                return
            if isinstance(message, m.SwitchTrainer):
                # In a thread: closing may wait for the old trainer, which is gone.
                threading.Thread(target=close, args=(worker.receiver,), daemon=True).start()
                worker.reset(message.channel.receiver())
                start(message.session)
                continue
            worker.take(message)
        for report in worker.work(time.perf_counter()):
            connection.send(report)


def serve_trainer(
    connection: WorkerConnection,
    make: Callable[[TrainerSpec], Trainer],
    spec: TrainerSpec,
    channel: Channel,
) -> None:
    """Run a trainer, or one rank of it, until `StopWorker`. A rank that has lost another one
    reports that and ends."""

    def serve() -> None:
        keep_freed_memory()
        torch.set_num_threads(spec.threads)
        worker = TrainerWorker.for_rank(make(spec), spec, channel, time.perf_counter)
        connection.send(replace(worker.start(), device=device_kind(spec.device)))
        while not orphaned():
            if not connection.poll(1.0):
                continue
            message = connection.recv()
            if isinstance(message, m.StopWorker):
                close(worker.sender)
                return
            connection.send(worker.answer(message, time.perf_counter()))

    if spec.ranks is None:
        serve()
        return
    try:
        with raising_rank_lost():
            serve()
    except RankLost as error:
        connection.send(m.WorkerFailed(str(error), lost=True))
