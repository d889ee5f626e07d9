"""Runs and studies whose truth is known, written to disk as if they had been run."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scalerl import Study

#: Of the reference: start, ceiling, B and the step at which it is half way up.
START, CEILING, SLOPE, MIDDLE = 0.1, 0.8, 1.6, 0.12


@dataclass(frozen=True, slots=True)
class MadeKnob:
    """What a variant truly does: to the ceiling, to the compute; to the hours that a step takes;
    and whether its first seed falls apart on the way."""

    delta_a: float = 0.0
    ratio: float = 1.0
    unstable: bool = False
    hours: float = 1.0


#: The reference first; more variants go round again.
KNOBS = (
    MadeKnob(),
    MadeKnob(-0.08),
    MadeKnob(0.0, 2.0),
    MadeKnob(hours=0.5),
    MadeKnob(0.06),
    MadeKnob(0.0, 0.5),
    MadeKnob(unstable=True),
    MadeKnob(-0.15, 1.3),
    MadeKnob(-0.02),
)


def made_study(
    path: Path, variants: int = 3, seeds: int = 2, evals: int = 40, steps: int = 200, seed: int = 0
) -> Study:
    """`variants` × `seeds` runs of `steps` steps and about `evals` validations each, the same for
    the same `seed`."""
    rates = [float(f"{1e-4 * 1.1**i:.3g}") for i in range(1, variants)]
    every = max(steps // (evals - 1), 1)
    study = Study(
        path,
        ["scalerl", "tiny", f"validation.every={every}"],
        sweep={"optimiser.lr": rates} if rates else {},
        seeds=seeds,
        steps=steps,
    )
    study.write()
    names = list(study.variants)
    for member in study.members:
        i = names.index(member.variant)
        rng = np.random.default_rng((seed, i, member.seed))
        knob = KNOBS[i % len(KNOBS)]
        falls = knob.unstable and member.seed == study.members[0].seed
        member.path.mkdir(parents=True)
        (member.path / "recipe.toml").write_text(member.recipe.to_toml())
        at = list(range(0, steps + 1, every))
        lines = [_validation(step, steps, knob, falls, rng) for step in at]
        (member.path / "evals.jsonl").write_text("".join(lines))
        (member.path / "steps.jsonl").write_text(
            "".join(step_text(step, rng, knob.hours) for step in range(1, steps + 1))
        )
        if not falls:
            _answers(member.path, at[-1], true_rate(at[-1], steps, knob), (seed, i, member.seed))
        end = {"step": steps, "event": "end", "reason": f"budget of {steps} steps"}
        (member.path / "events.jsonl").write_text(json.dumps(end) + "\n")
    return study


def _compute(step: int, hours: float = 1.0) -> dict[str, float]:
    return {"device_hours": 0.001 * step * hours, "flops": 1e10 * step,
            "generated_tokens": 24_000 * step, "trained_tokens": 13_000 * step,
            "samples": 512 * step, "steps": step}  # fmt: skip


def true_rate(step: int, steps: int, knob: MadeKnob) -> float:
    """The pass rate of a healthy run."""
    share = step / steps / knob.ratio
    climb = 1 / (1 + (MIDDLE / share) ** SLOPE) if step else 0.0
    return START + (CEILING + knob.delta_a - START) * climb


def _validation(
    step: int, steps: int, knob: MadeKnob, falls: bool, rng: np.random.Generator
) -> str:
    true = true_rate(step, steps, knob)
    if falls and step > 0.6 * steps:
        true = max(true - 1.5 * (step / steps - 0.6), 0.05)
    score, further = _score(true, 840, rng), _score(0.5 * true + 0.02, 300, rng)
    return json.dumps({
        "step": step, "version": step, **score, "unscored": 0, "truncated": 0.0, "tasks": {},
        "compute": _compute(step, knob.hours), "downstream": {"harder": further},
    }) + "\n"  # fmt: skip


def _answers(path: Path, step: int, rate: float, seed: tuple[int, ...]) -> None:
    """To 210 prompts, the same ones and as hard for every run, this share of right answers."""
    hard = np.random.default_rng(210).random(210)
    chance = rate + 1.9 * (hard - 0.5) * min(rate, 1 - rate)
    right = np.random.default_rng((*seed, 1)).binomial(4, np.clip(chance, 0, 1)).tolist()
    sets = {"": {f"made/{i}": [n, 4, 4] for i, n in enumerate(right)}}
    (path / "evals").mkdir()
    found = {"step": step, "sets": sets, "answers": []}
    (path / "evals" / f"step_{step}.json").write_text(json.dumps(found))


def _score(rate: float, n: int, rng: np.random.Generator) -> dict[str, float]:
    return {"pass_rate": rng.binomial(n, rate) / n, "stderr": math.sqrt(rate * (1 - rate) / n),
            "n_prompts": n // 4, "k": 4, "scored": n}  # fmt: skip


def step_text(step: int, rng: np.random.Generator, hours: float = 1.0, **changes: Any) -> str:
    """A line of steps.jsonl; `changes` take the place of what it has."""
    noise = float(rng.standard_normal())
    ledger = {
        "steps": step, "samples": 512 * step, "generated_tokens": 24_000 * step,
        "trained_tokens": 13_000 * step, "device_seconds": 2.3 * step,
        "validation_seconds": 0.3 * step, "lost_device_seconds": 0.0,
        "spent": {"generate": 0.9 * step, "hand_over": 0.05 * step, "train": 0.7 * step,
                  "check": 0.02 * step, "validate": 0.2 * step, "generate_wait": 0.2 * step,
                  "train_wait": 0.45 * step, "check_wait": 0.15 * step},
        "wasted": {"stale": {"rollouts": 3, "tokens": 150 * step},
                   "filtered": {"rollouts": 200, "tokens": 8000 * step},
                   "failed": {"rollouts": 0, "tokens": 0}},
    }  # fmt: skip
    return json.dumps({
        "step": step, "loss": -0.02, "grad_norm": math.exp(-1 + 0.3 * noise), "lr": 2e-4,
        "ratio": {"mean": 1.0, "max": 1.5 + abs(noise), "min": 0.5, "truncated": 0.0},
        "ess": 0.99, "entropy": 0.3 / (1 + 0.01 * step),
        "staleness": {"mean": 1.2, "max": 2, "histogram": {"1": 3}}, "reward": -0.5 + 0.1 * noise,
        "pass_rate": 0.4, "truncated": 0.01, "interrupted": 0.2,
        "zero_variance": 0.4, "length": {"mean": 40 + noise, "max": 70},
        "compute": _compute(step, hours), "ledger": ledger, **changes,
    }) + "\n"  # fmt: skip
