"""What the report shows of a training run beside its curve: read from the run's own directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from scalerl.recipe import Recipe
from scalerl.recipe.diff import Difference, diff
from scalerl.recipe.load import presets
from scalerl.report.tracking import DownstreamScores, Tracking, downstream_scores, trackings
from scalerl.runs.lines import EvalAnswers, EvalLine, EventLine, StepLine
from scalerl.runs.record import Run
from scalerl.runs.store import RunStore

#: Steps that are read of a run: of a longer one every second, third … Of many runs fewer each, so
#: that the report of a study is there in seconds.
MAX_STEPS = 2000
FEW_STEPS = 120
#: Runs that are read so closely.
MANY = 4


@dataclass(frozen=True, slots=True, eq=False)
class RunRecord:
    """A training run as its directory tells it; anything may be missing."""

    name: str
    path: Path
    #: Some of its steps, the last one among them, and how many there are.
    steps: tuple[StepLine, ...]
    total_steps: int
    evals: tuple[EvalLine, ...]
    events: tuple[EventLine, ...]
    #: Of the last validation.
    answers: EvalAnswers | None
    recipe: Recipe | None
    #: The presets that its recipe is named after, and what it does differently.
    preset: str
    differences: tuple[Difference, ...]
    trackings: tuple[Tracking, ...]
    downstream: DownstreamScores = field(default_factory=dict)

    @property
    def ceiling(self) -> float | None:
        """The highest pass rate on its validation prompts, where the task has one by construction
        (the tiny model's own); None for any other task."""
        if self.recipe is None:
            return None
        from scalerl.tasks.registry import recipe_ceiling

        return recipe_ceiling(self.recipe)

    def to_dict(self) -> dict[str, Any]:
        """For report.json."""
        last = self.steps[-1] if self.steps else None
        return {
            "run": self.name,
            "path": str(self.path),
            "steps": self.total_steps,
            "compute": None if last is None else last.compute.to_dict(),
            "ledger": None if last is None else last.ledger.to_dict(),
            "recipe": None if self.recipe is None else self.recipe.to_dict(),
            "constructed_ceiling": self.ceiling,
            "preset": self.preset,
            "differences": [each.to_dict() for each in self.differences],
            "events": [each.to_dict() for each in self.events],
            "downstream": [each.to_dict() for each in self.trackings],
        }


def read_records(
    runs: Sequence[Run],
    evaluations: Mapping[str, Mapping[str, Path]] | None = None,
    evals: Mapping[str, Sequence[EvalLine]] | None = None,
) -> list[RunRecord | None]:
    """The record of each run, None for those that were not trained here; `evaluations` as
    `find_evaluations` finds them, `evals` the validations of runs where they were read already."""
    most = MAX_STEPS if len(runs) <= MANY else FEW_STEPS
    return [
        read_record(run, (evaluations or {}).get(run.name), most, (evals or {}).get(run.name))
        for run in runs
    ]


def read_record(
    run: Run,
    evaluations: Mapping[str, Path] | None = None,
    most: int = MAX_STEPS,
    evals: Sequence[EvalLine] | None = None,
) -> RunRecord | None:
    """The record behind a run; None where it was read from something else. `evaluations` are what
    `scalerl eval` wrote of its checkpoints, by the name of what was asked; `most` steps are read.
    """
    if not run.source:
        return None
    path = Path(run.source)
    # A run may be given by one of its files.
    path = path if path.is_dir() else path.parent
    if not (path / EvalLine.FILE).is_file() or not (path / "recipe.toml").is_file():
        return None
    store = RunStore(path, resume=True)
    lines = tuple(store.read(EvalLine) if evals is None else evals)
    further = {n: RunStore(p, resume=True).read(EvalLine) for n, p in (evaluations or {}).items()}
    steps = store.sample(StepLine, most)
    answered = store.answered()
    return make_record(
        run.name,
        path,
        steps,
        lines,
        store.read(EventLine),
        store.read_answers(answered[-1]) if answered else None,
        further,
    )


def make_record(
    name: str,
    path: Path,
    steps: Sequence[StepLine],
    evals: Sequence[EvalLine],
    events: Sequence[EventLine],
    answers: EvalAnswers | None,
    further: Mapping[str, Sequence[EvalLine]] | None = None,
) -> RunRecord:
    """The record of lines that were read; the recipe is read here."""
    recipe = read_recipe(path)
    preset, differences = ("", []) if recipe is None else _against_preset(recipe)
    downstream = downstream_scores(evals, further)
    return RunRecord(
        name=name,
        path=path,
        steps=tuple(steps),
        total_steps=steps[-1].step if steps else 0,
        evals=tuple(evals),
        events=tuple(events),
        answers=answers,
        recipe=recipe,
        preset=preset,
        differences=tuple(differences),
        trackings=tuple(trackings(evals, downstream)),
        downstream=downstream,
    )


def find_evaluations(given: Sequence[str]) -> dict[str, dict[str, Path]]:
    """Run -> name of a set -> record, of directories that `scalerl eval` wrote, each as DIR or
    NAME=DIR: without a name the set is called after the task that was asked."""
    found: dict[str, dict[str, Path]] = {}
    for text in given:
        name, equals, folder = text.rpartition("=")
        root = Path(folder if equals else text)
        records = sorted(path.parent for path in root.glob(f"*/{EvalLine.FILE}"))
        if not records:
            raise InputError(f"{root} holds no evaluation: give what `scalerl eval -o` named")
        for record in records:
            recipe = read_recipe(record)
            label = name or (root.name if recipe is None else recipe.task.name)
            sets = found.setdefault(record.name, {})
            # Two curves of one name in a chart could not be distinguished.
            if label in sets:
                raise InputError(f"{label} is given twice: name them, as NAME={root}")
            sets[label] = record
    return found


def read_recipe(path: Path) -> Recipe | None:
    """The recipe of a run directory; None where it cannot be read."""
    try:
        return Recipe.load(path / "recipe.toml")
    except InputError:  # of another version, or edited
        return None


def _against_preset(recipe: Recipe) -> tuple[str, list[Difference]]:
    """A recipe made of presets is called after them: scalerl+tiny. Any other is compared with the
    paper's own."""
    known = presets()
    names = [name for name in recipe.name.split("+") if name in known] or ["scalerl"]
    return " ".join(names), diff(_preset(*names), recipe)


@cache
def _preset(*names: str) -> Recipe:
    return Recipe.load(*names)
