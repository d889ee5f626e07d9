"""Prompt tokens from messages, by the chat template of a tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from typing import Any

from scalerl.errors import InputError
from scalerl.text import one_line

#: How the templates of Llama 3.1 and 3.2 write a date: "26 Jul 2024".
LLAMA_DATE = "%d %b %Y"


class Chat:
    """A tokenizer's chat template. Where it refuses system messages (as Gemma's does), the system
    message is put before the user's first message, as the makers of such models advise.

    today  the date that the template writes into prompts; None: the template is given no date
    """

    def __init__(self, tokenizer: Any, today: date | None = None) -> None:
        self.tokenizer = tokenizer
        self.exists = bool(getattr(tokenizer, "chat_template", None))
        #: Variables passed to the template besides the messages.
        self.variables = {} if today is None else _date_variables(today)
        #: Whether a system message is merged into the user's.
        # False during the two trials below: `tokens` reads it.
        self.merges = False
        system, user = ({"role": role, "content": "?"} for role in ("system", "user"))
        self.merges = self.exists and self._accepts(user) and not self._accepts(system, user)

    def tokens(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The token ids of a prompt, generation prompt included."""
        return list(self._apply(messages, tokenize=True, return_dict=False))

    def text(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        generation: bool = True,
    ) -> str:
        """The text of a conversation, with the schemas of the tools that the model may call, and
        with the generation prompt unless `generation` is false."""
        # None, not an empty list: templates ask whether `tools` is none.
        shown = [dict(tool) for tool in tools] or None
        return str(
            self._apply(messages, tokenize=False, tools=shown, add_generation_prompt=generation)
        )

    def _apply(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Any:
        from jinja2 import TemplateError

        asked = merged(messages) if self.merges else list(messages)
        options = {"add_generation_prompt": True, **self.variables, **options}
        try:
            return self.tokenizer.apply_chat_template(asked, **options)
        except (TemplateError, TypeError) as error:
            # A TypeError: a template that adds text to a field which the message does not have.
            why = one_line(str(error)) or type(error).__name__
            raise InputError(f"the model's chat template refuses it ({why})") from None

    def _accepts(self, *messages: Mapping[str, str]) -> bool:
        try:
            self.tokens(messages)
        except InputError:
            return False
        return True


def reads_the_clock(tokenizer: Any) -> bool:
    """Whether a tokenizer's chat template may write the present date into a prompt: it names
    `strftime_now`, the only access to the clock that Transformers gives to templates."""
    return "strftime_now" in str(getattr(tokenizer, "chat_template", None))


def _date_variables(today: date) -> dict[str, Any]:
    """Template variables for a date. Variables that a template does not use change nothing.

    >>> _date_variables(date(2024, 7, 26))["date_string"]
    '26 Jul 2024'
    """
    midnight = datetime.combine(today, time())
    return {"date_string": midnight.strftime(LLAMA_DATE), "strftime_now": midnight.strftime}


def merged(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages with a leading system message merged into the user message after it.

    >>> merged([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}])
    [{'role': 'user', 'content': 'Be brief.\\n\\n2+2?'}]
    """
    if len(messages) < 2 or messages[0]["role"] != "system" or messages[1]["role"] != "user":
        return list(messages)
    text = f"{messages[0]['content']}\n\n{messages[1]['content']}"
    return [{"role": "user", "content": text}, *messages[2:]]
