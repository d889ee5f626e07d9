"""`scalerl train --json`: a run as lines of JSON on stdout, for programs; words go to stderr."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalerl.cli.view import PlainView
from scalerl.files import to_json

if TYPE_CHECKING:
    from scalerl.curves.live import LiveForecast
    from scalerl.recipe.schema import Recipe
    from scalerl.runs.lines import EvalLine, EventLine, StepLine
    from scalerl.training import RunEnd

#: Each kind of line, and what it holds: docs/reference/json.md has this table.
KINDS = {
    "begin": "`run` (the directory), `recipe` (its name), `resumed_at` (a step, or null); once for "
    "every time the run starts from a checkpoint",
    "step": "a line of `steps.jsonl`",
    "validating": "a validation under way, about every ten seconds: `step`, answers `written` and "
    "`checked`, and their `total`",
    "validation": "a line of `evals.jsonl`, and `forecast`: the numbers of the fit so far, or null "
    "where there is none yet",
    "event": "a line of `events.jsonl`",
    "end": "how it ended: `reason`, `steps`, `compute`, `signal` (or null), `path`, and "
    "`validation`, the last line of `evals.jsonl` (or null)",
    "failed": "why it ended without an end: `why`",
}


class JsonView(PlainView):
    """Every line is flushed as it comes. The last is an `end`, or `failed`."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    def begin(self, recipe: Recipe, out: Path, resumed_at: int | None) -> None:
        super().begin(recipe, out, resumed_at)
        self._write("begin", {"run": str(out), "recipe": recipe.name, "resumed_at": resumed_at})

    def step(self, line: StepLine) -> None:
        self._write("step", line.to_dict())

    def validating(self, step: int, written: int, checked: int, total: int) -> None:
        self._validation.add(step, written, checked, total)
        if self._validation.due():
            state = {"step": step, "written": written, "checked": checked, "total": total}
            self._write("validating", state)

    def evaluated(self, line: EvalLine, look: LiveForecast | None) -> None:
        self._validation.over()
        numbers = None if look is None else look.numbers
        self._write("validation", line.to_dict() | {"forecast": numbers})

    def noted(self, line: EventLine) -> None:
        self._write("event", line.to_dict())

    def end(self, reason: str) -> None:
        """The line of the end has more to say."""

    def ended(self, end: RunEnd) -> None:
        self._write("end", end.to_dict())

    def failed(self, error: Exception) -> None:
        self._write("failed", {"why": str(error)})

    def _write(self, kind: str, found: dict[str, Any]) -> None:
        print(to_json({"kind": kind, **found}), flush=True)
