"""What turns cost: a slow tool, a long reply, and the key-value cache that is kept between turns.

    python benchmarks/multi_turn.py [--rounds 3]
    python benchmarks/multi_turn.py --quick         a smaller model, one round; saves nothing

slow tool   64 episodes at once, 6 turns each of 44 tokens on average, written by one generator;
            environments in worker processes, as in `scalerl eval`. The tool takes no time or 0.3 s,
            and the cache of a turn is kept for the next one, or everything is read again. Seconds
            from the first to the last token, and how many of them the engine had nothing to write;
            CPU seconds are those of the generator. The cases in turns, medians of the rounds.
long reply  one turn, then a reply of 2,000 tokens: forward passes until the first token of the next
            turn, and the tokens that they read.

The model is a random Llama of 11 million parameters, in FP32 on one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from record import save
from scalerl.algorithm.length import Limit
from scalerl.engine.interface import EngineSpec, EngineStep, Lane, Request
from scalerl.engine.local import LocalEngine
from scalerl.engine.registry import ENGINES
from scalerl.evaluation.runner import EvaluationWorkers
from scalerl.files import write_atomic
from scalerl.models.load import load_model, model_path
from scalerl.pipeline.setup import RunSetup
from scalerl.pipeline.validation import Validation
from scalerl.recipe.load import load

EPISODES = 64
TURNS = 6
#: Longest turn; the random model ends one with a chance of 1 in 44 at every token.
TURN_TOKENS = 160
#: Tokens of a reply of the tool.
REPLY_TOKENS = 32
TOOL_SECONDS = 0.3
LONG_REPLY = 2000
COLUMNS = 4096
#: Width and layers of the model.
SIZE = (384, 6)
QUICK_SIZE = (128, 2)
CASES = {
    "no tool time, cache kept": (0.0, True),
    f"{TOOL_SECONDS} s, cache kept": (TOOL_SECONDS, True),
    "no tool time, read again": (0.0, False),
}
#: Environment variable with the file that the engine, in its own process, writes its counts to.
COUNTS = "SCALERL_BENCHMARK_COUNTS"


class CountedEngine(LocalEngine):
    """A local engine that counts what it reads, and when."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._file = Path(os.environ[COUNTS])
        self._count_anew()

    def _count_anew(self) -> None:
        self.read = self.written = 0
        self.began: tuple[float, float] | None = None
        #: Seconds between two steps without a rollout to write.
        self.idle = 0.0
        self._idle_since: float | None = None

    def submit(self, requests: Any, lane: Lane = "train") -> None:
        if not self._file.exists() and not self.health().busy:  # another play begins
            self._count_anew()
        super().submit(requests, lane)
        if self._idle_since is not None:
            self.idle += time.perf_counter() - self._idle_since
            self._idle_since = None

    def step(self) -> EngineStep:
        if self.began is None:
            self.began = (time.perf_counter(), time.process_time())
        found = super().step()
        self.read += found.read_tokens
        self.written += found.tokens
        ended = (time.perf_counter(), time.process_time())
        if not self.health().busy:
            self._idle_since = ended[0]
            seconds, cpu = (b - a for a, b in zip(self.began, ended, strict=True))
            counts = {"seconds": seconds, "cpu": cpu, "idle": self.idle, "read": self.read,
                      "written": self.written}  # fmt: skip
            write_atomic(self._file, json.dumps(counts))
        return found


@ENGINES.register("counted")
def counted_engine(spec: EngineSpec) -> CountedEngine:
    """The local engine of a recipe, with counts."""
    return CountedEngine(
        load_model(spec.model, spec.dtype, spec.device),
        slots=spec.slots,
        validation_slots=spec.validation_slots,
        columns=spec.columns,
        park_turns=spec.park_turns,
    )


def make_model(folder: Path, size: tuple[int, int]) -> str:
    """A random Llama with the tokenizer of the tiny model."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    width, layers = size
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=44, hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers,
        num_attention_heads=width // 32, num_key_value_heads=width // 32, eos_token_id=1,
        max_position_embeddings=COLUMNS, bos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    path = folder / "model"
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (path / name).write_text((Path(model_path("tiny")) / name).read_text())
    return str(path)


def setup_of(model: str, seconds: float, *, parks: bool) -> RunSetup:
    settings = f"{{seconds = {seconds}, turns = {TURNS}, reply = {REPLY_TOKENS}}}"
    changes = [
        f"model.path={model}", "task.name=environment:slow_tools:SlowTool",
        f"task.options={{settings = {settings}, held_out_share = 0.5}}",
        f"environment.turns={TURNS}", f"environment.observation_tokens={REPLY_TOKENS}",
        "length.control=none", f"length.max_tokens={TURN_TOKENS}",
        f"validation.prompts={EPISODES}", "validation.k=1", "validation.temperature=1",
        "validation.also_temperatures=[]", "placement.engine=counted", "placement.checkers=64",
        # The cache of turns is not kept in a deterministic run.
        f"placement.deterministic={'false' if parks else 'true'}",
    ]  # fmt: skip
    return RunSetup.from_recipe(load("scalerl", "tiny", overrides=changes))


def play(setup: RunSetup, workers: EvaluationWorkers, prompts: int) -> dict[str, float]:
    """Play an episode for each of so many prompts, all at once."""
    file = Path(os.environ[COUNTS])
    file.unlink(missing_ok=True)
    asked = dict(list(Validation.from_setup(setup).asked.items())[:prompts])
    scored = [
        one for one, _ in workers.score_answers(Validation(setup, asked).unanswered(), step=0)
    ]
    turns = [e.facts.turns for one in scored for e in one.pending.in_order()]
    assert turns == [TURNS] * prompts, Counter(turns)
    counts = json.loads(file.read_text())
    return {
        "seconds": counts["seconds"], "idle_seconds": counts["idle"], "cpu_seconds": counts["cpu"],
        "cpu_seconds_per_episode": counts["cpu"] / prompts,
        "tokens_read_per_episode": counts["read"] / prompts,
        "tokens_written_per_episode": counts["written"] / prompts,
    }  # fmt: skip


def slow_tool(model: str, rounds: int) -> dict[str, Any]:
    found: dict[str, list[dict[str, float]]] = {name: [] for name in CASES}
    for i in range(rounds):
        for name, (seconds, parks) in CASES.items():
            setup = setup_of(model, seconds, parks=parks)
            with EvaluationWorkers(setup, setup.model, print) as workers:
                play(setup, workers, 4)  # the workers are up
                found[name].append(play(setup, workers, EPISODES))
            print(f"{name}, round {i}: {found[name][-1]['seconds']:.1f} s", flush=True)
    rows = {name: {k: median(r[k] for r in runs) for k in runs[0]} for name, runs in found.items()}
    base = rows["no tool time, cache kept"]["seconds"]
    print(f"\n{'':<26}{'s':>7}{'ratio':>7}{'idle s':>8}{'CPU-s/ep.':>11}{'read/ep.':>10}"
          f"{'written/ep.':>13}")  # fmt: skip
    for name, row in rows.items():
        row["ratio"] = row["seconds"] / base
        print(f"{name:<26}{row['seconds']:>7.1f}{row['ratio']:>7.2f}{row['idle_seconds']:>8.2f}"
              f"{row['cpu_seconds_per_episode']:>11.3f}{row['tokens_read_per_episode']:>10.0f}"
              f"{row['tokens_written_per_episode']:>13.0f}")  # fmt: skip
    return {"median": rows, "runs": found}


def count_passes(engine: LocalEngine) -> Counter[str]:
    """Forward passes of an engine's decoder from here on, by kind."""
    passes: Counter[str] = Counter()
    decoder: Any = engine.decoder

    def count(kind: str) -> None:
        call = getattr(decoder, kind)

        def counted(*given: Any) -> Any:
            passes[kind] += 1
            return call(*given)

        setattr(decoder, kind, counted)

    for kind in ("prefill", "extend", "decode"):
        count(kind)
    return passes


def long_reply(model: str) -> dict[str, Any]:
    loaded = load_model(model, "float32", "cpu")
    found: dict[str, Any] = {}
    print(f"\n{f'reply of {LONG_REPLY} tokens':<26}{'passes':>34}{'read':>8}{'CPU-s':>8}")
    for name, parks in (("cache kept", True), ("read again", False)):
        engine = LocalEngine(loaded, slots=2, columns=COLUMNS, park_turns=parks)
        first = Request("e", tuple(range(4, 40)), Limit(TURN_TOKENS), {0: 1}, one_by_one=True)
        engine.submit([first])
        written: Sequence[Any] = ()
        while not written:
            written = engine.step().written
        ids = (*first.prompt_token_ids, *written[0].turn.token_ids.tolist(), *[5] * LONG_REPLY)
        passes = count_passes(engine)
        engine.submit([Request("e#0#1", ids, Limit(1), {0: 2}, one_by_one=True, continues="e")])
        began = time.process_time()
        read = engine.step().read_tokens
        cpu = time.process_time() - began
        found[name] = {"passes": dict(passes), "tokens_read": read, "cpu_seconds": cpu}
        print(f"{name:<26}{dict(passes)!s:>34}{read:>8}{cpu:>8.2f}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a smaller model; saves nothing")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    here = str(Path(__file__).parent)
    sys.path.insert(0, here)
    os.environ["PYTHONPATH"] = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[COUNTS] = str(Path(folder) / "counts.json")
        model = make_model(Path(folder), QUICK_SIZE if args.quick else SIZE)
        result = {"slow_tool": slow_tool(model, 1 if args.quick else args.rounds),
                  "long_reply": long_reply(model)}  # fmt: skip
    if not args.quick:
        save("multi_turn", {"episodes": EPISODES, "turns": TURNS, "tool_seconds": TOOL_SECONDS,
                            "width": SIZE[0], "layers": SIZE[1], **result})  # fmt: skip


if __name__ == "__main__":
    main()
