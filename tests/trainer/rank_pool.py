"""Rank processes that tests give work to: kept, and forked from one that has imported torch."""

import contextlib
import multiprocessing
import traceback
from dataclasses import replace

import torch.distributed as dist

from scalerl.trainer.interface import RankSpec
from scalerl.trainer.rendezvous import rendezvous_store

#: Seconds for a job: a busy machine is no broken one.
LIMIT = 600.0


def serve(conn):
    import torch

    torch.set_num_threads(1)
    while (job := conn.recv()) is not None:
        number, work, ranks, arguments = job
        try:
            found = (True, work(ranks, *arguments))
        except BaseException:
            found = (False, traceback.format_exc())
        with contextlib.suppress(ValueError, AssertionError):
            dist.destroy_process_group()
        conn.send((number, *found))


class RankPool:
    def __init__(self, size):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["scalerl.trainer.fsdp", "transformers"])
        pipes = [context.Pipe() for _ in range(size)]
        self.processes = [
            context.Process(target=serve, args=(theirs,), daemon=True) for _, theirs in pipes
        ]
        self.conns = [ours for ours, _ in pipes]
        for process in self.processes:
            process.start()
        self.jobs = 0

    def run(self, ranks, work, *arguments, deadline=300.0):
        """`work(RankSpec, *arguments)` on so many ranks; what each returned."""
        store, port = rendezvous_store("127.0.0.1")
        place = RankSpec(0, ranks, "127.0.0.1", port, "lo", deadline)
        self.jobs += 1
        for rank in range(ranks):
            self.conns[rank].send((self.jobs, work, replace(place, rank=rank), arguments))
        found = [self._answer(rank) for rank in range(ranks)]
        del store
        for rank, (fine, value) in enumerate(found):
            assert fine, f"rank {rank} of {ranks}: {value}"
        return [value for _, value in found]

    def _answer(self, rank):
        """Of this job: what a job before it left unanswered may still come."""
        while self.conns[rank].poll(LIMIT):
            number, *found = self.conns[rank].recv()
            if number == self.jobs:
                return found
        raise AssertionError(f"rank {rank} does not answer")

    def close(self):
        for conn, process in zip(self.conns, self.processes, strict=True):
            with contextlib.suppress(OSError):
                conn.send(None)
            process.join(5)
            process.kill()
