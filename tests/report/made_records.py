"""Training runs with a known record, written without training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

import made_study
from scalerl.recipe import Recipe
from scalerl.runs.lines import (
    AnswerSample,
    EpisodeLine,
    EpisodePlay,
    EvalAnswers,
    EvalLine,
    EventLine,
    Play,
    SegmentSample,
    StepLine,
    VersionRun,
)
from scalerl.runs.store import RunStore, encode


def step_text(step: int, rng: np.random.Generator) -> str:
    """A line of steps.jsonl, as made studies have it, of a batch whose entropy was not always
    computed."""
    share = step / 300
    entropy = None if step % 7 == 0 else 0.3 / (1 + share)
    rates = {"reward": -0.8 + share, "pass_rate": 0.1 + 0.5 * share}
    return made_study.step_text(step, rng, entropy=entropy, **rates).rstrip("\n")


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
    store.save_answers(EvalAnswers.from_answers(int(at[-1]), [
        AnswerSample("p1", "2+2=", said, True, "equal", "stop"),
        AnswerSample("p2", "2+3=", "six", False, "'six' is not '5'", "stop"),
        AnswerSample("p3", "2+4=", "hm", False, "no answer", "interrupted"),
    ]))  # fmt: skip
    return path


def add_play(path: Path, text: str = "=7<eos>") -> Path:
    """The run as one in an environment: its steps have play, and there are recorded episodes, the
    last of which is a fork that ran out of turns."""
    store = RunStore(path, resume=True)
    lines = [replace(s, play=Play(1.5 + s.step / 300, 8, 1.5, 0.1, 0.2, 0.0, 0.05, 0.25))
             for s in store.read(StepLine)]  # fmt: skip
    (path / StepLine.FILE).write_bytes(b"".join(map(encode, lines)))
    given = SegmentSample("context", 2, "ab=", (5, 6))
    written = SegmentSample("policy", 2, text, (7, 1), (VersionRun(1, 1), VersionRun(2, 1)))
    made = []
    for step, correct, rows in ((1, True, 1), (2, False, 1), (3, False, 2)):
        made.append(EpisodeLine(
            step=step, prompt="p", task="t", question="ab=", reward=float(correct),
            turn_rewards=(), correct=correct, why="as it is",
            finish="stop" if rows == 1 else "turns",
            play=EpisodePlay(3, 2, rows - 1, rows - 1, 0.5), rows=((given, written),) * rows,
        ))  # fmt: skip
    store.append_episodes(map(encode, made), most=10**6)
    return path


def _score(rate: float, rng: np.random.Generator) -> dict[str, float]:
    return {"pass_rate": rng.binomial(2000, rate) / 2000, "stderr": 0.01, "n_prompts": 500, "k": 4,
            "scored": 2000}  # fmt: skip
