"""The schedules (paper, section 3.1): when groups may start, and which to train on next.

pipeline-k     Generators stream; new weights are published after every step. A token written at
               version v may be trained on up to version v + k. New groups are only started while
               every group that is under way can still be trained on in time, and the trainer waits
               rather than leave a group behind: nothing is ever too old, or thrown away.
off-policy-k   Generate k batches with one set of weights, then make k updates, then publish.
               off-policy-1 is the synchronous baseline.
lag-k          Every token is exactly k versions old when it is trained on (younger in the first k
               steps). Generators and trainer wait for each other: not for speed, but to measure
               what staleness does, whatever the speed of either side.

Pure functions, without processes or clocks. `tests/pipeline/test_schedule.py` and `test_worlds.py`
run them through random worlds.

To add a schedule, write a class `(k, prompts)` with the interface of `Schedule` (or derive it from
`FinishedFirst`) and register it, or name it in the recipe by its import path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from scalerl.recipe.sections_runtime import SCHEDULE_NAMES
from scalerl.registry import Registry


@dataclass(frozen=True, slots=True)
class GroupAge:
    """How old the tokens of a group under way are."""

    serial: int
    #: Oldest version that one of its tokens can have: that of the generator when it was started,
    #: or, once it is finished, that of its oldest token.
    oldest: int
    #: Whether it is written and scored.
    finished: bool = False


@dataclass(frozen=True, slots=True)
class NextBatch:
    """Groups for the next step, or what the trainer waits for."""

    serials: tuple[int, ...]
    #: Number of further groups that must be finished first ...
    missing: int = 0
    #: ... or the serial number of the one group that would grow too old without this step.
    late: int | None = None
    #: What the trainer waits for, in words.
    waits_for: str | None = None


class Schedule(Protocol):
    """The interface of a schedule. Versions count optimiser steps; a group is under way from its
    start until the trainer takes it."""

    @property
    def streams(self) -> bool:
        """Whether new groups may start at any time. Then no more are begun than keep the generators
        busy, and groups of a checkpoint that must be written again are drawn like new ones."""
        ...

    def room(self, trainer: int, generator: int, under_way: int, finished: int) -> int:
        """Number of new groups that may be started, given the versions of trainer and generator,
        the number of groups under way, and how many of these are finished."""
        ...

    def too_few(self, trainer: int, under_way: int, finished: int) -> NextBatch | None:
        """What the trainer waits for, if too few groups are finished for a step; else None."""
        ...

    def choose(self, trainer: int, under_way: Sequence[GroupAge]) -> NextBatch:
        """The groups for the trainer's next step, or what it waits for."""
        ...

    def publishes(self, version: int) -> bool:
        """Whether the weights of this version are published to the generators. Version 0 is."""
        ...


SCHEDULES: Registry[Callable[[int, int], Schedule]] = Registry(
    "schedule", announce=SCHEDULE_NAMES.add
)


@dataclass(frozen=True, slots=True)
class FinishedFirst:
    """What schedules have in common: a batch is the finished groups with the oldest tokens."""

    #: Largest staleness of a token (pipeline), staleness of all (lag), or batches per phase
    #: (off-policy).
    k: int
    #: Groups in a batch.
    prompts: int

    def too_few(self, trainer: int, under_way: int, finished: int) -> NextBatch | None:
        """What the trainer waits for, if too few groups are finished for a step; else None."""
        missing = self.prompts - finished
        return NextBatch((), missing, None, f"{missing} more groups") if missing > 0 else None

    def choose(self, trainer: int, under_way: Sequence[GroupAge]) -> NextBatch:
        """The groups for the trainer's next step, oldest tokens first, or what it waits for."""
        ready = sorted((t for t in under_way if t.finished), key=lambda t: (t.oldest, t.serial))
        early = self.too_few(trainer, len(under_way), len(ready))
        if early is not None:
            return early
        writing = [t for t in under_way if not t.finished]
        late = self._too_late_after(trainer, [*ready[self.prompts :], *writing])
        if late is not None:
            words = f"group {late.serial}, written from version {late.oldest} on"
            return NextBatch((), 0, late.serial, words)
        return NextBatch(tuple(t.serial for t in ready[: self.prompts]))

    def _too_late_after(self, trainer: int, rest: Sequence[GroupAge]) -> GroupAge | None:
        """A group that would be too old if this step were taken without it; None if there is
        none."""
        return None


@SCHEDULES.register("pipeline")
@dataclass(frozen=True, slots=True)
class PipelineSchedule(FinishedFirst):
    """Generators stream; no token is trained on more than k versions after it was written."""

    @property
    def streams(self) -> bool:
        return True

    def room(self, trainer: int, generator: int, under_way: int, finished: int) -> int:
        """Number of new groups that may be started."""
        # A group started now may be trained on at versions trainer .. generator + k: that many
        # batches must hold everything under way. With one finished batch in store, more would only
        # grow old.
        in_time = self.prompts * max(generator + self.k - trainer + 1, 0) - under_way
        return max(in_time, 0) if finished < self.prompts else 0

    def _too_late_after(self, trainer: int, rest: Sequence[GroupAge]) -> GroupAge | None:
        """A group that would be too old before it could be trained on, if this step were taken
        without it: the i-th most urgent needs a place in the next (oldest + k - trainer) batches.

        With k = 2 and batches of 2, the trainer is at version 5 and about to take a step without
        these groups. Group 7, begun at version 3, can be trained on up to version 5: this step is
        its last chance, 2 * (3 + 2 - 5) = 0 places are left for it, so the trainer waits. Had it
        been begun at version 4, it could still be in the next batch, of 2 * (4 + 2 - 5) places:

        >>> schedule = PipelineSchedule(k=2, prompts=2)
        >>> schedule._too_late_after(5, [GroupAge(7, 3), GroupAge(8, 5, finished=True)])
        GroupAge(serial=7, oldest=3, finished=False)
        >>> schedule._too_late_after(5, [GroupAge(7, 4), GroupAge(8, 5, finished=True)])

        Three groups of version 4 compete for those 2 places: one of them must not be left behind,
        and what is waited for is the one that is still being written:

        >>> finished = [GroupAge(8, 4, finished=True), GroupAge(9, 4, finished=True)]
        >>> schedule._too_late_after(5, [GroupAge(7, 4), *finished])
        GroupAge(serial=7, oldest=4, finished=False)
        """
        urgent = sorted(rest, key=lambda t: (t.oldest, t.finished, t.serial))
        for i, age in enumerate(urgent, start=1):
            if i > self.prompts * (age.oldest + self.k - trainer):
                return next((t for t in urgent if not t.finished), age)
        return None

    def publishes(self, version: int) -> bool:
        """True: the weights of every version are published."""
        return True


@SCHEDULES.register("off-policy")
@dataclass(frozen=True, slots=True)
class OffPolicySchedule(FinishedFirst):
    """Phases of k batches, written with one set of weights; all are finished before the first of
    their k steps."""

    @property
    def streams(self) -> bool:
        return False

    def room(self, trainer: int, generator: int, under_way: int, finished: int) -> int:
        """Number of new groups that may be started: all of a phase when it begins."""
        begins = trainer % self.k == 0 and generator == trainer and not under_way
        return self.k * self.prompts if begins else 0

    def too_few(self, trainer: int, under_way: int, finished: int) -> NextBatch | None:
        """What the trainer waits for, if too few groups are finished for a step; else None."""
        writing = under_way - finished
        if writing and trainer % self.k == 0:
            return NextBatch((), writing, None, f"{writing} groups of this phase")
        # By name: `super()` fails in a dataclass with slots, which is a new class.
        return FinishedFirst.too_few(self, trainer, under_way, finished)

    def publishes(self, version: int) -> bool:
        """Whether a phase ends with this version."""
        return version % self.k == 0


@SCHEDULES.register("lag")
@dataclass(frozen=True, slots=True)
class LagSchedule(FinishedFirst):
    """Each version of the weights writes one batch, which is trained on k steps later.

    With k = 2 and batches of 4, version 0 writes three batches, so that there is something to
    train on in the first steps. From then on every version writes one:

    >>> schedule = LagSchedule(k=2, prompts=4)
    >>> schedule.room(0, 0, under_way=0, finished=0), schedule.room(1, 1, under_way=8, finished=8)
    (12, 4)

    Nothing is begun before generators have the newest weights, nothing is trained on before all
    that was begun is finished, so the weights never change while a token is written:

    >>> schedule.room(1, 0, under_way=8, finished=8)
    0
    >>> schedule.too_few(1, under_way=12, finished=11).waits_for
    '1 more groups'
    """

    @property
    def streams(self) -> bool:
        return True

    def room(self, trainer: int, generator: int, under_way: int, finished: int) -> int:
        """Number of new groups that may be started: what is missing of k + 1 batches."""
        return max(self._in_store - under_way, 0) if generator == trainer else 0

    def too_few(self, trainer: int, under_way: int, finished: int) -> NextBatch | None:
        """What the trainer waits for, unless k + 1 batches are finished; else None."""
        missing = max(self._in_store, under_way) - finished
        return NextBatch((), missing, None, f"{missing} more groups") if missing > 0 else None

    def publishes(self, version: int) -> bool:
        """True: the weights of every version are published."""
        return True

    @property
    def _in_store(self) -> int:
        return self.prompts * (self.k + 1)
