"""The blocks that a page is made of, each written as HTML and as Markdown.

A page is a list of blocks, so that report.html and report.md cannot differ. What comes from data is
text here, and is escaped by the block that writes it: a name with HTML or Markdown in it is shown
as it is.

>>> page = [Heading("Runs"), Paragraph(["One ", Span("run", "strong"), "."])]
>>> print(to_markdown(page))
## Runs
<BLANKLINE>
One **run**.
>>> to_html(page)
'<h2>Runs</h2><p>One <strong>run</strong>.</p>'
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol
from urllib.parse import quote, urlsplit

from scalerl.report.table import code_span, escape_html, escape_markdown, fence, markdown_start


class Block(Protocol):
    """A part of a page."""

    def to_html(self) -> str:
        """The block as HTML."""

    def to_markdown(self) -> str:
        """The block as Markdown; "" where Markdown has nothing to show."""


@dataclass(frozen=True, slots=True)
class Span:
    """Text inside a paragraph that looks different, or links to another file."""

    text: str
    style: Literal["", "strong", "code", "flag"] = ""
    href: str = ""

    def to_html(self) -> str:
        """The text as an element."""
        shown = escape_html(self.text)
        if self.href:
            return f'<a href="{escape_html(self.href)}">{shown}</a>'
        if self.style == "flag":
            # The space is part of the flag, which follows a name directly.
            return f' <span class="flag">{shown}</span>'
        return f"<{self.style}>{shown}</{self.style}>" if self.style else shown

    def to_markdown(self) -> str:
        """The text with the signs of its style."""
        shown = escape_markdown(self.text)
        if self.href:
            return f"[{shown}]({_address(self.href)})"
        if self.style == "code":
            return code_span(self.text)
        if self.style == "strong":
            return f"**{shown}**"
        return f" {shown}" if self.style == "flag" else shown


#: Text of a paragraph: plain, or in pieces.
Inline = str | Sequence[str | Span]


def _spans(text: Inline) -> list[Span]:
    pieces = [text] if isinstance(text, str) else text
    return [Span(piece) if isinstance(piece, str) else piece for piece in pieces]


def inline_html(text: Inline) -> str:
    """The text of a paragraph as HTML."""
    return "".join(span.to_html() for span in _spans(text))


def inline_markdown(text: Inline) -> str:
    """The text of a paragraph as one line of Markdown."""
    return markdown_start("".join(span.to_markdown() for span in _spans(text)).strip())


def to_html(blocks: Iterable[Block]) -> str:
    """Blocks as HTML, one after the other."""
    return "".join(block.to_html() for block in blocks)


def to_markdown(blocks: Iterable[Block]) -> str:
    """Blocks as Markdown with an empty line between; neighbouring lists become one."""
    out: list[str] = []
    for text in filter(None, (block.to_markdown() for block in blocks)):
        # An empty line between two lists would begin a second one.
        if out and text.startswith("- ") and out[-1].rsplit("\n", 1)[-1].startswith("- "):
            out[-1] += f"\n{text}"
        else:
            out.append(text)
    return "\n\n".join(out)


def _classed(tag: str, style: str) -> str:
    return f'<{tag} class="{style}">' if style else f"<{tag}>"


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading."""

    text: Inline
    level: int = 2

    def to_html(self) -> str:
        return f"<h{self.level}>{inline_html(self.text)}</h{self.level}>"

    def to_markdown(self) -> str:
        # Signs # at its end would close the heading and not be shown.
        shown = re.sub(r"(#+)$", r"\\\1", inline_markdown(self.text))
        return f"{'#' * self.level} {shown}"


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph; `style` is a class of the style sheet (lead, small)."""

    text: Inline
    style: str = ""

    def to_html(self) -> str:
        return f"{_classed('p', self.style)}{inline_html(self.text)}</p>"

    def to_markdown(self) -> str:
        return inline_markdown(self.text)


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list."""

    items: Sequence[Inline]
    style: str = ""

    def to_html(self) -> str:
        inside = "".join(f"<li>{inline_html(item)}</li>" for item in self.items)
        return f"{_classed('ul', self.style)}{inside}</ul>"

    def to_markdown(self) -> str:
        return "\n".join(f"- {inline_markdown(item)}" for item in self.items)


@dataclass(frozen=True, slots=True)
class Alert:
    """A box that screen readers read first: what went wrong, as a list."""

    title: str
    lines: Sequence[str]

    def to_html(self) -> str:
        title = f"<strong>{escape_html(self.title)}</strong>"
        return f'<div class="alarm" role="alert">{title}{Bullets(self.lines).to_html()}</div>'

    def to_markdown(self) -> str:
        return f"**{escape_markdown(self.title)}**\n\n{Bullets(self.lines).to_markdown()}"


#: A number in large type: its name, its value, and a note.
Tile = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Tiles:
    """The main numbers of a page, in large type."""

    tiles: Sequence[Tile]

    def to_html(self) -> str:
        cells = "".join(
            f"<div><dt>{escape_html(name)}</dt><dd><b>{escape_html(value)}</b> "
            f"<span>{escape_html(note)}</span></dd></div>"
            for name, value, note in self.tiles
        )
        return f'<dl class="facts">{cells}</dl>'

    def to_markdown(self) -> str:
        lines: list[Inline] = [
            [f"{name}: ", Span(value, "strong"), f" {note}"] for name, value, note in self.tiles
        ]
        return Bullets(lines).to_markdown()


@dataclass(frozen=True, slots=True)
class Code:
    """Commands, a recipe or an answer, with their line breaks."""

    text: str

    def to_html(self) -> str:
        # escape_html makes control characters visible; line breaks are to stay.
        lines = "\n".join(map(escape_html, self.text.split("\n")))
        return f"<pre><code>{lines}</code></pre>"

    def to_markdown(self) -> str:
        body = "\n".join(
            "".join(ch if ch.isprintable() else "·" for ch in line)
            for line in self.text.strip("\n").split("\n")
        )
        ticks = fence(body, 3)
        return f"{ticks}\n{body}\n{ticks}"


@dataclass(frozen=True, slots=True)
class Drawing:
    """A picture that is HTML already, such as a small chart: everything in it is escaped. Markdown
    has its description."""

    html: str
    description: str

    def to_html(self) -> str:
        return self.html

    def to_markdown(self) -> str:
        return f"- {inline_markdown(self.description)}" if self.html else ""


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture with a caption; Markdown links to its file, or has its description."""

    svg: str
    caption: str
    #: What the picture shows, in a few words.
    description: str
    #: Name of the file that has the same picture.
    file: str = ""
    #: Id of the element that the page's script draws into; `svg` is then for pages without scripts.
    id: str = ""

    def to_html(self) -> str:
        attributes = f' class="chart" id="{self.id}"' if self.id else ""
        # Where the script draws a chart, the picture is for readers without scripts, and for paper.
        svg = f"<noscript>{self.svg}</noscript>" if self.id else self.svg
        caption = f"<figcaption>{escape_html(self.caption)}</figcaption>"
        return f"<figure{attributes}>{svg}{caption}</figure>"

    def to_markdown(self) -> str:
        name = escape_markdown(self.description)
        link = f"![{name}]({_address(self.file)})" if self.file else f"- {markdown_start(name)}"
        return f"{link}\n\n{inline_markdown(self.caption)}"


@dataclass(frozen=True, slots=True)
class BlockGroup:
    """Blocks that the style sheet lays out together, or frames ("card")."""

    blocks: Sequence[Block]
    style: str
    tag: Literal["div", "article"] = "div"

    def to_html(self) -> str:
        return f"{_classed(self.tag, self.style)}{to_html(self.blocks)}</{self.tag}>"

    def to_markdown(self) -> str:
        return to_markdown(self.blocks)


@dataclass(frozen=True, slots=True)
class PageSection:
    """A part of the page with a heading that its address can end in (#id)."""

    title: str
    blocks: Sequence[Block]
    id: str

    def to_html(self) -> str:
        # Screen readers list a section under the heading that labels it.
        head = f'<h2 id="{self.id}">{escape_html(self.title)}</h2>'
        return f'<section aria-labelledby="{self.id}">{head}{to_html(self.blocks)}</section>'

    def to_markdown(self) -> str:
        return to_markdown([Heading(self.title), *self.blocks])


@dataclass(frozen=True, slots=True)
class Details:
    """Blocks that are folded away until the reader opens them, by pointer or by key."""

    summary: Inline
    blocks: Sequence[Block]
    style: str = ""

    def to_html(self) -> str:
        summary = f"<summary>{inline_html(self.summary)}</summary>"
        return f"{_classed('details', self.style)}{summary}{to_html(self.blocks)}</details>"

    def to_markdown(self) -> str:
        # Markdown cannot fold: the summary becomes a bold line.
        title = "".join(span.to_markdown() for span in _spans(self.summary)).strip()
        return f"**{title}**\n\n{to_markdown(self.blocks)}".rstrip()


def _address(href: str) -> str:
    """The target of a link: a file beside the page or a web address; no other is followed."""
    # A javascript: address would run with the rights of the page.
    if urlsplit(href).scheme not in ("", "http", "https"):
        return ""
    # A space or a bracket would end the link.
    return quote(href, safe="/:#?&=%.,;@+~-_")
