"""scalerl train: run a recipe, with a live forecast."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalerl.cli import options

if TYPE_CHECKING:
    from scalerl.recipe.schema import Recipe

#: Checkpoints are written this often, and at the end.
SAVE_EVERY = 50
KEEP = 2


def add(commands: Any) -> None:
    command = commands.add_parser(
        "train",
        help="run a recipe, with a live forecast",
        description="Train by one or more recipes, each laid over the one before.",
        epilog="Example: scalerl train scalerl tiny --out runs/first",
    )
    command.add_argument("recipe", nargs="*", metavar="PRESET|FILE|KEY=VALUE")
    command.add_argument("--out", metavar="RUN", help="directory of the run")
    command.add_argument("--resume", metavar="RUN", help="go on from a run's last checkpoint")
    command.add_argument("--steps", type=int, help="budget in optimiser steps")
    command.add_argument("--minutes", type=options.number, help="budget in minutes")
    command.add_argument("--seed", type=int)
    command.add_argument("--stop-when", metavar="RULE", help='as in "gain < 0.01 per doubling"')
    command.add_argument("--dry-run", action="store_true", help="print the resolved recipe only")
    command.add_argument("--plain", action="store_true", help="one line per event, for logs")
    command.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    from scalerl.errors import InputError

    if args.resume and (args.recipe or args.out):
        raise InputError("--resume takes its recipe and directory from the run: name nothing else")
    recipe = _recipe(args)
    if args.dry_run:
        print(recipe.to_toml(), end="")
        return 0
    if not args.resume and not args.out:
        raise InputError("where to? give --out RUN")
    # One thread per process: small matrix products on contended threads are many times slower.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    return _train(args, recipe)


def _recipe(args: argparse.Namespace) -> Recipe:
    from scalerl.errors import InputError
    from scalerl.recipe import Recipe

    if args.resume:
        return Recipe.load(str(Path(args.resume) / "recipe.toml"))
    if not args.recipe:
        raise InputError("which recipe? for example: scalerl train scalerl tiny --out runs/first")
    layers = [item for item in args.recipe if "=" not in item]
    changes = [item for item in args.recipe if "=" in item]
    if args.steps is not None:
        changes.append(f"budget.steps={args.steps}")
    if args.minutes is not None:
        changes.append(f"budget.minutes={args.minutes}")
    if args.seed is not None:
        changes.append(f"seed={args.seed}")
    return Recipe.load(*layers, overrides=changes)


def _train(args: argparse.Namespace, recipe: Recipe) -> int:
    from scalerl.curves.rules import parse_rule
    from scalerl.pipeline.loop import Hooks, Loop
    from scalerl.pipeline.placement import PipelineError
    from scalerl.pipeline.plan import Plan
    from scalerl.runs.writer import RunWriter

    rule = parse_rule(args.stop_when) if args.stop_when else None
    plan = Plan.of(recipe)
    out = Path(args.resume or args.out)
    writer = RunWriter(out, resume=bool(args.resume))
    checkpoint = _latest(out) if args.resume else None
    if checkpoint is not None:
        step = json.loads((checkpoint / "run.json").read_text())["version"]
        for name in ("evals", "steps"):
            writer.cut_after(name, step)
    writer.write_recipe(recipe.to_toml())
    view = View(recipe, out, rule)
    hooks = Hooks(on_step=view.step, on_eval=view.evaluated, say=print)
    with Loop(plan, writer, hooks, checkpoint=checkpoint) as loop:
        view.save = lambda: _save(loop, out)
        try:
            outcome = loop.run()
            reason, code = outcome.reason, 0
        except KeyboardInterrupt:
            reason, code = "interrupted: scalerl train --resume goes on from here", 130
        except PipelineError as error:
            print(f"scalerl: {error}")
            return 1
        _save(loop, out)
    writer.append("events", {"step": loop.version, "event": "end", "reason": reason})
    print(f"ended at step {loop.version}: {reason}")
    print(f"scalerl report {out} -o {out}/report   shows it")
    return code


def _save(loop: Any, out: Path) -> None:
    """Checkpoint, keeping the newest few."""
    import shutil

    folder = out / "checkpoints"
    folder.mkdir(exist_ok=True)
    target = folder / f"step_{loop.version}"
    if not target.exists():
        loop.save(target)
    whole = sorted(folder.glob("step_*[0-9]"), key=lambda p: int(p.name.split("_")[1]))
    for old in whole[:-KEEP]:
        shutil.rmtree(old)


def _latest(out: Path) -> Path:
    from scalerl.errors import InputError

    found = [p for p in (out / "checkpoints").glob("step_*[0-9]") if (p / "run.json").exists()]
    if not found:
        raise InputError(f"{out} has no checkpoint to resume from: start it anew")
    return max(found, key=lambda p: int(p.name.split("_")[1]))


class View:
    """Lines for a log, and the run's own forecast after every validation."""

    def __init__(self, recipe: Recipe, out: Path, rule: Any) -> None:
        self.recipe = recipe
        self.out = out
        self.rule = rule
        self.started = time.monotonic()
        self.first: int | None = None
        self.save: Any = lambda: None

    def step(self, record: dict[str, Any]) -> None:
        step = record["step"]
        self.first = step - 1 if self.first is None else self.first
        reward = record["reward"]
        print(
            f"step {step:>5}  reward {reward if reward is not None else float('nan'):+.3f}  "
            f"truncated {record['truncated']:.2f}  stale {record['staleness']['max']}  "
            f"ratio {record['ratio']['max']:.2f}  grad {record['grad_norm']:.2f}{self._eta(step)}",
            flush=True,
        )
        if step % SAVE_EVERY == 0:
            self.save()

    def _eta(self, step: int) -> str:
        total = self.recipe.budget.steps
        if total is None or self.first is None or step == self.first:
            return ""
        each = (time.monotonic() - self.started) / (step - self.first)
        left = each * max(total - step, 0)
        return f"  {int(left // 60)}:{int(left % 60):02d} left"

    def evaluated(self, record: dict[str, Any]) -> str | None:
        spread = record["stderr"]
        print(
            f"validation at step {record['step']}: pass rate {record['pass_rate']:.3f} "
            f"± {spread if spread is not None else 0.0:.3f}",
            flush=True,
        )
        return self._forecast()

    def _forecast(self) -> str | None:
        """Fit the run's own curve; the rule may end the run."""
        from scalerl.curves.fit import fit
        from scalerl.curves.outlook import gain
        from scalerl.errors import InputError
        from scalerl.runs import load_run

        axis = self.recipe.compute.axis
        column = {"gpu_hours": "device_hours", "tokens": "generated_tokens"}.get(axis, axis)
        try:
            found = fit(load_run(str(self.out), x=f"compute/{column}"))
        except InputError:
            return None  # too few points as yet
        end = self._end(found.end, column)
        low, high = found.interval("A")
        ceiling = f"{found.params['A']:.3f} [{low:.3f}, {high:.3f}]"
        if not found.identified:
            ceiling = f"not identified yet [{low:.2f}, {high:.2f}]"
        line = f"  forecast: ceiling {ceiling}"
        if end is not None and end > found.end:
            ahead = found.forecast([end])
            low, high = ahead.interval()[0]
            line += f", at the end {ahead.median[0]:.3f} [{low:.3f}, {high:.3f}]"
        line += f", next doubling {gain(found, 2.0).median:+.3f}"
        if found.alarm is not None:
            line += f"; ALARM {found.alarm}"
        print(line, flush=True)
        reason = None if self.rule is None else self.rule.check(found, end)
        return None if reason is None else f"stop rule: {reason}"

    def _end(self, now: float, column: str) -> float | None:
        """Compute at the end of the step budget, if steps go on as they went."""
        steps = self.recipe.budget.steps
        if steps is None:
            return None
        lines = (self.out / "evals.jsonl").read_text().splitlines()
        last = json.loads(lines[-1])
        if not last["step"]:
            return None
        return float(last["compute"][column] * steps / last["step"])
