"""Prompts from the rows of a file (JSON lines, a JSON array, CSV, Parquet) or of a Hugging Face
dataset, with the usual column names.

| what | columns, first found |
|---|---|
| question | `prompt`, `problem`, `question` (text, or chat messages) |
| answer | `answer`, `solution`, `ground_truth`, `reward_model.ground_truth` (verl) |

All other columns are passed to reward functions, including a `question` next to a `prompt`.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeAlias

from scalerl.errors import InputError
from scalerl.parquet import open_parquet
from scalerl.tasks.task import DEFAULT_RULES, Prompt, Question, Rules, Task, make_prompt

QUESTION = ("prompt", "problem", "question")
ANSWER = ("answer", "solution", "ground_truth")
#: Endings of files; a file with another ending is read as JSON lines.
FILES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
#: Further test sets: name of the curve → file or dataset.
Downstream: TypeAlias = Mapping[str, str]


class RowsTask(Task):
    """A task with the rows of a file or dataset as prompts. A repeated question counts once."""

    def __init__(
        self,
        name: str,
        dataset: str,
        *,
        rules: Rules = DEFAULT_RULES,
        held_out_share: float = 0.05,
        split: str = "train",
        downstream: Downstream | None = None,
        needs_answer: bool = True,
    ) -> None:
        super().__init__(name, rules=rules, held_out_share=held_out_share)
        self._needs_answer = needs_answer
        self._prompts = self._read(dataset, split) if dataset else self.prompts_without_dataset()
        self._downstream = {
            # A dataset of the hub that is only measured has a "test" split; a file has none.
            label: self._read(source, "test" if split == "train" and not is_file(source) else split)
            for label, source in (downstream or {}).items()
        }

    def prompts(self) -> list[Prompt]:
        return self._prompts

    def downstream(self) -> dict[str, list[Prompt]]:
        return self._downstream

    def for_checking(self) -> Self:
        light = super().for_checking()
        light._prompts, light._downstream = [], {}  # a copy only scores answers
        return light

    def answer_of(self, row: Mapping[str, Any], where: str) -> Any:
        """What scoring an answer needs from a row: the reference answer, or None."""
        found = first(row, ANSWER)
        if found is None and isinstance(row.get("reward_model"), Mapping):
            found = row["reward_model"].get("ground_truth")
        if found is None and self._needs_answer:
            raise InputError(f"{where} has no answer: name its column {' or '.join(ANSWER)}")
        return found

    def question_of(self, question: Question, row: Mapping[str, Any]) -> Question:
        """The question as the model gets it; a task may add its instruction here."""
        return question

    def prompts_without_dataset(self) -> list[Prompt]:
        """The prompts where the recipe names no dataset; a task may have some of its own."""
        raise InputError(f"task {self.name} has no prompts: set task.dataset to a file or dataset")

    def _read(self, source: str, split: str) -> list[Prompt]:
        return self.prompts_from(read_rows(source, split), source)

    def prompts_from(self, rows: Iterable[Mapping[str, Any]], source: str) -> list[Prompt]:
        """The prompts of rows, without repetition; `source` names them in errors."""
        found: dict[str, Prompt] = {}
        for number, row in enumerate(rows, start=1):
            where = f"{source} row {number}"
            column, asked = _question(row, where)
            prompt = make_prompt(
                self.name,
                self.question_of(asked, row),
                self.answer_of(row, where),
                {k: v for k, v in row.items() if k not in (column, "answer")},
                content=asked,
            )
            found.setdefault(prompt.id, prompt)
        if not found:
            raise InputError(f"{source} has no rows: give a file with one question per line")
        return list(found.values())


def with_instruction(question: Question, instruction: str, chat: bool) -> Question:
    """A text question followed by an instruction, as a chat message or as text; chat messages stay
    as they are."""
    if not isinstance(question, str):
        return question
    text = f"{question}\n\n{instruction}".strip()
    return ({"role": "user", "content": text},) if chat else text


def is_file(source: str) -> bool:
    """Whether a source is a file (by its ending, or because it exists) and no hub dataset."""
    return Path(source).suffix in FILES or Path(source).exists()


def read_rows(source: str, split: str = "train") -> Iterator[Mapping[str, Any]]:
    """The rows of a file, or of a Hugging Face dataset."""
    path = Path(source)
    if not is_file(source):
        return _hugging_face(source, split)
    if not path.is_file():
        raise InputError(f"there is no file {source}: check task.dataset")
    if path.suffix == ".parquet":
        return _parquet(path)
    try:
        text = path.read_text(encoding="utf-8-sig")  # with a byte order mark or without
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}): save it as UTF-8 text") from None
    if path.suffix in (".csv", ".tsv"):
        return _delimited(path, text)
    return _json_array(path, text) if text.lstrip().startswith("[") else _json_lines(path, text)


def first(row: Mapping[str, Any], names: Sequence[str]) -> Any:
    """The value of the first of these columns that has one."""
    return next((row[name] for name in names if row.get(name) is not None), None)


def _question(row: Mapping[str, Any], where: str) -> tuple[str, Question]:
    """The name of the question's column, and the question."""
    column = next((name for name in QUESTION if row.get(name) is not None), "")
    found = row.get(column)
    if isinstance(found, str) and found.strip():
        return column, found
    if isinstance(found, Sequence) and found and not isinstance(found, str):
        try:
            messages = [(str(m["role"]), m["content"]) for m in found]
        except (KeyError, TypeError):
            raise InputError(f"{where}: each message needs a role and a content") from None
        return column, tuple({"role": r, "content": _text(c, where)} for r, c in messages)
    raise InputError(f"{where} has no question: name its column {' or '.join(QUESTION)}")


def _text(content: Any, where: str) -> str:
    """The text of a message. Typed parts are joined as lines, as vLLM does.

    >>> _text([{"type": "text", "text": "How many?"}, {"type": "text", "text": "A B C"}], "row 1")
    'How many?\\nA B C'
    """
    parts = content if isinstance(content, Sequence) and not isinstance(content, str) else [content]
    texts = []
    for part in parts:
        text = part.get("text") if isinstance(part, Mapping) else part
        if isinstance(part, Mapping) and part.get("type", "text") != "text":
            raise InputError(
                f"{where}: a message has a part of type {part['type']!r}, but only text is "
                "supported: remove the row, or describe the part in words"
            )
        if not isinstance(text, str | int | float):
            raise InputError(f"{where}: the content of a message is not text")
        texts.append(str(text))
    return "\n".join(texts)


def _json_lines(path: Path, text: str) -> Iterator[Mapping[str, Any]]:
    # Not splitlines(): it also splits at characters that JSON strings may contain, such as U+2028.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{path}:{number} is not JSON ({error.msg}): fix the line") from None
        if not isinstance(row, dict):
            raise InputError(f"{path}:{number} is not an object: one {{…}} a line is needed")
        yield row


def _json_array(path: Path, text: str) -> Iterator[Mapping[str, Any]]:
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path}:{error.lineno} is not JSON ({error.msg}): fix the array, or write one {{…}} "
            "per line"
        ) from None
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise InputError(f"{path} row {number} is not an object: write it as {{…}}")
        yield row


def _delimited(path: Path, text: str) -> Iterator[Mapping[str, Any]]:
    """The rows of CSV text with column names in its first line; an empty cell is None."""
    mark = "\t" if path.suffix == ".tsv" else ","
    rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=mark, strict=True)
    number = 0
    try:
        for number, row in enumerate(rows, start=1):
            if None in row:
                raise InputError(
                    f"{path} row {number} has more cells than there are columns: quote cells that "
                    "contain the separator"
                )
            yield {name: cell or None for name, cell in row.items()}
    except csv.Error as error:
        raise InputError(f"{path} row {number + 1} is not CSV ({error}): fix the row") from None


def _parquet(path: Path) -> Iterator[Mapping[str, Any]]:
    with open_parquet(path) as table:
        for batch in table.iter_batches():
            yield from batch.to_pylist()


def _hugging_face(source: str, split: str) -> Iterator[Mapping[str, Any]]:
    if importlib.util.find_spec("datasets") is None:
        raise InputError(
            f"{source} is not a file; to load it as a Hugging Face dataset: pip install datasets"
        )
    import datasets

    try:
        # An old version of `datasets` could still run a dataset's loading script: never here.
        rows = datasets.load_dataset(source, split=split, trust_remote_code=False)
    except Exception as error:  # the hub's errors have no common base
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"dataset {source!r} ({split}) cannot be loaded ({reason}): "
            f"check the name and the network, or give a file ({', '.join(FILES)})"
        ) from None
    yield from rows
