"""Episodes as text: each turn and each observation after the role that wrote it."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from scalerl.algorithm.episode import Episode, EpisodeFacts, TokenRow, Turn
from scalerl.models.chat import Chat
from scalerl.models.tokens import hidden_tokens
from scalerl.models.turns import TurnRenderer
from scalerl.pipeline.transcripts import play_if_played, play_of, transcript
from scalerl.runs.lines import EpisodePlay

#: As Qwen's: a tool's reply is shown inside a user message, and thoughts are dropped once a user
#: message follows.
TEMPLATE = """\
{%- for m in messages -%}
{%- set said = m.content.split('</think>')[-1].lstrip('\\n') if m.role == 'assistant' and \
not loop.last and messages[-1].role == 'user' else m.content -%}
{%- if m.role == 'tool' -%}<|im_start|>user
<tool_response>
{{ said }}
</tool_response><|im_end|>
{% else -%}<|im_start|>{{ m.role }}
{{ said }}<|im_end|>
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""
QUESTION = {"role": "user", "content": "What is 2 + 2?"}


def make_renderer(template):
    """A tokenizer of bytes, and what renders its turns."""
    vocabulary = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    found = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>")
    found.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    found.chat_template = template
    return TurnRenderer(Chat(found), [found.eos_token_id])


@pytest.fixture(scope="module")
def turns():
    return make_renderer(TEMPLATE)


def text_of(renderer):
    hidden = hidden_tokens(renderer.tokenizer)
    return lambda ids: renderer.tokenizer.decode([i for i in ids.tolist() if i not in hidden])


def turn(renderer, text, cut=False):
    ids = renderer.tokenizer(text)["input_ids"]
    end = [] if cut else [renderer.tokenizer.eos_token_id]
    return Turn.from_lists([*ids, *end], finish="length" if cut else "stop")


def row(renderer, *parts):
    """A row from its turns (text) and observations (lists of messages); … at the end of a turn:
    it was cut off."""
    found, closed = TokenRow.from_context(renderer.opening([QUESTION])), True
    for part in parts:
        if isinstance(part, str):
            closed = not part.endswith("…")
            found = found.with_turn(turn(renderer, part, cut=not closed))
        else:
            found = found.with_context(renderer.suffix(part, closed=closed))
    return found


def show(renderer, *rows, turns=2):
    episode = Episode(tuple(rows), "stop", facts=EpisodeFacts(turns))
    return transcript(episode, text_of(renderer), renderer)


def tool(content):
    return [{"role": "tool", "content": content}]


def test_an_episode_of_one_turn_is_its_answer(turns):
    assert show(turns, row(turns, "assistant: Four."), turns=1) == "assistant: Four."
    one = Episode.from_turn([1, 2], turn(turns, "Four."))
    assert transcript(one, text_of(turns), None) == "Four."
    assert play_if_played(one) is None


def test_turns_and_observations_have_their_roles(turns):
    found = row(turns, "I call.", tool("4\nor so"), "Sure?", [QUESTION], "Four.")
    assert show(turns, found, turns=3) == (
        "assistant: I call.\ntool: 4\nor so\nassistant: Sure?\nuser: What is 2 + 2?\n"
        "assistant: Four."
    )


def test_a_turn_that_was_cut_off_is_followed_by_its_observation(turns):
    found = row(turns, "I was cut…", tool("4"), "Four.")
    assert show(turns, found) == "assistant: I was cut…\ntool: 4\nassistant: Four."


def test_a_fork_is_said_and_followed_by_the_message_that_is_new(turns):
    first = row(turns, "<think>hm</think>\nFour?")
    said = {"role": "assistant", "content": "<think>hm</think>\nFour?"}
    new = {"role": "user", "content": "And 3 + 3?"}
    context = TokenRow.from_context(turns.forked([QUESTION, said, new]))
    shown = show(turns, first, context.with_turn(turn(turns, "Six.")))
    assert shown == (
        "assistant: <think>hm</think>\nFour?\n"
        f"fork: the history is rewritten, in {len(context)} tokens\n"
        "user: And 3 + 3?\nassistant: Six."
    )


def test_without_a_template_observations_are_the_environments():
    plain = make_renderer(None)
    found = row(plain, "I call.", tool("4"), "Four.")
    assert show(plain, found) == "assistant: I call.\nenvironment: 4\nassistant: Four."


def test_forced_tokens_are_part_of_their_turn(turns):
    forced = Turn.from_lists(
        turns.tokenizer("abcd")["input_ids"], forced=[False, False, True, False]
    )
    found = TokenRow.from_context([1]).with_turn(forced)
    assert show(turns, found.with_context(turns.suffix(tool("4"), closed=False))) == (
        "assistant: abcd\ntool: 4"
    )


def test_facts_of_an_episode(turns):
    found = Episode((row(turns), row(turns)), "stop", facts=EpisodeFacts(2, 3, 1, 0.5))
    assert play_of(found) == play_if_played(found) == EpisodePlay(2, 3, 1, 1, 0.5)
