"""How the ranks of a trainer find each other, and how they notice that one is gone."""

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

#: How torch says that another rank is gone or late.
LOST = ("connection closed", "connection reset", "timed out", "timeout", "socket", "broken pipe",
        "gloo", "nccl")  # fmt: skip


def rendezvous_store(host: str) -> tuple[TCPStore, int]:
    """A store that ranks meet in, at a free port of one address of this machine and of no other
    (torch's own would listen on all). Whoever holds it keeps it open."""
    listener = socket.create_server((host, 0))
    port = int(listener.getsockname()[1])
    store = TCPStore(
        host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    return store, port


def join_process_group(spec: TrainerSpec) -> torch.device:
    """This process among the ranks, and its device. Tested on CPUs; on GPUs it is the same with
    NCCL, one device per process."""
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
        "cpu:gloo,cuda:nccl" if gpu else "gloo",
        store=store, rank=ranks.rank, world_size=ranks.of, timeout=limit,
    )  # fmt: skip
    if not gpu:
        return torch.device("cpu")
    device = torch.device("cuda", ranks.rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


@contextlib.contextmanager
def raising_rank_lost() -> Iterator[None]:
    """What torch raises when another rank is gone or late is RankLost."""
    try:
        yield
    except NonFiniteGradient:
        raise
    except RuntimeError as error:
        text = str(error)
        if not any(words in text.lower() for words in LOST):
            raise
        raise RankLost(first_line(error)) from None
