"""How long do new weights take from the trainer to all generators?

python benchmarks/hand_over.py             all sizes, 1, 2 and 4 generators; saves
python benchmarks/hand_over.py --quick     the tiny model; saves nothing
python benchmarks/hand_over.py --memory    only the memory of a receiver of 0.5B; saves

Random weights in BF16 of three shapes (about the tiny model's, SmolLM2-135M's, Qwen2.5-0.5B's)
through each channel, to processes of this machine that copy them as an engine does. Three times:

    publish   the trainer is held up
    load      a generator is held up (the slowest one's copy)
    arrive    from the begin of `publish` until the last generator has them loaded

All of them share two cores, on which copies of four generators take turns. The memory of a receiver
is the peak of its process while it takes three versions, above what it had before its model, as a
multiple of the weights: the model itself is 1.
"""

from __future__ import annotations

import argparse
import os
import secrets
import statistics
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_worker_niceness", "0")

import torch
import torch.multiprocessing
from torch import Tensor

from cluster import patiently
from record import save
from scalerl.placement.processes import HERE, LOOPBACK
from scalerl.trainer.rendezvous import rendezvous_store
from scalerl.weights.collective import CollectiveWeights
from scalerl.weights.interface import Layout
from scalerl.weights.ray_objects import RayWeights
from scalerl.weights.shared_memory import SharedWeights
from scalerl.weights.streaming import StreamedWeights
from scalerl.weights.version_registry import VersionRegistry

GENERATORS = (1, 2, 4)
#: Hand-overs of each kind, after one that is not counted.
ROUNDS = {"tiny": 20, "135M": 5, "0.5B": 3}
#: Versions that a receiver takes while its memory is measured, after the first.
MEMORY_ROUNDS = 3
#: What the tables say of a model of 8.03 billion parameters in BF16.
LARGE = 8.03e9 * 2


def shapes() -> dict[str, dict[str, Any]]:
    """Llama shapes: layers, width, inner width, heads, heads of keys, vocabulary."""
    return {
        "tiny": {"n": 2, "d": 64, "i": 160, "h": 4, "kv": 2, "v": 32},
        "135M": {"n": 30, "d": 576, "i": 1536, "h": 9, "kv": 3, "v": 49152},
        "0.5B": {"n": 24, "d": 896, "i": 4864, "h": 14, "kv": 2, "v": 151936},
    }


def layout_of(name: str) -> Layout:
    s = shapes()[name]
    d, key = s["d"], s["kv"] * s["d"] // s["h"]
    block = [(d, d), (key, d), (key, d), (d, d), (s["i"], d), (s["i"], d), (d, s["i"]), (d,), (d,)]
    sizes = [(s["v"], d), *block * s["n"], (d,)]  # a tied head
    return Layout(tuple(map(str, range(len(sizes)))), tuple(sizes), torch.bfloat16)


class Taker:
    """A generator's end, and a model that weights are copied into."""

    def __init__(self, channel: Any) -> None:
        torch.set_num_threads(1)
        self.receiver = channel.receiver()
        self.before = resident()
        views = channel.layout.views(torch.zeros(channel.layout.size, dtype=channel.layout.dtype))
        self.model: dict[str, Tensor] = dict(views)

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        if isinstance(weights, StreamedWeights):
            weights.write_into(self.model)
            return
        for name, tensor in weights.items():
            self.model[name].copy_(tensor)

    def take(self, version: int) -> tuple[float, float]:
        """Seconds of the copy, and when it was made."""
        while self.receiver.newest() < version:
            time.sleep(0.0005)
        began = time.monotonic()
        self.receiver.into(self)
        done = time.monotonic()
        if version >= 0 and float(self.model["0"].flatten()[0]) != version % 128:
            raise AssertionError("other weights than were sent")
        return done - began, done


def resident(peak: bool = False) -> int:
    """Bytes of this process in memory, shared ones included: now, or at most so far."""
    key = "VmHWM:" if peak else "VmRSS:"
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(key)).split()[1])


def taker_process(conn: Connection, channel: Any) -> None:
    taker = Taker(channel)
    conn.send(None)
    while (version := conn.recv()) is not None:
        conn.send(taker.take(version))
        if version == MEMORY_ROUNDS:
            conn.send(resident(peak=True) - taker.before)


def memory() -> list[dict[str, Any]]:
    """Peak memory of a receiver of 0.5B by each channel between processes of a machine."""
    layout, rows = layout_of("0.5B"), []
    size = layout.size * layout.dtype.itemsize
    for kind in ("shared-memory", "collective"):
        channel, _store = local_channel(kind, layout)
        takers = Processes(channel, 1)
        try:
            measured(channel, takers, MEMORY_ROUNDS)
            peak = takers.conns[0].recv()
        finally:
            takers.close()
        rows.append({"channel": kind, "bytes": size, "peak": peak / size})
        print(f"{kind}: {peak / size:.3f} x the weights", flush=True)
    return rows


class Processes:
    """Takers as processes of this machine."""

    def __init__(self, channel: Any, count: int) -> None:
        context = torch.multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["scalerl.weights.registry"])
        pipes = [context.Pipe() for _ in range(count)]
        self.conns = [ours for ours, _ in pipes]
        self.processes = [
            context.Process(target=taker_process, args=(theirs, channel), daemon=True)
            for _, theirs in pipes
        ]
        for process in self.processes:
            process.start()
        for conn in self.conns:
            conn.recv()

    def ask(self, version: int) -> None:
        for conn in self.conns:
            conn.send(version)

    def hear(self) -> list[tuple[float, float]]:
        return [conn.recv() for conn in self.conns]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


class Actors:
    """Takers as actors of a Ray cluster."""

    def __init__(self, channel: Any, count: int) -> None:
        import ray

        self.ray = ray
        actor = ray.remote(num_cpus=0)(Taker)
        self.actors = [actor.remote(channel) for _ in range(count)]
        ray.get([a.take.remote(-1) for a in self.actors])

    def ask(self, version: int) -> None:
        self.asked = [a.take.remote(version) for a in self.actors]

    def hear(self) -> list[tuple[float, float]]:
        found: list[tuple[float, float]] = self.ray.get(self.asked)
        return found

    def close(self) -> None:
        for actor in self.actors:
            self.ray.kill(actor)


def measured(channel: Any, takers: Processes | Actors, rounds: int) -> dict[str, float]:
    flat = torch.randn(channel.layout.size).to(channel.layout.dtype)
    weights = dict(channel.layout.views(flat))
    sender = channel.sender()
    found: dict[str, list[float]] = {"publish": [], "load": [], "arrive": []}
    try:
        for version in range(rounds + 1):
            weights["0"].fill_(version % 128)
            takers.ask(version)
            time.sleep(0.05)
            began = time.monotonic()
            sender.publish(version, weights)
            published = time.monotonic() - began
            times = takers.hear()
            found["publish"].append(published)
            found["load"].append(max(seconds for seconds, _ in times))
            found["arrive"].append(max(done for _, done in times) - began)
    finally:
        if hasattr(sender, "close"):
            sender.close()
    return {name: statistics.median(values[1:]) for name, values in found.items()}


def local_channel(kind: str, layout: Layout) -> tuple[Any, Any]:
    """A channel between processes of this machine, and the store that must stay open for it."""
    if kind == "shared-memory":
        return SharedWeights(layout), None
    store, port = rendezvous_store(HERE)
    channel = CollectiveWeights(layout)
    channel.set_rendezvous(HERE, port, LOOPBACK, "cpu")
    return channel, store


def one(kind: str, layout: Layout, count: int, rounds: int) -> dict[str, float]:
    if kind == "ray":
        import ray

        registry = ray.remote(num_cpus=0, max_concurrency=99)(VersionRegistry).remote()
        channel: Any = RayWeights(layout, registry)
        takers: Processes | Actors = Actors(channel, count)
    else:
        channel, _open = local_channel(kind, layout)  # its store, until this function ends
        takers = Processes(channel, count)
    try:
        return measured(channel, takers, rounds)
    finally:
        takers.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--memory", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.memory:
        save("hand_over_memory", {"rows": memory()})
        return
    import ray

    patiently(
        lambda: ray.init(
            address="local", num_cpus=2, include_dashboard=False, log_to_driver=False,
            logging_level="ERROR", object_store_memory=4 << 30,
        )
    )  # fmt: skip
    rows = []
    try:
        for size in ("tiny",) if arguments.quick else shapes():
            layout = layout_of(size)
            for kind in ("shared-memory", "ray", "collective"):
                for count in GENERATORS:
                    found = one(kind, layout, count, ROUNDS[size])
                    bytes_ = layout.size * layout.dtype.itemsize
                    rows.append({"size": size, "bytes": bytes_, "channel": kind,
                                 "generators": count} | found)  # fmt: skip
                    print(" ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{v}"
                                   for k, v in rows[-1].items()), flush=True)  # fmt: skip
    finally:
        ray.shutdown()
    if not arguments.quick:
        save("hand_over", {"large_bytes": LARGE, "rows": rows})


if __name__ == "__main__":
    main()
