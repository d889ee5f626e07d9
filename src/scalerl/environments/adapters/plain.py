"""A plain Python class as an environment.

    class Guess:
        def reset(self, answer, seed): ...            # any columns of the row, by name
        def step(self, text): return "higher", 0.0, False     # text, reward, done
        def close(self): ...

`reset` may return a text or messages for the model, or nothing; `step` a tuple of (text, reward,
done), Gymnasium's (text, reward, terminated, truncated, info), or a mapping with the keys
`observation`, `reward` and `done`. All of them may be async.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalerl.environments.adapters.base import Adapter, accepted, row_of, seed_of
from scalerl.environments.interface import Action, Observation, Outcome
from scalerl.environments.replies import kind_of
from scalerl.errors import InputError
from scalerl.tasks.task import Prompt


class PlainEnvironment(Adapter):
    """An object with `step`, and mostly `reset` and `close`."""

    async def reset(self, prompt: Prompt, seed: int) -> Observation:
        reset = getattr(self.thing, "reset", None)
        if reset is None:
            return Observation()
        row = row_of(prompt, seed) | {"seed": seed_of(prompt, seed)}
        found = await self.call(reset, **accepted(reset, row))
        if isinstance(found, Observation):
            return found
        if isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], Mapping):
            found = found[0]  # Gymnasium's (observation, info)
        return Observation() if found is None else self.observed(found)

    async def step(self, action: Action) -> Observation | Outcome:
        found = await self.call(self.thing.step, action.text)
        if isinstance(found, Observation | Outcome):
            return found
        text, reward, done, correct = _parts(found)
        return self.ended(reward, correct=correct) if done else self.observed(text, reward)


def _parts(found: Any) -> tuple[Any, Any, bool, Any]:
    """Text, reward, whether it is the last reply, and whether the episode was right if it says."""
    if isinstance(found, Mapping) and "done" in found:
        text = next((found[k] for k in ("observation", "text", "messages") if k in found), "")
        return text, found.get("reward"), bool(found["done"]), found.get("correct")
    if isinstance(found, tuple) and len(found) == 3:
        return found[0], found[1], bool(found[2]), None
    if isinstance(found, tuple) and len(found) == 5:
        return found[0], found[1], bool(found[2] or found[3]), None
    raise InputError(f"returned {kind_of(found)}, not (text, reward, done)")
