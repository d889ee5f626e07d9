"""10,000 damaged files: valid runs or one line, never a traceback, never a hang, never in silence.

Each mutation takes a real fixture and flips, cuts, inserts, deletes or swaps. What cannot be
told, and is therefore not asked for: a digit replaced by a digit inside a number of a text
format or of SQLite (neither has checksums). Everything that changes the *shape* of a number must
show: in the formats with checksums no changed number may come out at all, and in text a row cut
short must not come out as another row without a note.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from known_curve import FIXTURES, assert_valid

from scalerl.errors import InputError
from scalerl.runs import Run, load_runs

EVENTS = "tensorboard/plain/events.out.tfevents.1700000000.host.1.0"
TENSORS = "tensorboard/tensor/events.out.tfevents.1700000000.host.1.0"
WANDB = "wandb-offline/offline-run-20260101_000000-run0/run-run0.wandb"
OLD_WANDB = "wandb-0.18/run-20260101_000000-old1/run-old1.wandb"
STATE = "trl-output/checkpoint-12/trainer_state.json"
#: Mutations of each fixture; 10,000 together.
COUNTS = {
    "long.csv": 1200, "metric-value.csv": 600, "percent.tsv": 800, "semicolon.csv": 800,
    "wandb-export.csv": 800, "verl.jsonl": 600, "prime-rl.jsonl": 800, "records.json": 800,
    "run-directories/seed-1/evals.jsonl": 700, STATE: 500, "history.parquet": 900,
    "trackio.db": 500, EVENTS: 400, TENSORS: 200, WANDB: 250, OLD_WANDB: 150,
}  # fmt: skip
#: Formats whose damage is caught by checksums, so that no other number can come out of them.
CHECKED = {EVENTS, TENSORS, WANDB, OLD_WANDB}
SECONDS = 5.0


def mutate(data: bytes, rng: random.Random) -> bytes:
    """One to four random changes."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(changed)) if changed else 0
        span = rng.choice((1, 1, 2, 8, 64))
        match rng.randrange(7):
            case 0 if changed:
                changed[at] ^= 1 << rng.randrange(8)
            case 1:
                del changed[at:]
            case 2:
                changed[at:at] = rng.randbytes(span)
            case 3:
                del changed[at : at + span]
            case 4 if changed:
                changed[at : at + span] = rng.randbytes(span)
            case 5:
                lines = bytes(changed).splitlines(keepends=True)
                if lines:
                    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
                    lines[i], lines[j] = lines[j], lines[i]
                changed = bytearray(b"".join(lines))
            case _:
                odd = (b"\0", b"nan", b"1e999", b"-", b'"', b"\r", b"\xff", b",", b"{", b"99999")
                changed[at:at] = rng.choice(odd)
    return bytes(changed)


def load(path: Path) -> list[Run] | None:
    """The runs of a file, None if it was refused; anything else is a failure."""
    started = time.perf_counter()
    try:
        runs = load_runs(path)
    except InputError as error:
        assert len(str(error).splitlines()) == 1
        assert str(error)
        return None
    finally:
        assert time.perf_counter() - started < SECONDS
    for run in runs:
        assert_valid(run)
    return runs


@pytest.mark.parametrize("fixture", COUNTS)
def test_a_mutated_file_gives_valid_runs_or_one_line(fixture: str, tmp_path: Path) -> None:
    rng = random.Random(fixture)
    original = (FIXTURES / fixture).read_bytes()
    path = tmp_path / Path(fixture).name
    path.write_bytes(original)
    true = {p for run in load_runs(path) for p in zip(run.compute, run.score, strict=True)}
    for _ in range(COUNTS[fixture]):
        path.write_bytes(mutate(original, rng))
        runs = load(path)
        if runs and fixture in CHECKED:
            points = {p for run in runs for p in zip(run.compute, run.score, strict=True)}
            assert points <= true


@pytest.mark.parametrize("fixture", [f for f in COUNTS if not f.endswith(("parquet", "db"))])
def test_a_file_cut_anywhere_gives_its_own_points_or_a_note(fixture: str, tmp_path: Path) -> None:
    original = (FIXTURES / fixture).read_bytes()
    path = tmp_path / Path(fixture).name
    path.write_bytes(original)
    true = {p for run in load_runs(path) for p in zip(run.compute, run.score, strict=True)}
    rng = random.Random(fixture)
    for at in rng.sample(range(len(original)), min(100, len(original))):
        path.write_bytes(original[:at])
        for run in load(path) or []:
            points = set(zip(run.compute, run.score, strict=True))
            assert points <= true or run.notes, (at, run.notes, points - true)


def test_ten_thousand_files_are_mutated() -> None:
    assert sum(COUNTS.values()) == 10_000
