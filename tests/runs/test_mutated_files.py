"""14,000 damaged files: valid runs or one line, never a traceback, never a hang, never in silence.

Each mutation takes a real fixture and flips, cuts, inserts, deletes or swaps. What cannot be
told, and is therefore not asked for: a digit replaced by a digit inside a number of a text
format or of SQLite (neither has checksums). Everything that changes the *shape* of a number must
show: in the formats with checksums no changed number may come out at all, and in text a row cut
short must not come out as another row without a note.
"""

from __future__ import annotations

import random
import shutil
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
SWANLAB = "found/swanlab-0.10/run-20260101_000000-1/run-1.swanlab"
OLD_SWANLAB = "found/swanlab-0.6/run-20260101_000000-1/backup.swanlab"
#: Mutations of each fixture; 14,000 together.
COUNTS = {
    "long.csv": 900, "metric-value.csv": 600, "percent.tsv": 800, "semicolon.csv": 800,
    "wandb-export.csv": 800, "verl.jsonl": 600, "prime-rl.jsonl": 800, "records.json": 800,
    "run-directories/seed-1/evals.jsonl": 700, STATE: 500, "history.parquet": 600,
    "trackio.db": 500, EVENTS: 400, TENSORS: 200, WANDB: 250, OLD_WANDB: 150,
    "found/conditions.csv": 500, "found/typed-rows.jsonl": 500, "found/by-step.json": 500,
    "found/console/verl.log": 500, "found/console/trl.log": 500, "found/console/roll.log": 400,
    "found/console/prime-rl.log": 300, "found/console/nemo-rl.log": 300,
    "found/mlflow.db": 300, "found/trainer_state_seed1.json": 200, SWANLAB: 300, OLD_SWANLAB: 300,
}  # fmt: skip
#: Formats whose damage is caught by checksums, so that no other number can come out of them.
CHECKED = {EVENTS, TENSORS, WANDB, OLD_WANDB, SWANLAB, OLD_SWANLAB}
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
    started = time.process_time()
    try:
        runs = load_runs(path)
    except InputError as error:
        assert len(str(error).splitlines()) == 1
        assert str(error)
        return None
    finally:
        assert time.process_time() - started < SECONDS
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


#: Directories of which one file is damaged: the folder, the file in it, and how often.
FOLDERS = {
    "found/lm-eval": ("*checkpoint-500/results_*.json", 60),
    "found/lighteval": ("results/out/grpo/results_*T05*.json", 60),
    "found/olmes": ("grpo/step_500/metrics-all.jsonl", 60),
    "found/verl-dumps": ("validation_data/500.jsonl", 60),
    "found/tinker": ("metrics.jsonl", 60),
    "found/mlruns": ("1/*/metrics/eval/accuracy", 60),
    "found/renamed-states": ("after-2000/trainer_state.json", 60),
}


@pytest.mark.parametrize("folder", FOLDERS)
def test_one_mutated_file_in_a_directory_costs_no_more_than_itself(
    folder: str, tmp_path: Path
) -> None:
    pattern, count = FOLDERS[folder]
    rng = random.Random(folder)
    copy = tmp_path / "copy"
    shutil.copytree(FIXTURES / folder, copy)
    path = sorted(copy.glob(pattern))[0]
    original = path.read_bytes()
    whole = len(load_runs(copy))
    refused = 0
    for _ in range(count):
        path.write_bytes(mutate(original, rng))
        runs = load(copy)
        assert runs is None or len(runs) <= whole + 1
        refused += runs is None
    # A score of 99999 is damage that only the owner can put right; anything else is left out.
    assert refused <= count // 10
    path.write_bytes(b"")
    assert load(copy)


def test_fourteen_thousand_files_are_mutated() -> None:
    assert sum(COUNTS.values()) == 14_000
