"""Write a benchmark's result as JSON, with the commit and the kind of machine it speaks of."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

import scalerl

RESULTS = Path(__file__).parent / "results"


def save(name: str, result: dict[str, Any]) -> Path:
    """results/<name>.json; prints where it went."""
    head = {
        "benchmark": name,
        "command": f"python benchmarks/{name}.py",
        "scalerl": scalerl.__version__,
        "commit": _git("rev-parse", "--short", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain", "--", "src")),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(head | result, indent=1) + "\n")
    print(f"written to benchmarks/results/{path.name}")
    return path


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], capture_output=True, text=True, cwd=Path(__file__).parent, check=False
    )
    return done.stdout.strip()
