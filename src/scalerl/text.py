"""Short texts for people: lists of names, names of limited width, errors in one line, times."""

from __future__ import annotations

from collections.abc import Iterable


def listed(names: Iterable[object], most: int = 8, last: str = ", ") -> str:
    """The first `most` names and how many more there are. `last` joins the last two names of a
    list that is shown whole.

    >>> listed("abcd", most=2), listed("abc"), listed("abc", last=" and ")
    ('a, b and 2 more', 'a, b, c', 'a, b and c')
    """
    short = [shorten(str(name)) for name in names]
    if len(short) > most:
        return f"{', '.join(short[:most])} and {len(short) - most} more"
    return last.join(filter(None, [", ".join(short[:-1]), *short[-1:]]))


def shorten(name: str, width: int = 80) -> str:
    """The name in at most `width` characters, cut in the middle, since names of runs and columns
    often differ at the end only. Line breaks and other control characters become dots.

    >>> shorten("a-very-long-run-name", 11)
    'a-ver…-name'
    """
    clean = "".join(ch if ch.isprintable() else "·" for ch in name)
    if len(clean) <= width:
        return clean
    keep = max(width - 1, 0)
    tail = keep // 2 if width > 4 else 0
    return clean[: keep - tail] + "…" + (clean[len(clean) - tail :] if tail else "")


def one_line(text: str, most: int = 300) -> str:
    """The text without line breaks and repeated spaces, at most `most` characters.

    >>> one_line(" two\\n  lines ")
    'two lines'
    """
    return " ".join(text.split())[:most]


def first_line(error: BaseException) -> str:
    """The first line of an exception's text, or its type where it has no text.

    >>> first_line(ValueError("no such file\\nmore")), first_line(KeyError())
    ('no such file', 'KeyError')
    """
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def clock_text(seconds: float) -> str:
    """A span of time as a clock shows it.

    >>> clock_text(75), clock_text(3725)
    ('1:15', '1:02:05')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
