"""The Markdown twin: text of the page stays text, whatever it looks like."""

import html
import re
from html.parser import HTMLParser

import pytest
from made_records import made_run
from made_runs import climbing

from scalerl.cli import main
from scalerl.curves.fit import fit_all
from scalerl.report.html import write_report
from scalerl.report.markdown import markdown

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
    said = html.escape(visible(name))
    twin = markdown(
        f"<h2>{said}</h2><p>{said}</p><ul><li>{said}</li></ul>"
        f"<table><caption>{said}</caption><tr><th>{said}</th></tr><tr><td>{said}</td></tr></table>"
        f'<dl><dt>{said}</dt><dd>{said}</dd></dl><p><code>{said}</code> <a href="f.png">{said}</a>'
        f"</p><details><summary>{said}</summary></details><pre><code>{said}</code></pre>"
        f'<svg role="img" aria-label="{said}"></svg>'
        f'<figure data-file="f.png" data-about="{said}"></figure>'
    )
    found = check(twin, allowed={"img"})
    shown = " ".join("".join(found.text).split())
    assert shown.count(" ".join(visible(name).split())) == 13, twin


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
    assert markdown('<p><a href="javascript:alert(1)">x</a></p>') == "[x]()\n"
    assert markdown('<p><a href="a b(1).png">x</a></p>') == "[x](a%20b%281%29.png)\n"


def test_plain_words_are_not_escaped():
    said = "C_mid of R_0 at 5.2k (90 %: -0.003 to +0.042), A = 1.000 #3"
    assert markdown(f"<p>{said}</p>") == f"{said}\n"
