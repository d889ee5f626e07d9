"""The line between a part and whoever gives it its work: a pipe's three methods."""

from __future__ import annotations

from typing import Any, Protocol


class PartLine(Protocol):
    """The part's end."""

    def poll(self, timeout: float) -> bool:
        """Whether there is something to receive, waiting so long for it."""
        ...

    def recv(self) -> Any: ...

    def send(self, obj: Any) -> None: ...
