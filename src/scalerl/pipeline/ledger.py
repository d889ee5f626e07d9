"""Where compute went. Validation is counted apart; a resumed run goes on from what was spent.

Device-hours are wall-clock hours of training (validation and the time between two parts of a run
left out, unless the recipe counts validation) times devices. FLOPs by the usual rule: 2 N per token
written, 6 N per token that went through the trainer, for the N parameters that take part in the
matrix products of a token.

    device_seconds = generate + hand_over + train + generate_wait + train_wait

`hand_over` is generators loading weights. The two waits are what is left of each side's time:
what it did neither generating nor training. `wasted` counts rollouts that were written and not
learnt from, by reason: stale (too old: the schedules never let it happen), filtered (no variance,
truncated, unscored) and failed (lost with a process, or part of a refused step).
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Literal

Waste = Literal["stale", "filtered", "failed"]
_COUNTS = ("steps", "samples", "generated_tokens", "trained_tokens")


@dataclass
class Ledger:
    """Running totals; `to_dict` / `restore` for checkpoints."""

    parameters: int
    generators: int
    trainers: int
    count_validation: bool = False
    steps: int = 0
    samples: int = 0
    generated_tokens: int = 0
    trained_tokens: int = 0
    device_seconds: float = 0.0
    validation_seconds: float = 0.0
    #: Spent on work that a crash took away: in no other number.
    lost_device_seconds: float = 0.0
    #: Device-seconds of work, as the processes report them: generate, hand_over, train, validate.
    spent: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    #: Rollouts and their tokens, by reason.
    wasted: dict[str, dict[str, int]] = field(
        default_factory=lambda: {k: {"rollouts": 0, "tokens": 0} for k in Waste.__args__}  # type: ignore[attr-defined]
    )
    _since: float | None = field(default=None, repr=False)
    _validating: bool = field(default=False, repr=False)

    @property
    def devices(self) -> int:
        return self.generators + self.trainers

    def start(self) -> None:
        """The clock runs from here."""
        self._since = time.monotonic()

    def tick(self) -> None:
        """Book the time since the last tick."""
        now = time.monotonic()
        if self._since is not None:
            seconds = (now - self._since) * self.devices
            if self._validating:
                self.validation_seconds += seconds
            else:
                self.device_seconds += seconds
            self._since = now

    def validating(self, on: bool) -> None:
        """Time from here on is validation, or training again."""
        self.tick()
        self._validating = on

    def waste(self, why: Waste, rollouts: int, tokens: int) -> None:
        self.wasted[why]["rollouts"] += rollouts
        self.wasted[why]["tokens"] += tokens

    def compute(self) -> dict[str, float]:
        """Compute so far, in every kind."""
        self.tick()
        seconds = self.device_seconds + self.validation_seconds * self.count_validation
        flops = self.parameters * (2.0 * self.generated_tokens + 6.0 * self.trained_tokens)
        return {
            "device_hours": seconds / 3600.0,
            "flops": flops,
            "generated_tokens": self.generated_tokens,
            "trained_tokens": self.trained_tokens,
            "samples": self.samples,
            "steps": self.steps,
        }

    def split(self) -> dict[str, float]:
        """Device-seconds by what they went to; all but `validate` add up to device_seconds."""
        wall = self.device_seconds / self.devices
        spent = {k: self.spent[k] for k in ("generate", "hand_over", "train", "validate")}
        written = spent["generate"] + spent["hand_over"]
        return spent | {
            "generate_wait": wall * self.generators - written,
            "train_wait": wall * self.trainers - spent["train"],
        }

    def to_dict(self) -> dict[str, Any]:
        self.tick()
        return {name: getattr(self, name) for name in _COUNTS} | {
            "device_seconds": self.device_seconds,
            "validation_seconds": self.validation_seconds,
            "lost_device_seconds": self.lost_device_seconds,
            "spent": self.split(),
            "wasted": {why: dict(counts) for why, counts in self.wasted.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        for name in _COUNTS:
            setattr(self, name, int(state[name]))
        self.device_seconds = float(state["device_seconds"])
        self.validation_seconds = float(state["validation_seconds"])
        self.lost_device_seconds = float(state["lost_device_seconds"])
        self.spent = defaultdict(float, state["spent"])
        self.wasted = {why: dict(counts) for why, counts in state["wasted"].items()}
