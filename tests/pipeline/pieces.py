"""Stand-ins for what the loop's book-keeping is given: it is pure, and needs no more."""

import numpy as np

from scalerl.algorithm.episode import Episode, Turn


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


def turn(n=3, finish="stop", version=4):
    """A turn of n tokens."""
    return Turn.from_lists(
        list(range(n)), logprobs=np.linspace(-1, 0, n), versions=[version] * n, finish=finish
    )


def episode(n=3, reward=1.0, finish="stop", version=4, prompt=(7, 8)):
    """An episode of one turn of n tokens."""
    found = Episode.from_turn(prompt, turn(n, finish, version))
    return found.with_reward(reward, None if reward is None else reward > 0)
