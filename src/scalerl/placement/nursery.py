"""Where the processes of a run come from: one process that has imported what they need, and forks.

Importing torch takes seconds, and every part would do it anew: at the start of a run, and whenever
one is replaced. So (on Linux) Python's own fork server does it once, while the main process reads
the recipe; a part is then there in some hundredths of a second.

    main            reads the recipe, plans ......... asks for parts, runs the loop
    fork server     imports this module ..............├─ trainer
                                                      ├─ generator    killed? forked again
                                                      └─ checker

It computes nothing, holds no weights, and has one thread, so that a fork of it is as good as a new
process; no GPU is touched in it. It ends with the main process, and its children with it.
Elsewhere, and where it cannot be started, parts are new processes of Python (`spawn`).
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
PRELOAD = "scalerl.placement.nursery_imports"


def context() -> BaseContext:
    """How parts are started."""
    return multiprocessing.get_context("forkserver" if prepare() else "spawn")


def prepare() -> bool:
    """Let the server begin its imports: at the very start of a run, before anything else is.
    Whether there is one."""
    if not FORKS:
        return False
    multiprocessing.set_forkserver_preload([PRELOAD])
    try:
        with unheard():
            forkserver.ensure_running()
    except OSError:  # its socket has no place: TMPDIR is full, read-only, or its name too long
        return False
    return True


@contextmanager
def unheard() -> Iterator[None]:
    """A process that is started in here does not hear of Ctrl-C, of the end of its terminal, or of
    a cluster that ends its job, until it ignores them: they are for the main process."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP, signal.SIGTERM})
    resource_tracker.ensure_running()  # its start would end our mask of Ctrl-C
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def born(environment: Mapping[str, str], entry: Callable[..., None], *arguments: Any) -> None:
    """The first thing that a part does: it takes the main process's environment of now, not the one
    of when the server began."""
    for gone in os.environ.keys() - environment.keys():
        del os.environ[gone]
    os.environ.update(environment)
    _let_the_server_end()
    entry(*arguments)


def _let_the_server_end() -> None:
    """Python gives every child a hold on the server, which then outlives the main process by them.
    Ours would wait for each other: the server ends with the main process, and they with it."""
    server: Any = getattr(forkserver, "_forkserver", None)
    held = getattr(server, "_forkserver_alive_fd", None)
    if isinstance(held, int):
        os.close(held)
        server._forkserver_alive_fd = None
