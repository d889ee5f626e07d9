"""The record of an evaluation on disk: a run record with every answer.

    OUT/NAME/recipe.toml            the recipe of the evaluation
    OUT/NAME/evaluation.json        which weights were evaluated
    OUT/NAME/answers/step_N.jsonl   every answer, one per line
    OUT/NAME/evals.jsonl, evals/    the scores, in the format of a run: a curve, if there are many

The lines of a prompt are appended together when all its answers are scored. After a kill, complete
prompts are kept; an incomplete one is dropped and generated again, with the same result, since
weights and seeds are the same.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from scalerl.evaluation.subjects import Subject
from scalerl.files import lines_of, write_atomic
from scalerl.recipe import Recipe
from scalerl.recipe.diff import diff, with_date_of
from scalerl.runs.lines import AnswerLine, AnswerSample, EvalAnswers, EvalLine
from scalerl.runs.reader import RunReader
from scalerl.runs.store import RunStore
from scalerl.runs.tail import parse_line

FILE = "evaluation.json"
#: Fields that may differ when an evaluation is resumed: they do not change any answer.
FREE = (
    *("validation.prompts", "placement.checkers", "placement.environment_processes"),
    *("placement.check_seconds", "record.episodes_per_step", "record.episodes_megabytes"),
    "record.validation_megabytes",
    *("placement.backend", "placement.address", "placement.generators", "placement.trainers"),
    *("placement.patience", "placement.idle_cores", "placement.weights"),
)


class EvaluationRecord:
    """The record of a run or model, open for one of its steps."""

    def __init__(self, out: Path, subject: Subject, recipe: Recipe) -> None:
        self.subject, self.recipe = subject, recipe
        self.path = out / subject.home
        self._check()
        self.answers = self.path / AnswerLine.FOLDER / f"step_{subject.step}.jsonl"

    def _check(self) -> None:
        """Refuse to continue a record of another recipe or of other weights."""
        there = _read(self.path)
        if there is None:
            if (self.path / EvalLine.FILE).exists():
                raise InputError(f"{self.path} is a run, not an evaluation: choose another -o")
            return
        before = Recipe.load(self.path / "recipe.toml")
        # A chat template that prints today's date would make each day's evaluation a different one.
        self.recipe = with_date_of(before, self.recipe)
        # Scores of two different test sets must not be mixed in one record.
        for difference in diff(before, self.recipe):
            if difference.path not in FREE:
                raise InputError(
                    f"{self.path} was made with {difference.path} = {difference.a}, not "
                    f"{difference.b}: choose another -o"
                )
        mark = there["weights"].get(str(self.subject.step))
        if mark not in (None, self.subject.mark):
            raise InputError(
                f"{self.path} has answers of other weights for step {self.subject.step}: choose "
                "another -o"
            )

    def make(self) -> None:
        """Create the directory."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{self.path}: {error.strerror}: choose another -o") from None

    @property
    def store(self) -> RunStore:
        return RunStore(self.path, resume=True)

    def open(self) -> dict[str, list[AnswerLine]]:
        """The answers on disk by prompt, for prompts with all k answers scored. Other answers are
        dropped from the file."""
        marks = (_read(self.path) or {"weights": {}})["weights"]
        marks[str(self.subject.step)] = self.subject.mark
        self.store.write_recipe(self.recipe.to_toml())
        self._replace(self.path / FILE, json.dumps({"weights": marks}) + "\n")
        found = self.read()
        k = self.recipe.validation.k
        whole = {
            prompt: lines
            for prompt, lines in found.items()
            if [line.n for line in lines] == list(range(k))
            and all(line.correct is not None for line in lines)
        }
        self._replace(self.answers, "".join(map(_text, whole.values())))
        return whole

    def read(self) -> dict[str, list[AnswerLine]]:
        """Every answer so far, by prompt."""
        found: dict[str, list[AnswerLine]] = {}
        if self.answers.exists():
            for text in lines_of(self.answers):
                line = AnswerLine.from_dict(parse_line(text))
                if line is not None:
                    found.setdefault(line.prompt, []).append(line)
        return found

    def append(self, lines: Sequence[AnswerLine]) -> None:
        """Append all answers to a prompt; they are on disk when this returns."""
        try:
            with self.answers.open("ab") as file:
                file.write(_text(lines).encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise self._refused(error) from None

    def close(self, line: EvalLine, answers: Iterable[AnswerLine]) -> None:
        """Write the score, replacing an earlier one of the same step."""
        samples = (
            AnswerSample(a.prompt, a.question, a.answer, a.correct, a.why, a.finish, play=a.play)
            for a in answers
        )
        self.store.save_answers(EvalAnswers.from_answers(line.step, samples))
        # After the answers: a score in the record always has them.
        self.store.put(line)

    def _replace(self, path: Path, content: str) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, content)
        except OSError as error:
            raise self._refused(error) from None

    def _refused(self, error: OSError) -> InputError:
        return InputError(
            f"{self.path} cannot be written: {error.strerror}; fix that and repeat the command, "
            "which continues from here"
        )


def _text(lines: Iterable[AnswerLine]) -> str:
    return "".join(json.dumps(line.to_dict(), ensure_ascii=False) + "\n" for line in lines)


def _read(folder: Path) -> dict[str, Any] | None:
    found = RunReader(folder).document(FILE)
    return found if found and isinstance(found.get("weights"), dict) else None
