"""scalerl init: a commented recipe to begin with."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from scalerl.errors import InputError

#: Option, key of the recipe, and what is asked at a terminal.
ASKED = (
    ("model", "model.path", "Model: a Hugging Face id, a directory, or tiny"),
    (
        "task",
        "task.name",
        "Task: math, code, reasoning-gym:NAME, function:module:name, running-sums",
    ),
    ("dataset", "task.dataset", "Dataset: a file or a Hugging Face dataset; empty for none"),
    ("steps", "budget.steps", "Optimiser steps"),
    ("device", "placement.device", "Device: auto, cpu or cuda"),
)
#: The file, where --out names none.
DEFAULT_OUT = "mine.toml"
#: Tasks that make their own prompts.
WITHOUT_DATASET = ("running-sums", "carry-sums", "reasoning-gym")


def add(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Write a recipe with the keys that people change most, each explained. Values that the "
        "options do not give are asked for at a terminal; elsewhere they keep their defaults."
    )
    command.epilog = (
        "Example: scalerl init --model Qwen/Qwen3-0.6B --task math --dataset train.jsonl"
    )
    command.add_argument(
        "changes", nargs="*", metavar="KEY=VALUE", help="any key of a recipe: schedule.k=4"
    )
    command.add_argument("--model", metavar="PATH", help="model to train (default tiny)")
    command.add_argument("--task", metavar="NAME", help="task to train on (default math)")
    command.add_argument(
        "--dataset", metavar="FILE", help="prompts: a file or Hugging Face dataset"
    )
    command.add_argument("--steps", type=int, metavar="N", help="budget in optimiser steps")
    command.add_argument("--device", choices=["auto", "cpu", "cuda"], help="kind of device")
    command.add_argument(
        "--out",
        metavar="FILE",
        default=DEFAULT_OUT,
        help=f"file to write (default {DEFAULT_OUT}); - prints it",
    )
    command.add_argument("--force", action="store_true", help="replace an existing file")


def run(args: argparse.Namespace) -> None:
    from scalerl.recipe.load import parse_override
    from scalerl.recipe.template import start, template

    out = None if args.out == "-" else Path(args.out)
    if out is not None and out.exists() and not args.force:
        raise InputError(f"{out} exists: give --force to replace it, or another --out")
    for word in args.changes:
        if "=" not in word:
            raise InputError(f"{word!r} is no change; write section.key=value, as in schedule.k=4")
    changes = _answers(args) | dict(map(parse_override, args.changes))
    model = str(changes.pop("model.path"))
    name = "mine" if out is None else out.stem
    over, recipe = start(model, changes, name)
    text = template(over, recipe, changes)
    if out is None:
        print(text, end="")
        return
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{out}: {error.strerror}: choose another --out") from None
    print(f"wrote {out}; check it: scalerl train {out} --dry-run", file=sys.stderr)


def _answers(args: argparse.Namespace) -> dict[str, Any]:
    """Keys of the recipe, from options, from answers at a terminal, or by default."""
    from scalerl.recipe.template import TINY, start

    found: dict[str, Any] = {"model.path": args.model or _ask(ASKED[0], "tiny")}
    tiny = found["model.path"] in TINY
    usual = start(found["model.path"], {}, "mine")[1]
    for option, key, question in ASKED[1:]:
        section, leaf = key.split(".")
        default = getattr(getattr(usual, section), leaf)
        given = getattr(args, option)
        if key == "task.dataset":
            makes = str(found.get("task.name", usual.task.name)).startswith(WITHOUT_DATASET)
            default = "" if makes or tiny else default
        answer = given if given is not None else _ask((option, key, question), default)
        if answer != getattr(getattr(usual, section), leaf):
            found[key] = answer
    return found


def _ask(asked: tuple[str, str, str], default: Any) -> Any:
    """The answer at a terminal, in the default's type; without a terminal the default."""
    option, _, question = asked
    if sys.stdin is None or not sys.stdin.isatty():
        return default
    # On stderr: with `--out -` the recipe is on stdout.
    print(f"{question} [{default}]: ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline().strip()
    if not answer:
        return default
    if isinstance(default, int):
        try:
            return int(answer)
        except ValueError:
            raise InputError(f"{option}: {answer!r} is not a whole number; give one") from None
    return answer
