"""Environments of OpenEnv: in process, or behind a WebSocket.

An action of OpenEnv has fields. Text becomes an action if it is JSON of an object with these
fields, or if the action has one field of text (if it has several, the setting `field` names it).
"""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Mapping
from typing import Any

from scalerl.environments.adapters.base import Adapter, accepted, row_of, seed_of
from scalerl.environments.adapters.imports import imported
from scalerl.environments.interface import Action, Observation, Outcome
from scalerl.errors import InputError
from scalerl.tasks.task import Prompt, named
from scalerl.text import one_line

#: Fields of every observation that are not shown to the model.
_OWN = ("done", "reward", "metadata")


class OpenenvEnvironment(Adapter):
    """An environment of OpenEnv, or a client of one that runs elsewhere."""

    def __init__(self, thing: Any, correct_from: float = 1.0, field: str = "") -> None:
        super().__init__(thing, correct_from)
        self.remote = hasattr(thing, "connect")
        self.field = field
        self.action: Any = None if self.remote else _action_type(thing)

    async def reset(self, prompt: Prompt, seed: int) -> Observation:
        row = row_of(prompt, seed) | {"seed": seed_of(prompt, seed), "episode_id": prompt.id}
        if self.remote:
            await self.call(self.thing.connect)
            given = {"seed": row["seed"]}
        else:
            given = accepted(self.thing.reset, row)
        text, _, _ = _read(await self.call(self.thing.reset, **given))
        return self.observed(text)

    async def step(self, action: Action) -> Observation | Outcome:
        try:
            made = self._made(action.text)
        except ValueError as error:  # pydantic's errors too: the model wrote it, and may try again
            problem = one_line(f"error: the action cannot be read ({error})")
            return Observation(({"role": "user", "content": problem},), tool_failures=1)
        text, reward, done = _read(await self.call(self.thing.step, made))
        return self.ended(reward or 0.0) if done else self.observed(text, reward)

    def _made(self, text: str) -> Any:
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict):
            fields = {self.field or _text_field(self.action): text}
        return fields if self.action is None else self.action(**fields)


def _action_type(thing: Any) -> Any:
    """The class of the actions that an environment's `step` takes."""
    first = next(iter(inspect.signature(thing.step).parameters))
    try:
        found = typing.get_type_hints(type(thing).step).get(first)
    except Exception as error:  # a hint may name anything
        raise InputError(f"the type of the action cannot be read ({named(error)})") from None
    if not isinstance(found, type):
        raise InputError(
            f"{type(thing).__name__}.step does not say of which class its {first} is: add the hint"
        )
    return found


def _text_field(action: Any) -> str:
    fields = {} if action is None else action.model_fields
    texts = [name for name, field in fields.items() if field.annotation is str]
    if len(texts) != 1:
        names = ", ".join(n for n in fields if n != "metadata") or "unknown"
        raise ValueError(f"write JSON of an object with its fields: {names}")
    return str(texts[0])


def _read(found: Any) -> tuple[str, Any, bool]:
    """Text, reward and end from an observation, or from the result of a client."""
    seen = getattr(found, "observation", found)
    fields = seen if isinstance(seen, Mapping) else seen.model_dump(mode="json")
    shown = {k: v for k, v in fields.items() if k not in _OWN and v not in (None, "", [], {})}
    values = list(shown.values())
    text = values[0] if len(values) == 1 and isinstance(values[0], str) else json.dumps(shown)
    return text, found.reward, bool(found.done)


def openenv(prompt: Prompt, url: str, field: str = "") -> OpenenvEnvironment:
    """A client of an environment that is served at a URL."""
    client = imported("openenv.core.generic_client", "openenv").GenericEnvClient(base_url=url)
    return OpenenvEnvironment(client, field=field)
