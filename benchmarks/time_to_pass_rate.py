"""Time to a pass rate from the model `tiny-noisy`: TRL's GRPOTrainer against `scalerl train`.

    python benchmarks/time_to_pass_rate.py [--target 0.5] [--minutes 12]

Same model, prompts, batch (32 x 16), loss (CISPO), learning rate and optimiser, same two cores. Of
both, the clock stops when the pass rate of three training batches in a row averages `target`: they
are fresh prompts in the first epoch, so this is the policy's own pass rate. TRL has no forced
interruption: its rollouts end at 70 tokens. It gets one thread or two, whichever is said.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from record import save

WINDOW = 3


def reached(rates: list[float], target: float) -> bool:
    return len(rates) >= WINDOW and sum(rates[-WINDOW:]) / WINDOW >= target


def ours(target: float, minutes: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        run = subprocess.Popen(
            [sys.executable, "-m", "scalerl", "train", "scalerl", "tiny-noisy",
             "validation.every=1000", "validation.prompts=4",
             "--minutes", str(minutes), "--out", str(out), "--json"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        rates: list[float] = []
        steps: list[dict[str, Any]] = []
        while run.poll() is None and not reached(rates, target):
            time.sleep(0.2)
            if (out / "steps.jsonl").exists():
                whole = (out / "steps.jsonl").read_text().rpartition("\n")[0]
                steps = [json.loads(line) for line in whole.splitlines()]
                rates = [s["pass_rate"] for s in steps]
        run.terminate()
        run.wait()
    until = next(i for i in range(len(rates)) if reached(rates[: i + 1], target))
    return {"seconds": steps[until]["ledger"]["device_seconds"] / 2, "steps": until + 1,
            "rates": rates[: until + 1]}  # fmt: skip


def theirs(target: float, minutes: float) -> dict[str, Any]:
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback

    from scalerl.models.load import load_model, load_tokenizer, model_path
    from scalerl.tasks.running_sums import RunningSums, Sum, score_answer
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    tokenizer = load_tokenizer(model_path("tiny-noisy"))
    tokenizer.padding_side = "left"
    model = load_model(model_path("tiny-noisy"), "float32", "cpu")
    prompts = [str(p.question) for p in RunningSums().train_prompts(0)]
    rates: list[float] = []

    def reward(prompts: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        texts = [tokenizer.decode(ids, skip_special_tokens=True) for ids in completion_ids]
        right = [score_answer(Sum.parse(p), t)[0] for p, t in zip(prompts, texts, strict=True)]
        rates.append(sum(right) / len(right))
        return [1.0 if r else -1.0 for r in right]

    class Clock(TrainerCallback):
        def __init__(self) -> None:
            self.marks: list[float] = []

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.start = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.marks.append(time.perf_counter() - self.start)
            if reached(rates, target) or self.marks[-1] > 60 * minutes:
                control.should_training_stop = True

    clock = Clock()
    arguments = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, fp16=False, report_to=[],
        gradient_checkpointing=False, save_strategy="no", disable_tqdm=True, logging_steps=1000,
        per_device_train_batch_size=512, gradient_accumulation_steps=1, steps_per_generation=1,
        num_iterations=1, num_generations=16, max_completion_length=70, temperature=1.0,
        loss_type="cispo", epsilon_high=5.0, cast_lm_head_to_fp32=True, scale_rewards="batch",
        beta=0.0, learning_rate=1e-4, lr_scheduler_type="constant_with_warmup", warmup_steps=10,
        adam_beta1=0.9, adam_beta2=0.95, adam_epsilon=1e-15, weight_decay=0.01, max_grad_norm=1.0,
        max_steps=400, seed=0,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=model, args=arguments, reward_funcs=reward, processing_class=tokenizer,
        train_dataset=Dataset.from_list([{"prompt": p} for p in prompts]), callbacks=[clock],
    )  # fmt: skip
    trainer.train()
    return {"seconds": clock.marks[-1], "steps": len(clock.marks), "rates": rates,
            "reached": reached(rates, target)}  # fmt: skip


def child(who: str, threads: int, target: float, minutes: float) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, "--child", who, "--target", str(target), "--minutes",
         str(minutes)],
        env=os.environ | {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1",
                          "TRL_EXPERIMENTAL_SILENCE": "1", "TOKENIZERS_PARALLELISM": "false"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{who} failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", type=float, default=0.5)
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--threads", type=int, default=2, help="of TRL")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps((ours if args.child == "ours" else theirs)(args.target, args.minutes)))
        return
    found = {
        "scalerl train": child("ours", 1, args.target, args.minutes),
        f"TRL, {args.threads} threads": child("theirs", args.threads, args.target, args.minutes),
    }
    mine = found["scalerl train"]["seconds"]
    for side, r in found.items():
        ended = "" if r.get("reached", True) else "  (not reached: ended here)"
        each = r["seconds"] / r["steps"]
        print(f"{side:<18}{r['seconds']:>8.1f} s {r['steps']:>4} steps {each:>6.2f} s a step "
              f"{r['seconds'] / mine:>6.1f} x ours{ended}")  # fmt: skip
    save("time_to_pass_rate", {"target": args.target, "sides": found})


if __name__ == "__main__":
    main()
