"""scalerl warmstart: the tiny model that the default run starts from."""

from __future__ import annotations

import argparse
from pathlib import Path

from scalerl.cli import options
from scalerl.errors import InputError


def add(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Make a tiny Llama-shaped model, taught a task by a teacher that makes mistakes: the start "
        "of the default run. One of each teacher comes with scalerl (model.path=tiny, tiny-noisy, "
        "tiny-tools, tiny-guess)."
    )
    command.epilog = "Example: scalerl warmstart --teacher forgetful --seed 0 --out out/warm"
    command.add_argument("--out", required=True, metavar="DIR", help="directory for the model")
    command.add_argument(
        "--teacher",
        choices=("forgetful", "noisy", "hasty", "timid"),
        default="forgetful",
        help="of running sums: forgetful (default) mostly forgets to carry, so that the model's "
        "likeliest answers are wrong; noisy makes a mistake now and then. hasty: of tiny-tools, "
        "mostly makes up an answer; timid: of tiny-guess, mostly guesses low numbers",
    )
    command.add_argument("--seed", type=int, default=0, help="random seed (default 0)")
    command.add_argument(
        "--steps",
        type=int,
        nargs=2,
        default=(700, 250),
        metavar="N",
        help="optimiser steps on mostly correct lessons, then on lessons with mistakes (default "
        "700 250)",
    )
    command.add_argument(
        "--size",
        type=int,
        nargs=2,
        default=(2, 64),
        metavar="N",
        help="layers and width, a multiple of 32, for studies of the model's size (default 2 64)",
    )
    command.add_argument(
        "--rollouts", type=int, default=400, help="answers behind each starting pass rate (400)"
    )
    options.add_json(command)


def run(args: argparse.Namespace) -> None:
    from scalerl.report.progress import ProgressBar

    with options.required_for("warmstart"):
        import torch
        import transformers
    from scalerl.models.tiny.warmstart import CARD, WarmStart, warm_start

    transformers.utils.logging.disable_progress_bar()
    # The matrices are small: a second thread only costs time.
    torch.set_num_threads(1)
    settings = WarmStart.with_size(args.teacher, args.seed, tuple(args.steps), *args.size)
    out = Path(args.out)
    # A directory with a card holds an earlier warm start, which may be replaced.
    if out.exists() and any(out.iterdir()) and not (out / CARD).exists():
        raise InputError(f"{out} holds other files: give a new directory")
    with ProgressBar("warm start") as report:
        card = warm_start(out, settings, report, args.rollouts)
    if args.json:
        options.print_json(card)
        return
    loss = card["loss"]
    print(f"{card['parameters']:,} parameters in {out}, seed {args.seed}")
    print(f"loss {loss['first']:.2f} -> {loss['last']:.3f}")
    rate = card["pass_rate"]
    print(
        f"pass rate {rate['sampled']:.3f} at temperature 1, {rate['greedy']:.3f} greedy, "
        f"over {args.rollouts} rollouts each"
    )
