"""What both kinds of worker processes share: loading a model, and how they end."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

from scalerl.errors import InputError
from scalerl.pipeline import messages as m


def load_model(path: str, dtype: str, device: str) -> Any:
    """A causal LM from a directory or hub id."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype))
    except (OSError, ValueError) as error:
        raise InputError(f"model {path}: {str(error).splitlines()[0]}") from None
    return model.to(device)


def guarded(conn: Connection, serve: Callable[[], None]) -> None:
    """Ctrl-C is for the main process; what goes wrong here is told to it in one line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _die_with_parent()
    try:
        serve()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the main process is gone: nothing is left to do
    except Exception as error:  # told, not hidden
        text = str(error).splitlines()
        conn.send(m.Failed(f"{type(error).__name__}: {text[0] if text else ''}"))


def _die_with_parent() -> None:
    """Linux ends this process when the main one is gone, however that came about; elsewhere the
    processes look for themselves now and then."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid != os.getppid():
        sys.exit()  # it was gone before we could ask for that
