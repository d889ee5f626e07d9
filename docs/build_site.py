"""Build the documentation as a static site with MkDocs, and llms.txt for language models.

make site                              the usual way: installs MkDocs into .venv-site
python docs/build_site.py              stage the pages in out/site-pages and build out/site

The staged folder has the layout of the repository: README.md at the top, docs/ below it. So links
between pages are the same in both, and MkDocs checks each link and anchor. Source files that a page
links to become pages of their own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
STAGED = ROOT / "out" / "site-pages"
SITE = ROOT / "out" / "site"
TOP_PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
LINK = re.compile(r"\]\(([^)#\s]+)((?:#[^)]*)?)\)")
COMMENT = re.compile(r"<!-- (?:begin|end) \S+ -->")
#: Suffixes of linked files that are copied as they are; others become pages.
COPIED = (".md", ".png", ".svg", ".json")
LANGUAGES = {
    ".py": "python", ".toml": "toml", ".sh": "bash", ".yaml": "yaml", ".cff": "yaml",
    ".html": "html",
}  # fmt: skip
INTRODUCTION = """# scalerl

> RL post-training of language models by the ScaleRL recipe, and forecasts of RL runs: fit a \
sigmoid law to the log of a run, predict where it goes with a calibrated interval, compare recipes.
"""


def pages() -> list[Path]:
    """Every page, relative to the repository; generated reports of studies are left out."""
    found = [Path(name) for name in TOP_PAGES]
    below = sorted((ROOT / "docs").rglob("*.md"))
    return found + [p.relative_to(ROOT) for p in below if "report" not in p.parent.parts]


def linked_files(page: Path, text: str) -> Iterator[Path]:
    """Local files that a page links to, relative to the repository."""
    for target, _ in LINK.findall(text):
        if not target.startswith(("http:", "https:", "mailto:")):
            yield Path(os.path.normpath(page.parent / target))


def source_page(path: Path) -> str:
    """A source file or a notebook as a Markdown page."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        return "\n\n".join(_cell(cell) for cell in json.loads(text)["cells"]) + "\n"
    # Four backticks, since a docstring may hold a block of three.
    return f"# {path}\n\n````{LANGUAGES.get(path.suffix, 'text')}\n{text}````\n"


def _cell(cell: dict[str, Any]) -> str:
    text = "".join(cell["source"])
    if cell["cell_type"] != "code":
        return text
    shown = [f"```python\n{text}\n```"]
    for output in cell["outputs"]:
        data = output.get("data", {"text/plain": output.get("text", "")})
        if "image/png" in data:
            shown.append(f"![figure](data:image/png;base64,{''.join(data['image/png']).strip()})")
        else:
            shown.append(f"```text\n{''.join(data['text/plain'])}\n```")
    return "\n\n".join(shown)


def staged_text(text: str) -> str:
    """The page without marks of generated parts; links to source files lead to their pages."""

    def link(found: re.Match[str]) -> str:
        target, anchor = found.groups()
        local = not target.startswith(("http:", "https:", "mailto:"))
        page = local and Path(target).suffix not in COPIED
        return f"]({target}{'.md' if page else ''}{anchor})"

    return LINK.sub(link, COMMENT.sub("", text))


def stage(folder: Path) -> None:
    """Write every page, and every file that one links to, below the folder."""
    shutil.rmtree(folder, ignore_errors=True)
    for page in pages():
        text = (ROOT / page).read_text(encoding="utf-8")
        _write(folder / page, staged_text(text))
        for path in linked_files(page, text):
            if path.suffix not in COPIED:
                _write(folder / f"{path}.md", source_page(path))
            elif path.suffix == ".json":
                _write(folder / path, (ROOT / path).read_text(encoding="utf-8"))
    for images in sorted((ROOT / "docs").glob("**/images")):
        shutil.copytree(images, folder / images.relative_to(ROOT))
    shutil.copy(ROOT / "docs" / "site.css", folder / "docs")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def title(text: str) -> str:
    return re.search(r"^# (.+)$", text, re.MULTILINE)[1].replace("`", "")  # type: ignore[index]


def summary(text: str) -> str:
    """The first sentence below the title, without marks and links."""
    below = re.split(r"^# .+$", text, maxsplit=1, flags=re.MULTILINE)[-1]
    for paragraph in re.split(r"\n\n+", below):
        # A bold beginning ("**Seeds.** Runs of …") is a heading inside the line.
        line = re.sub(r"^\*\*[^*]+[.?]\*\* ", "", " ".join(paragraph.split()))
        if (
            line
            and not paragraph.startswith("    ")
            and not line.startswith(("#", "|", "`", "<", "!", "- "))
        ):
            line = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line)
            line = re.sub(r"[*`]", "", line)
            # A sentence of a word or two ("Fit both.") is joined with the next.
            found = re.match(r".{20,}?[.?!](?=\s)", line)
            return (found[0] if found else line).rstrip(":.") + "."
    return ""


def sections(nav: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Paths of the pages under each heading of the navigation of mkdocs.yml."""
    found: dict[str, list[str]] = {}
    for entry in nav:
        for heading, inside in entry.items():
            below = inside if isinstance(inside, list) else [{heading: inside}]
            found[heading] = [path for item in below for path in item.values()]
    return found


def llms_text(nav: list[dict[str, Any]], folder: Path) -> tuple[str, str]:
    """llms.txt (an index with a sentence for each page) and llms-full.txt (every page)."""
    index, full = [INTRODUCTION], [INTRODUCTION]
    for heading, paths in sections(nav).items():
        index.append(f"\n## {heading}\n\n")
        for path in paths:
            text = (folder / path).read_text(encoding="utf-8")
            index.append(f"- [{title(text)}]({path}): {summary(text)}\n")
            full.append(f"\n\n<!-- {path} -->\n\n{text}")
    return "".join(index), "".join(full)


def github_slug(heading: str, separator: str) -> str:
    """The anchor that GitHub gives a heading; MkDocs' own differs where signs are left out."""
    words = re.sub(r"[^\w\s-]", "", heading.strip().lower())
    return re.sub(r"\s", separator, words)


def on_config(config: Any) -> Any:
    """Hook of MkDocs: anchors as on GitHub, so that one link works in both places."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = github_slug
    return config


def main() -> int:
    import yaml

    stage(STAGED)
    # Not --quiet: it hides the warnings from --strict as well.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        print("\n".join(line for line in done.stderr.splitlines() if "INFO" not in line))
        return 1
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    index, full = llms_text(nav, STAGED)
    _write(SITE / "llms.txt", index)
    _write(SITE / "llms-full.txt", full)
    for page in STAGED.rglob("*.md"):  # llms.txt links to the Markdown of the pages
        _write(SITE / page.relative_to(STAGED), page.read_text(encoding="utf-8"))
    print(f"{SITE.relative_to(ROOT)}/index.html: {len(list(SITE.rglob('*.html')))} pages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
