"""The subjects of an evaluation: a model, a checkpoint, or all checkpoints of a run."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scalerl.errors import InputError
from scalerl.models.load import SHIPPED, model_path
from scalerl.pipeline import checkpoints
from scalerl.pipeline.branches import recipe_of
from scalerl.recipe import Recipe
from scalerl.runs.compute import Compute
from scalerl.runs.lines import EvalLine, StepLine
from scalerl.runs.store import RunStore

#: Answers per prompt for a model that is not a run.
K = 16


@dataclass(frozen=True, slots=True)
class Subject:
    """One set of weights, and the recipe of its evaluation."""

    #: Name in results.
    name: str
    #: Directory of its record, below the output directory.
    home: str
    recipe: Recipe
    #: Directory or hub id of the weights.
    weights: str
    #: Hash of the checkpoint's manifest, which tells it from others with the same name.
    mark: str = ""
    #: Directory of the run, for a checkpoint.
    run: Path | None = None
    step: int = 0
    compute: Compute = field(default_factory=Compute)


def subjects(sources: Sequence[str | Path], layers: Sequence[str | Path] = ()) -> list[Subject]:
    """The subjects of all sources. `layers` are the recipe for those that are not runs."""
    found: dict[str, Subject] = {}
    homes: dict[str, Path | str] = {}
    for source in sources:
        for one in _subjects(source, layers):
            other = homes.setdefault(one.home, one.run or one.weights)
            if other != (one.run or one.weights):
                raise InputError(
                    f"{other} and {one.run or one.weights} are both called {one.home}: evaluate "
                    "them separately, each with its own -o"
                )
            found.setdefault(one.name, one)
    return list(found.values())


def _subjects(source: str | Path, layers: Sequence[str | Path]) -> list[Subject]:
    path = Path(source).expanduser()
    if str(source) not in SHIPPED and path.is_dir():
        if (path / "recipe.toml").exists():
            return _of_run(path)
        run = path.absolute().parent.parent
        if (path / checkpoints.STATE).exists() and (run / "recipe.toml").exists():
            return [_of_checkpoint(run, path.absolute())]
        if not (path / "config.json").exists():
            raise InputError(
                f"{source} is neither a run nor a model: there is no recipe.toml and no config.json"
            )
    elif str(source) not in SHIPPED and not _may_be_an_id(str(source)):
        raise InputError(
            f"{source}: no such model, run or checkpoint; give a directory, a Hugging Face id, or "
            f"a model that comes with scalerl ({', '.join(SHIPPED)})"
        )
    return [_of_model(str(source), layers)]


def _may_be_an_id(text: str) -> bool:
    """Whether a text may be a hub id, OWNER/NAME. If OWNER is a directory here, it is a path.

    >>> _may_be_an_id("org/model"), _may_be_an_id("./org/model"), _may_be_an_id("model")
    (True, False, False)
    """
    parts = text.split("/")
    a_path = text.startswith((".", "~")) or Path(parts[0]).is_dir()
    return len(parts) == 2 and all(parts) and not a_path


def _of_run(run: Path) -> list[Subject]:
    there = checkpoints.list_checkpoints(run)
    if not there:
        raise InputError(
            f"{run} has no checkpoints to evaluate: choose another run, or train with a larger "
            "checkpoint.keep"
        )
    return [_of_checkpoint(run, path) for path in there]


def _of_checkpoint(run: Path, path: Path) -> Subject:
    wrong = checkpoints.find_damage(path)
    if wrong is not None:
        raise InputError(f"checkpoint {path} is damaged ({wrong}): name the others one by one")
    # Resolved, since Path(".") has no name.
    step, name = checkpoints.step_of(path), run.resolve().name
    mark = hashlib.sha256((path / checkpoints.MANIFEST).read_bytes()).hexdigest()[:16]
    return Subject(
        name=f"{name}/{path.name}",
        home=name,
        recipe=recipe_of(run),
        weights=str(path),
        mark=mark,
        run=run,
        step=step,
        compute=_compute_at(run, step),
    )


def _compute_at(run: Path, step: int) -> Compute:
    """The compute of the run up to this step, as its own curve counts it."""
    store = RunStore(run, resume=True)
    # A step that was validated is a point of the run's own curve: its compute is that point's.
    lines = [line for line in store.read(EvalLine) if line.step == step]
    if lines:
        return lines[-1].compute
    steps = [line for line in store.read(StepLine) if line.step == step]
    return steps[-1].compute if steps else Compute(steps=step)


def _of_model(source: str, layers: Sequence[str | Path]) -> Subject:
    below = list(layers) or (["scalerl", source] if source in SHIPPED else ["scalerl"])
    changes = {"model.path": source, "validation.k": K}
    if not layers and source not in SHIPPED:
        # The preset is for a cluster.
        changes |= {
            "placement.engine": "local",
            "placement.device": "auto",
            "placement.backend": "local",
            "placement.generators": 1,
        }
    path = Path(source).expanduser()
    name = path.resolve().name if path.is_dir() and source not in SHIPPED else source
    return Subject(
        name=name,
        home=name.replace("/", "--"),
        recipe=Recipe.load(*below).replace(changes),
        weights=model_path(source),
    )
