"""docs/reference/run-record.md, from the types."""

from __future__ import annotations

import inspect
import types
import typing
from dataclasses import fields
from typing import Any, Literal, Union

from scalerl.runs.compute import Compute, LedgerLine
from scalerl.runs.fields import Record
from scalerl.runs.lines import (
    AnswerLine,
    AnswerSample,
    EvalAnswers,
    EvalLine,
    EventLine,
    Status,
    StepLine,
)

HEAD = """# The run record

A directory that `cat` and `pandas` can read. Lines are appended whole; a last line that a kill cut
short is left out by every reader and dropped when the run is resumed. Numbers that are not finite
are `null`. Readers pass over keys that they do not know: later versions may add some. They open
regular files only, and pass over lines longer than 4 MB.

- `recipe.toml`: the resolved recipe, enough to repeat the run
- `recipe.json`: the same as the run last used it; a resume compares `recipe.toml` with it
- `evals.jsonl`, `steps.jsonl`, `events.jsonl`: a line for each validation, optimiser step, and whatever else happened
- `evals/step_N.json`: which prompts a validation answered right how often, and a few answers to read
- `checkpoints/step_N/`: a model that `transformers` loads, `optimiser.safetensors`, `trainer.json`, `run.json` (curriculum, ledger), `groups.json` and `groups.npz` (finished rollouts that wait for the trainer, prompts to be asked again), `manifest.json` (size and SHA-256 of each file)
- `branches/N/`: the record as it was before the run went on from an earlier checkpoint, with its later checkpoints: a run like any other
- `status.json`: what the run is doing just now
- `lock`: held by the process that writes

`scalerl eval` writes a record of its own for each model or run: `recipe.toml`, `evals.jsonl`, `evals/`, `evaluation.json` (which weights answered), and every answer in `answers/step_N.jsonl`.

```python
from scalerl.runs.lines import EvalLine, StepLine
from scalerl.runs.store import RunStore

store = RunStore("runs/first", resume=True)
[(line.step, line.pass_rate, line.compute.device_hours) for line in store.read(EvalLine)]
store.last(StepLine).ledger.spent.train_wait
follower = store.follow(StepLine)
follower.new()      # later once more: only what has come since
```
"""  # noqa: E501
#: In the order of the page; the two that others refer to have sections of their own.
SECTIONS: dict[str, type[Record]] = {
    "evals.jsonl": EvalLine,
    "compute": Compute,
    "steps.jsonl": StepLine,
    "ledger": LedgerLine,
    "events.jsonl": EventLine,
    "evals/step_N.json": EvalAnswers,
    "answers": AnswerSample,
    "answers/step_N.jsonl": AnswerLine,
    "status.json": Status,
}
_WORDS = {str: "text", int: "integer", float: "number", bool: "boolean"}


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for title, kind in SECTIONS.items():
        intro = inspect.cleandoc(kind.__doc__ or "").replace("\n", " ")
        parts.append(f"## {title}\n\n{intro}\n\n" + _list(kind))
    return "\n".join(parts)


def _list(kind: type[Record]) -> str:
    return "\n".join(item(*row) for row in rows(kind)) + "\n"


def item(name: str, word: str, meaning: str) -> str:
    """A field on the page."""
    return f"- `{name}` ({word}): {meaning}"


def rows(kind: type[Record], under: str = "") -> list[tuple[str, str, str]]:
    """(name, type, meaning) of every field; of a record inside, those of its own fields after it,
    as `staleness.max`."""
    hints = typing.get_type_hints(kind)
    found = []
    named: dict[type[Record], str] = {}  # tables by name, to list their fields once
    for each in fields(kind):
        unit = each.metadata["unit"]
        meaning = each.metadata["meaning"] + (f" [{unit}]" if unit else "")
        name, hint = under + each.name, hints[each.name]
        inside, dots = _inside(hint)
        if dots and inside in named:
            found.append((name, _word(hint), f"{meaning}. Fields as in `{named[inside]}`"))
            continue
        found.append((name, _word(hint), meaning))
        if inside is not None and inside not in SECTIONS.values():
            found += rows(inside, f"{name}{dots}.")
            named[inside] = name
    return found


def _inside(hint: Any) -> tuple[type[Record] | None, str]:
    """The record that a field holds, and how to get to it."""
    if isinstance(hint, type) and issubclass(hint, Record):
        return hint, ""
    for part in typing.get_args(hint):
        inside, dots = _inside(part)
        if inside is not None:
            return inside, ".NAME" if typing.get_origin(hint) is dict else dots
    return None, ""


def _word(hint: Any) -> str:
    """A type in words."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in inside)
    if origin in (Union, types.UnionType):
        return ", ".join(_word(p) if p is not type(None) else "null" for p in inside)
    if origin is tuple:
        return "list"
    if origin is dict or issubclass(hint, Record):
        return "table"
    return _WORDS[hint]
