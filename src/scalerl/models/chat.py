"""Questions as a model reads them: by the chat template of its tokenizer, where it has one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scalerl.errors import InputError


class Chat:
    """A tokenizer's chat template. Where it refuses system messages (Gemma's does), theirs is put
    before the first message of the user, as the makers of such models advise."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.there = bool(getattr(tokenizer, "chat_template", None))
        #: Whether a system message goes into the user's.
        self.merges = False
        system, user = ({"role": role, "content": "?"} for role in ("system", "user"))
        self.merges = self.there and self._takes(user) and not self._takes(system, user)

    def tokens(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """What the model continues."""
        from jinja2 import TemplateError

        asked = merged(messages) if self.merges else list(messages)
        try:
            ids = self.tokenizer.apply_chat_template(
                asked, add_generation_prompt=True, tokenize=True, return_dict=False
            )
        except TemplateError as error:
            why = " ".join(str(error).split()) or type(error).__name__
            raise InputError(f"the model's chat template refuses it ({why})") from None
        return list(ids)

    def _takes(self, *messages: Mapping[str, str]) -> bool:
        try:
            self.tokens(messages)
        except InputError:
            return False
        return True


def merged(messages: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """A system message at the beginning, as the first words of the message after it.

    >>> merged([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}])
    [{'role': 'user', 'content': 'Be brief.\\n\\n2+2?'}]
    """
    if len(messages) < 2 or messages[0]["role"] != "system" or messages[1]["role"] != "user":
        return list(messages)
    text = f"{messages[0]['content']}\n\n{messages[1]['content']}"
    return [{"role": "user", "content": text}, *messages[2:]]
