"""Weights by a broadcast to all generators (`placement.weights = "collective"`): gloo between CPUs,
NCCL between GPUs.

The trainer copies its weights and continues; a thread sends the copy. A generator receives between
two decode steps, piece by piece and straight into its live weights (streaming.py): it has no second
copy of them. A broadcast that breaks off leaves a mixture there, so the generator writes nothing
until it has received a whole set.

A collective hangs when a member is missing, so the members are agreed on first. Each broadcast is a
round, agreed on through keys in a store on the trainer's side:

    sender      round 7: generators 1, 2 and 4
    receivers   here                              (a thread answers while the engine decodes)
    sender      gather 7: generators 1 and 4      (2 did not answer in time: it is dropped, by name)
    receivers   ready                             (between two decode steps: decoding stops)
    sender      go 7: version 12, group 3, generators 1 and 4    (those that were ready in time)
    all         form the group, if it differs from the last one, and broadcast
    receivers   done, or failed                   (then there is another round, in a new group)

A member that dies inside the broadcast ends it for all: at once where its connections close, at the
deadline where it is only silent. A generator that joins, or was dropped and is back, signs up and
takes part in the next round, in a new group; one that was not ready in time takes part in the next.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from copy import copy
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from scalerl.errors import PipelineError
from scalerl.text import first_line
from scalerl.weights.interface import Layout, WeightTarget
from scalerl.weights.streaming import StreamedWeights, pieces_of

#: Seconds after which a generator that does not answer is dropped. A receiver's thread answers
#: while its engine decodes, so that this need not cover a decode step.
ANSWER_SECONDS = 5.0
#: Seconds after which a broadcast fails.
BROADCAST_SECONDS = 60.0
#: Seconds for which generators that are ready wait for one that is not: a decode step, with room.
#: Longer ones, and validations, are not waited for.
READY_SECONDS = 1.0
#: Seconds between two reads of the store.
POLL_SECONDS = 0.01
#: A generator fails that has waited so many deadlines of a broadcast for a whole set of weights.
INTO_FACTOR = 3
#: Failed broadcasts in a row, with all members there, after which the network is taken to be
#: broken.
MAX_FAILURES = 3
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
    """What both ends have: a store, the current process group, and a thread."""

    def __init__(self, channel: CollectiveWeights, work: Callable[[], None]) -> None:
        self.channel, self.layout = channel, channel.layout
        self.store = channel.store()
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

    def join_group(self, group: int, rank: int, size: int) -> None:
        """Form the process group of a round, unless it is the present one."""
        if self._group[0] != group:
            self._group = (-1, None)  # closes the old group's connections first
            self._group = (group, self.channel.group(self.store, group, rank, size))

    def leave_group(self) -> None:
        """Close the connections, which makes the broadcast fail on the other members too, at
        once."""
        self._group = (-1, None)

    def broadcast(self, piece: Tensor) -> None:
        """Broadcast a contiguous tensor from rank 0; raises RuntimeError where a member is gone."""
        whole = piece.view(torch.uint8) if piece.numel() else piece
        self._group[1].broadcast([whole], dist.BroadcastOptions()).wait()
        if piece.is_cuda:
            torch.cuda.synchronize(piece.device)

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
        #: Version of the copy that is sent; -1 before the first.
        self.version = -1
        self.front = torch.empty(0)
        #: Weights that were published during a broadcast, and their version. Made for them only: at
        #: other times there is one copy.
        self._next: tuple[int, Tensor] | None = None
        self._sending = False
        self._signed = self._round = self._number = self._failures = 0
        self._in_group: tuple[int, ...] = ()
        super().__init__(channel, self._run_round)

    def publish(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """Copy the weights; the thread sends the copy while the trainer continues. A version that
        was not sent before the next one is skipped."""
        if self.error is not None:
            raise PipelineError(f"weights cannot be handed over: {self.error}")
        with self.lock:
            if self._sending:
                spare = self._buffer() if self._next is None else self._next[1]
                self._next = (version, spare)
                self._copy(weights, spare)
            else:
                if self.version < 0:
                    self.front = self._buffer()
                self._copy(weights, self.front)
                self.version = version

    def _buffer(self) -> Tensor:
        return torch.zeros(self.layout.size, dtype=self.layout.dtype, device=self.channel.device)

    def _copy(self, weights: Mapping[str, Tensor], flat: Tensor) -> None:
        for name, view in self.layout.views(flat):
            view.copy_(weights[name])
        if flat.is_cuda:
            torch.cuda.synchronize(flat.device)

    def _run_round(self) -> None:
        """Send the newest weights to the generators that do not have them."""
        self._admit_new()
        behind = [i for i, version in self.members.items() if version != self.version]
        if self.version < 0 or not behind:
            time.sleep(POLL_SECONDS)
            return
        ready = self._agree_on_members(behind)
        if ready:
            self._broadcast_round(ready)

    def _admit_new(self) -> None:
        """Take in the generators that have signed up since."""
        for i in range(self._signed + 1, self.store.add("signed", 0) + 1):
            key = f"name/{i}"
            named = self.wait_until(ANSWER_SECONDS, lambda key=key: self.store.check([key]))  # type: ignore[misc]
            self.names[i] = self._text(key) if named else "a generator"
            self.members[i], self._signed = -1, i

    def _agree_on_members(self, members: list[int]) -> list[int]:
        """Announce a round; returns the members that are ready for it."""
        self._round += 1
        n = self._round
        self._announce(f"round/{n}", {"members": members})
        self.store.add("rounds", 1)
        here = self._answered("here", members, ANSWER_SECONDS)
        for i in members:
            if i not in here and not self.closed:
                self._drop(i, f"did not answer within {ANSWER_SECONDS:.0f} s")
        self._announce(f"gather/{n}", {"version": self.version, "members": here})
        ready = self._answered("ready", here, READY_SECONDS)
        if not ready:
            self._announce(f"go/{n}", {"members": []})
        self._forget(n - KEPT_ROUNDS)
        return ready

    def _answered(self, kind: str, members: list[int], seconds: float) -> list[int]:
        """Those of the members that have answered, once all have or the time is over."""
        keys = {i: f"{kind}/{self._round}/{i}" for i in members}
        if keys:
            self.wait_until(seconds, lambda: self.store.check(list(keys.values())))
        return [i for i, key in keys.items() if self.store.check([key])]

    def _broadcast_round(self, ready: list[int]) -> None:
        """Broadcast to these members and record which of them have the weights."""
        n = self._round
        if tuple(ready) != self._in_group or self._group[1] is None:
            self._number, self._in_group = self._number + 1, tuple(ready)
        with self.lock:  # from here on `publish` leaves the copy alone
            self._sending, version = True, self.version
        go = {"version": version, "group": self._number, "members": ready}
        self._announce(f"go/{n}", go)
        found = self._send(len(ready) + 1)
        ended = self._answered("end", ready, ANSWER_SECONDS)
        for i in ready:
            if i in ended and self._text(f"end/{n}/{i}") == "done":
                self.members[i] = version
            else:
                # The next round forms a new group; a dead member does not answer it.
                self._in_group = ()
        with self.lock:
            self._sending = False
            if self._next is not None:
                (self.version, self.front), self._next = self._next, None
        self._failures = 0 if found == "done" else self._failures + 1
        if self._failures >= MAX_FAILURES:
            raise PipelineError(
                f"{found}; {self._failures} broadcasts failed with all members there: check the "
                "network between the nodes, or set placement.weights=auto"
            )

    def _send(self, size: int) -> str:
        """Broadcast the copy; returns "done", or the error."""
        try:
            self.join_group(self._number, 0, size)
            for piece in pieces_of(self.layout):
                self.broadcast(self.front[piece.start : piece.stop])
        except RuntimeError as error:  # another member is gone or late
            self.leave_group()
            return first_line(error)
        return "done"

    def _drop(self, i: int, why: str) -> None:
        del self.members[i]
        self.notes.append(
            f"weights: {self.names[i]} {why}: the broadcast goes on without it, and takes it in "
            "again when it answers"
        )
        self.store.set(f"dropped/{i}", "")

    def _forget(self, n: int) -> None:
        if n > 0:
            for key in (f"round/{n}", f"gather/{n}", f"go/{n}"):
                self.store.delete_key(key)
            for kind in ("here", "ready", "end"):
                for i in range(1, self._signed + 1):
                    self.store.delete_key(f"{kind}/{n}/{i}")

    def _announce(self, key: str, value: dict[str, Any]) -> None:
        self.store.set(key, json.dumps(value))

    def _text(self, key: str) -> str:
        return str(self.store.get(key).decode())


class CollectiveReceiver(BroadcastEnd):
    """A generator's end of the channel. Its thread agrees on rounds; the engine's thread, inside
    `into`, receives."""

    def __init__(self, channel: CollectiveWeights) -> None:
        #: Version that was loaded last.
        self._version = -1
        #: Newest version that a round is about to send.
        self._announced = -1
        #: Whether the engine's thread waits for weights.
        self._inside = threading.Event()
        #: The rounds that the engine's thread is to receive, and how each ended.
        self._rounds: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._ends: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._i = self._next = 0
        super().__init__(channel, self._run_round)

    def newest(self) -> int:
        if self.error is not None:
            raise PipelineError(f"weights do not arrive: {self.error}")
        return max(self._announced, self._version)

    def into(self, engine: WeightTarget) -> int:
        """Load the newest weights, unless they are loaded already; waits for a round that sends
        them whole."""
        if self.newest() <= self._version:
            return self._version
        until = time.monotonic() + INTO_FACTOR * self.channel.deadline
        self._inside.set()
        try:
            while not self._receive(engine):
                self.newest()  # raises where the thread has failed
                if time.monotonic() > until:
                    raise PipelineError(
                        f"weights do not arrive: no broadcast of version {self._announced} was "
                        f"completed within {INTO_FACTOR * self.channel.deadline:.0f} s"
                    )
        finally:
            self._inside.clear()
        return self._version

    def _receive(self, engine: WeightTarget) -> bool:
        """Take part in a round, if there is one; whether a whole set was loaded."""
        try:
            go = self._rounds.get(timeout=POLL_SECONDS)
        except queue.Empty:
            return False
        members = go["members"]
        arriving = StreamedWeights(self.layout, self.channel.device, self._receive_piece)
        end, again = "failed", ""
        try:
            try:
                self.join_group(go["group"], 1 + members.index(self._i), len(members) + 1)
            except RuntimeError as error:
                raise BrokenBroadcast(first_line(error)) from None
            try:
                engine.load(arriving, go["version"])
            finally:
                arriving.finish()
            self._version, end = go["version"], "done"
        except BrokenBroadcast as error:  # another member is gone or late: there is another round
            self.leave_group()
            end = again = str(error)
        finally:
            # Before the thread goes on to the next round: this one is not ready for it, unless it
            # stays in `into`.
            if not again:
                self._inside.clear()
            self._ends.put(end)
        return end == "done"

    def _receive_piece(self, piece: Tensor) -> None:
        try:
            self.broadcast(piece)
        except RuntimeError as error:
            raise BrokenBroadcast(first_line(error)) from None

    def _sign_up(self) -> None:
        # Rounds that were announced before belong to the time before this generator.
        self._next = self.store.add("rounds", 0) + 1
        self._i = self.store.add("signed", 1)
        self.store.set(f"name/{self._i}", multiprocessing.current_process().name)

    def _run_round(self) -> None:
        """Agree on the next round, if there is one."""
        if not self._i or self.store.check([f"dropped/{self._i}"]):
            self._sign_up()
        n = self._next
        if not self.wait_until(1.0, lambda: self.store.check([f"round/{n}"])):
            return
        self._next += 1
        if not self._is_in("round", n):
            return
        self.store.set(f"here/{n}/{self._i}", "")
        # Twice, since the sender itself waits up to ANSWER_SECONDS for the other members.
        if not self.wait_until(2 * ANSWER_SECONDS, lambda: self.store.check([f"gather/{n}"])):
            return
        if not self._is_in("gather", n):
            return
        self._announced = max(self._announced, self._read("gather", n)["version"])
        gone = partial(self.store.check, [f"go/{n}"])
        if not self.wait_until(2 * ANSWER_SECONDS, lambda: self._inside.is_set() or gone()):
            return
        if self._inside.is_set():
            self.store.set(f"ready/{n}/{self._i}", "")
        if self.wait_until(2 * ANSWER_SECONDS, gone) and self._is_in("go", n):
            self._rounds.put(self._read("go", n))
            self.store.set(f"end/{n}/{self._i}", self._ends.get())

    def _read(self, kind: str, n: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.store.get(f"{kind}/{n}"))
        return found

    def _is_in(self, kind: str, n: int) -> bool:
        """Whether this generator is among the members of a round."""
        return self._i in self._read(kind, n)["members"]


class BrokenBroadcast(Exception):
    """A broadcast that broke off: what was received so far is not whole."""
