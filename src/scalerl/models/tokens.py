"""What a tokenizer's tokens are: the text that each one adds, and those that end a rollout."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

#: A byte on its own, as SentencePiece writes it.
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
#: What a decoder makes of bytes that are no whole character.
_BROKEN = "\ufffd"
#: What no template changes or says by itself.
_ANSWER = "Quincunx"


def hidden_tokens(tokenizer: Any, shown: Sequence[str] = ()) -> frozenset[int]:
    """Tokens that are no part of the text, `<eos>` for one: those the tokenizer calls special. A
    text of `shown` stays visible: what opens and closes a thought may be such a token."""
    added = tokenizer.added_tokens_decoder
    special = {i for i, token in added.items() if token.special} | set(tokenizer.all_special_ids)
    return frozenset(i for i in special if i not in added or added[i].content not in shown)


def token_pieces(tokenizer: Any, hidden: frozenset[int]) -> list[bytes]:
    """The bytes that each token of the vocabulary adds to a text that has begun; none for those
    that are hidden. Read off the tokenizer's own decoder, whatever kind it is: a token alone may
    lose its space, so that each is decoded behind another."""
    size = max(tokenizer.get_vocab().values()) + 1
    first = _decode(tokenizer, [[i] for i in range(size)])
    words = (i for i, text in enumerate(first) if text.isascii() and text.isalnum())
    anchor = next(words, None)
    if anchor is None or anchor in hidden:
        behind = first
    else:
        before = first[anchor]
        both = _decode(tokenizer, [[anchor, i] for i in range(size)])
        behind = [
            text[len(before) :] if text.startswith(before) else alone
            for text, alone in zip(both, first, strict=True)
        ]
    return [b"" if i in hidden else _bytes(tokenizer, i, text) for i, text in enumerate(behind)]


def _decode(tokenizer: Any, rows: list[list[int]]) -> list[str]:
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is not None:
        return list(fast.decode_batch(rows, skip_special_tokens=False))
    return [tokenizer.decode(row, clean_up_tokenization_spaces=False) for row in rows]


def _bytes(tokenizer: Any, token: int, text: str) -> bytes:
    """A part of a character has no text of its own: its bytes are in the token's name."""
    if _BROKEN not in text:
        return text.encode()
    name = str(tokenizer.convert_ids_to_tokens(token))
    alone = _BYTE.fullmatch(name)
    if alone:
        return bytes([int(alone[1], 16)])
    table = _byte_table()
    return bytes(table[c] for c in name) if all(c in table for c in name) else text.encode()


def _byte_table() -> dict[str, int]:
    """Byte-level BPE writes every byte as a visible character (GPT-2's table)."""
    seen = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1),
            *range(ord("®"), ord("ÿ") + 1)]  # fmt: skip
    others = [b for b in range(256) if b not in seen]
    return {chr(b): b for b in seen} | {chr(256 + i): b for i, b in enumerate(others)}


def stop_tokens(tokenizer: Any, *configs: Any) -> tuple[int, ...]:
    """Every token that ends a rollout: what the model's configs and the tokenizer call its end,
    and what the chat template writes after an answer."""
    found: list[int] = []
    for source in (*configs, tokenizer):
        ids = getattr(source, "eos_token_id", None)
        found += ids if isinstance(ids, Iterable) else [] if ids is None else [ids]
    found += end_of_turn(tokenizer)
    return tuple(dict.fromkeys(int(i) for i in found))


def end_of_turn(tokenizer: Any) -> list[int]:
    """The added token that the chat template writes right after an answer, if it writes one."""
    if not getattr(tokenizer, "chat_template", None):
        return []
    from jinja2 import TemplateError

    chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _ANSWER}]
    try:
        text = tokenizer.apply_chat_template(chat, tokenize=False)
    except (TemplateError, TypeError):  # one that takes no answers has no end of them
        return []
    _, there, rest = text.rpartition(_ANSWER)
    ids = tokenizer(rest.lstrip(), add_special_tokens=False)["input_ids"] if there else []
    return [i for i in ids[:1] if i in tokenizer.added_tokens_decoder]
