"""The pages of the documentation, the commands on them and what these print."""

import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
#: Pages whose commands run as they stand (others speak of the reader's own files).
PASTED = [
    ROOT / "README.md",
    ROOT / "docs/tutorial/README.md",
    ROOT / "docs/how-to/add-a-law.md",
    ROOT / "docs/how-to/check-forecasts.md",
    ROOT / "docs/how-to/compare-recipes.md",
    ROOT / "docs/how-to/import-logs.md",
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


def outputs(page):
    """Unlabelled blocks that show what a command prints, not commands on the reader's own files."""
    command = re.compile(r"(scalerl|pip|make|python) ")
    return [block for block in blocks(page, "") if not command.match(block)]


def commands(page):
    for block in blocks(page, "sh"):
        if "<<'EOF'" in block:  # the page makes its own file: run the block as one
            yield block
        else:
            yield from (line for line in block.splitlines() if line.startswith("scalerl "))


def write_assumed_files(folder):
    """Put the tutorial's exports, and the files that the how-tos assume, into a folder."""
    for path in (ROOT / "docs" / "tutorial").glob("*.csv"):
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


@functools.cache
def run_commands(page):
    """(command, completed process) of every command of the page, run once per test process."""
    done = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_assumed_files(folder)
        tool = folder / "bin" / "scalerl"
        tool.parent.mkdir()
        tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m scalerl "$@"\n')
        tool.chmod(0o755)
        env = os.environ | {"PATH": f"{tool.parent}:{os.environ['PATH']}"}
        for command in commands(page):
            # The limit only ends a command that hangs: a slow machine must not fail the test.
            finished = subprocess.run(
                ["sh", "-e", "-c", command],
                cwd=folder,
                env=env,
                capture_output=True,
                text=True,
                timeout=900,
            )
            done.append((command, finished))
    return done


def prose(page):
    """The page without generated parts, code blocks, inline code and link targets."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"<!-- begin (\S+) -->.*?<!-- end \1 -->", "", text, flags=re.DOTALL)
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`\n]*`", "", text)
    return re.sub(r"\]\([^)]*\)", "]", text)


def generated(page):
    """The generated parts of the page: tables that docs/build.py writes from code and results."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"<!-- begin (\S+) -->(.*?)<!-- end \1 -->", text, flags=re.DOTALL)
    return "\n".join(body for _, body in found)
