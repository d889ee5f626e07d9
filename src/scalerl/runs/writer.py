"""The run record's writer: append-only lines that anybody can read while the run goes on.

A line is written whole and flushed; readers leave out a last line that a kill cut short, and a
resumed run goes on after it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from scalerl.errors import InputError


class RunWriter:
    """Writes `evals.jsonl`, `steps.jsonl` and `recipe.toml` of a run directory."""

    def __init__(self, path: str | Path, *, resume: bool = False) -> None:
        self.path = Path(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}: choose another --out") from None
        if not resume and any((self.path / f).exists() for f in ("evals.jsonl", "steps.jsonl")):
            raise InputError(f"{path} holds a run already: choose another --out, or --resume it")

    def write_recipe(self, toml: str) -> None:
        """The resolved recipe, enough to repeat the run."""
        (self.path / "recipe.toml").write_text(toml, encoding="utf-8")

    def append(self, name: str, record: dict[str, Any]) -> None:
        """One line of `<name>.jsonl`."""
        line = json.dumps(_plain(record), allow_nan=False) + "\n"
        with (self.path / f"{name}.jsonl").open("a", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def cut_after(self, name: str, step: int) -> None:
        """Drop lines beyond a step (and a half-written last one): what a resumed run will write
        again. The rest is written to a new file that takes the old one's place."""
        path = self.path / f"{name}.jsonl"
        if not path.exists():
            return
        kept = []
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                continue
            if record.get("step", 0) <= step:
                kept.append(line)
        temporary = path.with_suffix(".tmp")
        temporary.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        temporary.replace(path)


def _plain(value: Any) -> Any:
    """JSON has no nan and no infinity: null."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return None
    return value
