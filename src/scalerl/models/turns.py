"""Tokens of conversations of several turns, without rendering again what the model wrote.

A chat template renders whole conversations. Rendering one again after every turn changes tokens
that the model has written: templates trim text, drop earlier thoughts and write tool calls in a
form of their own, and a sampled token sequence is often not the one that the tokenizer makes of its
text. So the tokens of a turn are kept as they were sampled, and only what follows it is rendered:

    opening     question, tools                      <- rendered once
    turn 1      as sampled
    suffix      end of turn (if it was cut off), reply of the environment, generation prompt
    turn 2      as sampled

The suffix is the text that the template writes behind an assistant's message. It is found by
rendering a short conversation in which that message is a word that templates neither change nor
write themselves.

Contents never become control tokens: `<|im_end|>` in a tool's output is text, and is encoded as the
tokens of these ten characters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from scalerl.errors import InputError
from scalerl.models.chat import Chat

#: Text of the assistant's message in conversations that are rendered to find a suffix.
_TURN = "Quincunx"
#: A thought of that message.
_THOUGHT = "Sesquipedality"
#: Content of a message whose rendering is looked for.
_CONTENT = "Borborygmus"
#: Stands for a control token inside a content while the template is rendered, with the token's id.
#: (Content that spells this by itself becomes the same harmless text.)
_HIDDEN = re.compile(r"Xenolith(\d{9})")
_USER = {"role": "user", "content": "?"}


@dataclass(frozen=True, slots=True)
class _Rendered:
    """A text with the control tokens of the template, and stand-ins for those in contents."""

    text: str
    #: Whether there are such stand-ins.
    hidden: bool


class TurnRenderer:
    """The tokens between the turns of a conversation, for a model with a chat template or without.

    stop_ids                  tokens that end a turn
    think_open, think_close   tags around a thought
    """

    def __init__(
        self,
        chat: Chat,
        stop_ids: Sequence[int],
        *,
        think_open: str = "<think>",
        think_close: str = "</think>",
    ) -> None:
        self.chat = chat
        self.tokenizer = chat.tokenizer
        self.stop_ids = frozenset(stop_ids)
        self._tags = (think_open, think_close)
        added = self.tokenizer.added_tokens_decoder
        self._special = {t.content: i for i, t in added.items() if t.special}
        self._names = {i: name for name, i in self._special.items()}
        #: Control tokens that swallow white space after and before them, as Phi 3's do.
        self._strips_after = {t.content for t in added.values() if t.special and t.rstrip}
        self._strips_before = {t.content for t in added.values() if t.special and t.lstrip}
        # Longest first: one control token may begin with another. No match without any.
        names = sorted(map(re.escape, self._special), key=len, reverse=True)
        self._control = re.compile(f"({'|'.join(names)})" if names else r"((?!))")
        #: Whether tool messages are given as user messages, because the template has none.
        self.tools_as_user = False
        #: Whether a tool message must follow a message with tool calls (Mistral's template).
        self._needs_calls = False
        #: Whether consecutive messages of one role are joined, because the template refuses them.
        self._joins = False
        #: Token that the template writes at the end of a turn.
        self.end_of_turn: int | None = None
        self._rewrites: dict[str, tuple[bool, bool]] = {}
        if chat.exists:
            self._examine()
        elif self.tokenizer.eos_token_id in self.stop_ids:
            self.end_of_turn = self.tokenizer.eos_token_id

    # -- what a run asks for --------------------------------------------------------------------

    def opening(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """The tokens of a conversation, generation prompt included: what the first turn follows.

        messages  with roles and contents; system messages are put first
        tools     JSON schemas of the tools that the model may call, as the template shows them
        """
        if not self.chat.exists:
            return self._plain(messages, first=True)
        first = [m for m in messages if m["role"] == "system"]
        rest = [m for m in messages if m["role"] != "system"]
        asked = [*_joined(first, "system"), *rest]
        return self._encode(self._render(asked, tools))

    def suffix(self, new_messages: Sequence[Mapping[str, Any]], *, closed: bool) -> list[int]:
        """The tokens to append to a turn: messages that follow it, and the generation prompt.

        closed  whether the turn ends with a stop token; one that was cut off is ended first
        """
        if not self.chat.exists:
            end = [] if closed or self.end_of_turn is None else [self.end_of_turn]
            return [*end, *self._plain(new_messages, first=False)]
        rendered = self._render([_USER, self._turn(new_messages), *new_messages])
        _, _, text = rendered.text.partition(_TURN)
        assert self.end_of_turn is not None, "a template without one is refused"
        if self._needs_calls:  # the turn is an argument of a call: drop what the call ends with
            text = text[text.index(self._names[self.end_of_turn]) :]
        ids = self._encode(_Rendered(text, rendered.hidden))
        return ids[ids.index(self.end_of_turn) + 1 :] if closed else ids

    def rewrites(self, role: str) -> bool:
        """Whether the template, once a message of this role follows, no longer shows an earlier
        turn as it was written. (Qwen3's drops thoughts once a user message follows.)"""
        return self.chat.exists and any(self._rewritten(role))

    def forks(self, turns: Sequence[str], role: str) -> bool:
        """Whether a message of this role must begin a new row: the template no longer shows one of
        these turns, the texts of the present row, as it was written."""
        if not self.chat.exists or not turns:
            return False
        thought, text = self._rewritten(role)
        return text or (thought and any(self._tags[1] in turn for turn in turns))

    def forked(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """The tokens of a whole conversation rendered again, assistant turns given as text: what a
        new row begins with."""
        return self.opening(messages, tools)

    @property
    def warnings(self) -> list[str]:
        """What a user should know about the template, one line each."""
        found = []
        if self.rewrites("user"):
            found.append(
                f"the chat template of {self._name} drops earlier thoughts once a user message "
                "follows: episodes continue in a new row there, and each turn after it reads the "
                'rewritten history; environment.history = "keep" keeps thoughts, in one row'
            )
        if self.tools_as_user:
            found.append(
                f"the chat template of {self._name} has no tool messages: replies of tools are "
                "given as user messages"
            )
        return found

    # -- examining the template -----------------------------------------------------------------

    @property
    def _name(self) -> str:
        return str(getattr(self.tokenizer, "name_or_path", "") or "this model")

    def _refused(self, why: str, advice: str) -> InputError:
        return InputError(f"the chat template of {self._name} {why}: {advice}")

    def _examine(self) -> None:
        """Find out how the template writes turns; raises InputError if it cannot."""
        alone, asked = (self.chat.text([_USER], generation=g) for g in (False, True))
        if alone == asked:
            raise self._refused(
                "has no generation prompt (it ignores add_generation_prompt)",
                "take a template that opens the assistant's turn at the end",
            )
        user = {"role": "user", "content": _CONTENT}
        self._joins = not self._accepts([_USER, user])
        text = self._after_turn([user])
        if text is None:
            raise self._refused(
                "does not show a user message after an assistant's",
                "take a model for conversations, or a task of a single turn",
            )
        end = self._control.match(text.lstrip())
        if end is None:
            raise self._refused(
                "writes no control token at the end of a turn",
                "take a template that ends turns with one, as <|im_end|>",
            )
        self.end_of_turn = self._special[end[0]]
        if self.end_of_turn not in self.stop_ids:
            raise self._refused(
                f"ends turns with {end[0]}, at which the model does not stop",
                "add the token to eos_token_id in generation_config.json",
            )
        if not self._shows_tools():
            self._needs_calls = True
            if not self._shows_tools():
                self._needs_calls, self.tools_as_user = False, True

    def _shows_tools(self) -> bool:
        """Whether the template shows a tool message behind the end of a turn. (Gemma 4 continues
        the turn that called the tool.)"""
        text = self._after_turn([{"role": "tool", "content": _CONTENT}])
        assert self.end_of_turn is not None
        before, end, _ = (text or "").partition(self._names[self.end_of_turn])
        return bool(end) and (_CONTENT not in before if self._needs_calls else not before.strip())

    def _accepts(self, messages: Sequence[Mapping[str, Any]]) -> bool:
        try:
            self.chat.text(messages)
        except InputError:
            return False
        return True

    def _after_turn(self, messages: Sequence[Mapping[str, Any]]) -> str | None:
        """The text behind a turn that these messages follow; None if the template does not show
        turn and message once each."""
        try:
            text = self._render([_USER, self._turn(messages), *messages]).text
        except InputError:
            return None
        whole = text.count(_TURN) == 1 and text.count(_CONTENT) == len(messages)
        return text.partition(_TURN)[2] if whole else None

    def _rewritten(self, role: str) -> tuple[bool, bool]:
        """Whether the template drops thoughts, and whether it drops text, of a turn that a message
        of this role follows."""
        if role not in self._rewrites:
            opened, closed = self._tags
            said = f"{opened}\n{_THOUGHT}\n{closed}\n\n{_TURN}"
            reply = {"role": role, "content": _CONTENT}
            text = self._render([_USER, self._turn([reply], said), reply]).text
            self._rewrites[role] = (_THOUGHT not in text, _TURN not in text)
        return self._rewrites[role]

    # -- rendering and encoding -----------------------------------------------------------------

    def _turn(self, following: Sequence[Mapping[str, Any]], text: str = _TURN) -> Mapping[str, Any]:
        """An assistant's message that these messages may follow."""
        if not self._needs_calls or not following or following[0]["role"] != "tool":
            return {"role": "assistant", "content": text}
        call = {"name": "f", "arguments": {"x": text}}
        calls = [{"id": _CALL, "type": "function", "function": call}]
        return {"role": "assistant", "content": "", "tool_calls": calls}

    def _render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> _Rendered:
        asked: list[Mapping[str, Any]] = [self._safe_message(m) for m in messages]
        if self._joins:
            asked = [m for role, same in groupby(asked, lambda m: m["role"])
                     for m in _joined(list(same), role)]  # fmt: skip
        shown = [self._safe(dict(tool)) for tool in tools]
        text = self.chat.text(asked, shown)
        return _Rendered(text, hidden=_HIDDEN.search(text) is not None)

    def _safe_message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A message whose content has no control tokens."""
        role = message["role"]
        # A thought of an assistant keeps its tags, which some tokenizers call special.
        kept = self._tags if role == "assistant" else ()
        safe: dict[str, Any] = {**message, "content": self._safe(message.get("content", ""), kept)}
        if role == "tool" and self.tools_as_user:
            return {"role": "user", "content": safe["content"]}
        if role == "tool" and self._needs_calls:
            return {"name": "f", "tool_call_id": _CALL, **safe}
        return safe

    def _safe(self, value: Any, kept: Sequence[str] = ()) -> Any:
        """A value of messages or of schemas of tools, with stand-ins for control tokens."""
        if isinstance(value, str):
            return self._control.sub(
                lambda m: m[0] if m[0] in kept else f"Xenolith{self._special[m[0]]:09d}", value
            )
        if isinstance(value, Mapping):
            return {k: self._safe(v, kept) for k, v in value.items()}
        return [self._safe(v, kept) for v in value] if isinstance(value, list | tuple) else value

    def _encode(self, rendered: _Rendered) -> list[int]:
        if not rendered.hidden:  # as `apply_chat_template` does
            return self._ids(rendered.text)
        # The pieces between the template's own control tokens, which have odd indices.
        pieces = self._control.split(rendered.text)
        found: list[int] = []
        for i, piece in enumerate(pieces):
            if i % 2:
                found.append(self._special[piece])
                continue
            if i > 0 and pieces[i - 1] in self._strips_after:
                piece = piece.lstrip()
            if i + 1 < len(pieces) and pieces[i + 1] in self._strips_before:
                piece = piece.rstrip()
            text = _HIDDEN.sub(lambda m: self._names.get(int(m[1]), m[0]), piece)
            found += self._ids(text, split_special_tokens=True)
        return found

    def _ids(self, text: str, **options: Any) -> list[int]:
        if not text:
            return []
        options = {"add_special_tokens": False, "split_special_tokens": False, **options}
        return list(self.tokenizer(text, **options)["input_ids"])

    def _plain(self, messages: Sequence[Mapping[str, Any]], *, first: bool) -> list[int]:
        """The contents one after another, without a template; the first of a prompt begins as the
        tokenizer begins texts."""
        found: list[int] = []
        for i, message in enumerate(messages):
            begins = first and i == 0
            text = message["content"]
            found += self._ids(text, split_special_tokens=True, add_special_tokens=begins)
        return found


#: Id of a tool call, in the form that Mistral's template asks for: nine letters and digits.
_CALL = "call00000"


def _joined(messages: Sequence[Mapping[str, Any]], role: str) -> list[Mapping[str, Any]]:
    """Messages of one role as a single one; assistant turns and tool replies stay apart."""
    if len(messages) < 2 or role not in ("system", "user"):
        return list(messages)
    return [{"role": role, "content": "\n\n".join(str(m["content"]) for m in messages)}]
