"""The health of a run at a glance: means over its last steps, and what its machine does.

What a record does not have (an environment, a KL of each lag, a GPU) is null or an empty list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scalerl.files import is_inside
from scalerl.runs.compute import LedgerLine
from scalerl.runs.lines import EvalAnswers, EvalLine, StepLine, SystemLine
from scalerl.runs.store import RunStore
from scalerl.serve.api.schema import Schema, array, fields_of, integer, mapping, number, ref, text
from scalerl.serve.catalogue import Entry

SHARE = "share, 0 to 1"

_LAG = fields_of("tokens of one staleness", {
    "lag": integer("the trainer's version minus theirs", "versions"),
    "tokens": integer("number of tokens"),
    "share": number("share of all tokens", SHARE),
    "kl": number("KL(gen ‖ train) over them; null where it was not recorded", "nats", null=True),
})  # fmt: skip

HEALTH: Schema = fields_of("The health of a run: means over its last steps.", {
    "id": text("id of the run"),
    "step": integer("the last of these steps", null=True),
    "steps": integer("steps that the means are over"),
    "staleness": fields_of("age of the tokens that were trained on", {
        "mean": number("mean over tokens", "versions", null=True),
        "max": integer("largest", "versions", null=True),
        "lags": array(_LAG, "tokens by their lag"),
    }),
    "mismatch": fields_of("how far generators and trainer are apart", {
        "kl": number("k3 estimate of KL(gen ‖ train)", "nats", null=True),
        "gap": number("mean of |log π_train − log π_gen|", "nats", null=True),
        "ess": number("effective sample size of the ratios", SHARE, null=True),
    }),
    "prompts": fields_of("prompts of the batches", {
        "always_solved": number("share with only right rollouts", SHARE, null=True),
        "never_solved": number("share without a right rollout", SHARE, null=True),
        "with_gradient": number("share with rollouts of different reward", SHARE, null=True),
    }),
    "held_out": fields_of("prompts of the last validation", {
        "step": integer("its step"),
        "prompts": integer("prompts with an answer that was scored"),
        "always_solved": number("share with only right answers", SHARE),
        "never_solved": number("share without a right answer", SHARE),
    }, null=True),
    "truncation": fields_of("rollouts and answers that were cut off", {
        "training": number("share of rollouts", SHARE, null=True),
        "interrupted": number("share of rollouts with thinking ended by its budget", SHARE,
                              null=True),
        "validation": number("share of the last validation's answers", SHARE, null=True),
    }),
    "environment": fields_of("episodes of several turns; null without an environment", {
        "seconds": number("time in the environment per episode", "seconds", null=True),
        "turns": number("turns per episode", "turns", null=True),
        "tool_failures": number("share of tool calls that failed", SHARE, null=True),
        "failed": number("share of episodes that the environment failed", SHARE, null=True),
        "out_of_turns": number("share of episodes that reached the limit of turns", SHARE,
                               null=True),
    }, null=True),
    "unscored": mapping({"type": "integer"}, "rollouts without a reward: reason → number"),
    "waits": fields_of("what device time went to", {
        "now": text("what a running run waits for just now", null=True),
        "trainer": mapping(number("share of the trainer's time", SHARE),
                           "`train`, `check_wait` (waits for checks or environments), "
                           "`rollout_wait` (waits for rollouts)"),
        "generators": mapping(number("share of the generators' time", SHARE),
                              "`generate`, `hand_over` (loads weights), `wait`"),
    }),
    "system": {"anyOf": [ref("SystemLine"), {"type": "null"}],
               "description": "the last sample of the machine"},
    "cost": fields_of("with `price`: cost in its unit", {
        "price": number("cost of a device-hour"),
        "spent": number("cost so far"),
        "per_step": number("mean cost of a step", null=True),
        "whole": number("cost of the whole budget, at this pace; null without one", null=True),
    }, null=True),
})  # fmt: skip


def health(entry: Entry, path: Any, last: int, price: float | None) -> dict[str, Any]:
    """The health of a run in a directory, over its `last` steps."""
    store = RunStore(path, resume=True)
    lines = store.tail(StepLine, last + 1)
    validation, steps = store.last(EvalLine), lines[-last:]
    rate = None if validation is None else validation.truncated
    return {
        "id": entry.id,
        "step": steps[-1].step if steps else None,
        "steps": len(steps),
        "staleness": _staleness(steps),
        "mismatch": {
            "kl": mean(s.logprob_gap.kl for s in steps),
            "gap": mean(s.logprob_gap.mean for s in steps),
            "ess": mean(s.ess for s in steps),
        },
        "prompts": {
            "always_solved": mean(s.always_solved for s in steps),
            "never_solved": mean(s.never_solved for s in steps),
            "with_gradient": mean(1.0 - s.zero_variance for s in steps),
        },
        "held_out": _held_out(store),
        "truncation": {
            "training": mean(s.truncated for s in steps),
            "interrupted": mean(s.interrupted for s in steps),
            "validation": rate,
        },
        "environment": _environment(steps),
        "unscored": dict(sum((Counter(s.unscored_why or {}) for s in steps), Counter[str]())),
        "waits": {"now": entry.about.get("waits_for"), **_waits(lines, steps)},
        "system": None if (sample := store.last(SystemLine)) is None else sample.to_dict(),
        "cost": None if price is None else _cost(entry, lines, steps, price),
    }


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of the numbers among these values; None where there is none.

    >>> mean([1.0, None, float("nan"), 2.0])
    1.5
    """
    known = [v for v in values if v is not None and v == v]
    return sum(known) / len(known) if known else None


def _staleness(steps: Sequence[StepLine]) -> dict[str, Any]:
    tokens: Counter[int] = Counter()
    weighted: dict[int, float] = {}
    with_kl: Counter[int] = Counter()
    for step in steps:
        # Records of earlier versions have no KL of each lag.
        kl: Mapping[int, float] = getattr(step.staleness, "kl", None) or {}
        for lag, count in step.staleness.histogram.items():
            tokens[lag] += count
            if (found := kl.get(lag)) is not None and found == found:
                with_kl[lag] += count
                weighted[lag] = weighted.get(lag, 0.0) + found * count
    total = sum(tokens.values())
    return {
        "mean": mean(s.staleness.mean for s in steps),
        "max": max((s.staleness.max for s in steps), default=None),
        "lags": [
            {
                "lag": lag,
                "tokens": tokens[lag],
                "share": tokens[lag] / total if total else 0.0,
                "kl": weighted[lag] / with_kl[lag] if with_kl[lag] else None,
            }
            for lag in sorted(tokens)
        ],
    }


def _held_out(store: RunStore) -> dict[str, Any] | None:
    """Prompts of the last validation with answers that can be read."""
    # The folder may be a link that leads out of the served directories.
    answered = store.answered() if is_inside(store.path / EvalAnswers.FOLDER) else []
    answers = store.read_answers(answered[-1]) if answered else None
    scores = [] if answers is None else [s for s in answers.sets.get("", {}).values() if s.scored]
    if answers is None or not scores:
        return None
    return {
        "step": answers.step,
        "prompts": len(scores),
        "always_solved": sum(s.right == s.scored for s in scores) / len(scores),
        "never_solved": sum(s.right == 0 for s in scores) / len(scores),
    }


def _environment(steps: Sequence[StepLine]) -> dict[str, Any] | None:
    plays = [s.play for s in steps if s.play is not None]
    if not plays:
        return None
    calls = sum(p.tool_calls for p in plays)
    return {
        "seconds": mean(p.environment_seconds for p in plays),
        "turns": mean(p.turns for p in plays),
        "tool_failures": sum(p.tool_failures for p in plays) / calls if calls else None,
        "failed": mean(p.failed for p in plays),
        "out_of_turns": mean(p.out_of_turns for p in plays),
    }


def _between(lines: Sequence[StepLine], steps: Sequence[StepLine]) -> tuple[LedgerLine, LedgerLine]:
    """The ledger before these steps and after them; `lines` begins one line earlier, if it can."""
    before = lines[0].ledger if len(lines) > len(steps) else LedgerLine()
    return before, steps[-1].ledger


def _waits(lines: Sequence[StepLine], steps: Sequence[StepLine]) -> dict[str, dict[str, float]]:
    if not steps:
        return {"trainer": {}, "generators": {}}
    before, after = (ledger.spent for ledger in _between(lines, steps))

    def spent(name: str) -> float:
        return max(float(getattr(after, name)) - float(getattr(before, name)), 0.0)

    checks = spent("check_wait")
    trainer = {
        "train": spent("train"),
        "check_wait": checks,
        "rollout_wait": max(spent("train_wait") - checks, 0.0),
    }
    generators = {
        "generate": spent("generate"),
        "hand_over": spent("hand_over"),
        "wait": spent("generate_wait"),
    }
    return {"trainer": _shares(trainer), "generators": _shares(generators)}


def _shares(seconds: Mapping[str, float]) -> dict[str, float]:
    total = sum(seconds.values())
    return {name: value / total for name, value in seconds.items()} if total > 0 else {}


def _cost(
    entry: Entry, lines: Sequence[StepLine], steps: Sequence[StepLine], price: float
) -> dict[str, Any]:
    hours = price * steps[-1].compute.device_hours if steps else 0.0
    per_step = None
    if steps:
        before, after = _between(lines, steps)
        per_step = price * (after.device_seconds - before.device_seconds) / 3600.0 / len(steps)
    budget = entry.about.get("budget") or {}
    share = budget.get("share")
    return {
        "price": price,
        "spent": hours,
        "per_step": per_step,
        "whole": hours / share if share else None,
    }
