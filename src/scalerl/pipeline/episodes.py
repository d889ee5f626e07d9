"""Episodes that are played in an environment: turn, reply, turn, until the environment ends them.

    opening    the environment is reset once for a group: its messages and tools are the prompt
    turn       a generator writes one: a request with all tokens so far
    call       the environment replies to the turn
    suffix     the reply is rendered behind the turn, and the next turn is asked for

Tokens are stored when they are made and never rendered again. Where the chat template rewrites what
the model wrote earlier, or the environment rewrites the conversation, the episode continues in a
new row that holds the rewritten conversation as context.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scalerl.algorithm.episode import (
    Episode,
    EpisodeFacts,
    FinishReason,
    TokenIds,
    TokenRow,
    Turn,
)
from scalerl.environments.interface import Action, Observation, ToolSchema
from scalerl.environments.parsers import ToolFormat
from scalerl.models.turns import TurnRenderer
from scalerl.pipeline import messages as m
from scalerl.tasks.task import Message, Prompt

#: Stands for the part of an observation that is longer than `environment.observation_tokens`.
CUT = " […]"


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeRules:
    """What all episodes of a run share: how replies become tokens, and the limits."""

    renderer: TurnRenderer
    tool_format: ToolFormat
    #: Text of the tokens of a turn, as environments get it.
    text_of: Callable[[TokenIds], str]
    #: Most turns of an episode.
    turns: int
    #: Most tokens of one reply of the environment.
    observation_tokens: int
    #: Seconds after which an episode ends without a score.
    seconds: float
    #: Longest row of an episode, in tokens.
    columns: int
    #: Whether earlier turns stay as they were written although the template would rewrite them.
    keep_history: bool

    def opening_ids(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> list[int]:
        """The tokens of a conversation up to its first turn."""
        return self.renderer.opening(messages, tools)

    def limited(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """The messages of a reply, cut off behind `observation_tokens` tokens."""
        left = self.observation_tokens
        kept: list[Message] = []
        for message in messages:
            content = message["content"]
            # A token has at least one character: a short text is not tokenised for this.
            if len(content) > left:
                ids = self.renderer.tokenizer(content, add_special_tokens=False)["input_ids"]
                if len(ids) > left:
                    content = str(self.renderer.tokenizer.decode(ids[:left])) + CUT
                left -= min(len(ids), left)
            else:
                left -= len(content)
            kept.append({**message, "content": content})
        return tuple(kept)


@dataclass(frozen=True, slots=True, eq=False)
class Opening:
    """What the episodes of a group begin with."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSchema, ...]
    token_ids: TokenIds
    #: Fingerprint of the reset's reply.
    fingerprint: str


@dataclass(slots=True, eq=False)
class Attempt:
    """An episode that is being played."""

    #: Name of its environment.
    name: str
    prompt: Prompt
    #: Seed of its environment.
    seed: int
    opening: Opening
    #: Time at which it ends without a score.
    deadline: float
    #: The row that is being written.
    row: TokenRow
    #: Earlier rows, which a fork has ended.
    rows: list[TokenRow] = field(default_factory=list)
    #: The whole conversation, as text.
    messages: list[Message] = field(default_factory=list)
    #: Texts of the turns of the present row.
    texts: list[str] = field(default_factory=list)
    actions: tuple[Action, ...] = ()
    #: Fingerprints of the environment's replies, the reset's first.
    shown: tuple[str, ...] = ()
    #: Whether the environment has the last turn, and its reply is awaited.
    called: bool = False
    #: Whether the last turn ends with a token that ends turns.
    closed: bool = True
    finish: FinishReason = "stop"
    facts: EpisodeFacts = field(default_factory=lambda: EpisodeFacts(turns=0))

    @staticmethod
    def from_opening(
        name: str, prompt: Prompt, seed: int, opening: Opening, deadline: float
    ) -> Attempt:
        """An episode before its first turn."""
        row = TokenRow.from_context(opening.token_ids)
        attempt = Attempt(name, prompt, seed, opening, deadline, row)
        attempt.messages = list(opening.messages)
        attempt.shown = (opening.fingerprint,)
        return attempt

    @property
    def turns(self) -> int:
        """Number of turns so far."""
        return self.facts.turns

    @property
    def oldest(self) -> int | None:
        """The oldest version among its tokens; None without tokens."""
        found = [v for r in (*self.rows, self.row) for s in r.segments for v, _ in s.versions]
        return min(found, default=None)

    def add_turn(self, turn: Turn, rules: EpisodeRules) -> m.EnvironmentCall:
        """Append a turn that a generator wrote; the call that asks the environment for its
        reply."""
        text = rules.text_of(turn.token_ids)
        calls = rules.tool_format(text)[1] if self.opening.tools else ()
        action = Action(
            text,
            calls,
            tuple(turn.token_ids.tolist()),
            tuple(turn.logprobs.tolist()),
            truncated=turn.finish == "length",
        )
        call = self._call("step", action)
        self.row = self.row.with_turn(turn)
        self.messages.append({"role": "assistant", "content": text})
        self.texts.append(text)
        self.closed = len(turn) > 0 and int(turn.token_ids[-1]) in rules.renderer.stop_ids
        self.finish = turn.finish
        # A replay needs the text and the calls only.
        self.actions = (*self.actions, replace(action, token_ids=(), logprobs=()))
        self.facts = replace(
            self.facts, turns=self.turns + 1, tool_calls=self.facts.tool_calls + len(calls)
        )
        return call

    def _call(self, kind: Any, action: Action | None) -> m.EnvironmentCall:
        self.called = True
        return m.EnvironmentCall(
            self.name, self.prompt, self.seed, kind, action, self.actions, self.shown
        )

    def cut_off(self, finish: FinishReason) -> m.EnvironmentCall:
        """The call that asks the environment for the outcome of an episode at its limit."""
        self.finish = finish
        return self._call("cut_off", None)

    def add_reply(self, reply: m.EnvironmentReply) -> None:
        """Record the environment's reply to the last turn: its reward, failures and time."""
        self.called = False
        self.shown = (*self.shown, reply.fingerprint)
        found = reply.reply
        failures = 0 if found is None else found.tool_failures
        self.row = self.row.with_turn_reward(None if found is None else found.reward)
        self.facts = replace(
            self.facts,
            tool_failures=self.facts.tool_failures + failures,
            environment_seconds=self.facts.environment_seconds + reply.seconds,
        )

    def continues(
        self, found: Observation, rules: EpisodeRules, turn_tokens: int
    ) -> FinishReason | None:
        """Append an observation, after which the next turn can be asked for; or, where that would
        break a limit, the reason why the episode ends."""
        if self.turns >= rules.turns:
            return "turns"
        forks = self._listen(found, rules)
        if forks:
            tools = found.tools or self.opening.tools
            row = TokenRow.from_context(rules.renderer.forked(self.messages, tools))
        else:
            new = self.messages[len(self.messages) - len(found.messages) :]
            row = self.row.with_context(rules.renderer.suffix(new, closed=self.closed))
        if len(row) + turn_tokens > rules.columns:
            return "length"
        if forks:
            self.rows.append(self.row)
            self.texts.clear()
        self.row = row
        return None

    def _listen(self, found: Observation, rules: EpisodeRules) -> bool:
        """Add the messages of an observation; whether the history is rewritten, so that the tokens
        so far are no prefix of what the model is shown next."""
        if found.conversation is not None:
            self.messages = list(rules.limited(found.conversation))
            return True
        new = rules.limited(found.messages)
        self.messages += new
        roles = {message["role"] for message in new}
        return not rules.keep_history and any(rules.renderer.forks(self.texts, r) for r in roles)

    def ended(self) -> Episode:
        """The episode, without its score."""
        return Episode((*self.rows, self.row), self.finish, facts=self.facts)
