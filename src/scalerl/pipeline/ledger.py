"""Where compute went. Validation is counted apart; a resumed run goes on from what was spent.

Device-hours are wall-clock hours of training (validation and the time between two parts of a run
left out, unless the recipe counts validation) times devices. FLOPs by the usual rule: 2 N per token
written, 6 N per token that went through the trainer, for the N parameters that take part in the
matrix products of a token.

    device_seconds = generate + hand_over + train + generate_wait + train_wait

`hand_over` is generators loading weights. The two waits are what is left of each side's time:
what it did neither generating nor training. Of train_wait, `check_wait` is the part during which
all that the trainer waited for was written and only its check was missing; `check` is what the
checkers spent, which are no devices. `wasted` counts rollouts that were written and not learnt
from, by reason: stale (under way when a run went on with other knobs; the schedules themselves let
nothing grow too old), filtered (no variance, truncated, unscored) and failed (lost with a process,
handed back by a generator that left, or part of a refused step).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from scalerl.pipeline.crew import Clock
from scalerl.recipe.sections_runtime import ComputeSection
from scalerl.runs.compute import Compute, DeviceSeconds, LedgerLine, WasteCount, Wasted

WasteReason = Literal["stale", "filtered", "failed"]
#: What parts report, and what is booked here.
Work = Literal["generate", "hand_over", "train", "check", "validate"]
#: The part that the trainers' time is of, and the device of a part that has not said.
TRAINER, UNKNOWN = "trainer", "unknown"


@dataclass
class Ledger:
    """Running totals; `to_line` / `restore` for checkpoints."""

    clock: Clock
    parameters: int
    generators: int
    trainers: int
    count_validation: bool = ComputeSection().count_validation
    steps: int = 0
    samples: int = 0
    generated_tokens: int = 0
    trained_tokens: int = 0
    device_seconds: float = 0.0
    validation_seconds: float = 0.0
    #: On the clock: training and validation.
    clock_seconds: float = 0.0
    #: Of device_seconds, by kind of device.
    by_kind: dict[str, float] = field(default_factory=dict)
    #: Seconds the sides had, all their devices together.
    generator_seconds: float = 0.0
    trainer_seconds: float = 0.0
    check_wait: float = 0.0
    #: Spent on work that a crash took away: in no other number.
    lost_device_seconds: float = 0.0
    spent: dict[Work, float] = field(
        default_factory=lambda: {
            "generate": 0.0, "hand_over": 0.0, "train": 0.0, "check": 0.0, "validate": 0.0,
        }
    )  # fmt: skip
    #: (rollouts, tokens) by reason.
    wasted: dict[WasteReason, tuple[int, int]] = field(
        default_factory=lambda: {"stale": (0, 0), "filtered": (0, 0), "failed": (0, 0)}
    )
    #: Kind of device by the name of a part.
    _kinds: dict[str, str] = field(default_factory=dict, repr=False)
    _since: float | None = field(default=None, repr=False)
    _validating: bool = field(default=False, repr=False)
    _checks_awaited: bool = field(default=False, repr=False)

    @property
    def devices(self) -> int:
        return self.generators + self.trainers

    def start(self) -> None:
        """The clock runs from here."""
        self._since = self.clock.now()

    def tick(self) -> None:
        """Book the time since the last tick."""
        if self._since is None:
            return
        now = self.clock.now()
        seconds, self._since = now - self._since, now
        self.clock_seconds += seconds
        if self._validating:
            self.validation_seconds += seconds * self.devices
            return
        self._add_generator_time(seconds * self.generators)
        self.device_seconds += seconds * self.trainers
        self.trainer_seconds += seconds * self.trainers
        self._add_device_time(self._kinds.get(TRAINER, UNKNOWN), seconds * self.trainers)
        self.check_wait += seconds * self.trainers * self._checks_awaited

    def validating(self, on: bool) -> None:
        """Time from here on is validation, or training again."""
        self.tick()
        self._validating = on

    def add_work(self, kind: Work, seconds: float) -> None:
        """A part reports its work; all ranks of a trainer work at once. Generators that are done
        with their share of a validation go on writing for training: that time is not
        validation's."""
        self.spent[kind] += seconds * (self.trainers if kind == "train" else 1)
        if self._validating and kind in ("generate", "hand_over"):
            self._add_generator_time(seconds)
            self.validation_seconds -= seconds

    def set_device(self, part: str, kind: str) -> None:
        """A part is on this kind of device from here on."""
        self.tick()
        self._kinds[part] = kind

    def _add_generator_time(self, seconds: float) -> None:
        """Device-seconds of the generators, who had equal shares of them."""
        self.device_seconds += seconds
        self.generator_seconds += seconds
        kinds = [kind for part, kind in self._kinds.items() if part != TRAINER] or [UNKNOWN]
        for kind in kinds:
            self._add_device_time(kind, seconds / len(kinds))

    def _add_device_time(self, kind: str, seconds: float) -> None:
        self.by_kind[kind] = self.by_kind.get(kind, 0.0) + seconds

    def awaits_checks(self, on: bool) -> None:
        """From here on the trainer waits for checks alone, or not."""
        if on is not self._checks_awaited:
            self.tick()
            self._checks_awaited = on

    def generator_joined(self) -> None:
        """One generator more."""
        self.tick()
        self.generators += 1

    def generator_left(self, part: str) -> None:
        """One generator less."""
        self.tick()
        self.generators -= 1
        self._kinds.pop(part, None)

    def waste(self, why: WasteReason, rollouts: int, tokens: int) -> None:
        before = self.wasted[why]
        self.wasted[why] = (before[0] + rollouts, before[1] + tokens)

    def compute(self) -> Compute:
        """Compute so far, in every kind."""
        self.tick()
        seconds = self.device_seconds + self.validation_seconds * self.count_validation
        flops = self.parameters * (2.0 * self.generated_tokens + 6.0 * self.trained_tokens)
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
        """Device-seconds by what they went to."""
        spent = self.spent
        return DeviceSeconds(
            **spent,
            generate_wait=self.generator_seconds - spent["generate"] - spent["hand_over"],
            train_wait=self.trainer_seconds - spent["train"],
            check_wait=self.check_wait,
        )

    def to_line(self) -> LedgerLine:
        """As a step's line has it."""
        self.tick()
        return LedgerLine(
            steps=self.steps,
            samples=self.samples,
            generated_tokens=self.generated_tokens,
            trained_tokens=self.trained_tokens,
            device_seconds=self.device_seconds,
            by_kind=dict(self.by_kind),
            validation_seconds=self.validation_seconds,
            lost_device_seconds=self.lost_device_seconds,
            spent=self.split(),
            wasted=Wasted(**{why: WasteCount(*counts) for why, counts in self.wasted.items()}),
        )

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        self.tick()
        names = (
            "steps", "samples", "generated_tokens", "trained_tokens", "device_seconds", "by_kind",
            "validation_seconds", "clock_seconds", "generator_seconds", "trainer_seconds",
            "check_wait", "lost_device_seconds", "spent", "wasted",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        for name, value in state.items():
            setattr(self, name, value)
        self.wasted = {why: (counts[0], counts[1]) for why, counts in state["wasted"].items()}
