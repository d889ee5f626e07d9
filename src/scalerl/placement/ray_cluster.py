"""The connection to a Ray cluster: an existing one, or one of this machine, started and stopped.

What a cluster lacks for a run is found before any worker is started, in one line.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from scalerl.processes import pid_alive
from scalerl.text import first_line

#: Versions of Ray that are supported: from the first of these up to, but not including, the second.
RAY = ("2.60", "2.61")
#: Sets of weights that an object store must hold: two that are kept, and one being sent.
SETS = 3
#: Environment variables that workers get: where models come from, and the key to them.
PASSED = ("HF_HOME", "HF_TOKEN", "HF_HUB_OFFLINE", "HF_ENDPOINT", "SCALERL_FAULTS", "PYTHONPATH")
#: Prefix of the temporary folder of a cluster that we start; the pid of its process follows.
FOLDER = "scalerl-ray-"
#: Seconds that the processes of a cluster that we start may take to start.
START_SECONDS = 120
#: Attempts to start or join a cluster.
ATTEMPTS = 3
#: Seconds between two looks whether a raylet has registered.
LOOK_SECONDS = 0.2
#: Texts by which Ray's errors show that this timeout has passed; it has no error type for it.
LATE = ("timed out during startup", "Initialization failure from server")
#: Seconds to wait for a TCP connection to the address of a cluster.
CONNECT_SECONDS = 10.0
#: Seconds of waiting for Ray after which this process says what it waits for: a cluster starts in
#: 5 s on an idle machine.
FIRST_WORD_SECONDS = 15.0
#: Seconds between two such lines.
WORD_SECONDS = 30.0
#: Processes of Ray without which a driver can call nothing.
ESSENTIAL = ("raylet", "gcs_server")
#: Seconds to wait for the answers of all nodes about their packages and paths.
ANSWER_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Needs:
    """The resources that a run needs of a cluster."""

    generators: int
    trainers: int
    #: "CPU" or "GPU": each rank takes one, each generator `devices_per_generator`.
    device: str
    #: Bytes of one set of weights.
    weights: int
    #: A directory that every node must see; "" where the model comes from a hub.
    model: str
    devices_per_generator: int

    @property
    def devices(self) -> int:
        return self.generators * self.devices_per_generator + self.trainers

    def bundle(self, devices: int = 1) -> dict[str, float]:
        """The resources of a worker with so many devices, all on one node."""
        found = {"CPU": float(devices)}
        return found if self.device == "CPU" else {**found, "GPU": float(devices)}


def environment() -> dict[str, str]:
    """The environment of every worker. Nothing else of ours is sent: trackers, and their keys, stay
    in the driver."""
    found = {name: os.environ[name] for name in PASSED if name in os.environ}
    return found | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
                    "TOKENIZERS_PARALLELISM": "false"}  # fmt: skip


def connect(address: str, needs: Needs, *, check: bool = True, patience: float = 0.0) -> None:
    """Join a cluster, or start one on this machine (`local`). Missing resources may appear within
    `patience` seconds: a node that was lost may be replaced."""
    _set_environment(address)
    ray = import_ray()
    options: dict[str, Any] = {}
    if address == "local":
        # Workers that wait for each other in turn may share a core, so Ray is given one for each.
        cpus = max(needs.devices + 1, os.cpu_count() or 1)
        options = {"num_cpus": cpus, "include_dashboard": False, "_temp_dir": str(_folder())}
    _relabel_output(ray, address)
    for attempt in range(ATTEMPTS):
        try:
            _check_reachable(address)
            with _quiet(), announced(_joining(address)), patient_start():
                ray.init(
                    address=address,
                    log_to_driver=True,
                    logging_level=logging.ERROR,
                    configure_logging=False,
                    namespace="scalerl",
                    **options,
                )
            break
        except Exception as error:  # Ray raises all kinds, bare Exceptions among them
            disconnect()
            if not any(late in str(error) for late in LATE) or attempt == ATTEMPTS - 1:
                raise InputError(_unreachable(address, error)) from None
            if address == "local":
                options |= {"_temp_dir": str(_folder())}
    until = time.monotonic() + patience
    try:
        with announced("the nodes of the Ray cluster to report what they have"):
            while check and (lacking := missing_resources(needs)):
                if time.monotonic() > until:
                    raise InputError(lacking[0])
                time.sleep(1.0)
    except BaseException:
        disconnect()
        raise


@contextlib.contextmanager
def patient_start() -> Iterator[None]:
    """Within this context Ray waits START_SECONDS for a raylet to register. Its own limit is 30 s,
    which a busy machine exceeds, no setting changes, and every further attempt meets again. A
    version of Ray without this function keeps its own limit."""
    from ray._private import services

    plain = getattr(services, "get_node", None)
    if plain is None:
        yield
        return

    def patient(*given: Any, **named: Any) -> Any:
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                return plain(*given, **named)
            except RuntimeError:  # it is not known to the cluster yet
                if time.monotonic() > until:
                    raise
                time.sleep(LOOK_SECONDS)

    services.get_node = patient
    try:
        yield
    finally:
        services.get_node = plain


def _joining(address: str) -> str:
    here = "Ray's processes on this machine to start"
    return here if address == "local" else f"the Ray cluster at {address} to let this run in"


@contextlib.contextmanager
def announced(what: str) -> Iterator[None]:
    """Print what this process waits for once that has taken FIRST_WORD_SECONDS, and again every
    WORD_SECONDS: on a busy machine Ray takes minutes to start."""
    over, start = threading.Event(), time.monotonic()

    def announce() -> None:
        pause = FIRST_WORD_SECONDS
        while not over.wait(pause):
            print(f"waiting for {what} ({time.monotonic() - start:.0f} s)", file=sys.stderr)
            pause = WORD_SECONDS

    threading.Thread(target=announce, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def lost_process() -> str:
    """The process of Ray without which this one can call nothing, if it has ended; "" otherwise.
    Only processes of a cluster that we started are known; `own_node_is_dead` asks any cluster."""
    node = import_ray()._private.worker._global_node
    if node is None:  # a Ray client
        return ""
    ended = {str(kind) for kind, _ in node.dead_processes()}
    return next((kind for kind in ESSENTIAL if kind in ended), "")


def own_node_is_dead() -> bool:
    """Whether the cluster has given up the node that this process is attached to."""
    ray = import_ray()
    here = ray.get_runtime_context().get_node_id()
    return any(n["NodeID"] == here and not n["Alive"] for n in ray.nodes())


def disconnect() -> None:
    """Leave the cluster; one that we started is ended and its files removed."""
    import_ray().shutdown()
    _sweep(os.getpid())
    while _SWEEPERS:
        _SWEEPERS.pop().communicate()


def _folder() -> Path:
    """A folder for the sockets and logs of a cluster that we start. Its name is short: the path of
    a Unix socket has room for some hundred characters only."""
    _sweep(None)
    path = tempfile.mkdtemp(prefix=f"{FOLDER}{os.getpid()}-")
    _remove_when_killed(path)
    return Path(path)


#: Shells that remove the folders of this process's clusters.
_SWEEPERS: list[subprocess.Popen[bytes]] = []


def _remove_when_killed(path: str) -> None:
    """Start a shell that removes a folder when this process has ended, however it ended: after
    kill -9 this process cannot do it. The shell ends once the folder is gone."""
    # Its input ends with this process. Ray's agents write for half a minute longer.
    script = 'cat; while rm -rf "$0"; [ -e "$0" ]; do sleep 2; done'
    shell = subprocess.Popen(
        ["sh", "-c", script, path], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    _SWEEPERS.append(shell)


def _sweep(pid: int | None) -> None:
    """Remove the folders of clusters that this process started; or (None) those of processes that
    have ended."""
    for path in Path(tempfile.gettempdir()).glob(f"{FOLDER}*"):
        owner = path.name.removeprefix(FOLDER).partition("-")[0]
        if owner.isdigit() and (int(owner) == pid if pid else not pid_alive(int(owner))):
            shutil.rmtree(path, ignore_errors=True)


def _check_reachable(address: str) -> None:
    """Raise if nothing listens at the address: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()


def _set_environment(address: str) -> None:
    """Set Ray's environment variables; it reads them when it is imported."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    if address == "local":
        if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
            # For this run alone, never on a disk.
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        os.environ.setdefault("RAY_prestart_worker_first_driver", "0")  # workers start their own
        os.environ.setdefault("RAY_worker_niceness", "0")  # the cluster is there for them alone
        # On a busy machine its processes may take longer than Ray allows by default.
        os.environ.setdefault("RAY_gcs_server_port_wait_time_s", str(START_SECONDS))


def import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise InputError(
            "placement.backend=ray needs Ray: pip install 'scalerl[ray]', or set "
            "placement.backend=local"
        ) from None
    version = tuple(int(n) for n in ray.__version__.split(".")[:2])
    first, not_any_more = (tuple(int(n) for n in v.split(".")) for v in RAY)
    if not first <= version < not_any_more:
        raise InputError(
            f"Ray {ray.__version__} is not supported: install ray>={RAY[0]},<{RAY[1]}, the same on "
            "every node"
        )
    return ray


def _unreachable(address: str, error: Exception) -> str:
    why = first_line(error)
    if address == "local":
        return f"no Ray cluster could be started on this machine: {why}"
    if "version mismatch" in str(error).lower():
        return f"the Ray cluster at {address} runs other versions than this machine: {why}"
    if any(late in str(error) for late in LATE):
        return (
            f"the Ray cluster at {address} is there, but did not let this run in within Ray's time "
            "(30 s): is its head overloaded? Try again, or start the run on one of its nodes with "
            "placement.address=auto"
        )
    return (
        f"there is no Ray cluster at placement.address={address}: start one (ray start --head), "
        f"say where it is (placement.address=ray://HOST:10001), or set placement.address=local "
        f"({why})"
    )


# -- what a cluster lacks -------------------------------------------------------------------------


def missing_resources(needs: Needs) -> list[str]:
    """Everything that the cluster lacks for a run, a line each."""
    ray = import_ray()
    nodes = [n for n in ray.nodes() if n["Alive"]]
    # Cheap checks first: the nodes of a cluster that is too small are not asked one by one.
    total = {kind: sum(n["Resources"].get(kind, 0.0) for n in nodes) for kind in ("CPU", "GPU")}
    found = []
    for kind in dict.fromkeys(["CPU", needs.device]):
        if total[kind] < needs.devices:
            found.append(
                f"the Ray cluster has {total[kind]:g} {kind}s on {len(nodes)} nodes, but "
                f"{needs.generators} generators{_each(needs)} and {needs.trainers} trainers need "
                f"{needs.devices}: add nodes, or lower placement.generators or placement.trainers"
            )
        # All devices of a generator are on one node.
        elif not any(n["Resources"].get(kind, 0.0) >= needs.devices_per_generator for n in nodes):
            found.append(
                f"no node of the Ray cluster has {needs.devices_per_generator} {kind}s: lower "
                "placement.devices_per_generator, or add a larger node"
            )
    for node in nodes:
        store = node["Resources"].get("object_store_memory", 0.0)
        if store < SETS * needs.weights:
            found.append(
                f"the object store of node {node['NodeManagerHostname']} holds "
                f"{store / 2**20:.0f} MB, but {SETS} sets of weights are "
                f"{SETS * needs.weights / 2**20:.0f} MB: start Ray there with a larger "
                "--object-store-memory"
            )
    return found or _missing_on_nodes(ray, nodes, needs)


def _each(needs: Needs) -> str:
    many = needs.devices_per_generator
    return f" of {many} {needs.device}s each" if many > 1 else ""


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that must be the same on all nodes."""
    found = {"python": ".".join(platform.python_version_tuple()[:2])}
    for name in ("scalerl", "torch", "transformers", "ray"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "missing"
    return found


#: (node, model) pairs that passed the check: a run that goes back to its last checkpoint does not
#: check them again.
_CHECKED: set[tuple[str, str]] = set()


def _missing_on_nodes(ray: Any, nodes: list[dict[str, Any]], needs: Needs) -> list[str]:
    """Packages and paths that are missing on nodes, which are all asked at once."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    asked = []
    for node in nodes:
        if (node["NodeID"], needs.model) in _CHECKED:
            continue
        where = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        task = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=where,
                          runtime_env={"env_vars": environment()})(_inspect_node)  # fmt: skip
        asked.append((node, task.remote(needs.model)))
    until, found = time.monotonic() + ANSWER_SECONDS, []
    for node, answer in asked:
        lines = _missing_on_node(ray, node["NodeManagerHostname"], answer, until, needs)
        found += lines
        if not lines:
            _CHECKED.add((node["NodeID"], needs.model))
    return found


def _missing_on_node(ray: Any, name: str, answer: Any, until: float, needs: Needs) -> list[str]:
    from ray.exceptions import GetTimeoutError, RayError

    try:
        theirs, there = ray.get(answer, timeout=max(until - time.monotonic(), 0.0))
    except GetTimeoutError:
        return [
            f"node {name} does not answer within {ANSWER_SECONDS:.0f} s: look at it (ray status)"
        ]
    except (RayError, ModuleNotFoundError, ImportError) as error:
        if package := missing_package(error):
            return [f"node {name} has no package {package}: install scalerl[ray,train] there"]
        why = str(error).strip().splitlines()
        return [f"node {name} cannot run anything: {why[-1] if why else type(error).__name__}"]
    found = [
        f"node {name} has {package} {theirs[package]}, this machine {ours}: install the same "
        "version on every node"
        for package, ours in versions().items()
        if theirs[package] != ours
    ]
    if not there:
        found.append(
            f"node {name} does not see model.path={needs.model}: put it on a disk that all nodes "
            "share, or take a model from a hub"
        )
    return found


def missing_package(error: Exception) -> str:
    """The package that a failed import on a node names; "" for other errors."""
    # Ray hands over errors of other processes as text: the exception's own `name` is lost.
    line = next((t for t in str(error).splitlines() if "No module named" in t), "")
    return line.rpartition("No module named ")[2].strip().strip("'\"")


def _inspect_node(model: str) -> tuple[dict[str, str], bool]:
    from scalerl.placement import ray_cluster

    return ray_cluster.versions(), not model or Path(model).is_dir()


# -- what a cluster prints ------------------------------------------------------------------------


#: Processes of Ray itself, with output that is not shown.
RAYS_OWN = ("raylet", "autoscaler", "gcs_server")
#: A line of a worker's output as a Ray client gets it: `(generator 0 pid=7, ip=10.0.0.1) text`.
_CLIENT_LINE = re.compile(r"\((\w[^()]*?)(?: pid=\d+)?(?:, ip=[^)]*)?\)(?:\x1b\[0m)? (.*)")


def _relabel_output(ray: Any, address: str) -> None:
    """Print the output of workers under their names, and drop that of Ray itself."""

    def show(data: dict[str, Any], *_: Any, **__: Any) -> None:
        name = data.get("actor_name")
        if not name or str(data.get("pid")) in RAYS_OWN:
            return
        for line in data.get("lines", ()):
            if str(line).strip():
                print(f"{name}: {line}", file=sys.stderr)

    ray._private.worker.print_to_stdstream = show
    if address.startswith("ray://"):
        from ray.util.client.logsclient import LogstreamClient

        def show_client(self: Any, level: int, msg: str) -> None:
            for name, line in _CLIENT_LINE.findall(msg):
                if name not in RAYS_OWN and line.strip():
                    print(f"{name}: {line}", file=sys.stderr)

        LogstreamClient.stdstream = show_client


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence Ray's own log messages while it starts."""
    logger = logging.getLogger("ray")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def interface_of(address: str) -> str | None:
    """The network interface that has an address, so that ranks listen on no other; None if it is
    unknown."""
    if sys.platform != "linux":
        return None
    import fcntl
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                packed = struct.pack("256s", name[:15].encode())
                found = fcntl.ioctl(probe.fileno(), 0x8915, packed)  # SIOCGIFADDR
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    return None
