"""verifiers and prime-rl: JSON Lines with a rollout a line.

    outputs/evals/…/results.jsonl                  verifiers 0.x: prompt and completion as messages
    outputs/…/rollouts/step_12/train_rollouts.jsonl     prime-rl: the same, or traces

A *trace* (verifiers 1) is a graph of messages, each with the tokens that it adds; a path from a
root to a leaf is what the model saw, so each leaf gives a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scalerl.runs.rollouts import CERTAIN, LIKELY, RolloutFormat
from scalerl.runs.rollouts.messages import (
    episode,
    message_segment,
    number,
    prompt_of,
    step_of,
    text_episode,
)

#: Rows of a trace: an agent with more branches than this is shown in part.
MAX_ROWS = 50
#: Messages of one path.
MAX_PATH = 2_000
#: Finish reason by the condition that stopped a rollout.
STOPS = {
    "max_turns_reached": "turns", "max_turns": "turns", "has_error": "failed", "error": "failed",
    "max_total_completion_tokens_reached": "length", "prompt_too_long": "length",
}  # fmt: skip


def convert(record: dict[str, Any], path: Path) -> dict[str, Any] | None:
    if isinstance(record.get("nodes"), list):
        return _trace(record, path)
    if "completion" not in record or "prompt" not in record:
        return None
    task = _name(record.get("task")) or _name(record.get("env_name"))
    metrics = record.get("metrics")
    return text_episode(
        step=_step(record, path),
        question=record["prompt"],
        answer=record["completion"],
        reward=record.get("reward"),
        correct=_correct(metrics if isinstance(metrics, dict) else {}),
        prompt="/".join(filter(None, [task, _name(record.get("example_id"))])),
        task=task,
        why=_why(record),
        finish=_finish(record),
    )


def _trace(record: dict[str, Any], path: Path) -> dict[str, Any]:
    nodes = [node if isinstance(node, dict) else {} for node in record["nodes"]]
    rows = [[_node_segment(nodes[i]) for i in each] for each in _paths(nodes)]
    task = record.get("task")
    task = task if isinstance(task, dict) else {}
    question = next((s["text"] for row in rows for s in row if s["source"] == "context"), "")
    metrics = record.get("metrics")
    return episode(
        step=_step(record, path),
        prompt=_name(task.get("key")) or _name(task.get("hash")) or prompt_of(question),
        task=_name(task.get("type")),
        question=question,
        reward=_trace_reward(record),
        correct=_correct(metrics if isinstance(metrics, dict) else {}),
        why=_why(record),
        finish=_finish(record),
        rows=rows or [[]],
    )


def _paths(nodes: list[dict[str, Any]]) -> Iterator[list[int]]:
    """The numbers of the nodes on every path from a root to a leaf."""
    parents = [_parent(node, i) for i, node in enumerate(nodes)]
    leaves = [i for i in range(len(nodes)) if i not in set(parents)]
    for leaf in leaves[:MAX_ROWS]:
        found: list[int] = []
        at: int | None = leaf
        while at is not None and len(found) < MAX_PATH:
            found.append(at)
            at = parents[at]
        yield found[::-1]


def _parent(node: dict[str, Any], i: int) -> int | None:
    """A node before this one, so that a path cannot be a circle."""
    found = node.get("parent")
    return found if type(found) is int and 0 <= found < i else None


def _node_segment(node: dict[str, Any]) -> dict[str, Any]:
    found = message_segment(node.get("message"), policy=node.get("sampled") is True)
    ids, mask = node.get("token_ids"), node.get("mask")
    if found["source"] != "policy" or not isinstance(ids, list) or not isinstance(mask, list):
        return found
    # Before the sampled tokens of a message are those of the template, which the text lacks.
    sampled = [each for each, drawn in zip(ids, mask, strict=False) if drawn is True]
    more = {
        name: node.get(key)
        for name, key in (("logprobs", "logprobs"), ("entropies", "entropies"))
        if isinstance(node.get(key), list)
    }
    return found | {"tokens": len(sampled), "token_ids": sampled} | more if sampled else found


def _trace_reward(record: dict[str, Any]) -> float | None:
    """The weighted sum of a trace's rewards."""
    rewards = record.get("rewards")
    if not isinstance(rewards, dict):
        return number(record.get("reward"))
    values = []
    for each in rewards.values():
        if isinstance(each, dict):
            score, weight = number(each.get("score")), number(each.get("weight", 1.0))
            values.append(None if score is None or weight is None else score * weight)
        else:
            values.append(number(each))
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _step(record: dict[str, Any], path: Path) -> int:
    info = record.get("info")
    own = info.get("prime_rl") if isinstance(info, dict) else None
    found = number(own.get("step")) if isinstance(own, dict) else None
    return step_of(path) if found is None else int(found)


def _correct(metrics: dict[str, Any]) -> Any:
    """What a metric says whose name is that of a check."""
    for name in ("correct", "correct_answer", "correct_answer_reward_func", "accuracy"):
        if name in metrics:
            return metrics[name]
    return None


def _why(record: dict[str, Any]) -> str:
    errors = record.get("error") or record.get("errors")
    if errors:
        return f"error: {errors}"
    answer = record.get("answer")
    return f"expected {answer}" if isinstance(answer, str) and answer else ""


def _finish(record: dict[str, Any]) -> str:
    if record.get("error") or record.get("errors"):
        return "failed"
    if record.get("is_truncated") is True:
        return "length"
    stop = record.get("stop_condition")
    return STOPS.get(stop, "stop") if isinstance(stop, str) else ""


def _name(value: Any) -> str:
    return str(value)[:300] if isinstance(value, str | int) and value != "" else ""


def _sniff(path: Path, head: bytes) -> float:
    if b'"nodes"' in head and b'"message"' in head:
        return CERTAIN
    if b'"example_id"' in head and b'"completion"' in head:
        return CERTAIN
    return LIKELY if b'"completion"' in head and b'"prompt"' in head else 0.0


FORMAT = RolloutFormat(convert, sniff=_sniff)
