"""The Ray actor that holds the number of the newest weights. It does not import torch, so that the
actor starts quickly and takes little memory."""

from __future__ import annotations

import asyncio
from typing import Any

#: Versions kept in the object store: a receiver may still fetch one while the next is published.
KEPT_VERSIONS = 2
#: Seconds that a call of `newer` waits for a new version. Short, so that a receiver can stop.
POLL_SECONDS = 5.0


class VersionRegistry:
    """An actor that knows the newest version and the object references of its pieces."""

    def __init__(self) -> None:
        self.version = -1
        #: References of the latest versions. Ray frees an object once its last reference is gone.
        self.pieces: list[list[Any]] = [[]]
        self.changed = asyncio.Condition()

    async def node(self) -> str:
        """The node that the actor runs on."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    async def post(self, version: int, pieces: list[Any]) -> None:
        """Make a version the newest."""
        async with self.changed:
            self.version = version
            self.pieces = [*self.pieces, pieces][-KEPT_VERSIONS:]
            self.changed.notify_all()

    async def newer(self, known: int) -> tuple[int, list[Any]]:
        """The newest version and its pieces once it differs from `known`; (known, []) after a
        timeout."""
        async with self.changed:
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await self.changed.wait_for(lambda: self.version != known)
            except TimeoutError:
                return known, []
            return self.version, self.pieces[-1]
