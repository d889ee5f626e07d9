"""Weights by a broadcast to all generators (`placement.weights = "collective"`): gloo between CPUs,
NCCL between GPUs.

Both ends have a thread and two buffers: the trainer copies its weights and continues; a broadcast
fills the buffer that the engine does not read, while the engine decodes.

A collective hangs when a member is missing, so the members are agreed on first. Each broadcast is a
round, agreed on through keys in a store on the trainer's side:

    sender      round 7: version 12, generators 1, 2 and 4
    receivers   here                              (each writes its own key)
    sender      go: group 3, generators 1 and 4   (2 did not answer in time: it is dropped, by name)
    all         form the group, if it differs from the last one, and broadcast
    receivers   done, or failed                   (then there is another round, in a new group)

A member that dies inside the broadcast ends it for all: at once where its connections close, at the
deadline where it is only silent. A generator that joins, or was dropped and is back, signs up and
takes part in the next round, in a new group.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Mapping
from copy import copy
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from scalerl.errors import PipelineError
from scalerl.text import first_line
from scalerl.weights.interface import Layout, WeightTarget

#: Seconds after which a generator that does not answer is dropped. A receiver's thread answers
#: while its engine decodes, so that this need not cover a decode step.
ANSWER_SECONDS = 5.0
#: Seconds after which a broadcast fails.
BROADCAST_SECONDS = 60.0
#: Seconds between two reads of the store.
POLL_SECONDS = 0.01
#: Failed broadcasts in a row, with all members there, after which the network is taken to be
#: broken.
MAX_FAILURES = 3
#: Bytes per broadcast call.
PIECE_BYTES = 256 << 20
#: Rounds that stay in the store; older ones are deleted. A receiver that is behind still finds the
#: rounds that it has not read.
KEPT_ROUNDS = 64


class CollectiveWeights:
    """The channel. The placement sets where its ends meet (`set_rendezvous`)."""

    across_processes = True
    across_machines = True

    def __init__(self, layout: Layout) -> None:
        self.layout, self.device = layout, "cpu"
        self.address: tuple[str, int] | None = None
        self.interface: str | None = None
        self.deadline = BROADCAST_SECONDS

    def set_rendezvous(self, host: str, port: int, interface: str | None, device: str) -> None:
        """Set the address of the store, the network interface and the device of the buffers."""
        self.address, self.interface, self.device = (host, port), interface, device

    def with_interface(self, interface: str | None) -> CollectiveWeights:
        """The same channel for a node that the others reach through this network interface."""
        found = copy(self)
        found.interface = interface
        return found

    def store(self) -> TCPStore:
        """Connect to the store."""
        assert self.address is not None, "the placement must call set_rendezvous first"
        if self.interface is not None:
            os.environ["GLOO_SOCKET_IFNAME"] = self.interface
            os.environ["NCCL_SOCKET_IFNAME"] = self.interface
        limit = timedelta(seconds=self.deadline)
        return TCPStore(*self.address, is_master=False, timeout=limit)

    def group(self, store: Store, number: int, rank: int, size: int) -> Any:
        """A process group of its own, not torch's default one: the trainer's ranks, or vLLM, own
        that."""
        limit, own = timedelta(seconds=self.deadline), PrefixStore(f"group/{number}", store)
        if not self.device.startswith("cuda"):
            return dist.ProcessGroupGloo(own, rank, size, limit)
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = limit
        return dist.ProcessGroupNCCL(own, rank, size, options)

    def sender(self) -> CollectiveSender:
        return CollectiveSender(self)

    def receiver(self) -> CollectiveReceiver:
        return CollectiveReceiver(self)


class BroadcastEnd:
    """What both ends have: a store, two buffers, the current process group, and a thread."""

    def __init__(self, channel: CollectiveWeights, work: Callable[[], None]) -> None:
        self.channel, self.layout = channel, channel.layout
        self.store = channel.store()
        self.front, self.back = self.layout.two_buffers(channel.device)
        self.lock = threading.Lock()
        self.error: Exception | None = None
        self.closed = False
        self._group: tuple[int, Any] = (-1, None)
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            while not self.closed:
                work()
        except Exception as error:
            # Kept for `publish` and `newest`, which raise it: an error in a thread would be lost.
            self.error = error
        self._group = (-1, None)

    def close(self) -> None:
        """Leave the channel."""
        self.closed = True
        self._thread.join(self.channel.deadline)

    def broadcast(self, group: int, rank: int, size: int, flat: Tensor) -> str:
        """Broadcast a buffer from rank 0; returns "done", or the error."""
        try:
            if self._group[0] != group:
                self._group = (-1, None)  # closes the old group's connections first
                self._group = (group, self.channel.group(self.store, group, rank, size))
            whole = flat.view(torch.uint8)
            for piece in whole.split(PIECE_BYTES):  # type: ignore[no-untyped-call]
                self._group[1].broadcast([piece], dist.BroadcastOptions()).wait()
            if flat.is_cuda:
                torch.cuda.synchronize(flat.device)
        except RuntimeError as error:  # another member is gone or late
            # Closing the connections makes the broadcast fail on the other members too, at once.
            self._group = (-1, None)
            return first_line(error)
        return "done"

    def wait_until(self, seconds: float, until: Callable[[], bool]) -> bool:
        """Wait for a condition; returns whether it came true in time."""
        end = time.monotonic() + seconds
        while not (found := until()) and time.monotonic() < end and not self.closed:
            time.sleep(POLL_SECONDS)
        return found


class CollectiveSender(BroadcastEnd):
    """The trainer's end of the channel."""

    def __init__(self, channel: CollectiveWeights) -> None:
        #: Version that each generator has, by the number under which it signed up.
        self.members: dict[int, int] = {}
        #: Name of each generator, by the same number.
        self.names: dict[int, str] = {}
        #: Warnings for the user.
        self.notes: list[str] = []
        self.version = self._staged = -1
        self._signed = self._round = self._number = self._failures = 0
        self._in_group: tuple[int, ...] = ()
        super().__init__(channel, self._run_round)

    def publish(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """Copy the weights; the thread sends the copy while the trainer continues. A version that
        was not sent before the next one is skipped."""
        if self.error is not None:
            raise PipelineError(f"weights cannot be handed over: {self.error}")
        with self.lock:
            for name, view in self.layout.views(self.back):
                view.copy_(weights[name])
            if self.back.is_cuda:
                torch.cuda.synchronize(self.back.device)
            self._staged = version

    def _run_round(self) -> None:
        """Send the newest weights to the generators that do not have them."""
        with self.lock:
            # Only between broadcasts, in this thread: `publish` never touches the front buffer.
            if self._staged > self.version:
                self.front, self.back = self.back, self.front
                self.version = self._staged
        self._admit_new()
        behind = [i for i, version in self.members.items() if version != self.version]
        if self.version < 0 or not behind:
            time.sleep(POLL_SECONDS)
            return
        here = self._agree_on_members(behind)
        if here:
            self._broadcast_round(here)

    def _admit_new(self) -> None:
        """Take in the generators that have signed up since."""
        for i in range(self._signed + 1, self.store.add("signed", 0) + 1):
            key = f"name/{i}"
            named = self.wait_until(ANSWER_SECONDS, lambda key=key: self.store.check([key]))  # type: ignore[misc]
            self.names[i] = self._text(key) if named else "a generator"
            self.members[i], self._signed = -1, i

    def _agree_on_members(self, members: list[int]) -> list[int]:
        """Announce a round; returns the members that answered."""
        self._round += 1
        n = self._round
        self._announce(f"round/{n}", {"version": self.version, "members": members})
        self.store.add("rounds", 1)
        self.wait_until(
            ANSWER_SECONDS, lambda: self.store.check([f"here/{n}/{i}" for i in members])
        )
        here = [i for i in members if self.store.check([f"here/{n}/{i}"])]
        for i in members:
            if i not in here and not self.closed:
                self._drop(i, f"did not answer within {ANSWER_SECONDS:.0f} s")
        if tuple(here) != self._in_group or self._group[1] is None:
            self._number, self._in_group = self._number + 1, tuple(here)
        self._announce(f"go/{n}", {"group": self._number, "members": here})
        self._forget(n - KEPT_ROUNDS)
        return here

    def _broadcast_round(self, here: list[int]) -> None:
        """Broadcast to these members and record which of them have the weights."""
        n = self._round
        found = self.broadcast(self._number, 0, len(here) + 1, self.front)
        self.wait_until(ANSWER_SECONDS, lambda: self.store.check([f"end/{n}/{i}" for i in here]))
        for i in here:
            end = self._text(f"end/{n}/{i}") if self.store.check([f"end/{n}/{i}"]) else "silent"
            if end == "done":
                self.members[i] = self.version
            else:
                # The next round forms a new group; a dead member does not answer it.
                self._in_group = ()
        self._failures = 0 if found == "done" else self._failures + 1
        if self._failures >= MAX_FAILURES:
            raise PipelineError(
                f"{found}; {self._failures} broadcasts failed with all members there: check the "
                "network between the nodes, or set placement.weights=auto"
            )

    def _drop(self, i: int, why: str) -> None:
        del self.members[i]
        self.notes.append(
            f"weights: {self.names[i]} {why}: the broadcast goes on without it, and takes it in "
            "again when it answers"
        )
        self.store.set(f"dropped/{i}", "")

    def _forget(self, n: int) -> None:
        if n > 0:
            for key in (f"round/{n}", f"go/{n}"):
                self.store.delete_key(key)
            for kind in ("here", "end"):
                for i in range(1, self._signed + 1):
                    self.store.delete_key(f"{kind}/{n}/{i}")

    def _announce(self, key: str, value: dict[str, Any]) -> None:
        self.store.set(key, json.dumps(value))

    def _text(self, key: str) -> str:
        return str(self.store.get(key).decode())


class CollectiveReceiver(BroadcastEnd):
    """A generator's end of the channel."""

    def __init__(self, channel: CollectiveWeights) -> None:
        self._version = -1
        self._i = self._next = 0
        super().__init__(channel, self._run_round)

    def newest(self) -> int:
        if self.error is not None:
            raise PipelineError(f"weights do not arrive: {self.error}")
        return self._version

    def into(self, engine: WeightTarget) -> int:
        # The lock keeps the thread from swapping the buffers; it may fill the back one meanwhile.
        with self.lock:
            if self.newest() >= 0:
                engine.load(dict(self.layout.views(self.front)), self._version)
            return self._version

    def _sign_up(self) -> None:
        # Rounds that were announced before belong to the time before this generator.
        self._next = self.store.add("rounds", 0) + 1
        self._i = self.store.add("signed", 1)
        self.store.set(f"name/{self._i}", multiprocessing.current_process().name)

    def _run_round(self) -> None:
        """Take part in the next round, if there is one."""
        if not self._i or self.store.check([f"dropped/{self._i}"]):
            self._sign_up()
        n, i = self._next, self._i
        if not self.wait_until(1.0, lambda: self.store.check([f"round/{n}"])):
            return
        self._next += 1
        asked = json.loads(self.store.get(f"round/{n}"))
        if i not in asked["members"]:
            return
        self.store.set(f"here/{n}/{i}", "")
        # Twice, since the sender itself waits up to ANSWER_SECONDS for the other members.
        if not self.wait_until(2 * ANSWER_SECONDS, lambda: self.store.check([f"go/{n}"])):
            return
        go = json.loads(self.store.get(f"go/{n}"))
        if i not in go["members"]:
            return
        rank = 1 + go["members"].index(i)
        end = self.broadcast(go["group"], rank, len(go["members"]) + 1, self.back)
        if end == "done":
            with self.lock:
                self.front, self.back = self.back, self.front
                self._version = asked["version"]
        self.store.set(f"end/{n}/{i}", end)
