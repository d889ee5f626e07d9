"""Rollouts of other frameworks as episodes: one object for each format, in a registry.

A format of your own is one file that ends in one line:

    def convert(record: dict[str, Any], path: Path) -> dict[str, Any] | None:
        return messages_episode(step=record["i"], prompt_messages=..., completion=..., reward=...)

    ROLLOUTS.add("mine", RolloutFormat(convert, sniff=lambda path, head: b'"mine"' in head))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalerl.registry import Registry

#: The file has a signature that no other format has.
CERTAIN = 1.0
#: The content has the form of this format.
LIKELY = 0.5


@dataclass(frozen=True)
class RolloutFormat:
    """One format of rollouts."""

    #: A record of a file as an episode in the form of `EpisodeLine`, in JSON values; None for a
    #: record that is no rollout. Records come from other programs: any value may be missing or of
    #: another type.
    convert: Callable[[dict[str, Any], Path], dict[str, Any] | None]
    #: How sure it is, from 0 (no) to 1 (CERTAIN), that a file is of this format, given its path and
    #: its first bytes.
    sniff: Callable[[Path, bytes], float]
    #: The records of a file that is not JSON Lines, in order; None: it is.
    records: Callable[[Path], Iterator[dict[str, Any]]] | None = None


#: By name. Those that are added from outside are asked before those of this package.
ROLLOUTS: Registry[RolloutFormat] = Registry(
    "rollout format", accepts=lambda it: isinstance(it, RolloutFormat)
)
