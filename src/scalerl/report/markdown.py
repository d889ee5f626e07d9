"""The Markdown twin of the page: the same words and numbers, made from the page itself, so that
the two cannot differ. Pictures are links to the files beside it, or their description. What the
page holds as text stays text: a name with HTML or Markdown in it is escaped."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from urllib.parse import quote, urlsplit

#: Left out with all they hold.
_SKIPPED = {"script", "style", "head", "svg", "button", "noscript"}
_HEADINGS = {"h1": "#", "h2": "##", "h3": "###", "h4": "####"}
_BLOCKS = {"p", "li", "figcaption", "summary", "dt", "caption", *_HEADINGS}
#: What is drawn in a picture need not be read: most of a page is that.
_PICTURE = re.compile(r"(<svg\b[^>]*>).*?</svg>", re.DOTALL)
_VOID = {"meta", "link", "br", "hr", "img", "input"}
#: Signs that mean something inside a Markdown paragraph. An underscore inside a word means nothing:
#: C_mid stays as it is. Entities and not backslashes for HTML, which old parsers know as well.
_SIGNS = re.compile(r"[\\`*\[\]$]|~(?=~)|(?<=~)~|(?<![^\W_])_|_(?![^\W_])")
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_BACKSLASH = r"\\\1"
#: What a block may not begin with, as it would be a heading, a list, a rule or a fence.
_BLOCK_START = re.compile(r"^([#+=|~-]|\d+(?=[.)]))")


def escaped(text: str) -> str:
    """Text that Markdown shows as it is, inside a paragraph.

    >>> print(escaped("<b> [x](y) *C_mid* `a` _b_"))
    &lt;b&gt; \\[x\\](y) \\*C_mid\\* \\`a\\` \\_b\\_
    """
    return _SIGNS.sub(lambda sign: "\\" + sign[0], text).translate(_ENTITIES)


def markdown(page: str) -> str:
    """A page of ours as Markdown.

    >>> print(markdown("<body><h2>Runs</h2><p>One <b>run</b>.</p></body>"))
    ## Runs
    <BLANKLINE>
    One **run**.
    <BLANKLINE>
    >>> print(markdown("<table><tr><th>Run</th></tr><tr><td>one<br>stable</td></tr></table>"))
    | Run |
    | --- |
    | one; stable |
    <BLANKLINE>
    """
    reader = _Reader()
    reader.feed(_PICTURE.sub(r"\1</svg>", page))
    reader.close()
    return "\n\n".join(reader.blocks) + "\n"


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.blocks: list[str] = []
        self._text: list[str] = []
        #: The element that is skipped, once for each time that it is nested in itself.
        self._skipped: list[str] = []
        self._row: list[str] = []
        self._rows: list[list[str]] = []
        self._links: list[str] = []
        self._pre = False
        #: Text of the code element that is open.
        self._code: list[str] | None = None

    # -- elements ---------------------------------------------------------------------------------

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = {name: value or "" for name, value in attrs}
        if self._skipped:
            self._skipped += [tag] if tag == self._skipped[0] else []
            return
        if tag == "svg" and known.get("role") == "img":
            self._flush()
            self._say(f"- {_opening(escaped(_one_line(known.get('aria-label', ''))))}", tight=True)
        if tag in _SKIPPED or known.get("aria-hidden") == "true":
            self._skipped = [] if tag in _VOID else [tag]
            return
        if known.get("data-file"):
            self._flush()
            self._say(f"![{escaped(known.get('data-about', ''))}]({_address(known['data-file'])})")
        if tag in _BLOCKS or tag in ("td", "th", "table", "pre"):
            self._flush()
        if tag == "pre":
            self._pre = True
        elif tag == "br":
            self._text.append("; " if self._in_table else " ")
        elif tag == "tr":
            self._row = []
        elif tag == "table":
            self._rows = []
        elif tag in ("b", "strong") and not self._in_table:
            self._text.append("**")
        elif tag == "code" and not self._pre:
            self._code = []
        elif tag == "a":
            self._links.append(known.get("href", ""))
            self._text.append("[")
        elif tag == "span" and known.get("class") == "range":
            self._text.append(" (")
            self._links.append("range")
        elif tag == "span":
            self._text.append(" ")
            self._links.append("")

    def handle_endtag(self, tag: str) -> None:
        if self._skipped:
            if tag == self._skipped[-1]:
                self._skipped.pop()
            return
        if tag in ("b", "strong") and not self._in_table:
            self._text.append("**")
        elif tag == "code" and self._code is not None:
            self._text.append(_code_span("".join(self._code)))
            self._code = None
        elif tag == "a":
            self._text.append(f"]({_address(self._links.pop())})")
        elif tag == "span":
            self._text.append(")" if self._links.pop() == "range" else "")
        elif tag == "pre":
            body = "".join(self._text).strip("\n")
            self._text, self._pre = [], False
            fence = _fence(body, 3)
            self._say(f"{fence}\n{body}\n{fence}")
        elif tag in ("td", "th"):
            self._row.append(_one_line("".join(self._text)).replace("|", "\\|"))
            self._text = []
        elif tag == "tr":
            self._rows.append(self._row)
            self._row = []
        elif tag == "table":
            self._table()
        elif tag in _BLOCKS or tag == "dd":
            self._flush(tag)

    def handle_data(self, data: str) -> None:
        if self._skipped:
            return
        if self._pre:
            self._text.append(data)
        elif self._code is not None:
            self._code.append(data)
        else:
            self._text.append(escaped(re.sub(r"\s+", " ", data)))

    # -- blocks -----------------------------------------------------------------------------------

    @property
    def _in_table(self) -> bool:
        return bool(self._rows) or bool(self._row)

    def _say(self, block: str, *, tight: bool = False) -> None:
        if tight and self.blocks and self.blocks[-1].startswith("- "):
            self.blocks[-1] += f"\n{block}"
        else:
            self.blocks.append(block)

    def _flush(self, tag: str = "") -> None:
        said = _one_line("".join(self._text))
        self._text = []
        if not said or said == "****":
            return
        if tag == "dt":
            self._text = [f"{said}: "]
            return
        said = _opening(said)
        if tag in _HEADINGS:
            # Signs # at its end would close the heading, unseen.
            self._say(f"{_HEADINGS[tag]} {re.sub('(#+)$', _BACKSLASH, said)}")
        elif tag in ("li", "dd"):
            self._say(f"- {said}", tight=True)
        elif tag == "summary":
            self._say(f"**{said}**")
        else:
            self._say(said)

    def _table(self) -> None:
        rows, self._rows = [row for row in self._rows if row], []
        if rows:
            width = max(map(len, rows))
            body = [row + [""] * (width - len(row)) for row in rows]
            body.insert(1, ["---"] * width)
            self._say("\n".join("| " + " | ".join(row) + " |" for row in body))


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def _opening(said: str) -> str:
    """A block that begins as text does."""
    return _BLOCK_START.sub(_escaped_start, said)


def _escaped_start(start: re.Match[str]) -> str:
    # "1." begins a list, and a backslash before a digit is shown: the sign after it is escaped.
    return start[0] + "\\" if start[0].isdigit() else "\\" + start[0]


def _fence(body: str, least: int) -> str:
    """More backticks than the body has in a row."""
    return "`" * max(least, 1 + max(map(len, re.findall("`+", body)), default=0))


def _code_span(body: str) -> str:
    """Text as a code span; a space on either side where it begins or ends with a backtick."""
    fence = _fence(body, 1)
    pad = " " if body[:1] == "`" or body[-1:] == "`" else ""
    return f"{fence}{pad}{_one_line(body)}{pad}{fence}"


def _address(href: str) -> str:
    """The target of a link: a file beside the page or a web address; nothing else is followed."""
    if urlsplit(href).scheme not in ("", "http", "https"):
        return ""
    return quote(href, safe="/:#?&=%.,;@+~-_")
