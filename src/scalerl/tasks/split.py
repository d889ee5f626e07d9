"""The split by content: the same question is on the same side in every run, file and order."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence

#: Changing this moves questions between training and validation: results before and after it
#: cannot be compared.
SALT = "scalerl held-out 1"


def normal(question: str | Sequence[dict[str, str]]) -> str:
    """The question as the split sees it: same letters, one blank for any white space, so that
    copies of a question that differ in spacing or Unicode form stay together.

    >>> normal(" Two\\n  lines ") == normal("Two lines")
    True
    """
    if not isinstance(question, str):
        question = "\x1e".join(f"{m['role']}\x1f{m['content']}" for m in question)
    return " ".join(unicodedata.normalize("NFKC", question).split())


def digest(question: str | Sequence[dict[str, str]]) -> str:
    """16 hex digits that depend on the question only."""
    text = f"{SALT}|{normal(question)}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def rank(found: str) -> float:
    """Where a digest lies in [0, 1): the held-out share is the lower end."""
    return (int(found, 16) >> 11) / 2**53


def held_out(question: str | Sequence[dict[str, str]], share: float) -> bool:
    """Whether the question belongs to the held-out share.

    >>> sum(held_out(f"question {i}", 0.1) for i in range(1000))
    102
    """
    return rank(digest(question)) < share
