"""The environments of a worker on the virtual clock: real objects, with the faults of its world."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from scalerl.environments.interface import Action, Environment, Observation, Outcome
from scalerl.pipeline import messages as m
from scalerl.placement.live_environments import (
    LiveEnvironments,
    RunningCall,
    environment_of,
    run_event_loop,
)
from scalerl.placement.world import World
from scalerl.tasks.task import Prompt, Task, seed_from

#: Words of a huge observation.
HUGE_WORDS = 50_000
#: Numbers that make each lie another one.
_LIES = itertools.count()


def fault_of(world: World, call: m.EnvironmentCall) -> str:
    """What goes wrong in a call; empty for nothing."""
    turn = -1 if call.kind == "reset" else len(call.history)
    return _fault(world, call.episode, turn)


def _fault(world: World, episode: str, turn: int) -> str:
    return world.act_faults.drawn(seed_from(world.seed, "act", episode, turn) / 2**64)


class FaultyEnvironment(Environment):
    """An environment that fails, lies or talks too much in the calls that its world has chosen."""

    def __init__(self, inner: Environment, world: World, episode: str) -> None:
        self.inner, self._world, self._episode = inner, world, episode
        self._turn = -1

    async def reset(self, prompt: Prompt, seed: int) -> Observation:
        found = self._changed(await self.inner.reset(prompt, seed))
        assert isinstance(found, Observation)
        return found

    async def step(self, action: Action) -> Observation | Outcome:
        return self._changed(await self.inner.step(action))

    async def cut_off(self) -> Outcome | None:
        return await self.inner.cut_off()

    async def close(self) -> None:
        await self.inner.close()

    def _changed(self, reply: Observation | Outcome) -> Observation | Outcome:
        fault = _fault(self._world, self._episode, self._turn)
        self._turn += 1
        if fault == "fails":
            raise RuntimeError("the world is against it")
        if isinstance(reply, Outcome) or fault not in ("lies", "huge"):
            return reply
        text = f"lie {next(_LIES)}" if fault == "lies" else "word " * HUGE_WORDS
        return replace(reply, messages=(*reply.messages, {"role": "user", "content": text}))


class InlineEnvironments:
    """Environments that are called to the end at once, on an event loop in a thread of its own:
    this thread may have one that runs, as in notebooks. The loop starts with the first call.
    `seconds` is the limit of a call by the real clock."""

    def __init__(self, task: Task, seconds: float, world: World) -> None:
        self._task, self._world = task, world
        self._events: asyncio.AbstractEventLoop | None = None
        self._live = LiveEnvironments(self._make, seconds, places=1, done=self._done)
        #: The reply to the call that was made last.
        self._reply: m.EnvironmentReply | None = None

    def __len__(self) -> int:
        return len(self._live)

    def call(self, message: m.CallEnvironment, seconds: float) -> m.EnvironmentReply | None:
        """The reply to a call that takes `seconds` of the virtual clock; None if the environment is
        not here."""
        self._run(partial(self._live.begin, message))
        reply = self._reply
        return None if reply is None else replace(reply, seconds=seconds)

    def close(self, episodes: Iterable[str]) -> None:
        if self._events is not None:
            self._run(partial(self._live.close, list(episodes)))

    def stop(self) -> None:
        """Close all environments, and end the event loop."""
        if self._events is not None:
            self._run(self._live.close_all)
            self._events.call_soon_threadsafe(self._events.stop)
            self._events = None

    def _run(self, do: Callable[[], object]) -> None:
        """Call a function on the event loop, and wait until no environment works."""
        if self._events is None:
            self._events = asyncio.new_event_loop()
            threading.Thread(target=run_event_loop, args=(self._events,), daemon=True).start()
        asyncio.run_coroutine_threadsafe(self._until_idle(do), self._events).result()

    async def _until_idle(self, do: Callable[[], object]) -> None:
        do()
        while tasks := [turn.task for turn in self._live.under_way if turn.task is not None]:
            await asyncio.wait(tasks)

    def _make(self, call: m.EnvironmentCall) -> Environment:
        return FaultyEnvironment(environment_of(self._task, call), self._world, call.episode)

    def _done(self, turn: RunningCall, reply: m.EnvironmentReply | None) -> None:
        if turn.asked is not None:
            self._reply = reply
