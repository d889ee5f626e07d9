"""Entries of the index of recorded episodes: one fixed-width record for each line.

`episodes/training.jsonl` has an index `episodes/training.index` beside it (and `validation.jsonl`
one of its own), with the entries of its lines in their order. It holds what lists, filters and
histograms need, so that a reader of 200,000 episodes parses no line before its first answer. It
holds no text: names of prompts and tasks are hashes.

The lines are the record and the index only repeats them. It may be missing, end early, have a torn
last entry or be damaged: readers check the sum of every entry and the CRC of some lines, and parse
the lines that no entry covers.
"""

from __future__ import annotations

import math
import operator
import struct
import zlib
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

#: Suffix of an index, in place of that of its file of lines.
SUFFIX = ".index"
#: Finish reasons by the number that stands for them; the last one is any other.
FINISHES = ("stop", "length", "interrupted", "turns", "failed", "aborted", "")
#: Values of `correct` by the number that stands for them.
CORRECT: tuple[bool | None, ...] = (False, True, None)
#: An entry, little-endian and without gaps, but for its check sum; `scalerl.runs.episode_table` has
#: the same as a type of numpy, with the meaning of each field. (A training run appends entries
#: before it needs numpy for its record.)
_FIELDS = struct.Struct("<QQQIIifIHHBBH")
_WORDS = struct.Struct(f"<{_FIELDS.size // 4}I")
#: Bytes of an entry.
ENTRY_BYTES = _FIELDS.size + 4
#: Odd weights of an entry's 4-byte words in its check sum: a word that changes, or two that change
#: places, change the sum.
WEIGHTS = tuple((2 * i + 1) * 0x9E3779B1 % 2**32 for i in range(_FIELDS.size // 4))
#: Added to the sum, so that an entry of zeros is wrong.
CONSTANT = 0x5CA1E71
#: Rewards beyond this have no float32.
_MAX_REWARD = 3e38


def name_hash(name: str) -> int:
    """The number that stands for a name in an index.

    >>> name_hash("sums/1") == name_hash("sums/1") != name_hash("sums/2")
    True
    """
    data = name.encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")


def entry_of(found: Mapping[str, Any], line: bytes, offset: int) -> bytes | None:
    """The entry of a line that holds this JSON object; None without a whole number
    as its step. Values of the wrong type count as missing."""
    step = found.get("step")
    if type(step) is float and step.is_integer():
        step = int(step)
    if type(step) is not int:
        return None
    play = found.get("play")
    play = play if isinstance(play, dict) else {}
    correct = found.get("correct")
    entry = _FIELDS.pack(
        offset,
        name_hash(_text(found.get("prompt"))),
        name_hash(_text(found.get("task"))),
        len(line) + 1,
        zlib.crc32(line),
        _clip(step, -(2**31), 2**31 - 1),
        _reward(found.get("reward")),
        written_tokens(found.get("rows")),
        _count(play.get("turns"), 2**16 - 1),
        _count(play.get("tool_failures"), 2**16 - 1),
        finish_number(found.get("finish")),
        CORRECT.index(correct) if isinstance(correct, bool) else CORRECT.index(None),
        0,
    )
    words = _WORDS.unpack(entry)
    check = (sum(map(operator.mul, words, WEIGHTS)) + CONSTANT) % 2**32
    found: bytes = entry + check.to_bytes(4, "little")
    return found


def finish_number(finish: Any) -> int:
    """The number of a finish reason."""
    return FINISHES.index(finish) if finish in FINISHES[:-1] else len(FINISHES) - 1


def written_tokens(rows: Any) -> int:
    """Tokens of the segments that are not context, in the rows of an episode."""
    total = 0
    for row in rows if isinstance(rows, list) else ():
        for segment in row if isinstance(row, list) else ():
            if isinstance(segment, dict) and segment.get("source") in ("policy", "forced"):
                total += _count(segment.get("tokens"), 2**32 - 1)
    return min(total, 2**32 - 1)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _count(value: Any, most: int) -> int:
    return _clip(value, 0, most) if type(value) is int else 0


def _clip(value: int, low: int, high: int) -> int:
    return min(max(value, low), high)


def _reward(value: Any) -> float:
    # By exact type, because true and false are integers to isinstance.
    if type(value) not in (int, float):
        return math.nan
    try:
        return float(value) if abs(value) < _MAX_REWARD else math.nan
    except OverflowError:
        return math.nan


def index_path(lines: Path) -> Path:
    """The index of a file of lines."""
    return lines.with_suffix(SUFFIX)
