"""Episodes from what other frameworks keep: messages by role, or texts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from scalerl.runs.importers.harness_results import step_in_name

#: A reward that says no more than right or wrong.
RIGHT_OR_WRONG = (0, 1)


def text_episode(
    *, step: int, question: Any, answer: Any, reward: Any, correct: Any = None, prompt: str = "",
    task: str = "", why: str = "", finish: str = "",
) -> dict[str, Any]:  # fmt: skip
    """The episode of one question and one answer, each a text or a list of messages."""
    rows = [[*_segments(question, policy=False), *_segments(answer, policy=True)]]
    asked = "\n".join(each["text"] for each in _segments(question, policy=False))
    return episode(
        step=step, prompt=prompt or prompt_of(asked), task=task, question=asked, reward=reward,
        correct=correct, why=why, finish=finish, rows=rows,
    )  # fmt: skip


def episode(
    *, step: int, prompt: str, task: str, question: str, reward: Any, correct: Any, why: str,
    finish: str, rows: Sequence[Sequence[dict[str, Any]]],
) -> dict[str, Any]:  # fmt: skip
    """An episode in the form of `EpisodeLine`. Where it is not known whether it is right, a reward
    of 0 or 1 says so."""
    reward = number(reward)
    segments = [segment for row in rows for segment in row]
    turns = sum(segment["source"] == "policy" for segment in segments)
    calls = sum(segment.pop("tool_calls", 0) for segment in segments)
    return {
        "step": step, "prompt": prompt, "task": task, "question": question, "reward": reward,
        "turn_rewards": [], "correct": truth(correct, reward), "why": why, "finish": finish,
        "play": {"turns": turns, "tool_calls": calls, "tool_failures": 0, "forks": len(rows) - 1},
        "rows": [list(row) for row in rows],
    }  # fmt: skip


def _segments(value: Any, *, policy: bool) -> list[dict[str, Any]]:
    """Segments of a text or of messages; with `policy`, what the assistant says was sampled."""
    if isinstance(value, list):
        return [message_segment(message, policy=policy) for message in value]
    text = value if isinstance(value, str) else "" if value is None else json.dumps(value)
    return [segment(text, policy=policy)] if text else []


def message_segment(message: Any, *, policy: bool) -> dict[str, Any]:
    """The segment of one message: what an assistant said as it is, of others after their role."""
    if not isinstance(message, dict):
        return segment(str(message), policy=policy)
    role = message.get("role") if isinstance(message.get("role"), str) else "message"
    parts = [content_text(message.get("reasoning_content")), content_text(message.get("content"))]
    calls = message.get("tool_calls")
    calls = calls if isinstance(calls, list) else []
    parts += [f"<tool_call>{json.dumps(call, ensure_ascii=False)}</tool_call>" for call in calls]
    text = "\n".join(filter(None, parts))
    if role == "assistant" and policy:
        return segment(text, policy=True) | {"tool_calls": len(calls)}
    return segment(f"{role}: {text}", policy=False)


def segment(text: str, *, policy: bool) -> dict[str, Any]:
    """A segment without tokens; its length is counted in characters."""
    return {"source": "policy" if policy else "context", "tokens": len(text), "text": text}


def content_text(content: Any) -> str:
    """The text of a message's content, which may be a list of parts."""
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, dict) else part for part in content]
        return "\n".join(text if isinstance(text, str) else "[no text]" for text in texts)
    return content if isinstance(content, str) else ""


def prompt_of(question: str) -> str:
    """An id for a prompt that has none: the same for the same question."""
    return blake2b(question.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def number(value: Any) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, int | float) and abs(value) < 1e300:
        return float(value)
    return None


def truth(given: Any, reward: float | None) -> bool | None:
    """Whether an answer is right, by what is said of it or else by its reward."""
    for value in (number(given), reward):
        if value in RIGHT_OR_WRONG:
            return value == 1
        if value is not None:
            return None
    return None


def whole(value: Any, otherwise: int) -> int:
    """A whole number, or another where it is none."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,12}", value, re.ASCII):
        return int(value)
    found = number(value)
    return int(found) if found is not None and found == int(found) else otherwise


def step_of(path: Path) -> int:
    """The step that a path names, in its file or a directory above it; else 0."""
    names: Iterable[str] = (path.stem, *(parent.name for parent in list(path.parents)[:3]))
    for name in names:
        if name.isascii() and name.isdecimal() and len(name) < 10:
            return int(name)
        found = step_in_name(name)
        if found is not None:
            return int(found)
    return 0


def is_validation(path: Path) -> bool:
    """Whether a path names its rollouts as those of a validation."""
    names = (path.stem, *(parent.name for parent in list(path.parents)[:2]))
    return any(re.match(r"(val|eval|test)", name, re.IGNORECASE) for name in names)
