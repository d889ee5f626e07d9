"""How the ranks of a trainer form a process group, and how they notice that one of them is gone."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, Store, TCPStore

from scalerl.text import first_line
from scalerl.trainer.interface import NonFiniteGradient, RankLost, RankSpec, TrainerSpec

#: Words in the messages of torch's errors when another rank is gone or late: gloo and NCCL raise
#: a plain RuntimeError.
RANK_LOST_TEXTS = (
    "connection closed", "connection reset", "timed out", "timeout", "socket", "broken pipe",
    "gloo", "nccl",
)  # fmt: skip


def rendezvous_store(host: str) -> tuple[TCPStore, int]:
    """A store for a rendezvous, at a free port of one address of this machine, and the port. It
    stays open as long as the caller keeps it."""
    # Left to itself, torch would listen on all interfaces, open to the whole network.
    listener = socket.create_server((host, 0))
    port = int(listener.getsockname()[1])
    store = TCPStore(
        host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    return store, port


def join_process_group(spec: TrainerSpec) -> torch.device:
    """Make this process a rank of the trainer's process group; returns its device. Tested on CPUs;
    on GPUs it uses NCCL, one device per process."""
    # One process alone is a group of one, with a deadline that is never reached.
    ranks = spec.ranks or RankSpec(0, 1, "", 0, None, 600.0)
    limit = timedelta(seconds=ranks.deadline)
    store: Store
    if spec.ranks is None:
        store = HashStore()
    else:
        if ranks.interface is not None:
            os.environ["GLOO_SOCKET_IFNAME"] = ranks.interface
            os.environ["NCCL_SOCKET_IFNAME"] = ranks.interface
        store = TCPStore(ranks.host, ranks.port, is_master=False, timeout=limit)
    gpu = spec.device.startswith("cuda")
    dist.init_process_group(
        # Gloo too on GPUs: small tensors on the CPU are reduced as well.
        "cpu:gloo,cuda:nccl" if gpu else "gloo",
        store=store, rank=ranks.rank, world_size=ranks.world_size, timeout=limit,
    )  # fmt: skip
    if not gpu:
        return torch.device("cpu")
    device = torch.device("cuda", ranks.rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


@contextlib.contextmanager
def raising_rank_lost() -> Iterator[None]:
    """Turn the errors that torch raises when another rank is gone or late into RankLost."""
    try:
        yield
    except NonFiniteGradient:
        raise
    except RuntimeError as error:
        text = str(error)
        if not any(words in text.lower() for words in RANK_LOST_TEXTS):
            raise
        raise RankLost(first_line(error)) from None
