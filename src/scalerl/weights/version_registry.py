"""Which weights are the newest: all that the parts of a Ray cluster must agree on. No torch."""

from __future__ import annotations

import asyncio
from typing import Any

#: Versions kept in the object store: one may be on its way while the next is published.
KEPT_VERSIONS = 2
#: Seconds that a question stands.
POLL_SECONDS = 5.0


class VersionRegistry:
    """Which weights are the newest: an actor of its own, of no weight."""

    def __init__(self) -> None:
        self.version, self.boxes = -1, [[]]  # type: tuple[int, list[list[Any]]]
        self.changed = asyncio.Condition()

    async def node(self) -> str:
        """Where it is."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    async def post(self, version: int, pieces: list[Any]) -> None:
        async with self.changed:
            self.version = version
            self.boxes = [*self.boxes, pieces][-KEPT_VERSIONS:]
            self.changed.notify_all()

    async def newer(self, known: int) -> tuple[int, list[Any]]:
        """The newest version and its pieces, when it is another than `known`; or as it was, after
        a while."""
        async with self.changed:
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await self.changed.wait_for(lambda: self.version != known)
            except TimeoutError:
                return known, []
            return self.version, self.boxes[-1]
