"""Questions by a chat template, of every temper."""

import pytest

from scalerl.errors import InputError
from scalerl.models.chat import Chat
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
    assert not chat(None).there
    assert not chat(None).merges
