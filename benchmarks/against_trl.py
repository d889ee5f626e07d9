"""Seconds per optimiser step against TRL's GRPOTrainer, on one machine, in turns.

python benchmarks/against_trl.py [--rounds 3] [--cases fixed ragged smollm2]

Three sizes of work, CISPO, fp32 head, temperature 1. The first two with a Qwen2 of 4 layers x 128:

fixed    16 prompts x 8 rollouts of exactly 32 tokens
ragged   32 prompts x 16 rollouts of up to 96 tokens; the stop token is 1 word of 128 and ends about
         half of them before that
smollm2  4 prompts x 4 rollouts of exactly 64 tokens, by SmolLM2-135M (made by examples/smollm2.py):
         both sides spend their time in the same products

Run it on an otherwise idle machine: other load hurts two threads most, and so flatters us. The load
before it began is in the result.

TRL runs with one and with two threads; its best is what we are compared with. Ours runs in one
process with one thread (rollouts are written, scored and learnt in turn, nothing overlaps), and as
`scalerl train` does it, pipeline-3 with a generator and a trainer of one thread each. Steps of all
follow each other in processes of their own; the first of each is left out. `limit`: the step's FLOP
(benchmarks/workload.py) at the speed of a square product on one core. `cpu` is CPU time, which a
busy machine disturbs less; of `scalerl train` only the time itself is known.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import workload as w
from record import save

WORDS, STOP = 128, 1
CASES: dict[str, dict[str, Any]] = {
    "fixed": {"prompts": 16, "generations": 8, "completion": 32, "ragged": False},
    "ragged": {"prompts": 32, "generations": 16, "completion": 96, "ragged": True},
    "smollm2": {"prompts": 4, "generations": 4, "completion": 64, "ragged": False, "steps": 1,
                "smollm2": True},
}  # fmt: skip
PROMPT = 9


def smollm2() -> str:
    """Where it is; made if it is not there."""
    script = Path(__file__).parent.parent / "examples" / "smollm2.py"
    made = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, text=True, check=True)
    return made.stdout.strip()


def model_of(case: dict[str, Any]) -> Any:
    """Random weights (but for SmolLM2): all words, the stop token among them, are about equally
    likely."""
    from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

    ragged = case["ragged"]
    if case.get("smollm2"):
        return AutoModelForCausalLM.from_pretrained(smollm2(), dtype=torch.float32)

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=WORDS, hidden_size=128, intermediate_size=352, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
        tie_word_embeddings=False, bos_token_id=2, eos_token_id=STOP if ragged else None,
        pad_token_id=0,
    )  # fmt: skip
    return Qwen2ForCausalLM(config)


def ours(case: dict[str, Any], steps: int) -> list[tuple[float, float, float]]:
    """(seconds, CPU seconds, completion tokens) of each step."""
    from scalerl.algorithm.length import Limit
    from scalerl.engine.local import LocalEngine
    from scalerl.models.head import use_head_precision

    model = model_of(case)
    use_head_precision(model, "fp32")
    trainer = w.learner(model_of(case), lr=1e-3)
    rows = case["prompts"] * case["generations"]
    engine = LocalEngine(model.eval(), slots=rows, columns=PROMPT + case["completion"])
    stop = (STOP,) if case["ragged"] else ()
    control = Limit(case["completion"], stop)
    out = []
    for step in range(steps):
        tokens = 0

        def one(step: int = step) -> None:
            nonlocal tokens
            asked = w.requests(
                case["prompts"], case["generations"], PROMPT, 0, WORDS, step, control
            )
            written = w.write(engine, asked)
            w.learn(trainer, w.groups(asked, written, step))
            engine.load(trainer.weights(), trainer.version)
            tokens = sum(len(x.rollout) for x in written)

        out.append((*w.timed(one), float(tokens)))
    return out


def tokenizer_of(case: dict[str, Any], ragged: bool) -> Any:
    """One token a character (but for SmolLM2)."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if case.get("smollm2"):
        found = AutoTokenizer.from_pretrained(smollm2(), padding_side="left")
        found.pad_token = found.pad_token or found.eos_token
        if not ragged:  # nothing ends an answer
            found.eos_token = found.chat_template = None
        return found

    names = ["<pad>", "<eos>", "<bos>", "<unk>"]
    names += [chr(i) for i in range(32, 32 + WORDS - len(names))]
    inner = Tokenizer(models.WordLevel({n: i for i, n in enumerate(names)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    inner.decoder = decoders.Fuse()
    ends = {"eos_token": "<eos>"} if ragged else {}
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", bos_token="<bos>", unk_token="<unk>",
        padding_side="left", **ends,
    )  # fmt: skip


def chance(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
    """A reward that needs no thought."""
    return [float(torch.randn(())) for _ in completions]


def workplace(folder: Path, case: dict[str, Any]) -> dict[str, Any]:
    """Model and prompts of a case in a folder, and what to change in the default recipe for it."""
    model = model_of(case)
    if not case["ragged"]:
        model.config.eos_token_id = model.generation_config.eos_token_id = None
    model.save_pretrained(folder / "model")
    tokenizer_of(case, case["ragged"]).save_pretrained(folder / "model")
    rows = (json.dumps({"prompt": f"count:{i:03d}"[:PROMPT], "answer": ""}) for i in range(1000))
    (folder / "rows.jsonl").write_text("\n".join(rows))
    return {
        "model.path": folder / "model", "task.name": "function:against_trl:chance",
        "task.dataset": folder / "rows.jsonl", "length.control": "none",
        "length.max_tokens": case["completion"], "batch.prompts": case["prompts"],
        "batch.generations": case["generations"], "sampling.max_prompt_tokens": PROMPT,
        "validation.prompts": 2, "validation.k": 1, "validation.every": 1000,
        "filter.truncated": "keep", "curriculum.name": "uniform", "optimiser.lr": 1e-3,
    }  # fmt: skip


def pipeline(case: dict[str, Any], steps: int) -> list[tuple[float, float, float]]:
    """The same work by `scalerl train`; CPU time is not known apart."""
    folder = Path(tempfile.mkdtemp())
    changes = workplace(folder, case)
    paths = filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])
    subprocess.run(
        [sys.executable, "-m", "scalerl", "train", "scalerl", "tiny",
         *(f"{k}={v}" for k, v in changes.items()), "--steps", str(steps + 3),
         "--out", str(folder / "run"), "--json"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    lines = [json.loads(x) for x in (folder / "run" / "steps.jsonl").read_text().splitlines()]
    clock = [x["ledger"]["device_seconds"] / 2 for x in lines[2:]]  # the pipe is full by then
    written = [x["length"]["mean"] * case["prompts"] * case["generations"] for x in lines[3:]]
    return [(b - a, b - a, n) for a, b, n in zip(clock, clock[1:], written, strict=False)]


def theirs(case: dict[str, Any], steps: int) -> list[tuple[float, float, float]]:
    from datasets import Dataset
    from transformers import TrainerCallback

    from trl import GRPOConfig, GRPOTrainer

    tokenizer = tokenizer_of(case, ragged=True)
    data = Dataset.from_list([{"prompt": f"count: {i % 90 + 10}"} for i in range(2048)])
    tokens: list[float] = []

    def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
        tokens.append(float(sum(len(c) for c in completion_ids)))
        return [float(torch.randn(())) for _ in completion_ids]

    class Clock(TrainerCallback):
        def __init__(self) -> None:
            self.marks = [(time.perf_counter(), time.process_time())]

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.marks.append((time.perf_counter(), time.process_time()))

    rows = case["prompts"] * case["generations"]
    options = {} if case["ragged"] else {"min_new_tokens": case["completion"]}
    arguments = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, fp16=False, report_to=[],
        gradient_checkpointing=False, save_strategy="no", disable_tqdm=True, logging_steps=1000,
        per_device_train_batch_size=rows, gradient_accumulation_steps=1, steps_per_generation=1,
        num_iterations=1, num_generations=case["generations"], generation_kwargs=options,
        max_completion_length=case["completion"], temperature=1.0, loss_type="cispo",
        epsilon_high=5.0, cast_lm_head_to_fp32=True, scale_rewards="batch", beta=0.0,
        learning_rate=1e-3, lr_scheduler_type="constant", max_grad_norm=1.0, max_steps=steps,
        seed=0,
    )  # fmt: skip
    clock = Clock()
    trainer = GRPOTrainer(
        model=model_of(case), args=arguments, reward_funcs=reward, train_dataset=data,
        processing_class=tokenizer, callbacks=[clock],
    )  # fmt: skip
    trainer.train()
    pairs = zip(clock.marks, clock.marks[1:], strict=False)
    spans = [(b[0] - a[0], b[1] - a[1]) for a, b in pairs]
    return [(*s, t) for s, t in zip(spans, tokens, strict=False)]


def child(who: str, case: str, threads: int, steps: int) -> list[list[float]]:
    """The steps of one side in a process of its own, without the first."""
    done = subprocess.run(
        [sys.executable, __file__, "--child", who, case, str(threads), str(steps + 1)],
        env=os.environ | {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1",
                          "TRL_EXPERIMENTAL_SILENCE": "1", "TOKENIZERS_PARALLELISM": "false"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{who} failed:\n{done.stderr[-2000:]}")
    found: list[list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found[1:]


def flop(case: dict[str, Any], tokens: float) -> float:
    """Of a step with this many completion tokens, at their mean length."""
    model = model_of(case)
    rows = case["prompts"] * case["generations"]
    lengths = [(PROMPT, round(tokens / rows))] * rows
    return w.generator_flop(model, lengths) + w.trainer_flop(model, lengths)


def summary(steps: list[list[float]]) -> dict[str, float]:
    wall, cpu, tokens = zip(*steps, strict=True)
    return {"seconds": statistics.median(wall), "best": min(wall),
            "cpu_seconds": statistics.median(cpu), "best_cpu": min(cpu),
            "completion_tokens": statistics.mean(tokens), "steps": len(steps)}  # fmt: skip


def compare(name: str, rounds: int, steps: int) -> dict[str, Any]:
    case = CASES[name]
    sides = {"TRL, 1 thread": ("theirs", 1), "TRL, 2 threads": ("theirs", 2),
             "scalerl, 1 thread": ("ours", 1), "scalerl train": ("pipeline", 1)}  # fmt: skip
    steps = case.get("steps", steps)
    found: dict[str, list[list[float]]] = {side: [] for side in sides}
    peaks = [w.sgemm()]
    for _ in range(rounds):
        for side, (who, threads) in sides.items():
            found[side] += child(who, name, threads, steps)
            peaks.append(w.sgemm())
    result: dict[str, Any] = {side: summary(steps) for side, steps in found.items()}
    mine = result["scalerl, 1 thread"]
    best = min(result[f"TRL, {n}"]["seconds"] for n in ("1 thread", "2 threads"))
    limit = flop(case, mine["completion_tokens"]) / max(peaks)
    print(f"\n{name}: {case['prompts']} x {case['generations']}, up to {case['completion']} tokens")
    print(f"{'':<20}{'s/step':>8}{'best':>8}{'cpu':>8}{'tokens':>8}{'TRL 1/it':>10}{'TRL/it':>8}")
    for side, s in result.items():
        one, times = result["TRL, 1 thread"]["seconds"] / s["seconds"], best / s["seconds"]
        print(f"{side:<20}{s['seconds']:>8.2f}{s['best']:>8.2f}{s['best_cpu']:>8.2f}"
              f"{s['completion_tokens']:>8.0f}{one:>10.2f}{times:>8.2f}")  # fmt: skip
    print(f"{'limit of one core':<20}{limit:>8.2f}", flush=True)
    return result | {"limit_seconds": limit, "peak_flop_per_second": max(peaks),
                     "trl_best_seconds": best}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4, help="steps of a round")
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        who, case, threads, steps = arguments.child
        torch.set_num_threads(int(threads))
        sides = {"ours": ours, "theirs": theirs, "pipeline": pipeline}
        print(json.dumps(sides[who](CASES[case], int(steps))))
        return
    torch.set_num_threads(1)
    save("against_trl", {c: compare(c, arguments.rounds, arguments.steps) for c in arguments.cases})


if __name__ == "__main__":
    main()
