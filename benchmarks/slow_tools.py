"""The environment of benchmarks/multi_turn.py: a tool that replies at once or slowly."""

from __future__ import annotations

import asyncio
from typing import Any

from scalerl.environments.interface import Action, Environment, Observation, Outcome
from scalerl.tasks.task import AnswerScore


class SlowTool(Environment):
    """Replies `reply` digits to each turn but the last, after `seconds` seconds."""

    def __init__(self, seconds: float = 0.0, turns: int = 6, reply: int = 32) -> None:
        self.seconds, self.turns, self.reply = seconds, turns, reply
        self.taken = 0

    async def step(self, action: Action) -> Observation | Outcome:
        self.taken += 1
        await asyncio.sleep(self.seconds)
        if self.taken == self.turns:
            return Outcome(AnswerScore(True, 1.0, ""))
        return Observation(({"role": "tool", "content": str(self.taken) * self.reply},))

    @staticmethod
    def prompts() -> list[dict[str, Any]]:
        return [{"prompt": f"{i:04d}" * 8} for i in range(2000)]
