"""The columns by which trouble is recognised, read without the rest of the line."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from scalerl.runs.lines import StepLine
from scalerl.runs.reader import StepHealthRow, read_step_health
from scalerl.runs.store import RunStore

LINES: list[Any] = [
    {"step": 1, "loss": 0.5, "grad_norm": 2, "ess": 0.9, "truncated": 0.1, "entropy": 0.3,
     "length": {"mean": 40.5}, "ratio": {"max": 1.5}, "non_finite": 2},
    {"step": 2.0, "loss": None, "grad_norm": "big", "length": 7, "ratio": None, "entropy": None},
    {"step": "3"},
    {"loss": 1.0},
    ["step", 4],
    {"step": 5, "loss": 10**400, "non_finite": None},
]  # fmt: skip


def lines(path: Path) -> Path:
    file = path / StepLine.FILE
    file.write_text("".join(json.dumps(line) + "\n" for line in LINES) + '{"step": 6, "lo')
    return file


def test_the_health_of_a_step_is_what_the_whole_lines_say(tmp_path: Path) -> None:
    found = read_step_health(lines(tmp_path).parent)
    whole = RunStore(tmp_path, resume=True).read(StepLine)
    assert [row.step for row in found] == [1, 2, 5]
    for health, line in zip(found, whole, strict=True):
        expected = StepHealthRow(
            line.step, line.loss, line.grad_norm,
            math.nan if line.entropy is None else line.entropy, line.truncated,
            line.length.mean, line.ratio.max, line.ess, line.non_finite,
        )  # fmt: skip
        assert str(health) == str(expected), "nan is not itself, its text is"


def test_a_file_that_has_grown_is_read_anew(tmp_path: Path) -> None:
    file = lines(tmp_path)
    before = read_step_health(tmp_path)
    assert read_step_health(tmp_path) is before, "the same file is not parsed twice"
    with file.open("a") as more:
        more.write('\n{"step": 7}\n')
    assert [row.step for row in read_step_health(tmp_path)] == [1, 2, 5, 7]
    assert read_step_health(tmp_path / "none") == ()
