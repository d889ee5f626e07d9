"""Where a recipe would place its workers, and what is missing there, for `train --dry-run`.

Torch and Ray are imported only where they are needed, and the recipe's types not at all: a dry run
must be quick.
"""

from __future__ import annotations

import os
from typing import Any

from scalerl.errors import InputError


def describe_placement(recipe: Any) -> list[str]:
    """A line about the placement, then one for each resource that is missing."""
    where = recipe.placement
    device = "GPU" if where.device == "cuda" else "CPU"
    at = f"ray at {where.address}" if where.backend == "ray" else where.backend
    many = "generator" if where.generators == 1 else "generators"
    trains = "trainer" if where.trainers == 1 else "ranks of the trainer"
    shards = where.devices_per_generator
    each = f"{shards} {device}s a generator, one a rank" if shards > 1 else f"a {device} each"
    line = (
        f"placement ({at}): {where.generators} {many} ({where.engine}) and {where.trainers} "
        f"{trains} ({where.trainer}), {each}; up to {where.checkers} checks at once"
    )
    return [line, *_missing(where, device)]


def _missing(where: Any, device: str) -> list[str]:
    if where.backend == "ray" and where.address != "local":
        return _missing_in_cluster(where, device)
    if where.backend not in ("ray", "local") or device == "CPU":
        return []  # cores may be shared
    needed, there = where.devices, _gpus()
    if there >= needed:
        return []
    return [
        f"missing: {needed} GPUs are needed, this machine has {there}: join a cluster "
        "(placement.backend=ray placement.address=auto), or lower placement.generators and "
        "placement.trainers"
    ]


def _missing_in_cluster(where: Any, device: str) -> list[str]:
    from scalerl.placement.ray_cluster import Needs, connect, disconnect, missing_resources

    needs = Needs(
        where.generators, where.trainers, device, weights=0, model="",
        devices_per_generator=where.devices_per_generator,
    )  # fmt: skip
    try:
        connect(where.address, needs, check=False)
    except InputError as error:
        return [f"missing: {error}"]
    try:
        return [f"missing: {line}" for line in missing_resources(needs)]
    finally:
        disconnect()


def _gpus() -> int:
    try:
        import torch
    except ImportError:
        return len([v for v in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if v])
    return int(torch.cuda.device_count())
