"""Draw sentences at random from the documentation, to review how it is written.

python docs/sentences.py               ten sentences of the pages as they are now
python docs/sentences.py c8ec4a8       ten sentences of an earlier commit
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
#: Fixed, so that a second person sees the same sentences.
SEED = 23
COUNT = 10
#: Shorter ones ("Next:") say nothing about style.
MIN_WORDS = 6


def read_pages(revision: str | None) -> dict[str, str]:
    """Text of the README and of every written page, by path; generated pages are left out."""
    names = _git("ls-tree", "-r", "--name-only", revision) if revision else _git("ls-files")
    written = [
        name
        for name in names.splitlines()
        if name == "README.md" or (name.startswith("docs/") and name.endswith(".md"))
    ]
    written = [n for n in written if "/reference/" not in n and "/report/" not in n]
    if revision:
        return {name: _git("show", f"{revision}:{name}") for name in written}
    return {n: (ROOT / n).read_text(encoding="utf-8") for n in written if (ROOT / n).exists()}


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


def sentences(text: str) -> list[str]:
    """Sentences of the paragraphs and lists; tables, code and headings are left out."""
    text = re.sub(r"<!-- begin (\S+) -->.*?<!-- end \1 -->", "", text, flags=re.DOTALL)
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    found = []
    for line in text.splitlines():
        line = re.sub(r"^(-|\d+\.) ", "", line.strip())
        if line and not line.startswith(("#", "|", "<", "@")):
            found += re.split(r"(?<=[.?!])\s+(?=[A-Z`*\"(])", line)
    # Items of an index end without a full stop: they are no sentences.
    return [s for s in found if len(s.split()) >= MIN_WORDS and s.endswith((".", "?", "!"))]


def main() -> int:
    pages = read_pages(sys.argv[1] if len(sys.argv) > 1 else None)
    every = [(name, s) for name, text in sorted(pages.items()) for s in sentences(text)]
    print(f"{COUNT} of {len(every)} sentences, seed {SEED}")
    for name, sentence in random.Random(SEED).sample(every, COUNT):
        print(f"- {name}: {sentence}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
