"""Lives of a generator: it outlives its trainer, and begins anew with the next one."""

from __future__ import annotations

from typing import Any

from scalerl.pipeline import messages as m


class Lives:
    """At the driver's end: what it said in an earlier life is an old story.

    >>> lives = Lives()
    >>> lives.of_this(["as ever"])
    ['as ever']
    >>> lives.begin()
    1
    >>> lives.of_this(["of the old life", m.Ready(30)])
    []
    >>> lives.of_this(["and this too", m.Ready(28, life=1), "of the new one"])[1:]
    ['of the new one']
    """

    def __init__(self) -> None:
        self.number = 0
        self._ready = True

    def begin(self) -> int:
        self.number += 1
        self._ready = False
        return self.number

    def of_this(self, messages: list[Any]) -> list[Any]:
        """Those from its `Ready` on; that it has failed is true in any life."""
        if self._ready:
            return messages
        for i, message in enumerate(messages):
            if isinstance(message, m.Failed):
                return [message]
            if isinstance(message, m.Ready) and message.life == self.number:
                self._ready = True
                return messages[i:]
        return []
