"""Who is writing what: the requests each generator holds, its version, its speed, its deaths."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from scalerl.engine.interface import Request, Written
from scalerl.pipeline import messages as m
from scalerl.pipeline.groups import UnderWay

#: Weight of the newest report in a generator's speed.
FRESH = 0.2
VALIDATION = "validation/"


def is_validation(request_id: str) -> bool:
    return request_id.startswith(VALIDATION)


class Desk:
    """Book-keeping of requests; sends nothing itself."""

    def __init__(self, generators: int, *, in_step: bool = False) -> None:
        self.asked: list[dict[str, Request]] = [{} for _ in range(generators)]
        self.versions = [0] * generators
        #: Tokens a second while busy, smoothed; only their proportions matter.
        self.speed = [1.0] * generators
        #: Times each has died since it last finished something.
        self.deaths = [0] * generators
        #: Rollouts that each has finished.
        self.rollouts = [0] * generators
        #: Those that are not up yet: what is asked of them is sent when they are.
        self.starting = set(range(generators))
        #: No clock may decide who writes what.
        self.in_step = in_step

    def __len__(self) -> int:
        return len(self.asked)

    @property
    def oldest(self) -> int:
        """The oldest version that any generator may still write with."""
        return min(self.versions)

    def all_at(self, version: int) -> None:
        self.versions = [version] * len(self)

    def divide(
        self,
        groups: Mapping[int, UnderWay],
        requests: Callable[[int, UnderWay], list[Request]],
    ) -> list[list[Request]]:
        """Requests for each generator: a group goes as a whole to the one that will be done first,
        so that a slow one holds nobody up."""
        shares: list[list[Request]] = [[] for _ in self.asked]
        for serial, u in groups.items():
            load = [
                (len(asked) + len(share) + 1) / speed
                for asked, share, speed in zip(self.asked, shares, self.speed, strict=True)
            ]
            u.generator = load.index(min(load))
            shares[u.generator] += requests(serial, u)
        return shares

    def hand(self, i: int, requests: Iterable[Request]) -> tuple[Request, ...]:
        """Generator i holds these from now on."""
        new = {r.id: r for r in requests}
        self.asked[i] |= new
        return tuple(new.values())

    def heard(self, i: int, message: m.Finished) -> list[Written]:
        """What generator i has finished of what it holds; anything else is an old story."""
        self.versions[i] = message.version
        busy = message.seconds.get("generate", 0.0)
        if message.tokens and busy and not self.in_step:
            self.speed[i] += FRESH * (message.tokens / busy - self.speed[i])
        self.rollouts[i] += len(message.written)
        if message.written:
            self.deaths[i] = 0
        return [w for w in message.written if self.asked[i].pop(w.id, None) is not None]

    def held(self, i: int, *, validation: bool) -> list[Request]:
        """What generator i still has to write, of one of the two kinds."""
        return [r for r in self.asked[i].values() if is_validation(r.id) == validation]
