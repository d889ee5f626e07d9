"""The ledger: where the compute of a run went. A resumed run continues from what was spent.

Device-hours are wall-clock hours of training times devices. Validation is counted apart (unless
the recipe counts it), and the time between a stop and a resume not at all. FLOPs follow the usual
rule: 2 N per token written or read before a later turn, 6 N per token that went through the
trainer, where N is the number of parameters that take part in the matrix products of a token.

    device_seconds = generate + hand_over + train + generate_wait + train_wait

`hand_over` is the time in which generators load weights. The two waits are the rest of each
side's time. `check_wait` is the share of train_wait during which everything that the trainer waited
for was written and only not scored yet; `check` is the time of the checkers, which are no devices,
and `judge` that of a judge model, which has devices of its own.
`wasted` counts rollouts that were written but not learnt from, by reason: stale (under way when a
run was resumed with another recipe; the schedules themselves let no rollout grow too old), filtered
(no variance, truncated, unscored) and failed (lost with a process, dropped by a generator that
left, or part of a refused step).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from scalerl.pipeline.crew import Clock
from scalerl.pipeline.messages import no_decode_steps
from scalerl.recipe.sections_runtime import ComputeSection, PlacementSection
from scalerl.runs.compute import (
    Compute,
    DecodeWork,
    DeviceSeconds,
    LedgerLine,
    WasteCount,
    Wasted,
)
from scalerl.tasks.judge import DEVICE_SECONDS, READ_TOKENS, WRITTEN_TOKENS
from scalerl.tasks.task import AnswerScore

WasteReason = Literal["stale", "filtered", "failed"]
#: Kinds of work that workers report.
Work = Literal["generate", "hand_over", "train", "check", "judge", "validate"]
#: Name of the worker that stands for all ranks of the trainer.
TRAINER = "trainer"
#: Kind of device of a worker that has not reported its own yet.
UNKNOWN = "unknown"


@dataclass
class Ledger:
    """Running totals; `to_line` / `restore` for checkpoints."""

    clock: Clock
    parameters: int
    generators: int
    trainers: int
    count_validation: bool = ComputeSection().count_validation
    devices_per_generator: int = PlacementSection().devices_per_generator
    #: Cores of the machine on which all workers are; None if they may be on several.
    cores: int | None = None
    steps: int = 0
    samples: int = 0
    generated_tokens: int = 0
    trained_tokens: int = 0
    #: Tokens that generators read before later turns of episodes: what is new, and everything
    #: before it where no generator has kept the turn before in its cache.
    reread_tokens: int = 0
    #: Tokens that a judge model has read and written, for training and validation.
    judge_read_tokens: int = 0
    judge_written_tokens: int = 0
    #: Sums over the decode steps of all generators, of training turns.
    decoded: list[float] = field(default_factory=no_decode_steps)
    #: CPU seconds of generators ("generate"), of the trainer's first rank ("train"), of the process
    #: that runs the loop ("loop"), and of that between two steps ("turn").
    cpu_seconds: dict[str, float] = field(
        default_factory=lambda: {"generate": 0.0, "train": 0.0, "loop": 0.0, "turn": 0.0}
    )
    device_seconds: float = 0.0
    validation_seconds: float = 0.0
    #: Wall-clock seconds of training and validation.
    clock_seconds: float = 0.0
    #: `device_seconds` split by kind of device.
    by_kind: dict[str, float] = field(default_factory=dict)
    #: Device-seconds of all generators.
    generator_seconds: float = 0.0
    #: Device-seconds of all ranks of the trainer.
    trainer_seconds: float = 0.0
    #: Device-seconds for which the trainer waited for checks alone.
    check_wait: float = 0.0
    #: Device-seconds of work that was lost in a crash; included in no other number.
    lost_device_seconds: float = 0.0
    #: Seconds of work that workers have reported, by kind.
    spent: dict[Work, float] = field(
        default_factory=lambda: {
            "generate": 0.0, "hand_over": 0.0, "train": 0.0, "check": 0.0, "judge": 0.0,
            "validate": 0.0,
        }
    )  # fmt: skip
    #: Rollouts and tokens that were wasted, by reason.
    wasted: dict[WasteReason, tuple[int, int]] = field(
        default_factory=lambda: {"stale": (0, 0), "filtered": (0, 0), "failed": (0, 0)}
    )
    #: Kind of device by the worker's name.
    _kinds: dict[str, str] = field(default_factory=dict, repr=False)
    #: Number of generators on each kind of device.
    _generator_kinds: Counter[str] = field(default_factory=Counter, repr=False)
    _since: float | None = field(default=None, repr=False)
    _cpu_since: float = field(default=0.0, repr=False)
    _validating: bool = field(default=False, repr=False)
    _checks_awaited: bool = field(default=False, repr=False)

    @property
    def devices(self) -> int:
        return self.generator_devices + self.trainers

    @property
    def generator_devices(self) -> int:
        return self.generators * self.devices_per_generator

    def start(self) -> None:
        """Start to count time."""
        self._since, self._cpu_since = self.clock.now(), time.process_time()

    def tick(self) -> None:
        """Add the time since the last tick to the totals."""
        if self._since is None:
            return
        now = self.clock.now()
        seconds, self._since = now - self._since, now
        used = time.process_time()
        self.cpu_seconds["loop"] = self.cpu_seconds.get("loop", 0.0) + used - self._cpu_since
        self._cpu_since = used
        self.clock_seconds += seconds
        if self._validating:
            self.validation_seconds += seconds * self.devices
            return
        self._add_generator_time(seconds * self.generator_devices)
        self.device_seconds += seconds * self.trainers
        self.trainer_seconds += seconds * self.trainers
        self._add_device_time(self._kinds.get(TRAINER, UNKNOWN), seconds * self.trainers)
        self.check_wait += seconds * self.trainers * self._checks_awaited

    @contextmanager
    def between_steps(self) -> Iterator[None]:
        """Count the CPU seconds of what the loop does between two steps: the trainer waits."""
        began = time.process_time()
        yield
        # A checkpoint of an earlier version has no such count.
        before = self.cpu_seconds.get("turn", 0.0)
        self.cpu_seconds["turn"] = before + time.process_time() - began

    def validating(self, on: bool) -> None:
        """Count the time from here on as validation, or as training again."""
        self.tick()
        self._validating = on

    def add_work(self, kind: Work, seconds: float) -> None:
        """Add the seconds of work that a worker reports."""
        # A worker reports for all its devices: they work at the same time.
        of_others = {"train": self.trainers, "check": 1, "judge": 1}
        devices = of_others.get(kind, self.devices_per_generator)
        seconds *= devices
        self.spent[kind] += seconds
        # Generators that have finished their share of a validation write for training again: that
        # time does not belong to the validation.
        if self._validating and kind in ("generate", "hand_over"):
            self._add_generator_time(seconds)
            self.validation_seconds -= seconds

    def add_judging(self, scores: Iterable[AnswerScore]) -> None:
        """Add what a judge model has reported with these scores."""
        for name, value in (metric for score in scores for metric in score.metrics):
            if name == READ_TOKENS:
                self.judge_read_tokens += int(value)
            elif name == WRITTEN_TOKENS:
                self.judge_written_tokens += int(value)
            elif name == DEVICE_SECONDS:
                self.add_work("judge", value)

    def add_decoded(self, sums: Sequence[float]) -> None:
        """Add the sums over decode steps that a generator reports."""
        if sums:
            self.decoded = [a + b for a, b in zip(self.decoded, sums, strict=True)]

    def set_device(self, worker: str, kind: str) -> None:
        """Record the kind of device that a worker runs on from here on."""
        self.tick()
        if worker != TRAINER:
            self._generator_kinds[self._kinds.get(worker, "")] -= worker in self._kinds
            self._generator_kinds[kind] += 1
        self._kinds[worker] = kind

    def _add_generator_time(self, seconds: float) -> None:
        """Add device-seconds of all generators together, in equal shares to their devices."""
        self.device_seconds += seconds
        self.generator_seconds += seconds
        kinds = +self._generator_kinds or Counter({UNKNOWN: 1})
        for kind, number in kinds.items():
            self._add_device_time(kind, seconds * number / kinds.total())

    def _add_device_time(self, kind: str, seconds: float) -> None:
        self.by_kind[kind] = self.by_kind.get(kind, 0.0) + seconds

    def awaits_checks(self, on: bool) -> None:
        """Record whether the trainer waits for checks alone from here on."""
        if on is not self._checks_awaited:
            self.tick()
            self._checks_awaited = on

    def generator_joined(self) -> None:
        """Count one more generator from here on."""
        self.tick()
        self.generators += 1

    def generator_left(self, worker: str) -> None:
        """Count one generator less from here on."""
        self.tick()
        self.generators -= 1
        if worker in self._kinds:
            self._generator_kinds[self._kinds.pop(worker)] -= 1

    def waste(self, why: WasteReason, rollouts: int, tokens: int) -> None:
        before = self.wasted[why]
        self.wasted[why] = (before[0] + rollouts, before[1] + tokens)

    def compute(self) -> Compute:
        """Compute so far, in every unit."""
        self.tick()
        seconds = self.device_seconds + self.validation_seconds * self.count_validation
        forward = self.generated_tokens + self.reread_tokens
        flops = self.parameters * (2.0 * forward + 6.0 * self.trained_tokens)
        return Compute(
            device_hours=seconds / 3600.0,
            flops=flops,
            generated_tokens=self.generated_tokens,
            trained_tokens=self.trained_tokens,
            samples=self.samples,
            steps=self.steps,
            minutes=self.clock_seconds / 60.0,
        )

    def split(self) -> DeviceSeconds:
        """Device-seconds by use."""
        spent = self.spent
        return DeviceSeconds(
            **spent,
            generate_wait=self.generator_seconds - spent["generate"] - spent["hand_over"],
            train_wait=self.trainer_seconds - spent["train"],
            check_wait=self.check_wait,
        )

    def to_line(self) -> LedgerLine:
        """The ledger as part of a step's line in the record."""
        self.tick()
        return LedgerLine(
            steps=self.steps,
            samples=self.samples,
            generated_tokens=self.generated_tokens,
            trained_tokens=self.trained_tokens,
            reread_tokens=self.reread_tokens,
            judge_read_tokens=self.judge_read_tokens,
            judge_written_tokens=self.judge_written_tokens,
            decode=DecodeWork(*self.decoded),
            cpu_seconds=dict(self.cpu_seconds),
            cores=self.cores,
            device_seconds=self.device_seconds,
            by_kind=dict(self.by_kind),
            validation_seconds=self.validation_seconds,
            lost_device_seconds=self.lost_device_seconds,
            spent=self.split(),
            wasted=Wasted(**{why: WasteCount(*counts) for why, counts in self.wasted.items()}),
        )

    def state(self) -> dict[str, Any]:
        """The totals, for a checkpoint."""
        self.tick()
        names = (
            "steps", "samples", "generated_tokens", "trained_tokens", "reread_tokens",
            "judge_read_tokens", "judge_written_tokens",
            "decoded", "cpu_seconds",
            "device_seconds", "by_kind", "validation_seconds", "clock_seconds",
            "generator_seconds", "trainer_seconds", "check_wait", "lost_device_seconds",
            "spent", "wasted",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from the totals of a checkpoint."""
        for name, value in state.items():
            setattr(self, name, value)
        # Those of an earlier version have fewer sums.
        self.decoded = [*self.decoded, *no_decode_steps()[len(self.decoded) :]]
        self.spent = {"judge": 0.0, **self.spent}  # older checkpoints have none
        # JSON has no tuples.
        self.wasted = {why: (counts[0], counts[1]) for why, counts in state["wasted"].items()}
