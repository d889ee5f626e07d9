"""Where compute went. Validation is counted apart; a resumed run goes on from what was spent.

Device-hours are wall-clock hours of training (validation and the time between two parts of a run
left out) times devices. FLOPs by the usual rule: 2 N per token written, 6 N per token that went
through the trainer, for N parameters that take part in matrix products.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Ledger:
    """Running totals; `to_dict` / `restore` for checkpoints."""

    parameters: int
    devices: int
    steps: int = 0
    samples: int = 0
    generated_tokens: int = 0
    trained_tokens: int = 0
    device_seconds: float = 0.0
    validation_seconds: float = 0.0
    #: Device-seconds by what they went to: generate, load, train, wait, validate.
    spent: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    #: Rollouts that were written and not learnt from, by reason.
    wasted: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    _since: float | None = field(default=None, repr=False)
    _validating: bool = field(default=False, repr=False)

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

    def compute(self) -> dict[str, float]:
        """Compute so far, in every kind."""
        self.tick()
        flops = self.parameters * (2.0 * self.generated_tokens + 6.0 * self.trained_tokens)
        return {
            "device_hours": self.device_seconds / 3600.0,
            "flops": flops,
            "generated_tokens": self.generated_tokens,
            "trained_tokens": self.trained_tokens,
            "samples": self.samples,
            "steps": self.steps,
        }

    def to_dict(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "samples": self.samples,
            "generated_tokens": self.generated_tokens,
            "trained_tokens": self.trained_tokens,
            "device_seconds": self.device_seconds,
            "validation_seconds": self.validation_seconds,
            "spent": dict(self.spent),
            "wasted": dict(self.wasted),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        for name in ("steps", "samples", "generated_tokens", "trained_tokens"):
            setattr(self, name, int(state[name]))
        self.device_seconds = float(state["device_seconds"])
        self.validation_seconds = float(state["validation_seconds"])
        self.spent = defaultdict(float, state["spent"])
        self.wasted = defaultdict(int, state["wasted"])
