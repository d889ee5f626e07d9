"""Recorded episodes: what recording them costs a step of the tiny run, and how soon 200,000 of them
answer.

python benchmarks/episodes.py [--steps 30] [--episodes 200000]

The cost is the processor time of the loop's process in choosing, encoding and writing episodes,
over that of all processes of a step: other load hardly changes it. The reader is a process of its
own, so that its memory is its own. Seconds are for a machine that does nothing else; beside them
stands the processor time, which says as much on a busy one.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from record import save
from scalerl import train
from scalerl.pipeline.recorder import Recorder
from scalerl.runs.episode_filter import EpisodeFilter
from scalerl.runs.episode_log import EpisodeLog
from scalerl.runs.episode_view import detail, histograms, list_episodes
from scalerl.runs.lines import (
    EpisodeLine,
    EpisodePlay,
    SegmentSample,
    StepLine,
    ValidationEpisodeLine,
    VersionRun,
)
from scalerl.runs.store import RunStore, encode

#: Episodes of a generated step, and of a prompt in it.
PER_STEP, PER_PROMPT = 100, 4
#: Tokens of a generated episode: the median of a run of SmolLM2 on sums.
TOKENS = 60
#: Times that each filter is asked for; the slowest counts.
REPEATS = 5


def timed(spent: dict[str, float], name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    def measured(*given: Any) -> Any:
        begun = time.thread_time()
        try:
            return work(*given)
        finally:
            spent[name] = spent.get(name, 0.0) + time.thread_time() - begun

    return measured


def recording(steps: int) -> dict[str, Any]:
    """Train the tiny recipe and measure what its recorder does for episodes."""
    spent: dict[str, float] = {}
    parts = {
        "choose": "choose",
        "make": "sample",
        "write": "_record_samples",
        "validation": "_record_answers",
    }
    kept = {name: getattr(Recorder, name) for name in parts.values()}
    for part, name in parts.items():
        setattr(Recorder, name, timed(spent, part, kept[name]))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        begun = time.process_time(), children()
        try:
            train(["scalerl", "tiny", f"budget.steps={steps}"], out)
        finally:
            for name, work in kept.items():
                setattr(Recorder, name, work)
        own = time.process_time() - begun[0]
        total = own + children() - begun[1]
        store = RunStore(out, resume=True)
        lines = len(store.read(EpisodeLine)), len(store.read(ValidationEpisodeLine))
        done = len(store.read(StepLine))
        size = sum(each.stat().st_size for each in (out / "episodes").iterdir())
    return {
        "steps": done,
        "episodes": lines[0],
        "answers": lines[1],
        "bytes": size,
        "milliseconds_per_step": {k: 1000 * v / done for k, v in spent.items()},
        "cpu_seconds_per_step": total / done,
        "share_of_a_step": sum(spent.values()) / total,
    }


def children() -> float:
    """Processor seconds of the processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def generated(i: int) -> bytes:
    """The i-th generated episode."""
    step, n = divmod(i, PER_STEP)
    tokens = TOKENS - 20 + i * 7919 % 41
    text = "".join(f" word{(i + j) % 97}" for j in range(tokens))
    lengths = tuple(len(f" word{(i + j) % 97}") for j in range(tokens))
    written = SegmentSample(
        "policy", tokens, text, tuple((i + j) % 97 for j in range(tokens)),
        (VersionRun(step, tokens),), tuple(-((i + j) % 13) / 10 for j in range(tokens)),
        token_lengths=lengths,
    )  # fmt: skip
    given = SegmentSample("context", 3, "2 + 2 =", (1, 2, 3), token_lengths=(1, 3, 3))
    line = EpisodeLine(
        step=step, prompt=f"sums/{n // PER_PROMPT}", task=("sums", "chains", "long")[n % 3],
        question="2 + 2 =", reward=i % 5 / 4, turn_rewards=(), correct=i % 5 == 4,
        why=f"found {i % 31}", finish="length" if i % 9 == 0 else "stop",
        play=EpisodePlay(1, 0, int(i % 50 == 0), 0, 0.0), rows=((given, written),),
    )  # fmt: skip
    return encode(line, compact=True)


def filters(steps: int) -> dict[str, dict[str, Any]]:
    """What a reader of so many steps filters by."""
    return {
        "wrong": {"correct": "false"},
        "step and task": {"step_from": steps // 4, "step_to": steps // 2, "task": "sums"},
        "one prompt": {"prompt": "sums/7"},
        "cut off, long": {"finish": "length", "length_min": 61},
        "reward": {"reward_min": 0.5, "reward_max": 0.75},
        "a tool failed": {"tool_failed": True},
    }


def read(path: Path) -> dict[str, Any]:
    """Ask for lists, filters, histograms, a search and an episode, as the page does."""
    begun, used = time.perf_counter(), time.process_time()
    log = EpisodeLog.from_run(path)
    log.refresh()
    first = list_episodes(log, EpisodeFilter())
    found: dict[str, Any] = {
        "first_answer_seconds": time.perf_counter() - begun,
        "first_answer_processor_seconds": time.process_time() - used,
    }
    assert first.total and len(first.episodes) == 50
    slowest: dict[str, float] = {}
    processor: dict[str, float] = {}
    for name, wanted in filters(first.total // PER_STEP).items():
        taken, worked = [], []
        for _ in range(REPEATS):
            begun, used = time.perf_counter(), time.process_time()
            log.refresh()
            matched = list_episodes(log, EpisodeFilter(**wanted)).matched
            histograms(log, EpisodeFilter(**wanted))
            taken.append(time.perf_counter() - begun)
            worked.append(time.process_time() - used)
        assert matched
        slowest[name] = 1000 * max(taken)
        processor[name] = 1000 * max(worked)
    found["filter_and_histogram_milliseconds"] = slowest
    found["filter_and_histogram_processor_milliseconds"] = processor
    found["episode_milliseconds"] = 1000 * statistics.median(
        _time(lambda n=n: detail(log, n)) for n in range(0, len(log.entries), 9973)
    )
    found["search_seconds"] = {
        "text": _time(lambda: log.select(EpisodeFilter(text="found 30"), None)),
        "rare text": _time(lambda: log.select(EpisodeFilter(text="no such words"), None)),
        "regex": _time(lambda: log.select(EpisodeFilter(regex=r"found 3\d$"), None)),
    }
    found["peak_megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    return found


def _time(work: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def reading(episodes: int) -> dict[str, Any]:
    """Write generated episodes as a run does, and read them in another process: with the index that
    the run wrote, and without."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        RunStore(path, resume=True).append_episodes(map(generated, range(episodes)), 10**12)
        file = path / EpisodeLine.FILE
        found: dict[str, Any] = {"episodes": episodes, "megabytes": file.stat().st_size / 1e6}
        found["with_index"] = in_process(path)
        file.with_suffix(".index").unlink()
        found["without_index_first_answer_seconds"] = in_process(path)["first_answer_seconds"]
    return found


def in_process(path: Path) -> dict[str, Any]:
    command = [sys.executable, __file__, "--read", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--steps", type=int, default=30)
    options.add_argument("--episodes", type=int, default=200_000)
    options.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    asked = options.parse_args()
    if asked.read is not None:
        print(json.dumps(read(asked.read)))
        return
    save("episodes", {"recording": recording(asked.steps), "reading": reading(asked.episodes)})


if __name__ == "__main__":
    main()
