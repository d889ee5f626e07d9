"""The docs are up to date with code and results, their links lead somewhere, and what they tell a
reader to paste works."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: Pages whose commands run as they stand (others speak of the reader's own files).
PASTED = [
    ROOT / "README.md",
    ROOT / "docs/tutorial/README.md",
    ROOT / "docs/how-to/add-a-law.md",
    ROOT / "docs/how-to/check-the-papers-numbers.md",
    ROOT / "docs/how-to/compare-recipes.md",
    ROOT / "docs/how-to/import-tables.md",
]


def blocks(page, language):
    """Contents of the fenced blocks of this language ("" for none)."""
    found, inside, lines = [], None, []
    for line in page.read_text(encoding="utf-8").splitlines():
        if not line.startswith("```"):
            lines.append(line)
        elif inside is None:
            inside, lines = line.removeprefix("```").strip(), []
        else:
            if inside == language:
                found.append("\n".join(lines) + "\n")
            inside = None
    return found


def test_tables_and_reference_are_up_to_date():
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "build.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, f"run `make docs`: {done.stdout}{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{target} is linked from {page.name}"


def test_the_page_on_the_architecture_names_files_and_registries_that_exist():
    text = (ROOT / "docs/explanation/architecture.md").read_text(encoding="utf-8")
    source = ROOT / "src" / "scalerl"
    named = set(re.findall(r"`([a-z_/]+\.py)`", text)) - {"interface.py"}
    assert len(named) > 50
    assert [n for n in sorted(named) if not ((source / n).exists() or (ROOT / n).exists())] == []
    registries = re.findall(r"`([A-Z]+)`, `([a-z_/]+\.py)`", text)
    assert len(registries) == 10
    for name, path in registries:
        assert f"\n{name}: Registry[" in (source / path).read_text(encoding="utf-8"), name


def here(page, folder):
    """A working directory with the files beside the page, and what the how-tos assume."""
    if page.parent.name == "tutorial":
        for path in page.parent.glob("*.csv"):
            shutil.copy(path, folder)
    (folder / "runs.csv").write_text(
        "run,recipe,step,val_acc\n"
        + "\n".join(
            f"{name},{name[0]},{step},{a / (1 + (90 / step) ** 1.5):.4f}"
            for name, a in [("a1", 0.5), ("a2", 0.51), ("b1", 0.7)]
            for step in range(20, 820, 40)
        )
    )
    (folder / "log.jsonl").write_text(
        "\n".join(f'{{"step": {s}, "reward": {s / 20}}}' for s in range(1, 20))
    )


def commands(page):
    for block in blocks(page, "sh"):
        if "<<'EOF'" in block:  # the page makes its own file: run the block as one
            yield block
        else:
            yield from (line for line in block.splitlines() if line.startswith("scalerl "))


@pytest.mark.parametrize("page", PASTED, ids=lambda p: p.parent.name + "/" + p.name)
def test_commands_work_when_pasted(page, tmp_path):
    here(page, tmp_path)
    tool = tmp_path / "bin" / "scalerl"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m scalerl "$@"\n')
    tool.chmod(0o755)
    env = os.environ | {"PATH": f"{tool.parent}:{os.environ['PATH']}"}
    for command in commands(page):
        done = subprocess.run(
            ["sh", "-e", "-c", command],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=180,
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"


@pytest.mark.parametrize("page", PASTED, ids=lambda p: p.parent.name + "/" + p.name)
def test_python_works_when_pasted(page, tmp_path):
    here(page, tmp_path)
    for block in blocks(page, "python"):
        done = subprocess.run(
            [sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, f"{block}\n{done.stderr}"


def test_the_tutorial_quotes_what_the_commands_print(tmp_path):
    page = ROOT / "docs/tutorial/README.md"
    here(page, tmp_path)
    printed = ""
    for command in commands(page):
        if not command.startswith("scalerl report"):
            printed += subprocess.run(
                [sys.executable, "-m", *command.split()],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=120,
                check=True,
            ).stdout
    for block in blocks(page, ""):
        for line in block.splitlines():
            assert line in printed, f"the tutorial shows a line that is not printed: {line}"
