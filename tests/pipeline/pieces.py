"""Stand-ins for what the loop's book-keeping is given: it is pure, and needs no more."""

import numpy as np

from scalerl.algorithm.rollout import Rollout


class FakeClock:
    """Moved by the test."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time


class FakeHandle:
    """Remembers what it was sent."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.silence = 0.0
        self.sent = []

    def send(self, message) -> None:
        self.sent.append(message)


def rollout(n=3, reward=1.0, finish="stop", version=4):
    return Rollout(
        np.arange(n),
        np.linspace(-1, 0, n).astype(np.float32),
        np.full(n, version),
        np.zeros(n, dtype=bool),
        finish,
        reward,
        None if reward is None else reward > 0,
    )
