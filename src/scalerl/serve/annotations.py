"""Pins, tags, notes and saved views: kept beside the runs, in a file of the page's own.

    DIR/.scalerl-page.json
    {"version": 1,
     "runs": {"study/runs/first-s0": {"pinned": true, "tags": ["best"], "note": "…"}},
     "views": [{"name": "seeds", "address": "#/?group=1"}]}

Runs are named by their path below the served directory, so that a directory that is moved keeps
them. The record of a run is never written.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from scalerl.files import is_folder, read_limited, to_json, write_atomic
from scalerl.runs.live_run import file_stamp
from scalerl.serve.discovery import Roots
from scalerl.text import one_line

#: The page's file in each served directory.
FILE = ".scalerl-page.json"
#: The format of the file.
VERSION = 1
#: Bytes of the file; ten thousand runs with a tag each take one megabyte.
MAX_FILE = 4_000_000
#: Tags of one run.
MAX_TAGS = 12
#: Characters of a tag: it is shown in a row of the list.
MAX_TAG = 40
#: Characters of a note: about a page.
MAX_NOTE = 4000
#: Saved views.
MAX_VIEWS = 100
#: Characters of the name of a view.
MAX_NAME = 80
#: Characters of the address of a view: browsers accept about as many.
MAX_ADDRESS = 4000


@dataclass(frozen=True, slots=True)
class Annotation:
    """What visitors have said about one run."""

    pinned: bool = False
    hidden: bool = False
    tags: tuple[str, ...] = ()
    note: str = ""

    @staticmethod
    def from_json(found: Any) -> Annotation:
        """An annotation from the file, leniently: what is not of its type is left out."""
        if not isinstance(found, dict):
            return NONE
        tags, note = found.get("tags"), found.get("note")
        return Annotation(
            found.get("pinned") is True,
            found.get("hidden") is True,
            _tags(tags if isinstance(tags, list) else ()),
            note[:MAX_NOTE] if isinstance(note, str) else "",
        )

    def changed(self, asked: Mapping[str, Any]) -> Annotation:
        """The annotation with the fields of a request; InputError names a field that is wrong.

        >>> Annotation(tags=("old",)).changed({"add": ["best"], "remove": ["old"], "pinned": True})
        Annotation(pinned=True, hidden=False, tags=('best',), note='')
        """
        for name in ("pinned", "hidden"):
            if name in asked and not isinstance(asked[name], bool):
                raise InputError(f"{name} is true or false")
        for name in ("tags", "add", "remove"):
            each = asked.get(name, [])
            if not (isinstance(each, list) and all(isinstance(tag, str) for tag in each)):
                raise InputError(f"{name} is a list of texts")
        note = asked.get("note", self.note)
        if not isinstance(note, str) or len(note) > MAX_NOTE:
            raise InputError(f"note is a text of at most {MAX_NOTE} characters")
        tags = [*asked.get("tags", self.tags), *asked.get("add", [])]
        gone = {one_line(tag, MAX_TAG) for tag in asked.get("remove", [])}
        return Annotation(
            asked.get("pinned", self.pinned),
            asked.get("hidden", self.hidden),
            tuple(tag for tag in _tags(tags) if tag not in gone),
            note,
        )

    def to_dict(self) -> dict[str, Any]:
        """All fields, as the list has them."""
        return {
            "pinned": self.pinned,
            "hidden": self.hidden,
            "tags": list(self.tags),
            "note": self.note,
        }


NONE = Annotation()
#: Fields of a request that change an annotation.
FIELDS = frozenset({"pinned", "hidden", "tags", "add", "remove", "note"})


def _tags(given: Iterable[Any]) -> tuple[str, ...]:
    # A comma separates tags where they are typed.
    texts = [one_line(tag.replace(",", " "), MAX_TAG) for tag in given if isinstance(tag, str)]
    return tuple(dict.fromkeys(filter(None, texts)))[:MAX_TAGS]


class Annotations:
    """The annotations of all served directories, shared by threads."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        # A log may be served by itself: its directory has the file.
        self._folders = [p if is_folder(p) else p.parent for p in roots.given]
        self._lock = threading.Lock()
        self._stamps: list[Any] = [None] * len(self._folders)
        self._runs: list[dict[str, Annotation]] = [{} for _ in self._folders]
        self._views: list[dict[str, str]] = [{} for _ in self._folders]
        #: Files that could not be read: they are never overwritten.
        self._damaged = [False for _ in self._folders]
        #: Raised by every change, so that the list is published again.
        self.version = 0

    def refresh(self) -> None:
        """Read the files that have changed: another server may serve the same directory."""
        with self._lock:
            for i in range(len(self._folders)):
                self._read(i)

    def of(self, path: Path, name: str = "") -> Annotation:
        """The annotation of the run in a place; `name` where a log holds several."""
        i, key = self._key(path, name)
        return self._runs[i].get(key, NONE)

    def change(self, places: Sequence[tuple[Path, str]], asked: Mapping[str, Any]) -> None:
        """Change the annotations of runs, and write the files that have them."""
        with self._lock:
            touched: dict[int, dict[str, Annotation]] = {}
            for path, name in places:
                i, key = self._key(path, name)
                if i not in touched:
                    self._read(i)
                    touched[i] = dict(self._runs[i])
                new = touched[i].get(key, NONE).changed(asked)
                touched[i] |= {key: new}
                if new == NONE:
                    del touched[i][key]
            for i, runs in touched.items():
                self._write(i, runs, self._views[i])

    @property
    def views(self) -> list[dict[str, str]]:
        """The saved views, by name."""
        found = {name: address for each in self._views for name, address in each.items()}
        return [{"name": name, "address": found[name]} for name in sorted(found)]

    def save_view(self, name: Any, address: Any) -> None:
        """Save a view under a name, or remove it where its address is null. Views are kept in the
        first directory."""
        if not isinstance(name, str) or not 0 < len(name.strip()) <= MAX_NAME:
            raise InputError(f"name is a text of 1 to {MAX_NAME} characters")
        if address is not None and not (
            isinstance(address, str) and address.startswith("#/") and len(address) <= MAX_ADDRESS
        ):
            raise InputError("address is that of a view of this page: it begins with #/")
        name = one_line(name.strip(), MAX_NAME)
        with self._lock:
            for i in range(len(self._folders)):
                self._read(i)
                views = {k: v for k, v in self._views[i].items() if k != name}
                if address is not None and i == 0:
                    views[name] = address
                if len(views) > MAX_VIEWS:
                    raise InputError(f"there are {MAX_VIEWS} saved views: remove one first")
                if views != self._views[i]:
                    self._write(i, self._runs[i], views)

    # -- files ------------------------------------------------------------------------------------

    def _key(self, path: Path, name: str) -> tuple[int, str]:
        for i, folder in enumerate(self._folders):
            if path == folder or folder in path.parents:
                inside = path.relative_to(folder).as_posix()
                return i, f"{inside}#{name}" if name else inside
        return 0, path.name

    def _read(self, i: int) -> None:
        path = self._folders[i] / FILE
        stamp = file_stamp(path)
        if stamp == self._stamps[i]:
            return
        self._stamps[i] = stamp
        found: Any = {}
        self._damaged[i] = False
        try:
            with self._roots.confined():
                found = json.loads(read_limited(path, MAX_FILE))
        except FileNotFoundError:
            pass
        except (OSError, ValueError, RecursionError):
            self._damaged[i] = True
        found = found if isinstance(found, dict) else {}
        runs, views = found.get("runs"), found.get("views")
        self._runs[i] = {
            key: Annotation.from_json(each)
            for key, each in (runs if isinstance(runs, dict) else {}).items()
        }
        self._views[i] = {
            each["name"]: each["address"]
            for each in (views if isinstance(views, list) else [])
            if isinstance(each, dict)
            and isinstance(each.get("name"), str)
            and str(each.get("address")).startswith("#/")
        }
        self.version += 1

    def _write(self, i: int, runs: dict[str, Annotation], views: dict[str, str]) -> None:
        path = self._folders[i] / FILE
        if self._damaged[i]:
            raise InputError(
                f"{FILE} in {self._roots.names[i]} cannot be read: repair it or remove it first"
            )
        content = {
            "version": VERSION,
            "runs": {key: each.to_dict() for key, each in sorted(runs.items())},
            "views": [{"name": name, "address": views[name]} for name in sorted(views)],
        }
        text = to_json(content, indent=1) + "\n"
        if len(text) > MAX_FILE:
            raise InputError(f"{FILE} would exceed {MAX_FILE / 1e6:g} MB: remove some notes first")
        try:
            write_atomic(path, text)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise InputError(
                f"{FILE} cannot be written into {self._roots.names[i]}: {reason}: pins, tags and "
                "notes need a directory that the server may write to"
            ) from None
        self._runs[i], self._views[i] = runs, views
        self._stamps[i] = file_stamp(path)
        self.version += 1
