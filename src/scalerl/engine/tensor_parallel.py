"""One vLLM engine over several devices (`placement.devices_per_generator`).

Each device has a process with a shard of the model, a scheduler of its own, and the very same calls
in the same order, so that all schedulers decide the same (vLLM's executor "external_launcher"). The
first shard is the engine in the generator's process; it starts the others and repeats every call
there. Weights arrive at the first one, which broadcasts them; each keeps its part.

A generator lives and dies as a whole: if one shard ends, all end, and the run replaces it.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scalerl.engine.interface import EngineSpec, EngineStep, Health, Lane, Request, TurnResult
from scalerl.errors import InputError, PipelineError

#: Seconds that the first shard has to report an error before a shard that failed ends it: most
#: errors are those of both, and a message helps more than the end of a process.
REPORT_SECONDS = 30.0
#: Where Linux keeps shared memory with a name.
SHARED = Path("/dev/shm")
#: Seconds between two checks of a shard whether the process that started it is still there.
PARENT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Tensor:
    """Stands for a tensor in a pickled call; the tensor itself is broadcast."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class TensorParallelEngine:
    """The engine of a generator with several devices."""

    def __init__(self, spec: EngineSpec) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self._shards = [_Shard(spec, rank, port) for rank in range(1, spec.devices)]
        self._engine: Any = _make(spec, 0, port)
        self._answers()
        # Where vLLM's shards on a CPU meet. All have opened it: without a name it goes with them.
        for path in SHARED.glob(f"{port}-*-cpushm_*"):
            path.unlink()

    # Methods of its own, and no `__getattr__` for them: since Python 3.12 a runtime protocol
    # (ScoringEngine) sees only these.

    def submit(self, requests: Iterable[Request], lane: Lane = "train") -> None:
        self._call("submit", list(requests), lane)

    def step(self) -> EngineStep:
        found: EngineStep = self._call("step")
        return found

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        self._call("load", dict(weights), version)

    def abort(self, ids: Sequence[str]) -> list[TurnResult]:
        found: list[TurnResult] = self._call("abort", list(ids))
        return found

    def score(self, tokens: Sequence[int]) -> list[float]:
        found: list[float] = self._call("score", tuple(tokens))
        return found

    def health(self) -> Health:
        # It changes nothing: the first shard's answer is that of all.
        found: Health = self._engine.health()
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def _call(self, name: str, *given: Any) -> Any:
        """Make the same call on every shard; returns what the first one returns."""
        text, tensors = _packed((name, given))
        for shard in self._shards:
            shard.connection.send_bytes(text)
        for tensor in tensors:
            _broadcast(tensor)
        result = getattr(self._engine, name)(*given)
        self._answers()
        return result

    def _answers(self) -> None:
        """Wait until all other shards have done the same."""
        for shard in self._shards:
            wrong = shard.connection.recv()
            if wrong is not None:
                raise PipelineError(f"shard {shard.rank} of the generator failed: {wrong}")


class _Shard:
    """The process of one of the other shards."""

    def __init__(self, spec: EngineSpec, rank: int, port: int) -> None:
        self.rank = rank
        ours, theirs = socket.socketpair()
        program = "from scalerl.engine.tensor_parallel import serve; serve()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, str(theirs.fileno())], pass_fds=[theirs.fileno()]
        )
        theirs.close()
        self.connection = Connection(ours.detach())
        self.connection.send((spec, rank, port, os.getpid()))
        threading.Thread(target=self._end_with_it, daemon=True).start()

    def _end_with_it(self) -> None:
        self._process.wait()
        # The others may wait in a collective for ever: only the end of the process helps.
        print(f"shard {self.rank} of the generator has ended", file=sys.stderr, flush=True)
        os._exit(1)


def serve() -> None:
    """Run a shard: every call that the first one makes. The program of the processes above."""
    connection = Connection(int(sys.argv[1]))
    spec, rank, port, parent = connection.recv()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    try:
        engine = _make(spec, rank, port)
        connection.send(None)
        while True:
            name, given = _unpacked(connection.recv_bytes())
            getattr(engine, name)(*given)
            connection.send(None)
    except EOFError:
        os._exit(0)
    except (InputError, PipelineError, RuntimeError, ValueError) as error:
        with contextlib.suppress(OSError):
            connection.send(str(error))
            connection.poll(REPORT_SECONDS)
        os._exit(1)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_SECONDS)
    os._exit(1)


def _make(spec: EngineSpec, rank: int, port: int) -> Any:
    """The engine of one shard."""
    # As torchrun sets them: vLLM reads these when it is started by another program.
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(spec.devices),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    from scalerl.engine.vllm import VllmEngine, import_vllm

    import_vllm(spec)
    from vllm.v1.executor.uniproc_executor import ExecutorWithExternalLauncher

    # By default "env://", of which vLLM makes the name of its shared memory on CPUs: the same for
    # all generators of a machine.
    address = f"tcp://127.0.0.1:{port}"
    ExecutorWithExternalLauncher._distributed_args = lambda self: (address, rank, rank)
    return VllmEngine(spec)


# -- calls with tensors ---------------------------------------------------------------------------


def _packed(call: Any) -> tuple[bytes, list[Tensor]]:
    """A call as bytes without its tensors, and the tensors in order."""
    tensors: list[Tensor] = []

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> _Tensor | None:
            if not isinstance(value, Tensor):
                return None
            tensors.append(value)
            return _Tensor(tuple(value.shape), value.dtype)

    file = io.BytesIO()
    Pickler(file).dump(call)
    return file.getvalue(), tensors


def _unpacked(text: bytes) -> Any:
    """The call of `_packed`, with the tensors that the first shard broadcasts."""

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, found: _Tensor) -> Tensor:
            tensor = torch.empty(found.shape, dtype=found.dtype)
            _broadcast(tensor)
            return tensor

    return Unpickler(io.BytesIO(text)).load()


def _broadcast(tensor: Tensor) -> None:
    """Send a tensor of the first shard to all others, over the CPU group of vLLM."""
    from vllm.distributed import get_tp_group

    torch.distributed.broadcast(tensor.cpu().contiguous(), src=0, group=get_tp_group().cpu_group)
