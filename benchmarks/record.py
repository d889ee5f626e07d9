"""Write a benchmark's result as JSON, with the commit and the kind of machine it speaks of."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

import scalerl

RESULTS = Path(__file__).parent / "results"
#: Of the machine when the benchmark began: beside other load, times are of no use, and ratios of
#: two threads to one are wrong.
LOAD = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")


def save(name: str, result: dict[str, Any], path: Path | None = None, options: str = "") -> Path:
    """To results/<name>.json or `path`, with the command that made it; prints where it went.
    `options` replaces those that were given, where some do not matter. Of a folder only its name is
    written: where it lies on this machine helps no reader."""
    given = [_without_place(each) for each in sys.argv[1:]]
    options = options or shlex.join(given)
    head = {
        "benchmark": name,
        "command": f"python benchmarks/{Path(sys.argv[0]).name} {options}".rstrip(),
        "scalerl": scalerl.__version__,
        "commit": _git("rev-parse", "--short", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain", "--", "src")),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "load_before": LOAD,
    }
    path = path or RESULTS / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(head | result, indent=1) + "\n")
    print(f"written to {path.parent.name}/{path.name}")
    return path


def _without_place(option: str) -> str:
    """An option with only the name of its folder: DIR, or NAME=DIR."""
    name, mark, folder = option.rpartition("=")
    return f"{name}{mark}{Path(folder).name}" if Path(folder).is_dir() else option


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], capture_output=True, text=True, cwd=Path(__file__).parent, check=False
    )
    return done.stdout.strip()
