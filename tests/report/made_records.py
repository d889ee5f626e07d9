"""Training runs with a known record, written without training."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

from scalerl.recipe import Recipe
from scalerl.runs.answers import AnswerSample, EvalAnswers
from scalerl.runs.lines import EvalLine, EventLine
from scalerl.runs.store import RunStore


def step_text(step: int, rng: np.random.Generator) -> str:
    """A line of steps.jsonl."""
    noise = float(rng.standard_normal())
    share = step / 300
    ledger = {
        "steps": step, "samples": 512 * step, "generated_tokens": 24_000 * step,
        "trained_tokens": 13_000 * step, "device_seconds": 2.3 * step,
        "validation_seconds": 0.3 * step, "lost_device_seconds": 12.0,
        "spent": {"generate": 0.9 * step, "hand_over": 0.05 * step, "train": 0.7 * step,
                  "check": 0.02 * step, "validate": 0.2 * step, "generate_wait": 0.2 * step,
                  "train_wait": 0.45 * step, "check_wait": 0.15 * step},
        "wasted": {"stale": {"rollouts": 3, "tokens": 150 * step},
                   "filtered": {"rollouts": 200, "tokens": 8000 * step},
                   "failed": {"rollouts": 1, "tokens": 300 * step}},
    }  # fmt: skip
    return json.dumps({
        "step": step, "loss": -0.02, "grad_norm": math.exp(-1 + 0.3 * noise), "lr": 2e-4,
        "ratio": {"mean": 1.0, "max": 1.5 + abs(noise), "min": 0.5, "truncated": 0.0},
        "ess": 0.99, "entropy": None if step % 7 == 0 else 0.3 / (1 + share),
        "staleness": {"mean": 1.2, "max": 2, "histogram": {"1": 3}}, "reward": -0.8 + share,
        "pass_rate": 0.1 + 0.5 * share, "truncated": 0.01, "interrupted": 0.2,
        "zero_variance": 0.4, "length": {"mean": 40 + noise, "max": 70},
        "compute": {"device_hours": 0.001 * step, "flops": 1e10 * step, "steps": step},
        "ledger": ledger,
    })  # fmt: skip


def made_run(path: Path, n: int = 31, steps: int = 300, seed: int = 0, **text: str) -> Path:
    """A run of `steps` steps and n validations, with a downstream set that follows and one that
    stalls; `text` replaces what a user might have written (answer, warning, set)."""
    rng = np.random.default_rng(seed)
    path.mkdir(parents=True)
    store = RunStore(path, resume=True)
    store.write_recipe(
        Recipe.load("scalerl", "tiny").replace({"optimiser.lr": 1e-4, "seed": seed}).to_toml()
    )
    at = np.linspace(0, steps, n).round().astype(int)
    true = 0.1 + 0.7 * (at / steps) ** 0.8
    stalls = np.minimum(0.6 * true, 0.6 * true[n - n // 3])
    for step, v, s in zip(at.tolist(), true.tolist(), stalls.tolist(), strict=True):
        sets = {
            text.get("set", "follows"): _score(0.05 + 0.5 * v, rng),
            "stalls": _score(s, rng),
        }
        store.append(EvalLine.from_dict({
            "step": step, "version": step, **_score(v, rng), "n_prompts": 500, "k": 4,
            "scored": 2000, "downstream": sets, "truncated": 0.0, "tasks": {},
            "compute": {"device_hours": 0.001 * step, "flops": 1e10 * step, "steps": step},
        }))  # fmt: skip
    (path / "steps.jsonl").write_text(
        "".join(step_text(i, rng) + "\n" for i in range(1, steps + 1))
    )
    store.append(EventLine(step=40, event="warning", why=text.get("warning", "entropy is low")))
    store.append(EventLine(step=90, event="resume", lost_device_seconds=12.0))
    store.append(EventLine(step=steps, event="end", reason=f"budget of {steps} steps"))
    said = text.get("answer", "two and two\nis four")
    store.save_answers(EvalAnswers.of(int(at[-1]), [
        AnswerSample("p1", "2+2=", said, True, "equal", "stop"),
        AnswerSample("p2", "2+3=", "six", False, "'six' is not '5'", "stop"),
        AnswerSample("p3", "2+4=", "hm", False, "no answer", "interrupted"),
    ]))  # fmt: skip
    return path


def _score(rate: float, rng: np.random.Generator) -> dict[str, float]:
    return {"pass_rate": rng.binomial(2000, rate) / 2000, "stderr": 0.01, "n_prompts": 500, "k": 4,
            "scored": 2000}  # fmt: skip
