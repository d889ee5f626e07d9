"""scalerl export: a checkpoint of a run as a model that any library loads, with a model card."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from scalerl.cli.train import step

#: Files of a checkpoint that only a resume needs; the others are the model and its tokenizer.
TRAINING_STATE = ("manifest.json", "run.json", "trainer.json", "groups.*", "optimiser*")
#: Files of the run that tell how the model was made.
RECORD = ("recipe.toml", "evals.jsonl")


def add(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Write a checkpoint of a run as a Hugging Face model: weights, tokenizer, and a model card "
        "with its recipe, curve and forecast."
    )
    command.epilog = "Example: scalerl export runs/first --to models/first"
    add_checkpoint(command)
    command.add_argument("--to", required=True, metavar="DIR", help="directory that is made")
    command.set_defaults(handler=run)


def add_checkpoint(command: argparse.ArgumentParser) -> None:
    """Which checkpoint of which run."""
    command.add_argument("run", metavar="RUN", help="directory of a run")
    command.add_argument(
        "--step",
        type=step,
        metavar="STEP|healthy",
        help="the checkpoint of this step, or the last one without an alarm (default: the newest)",
    )


def run(args: argparse.Namespace) -> int:
    to = Path(args.to)
    made = export(Path(args.run), args.step, to)
    print(f"wrote {to}: the model of step {made}, and README.md")
    return 0


def export(run: Path, step: int | str | None, to: Path) -> int:
    """The model of a checkpoint, in a directory that is made for it; its step."""
    from scalerl.cli.model_card import write_card
    from scalerl.errors import InputError
    from scalerl.pipeline import checkpoints

    source = checkpoint_of(run, step)
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise InputError(f"{to} is there already and not empty: choose another directory")
    try:
        shutil.copytree(
            source, to, ignore=shutil.ignore_patterns(*TRAINING_STATE), dirs_exist_ok=True
        )
        for name in RECORD:
            if (run / name).exists():
                shutil.copy2(run / name, to / name)
        write_card(run, checkpoints.step_of(source), to)
    except (OSError, shutil.Error) as error:
        raise InputError(f"{to}: {error}: make room, or choose another directory") from None
    return checkpoints.step_of(source)


def checkpoint_of(run: Path, step: int | str | None) -> Path:
    """The whole checkpoint that is asked for; by default the newest."""
    from scalerl.errors import InputError
    from scalerl.pipeline import checkpoints

    if not (run / "recipe.toml").exists():
        raise InputError(f"{run} holds no run: give the directory that --out named")
    if step is None:
        whole = [
            path
            for path in checkpoints.list_checkpoints(run)
            if checkpoints.find_damage(path) is None
        ]
        if not whole:
            raise InputError(f"{run} has no whole checkpoint: train it further")
        found = whole[-1]
    else:
        found = checkpoints.resolve(run, step)
    if not (found / "config.json").exists():
        raise InputError(f"{found} holds no model: it was written by a trainer without one")
    return found
