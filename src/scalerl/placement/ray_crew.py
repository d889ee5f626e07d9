"""Workers as actors of a Ray cluster (`placement.backend = "ray"`), on one machine or many.

In every actor a thread does the work (`serve_workers.py`, `environment_worker.py`) between two
queues; the actor's own methods only put into one and take out of the other. The driver keeps
exactly one call of `collect` per actor under way, so that no message is lost, and learns from it
when an actor dies. A call costs either side about a millisecond, so messages that come close
together share one. Each generator has a placement group of its own, the ranks of the trainer share
one: after the loss of a node nothing waits for half a group. Checkers, which need no device, are
spread over all nodes.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from scalerl.errors import InputError, PipelineError
from scalerl.machine import cores
from scalerl.pipeline import messages as m
from scalerl.pipeline.crew import MessageReceived, WorkerLost
from scalerl.pipeline.setup import RunSetup
from scalerl.placement.base_crew import BaseCrew, RankGroup, checker_names
from scalerl.placement.connection import SessionFilter
from scalerl.placement.environment_worker import serve_environments
from scalerl.placement.processes import PATIENCE
from scalerl.placement.ray_cluster import (
    Needs,
    announced,
    connect,
    disconnect,
    environment,
    import_ray,
    lost_process,
    missing_package,
    own_node_is_dead,
)
from scalerl.placement.serve_workers import serve_generator, serve_trainer
from scalerl.placement.specs import Specs, evaluation_generator
from scalerl.placement.worker_actor import WorkerActor
from scalerl.weights.collective import CollectiveWeights
from scalerl.weights.ray_objects import RayWeights
from scalerl.weights.version_registry import VersionRegistry

#: Seconds after which a call of `collect` returns without messages.
COLLECT_SECONDS = 2.0
#: Seconds for which the messages of a generator are gathered into one call. The trainer's are not.
GATHER_SECONDS = 0.04
#: The same for a checker, on which the end of a validation waits.
GATHER_SCORES_SECONDS = 0.005
#: Seconds between two looks at the processes of a cluster that we started, or at the own node.
LOOK_SECONDS = 1.0
#: Seconds within which a cluster must have found room for a worker.
PLACED_SECONDS = 120.0
#: Resources of a checker: memory only. It mostly waits, and even a small share of a core would keep
#: a generator or a rank from using that core.
CHECKER = {"memory": float(64 << 20)}


class RayHandle:
    """An actor, its placement group, and its one call of `collect` that is under way."""

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

        # Without a group: on the nodes in turn.
        where = "SPREAD" if group is None else PlacementGroupSchedulingStrategy(
            group, placement_group_bundle_index=bundle
        )  # fmt: skip
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
            scheduling_strategy=where,
        )
        self.actor = actor.remote(name)
        self._gather = gather
        self._unsent: list[Any] = []
        self._session = SessionFilter()
        self.collecting = self.actor.collect.remote(COLLECT_SECONDS, gather)
        self._where = self.actor.where.remote()
        self.pid, self.host = 0, ""
        #: Whether it has ended.
        self.over = False
        self._error: Exception | None = None
        self._heard = time.monotonic()

    @property
    def silence(self) -> float:
        return time.monotonic() - self._heard

    def send(self, message: Any) -> None:
        """Send a message: to the trainer at once, to others with the next `poll`."""
        self._unsent.append(message)
        if not self._gather:
            self.flush()

    def flush(self) -> None:
        if self._unsent:
            try:
                self.actor.deliver.remote(pickle.dumps(self._unsent))
            except (AttributeError, TypeError, pickle.PicklingError) as error:  # what pickle raises
                raise PipelineError(
                    f"{self.name} was to get a message that cannot be pickled ({error})"
                ) from None
            self._unsent = []

    def begin(self, serve: Callable[..., None], *arguments: Any) -> None:
        self.actor.begin.remote(serve, *arguments)

    def switch_trainer(self, channel: Any) -> None:
        """Start another session of a generator: another trainer takes over."""
        self._heard = time.monotonic()
        self._unsent = []
        self.actor.switch_trainer.remote(channel, self._session.start())

    def receive(self) -> list[Any] | None:
        """The messages of the finished call of `collect`, after starting the next one; None if the
        actor has ended."""
        ray = import_ray()
        try:
            found = self._session.current(pickle.loads(ray.get(self.collecting)))
            self.collecting = self.actor.collect.remote(COLLECT_SECONDS, self._gather)
            if not self.pid:
                self.pid, self.host, _ = ray.get(self._where)
        except ray.exceptions.RayError as error:
            self._error, self.over = error, True
            return None
        if found:
            self._heard = time.monotonic()
        return found

    def loss(self) -> WorkerLost:
        """The event of its end; raises InputError where a package is missing on its node."""
        if self._error is None:
            return WorkerLost(self, "died")
        if missing_package(self._error):
            raise InputError(_why(self._error))
        return WorkerLost(self, _why(self._error))

    def kill(self) -> None:
        ray = import_ray()
        with contextlib.suppress(ray.exceptions.RayError, ValueError):
            ray.kill(self.actor, no_restart=True)
        if self._owns:
            _remove(self._group)


@functools.cache
def _actor_class() -> Any:
    """WorkerActor as a Ray actor class. Messages in, messages out and control calls are separate
    concurrency groups, so that none waits for another."""
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
    if package := missing_package(error):
        return f"cannot start: its node has no package {package}: install scalerl[ray,train] there"
    lower = text.lower()
    if "node has died" in lower or "node is dead" in lower or "node was terminated" in lower:
        return "died: its node is gone"
    if type(error).__name__ == "ActorUnavailableError":
        return "died: its node does not answer"
    if "running low on memory" in lower:  # (its list of possible causes also has "memory")
        return "died: its node was short of memory"
    return "died: its process was ended"


def _group(bundles: list[dict[str, float]]) -> Any:
    """A placement group for one worker, or for the ranks of the trainer, which are put near each
    other where there is room. Ray may find room for it later."""
    from ray.util import placement_group

    return placement_group(bundles, strategy="PACK")


def _remove(group: Any) -> None:
    from ray.util import remove_placement_group

    with contextlib.suppress(Exception):  # the cluster may be gone, and the group with it
        remove_placement_group(group)


def _whole(path: str) -> str:
    """The absolute path of a directory; anything else as it is."""
    return str(Path(path).resolve()) if Path(path).is_dir() else path


def _absolute(specs: Specs) -> Specs:
    """The specs with absolute paths: actors have another working directory."""
    start = specs.trainer.checkpoint
    trainer = replace(
        specs.trainer,
        model=_whole(specs.trainer.model),
        checkpoint=None if start is None else _whole(start),
    )
    return replace(
        specs, trainer=trainer, engine=replace(specs.engine, model=_whole(specs.engine.model))
    )


class RayWorkers(BaseCrew):
    """Generators and checkers, each an actor. An evaluation has no more; `RayCrew` has a trainer.
    `generator` has the arguments of `serve_generator` after the connection."""

    def __init__(
        self, setup: RunSetup, needs: Needs, generator: tuple[Any, ...], room_seconds: float = 0.0
    ) -> None:
        self.setup, self.needs, self._generator = setup, needs, generator
        self._stopped = False
        #: Time of the next look at Ray's own processes.
        self._look = 0.0
        connect(setup.recipe.placement.address, needs, patience=room_seconds)
        self.ray = import_ray()
        self.trainer: RankGroup[RayHandle] = RankGroup(())
        self.generators: list[RayHandle] = []
        self.checkers: list[RayHandle] = []
        self._groups: list[Any] = []
        try:
            self._start_workers()
        except BaseException:
            self.stop(at_once=True)
            raise

    # -- starting ---------------------------------------------------------------------------------

    def _start_workers(self) -> None:
        for _ in range(self.setup.recipe.placement.generators):
            self.add_generator()
        names, self._places = checker_names(self.setup, self._cores())
        self.checkers = [self._start_checker(name) for name in names]

    def _start_generator(self, name: str) -> RayHandle:
        # Ray may find room for it later: it may have to add a node.
        bundle = self.needs.bundle(self.needs.devices_per_generator)
        handle = RayHandle(name, _group([bundle]), 0, bundle, owns=True, gather=GATHER_SECONDS)
        handle.begin(serve_generator, *self._generator)
        return handle

    def _cores(self) -> int:
        # A cluster that we started claims a core for every worker (`connect`).
        if self.setup.recipe.placement.address == "local":
            return cores()
        return max(int(self.ray.cluster_resources().get("CPU", 1.0)), 1)

    def _start_checker(self, name: str) -> RayHandle:
        handle = RayHandle(name, None, 0, CHECKER, owns=False, gather=GATHER_SCORES_SECONDS)
        seconds = self.setup.recipe.placement.check_seconds
        handle.begin(serve_environments, self.setup.task.for_checking(), self._places, seconds)
        return handle

    # -- the crew ---------------------------------------------------------------------------------

    @property
    def _workers(self) -> list[RayHandle]:
        return [*self.trainer.ranks, *self.generators, *self.checkers]

    def poll(self, seconds: float) -> list[MessageReceived | WorkerLost]:
        if time.monotonic() > self._look:
            self._look = time.monotonic() + LOOK_SECONDS
            if process := lost_process():
                return [self._cluster_lost(f"Ray's {process} on this machine ended")]
        for worker in self._workers:
            worker.flush()
        asked = {worker.collecting: worker for worker in self._workers if not worker.over}
        ready, _ = self.ray.wait(list(asked), num_returns=1, timeout=seconds)
        if ready and len(asked) > 1:
            ready, _ = self.ray.wait(list(asked), num_returns=len(asked), timeout=0)
        found: list[MessageReceived | WorkerLost] = []
        for ref in ready:
            worker = asked[ref]
            messages = worker.receive()
            for message in [None] if messages is None else messages:
                found += self.trainer.events(worker, message)
        overdue = self.trainer.overdue()
        return found if overdue is None else [*found, overdue]

    def _cluster_lost(self, why: str) -> WorkerLost:
        """The event of the loss of a cluster that we started."""
        raise PipelineError(f"{why}: repeat the command, which continues from here")

    def _restarted(self, worker: RayHandle) -> RayHandle:
        worker.kill()
        generates = any(worker is generator for generator in self.generators)
        return (self._start_generator if generates else self._start_checker)(worker.name)

    def pids(self) -> dict[str, int]:
        here = socket.gethostname()
        found = {p.name: p.pid for p in self._workers if p.pid and p.host == here}
        return {"main": os.getpid()} | found

    def stop(self, *, at_once: bool = False) -> None:
        if self._stopped:
            return
        self._stopped = True
        if lost_process():
            disconnect()  # ends all workers; calls to them would wait for the lost process
            return
        try:
            if not at_once:
                for worker in self._workers:
                    worker.send(m.StopWorker())
                    worker.flush()
                ends = [worker.actor.end.remote(PATIENCE) for worker in self._workers]
                self.ray.wait(ends, num_returns=len(ends), timeout=PATIENCE)
        finally:
            for worker in self._workers:
                worker.kill()
            for group in self._groups:
                _remove(group)
            disconnect()


class RayCrew(RayWorkers):
    """One trainer (of one or many ranks), some generators and checkers, each an actor."""

    def __init__(self, setup: RunSetup, checkpoint: Path | None = None) -> None:
        where = setup.recipe.placement
        self.specs = _absolute(Specs.from_setup(setup, checkpoint, default_channel="ray"))
        if not getattr(self.specs.channel, "across_machines", False):
            raise InputError(
                f"placement.weights={where.weights} stays on one machine: set "
                "placement.weights=auto, or placement.backend=local"
            )
        room_seconds = 0.0 if checkpoint is None else PLACED_SECONDS
        super().__init__(setup, needs_from_setup(setup), (), room_seconds)

    # -- starting ---------------------------------------------------------------------------------

    def _start_workers(self) -> None:
        self._set_generator()
        with announced("Ray to start the trainer's process"):
            self._start_version_registry()
            self.trainer = self._start_trainer()
        super()._start_workers()

    def _set_generator(self) -> None:
        deterministic = self.setup.recipe.placement.deterministic
        self._generator = self.specs.generator(deterministic=deterministic)

    def _start_version_registry(self) -> None:
        """Start the registry of published weights on the driver's node, which lasts as long as the
        run. Ray may put it elsewhere while it does not know that node yet, and would lose it with
        the other one: so the node that it landed on is checked."""
        if not isinstance(self.specs.channel, RayWeights):
            return
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = self.ray.get_runtime_context().get_node_id()
        options = {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(here, True),
                   "max_concurrency": 1000, "max_task_retries": -1}  # fmt: skip
        until = time.monotonic() + PLACED_SECONDS
        while time.monotonic() < until:
            registry = self.ray.remote(**options)(VersionRegistry).remote()
            answer = registry.node.remote()
            while not self.ray.wait([answer], timeout=LOOK_SECONDS)[0]:
                if time.monotonic() > until or own_node_is_dead():
                    break
            else:
                with contextlib.suppress(self.ray.exceptions.RayError):
                    if self.ray.get(answer) == here:
                        self.specs.channel.registry = registry
                        return
            if own_node_is_dead():
                raise PipelineError(
                    f"the Ray node that this run is attached to ({socket.gethostname()}) is gone: "
                    "start Ray there again, then --resume"
                )
            self.ray.kill(registry)
            time.sleep(0.5)
        raise PipelineError(
            f"Ray found no place on the driver's node within {PLACED_SECONDS:.0f} s"
        )

    def _start_trainer(self) -> RankGroup[RayHandle]:
        """Start the trainer; again, elsewhere, if Ray chose a node that is lost and does not know
        it yet."""
        until = time.monotonic() + PLACED_SECONDS
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
        if not group.wait(PLACED_SECONDS):
            raise PipelineError(
                f"the Ray cluster found no place for the trainer within {PLACED_SECONDS:.0f} s: "
                "`ray status` says what takes its room"
            )
        names = [f"trainer rank {i}" for i in range(count)] if count > 1 else ["trainer"]
        ranks = [RayHandle(name, group, i, bundle, owns=False) for i, name in enumerate(names)]
        self._starting = ranks
        specs = [self.specs.trainer]
        open_rendezvous = ranks[0].actor.open_rendezvous
        if count > 1:
            host, port = self.ray.get(open_rendezvous.remote(), timeout=PLACED_SECONDS)
            specs = [spec for _, spec in self.specs.ranks(host, port, None)]
        if isinstance(self.specs.channel, CollectiveWeights):
            host, port = self.ray.get(open_rendezvous.remote(), timeout=PLACED_SECONDS)
            self.specs.channel.set_rendezvous(host, port, None, self.setup.device)
        for rank, spec in zip(ranks, specs, strict=True):
            rank.begin(serve_trainer, self.specs.make_trainer, spec, self.specs.channel)
        return RankGroup(ranks)

    def _cluster_lost(self, why: str) -> WorkerLost:
        return WorkerLost(self.trainer, f"is lost: {why}")

    def restart_trainer(self, setup: RunSetup, checkpoint: Path | None) -> bool:
        if lost_process():
            return False  # another cluster has to be started
        # Generators are kept, since they may take minutes to start; checkers start quickly.
        if not isinstance(self.specs.channel, RayWeights):
            return False  # the members of a collective are fixed when all of them start
        for worker in (*self.trainer.ranks, *self.checkers):
            worker.kill()
        for group in self._groups:
            _remove(group)
        self._groups = []
        self.setup = setup
        self.specs = _absolute(Specs.from_setup(setup, checkpoint, default_channel="ray"))
        self._set_generator()
        self._start_version_registry()
        self.trainer = self._start_trainer()
        for extra in self.generators[setup.recipe.placement.generators :]:
            self.remove_generator(extra)
        for i, generator in enumerate(self.generators):
            if generator.over:
                self.generators[i] = self._restarted(generator)
            else:
                generator.switch_trainer(self.specs.channel)
        while len(self.generators) < setup.recipe.placement.generators:
            self.add_generator()
        self.checkers = [self._start_checker(checker.name) for checker in self.checkers]
        return True


class RayEvaluation(RayWorkers):
    """The generators and checkers of an evaluation of these weights."""

    def __init__(self, setup: RunSetup, weights: str) -> None:
        # No weights are sent: each engine loads them from a disk that all nodes see.
        needs = replace(needs_from_setup(setup, weights), trainers=0, weights=0)
        super().__init__(setup, needs, evaluation_generator(setup, _whole(weights)))


def needs_from_setup(setup: RunSetup, model: str | None = None) -> Needs:
    """The resources that a run needs of a cluster; `model` is another one than the recipe's."""
    where, model = setup.recipe.placement, model or setup.model
    return Needs(
        generators=where.generators,
        trainers=where.trainers,
        device="GPU" if setup.device.startswith("cuda") else "CPU",
        weights=setup.layout.size * setup.layout.dtype.itemsize,
        model=_whole(model) if Path(model).is_dir() else "",
        devices_per_generator=where.devices_per_generator,
    )
