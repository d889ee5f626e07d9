"""The static site has every page, its links and anchors lead somewhere, and the index for language
models has a sentence about each page. `make site` builds it with MkDocs, which checks the same."""

import re
import runpy
import sys

import pytest
import yaml
from doc_pages import PAGES, ROOT

SITE = runpy.run_path(str(ROOT / "docs" / "build_site.py"))
NAV = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]


def without_code(text):
    text = re.sub(r"^(```+).*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", lambda found: found[0].strip("`"), text)


def anchors(page):
    """Anchors of the headings of a page, as GitHub makes them."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", without_code(text), re.MULTILINE)
    return {SITE["github_slug"](heading, "-") for heading in headings}


@pytest.fixture(scope="module")
def staged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site") / "pages"
    SITE["stage"](folder)
    return folder


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_anchors_of_links_are_headings(page):
    text = page.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\(([^)#\s]*\.md|)#([^)]+)\)", text):
        other = page.parent / target if target else page
        assert anchor in anchors(other), f"{page.name} links to {target}#{anchor}"


def test_the_navigation_has_every_page_once():
    listed = [path for paths in SITE["sections"](NAV).values() for path in paths]
    assert sorted(listed) == sorted(str(page) for page in SITE["pages"]())


def test_links_and_pictures_of_staged_pages_lead_to_staged_files(staged):
    pages = list(staged.rglob("*.md"))
    assert len(pages) > 50
    for page in pages:
        text = without_code(page.read_text(encoding="utf-8"))
        targets = re.findall(r"\]\(([^)#\s]+)", text) + re.findall(r'src(?:set)?="([^"]+)"', text)
        for target in targets:
            if not target.startswith(("http", "data:", "mailto:")):
                assert (page.parent / target).exists(), f"{page}: {target}"


def test_source_files_and_notebooks_become_pages(staged):
    notebook = (staged / "examples" / "forecast.ipynb.md").read_text(encoding="utf-8")
    assert notebook.startswith("# ") and "```python" in notebook and "data:image/png" in notebook
    source = (staged / "tests" / "extend" / "toy_parts.py.md").read_text(encoding="utf-8")
    assert "class ToyEngine" in source


def test_llms_txt_has_a_sentence_for_each_page(staged):
    index, full = SITE["llms_text"](NAV, staged)
    lines = [line for line in index.splitlines() if line.startswith("- ")]
    assert len(lines) == len(SITE["pages"]())
    for line in lines:
        assert re.fullmatch(r"- \[.+\]\(\S+\.md\): .{15,}\.", line), line
    assert "Import logs" in full and "<!-- begin" not in full


def test_the_glossary_is_sorted_and_explains_each_word_in_one_sentence():
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    entries = re.findall(r"^- \*\*(.+?)\*\* – (.+)$", text, re.MULTILINE)
    words = [word for word, _ in entries]
    assert len(words) > 50 and words == sorted(words, key=str.casefold)
    for word, meaning in entries:
        assert meaning.endswith(".") and "](" in meaning, word
        assert not re.search(r"[a-z]\. [A-Z]", meaning), f"{word}: one sentence"


def test_sentences_are_drawn_the_same_each_time(capsys, monkeypatch):
    draw = runpy.run_path(str(ROOT / "docs" / "sentences.py"))
    text = "# Title\n\nOne sentence has at least six words. Short one.\n\n| a | b |\n"
    assert draw["sentences"](text) == ["One sentence has at least six words."]
    monkeypatch.setattr(sys, "argv", ["sentences.py"])
    draw["main"]()
    first = capsys.readouterr().out
    draw["main"]()
    assert capsys.readouterr().out == first and first.count("\n- ") == 10
