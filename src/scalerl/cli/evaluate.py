"""scalerl eval: score models, checkpoints and runs on a task."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from scalerl.cli import options
from scalerl.errors import PipelineError

if TYPE_CHECKING:
    from scalerl.evaluation.scores import Evaluation


def add(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Score any model, checkpoint, or every checkpoint of a run: mean@k with its interval, and "
        "pass@k. A run is evaluated by its own recipe, so the numbers match its validations. Every "
        "answer is kept, and the same command continues after a kill. The scores of a run's "
        "checkpoints form a curve: scalerl fit DIR."
    )
    command.epilog = "Example: scalerl eval tiny --task running-sums --prompts 50 -o evals/tiny"
    command.add_argument(
        "model",
        nargs="+",
        metavar="MODEL|RUN|CHECKPOINT|KEY=VALUE",
        help="a model's directory or Hugging Face id, or tiny; a run; one of its checkpoints; "
        "changes of the recipe",
    )
    command.add_argument("--task", metavar="NAME", help="as in recipes (default: that of the run)")
    command.add_argument("--dataset", metavar="FILE", help="prompts of the task; all are asked")
    command.add_argument("--prompts", type=int, metavar="N", help="number of prompts")
    command.add_argument(
        "--k", type=int, help="answers per prompt (default: 16, or that of the run's validations)"
    )
    command.add_argument(
        "--temperature", type=options.number, metavar="T", help="sampling temperature; 0: greedy"
    )
    command.add_argument(
        "--recipe",
        nargs="+",
        default=[],
        metavar="PRESET|FILE",
        help="recipe for a model that is not a run: length control, sampling (default scalerl)",
    )
    command.add_argument("-o", "--out", required=True, metavar="DIR", help="where to write")
    command.add_argument(
        "--level",
        type=options.number,
        default=0.9,
        help="probability of the interval (default 0.9)",
    )
    options.add_json(command)


def run(args: argparse.Namespace) -> int:
    from scalerl.report.progress import ProgressBar

    with options.required_for("eval"):
        from scalerl.evaluation.evaluate import evaluate
    with ProgressBar("evaluating") as share:
        try:
            found = evaluate(
                *[one for one in args.model if "=" not in one],
                out=args.out,
                task=args.task,
                dataset=args.dataset,
                prompts=args.prompts,
                k=args.k,
                temperature=args.temperature,
                recipe=args.recipe,
                changes=[one for one in args.model if "=" in one],
                level=args.level,
                progress=share,
                say=lambda line: print(f"warning: {line}", file=sys.stderr),
            )
        except PipelineError as error:
            print(f"scalerl: {error}", file=sys.stderr)
            return 1
    if args.json:
        options.print_json([each.to_dict() for each in found])
    else:
        print(_table(found))
    for each in found:
        if each.failed is not None:
            print(f"scalerl: {each.model} has no score: {each.failed}", file=sys.stderr)
    return 1 if any(each.failed is not None for each in found) else 0


def _table(found: list[Evaluation]) -> str:
    """A row a model."""
    # Runs may have different k: the longest list has all columns.
    most = max((each.pass_at for each in found), key=len)
    percent = f"{100 * found[0].level:g} %"
    head = ["model", "task", "prompts", f"mean@{found[0].k}", percent]
    head += [f"pass@{k}" for k in most if k > 1]
    rows = [head]
    for each in found:
        span = "" if each.interval is None else "{:.3f} to {:.3f}".format(*each.interval)
        mean = "none" if each.mean is None else f"{each.mean:.3f}"
        cells = [each.model, each.task, str(each.n_prompts), mean, span]
        cells += [f"{each.pass_at[k]:.3f}" if k in each.pass_at else "" for k in most if k > 1]
        rows.append(cells)
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
    lines += ["", "answers in " + ", ".join(dict.fromkeys(each.path for each in found))]
    return "\n".join(line.rstrip() for line in lines)
