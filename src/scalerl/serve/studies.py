"""Studies on the live page: table, knob map and the race, updated as members finish."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from scalerl.report import words
from scalerl.report.blocks import Block, to_html
from scalerl.report.dose_figure import plot_force
from scalerl.report.force_page import force_parts
from scalerl.report.knob_map import plot_knob_map
from scalerl.report.study_curves import small_multiples, variant_curves
from scalerl.report.study_page import knob_map_part, study_answer, variants_table
from scalerl.report.study_report_data import StudyReportData, collect
from scalerl.report.theme import drawing, freeze_layout, render
from scalerl.runs.live_run import file_stamp
from scalerl.serve.catalogue import Catalogue
from scalerl.serve.discovery import STUDY, Place, Roots
from scalerl.serve.run_details import fragment
from scalerl.serve.sources import FILES
from scalerl.study.study import Study, StudyResults

#: Matplotlib's settings belong to the process: one figure at a time.
DRAWING = threading.Lock()
#: Seconds that the list of studies waits for a study that another request is reading.
LIST_SECONDS = 2.0
#: Seconds that a request for one study waits for another request that is reading it.
STUDY_SECONDS = 60.0


class StudyBusy(InputError):
    """Another request is still reading the files of this study."""


class Studies:
    """The studies of the catalogue, each recomputed only when its files have changed."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._made: dict[str, tuple[Any, Study]] = {}
        self._shown: dict[str, tuple[Any, dict[str, Any]]] = {}
        self._lines: dict[str, dict[str, Any]] = {}
        #: By study: held while its files are read.
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def list(self) -> list[dict[str, Any]]:
        """All studies by name, with the number of members in each state."""
        out = []
        for key, place in list(self._catalogue.studies.items()):
            line: dict[str, Any] = {"id": key, "name": place.path.name, "where": place.name}
            line |= {"problem": None, "members": 0, "status": {}}
            try:
                with self._reading(key, place, LIST_SECONDS):
                    self._count(key, place, line)
                    self._lines[key] = line
            except StudyBusy as error:  # show it as it was last read
                line = self._lines.get(key, line | {"problem": str(error)})
            except InputError as error:
                problem = self._catalogue.roots.without_paths(str(error))
                line["problem"] = words.shorten(problem, 400)
            out.append(line)
        return out

    def _count(self, key: str, place: Place, line: dict[str, Any]) -> None:
        line["name"] = place.path.resolve().name
        study = self._study(key, place)
        line["members"] = len(study.members)
        now = study.progress()
        for member in study.members:
            word = study.status(member, now[member.name])
            line["status"][word] = line["status"].get(word, 0) + 1

    @contextmanager
    def _reading(self, key: str, place: Place, seconds: float) -> Iterator[None]:
        """Read a study's files; a read that hangs blocks this study only."""
        lock = self._locks[key]
        if not lock.acquire(timeout=seconds):
            raise StudyBusy(f"{place.name}: reading its files takes too long: ask again later")
        try:
            with self._catalogue.roots.confined():
                yield
        except OSError as error:  # the directory has gone, or may not be read
            why = error.strerror or type(error).__name__
            raise InputError(f"{place.name}: cannot be read: {why}") from None
        finally:
            lock.release()

    def show(self, key: str) -> dict[str, Any]:
        """Everything that the page shows about one study."""
        place = self._place(key)
        with self._reading(key, place, STUDY_SECONDS):
            study = self._study(key, place)
            stamp = self._stamp(study)
            kept = self._shown.get(key)
            if kept is None or kept[0] != stamp:
                kept = self._shown[key] = stamp, self._compute(key, place, study)
            return kept[1]

    def report_data(self, key: str) -> StudyReportData:
        """The data of a study's report, without paths of this machine."""
        place = self._place(key)
        roots = self._catalogue.roots
        with self._reading(key, place, STUDY_SECONDS):
            found = collect(self._study(key, place))
        return replace(
            found,
            path=place.name,
            found=_without_paths(found.found, roots),
            records=[
                None if one is None else replace(one, path=Path(roots.name(one.path)))
                for one in found.records
            ],
        )

    def _place(self, key: str) -> Place:
        found = self._catalogue.studies.get(key)
        if found is None:
            raise InputError("no such study: it may be gone; GET /api/studies has the list")
        return found

    def _study(self, key: str, place: Place) -> Study:
        """The study, read again when its definition or recipes have changed."""
        self._check(place.path)
        files = [place.path / STUDY, *sorted((place.path / "recipes").glob("*.toml"))]
        stamp = tuple(file_stamp(path) for path in files)
        kept = self._made.get(key)
        if kept is None or kept[0] != stamp:
            kept = self._made[key] = stamp, Study(place.path)
        return kept[1]

    def _check(self, path: Path) -> None:
        """Refuse a study with a link that leads out of the served directories."""
        roots = self._catalogue.roots
        files = [path / STUDY, *(path / "recipes").glob("*.toml")]
        for member in (path / "runs").glob("*"):
            files += [member, *(member / name for name in (*FILES, "evals"))]
            files += (member / "evals").glob("step_*.json")
        for file in files:
            if file.is_symlink() and not roots.holds(file):
                raise InputError(f"{file.name} is a link that leads out of the directory: not read")

    @staticmethod
    def _stamp(study: Study) -> Any:
        names = ("evals.jsonl", "events.jsonl", "recipe.toml")
        return tuple(
            # A process that dies changes the status and writes no file.
            (file_stamp(m.path / name), study.status(m, p) if name == names[0] else None)
            for m, p in zip(study.members, study.progress().values(), strict=True)
            for name in names
        )

    def _compute(self, key: str, place: Place, study: Study) -> dict[str, Any]:
        results = study.results()
        found = study.to_dict(results=results)
        shown = StudyReportData(place.name, study.reference, results, found)
        svg = b""
        if results.knobs:
            with DRAWING, drawing("light"):
                svg = render(plot_knob_map(results.knobs, study.reference), "svg", transparent=True)
        ids = {m.path.resolve(): m.name for m in study.members}
        runs = {
            ids[path]: entry.id
            for entry in list(self._catalogue.entries.values())
            if (path := entry.source.place.path.resolve()) in ids
        }
        for member in found["members"]:
            member["run"] = runs.get(member["name"])
            member.pop("path")
            member.pop("recipe")
        return {
            "id": key,
            "name": place.path.resolve().name,
            "where": place.name,
            "reference": study.reference,
            **found,
            "race": found.get("race"),
            "html": {
                "curves": fragment(to_html(_curves(study, results))),
                "answer": fragment(to_html(study_answer(shown))),
                "table": fragment(to_html(variants_table(shown))),
                "knob_map": fragment(to_html(knob_map_part(shown, svg))),
                "force": fragment(to_html(_force(study))),
            },
        }


def _curves(study: Study, results: StudyResults) -> list[Block]:
    """Each variant as the mean of its seeds, beside the reference."""
    by_name = {row.variant: row for row in results.rows}
    drawn = variant_curves([study.finding(member) for member in study.members], by_name)
    return small_multiples(drawn, study.reference, {n: r.words for n, r in by_name.items()})


def _force(study: Study) -> list[Block]:
    """The verdicts and the picture of a study of a force; nothing for other studies."""
    if study.force is None:
        return []
    found = study.force_results()
    with DRAWING, drawing("light"):
        svg = render(freeze_layout(plot_force(found)), "svg", transparent=True)
    verdicts, doses = force_parts(found, svg)
    return [*verdicts, *doses]


def _without_paths(value: Any, roots: Roots) -> Any:
    """A JSON value without paths of this machine in its texts."""
    if isinstance(value, str):
        return roots.without_paths(value)
    if isinstance(value, dict):
        return {key: _without_paths(each, roots) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_paths(each, roots) for each in value]
    return value
