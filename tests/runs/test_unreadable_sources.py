"""Whatever is wrong with a source, the answer is one line that says what, and soon."""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from known_curve import FIXTURES, STEPS

from scalerl.errors import InputError
from scalerl.runs import load_run, load_runs
from scalerl.runs.importers import text_files
from scalerl.runs.limits import ImportLimits


def text(content: str | bytes) -> Callable[[Path], None]:
    data = content.encode() if isinstance(content, str) else content
    return lambda path: path.write_bytes(data) and None  # type: ignore[return-value]


def cut(fixture: str, part: float) -> Callable[[Path], None]:
    data = (FIXTURES / fixture).read_bytes()
    return text(data[: int(len(data) * part)])


def other_sqlite(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE metrics (name TEXT)")


def endless_sqlite(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute(
            "CREATE VIEW metrics AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n)"
            " SELECT i AS id, i AS run_name, i AS step, i AS metrics, i AS timestamp FROM n"
        )


EVENTS = "tensorboard/plain/events.out.tfevents.1700000000.host.1.0"
WANDB = "wandb-offline/offline-run-20260101_000000-run0/run-run0.wandb"

BAD: dict[str, tuple[Callable[[Path], None], str]] = {
    "empty": (text(""), "the file is empty"),
    "blank": (text("\n\n  \n"), "the file is empty"),
    "header only": (text("step,acc\n"), "no column of scores"),
    "no header": (text("1,0.2\n2,0.3\n"), "no header"),
    "ragged": (text("step,acc\n1\n2\n3\n4,0.1\n"), "columns"),
    "open quote": (text('step,acc\n1,"0.2\n2,0.3\n'), "line"),
    "huge field": (text("step,acc\n1,0.1\n2," + "9" * 200_000 + "\n"), "field"),
    "nul": (text("step,acc\n1,0.1\n" * 600 + "2,\0\n"), "NUL"),
    "latin-1": (text("step,acc,naïve\n1,0.1,2\n".encode("latin-1")), "UTF-8"),
    "junk": (text(bytes(range(256)) * 40), "binary"),
    "gzip": (text(b"\x1f\x8b\x08\x00" + b"x" * 40), "compressed"),
    "spreadsheet": (text(b"PK\x03\x04" + b"x" * 40), "CSV"),
    "not json": (text("{not json}\n{at all}\n"), "not a JSON object"),
    "json scalar list": (text("[1, 2, 3]"), "list of records"),
    "cut json": (cut("records.json", 0.6), "not valid JSON"),
    "deep json": (text("[" * 200_000), "not valid JSON"),
    "deep jsonl": (text('{"a":' * 900 + "1" + "}" * 900 + "\n"), "nested|choose"),
    "long integer": (text('[{"step": ' + "9" * 6000 + ', "acc": 0.1}]'), "not valid JSON"),
    "cut trainer state": (cut("trl-output/checkpoint-24/trainer_state.json", 0.5), "JSON"),
    "empty history": (text('{"log_history": []}'), "log history is empty"),
    "no history": (text('{"log_history": 3}'), "no log_history"),
    "cut parquet": (cut("history.parquet", 0.7), "Parquet"),
    "parquet in name only": (text(b"PAR1 hello"), "Parquet"),
    "cut sqlite": (cut("trackio.db", 0.5), "SQLite"),
    "cut sqlite header": (cut("trackio.db", 0.001), "SQLite"),
    "other sqlite": (other_sqlite, "not trackio's"),
    "endless sqlite": (endless_sqlite, "not trackio's"),
    "one json object": (text('{"step": {"a": 1}}'), "no column|choose"),
    "damaged events": (
        lambda path: (
            path.write_bytes((FIXTURES / EVENTS).read_bytes().replace(b"eval", b"evil")) and None
        ),  # type: ignore[dict-item, return-value]
        "damaged",
    ),
    "damaged wandb": (
        lambda path: (
            path.write_bytes((FIXTURES / WANDB).read_bytes().replace(b"gsm8k", b"gsm9k")) and None
        ),  # type: ignore[dict-item, return-value]
        "damaged",
    ),
    "no wandb records": (cut(WANDB, 0.002), "logged nothing"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_ends_in_one_line(case: str, tmp_path: Path) -> None:
    make, message = BAD[case]
    path = tmp_path / "log"
    make(path)
    with pytest.raises(InputError, match=message) as caught:
        load_run(path)
    assert len(str(caught.value).splitlines()) == 1


def test_cut_logs_of_running_jobs_are_read_up_to_the_cut(tmp_path: Path) -> None:
    for fixture in (EVENTS, WANDB):
        cut(fixture, 0.5)(tmp_path / "log")
        run = load_run(tmp_path / "log")
        assert 0 < len(run) < len(STEPS)
        assert any("cut off" in note for note in run.notes)


def test_a_cut_csv_says_so(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("step,acc\n1,0.11\n2,0.22\n3,0.3")
    assert "may be cut off" in load_run(path).notes[-1]
    path.write_text("step,acc\n1,0.11\n2,0.22\n3")
    run = load_run(path)
    assert run.compute.tolist() == [1, 2]
    assert "1 rows of another width left out (line 4)" in run.notes


def test_numbers_that_are_not_plain_are_not_read_as_others(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text('step,acc\n1,0.1\n2,0_2\n3,"0,3"\n4,0.4x\n5,٠.٥\n6,0x1\n7,0.7\n8,0.8\n9,0.9\n'
                    "10,0.91\n11,0.92\n12,0.93\n")  # fmt: skip
    run = load_run(path)
    assert run.compute.tolist() == [1, 7, 8, 9, 10, 11, 12]
    assert "5 cells of acc are not numbers" in run.notes


def test_what_is_not_a_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero", "/dev/null"):
        with pytest.raises(InputError, match="not a regular file"):
            load_run(path)
    for path in (tmp_path / "absent", tmp_path / "*.csv", "a\0b", "x" * 5000):
        with pytest.raises(InputError):
            load_run(path)
    with pytest.raises(InputError, match="no log in the directory"):
        load_run(tmp_path)
    with pytest.raises(InputError, match="is no source"):
        load_run(3)
    with pytest.raises(InputError, match="no source given"):
        load_runs()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("step,acc\n1,0.1\n")
    path.chmod(0)
    with pytest.raises(InputError, match="permission denied"):
        load_run(path)


def test_permission_errors_of_the_system_become_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.csv"
    path.write_text("step,acc\n1,0.1\n")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(text_files, "open_regular", refuse)
    with pytest.raises(InputError, match="permission denied"):
        load_run(path)


def test_a_directory_that_contains_itself_is_read_once(tmp_path: Path) -> None:
    shutil.copy(FIXTURES / "long.csv", tmp_path / "long.csv")
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "again.csv").symlink_to(tmp_path / "long.csv")
    assert len(load_runs(tmp_path)) == 3


def test_large_files_long_lines_and_large_tables_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    huge = tmp_path / "huge.csv"
    with huge.open("wb") as file:
        file.truncate(ImportLimits().bytes + 1)
    with pytest.raises(InputError, match="over the limit of 2 GB"):
        load_run(huge)
    huge.unlink()
    line = tmp_path / "line.jsonl"
    line.write_text('{"step": 1, "text": "' + "x" * (text_files.MAX_LINE + 10))
    with pytest.raises(InputError, match="longer than 10 MB"):
        load_run(line)
    monkeypatch.setenv("SCALERL_IMPORT_LIMITS", "cells=10")
    with pytest.raises(InputError, match="cells are over the limit of 10"):
        load_run(FIXTURES / "history.parquet")


class FakeRun:
    """What the importer uses of W&B's public API."""

    name, id, group, config = "online", "abc", "g", {"lr": 0.1}

    def scan_history(self) -> list[dict[str, Any]]:
        return [{"_step": i, "eval/acc": i / 10} for i in range(5)]


def test_runs_on_the_server_need_the_package_and_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(InputError, match=r"pip install 'scalerl\[wandb\]'"):
        load_run("wandb:me/project")
    fake: Any = types.ModuleType("wandb")
    fake.errors = types.SimpleNamespace(Error=RuntimeError)
    fake.Api = lambda **_: types.SimpleNamespace(
        run=lambda path: FakeRun(), runs=lambda path: [FakeRun(), FakeRun()]
    )
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", os.devnull)
    with pytest.raises(InputError, match="needs a key"):
        load_run("wandb:me/project")
    monkeypatch.setenv("WANDB_API_KEY", "key")
    assert len(load_runs("wandb:me/project")) == 2
    run = load_run("wandb:me/project/abc", group_by="lr")
    assert (run.name, run.group, run.y_name, len(run)) == ("online", "0.1", "eval/acc", 5)
    with pytest.raises(InputError, match="write wandb:ENTITY/PROJECT"):
        load_run("wandb:me")

    def fail(**_: object) -> None:
        raise RuntimeError("no such\nproject")

    fake.Api = fail
    with pytest.raises(InputError, match="no such project"):
        load_run("wandb:me/project")
