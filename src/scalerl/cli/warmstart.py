"""scalerl warmstart: the tiny model that the default run starts from."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from scalerl.cli import options
from scalerl.errors import InputError

#: Optimiser steps of the two lessons.
DEFAULT_STEPS = (700, 250)
#: Layers and width.
DEFAULT_SIZE = (2, 64)
#: Size of the logits of a model with a large vocabulary, in nats.
DEFAULT_LOGITS = 20


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
        default=DEFAULT_STEPS,
        metavar="N",
        help="optimiser steps on mostly correct lessons, then on lessons with mistakes (default "
        "700 250)",
    )
    command.add_argument(
        "--size",
        type=int,
        nargs=2,
        default=DEFAULT_SIZE,
        metavar="N",
        help="layers and width, a multiple of 32, for studies of the model's size (default 2 64)",
    )
    command.add_argument(
        "--from",
        dest="source",
        metavar="MODEL",
        help="derive the model from a tiny one without training (with --vocabulary): its name, or "
        "a directory that this command has made",
    )
    command.add_argument(
        "--vocabulary",
        type=int,
        metavar="N",
        help="number of tokens: the model of --from with filler tokens and logits near 20, for "
        "studies of numerical precision",
    )
    command.add_argument(
        "--logits",
        type=int,
        default=DEFAULT_LOGITS,
        metavar="N",
        help="with --vocabulary: size of the likely tokens' logits in nats, 20 or more; the policy "
        "stays the same, rounding errors grow in proportion (default 20)",
    )
    command.add_argument(
        "--rollouts", type=int, default=400, help="answers behind each starting pass rate (400)"
    )
    options.add_json(command)


def run(args: argparse.Namespace) -> None:
    with options.required_for("warmstart"):
        import torch
        import transformers

    transformers.utils.logging.disable_progress_bar()
    # The matrices are small: a second thread only costs time.
    torch.set_num_threads(1)
    from scalerl.models.tiny.warmstart import CARD

    out = Path(args.out)
    # A directory with a card holds an earlier warm start, which may be replaced.
    if out.exists() and any(out.iterdir()) and not (out / CARD).exists():
        raise InputError(f"{out} holds other files: give a new directory")
    if (args.source is None) != (args.vocabulary is None):
        raise InputError(
            "--from and --vocabulary go together: give both, as in --from tiny --vocabulary 8192"
        )
    card = _taught(args, out) if args.source is None else _derived(args, out)
    if args.json:
        options.print_json(card)


def _taught(args: argparse.Namespace, out: Path) -> dict[str, Any]:
    """Make a model by its teacher's lessons; its card."""
    from scalerl.models.tiny.warmstart import WarmStart, warm_start
    from scalerl.report.progress import ProgressBar

    settings = WarmStart.with_size(args.teacher, args.seed, tuple(args.steps), *args.size)
    with ProgressBar("warm start") as report:
        card = warm_start(out, settings, report, args.rollouts)
    if not args.json:
        loss, rate = card["loss"], card["pass_rate"]
        print(f"{card['parameters']:,} parameters in {out}, seed {args.seed}")
        print(f"loss {loss['first']:.2f} -> {loss['last']:.3f}")
        print(
            f"pass rate {rate['sampled']:.3f} at temperature 1, {rate['greedy']:.3f} greedy, "
            f"over {args.rollouts} rollouts each"
        )
    return card


def _derived(args: argparse.Namespace, out: Path) -> dict[str, Any]:
    """Make a model with a larger vocabulary than another; its card."""
    from scalerl.models.tiny.vocabulary import LargeVocabulary, widen_vocabulary

    if tuple(args.size) != DEFAULT_SIZE or tuple(args.steps) != DEFAULT_STEPS:
        raise InputError(
            f"--size and --steps teach a new model, but --from {args.source} derives one without "
            "training: leave them out"
        )
    settings = LargeVocabulary(args.source, args.vocabulary, args.seed, args.logits)
    card = widen_vocabulary(out, settings)
    if not args.json:
        found = card["logits"]
        print(f"{card['parameters']:,} parameters in {out}, {card['vocabulary']:,} tokens")
        print(
            f"largest logit {found['largest']:.1f} ± {found['largest_std']:.1f}, filler tokens "
            f"{found['filler']:.1f} ± {found['filler_std']:.1f} with {found['filler_mass']:.2g} of "
            "the probability"
        )
    return card
