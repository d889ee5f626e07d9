"""The parts as actors of a Ray cluster (`placement.backend = "ray"`), on one machine or many.

Every part is an actor: in it a thread does the work (serve_workers.py, checker_process.py) between
two queues; the actor's own methods only put into one and take out of the other. The driver keeps
exactly one `listen` per actor under way, so nothing that is said is lost, and hears of a death
from it. A call costs either side about a millisecond, so what comes close together shares one.
Generators and checkers have a placement group each, the ranks of the trainer one together: after
the loss of a node nothing waits for half a group.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from scalerl.errors import InputError, PipelineError
from scalerl.machine import cores
from scalerl.pipeline import messages as m
from scalerl.pipeline.crew import Handle, MessageReceived, WorkerLost, free_generator_name
from scalerl.pipeline.setup import RunSetup
from scalerl.placement.checker_worker import serve_checker
from scalerl.placement.connection import SessionFilter
from scalerl.placement.processes import MAX_CHECKERS, PATIENCE
from scalerl.placement.rank_group import RankGroup
from scalerl.placement.ray_cluster import (
    Needs,
    connect,
    disconnect,
    environment,
    import_ray,
)
from scalerl.placement.serve_workers import serve_generator, serve_trainer
from scalerl.placement.specs import Specs
from scalerl.placement.worker_actor import WorkerActor
from scalerl.weights.collective import CollectiveWeights
from scalerl.weights.ray_objects import RayWeights
from scalerl.weights.version_registry import VersionRegistry

#: Seconds that a part is listened to before it is asked anew.
LISTEN = 2.0
#: Seconds for which what a generator or checker says is gathered. The trainer is answered at once.
GATHER, GATHER_VERDICTS = 0.04, 0.005
#: Seconds until a cluster must have found room for a part.
PLACED = 120.0
#: What a checker takes: memory. It mostly waits, and a share of a core, however small, would leave
#: the rest of that core to nobody.
CHECKER = {"memory": float(64 << 20)}


class RayHandle:
    """An actor, its place, and the one question to it that is under way."""

    def __init__(
        self,
        name: str,
        group: Any,
        bundle: int,
        device: dict[str, float],
        *,
        owns: bool,
        gather: float = 0.0,
    ) -> None:
        import_ray()
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        self.name, self._group, self._owns = name, group, owns
        self._gpu = device.get("GPU", 0.0)
        actor = _actor_class().options(
            num_cpus=device.get("CPU", 0.0),
            num_gpus=self._gpu,
            memory=device.get("memory", 0.0),
            max_restarts=0,
            max_task_retries=0,
            enable_task_events=False,
            runtime_env={"env_vars": environment()},
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                group, placement_group_bundle_index=bundle
            ),
        )
        self.actor = actor.remote(name)
        self._gather = gather
        self._unsaid: list[Any] = []
        self._session = SessionFilter()
        self.listening = self.actor.collect.remote(LISTEN, gather)
        self._where = self.actor.where.remote()
        self.pid, self.host = 0, ""
        #: WorkerLost, and said so.
        self.over = False
        self._heard = time.monotonic()

    @property
    def silence(self) -> float:
        return time.monotonic() - self._heard

    def send(self, message: Any) -> None:
        """The trainer is told at once; others what has come up until the driver listens again."""
        self._unsaid.append(message)
        if not self._gather:
            self.flush()

    def flush(self) -> None:
        if self._unsaid:
            try:
                self.actor.deliver.remote(pickle.dumps(self._unsaid))
            except (AttributeError, TypeError, pickle.PicklingError) as error:  # as pickle says it
                raise PipelineError(
                    f"{self.name} cannot be told what it should do ({error})"
                ) from None
            self._unsaid = []

    def begin(self, serve: Callable[..., None], *arguments: Any) -> None:
        self.actor.begin.remote(serve, *arguments)

    def renew(self, channel: Any) -> None:
        """Of a generator: another trainer takes over."""
        self._heard = time.monotonic()
        self._unsaid = []
        self.actor.switch_trainer.remote(channel, self._session.start())

    def hear(self) -> list[Any] | None:
        """What the answered question brought, and the next question; None of an actor that is
        gone."""
        ray = import_ray()
        try:
            found = self._session.current(pickle.loads(ray.get(self.listening)))
            self.listening = self.actor.collect.remote(LISTEN, self._gather)
            if not self.pid:
                self.pid, self.host, _ = ray.get(self._where)
        except ray.exceptions.RayError as error:
            self._end, self.over = _why(error), True
            return None
        if found:
            self._heard = time.monotonic()
        return found

    def gone(self) -> WorkerLost | MessageReceived:
        if self._end.startswith("cannot"):
            return MessageReceived(self, m.WorkerFailed(self._end, bad_input=True))
        return WorkerLost(self, self._end)

    _end = "died"

    def kill(self) -> None:
        ray = import_ray()
        with contextlib.suppress(ray.exceptions.RayError, ValueError):
            ray.kill(self.actor, no_restart=True)
        if self._owns:
            _remove(self._group)


@functools.cache
def _actor_class() -> Any:
    """WorkerActor for Ray. What is told, heard and asked does not wait for each other."""
    ray = import_ray()
    calls = {"deliver": "in", "begin": "in", "switch_trainer": "in", "collect": "out",
             "where": "control", "open_rendezvous": "control", "end": "control"}  # fmt: skip
    methods = {
        name: ray.method(concurrency_group=group)(getattr(WorkerActor, name))
        for name, group in calls.items()
    }
    made = type(WorkerActor.__name__, (WorkerActor,), methods)
    return ray.remote(concurrency_groups=dict.fromkeys(calls.values(), 1))(made)


def _why(error: Exception) -> str:
    """How an actor ended, in a line."""
    text = str(error)
    missing = next((t for t in text.splitlines() if "No module named" in t), None)
    if missing is not None:
        package = missing.rpartition("No module named ")[2].strip().strip("'\"")
        return f"cannot start: its node has no package {package}: install scalerl[ray,train] there"
    lower = text.lower()
    if "node has died" in lower or "node is dead" in lower or "node was terminated" in lower:
        return "died: its node is gone"
    if type(error).__name__ == "ActorUnavailableError":
        return "died: its node does not answer"
    if "running low on memory" in lower:  # Ray's list of what might be also names memory
        return "died: its node was short of memory"
    return "died: its process was ended"


def _group(bundles: list[dict[str, float]]) -> Any:
    """A place for one part, or for the ranks of the trainer: near each other where there is room.
    It may be found later."""
    from ray.util import placement_group

    return placement_group(bundles, strategy="PACK")


def _remove(group: Any) -> None:
    from ray.util import remove_placement_group

    with contextlib.suppress(Exception):  # the cluster may be gone, and the group with it
        remove_placement_group(group)


def _absolute(specs: Specs) -> Specs:
    """Actors have another working directory."""

    def whole(path: str) -> str:
        return str(Path(path).resolve()) if Path(path).is_dir() else path

    start = specs.trainer.checkpoint
    trainer = replace(
        specs.trainer,
        model=whole(specs.trainer.model),
        checkpoint=None if start is None else whole(start),
    )
    return replace(
        specs, trainer=trainer, engine=replace(specs.engine, model=whole(specs.engine.model))
    )


class RayCrew:
    """One trainer (of one or many ranks), some generators and checkers, each an actor."""

    def __init__(self, setup: RunSetup, checkpoint: Path | None = None) -> None:
        where = setup.recipe.placement
        self.specs = _absolute(Specs.from_setup(setup, checkpoint, default_channel="ray"))
        if not getattr(self.specs.channel, "across_machines", False):
            raise InputError(
                f"placement.weights={where.weights} stays on one machine: set "
                "placement.weights=auto, or placement.backend=local"
            )
        self.setup, self.deterministic = setup, where.deterministic
        self.needs = needs_of(setup)
        self._stopped = False
        connect(where.address, self.needs, patience=0.0 if checkpoint is None else PLACED)
        self.ray = import_ray()
        self.generators: list[RayHandle] = []
        self.checkers: list[RayHandle] = []
        self._groups: list[Any] = []
        try:
            self._start_version_registry()
            self.trainer: RankGroup[RayHandle] = self._start_trainer()
            for _ in range(where.generators):
                self.add_generator()
            checkers = min(where.checkers, self._cores(), MAX_CHECKERS)
            self._places = -(-where.checkers // checkers)
            self.checkers = [self._checker(f"checker {i}") for i in range(checkers)]
        except BaseException:
            self.stop(at_once=True)
            raise

    # -- starting ---------------------------------------------------------------------------------

    def _start_version_registry(self) -> None:
        """On the driver's node, which lives as long as the run does. A node that has just come may
        not know that one yet, and would keep the registry to itself, or be gone with it unnoticed:
        so the node that it landed on is checked."""
        if not isinstance(self.specs.channel, RayWeights):
            return
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = self.ray.get_runtime_context().get_node_id()
        options = {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(here, True),
                   "max_concurrency": 1000, "max_task_retries": -1}  # fmt: skip
        until = time.monotonic() + PLACED
        while time.monotonic() < until:
            registry = self.ray.remote(**options)(VersionRegistry).remote()
            with contextlib.suppress(self.ray.exceptions.RayError):
                if self.ray.get(registry.node.remote(), timeout=PLACED) == here:
                    self.specs.channel.registry = registry
                    return
            self.ray.kill(registry)
            time.sleep(0.5)
        raise PipelineError(f"Ray found no place on the driver's node within {PLACED:.0f} s")

    def _start_trainer(self) -> RankGroup[RayHandle]:
        """Where there is room; if that was on a node that is gone and not missed yet, elsewhere."""
        until = time.monotonic() + PLACED
        while True:
            try:
                return self._try_trainer()
            except self.ray.exceptions.RayError as error:
                for rank in self._starting:
                    rank.kill()
                _remove(self._groups.pop())
                if time.monotonic() > until:
                    raise PipelineError(
                        f"the trainer cannot be started: it {_why(error)}"
                    ) from None
                time.sleep(1.0)

    def _try_trainer(self) -> RankGroup[RayHandle]:
        bundle, count = self.needs.bundle(), self.specs.trainers
        group = _group([bundle] * count)
        self._groups.append(group)
        if not group.wait(PLACED):
            raise PipelineError(
                f"the Ray cluster found no place for the trainer within {PLACED:.0f} s: "
                "`ray status` says what takes its room"
            )
        names = [f"trainer rank {i}" for i in range(count)] if count > 1 else ["trainer"]
        ranks = [RayHandle(name, group, i, bundle, owns=False) for i, name in enumerate(names)]
        self._starting = ranks
        specs = [self.specs.trainer]
        if count > 1:
            host, port = self.ray.get(ranks[0].actor.open_rendezvous.remote(), timeout=PLACED)
            specs = [spec for _, spec in self.specs.ranks(host, port, None)]
        if isinstance(self.specs.channel, CollectiveWeights):
            host, port = self.ray.get(ranks[0].actor.open_rendezvous.remote(), timeout=PLACED)
            self.specs.channel.set_rendezvous(host, port, None, self.setup.device)
        for rank, spec in zip(ranks, specs, strict=True):
            rank.begin(serve_trainer, self.specs.make_trainer, spec, self.specs.channel)
        return RankGroup(ranks)

    def _generator(self, name: str) -> RayHandle:
        bundle = self.needs.bundle()
        handle = RayHandle(name, _group([bundle]), 0, bundle, owns=True, gather=GATHER)
        handle.begin(serve_generator, self.specs.make_engine, self.specs.engine,
                     self.specs.channel, self.deterministic)  # fmt: skip
        return handle

    def _cores(self) -> int:
        """Of a cluster of our own those of this machine: it says that it has one for every part."""
        if self.setup.recipe.placement.address == "local":
            return cores()
        return max(int(self.ray.cluster_resources().get("CPU", 1.0)), 1)

    def _checker(self, name: str) -> RayHandle:
        handle = RayHandle(name, _group([CHECKER]), 0, CHECKER, owns=True, gather=GATHER_VERDICTS)
        seconds = self.setup.recipe.placement.check_seconds
        handle.begin(serve_checker, self.setup.task.for_checking(), self._places, seconds)
        return handle

    # -- the crew ---------------------------------------------------------------------------------

    @property
    def _parts(self) -> list[RayHandle]:
        trainer = getattr(self, "trainer", None)
        ranks: Sequence[RayHandle] = (
            getattr(self, "_starting", []) if trainer is None else trainer.ranks
        )
        return [*ranks, *self.generators, *self.checkers]

    def poll(self, seconds: float) -> list[MessageReceived | WorkerLost]:
        for part in self._parts:
            part.flush()
        asked = {part.listening: part for part in self._parts if not part.over}
        ready, _ = self.ray.wait(list(asked), num_returns=1, timeout=seconds)
        if ready and len(asked) > 1:
            ready, _ = self.ray.wait(list(asked), num_returns=len(asked), timeout=0)
        found: list[MessageReceived | WorkerLost] = []
        for ref in ready:
            part = asked[ref]
            messages = part.hear()
            for message in [None] if messages is None else messages:
                found += self._means(part, message)
        overdue = self.trainer.overdue()
        return found if overdue is None else [*found, overdue]

    def _means(self, part: RayHandle, message: Any) -> list[MessageReceived | WorkerLost]:
        if any(part is rank for rank in self.trainer.ranks):
            found = self.trainer.heard(part, message)
            return [] if found is None else [found]
        return [part.gone() if message is None else MessageReceived(part, message)]

    def replace(self, worker: Handle) -> Handle:
        made = ((self.generators, self._generator), (self.checkers, self._checker))
        for parts, make in made:
            for i, part in enumerate(parts):
                if part is worker:
                    part.kill()
                    parts[i] = make(part.name)
                    return parts[i]
        raise PipelineError(f"{worker.name} cannot be replaced")

    def add_generator(self) -> Handle:
        """Its place may be found later: Ray may have to bring a node for it."""
        made = self._generator(free_generator_name(self.generators))
        self.generators.append(made)
        return made

    def remove_generator(self, worker: Handle) -> None:
        for part in self.generators:
            if part is worker:
                part.kill()
        self.generators = [g for g in self.generators if g is not worker]

    def restart_trainer(self, setup: RunSetup, checkpoint: Path | None) -> bool:
        """Generators may be minutes in starting; what is cheap is started anew."""
        if not isinstance(self.specs.channel, RayWeights):
            return False  # who meets in a collective is settled when all start
        for part in (*self.trainer.ranks, *self.checkers):
            part.kill()
        for group in self._groups:
            _remove(group)
        self._groups = []
        self.setup = setup
        self.specs = _absolute(Specs.from_setup(setup, checkpoint, default_channel="ray"))
        self._start_version_registry()
        self.trainer = self._start_trainer()
        for extra in self.generators[setup.recipe.placement.generators :]:
            self.remove_generator(extra)
        for i, generator in enumerate(self.generators):
            if generator.over:
                generator.kill()
                self.generators[i] = self._generator(generator.name)
            else:
                generator.renew(self.specs.channel)
        while len(self.generators) < setup.recipe.placement.generators:
            self.add_generator()
        self.checkers = [self._checker(checker.name) for checker in self.checkers]
        return True

    def pids(self) -> dict[str, int]:
        here = socket.gethostname()
        found = {p.name: p.pid for p in self._parts if p.pid and p.host == here}
        return {"main": os.getpid()} | found

    def stop(self, *, at_once: bool = False) -> None:
        if self._stopped:
            return
        self._stopped = True
        try:
            if not at_once:
                for part in self._parts:
                    part.send(m.StopWorker())
                    part.flush()
                ends = [part.actor.end.remote(PATIENCE) for part in self._parts]
                self.ray.wait(ends, num_returns=len(ends), timeout=PATIENCE)
        finally:
            for part in self._parts:
                part.kill()
            for group in self._groups:
                _remove(group)
            disconnect()


def needs_of(setup: RunSetup) -> Needs:
    """What a plan asks of a cluster."""
    where = setup.recipe.placement
    return Needs(
        generators=where.generators,
        trainers=where.trainers,
        device="GPU" if setup.device.startswith("cuda") else "CPU",
        weights=setup.layout.size * setup.layout.dtype.itemsize,
        model=str(Path(setup.model).resolve()) if Path(setup.model).is_dir() else "",
    )
