"""Environments of skyrl-gym: `init(prompt)`, `step(text)`, `close()`.

`postprocessed_action` is ignored: the model's tokens stay as it sampled them.
"""

from __future__ import annotations

from typing import Any

from scalerl.environments.adapters.base import Adapter, chat_of
from scalerl.environments.adapters.imports import imported
from scalerl.environments.interface import Action, Observation, Outcome
from scalerl.errors import InputError
from scalerl.tasks.task import Prompt


class SkyrlEnvironment(Adapter):
    """A text environment of skyrl-gym."""

    async def reset(self, prompt: Prompt, seed: int) -> Observation:
        asked = chat_of(prompt)
        found, _ = await self.call(self.thing.init, asked)
        if list(found[: len(asked)]) != asked:
            raise InputError("init rewrote the prompt: put what it adds behind the question")
        return self.observed(found[len(asked) :])

    async def step(self, action: Action) -> Observation | Outcome:
        found = await self.call(self.thing.step, action.text)
        if found["done"]:
            return self.ended(found["reward"])
        return self.observed(found["observations"], found["reward"])


def skyrl_gym(prompt: Prompt, env: str, **settings: Any) -> Any:
    """An environment that skyrl-gym has registered, with the prompt's row as its extras."""
    reward = {"method": "rule", "ground_truth": prompt.answer}
    extras = {"reward_spec": reward, "extra_info": {}, **prompt.columns, **settings}
    return imported("skyrl_gym", "skyrl-gym").make(env, env_config={}, extras=extras)
