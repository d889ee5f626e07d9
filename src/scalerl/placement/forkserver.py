"""The fork server: one process that has imported torch, from which the workers are forked.

Importing torch takes seconds, and every worker would do it again: at the start of a run, and
whenever one is replaced. So (on Linux) Python's own fork server does it once, while the main
process reads the recipe; a worker then starts in some hundredths of a second.

    main            reads the recipe, sets up ....... starts workers, runs the loop
    fork server     imports this module ..............├─ trainer
                                                      ├─ generator    killed? forked again
                                                      └─ checker

The server computes nothing, holds no weights, touches no GPU and has one thread, so that a fork of
it is as good as a new process. It ends with the main process, and its children with it. On other
systems, and where it cannot be started, workers are new processes of Python (`spawn`).
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext
from typing import Any

FORKS = sys.platform == "linux"
#: Imported by the server before its first fork. Not Transformers: plain models do without.
PRELOAD = "scalerl.placement.forkserver_preload"


def context() -> BaseContext:
    """The multiprocessing context that workers are started with."""
    return multiprocessing.get_context("forkserver" if prepare() else "spawn")


def prepare() -> bool:
    """Start the server, so that its imports run while the main process reads the recipe. Returns
    whether there is one."""
    if not FORKS:
        return False
    multiprocessing.set_forkserver_preload([PRELOAD])
    try:
        with signals_blocked():
            forkserver.ensure_running()
    except OSError:  # no place for its socket: TMPDIR is full, read-only, or its name too long
        return False
    return True


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Block SIGINT, SIGTERM and SIGHUP in processes that are started inside, until they set
    handlers of their own: these signals are for the main process, which ends its workers."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP, signal.SIGTERM})
    # Before SIGINT is blocked: starting the resource tracker would unblock it again.
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def child_main(environment: Mapping[str, str], entry: Callable[..., None], *arguments: Any) -> None:
    """The first function of a worker: sets the environment, then calls `entry`."""
    # The server's environment is that of its own start; the main process may have changed its own.
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)
    _release_fork_server()
    entry(*arguments)


def _release_fork_server() -> None:
    """Close the descriptor by which Python keeps the server alive for its children."""
    # With it, server and children would wait for each other: the server for all descriptors to be
    # closed, the children (`die_with_parent`) for the end of the server.
    server: Any = getattr(forkserver, "_forkserver", None)
    held = getattr(server, "_forkserver_alive_fd", None)
    if isinstance(held, int):
        os.close(held)
        server._forkserver_alive_fd = None
