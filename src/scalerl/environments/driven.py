"""Drivers: programs that call the model themselves, as environments.

    async def rollout(prompt, client):
        model = openai.AsyncOpenAI(base_url=client.base_url, api_key=client.api_key)
        reply = await model.chat.completions.create(model=client.model, messages=[…])
        return 1.0 if prompt.answer in reply.choices[0].message.content else 0.0

A driver runs one episode and returns its score. It is a function with the parameters `prompt` and
`client`, or an object with such a method `rollout`. An async one shares an event loop with many
others, and must not block; an ordinary one runs in a thread of its own. Its requests to the model
become the observations of the episode, and the policy's turns the replies
(`scalerl.environments.endpoint.session`).

How turns are sampled is the recipe's affair: `temperature`, `max_tokens` and the like are ignored.

After a crash the driver runs again and gets the recorded turns, without token ids: what it asks
must follow from the prompt, `client.seed` and the turns.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from scalerl.environments.adapters.base import Adapter, seed_of
from scalerl.environments.endpoint.chat import make_request
from scalerl.environments.endpoint.listener import Endpoint, endpoint_here
from scalerl.environments.endpoint.session import MODEL, ChatReply, Session
from scalerl.environments.interface import Action, Observation, Outcome
from scalerl.environments.replies import kind_of
from scalerl.errors import InputError
from scalerl.tasks.task import AnswerScore, Prompt, named
from scalerl.text import one_line

#: Seconds that a driver has from one request to the next, or to its end. Programs that install
#: their dependencies first take minutes.
PATIENCE = 600.0
#: Seconds that a driver has to end once its episode is over: some end subprocesses then.
GRACE = 5.0


class PolicyClient:
    """What a driver reaches the policy with: an address for clients of OpenAI's API, or calls."""

    #: Name of the model in requests.
    model = MODEL

    def __init__(self, session: Session, endpoint: Endpoint, seed: int) -> None:
        #: Seed of the episode: the same for all episodes of a group.
        self.seed = seed
        self._session = session
        self._endpoint = endpoint
        #: Key of the episode, for the header `Authorization: Bearer`.
        self.api_key = endpoint.enter(session)

    async def leave(self) -> None:
        """Give up the key."""
        await self._endpoint.leave(self.api_key)

    @property
    def base_url(self) -> str:
        """Address of the endpoint, which ends with /v1. Needs the `serve` extra."""
        return self._endpoint.url()

    async def chat(
        self,
        messages: Iterable[Mapping[str, Any]],
        tools: Iterable[Mapping[str, Any]] = (),
        stop: Iterable[str] = (),
    ) -> ChatReply:
        """The policy's turn after messages in OpenAI's form. May be awaited on any event loop."""
        return await asyncio.wrap_future(self._ask(messages, tools, stop))

    def chat_in_thread(
        self,
        messages: Iterable[Mapping[str, Any]],
        tools: Iterable[Mapping[str, Any]] = (),
        stop: Iterable[str] = (),
    ) -> ChatReply:
        """The same for a driver that is not async: blocks its thread."""
        if asyncio._get_running_loop() is self._endpoint.events:
            raise InputError("chat_in_thread would block all episodes: await client.chat")
        return self._ask(messages, tools, stop).result()

    def _ask(
        self,
        messages: Iterable[Mapping[str, Any]],
        tools: Iterable[Mapping[str, Any]],
        stop: Iterable[str],
    ) -> Future[ChatReply]:
        request = make_request(messages, tuple(tools), stop)
        return asyncio.run_coroutine_threadsafe(self._session.ask(request), self._endpoint.events)


class DrivenEnvironment(Adapter):
    """A driver as an environment: its requests are observations, and its result the score.

    thing         the driver: a function of (prompt, client), or an object with `rollout`
    correct_from  score from which an episode counts as correct, if the driver returns a number
    patience      seconds that the driver may take between two requests
    """

    def __init__(self, thing: Any, correct_from: float = 1.0, patience: float = PATIENCE) -> None:
        super().__init__(thing, correct_from)
        self.patience = patience
        self._session = Session()
        self._client: PolicyClient | None = None
        self._driver: asyncio.Task[Any] | None = None

    async def reset(self, prompt: Prompt, seed: int) -> Observation:
        self._client = PolicyClient(self._session, endpoint_here(), seed_of(prompt, seed))
        self._driver = asyncio.create_task(self._run(prompt, self._client))
        reply = await self._next()
        if isinstance(reply, Outcome):
            raise InputError("failed: the driver ended without a request to the model")
        return reply

    async def step(self, action: Action) -> Observation | Outcome:
        failed = sum(call.problem is not None for call in action.tool_calls)
        self._session.answer(action)
        reply = await self._next()
        return replace(reply, tool_failures=reply.tool_failures + failed)

    async def cut_off(self) -> Outcome | None:
        await self._stop("the episode reached a limit of turns or tokens")
        return None

    async def close(self) -> None:
        try:
            await self._stop("the episode is over")
            await super().close()
        finally:
            if self._client is not None:
                await self._client.leave()

    async def _run(self, prompt: Prompt, client: PolicyClient) -> Any:
        rollout = getattr(self.thing, "rollout", self.thing)
        try:
            return await self.call(rollout, prompt=prompt, client=client)
        except InputError as error:
            raise InputError(f"failed: {error}") from None
        except (Exception, SystemExit) as error:  # asyncio would end the worker with SystemExit
            what = one_line(named(error))
            if self._session.refused:  # which clients put into many words, or leave out
                what = f"{type(error).__name__} when a request was refused: {self._session.refused}"
            raise InputError(f"failed: the driver raised {what}") from None

    async def _next(self) -> Observation | Outcome:
        """Wait for the driver's next request or its end."""
        driver = self._driver
        assert driver is not None, "a step before reset"
        asked = asyncio.create_task(self._session.observe())
        try:
            await asyncio.wait(
                {asked, driver}, timeout=self.patience, return_when=asyncio.FIRST_COMPLETED
            )
            if driver.done():
                return self._outcome(driver.result())
            if asked.done():
                return asked.result()
        finally:
            asked.cancel()
        raise InputError(
            f"failed: the driver neither asked the model nor ended in {self.patience:g} s"
        )

    def _outcome(self, found: Any) -> Outcome:
        if isinstance(found, Outcome):
            return found
        if isinstance(found, AnswerScore):
            return Outcome(found)
        if found is None or isinstance(found, str | bytes):
            raise InputError(f"returned {kind_of(found)} from the driver: return a number")
        return self.ended(found)

    async def _stop(self, why: str) -> None:
        """End the driver: an async one is cancelled, one in a thread gets errors from the model."""
        self._session.end(why)
        driver = self._driver
        if driver is None:
            return
        if not self.thread.unfinished:
            driver.cancel()  # once: a second time would interrupt its `finally`
        await asyncio.wait({driver}, timeout=GRACE)
        if self.thread.unfinished:
            driver.cancel()  # the thread stays: there is no way to end it
        driver.add_done_callback(_seen)


def _seen(driver: asyncio.Task[Any]) -> None:
    """Take note of a driver's end, after which its error is of no interest."""
    if not driver.cancelled():
        driver.exception()


def is_driver(thing: Any) -> bool:
    """Whether something is a driver, by its shape.

    >>> async def rollout(prompt, client): ...
    >>> is_driver(rollout), is_driver(print)
    (True, False)
    """
    if inspect.isclass(thing):
        return False
    rollout: Callable[..., Any] = getattr(thing, "rollout", thing)
    try:
        return {"prompt", "client"} <= inspect.signature(rollout).parameters.keys()
    except (TypeError, ValueError):
        return False
