"""Questions as a model reads them: by the chat template of its tokenizer, where it has one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from typing import Any

from scalerl.errors import InputError

#: How the templates of Llama 3.1 and 3.2 write a date: "26 Jul 2024".
LLAMA_DATE = "%d %b %Y"


class Chat:
    """A tokenizer's chat template. Where it refuses system messages (Gemma's does), theirs is put
    before the first message of the user, as the makers of such models advise.

    today  the date that the template writes into prompts, whatever the clock says; None: the
           template gets no date from here
    """

    def __init__(self, tokenizer: Any, today: date | None = None) -> None:
        self.tokenizer = tokenizer
        self.there = bool(getattr(tokenizer, "chat_template", None))
        #: Passed to the template beside the messages.
        self.variables = {} if today is None else _date_variables(today)
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
                asked,
                add_generation_prompt=True,
                tokenize=True,
                return_dict=False,
                **self.variables,
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


def reads_the_clock(tokenizer: Any) -> bool:
    """Whether the chat template of a tokenizer may write the present date into a prompt: it names
    `strftime_now`, the only way to the clock that Transformers gives to templates."""
    return "strftime_now" in str(getattr(tokenizer, "chat_template", None))


def _date_variables(today: date) -> dict[str, Any]:
    """What templates know a date by. Variables that a template does not name change nothing.

    >>> _date_variables(date(2024, 7, 26))["date_string"]
    '26 Jul 2024'
    """
    midnight = datetime.combine(today, time())
    return {"date_string": midnight.strftime(LLAMA_DATE), "strftime_now": midnight.strftime}


def merged(messages: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """A system message at the beginning, as the first words of the message after it.

    >>> merged([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}])
    [{'role': 'user', 'content': 'Be brief.\\n\\n2+2?'}]
    """
    if len(messages) < 2 or messages[0]["role"] != "system" or messages[1]["role"] != "user":
        return list(messages)
    text = f"{messages[0]['content']}\n\n{messages[1]['content']}"
    return [{"role": "user", "content": text}, *messages[2:]]
