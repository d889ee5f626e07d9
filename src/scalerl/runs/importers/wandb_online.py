"""Runs on a W&B server, through the `wandb` package and its key."""

from __future__ import annotations

import netrc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from scalerl.errors import InputError
from scalerl.runs.table import Table, flatten, from_rows


def read_wandb_online(address: str, wanted: Callable[[str], bool]) -> list[Table]:
    """The runs at ENTITY/PROJECT or ENTITY/PROJECT/RUN_ID, every row of their histories.

    Of runs whose name is not wanted nothing but the name is fetched. `scan_history` is complete;
    the shorter `history` is a sample of 500 rows.
    """
    parts = [part for part in address.strip("/").split("/") if part]
    if len(parts) == 4 and parts[2] == "runs":
        del parts[2]
    if len(parts) not in (2, 3):
        raise InputError(f"wandb:{address}: write wandb:ENTITY/PROJECT or wandb:ENTITY/PROJECT/RUN")
    try:
        import wandb
    except ImportError:
        raise InputError(
            "reading runs from W&B's server needs wandb: pip install 'scalerl[wandb]'"
        ) from None
    if not _has_key():
        raise InputError("reading runs from W&B's server needs a key: run `wandb login` first")
    broken = (wandb.errors.Error, OSError, ValueError, TypeError, AttributeError)
    try:
        api = wandb.Api(timeout=60)
        path = "/".join(parts)
        runs = [api.run(path)] if len(parts) == 3 else list(api.runs(path))
        tables = [_table(run, path, wanted) for run in runs]
    except broken as error:
        reason = " ".join(str(error).split())[:160]
        raise InputError(f"wandb:{address}: {reason or type(error).__name__}") from None
    if not tables:
        raise InputError(f"wandb:{address}: the project has no runs")
    return tables


def _table(run: Any, path: str, wanted: Callable[[str], bool]) -> Table:
    name = run.name or run.id
    if not wanted(name):
        return Table(name, {})
    facts = {k: str(v) for k, v in flatten(dict(run.config)) if v is not None}
    return Table(
        name,
        from_rows(run.scan_history(), f"wandb:{path}"),
        f"wandb:{path}",
        facts=facts,
        group=getattr(run, "group", None) or None,
    )


def _has_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    server = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    file = os.environ.get("NETRC") or Path.home() / ".netrc"
    try:
        return netrc.netrc(str(file)).authenticators(server) is not None
    except (OSError, netrc.NetrcParseError):
        return False
