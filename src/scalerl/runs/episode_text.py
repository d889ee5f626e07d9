"""Search in the texts of recorded episodes: a phrase, or a regular expression.

Patterns come from requests and texts from a model, so both may be hostile. Python's `re` can take
years for a short pattern, and nothing can interrupt it; patterns are matched by Rust's `regex`,
which pydantic has inside: its time is linear in the text, it refuses patterns that would be large
when compiled, and it has no backreferences and no lookaround.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from scalerl.errors import InputError
from scalerl.runs.episode_filter import EpisodeFilter
from scalerl.text import one_line

#: Characters of a text that are looked at: some 250,000 tokens. Bounds the time for one episode.
MAX_SEARCHED = 1_000_000
#: Repetitions in a pattern, multiplied where they are nested: the time for a character grows with
#: them. `\\w{100}` is useful; `(\\w{100}){100}` is an attack.
MAX_REPEATS = 1000
Matches = Callable[[bytes], bool]


def texts_of(episode: dict[str, Any]) -> Iterator[str]:
    """The texts of an episode in which a search looks, from a line's JSON object."""
    for name in ("question", "why"):
        if isinstance(text := episode.get(name), str):
            yield text
    for row in _lists(episode.get("rows")):
        for segment in _lists(row):
            if isinstance(segment, dict) and isinstance(text := segment.get("text"), str):
                yield text


def _lists(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def matcher(wanted: EpisodeFilter) -> Callable[[dict[str, Any]], bool]:
    """Whether an episode has the text and the pattern of a filter."""
    tests: list[Callable[[str], bool]] = []
    if wanted.text is not None:
        phrase = wanted.text.lower()
        tests.append(lambda text: phrase in text.lower())
    if wanted.regex is not None:
        tests.append(compile_pattern(wanted.regex))

    def matches(episode: dict[str, Any]) -> bool:
        texts = [text[:MAX_SEARCHED] for text in texts_of(episode)]
        return all(any(test(text) for text in texts) for test in tests)

    return matches


def compile_pattern(pattern: str) -> Callable[[str], bool]:
    """Whether a text contains what a pattern describes, in time linear in the text.

    >>> compile_pattern(r"(a+)+$")("a" * 50_000 + "b")
    False
    """
    from pydantic_core import SchemaError, SchemaValidator, core_schema

    if _repeats(pattern) > MAX_REPEATS:
        raise InputError(f"regex: more than {MAX_REPEATS} repetitions: ask for fewer")
    try:
        schema = core_schema.str_schema(pattern=pattern, regex_engine="rust-regex")
        found = SchemaValidator(schema).isinstance_python
    except (SchemaError, UnicodeError) as error:
        # The last line says what is wrong; those before it repeat the pattern.
        why = one_line(str(error).strip().splitlines()[-1].removeprefix("error: "), 120)
        raise InputError(f"regex {one_line(pattern, 60)!r}: {why}: correct it") from None

    def test(text: str) -> bool:
        try:
            return bool(found(text))
        except UnicodeError:  # half of a surrogate pair, which Rust's texts cannot hold
            return bool(found(text.encode("utf-8", "replace").decode()))

    return test


def _repeats(pattern: str) -> int:
    """The largest product of nested counted repetitions; a bound, not exact: all counts of a
    pattern with groups are multiplied."""
    counts = [max(int(n or 0), int(m or 0)) for n, m in _COUNTS.findall(pattern)]
    if not counts or len(pattern) > 100_000:
        return 0 if not counts else MAX_REPEATS + 1
    if "(" not in pattern:
        return sum(counts)
    product = 1
    for count in counts:
        product = min(product * max(count, 1), MAX_REPEATS + 1)
    return product


_COUNTS = re.compile(r"\{(\d{0,9}),?(\d{0,9})\}", re.ASCII)
#: What JSON writes as it is: a phrase without it cannot be in the line.
_PLAIN = re.compile(r"[A-Za-z0-9 .,:;=+*_-]+")


def prefilter(wanted: EpisodeFilter) -> bytes:
    """Bytes that every line with the text must contain, in lower case; empty: none are known.

    >>> prefilter(EpisodeFilter(text='say "Hello World"'))
    b'hello world'
    """
    parts = _PLAIN.findall(wanted.text or "")
    return max(parts, key=len).lower().encode() if parts else b""
