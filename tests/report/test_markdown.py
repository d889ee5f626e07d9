"""The Markdown twin: text of the page stays text, whatever it looks like."""

import html
import re
from html.parser import HTMLParser

import pytest
from made_records import made_run
from made_runs import climbing

from scalerl.cli import main
from scalerl.curves.fit import fit_all
from scalerl.report.blocks import (
    Bullets,
    Code,
    Details,
    Drawing,
    Figure,
    Heading,
    Paragraph,
    Span,
    Tiles,
    to_html,
    to_markdown,
)
from scalerl.report.html import write_report
from scalerl.report.table import ReportTable, TableCell, columns, row

IMAGE = "<img src=x onerror=alert(1)>"
HOSTILE = (
    IMAGE,
    "[x](javascript:alert(1))",
    "![x](javascript:alert(1))",
    "a | b | c",
    "``` `code` ```",
    "one\n\n# two\n\n<script>alert(2)</script>",
    "# heading #",
    "- item",
    "12. item",
    "~~gone~~ *bold* __strong__ \\*",
    "[x]: javascript:alert(1)",
    "&lt;b&gt; $x_1$",
    "</td></table><svg onload=alert(1)>",
)


class Rendered(HTMLParser):
    """Elements, addresses and text of the twin as a parser of Markdown renders it, with HTML."""

    def __init__(self, twin: str) -> None:
        super().__init__()
        renderer = pytest.importorskip("markdown_it").MarkdownIt("commonmark", {"html": True})
        self.tags: set[str] = set()
        self.addresses: list[str] = []
        self.text: list[str] = []
        self.attributes: set[str] = set()
        self.feed(renderer.enable(["table", "strikethrough"]).render(twin))

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.addresses += [value for name, value in attrs if name in ("href", "src")]

    def handle_data(self, data):
        self.text.append(data)


def visible(name: str) -> str:
    """As the page shows it: control characters are dots."""
    return "".join(ch if ch.isprintable() else "·" for ch in name)


def check(twin: str, allowed: set[str] = frozenset()) -> Rendered:
    found = Rendered(twin)
    assert not found.tags & ({"img", "script", "svg", "s", "b", "i"} - allowed), found.tags
    assert not found.attributes & {"onerror", "onload"}
    assert all(re.fullmatch(r"[\w.-]+|https://arxiv\.org/.*", a) for a in found.addresses)
    return found


@pytest.mark.parametrize("name", HOSTILE)
def test_text_is_shown_as_it_is_wherever_it_stands(name):
    said = visible(name)
    page = [
        Heading(said),
        Paragraph(said),
        Bullets([said]),
        ReportTable(said, columns(said), [row(said)]),
        Tiles([(said, "1", said)]),
        Paragraph([Span(said, "code"), " ", Span(said, href="f.png")]),
        Details(said, []),
        Code(said),
        Drawing("<svg></svg>", said),
        Figure("<svg></svg>", "caption", said, "f.png"),
    ]
    found = check(to_markdown(page), allowed={"img"})
    shown = " ".join("".join(found.text).split())
    assert shown.count(" ".join(said.split())) == 13, to_markdown(page)
    assert to_html(page).count(html.escape(said, quote=True)) == 12


def test_names_titles_notes_and_sources_of_runs_are_escaped_in_the_report(tmp_path):
    fits = fit_all(
        climbing(name, seed=i, notes=(name,)).replace(source=name) for i, name in enumerate(HOSTILE)
    )
    paths = write_report(fits[:3], tmp_path / "few", title=IMAGE, command=f"x {IMAGE} ```")
    paths += write_report(fits, tmp_path / "many")
    for twin in [p.read_text() for p in paths if p.name == "report.md"]:
        assert IMAGE not in re.sub(r"^(`{3,})\n.*?\n\1$", "", twin, flags=re.M | re.S)
        found = check(twin, allowed={"img"})  # the chart's own picture
        shown = " ".join("".join(found.text).split())
        assert IMAGE in shown and "[x](javascript:alert(1))" in shown


def test_what_a_training_run_says_is_escaped_in_the_twin(tmp_path):
    made_run(tmp_path / "run", answer=IMAGE, warning=HOSTILE[1], set="a|b`<i>`")
    assert main(["report", str(tmp_path / "run"), "-o", str(tmp_path / "page")]) == 0
    twin = (tmp_path / "page" / "report.md").read_text()
    found = check(twin, allowed={"img"})
    shown = " ".join("".join(found.text).split())
    assert IMAGE in shown and HOSTILE[1] in shown and "a|b`<i>`" in shown


def test_a_link_leads_only_to_files_and_the_web():
    assert Paragraph([Span("x", href="javascript:alert(1)")]).to_markdown() == "[x]()"
    assert Paragraph([Span("x", href="a b(1).png")]).to_markdown() == "[x](a%20b%281%29.png)"


def test_plain_words_are_not_escaped():
    said = "C_mid of R_0 at 5.2k (90 %: -0.003 to +0.042), A = 1.000 #3"
    assert Paragraph(said).to_markdown() == said


def test_the_forms_of_a_table():
    cell = TableCell("0.62", "0.60 to 0.70", ("a note",), 0.621)
    table = ReportTable("Fits", columns("Run", ">Ceiling"), [row("one|two", cell)])
    assert '<td data-key="0.621">0.62 <span class="range">0.60 to 0.70</span>' in table.to_html()
    assert table.to_markdown().splitlines() == [
        "Fits", "", "| Run | Ceiling |", "| --- | --- |",
        "| one\\|two | 0.62 (0.60 to 0.70); a note |",
    ]  # fmt: skip
    assert table.to_text((10, 20)).splitlines()[2] == "one|two     0.62 [0.60 to 0.70]"
    assert "<td>0.62 [0.60 to 0.70]</td>" in table.to_plain_html(1)
