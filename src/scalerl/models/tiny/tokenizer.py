"""The tokenizers of the tiny models: one token for a character, and one each for some longer texts.

Running sums have a token each for `<think>` and `</think>`, `tiny-tools` for the two halves of a
tool call, `tiny-guess` for the hints and for numbers of two digits. They are not "special" in the
sense of Hugging Face: they stay in decoded text, where checks and parsers look for them.

`</think>` and the interrupting phrase `!</think>` are one and two tokens wherever they stand, so a
length control that appends them writes what the model was taught.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from functools import cache
from typing import Any

from scalerl.environments.games import guess, lookups
from scalerl.tasks.running_sums import CUT, END, END_THINK, REDO, THINK

PAD = "<pad>"
UNKNOWN = "<unk>"
#: The longest prompt and completion of the model.
POSITIONS = 512
#: Tokens of running sums, in the order of their ids.
VOCABULARY = (
    *(PAD, END, UNKNOWN, THINK, END_THINK),
    *string.digits,
    *string.ascii_lowercase,
    *("=", REDO, CUT),
)
#: Tokens of `tiny-tools`. The tool's error messages begin with a token of their own.
TOOLS_VOCABULARY = (
    *(PAD, END, UNKNOWN, lookups.CALL, lookups.CALL_END, "error: "),
    *string.digits,
    *lookups.KEYS,
    lookups.EQUALS,
)
#: Tokens of `tiny-guess`.
GUESS_VOCABULARY = (
    *(PAD, END, UNKNOWN, guess.HIGHER, guess.LOWER, guess.UNREADABLE, "-", ":"),
    *string.ascii_lowercase,
    *(guess.written(number) for number in range(guess.LARGEST + 1)),
)


@cache
def _splitter(vocabulary: tuple[str, ...]) -> tuple[re.Pattern[str], dict[str, int]]:
    # Longest first: `</think>` is one token, not eight.
    longest_first = sorted(vocabulary, key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, longest_first)))
    return pattern, {token: i for i, token in enumerate(vocabulary)}


def encode(text: str, vocabulary: tuple[str, ...] = VOCABULARY) -> list[int]:
    """What the tokenizer makes of a text of its task, many times faster for short texts.

    >>> encode("a7!</think>") == make_tokenizer()("a7!</think>")["input_ids"]
    True
    """
    pattern, ids = _splitter(vocabulary)
    return [ids[token] for token in pattern.findall(text)]


def make_tokenizer(vocabulary: Sequence[str] = VOCABULARY) -> Any:
    """A Hugging Face fast tokenizer.

    >>> tokenizer = make_tokenizer()
    >>> ids = tokenizer("a7=<think>a7!</think>")["input_ids"]
    >>> len(ids), tokenizer.decode(ids)
    (8, 'a7=<think>a7!</think>')
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    ids = {token: i for i, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    longer = [t for t in vocabulary if len(t) > 1 and t not in (PAD, END, UNKNOWN)]
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in longer])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        unk_token=UNKNOWN,
        padding_side="left",
        model_max_length=POSITIONS,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )
