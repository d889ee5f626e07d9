"""Runs with episodes to read, two of them with a bug that is found by reading."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from made_records import made_run

from scalerl.runs.lines import EpisodeLine, EpisodePlay, SegmentSample, VersionRun
from scalerl.runs.store import RunStore, encode

TALK = "the sum of two and three is five so we carry a digit then check it once more"
#: What turns the direction of a line, moves a cursor, or is not seen.
HIDDEN = "\u202eabc\u202c \x1b[31mred \u200bhidden \U000e0041tagged"
TASKS = ("add", "lookup", "sort")


def segment(source: str, text: str, step: int = 0, reward: float | None = None) -> SegmentSample:
    """A segment whose tokens are its words, each with the space before it."""
    parts = re.findall(r"\s*\S+|\s+", text)
    n, half = len(parts), len(parts) // 2
    mine = source == "policy"
    versions = tuple(v for v in (VersionRun(step, half), VersionRun(step + 1, n - half)) if v[1])
    return SegmentSample(
        source, n, text, tuple(range(n)), versions if mine else None,
        tuple(round(-0.02 - (i * 7 % 11) ** 2 / 15, 4) for i in range(n)) if mine else None,
        reward=reward, token_lengths=tuple(map(len, parts)),
    )  # fmt: skip


def line(
    step: int, prompt: str, rows: Sequence[Sequence[SegmentSample]], correct: bool | None,
    why: str, finish: str = "stop", failures: int = 0, turns: int = 1,
) -> EpisodeLine:  # fmt: skip
    """An episode with a reward of 1 or 0."""
    return EpisodeLine(
        step=step, prompt=prompt, task=prompt.partition("/")[0], question=rows[0][0].text,
        reward=None if correct is None else float(correct), turn_rewards=(), correct=correct,
        why=why, finish=finish, play=EpisodePlay(turns, turns - 1, failures, 0, 0.25 * turns),
        rows=tuple(map(tuple, rows)),
    )  # fmt: skip


def sound(step: int, i: int, rng: random.Random) -> EpisodeLine:
    """An ordinary episode: four of a group, the lookups with a tool."""
    task = TASKS[step % 3]
    prompt = f"{task}/{step % 6}"
    text = " ".join(rng.choice(TALK.split()) for _ in range(rng.randrange(6, 60)))
    correct = rng.random() < 0.3 + step / 400
    given = segment("context", f"Question {prompt}: what is 2 + 3?\n")
    answer = segment("policy", f"{text}.\nAnswer: {5 if correct else 7}", step - 1)
    rows = [[given, answer]]
    if task == "lookup":
        rows = [[given, *lookup(step, "7"), answer]]
    why = "equal" if correct else "'7' is not '5'"
    finish = "length" if rng.random() < 0.08 else "stop"
    return line(step, prompt, rows, correct, why, finish, turns=len(rows[0]) // 2)


def lookup(step: int, found: str) -> list[SegmentSample]:
    """A call of a tool and what came back."""
    call = '<tool_call>{"name": "lookup", "arguments": {"key": "d"}}</tool_call>'
    return [segment("policy", f"I look. {call}", step - 1, 0.1), segment("context", found)]


def empty_passes(step: int, i: int, rng: random.Random) -> EpisodeLine:
    """From step 101 the verifier passes empty answers, and the policy finds that out."""
    if step <= 100 or rng.random() < 0.5:
        return sound(step, i, rng)
    prompt = f"{TASKS[step % 3]}/{step % 6}"
    given = segment("context", f"Question {prompt}: what is 2 + 3?\n")
    return line(step, prompt, [[given, segment("policy", "<eos>", step - 1)]], True, "equal")


def tool_times_out(step: int, i: int, rng: random.Random) -> EpisodeLine:
    """The tool of one task, and of no other, times out."""
    made = sound(step, i, rng)
    if made.task != "lookup" or i % 2:
        return made
    given = made.rows[0][0]
    answer = segment("policy", "I do not know.", step - 1)
    rows = [[given, *lookup(step, "error: lookup timed out after 5 s"), answer]]
    return line(step, made.prompt, rows, False, "no answer", failures=1, turns=2)


def hostile(step: int, i: int, rng: random.Random) -> EpisodeLine:
    """Markup, control characters and a long token, wherever text can be."""
    evil = f"<img src=x onerror=alert({i})><script>alert(1)</script> {HIDDEN} مرحبا " + "x" * 3000
    rows = [[segment("context", evil), segment("policy", evil, step), segment("forced", evil)]]
    return line(step, f"add/{evil[:60]}", rows, False, evil, failures=1)


def made_reading(
    path: Path, make=sound, steps: Iterable[int] = range(1, 161), each: int = 4
) -> Path:
    """A run with so many episodes of each step."""
    made_run(path, n=8, steps=160)
    add(path, make, steps, each)
    return path


def add(path: Path, make=sound, steps: Iterable[int] = range(161, 164), each: int = 4) -> None:
    """More episodes, as a run that goes on records them."""
    rng = random.Random(0)
    lines = (encode(make(step, i, rng)) for step in steps for i in range(each))
    RunStore(path, resume=True).append_episodes(lines, 10**9)
