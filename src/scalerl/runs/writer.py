"""The run record's writer: append-only lines that anybody can read while the run goes on.

A line is written whole and flushed; readers leave out a last line that a kill cut short, and a
resumed run goes on after it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

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
        self._replace("recipe.toml", toml)

    def append(self, name: str, record: dict[str, Any]) -> None:
        """One line of `<name>.jsonl`."""
        line = json.dumps(_plain(record), allow_nan=False) + "\n"
        with self._writing(), (self.path / f"{name}.jsonl").open("ab+") as file:
            if file.tell() and not _ends_whole(file):
                line = "\n" + line  # a kill or a full disk cut the line before short
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())

    def status(self, record: dict[str, Any]) -> None:
        """`status.json`: what the run is doing just now, replaced each time."""
        self._replace("status.json", json.dumps(_plain({"time": time.time(), **record})))

    def _replace(self, name: str, text: str) -> None:
        """A whole new file in the place of the old one."""
        temporary = self.path / f"{name}.tmp"
        with self._writing():
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(self.path / name)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """What the disk refuses is the user's to put right: one line, and nothing is lost."""
        try:
            yield
        except OSError as error:
            raise InputError(
                f"the record in {self.path} cannot be written: {error.strerror}; put that right, "
                "then go on with --resume"
            ) from None

    def read(self, name: str) -> list[dict[str, Any]]:
        """The whole lines of `<name>.jsonl` so far."""
        path = self.path / f"{name}.jsonl"
        if not path.exists():
            return []
        found = [_parsed(line) for line in _lines(path)]
        return [record for record in found if record is not None]

    def last(self, name: str) -> dict[str, Any] | None:
        """The last whole line, or None."""
        return next(iter(self.read(name)[-1:]), None)

    def cut_after(self, name: str, step: int) -> None:
        """Drop lines beyond a step (and a half-written last one): what a resumed run will write
        again. The rest is written to a new file that takes the old one's place."""
        path = self.path / f"{name}.jsonl"
        if not path.exists():
            return
        kept = []
        for line in _lines(path):
            record = _parsed(line)
            if record is not None and record.get("step", 0) <= step:
                kept.append(line)
        self._replace(path.name, "".join(f"{line}\n" for line in kept))


def _ends_whole(file: BinaryIO) -> bool:
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def _lines(path: Path) -> list[str]:
    """Lines of a file that may hold anything: a crash can leave bytes that are no text."""
    return path.read_text(encoding="utf-8", errors="replace").split("\n")


def _parsed(line: str) -> dict[str, Any] | None:
    """A record, or None for a line that a kill cut short."""
    try:
        record = json.loads(line)
    except json.JSONDecodeError:
        return None
    return record if isinstance(record, dict) else None


def _plain(value: Any) -> Any:
    """JSON has no nan and no infinity: null."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return None
    return value
