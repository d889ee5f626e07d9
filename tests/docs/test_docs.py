"""The docs are up to date with code and results, their links lead somewhere, and what they tell a
reader to paste works and prints what they show."""

import re
import subprocess
import sys

import pytest
from doc_pages import (
    PAGES,
    PASTED,
    ROOT,
    blocks,
    outputs,
    run_commands,
    write_assumed_files,
)


def page_id(page):
    return str(page.relative_to(ROOT))


def test_tables_and_reference_are_up_to_date():
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "build.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, f"run `make docs`: {done.stdout}{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=page_id)
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
    registries = re.findall(r"`([A-Z_]+)`, `([a-z_/]+\.py)`", text)
    assert len(registries) == 19
    for name, path in registries:
        assert f"\n{name}: Registry[" in (source / path).read_text(encoding="utf-8"), name


@pytest.mark.parametrize("page", PASTED, ids=page_id)
def test_commands_work_when_pasted(page):
    for command, done in run_commands(page):
        assert done.returncode == 0, f"{command}\n{done.stderr}"


@pytest.mark.parametrize("page", PASTED, ids=page_id)
def test_a_page_quotes_what_its_commands_print(page):
    quoted = [line for block in outputs(page) for line in block.splitlines()]
    printed = "".join(done.stdout for _, done in run_commands(page)) if quoted else ""
    for line in quoted:
        assert line in printed, f"{page.name} shows a line that is not printed: {line}"


@pytest.mark.parametrize("page", PASTED, ids=page_id)
def test_python_works_when_pasted(page, tmp_path):
    write_assumed_files(tmp_path)
    for block in blocks(page, "python"):
        done = subprocess.run(
            [sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, f"{block}\n{done.stderr}"
