"""A Ray cluster to live in: one that is there, or one of this machine that is started and stopped.
What it lacks for a run is found before any part is started, in one line."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import re
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from scalerl.processes import pid_alive
from scalerl.text import first_line

#: Versions of Ray that this was tested with: the first, and the first that it was not.
RAY = ("2.60", "2.61")
#: Sets of weights that an object store must hold: two that are kept, one that is on its way.
SETS = 3
#: What parts are given of the environment: where models come from, and the key to them.
PASSED = ("HF_HOME", "HF_TOKEN", "HF_HUB_OFFLINE", "HF_ENDPOINT", "SCALERL_FAULTS", "PYTHONPATH")
#: Starts the name of the folder of a cluster of our own; then comes the number of its process.
FOLDER = "scalerl-ray-"
#: Seconds that the processes of a cluster of our own may take to start.
START = 120
#: Times that a cluster of our own is started, or one elsewhere is asked to let us in: Ray gives a
#: node, and what serves a client, half a minute, whatever else the machine does.
ATTEMPTS = 3
#: What Ray says when that was too little.
LATE = ("timed out during startup", "Initialization failure from server")
#: Seconds until an address that does not answer is taken for nobody's.
KNOCK = 10.0
#: Seconds until a cluster that was asked to answer is taken for absent.
ANSWER = 60.0


@dataclass(frozen=True, slots=True)
class Needs:
    """What a run asks of a cluster."""

    generators: int
    trainers: int
    #: "CPU" or "GPU": what a generator and a rank take one of.
    device: str
    #: Bytes of a set of weights.
    weights: int
    #: A directory that every node must see; "" where the model comes from a hub.
    model: str

    @property
    def devices(self) -> int:
        return self.generators + self.trainers

    def bundle(self) -> dict[str, float]:
        """What one generator or rank takes."""
        return {"CPU": 1.0} if self.device == "CPU" else {"CPU": 1.0, "GPU": 1.0}


def environment() -> dict[str, str]:
    """Of every part. Nothing else of ours travels: trackers, and their keys, stay in the driver."""
    found = {name: os.environ[name] for name in PASSED if name in os.environ}
    return found | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
                    "TOKENIZERS_PARALLELISM": "false"}  # fmt: skip


def connect(address: str, needs: Needs, *, check: bool = True, patience: float = 0.0) -> None:
    """Join a cluster, or start one of this machine's own (`local`). What it lacks for a run may
    come within `patience` seconds: a node that was lost may be replaced."""
    _settle_environment(address)
    ray = import_ray()
    options: dict[str, Any] = {}
    if address == "local":
        # A core may be shared by parts that wait for each other in turn.
        cpus = max(needs.devices + 1, os.cpu_count() or 1)
        options = {"num_cpus": cpus, "include_dashboard": False, "_temp_dir": str(_folder())}
    _speak_plainly(ray, address)
    for attempt in range(ATTEMPTS):
        try:
            _knock(address)
            with _quiet():
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
        while check and (lacking := missing_resources(needs)):
            if time.monotonic() > until:
                raise InputError(lacking[0])
            time.sleep(1.0)
    except BaseException:
        disconnect()
        raise


def disconnect() -> None:
    """Leave the cluster, or end it; of one of our own, nothing stays."""
    import_ray().shutdown()
    _sweep(os.getpid())


def _folder() -> Path:
    """Where a cluster of our own keeps its sockets and logs: a short name, for sockets."""
    _sweep(None)
    return Path(tempfile.mkdtemp(prefix=f"{FOLDER}{os.getpid()}-"))


def _sweep(whose: int | None) -> None:
    """Remove what clusters of this process left; or (None) of processes that are no more."""
    for path in Path(tempfile.gettempdir()).glob(f"{FOLDER}*"):
        owner = path.name.removeprefix(FOLDER).partition("-")[0]
        if owner.isdigit() and (int(owner) == whose if whose else not pid_alive(int(owner))):
            shutil.rmtree(path, ignore_errors=True)


def _knock(address: str) -> None:
    """Whether anybody listens there: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=KNOCK).close()


def _settle_environment(address: str) -> None:
    """Before Ray is imported, which is when it looks."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    if address == "local":
        if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)  # nobody else's, and on no disk
        os.environ.setdefault("RAY_prestart_worker_first_driver", "0")  # parts bring their own
        os.environ.setdefault("RAY_worker_niceness", "0")  # they are what the cluster is for
        # A busy machine is no broken one.
        os.environ.setdefault("RAY_gcs_server_port_wait_time_s", str(START))


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
    """Everything that this cluster lacks for a run, a line each."""
    ray = import_ray()
    nodes = [n for n in ray.nodes() if n["Alive"]]
    # Cheap things first: a cluster that is too small is not looked at node by node.
    total = {kind: sum(n["Resources"].get(kind, 0.0) for n in nodes) for kind in ("CPU", "GPU")}
    found = []
    for kind in dict.fromkeys(["CPU", needs.device]):
        if total[kind] < needs.devices:
            found.append(
                f"the Ray cluster has {total[kind]:g} {kind}s on {len(nodes)} nodes, but "
                f"{needs.generators} generators and {needs.trainers} trainers need "
                f"{needs.devices}: add nodes, or lower placement.generators or placement.trainers"
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


def versions() -> dict[str, str]:
    """Of what must be the same everywhere."""
    found = {"python": ".".join(platform.python_version_tuple()[:2])}
    for name in ("scalerl", "torch", "transformers", "ray"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "missing"
    return found


#: Nodes that had everything when they were asked, and the model that they saw: a run that goes back
#: to its last checkpoint does not ask them again.
_WELL: set[tuple[str, str]] = set()


def _missing_on_nodes(ray: Any, nodes: list[dict[str, Any]], needs: Needs) -> list[str]:
    """What the nodes themselves have to say, all asked at once: packages and paths."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    asked = []
    for node in nodes:
        if (node["NodeID"], needs.model) in _WELL:
            continue
        where = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        look = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=where,
                          runtime_env={"env_vars": environment()})(_look)  # fmt: skip
        asked.append((node, look.remote(needs.model)))
    until, found = time.monotonic() + ANSWER, []
    for node, answer in asked:
        lines = _missing_on_node(ray, node["NodeManagerHostname"], answer, until, needs)
        found += lines
        if not lines:
            _WELL.add((node["NodeID"], needs.model))
    return found


def _missing_on_node(ray: Any, name: str, answer: Any, until: float, needs: Needs) -> list[str]:
    from ray.exceptions import GetTimeoutError, RayError

    try:
        theirs, there = ray.get(answer, timeout=max(until - time.monotonic(), 0.0))
    except GetTimeoutError:
        return [f"node {name} does not answer within {ANSWER:.0f} s: look at it (ray status)"]
    except (RayError, ModuleNotFoundError, ImportError) as error:
        missing = next((t for t in str(error).splitlines() if "No module named" in t), "")
        if missing:
            package = missing.rpartition("No module named ")[2].strip().strip("'\"")
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


def _look(model: str) -> tuple[dict[str, str], bool]:
    from scalerl.placement import ray_cluster

    return ray_cluster.versions(), not model or Path(model).is_dir()


# -- what a cluster prints ------------------------------------------------------------------------


#: Who prints in a cluster beside our parts.
RAYS_OWN = ("raylet", "autoscaler", "gcs_server")
#: How a client of a cluster gets a line of a part: `(generator 0 pid=7, ip=10.0.0.1) text`.
_CLIENT_LINE = re.compile(r"\((\w[^()]*?)(?: pid=\d+)?(?:, ip=[^)]*)?\)(?:\x1b\[0m)? (.*)")


def _speak_plainly(ray: Any, address: str) -> None:
    """What parts print comes out under their names; what Ray prints of itself does not."""

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
    """Ray's own messages while it starts are no news."""
    logger = logging.getLogger("ray")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def interface_of(address: str) -> str | None:
    """The network interface that has an address, so that ranks listen on no other; None where it
    cannot be told."""
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
