"""A log format that a user adds from outside of the package: one file with one line at its end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scalerl.errors import InputError
from scalerl.runs import load_run, load_runs
from scalerl.runs.importers import CERTAIN, IMPORTERS, Importer, by_suffix
from scalerl.runs.sources import BUILT_IN, importers
from scalerl.runs.table import Table, from_rows

OWN = """
from scalerl.runs.importers import IMPORTERS, Importer, by_suffix
from scalerl.runs.table import Table, from_rows

def read(path):
    pairs = [line.split("|") for line in path.read_text().splitlines()[1:]]
    rows = [{"step": int(step), "val_acc": float(score)} for step, score in pairs]
    return [Table(path.stem, from_rows(rows, path), str(path))]

IMPORTERS.add("mine", Importer(read, sniff=lambda path, head: head.startswith(b"#mine"),
                               is_log=by_suffix(".mine")))
"""
LOG = "#mine\n" + "".join(f"{step}|{step / 100}\n" for step in range(10, 60, 10))


@pytest.fixture
def registry() -> Iterator[None]:
    """What a test adds is taken out again."""
    before = dict(IMPORTERS._found)
    yield
    IMPORTERS._found.clear()
    IMPORTERS._found.update(before)


def test_a_format_of_ones_own_is_one_file_and_one_line(tmp_path: Path) -> None:
    (tmp_path / "my_logs.py").write_text(OWN)
    for name in ("a", "b"):
        (tmp_path / "logs").mkdir(exist_ok=True)
        (tmp_path / "logs" / f"{name}.mine").write_text(LOG)
    code = (
        "import my_logs, scalerl\n"
        "print([(r.name, len(r), float(r.score[-1])) for r in scalerl.load_runs('logs')])\n"
        "print(scalerl.load_run('logs/a.mine').x_kind)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout == "[('a', 5, 0.5), ('b', 5, 0.5)]\nsteps\n", done.stderr


def own(rows: list[dict[str, object]], **options: object) -> Importer:
    def read(path: Path) -> list[Table]:
        return [Table("own", from_rows(rows, path), str(path))]

    return Importer(read, **options)  # type: ignore[arg-type]


ROWS: list[dict[str, object]] = [{"step": 1, "val_acc": 0.5}, {"step": 2, "val_acc": 0.6}]


def test_it_comes_before_ours_and_the_newest_first(tmp_path: Path, registry: None) -> None:
    path = tmp_path / "log.csv"
    path.write_text("step,val_acc\n1,0.1\n2,0.2\n")
    assert load_run(path).name == "log"
    IMPORTERS.add("first", own(ROWS, sniff=lambda path, head: CERTAIN))
    IMPORTERS.add("second", own(ROWS, sniff=lambda path, head: 0.0))
    assert load_run(path).name == "own"
    assert importers()[:2] == [IMPORTERS["second"], IMPORTERS["first"]]


def test_one_that_is_less_sure_leaves_the_file_to_ours(tmp_path: Path, registry: None) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1, "val_acc": 0.1}\n{"step": 2, "val_acc": 0.2}\n')
    IMPORTERS.add("unsure", own(ROWS, sniff=lambda path, head: 0.2))
    assert load_run(path).name == "log"


def test_a_directory_can_be_a_run_of_ones_own_format(tmp_path: Path, registry: None) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "MINE").touch()
    IMPORTERS.add("folders", own(ROWS, is_run=lambda folder: (folder / "MINE").exists()))
    assert len(load_runs(tmp_path)) == 2


def test_files_of_other_names_in_a_directory_are_not_read(tmp_path: Path, registry: None) -> None:
    (tmp_path / "notes.mine").write_text(LOG)
    with pytest.raises(InputError, match="no log in the directory"):
        load_runs(tmp_path)
    IMPORTERS.add("named", own(ROWS, sniff=lambda path, head: True, is_log=by_suffix(".mine")))
    assert load_run(tmp_path).name == "own"


def test_a_name_is_given_once(registry: None) -> None:
    assert set(BUILT_IN) <= set(IMPORTERS)
    with pytest.raises(InputError, match="already: choose another name"):
        IMPORTERS.add("json", own(ROWS))
