"""The Ray actor that holds one worker, between two queues.

Imports no torch, so that checkers, which need none, start quickly.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import queue
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from scalerl.pipeline import messages as m
from scalerl.placement.child import failure
from scalerl.placement.connection import QueueConnection
from scalerl.placement.ray_cluster import interface_of


class WorkerActor:
    """One worker in a process of its own, on any node. Ray calls the methods of one concurrency
    group (`ray_crew._actor_class`) one after the other, in order."""

    def __init__(self, name: str) -> None:
        self.name = multiprocessing.current_process().name = name
        self.connection = QueueConnection()
        self.over = threading.Event()
        self._rendezvous_stores: list[Any] = []

    def __repr__(self) -> str:
        return self.name

    def where(self) -> tuple[int, str, str]:
        """Process id, host name, and the address that other nodes see."""
        import ray

        return os.getpid(), socket.gethostname(), ray.util.get_node_ip_address()

    def open_rendezvous(self) -> tuple[str, int]:
        """Where the ranks of a trainer, or the two ends of a weights channel, meet: this one keeps
        the place."""
        from scalerl.trainer.rendezvous import rendezvous_store

        address = self.where()[2]
        store, port = rendezvous_store(address)
        self._rendezvous_stores.append(store)
        return address, port

    def begin(self, serve: Callable[..., None], *arguments: Any) -> None:
        """Start the worker in a thread."""

        def work() -> None:
            try:
                serve(self.connection, *(_placed(a, self.where()[2]) for a in arguments))
            except Exception as error:  # reported by the main process
                self.connection.send(failure(error))
            self.over.set()

        threading.Thread(target=work, daemon=True, name="worker").start()

    def deliver(self, messages: bytes) -> None:
        """Put messages into the worker's inbox."""
        # Plain pickles: Ray's own serialiser, which can send code too, takes several times as long.
        for message in pickle.loads(messages):
            self.connection.inbox.put(message)

    def switch_trainer(self, channel: Any, session: int) -> None:
        self.connection.inbox.put(m.SwitchTrainer(channel, session))

    def collect(self, seconds: float, gather: float) -> bytes:
        """All messages of the worker since the last call, after waiting at most `seconds` for the
        first, and then `gather` seconds for more: a call costs both sides a millisecond or two."""
        found: list[Any] = []
        with contextlib.suppress(queue.Empty):
            found.append(self.connection.outbox.get(timeout=seconds))
            time.sleep(gather)
            while True:
                found.append(self.connection.outbox.get_nowait())
        try:
            return pickle.dumps(found)
        except Exception as error:  # a user's verifier may return what cannot be pickled
            return pickle.dumps([failure(error)])

    def end(self, seconds: float) -> bool:
        """Whether the worker has ended, after waiting at most `seconds`."""
        return self.over.wait(seconds)


def _placed(argument: Any, address: str) -> Any:
    """Bind a rank, or an end of a weights channel, to the network interface of its node that the
    other nodes reach."""
    if hasattr(argument, "with_interface"):
        return argument.with_interface(interface_of(address))
    ranks = getattr(argument, "ranks", None)
    if ranks is None:
        return argument
    return replace(argument, ranks=replace(ranks, interface=interface_of(address)))
