"""Questions by a chat template, of every temper."""

from datetime import date

import pytest

from scalerl.errors import InputError
from scalerl.models.chat import Chat, reads_the_clock
from scalerl.models.tiny.tokenizer import make_tokenizer

ALL = "{% for m in messages %}{{ m.content }}={% endfor %}"
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}" + ALL
)
STRICT = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}={% endfor %}"
)
SYSTEM, USER = {"role": "system", "content": "a1"}, {"role": "user", "content": "b2"}


def chat(template):
    tokenizer = make_tokenizer()
    tokenizer.chat_template = template
    return Chat(tokenizer)


def written(chat, *messages):
    return chat.tokenizer.decode(chat.tokens(messages))


def test_a_system_message_that_the_template_takes_stays_what_it_is():
    assert not chat(ALL).merges
    assert written(chat(ALL), SYSTEM, USER) == "a1=b2="


@pytest.mark.parametrize("template", [NO_SYSTEM, STRICT])
def test_a_system_message_that_the_template_refuses_goes_before_the_users(template):
    found = chat(template)
    assert found.merges
    assert written(found, SYSTEM, USER).replace("<unk>", "") == "a1b2="
    assert written(found, USER) == "b2="


def test_what_the_template_still_refuses_is_one_line():
    with pytest.raises(InputError, match=r"refuses it \(roles must alternate\)") as problem:
        chat(STRICT).tokens([USER, USER])
    assert "\n" not in str(problem.value)


def test_without_a_template_there_is_nothing_to_merge():
    assert not chat(None).exists
    assert not chat(None).merges


#: As Llama 3.2's template finds its date, and as Mistral's and others ask for theirs.
LLAMA = (
    "{%- if not date_string is defined %}{%- if strftime_now is defined %}"
    '{%- set date_string = strftime_now("%d %b %Y") %}{%- else %}'
    '{%- set date_string = "26 Jul 2024" %}{%- endif %}{%- endif %}'
    "{{ date_string }}={{ messages[0].content }}"
)
MISTRAL = "{{ strftime_now('%Y-%m-%d') }}={{ messages[0].content }}"
#: Llama 3.1's: it has a date of its own, and never reads the clock.
LLAMA_3_1 = (
    '{%- if not date_string is defined %}{%- set date_string = "26 Jul 2024" %}{%- endif %}'
    "{{ date_string }}={{ messages[0].content }}"
)


@pytest.mark.parametrize(
    ("template", "clock", "digits"),
    [(LLAMA, True, "021969"), (MISTRAL, True, "19690702"), (LLAMA_3_1, False, "021969")],
)
def test_the_date_of_a_run_is_what_the_template_writes(template, clock, digits):
    tokenizer = make_tokenizer()
    tokenizer.chat_template = template
    assert reads_the_clock(tokenizer) == clock
    text = written(Chat(tokenizer, date(1969, 7, 2)), USER)
    assert "".join(c for c in text.partition("=")[0] if c.isdigit()) == digits


def test_a_template_with_a_date_of_its_own_keeps_it_unless_a_recipe_sets_one():
    text = written(chat(LLAMA_3_1), USER)
    assert "".join(c for c in text.partition("=")[0] if c.isdigit()) == "262024"
