"""Run records with made-up episodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scalerl.runs.lines import (
    EpisodeLine,
    EpisodePlay,
    SegmentSample,
    ValidationEpisodeLine,
    VersionRun,
)
from scalerl.runs.store import RunStore, encode

FINISHES = ("stop", "length", "turns", "failed")


def episode(i: int, kind: type[EpisodeLine] = EpisodeLine, **changes: Any) -> EpisodeLine:
    """The i-th episode: two of each prompt at each step."""
    step = i // 8
    given = SegmentSample("context", 2, "2+2=", (5, 6), token_lengths=(2, 2))
    text = f"answer {i}é"
    n = len(text)
    written = SegmentSample(
        "policy", n, text, tuple(range(n)), (VersionRun(step, n - 2), VersionRun(step + 1, 2)),
        tuple(-0.1 * j for j in range(n)) if kind is EpisodeLine else None,
        token_lengths=(1,) * n,
    )  # fmt: skip
    values: dict[str, Any] = {
        "step": step, "prompt": f"sums/{i % 8 // 2}", "task": "sums" if i % 3 else "long sums",
        "question": "2+2=", "reward": None if i % 10 == 9 else i % 5 / 4, "turn_rewards": (),
        "correct": None if i % 10 == 9 else i % 5 == 4, "why": f"because of {i}",
        "finish": FINISHES[i % 4], "play": EpisodePlay(1 + i % 3, i % 3, int(i % 7 == 0), 0, 0.1),
        "rows": ((given, written),),
    }  # fmt: skip
    return kind(**(values | changes))


def made_episodes(path: Path, training: int = 80, validation: int = 40) -> RunStore:
    """A run with these numbers of episodes, and a recipe so that it is found as a run."""
    path.mkdir(parents=True, exist_ok=True)
    store = RunStore(path, resume=True)
    store.write_recipe('name = "made"\n')
    store.append_episodes((encode(episode(i)) for i in range(training)), 10**9)
    lines = (encode(episode(i, ValidationEpisodeLine)) for i in range(validation))
    store.append_episodes(lines, 10**9, ValidationEpisodeLine)
    if not (path / "events.jsonl").exists():
        (path / "events.jsonl").write_text(json.dumps({"step": 0, "event": "note"}) + "\n")
    return store
