"""Kill anything of a run that lives in a Ray cluster, at any moment: is its record as if nothing
had happened, and is nothing left behind?

python benchmarks/cluster.py             20 kills; saves
python benchmarks/cluster.py --quick     one of each kind; saves nothing

A cluster of three raylets on this machine: two ranks of the trainer (FSDP2) and two generators live
on two nodes with room for two and, one of them, on the driver's. Killed are a generator, the node
of a generator, a rank of the trainer, and the node of a rank, but not the driver's; a node that was
killed is replaced by another. At the end the record is checked as in faults.py.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import secrets
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from faults import EVERY, SMALL, Strike, Victim, kill, lines, problems, show
from record import save
from scalerl.placement.ray_cluster import patient_start

os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_gcs_server_port_wait_time_s", "120")
os.environ.setdefault("RAY_worker_niceness", "0")

#: A dead node is noticed within seconds, also by a machine that has other work.
HEALTH = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000,
          "health_check_timeout_ms": 5000, "health_check_failure_threshold": 3}  # fmt: skip
ON_RAY = ("placement.backend=ray", "placement.trainers=2", "placement.generators=2",
          "placement.checkers=4", "placement.patience=120")  # fmt: skip


def patiently(make: Callable[[], Any], attempts: int = 5) -> Any:
    """Ray gives a node half a minute to start: on a busy machine that may take several attempts."""
    for _ in range(attempts - 1):
        try:
            with patient_start():
                return make()
        except Exception:  # as bare as that
            time.sleep(5.0)
    with patient_start():
        return make()


class Raylets:
    """Three nodes on this machine."""

    def __init__(self, client_port: int | None = None) -> None:
        from ray.cluster_utils import Cluster

        self.folder = Path(tempfile.mkdtemp(prefix="raylets-"))
        (self.folder / "ray").mkdir()
        self._before = os.environ.get("RAY_TMPDIR")
        os.environ["RAY_TMPDIR"] = str(self.folder)
        head = {"num_cpus": 1, "include_dashboard": False, "_system_config": HEALTH,
                "object_store_memory": 200 << 20}  # fmt: skip
        if client_port is not None:
            head["ray_client_server_port"] = client_port

        def start() -> Any:
            self._end_all()  # what an attempt before this one has left
            return Cluster(initialize_head=True, head_node_args=head)

        self.cluster: Any = patiently(start)
        self.nodes = [self.add() for _ in range(2)]

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def add(self) -> Any:
        return patiently(lambda: self.cluster.add_node(num_cpus=2, object_store_memory=200 << 20))

    def of(self, pid: int) -> Any:
        """The node that a worker belongs to (its parent is the raylet); None: the driver's."""
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        for node in self.nodes:
            if node.all_processes["raylet"][0].process.pid == parent:
                return node
        return None

    def lose(self, node: Any) -> None:
        """Kill a node and everything on it, and bring another."""
        self.cluster.remove_node(node, allow_graceful=False)
        self.nodes = [n for n in self.nodes if n is not node] + [self.add()]

    def _end_all(self) -> None:
        """Every process of these clusters: all have the folder in their command."""
        mark = str(self.folder).encode()
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (path / "cmdline").read_bytes():
                    kill(int(path.name))
            except OSError:  # it ended meanwhile
                continue

    def close(self) -> None:
        self.cluster.shutdown()
        self._end_all()
        if self._before is None:
            del os.environ["RAY_TMPDIR"]
        else:  # of a cluster around this one
            os.environ["RAY_TMPDIR"] = self._before
        shutil.rmtree(self.folder, ignore_errors=True)


def names(run: Victim, side: str) -> list[str]:
    return [n for n in run.status["pids"] if n.startswith(side)]


def strike_part(run: Victim, raylets: Raylets, rng: random.Random, side: str, node: bool) -> None:
    """A generator or a rank of the trainer, by itself or with its node."""
    wanted = 2
    run.wait(lambda: len(names(run, side)) == wanted, f"every {side}")
    before, resumes = run.step, len(run.resumes)
    noted = len(lines(run.out / "events.jsonl"))
    run.wait(lambda: run.step > before, "a step")
    time.sleep(rng.uniform(0.0, 2.0))
    there = [n for n in names(run, side) if not node or raylets.of(run.pid(n)) is not None]
    name = rng.choice(there)
    pid, before, start = run.pid(name), run.step, time.monotonic()
    if node:
        raylets.lose(raylets.of(pid))
    else:
        kill(pid)
    if side == "trainer":
        run.wait(lambda: len(run.resumes) > resumes, "the way back")
        before = run.resumes[-1]
    run.wait(lambda: run.step > before, "the next step")
    next_step = time.monotonic() - start
    run.wait(lambda: name in run.status["pids"] and run.pid(name) != pid, f"another {name}")
    what = f"node of a {side}" if node else side
    whole = time.monotonic() - start
    events = lines(run.out / "events.jsonl")[noted:]
    words = tuple(f"{e['event']}: {e.get('why') or 'step ' + str(e['step'])}" for e in events)
    run.strikes.append(Strike(what, "any moment", True, False, next_step, whole, words))


WAYS = [("generator", False), ("trainer", False), ("generator", True), ("trainer", True)]


def storm(
    out: Path, kills: int, seed: int, minutes: float = math.inf, settings: Sequence[str] = ()
) -> Victim:
    """A run on three raylets under so many kills (or as many as come in so many minutes), ended by
    Ctrl-C and checked. `settings` are further KEY=VALUE of its recipe."""
    rng = random.Random(seed)
    raylets = Raylets()
    try:
        where = f"placement.address={raylets.address}"
        run = Victim(out, [*SMALL, *ON_RAY, where, *settings])
        run.begin()
        try:
            ways = WAYS * (kills // len(WAYS)) + rng.sample(WAYS, kills % len(WAYS))
            rng.shuffle(ways)
            end = time.monotonic() + 60 * minutes
            for side, node in ways:
                if time.monotonic() < end:
                    strike_part(run, raylets, rng, side, node)
                    show(run)
            run.wait(lambda: run.step % EVERY != 0, "the middle of something")
            run.end()
        finally:
            run.process.kill()
            run.process.wait()
        wrong = problems(run) + actors_left(raylets)
    finally:
        raylets.close()
    assert not wrong, "\n".join(wrong)
    return run


def actors_left(raylets: Raylets) -> list[str]:
    """Actors and placement groups that a run has left in its cluster."""
    import ray
    from ray.util import placement_group_table

    ray.init(address=raylets.address, log_to_driver=False, logging_level="ERROR")
    try:
        actors = ray._private.state.actors().values()
        alive = [a for a in actors if a["State"] == "ALIVE"]
        groups = [g for g in placement_group_table().values() if g["state"] == "CREATED"]
    finally:
        ray.shutdown()
    found = [f"actor {a['ActorClassName']} was left behind" for a in alive]
    return found + [f"placement group {g['placement_group_id']} was left behind" for g in groups]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=math.inf, help="kill no longer")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="scalerl-cluster-"))
    try:
        kills = 4 if arguments.quick else arguments.kills
        run = storm(folder / "run", kills, arguments.seed, arguments.minutes)
        steps = run.step
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    by: dict[str, list[Strike]] = {}
    for strike in run.strikes:
        by.setdefault(strike.who, []).append(strike)
    result = {
        "kills": len(run.strikes),
        "steps": steps,
        "seconds_to_the_next_step": {
            who: statistics.median(s.next_step or 0.0 for s in strikes)
            for who, strikes in sorted(by.items())
        },
        "strikes": [
            {"who": s.who, "seconds_to_the_next_step": s.next_step, "events": s.events}
            for s in run.strikes
        ],
    }
    print(result)
    if not arguments.quick:
        save("cluster", result)


if __name__ == "__main__":
    main()
