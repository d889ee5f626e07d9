"""The tokenizer of running sums: one token for a character, and one each for `<think>`,
`</think>`, `<eos>` and `<pad>`.

`</think>` and the interrupting phrase `!</think>` are one and two tokens wherever they stand, so a
length control that appends them writes what the model was taught. `<think>` and `</think>` are not
"special" in the sense of Hugging Face: they stay in decoded text, where the check looks for them.
"""

from __future__ import annotations

import re
import string
from typing import Any

from scalerl.tasks.running_sums import CUT, END, END_THINK, REDO, THINK

PAD = "<pad>"
UNKNOWN = "<unk>"
#: The longest prompt and completion of the model.
POSITIONS = 512
VOCABULARY = (
    *(PAD, END, UNKNOWN, THINK, END_THINK),
    *string.digits,
    *string.ascii_lowercase,
    *("=", REDO, CUT),
)

# Longest first: `</think>` is one token, not eight.
_TOKEN = re.compile("|".join(map(re.escape, sorted(VOCABULARY, key=len, reverse=True))))
_IDS = {token: i for i, token in enumerate(VOCABULARY)}


def encode(text: str) -> list[int]:
    """What the tokenizer makes of a text of the task, many times faster for short texts.

    >>> encode("a7!</think>") == make_tokenizer()("a7!</think>")["input_ids"]
    True
    """
    return [_IDS[token] for token in _TOKEN.findall(text)]


def make_tokenizer() -> Any:
    """A Hugging Face fast tokenizer.

    >>> tokenizer = make_tokenizer()
    >>> ids = tokenizer("a7=<think>a7!</think>")["input_ids"]
    >>> len(ids), tokenizer.decode(ids)
    (8, 'a7=<think>a7!</think>')
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel(_IDS, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_tokens(
        [AddedToken(t, special=False, normalized=False) for t in (THINK, END_THINK)]
    )
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
