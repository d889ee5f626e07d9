"""scalerl export: a checkpoint of a run as a model that any library loads, with a model card."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from scalerl.cli import options
from scalerl.errors import InputError

if TYPE_CHECKING:
    from scalerl.curves.result import Fit
    from scalerl.recipe.schema import Recipe
    from scalerl.runs.lines import EvalLine

#: File of the learning curve in an export.
FIGURE = "curve.png"
#: Files of a checkpoint that only a resume needs; the others are the model and its tokenizer.
TRAINING_STATE = ("manifest.json", "run.json", "trainer.json", "groups.*", "optimiser*")
#: File of a checkpoint that holds an adapter.
ADAPTER = "adapter_config.json"
#: All of its files.
ADAPTER_FILES = "adapter_*"
#: Files of the run that tell how the model was made.
RECORD = ("recipe.toml", "evals.jsonl")


def add(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Write a checkpoint of a run as a Hugging Face model: weights, tokenizer, and a model card "
        "with its recipe, curve and forecast."
    )
    command.epilog = "Example: scalerl export runs/first --to models/first"
    add_checkpoint(command)
    command.add_argument("--to", required=True, metavar="DIR", help="new directory for the model")
    command.add_argument(
        "--merge",
        action="store_true",
        help="of a run with [adapter]: the whole model with the adapter in its weights, instead of "
        "the adapter in PEFT's layout",
    )


def add_checkpoint(command: argparse.ArgumentParser) -> None:
    """Which checkpoint of which run."""
    command.add_argument("run", metavar="RUN", help="directory of a run")
    command.add_argument(
        "--step",
        type=options.step,
        metavar="STEP|healthy",
        help="the checkpoint of this step, or the last one without an alarm (default: the newest)",
    )


def run(args: argparse.Namespace) -> None:
    to = Path(args.to)
    made = export(Path(args.run), args.step, to, merge=args.merge)
    what = "adapter" if (to / ADAPTER).exists() else "model"
    print(f"wrote {to}: the {what} of step {made}, and README.md")


def export(run: Path, step: int | str | None, to: Path, *, merge: bool = False) -> int:
    """The model of a checkpoint, in a directory that is made for it; its step. Of a run with an
    adapter: the adapter, or with `merge` the model that it makes of its base."""
    from scalerl.pipeline import checkpoints

    source = checkpoint_of(run, step)
    if merge and not (source / ADAPTER).exists():
        raise InputError(f"{source} holds all weights and no adapter: leave --merge out")
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise InputError(f"{to} exists and is not empty: choose another directory")
    try:
        shutil.copytree(
            source,
            to,
            ignore=shutil.ignore_patterns(*TRAINING_STATE, *([ADAPTER_FILES] if merge else [])),
            dirs_exist_ok=True,
        )
        if merge:
            _write_merged(run, source, to)
        for name in RECORD:
            if (run / name).exists():
                shutil.copy2(run / name, to / name)
        write_card(run, checkpoints.step_of(source), to)
    except (OSError, shutil.Error) as error:
        raise InputError(f"{to}: {error}: make room, or choose another directory") from None
    return checkpoints.step_of(source)


def _write_merged(run: Path, source: Path, to: Path) -> None:
    """Write the base model with an adapter in its weights."""
    with options.required_for("merging"):
        from scalerl.models.adapter_files import merge_into
        from scalerl.models.load import load_model, model_path
        from scalerl.pipeline.branches import recipe_of
        from scalerl.pipeline.setup import adapter_spec

    recipe = recipe_of(run)
    asked, spec = recipe.model, adapter_spec(recipe)
    assert spec is not None, "its checkpoint holds an adapter"
    base = model_path(asked.path)
    model = load_model(base, asked.dtype, "cpu", trust_remote_code=asked.trust_remote_code)
    merge_into(model, source, spec)
    model.save_pretrained(to)


def checkpoint_of(run: Path, step: int | str | None) -> Path:
    """The complete checkpoint of a step; by default the newest."""
    from scalerl.pipeline import checkpoints

    if not (run / "recipe.toml").exists():
        raise InputError(f"{run} holds no run: give the directory that --out named")
    if step is None:
        # Damaged ones are passed over, as a resume does.
        whole = [
            path
            for path in checkpoints.list_checkpoints(run)
            if checkpoints.find_damage(path) is None
        ]
        if not whole:
            raise InputError(f"{run} has no complete checkpoint: train it further")
        found = whole[-1]
    else:
        found = checkpoints.resolve(run, step)
    if not (found / "config.json").exists() and not (found / ADAPTER).exists():
        raise InputError(f"{found} holds no model: it was written by a trainer without one")
    return found


# -- the model card -------------------------------------------------------------------------------


def write_card(run: Path, step: int, to: Path) -> None:
    """README.md, and the figure that it shows where there are points enough for a curve."""
    from scalerl.pipeline.branches import recipe_of

    recipe, fitted = recipe_of(run), _fit(run)
    if fitted is not None:
        fitted.plot(str(to / FIGURE))
    head = "\n".join(_head(recipe, "peft" if (to / ADAPTER).exists() else "transformers"))
    text = "\n\n".join([*_about(run, step, recipe), *_curve(fitted), *_recipe(recipe)])
    (to / "README.md").write_text(f"{head}\n{text}\n", encoding="utf-8")


def _head(recipe: Recipe, library: str) -> Iterator[str]:
    """What the hub reads: YAML, in which JSON is a way to write a string."""
    yield "---"
    yield f"library_name: {library}"
    yield "pipeline_tag: text-generation"
    if _is_hub_id(recipe.model.path):
        yield f"base_model: {json.dumps(recipe.model.path)}"
    yield "tags: [scalerl, reinforcement-learning]"
    yield "---"


def _is_hub_id(path: str) -> bool:
    """OWNER/NAME, and no directory."""
    return path.count("/") == 1 and not path.startswith((".", "~", "/")) and not Path(path).exists()


def _about(run: Path, step: int, recipe: Recipe) -> Iterator[str]:
    from scalerl import __version__
    from scalerl.report import words
    from scalerl.runs.lines import EvalLine
    from scalerl.runs.store import RunStore

    # Later validations are of other weights.
    lines = [line for line in RunStore(run, resume=True).read(EvalLine) if line.step <= step]
    scored = [line for line in lines if line.pass_rate is not None]
    yield f"# {recipe.name}, step {step}"
    yield f"Trained by reinforcement learning with scalerl {__version__}."
    model = recipe.model.path if _is_hub_id(recipe.model.path) else Path(recipe.model.path).name
    facts = {"starting model": model, "task": recipe.task.name, "optimiser steps": str(step)}
    if scored:
        used = scored[-1].compute
        facts |= {
            "pass rate on held-out prompts": _score(scored[-1]),
            "device-hours": words.compute(used.device_hours),
            "FLOPs": words.compute(used.flops),
            "tokens generated": words.compute(float(used.generated_tokens)),
        }
    rows = [f"| {name} | {value} |" for name, value in facts.items()]
    yield "\n".join(["| | |", "|---|---|", *rows])


def _score(line: EvalLine) -> str:
    error = "" if line.stderr is None else f" ± {line.stderr:.3f}"
    return f"{line.pass_rate:.3f}{error} at step {line.step} ({line.n_prompts} prompts)"


def _fit(run: Path) -> Fit | None:
    """The fit of the run's curve; None where there are too few points for one."""
    from scalerl.curves.fit import fit
    from scalerl.runs import load_run

    try:
        return fit(load_run(str(run)))
    except InputError:
        return None


def _curve(fitted: Fit | None) -> Iterator[str]:
    from scalerl.curves.forecast import forecast
    from scalerl.report import words

    yield "## Learning curve and forecast"
    if fitted is None:
        yield "The run has too few validations for a fit; `evals.jsonl` holds them."
    else:
        yield f"![Pass rate against compute, with the fitted law]({FIGURE})"
        yield f"{words.ceiling_in_words(fitted)} `evals.jsonl` holds the points."
        yield f"```\n{forecast(fitted)!r}\n```"


def _recipe(recipe: Recipe) -> Iterator[str]:
    yield "## Recipe"
    yield "`scalerl train recipe.toml --out RUN` repeats the run."
    yield f"```toml\n{recipe.to_toml().rstrip()}\n```"
