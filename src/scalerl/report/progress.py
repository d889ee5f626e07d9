"""A progress bar that keeps out of the way: on a terminal only, and only for work that lasts."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

from scalerl.text import clock_text

#: Work shorter than this shows nothing.
PATIENCE = 2.0
#: Seconds between two drawings.
PAUSE = 0.1
BAR = 28


class ProgressBar:
    """A bar on stderr with the time left, for work of more than two seconds on a terminal. Call it
    with the fraction done; leave its context (or reach 1) to wipe the line.

    >>> with ProgressBar("fitting") as report:
    ...     report(0.5)
    """

    def __init__(
        self,
        label: str,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._label = label[:24]
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._start = clock()
        self._last = -1.0
        self._shown = False

    def __call__(self, fraction: float) -> None:
        now = self._clock() - self._start
        done = min(max(fraction, 0.0), 1.0)
        if done >= 1.0:
            self.close()
            return
        # A log file would get every state of the bar as a line.
        if now < PATIENCE or now - self._last < PAUSE or not self._stream.isatty():
            return
        self._last = now
        self._shown = True
        filled = int(BAR * done)
        left = f"{clock_text(round(now * (1.0 - done) / done))} left" if done > 0.0 else ""
        bar = "#" * filled + "." * (BAR - filled)
        self._stream.write(f"\r{self._label} [{bar}] {done:4.0%} {left:<14}")
        self._stream.flush()

    def close(self) -> None:
        """Wipe the bar, if there was one."""
        if self._shown:
            # Wider than a bar, and one column less than a terminal, which would wrap.
            self._stream.write("\r" + " " * 78 + "\r")
            self._stream.flush()
            self._shown = False

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
