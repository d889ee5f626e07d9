"""A real pretrained model through the public command: SmolLM2-135M-Instruct for three steps.

python benchmarks/smollm2.py           all weights; saves smollm2.json
python benchmarks/smollm2.py --lora    a LoRA adapter, 20 steps; saves smollm2_lora.json
python benchmarks/smollm2.py --costs   of that file, only the costs; its run stays as it was

Makes the model if it is not there (examples/smollm2.py), runs `scalerl train scalerl
examples/smollm2.toml`, and checks that numbers are finite, that generator and trainer agree to
1e-4 per token, and that the checkpoint is an ordinary Hugging Face chat model that generates.
About five minutes on two CPU cores.

With --lora the checkpoint is an adapter that PEFT loads: PEFT's log-probs of the probe must be
those of the exported merged model, to 1e-4. The generator must have proved its adapter at the first
publish and at every fifth. Costs of a publish and the optimiser's memory are those of
benchmarks/lora.py, for the adapter and for all weights. Half an hour.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from record import RESULTS, save

ROOT = Path(__file__).parent.parent
MAX_GAP = 1e-4
#: With --lora: 16 rollouts a step as in examples/smollm2.toml, but of two prompts, so that more of
#: them have answers of both kinds; and a proof at every fifth publish.
LORA: dict[str, float] = {
    "adapter.rank": 8, "optimiser.lr": 1e-5, "batch.prompts": 2, "batch.generations": 8,
    "placement.proof_every": 5, "filter.empty_steps": 0, "budget.steps": 20,
}  # fmt: skip
ENV = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--costs", action="store_true")
    arguments = parser.parse_args()
    lora = arguments.lora
    busy = os.getloadavg()[0]
    started = time.monotonic()
    made = subprocess.run(
        [sys.executable, ROOT / "examples" / "smollm2.py"], stdout=subprocess.PIPE, text=True
    )
    if made.returncode:
        return made.returncode
    model = Path(made.stdout.strip())
    making = time.monotonic() - started
    if arguments.costs:
        before = json.loads((RESULTS / "smollm2_lora.json").read_text())
        found = {"result": before["result"] | {"costs": costs(model)}}
        save("smollm2_lora", found | {"problems": before["problems"]}, options="--lora")
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        started = time.monotonic()
        text = train(model, run, LORA if lora else {})
        training = time.monotonic() - started
        found = measured(run, text)
        found |= adapter(run, model) if lora else checkpoint(newest(run), model)
    mark = json.loads((model / "made_by_scalerl.json").read_text())
    found |= {
        "gguf_sha256": mark["sha256"],
        "seconds_to_make": making,
        "seconds_of_run": training,
        "load_of_the_machine_before": busy,
    }
    problems = wrong(found) + (wrong_adapter(found) if lora else wrong_weights(found))
    show(found)
    save("smollm2_lora" if lora else "smollm2", {"result": found, "problems": problems})
    for problem in problems:
        print(f"wrong: {problem}", file=sys.stderr)
    return 1 if problems else 0


def train(model: Path, run: Path, changes: Mapping[str, object]) -> str:
    """What the command says, shown as it comes."""
    command = [sys.executable, "-m", "scalerl", "train", "scalerl"]
    layers = [str(ROOT / "examples" / "smollm2.toml"), f"model.path={model}"]
    layers += [f"{key}={value}" for key, value in changes.items()]
    process = subprocess.Popen(
        [*command, *layers, "--out", str(run)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | ENV,
    )
    lines = []
    for line in process.stdout or ():
        print(f"  {line}", end="", flush=True)
        lines.append(line)
    if process.wait():
        sys.exit(process.returncode)
    return "".join(lines)


def measured(run: Path, text: str) -> dict[str, Any]:
    steps, evals = (
        [json.loads(line) for line in (run / f"{name}.jsonl").read_text().splitlines()]
        for name in ("steps", "evals")
    )
    gate = re.search(r"log-prob gap before training: mean (\S+), max (\S+)", text)
    fresh = [s for s in steps if s["staleness"]["max"] == 0 and s["tokens"]]
    last = steps[-1]
    return {
        "steps": len(steps),
        "finite": all(math.isfinite(s[k]) for s in steps for k in ("loss", "grad_norm", "reward")),
        "gate_gap_mean": float(gate[1]) if gate else None,
        "gate_gap_max": float(gate[2]) if gate else None,
        # Of steps whose tokens all were the trainer's own version; there may be none.
        "on_policy_gap_mean": max((s["logprob_gap"]["mean"] for s in fresh), default=None),
        "loss": [s["loss"] for s in steps],
        "grad_norm": [s["grad_norm"] for s in steps],
        "pass_rate_in_training": [s["pass_rate"] for s in steps],
        "prompts_without_variance": [s["zero_variance"] for s in steps],
        "staleness_max": [s["staleness"]["max"] for s in steps],
        "rollouts_of_mixed_versions": [s["mixed_versions"] for s in steps],
        "interrupted": [s["interrupted"] for s in steps],
        "truncated": [s["truncated"] for s in steps],
        "validation_pass_rate": [e["pass_rate"] for e in evals],
        "train_seconds_per_step": [s["seconds"] for s in steps],
        "publish_seconds": [s["publish_seconds"] for s in steps],
        "trained_tokens_per_second": last["compute"]["trained_tokens"]
        / sum(s["seconds"] for s in steps),
        "generated_tokens": last["compute"]["generated_tokens"],
    }


def newest(run: Path) -> Path:
    return max((run / "checkpoints").glob("step_*"), key=lambda p: int(p.name.split("_")[1]))


def checkpoint(folder: Path, start: Path) -> dict[str, Any]:
    """What Transformers alone makes of the checkpoint."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=False,
    )
    torch.set_num_threads(1)
    answer = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False
    )
    before = dict(AutoModelForCausalLM.from_pretrained(start).named_parameters())
    moved = [not torch.equal(p, before[name]) for name, p in model.named_parameters()]
    return {
        "checkpoint_class": type(model).__name__,
        "checkpoint_parameters": sum(p.numel() for p in model.parameters()),
        "checkpoint_says": tokenizer.decode(answer[0, ids.shape[1] :], skip_special_tokens=True),
        "share_of_tensors_changed": sum(moved) / len(moved),
    }


def adapter(run: Path, start: Path) -> dict[str, Any]:
    """What PEFT makes of the checkpoint, and what a publish costs beside one of all weights."""
    import peft
    import torch
    from transformers import AutoModelForCausalLM

    from scalerl.models.adapter import probe_tokens

    torch.set_num_threads(1)
    folder, merged = newest(run), run / "merged"
    export = [sys.executable, "-m", "scalerl", "export", str(run), "--merge", "--to", str(merged)]
    subprocess.run(export, check=True, env=os.environ | ENV)
    base = AutoModelForCausalLM.from_pretrained(start).eval()
    ids = torch.tensor([probe_tokens(base.config.vocab_size, 128)])

    @torch.no_grad()
    def logprobs(model: Any) -> torch.Tensor:
        logits = model(input_ids=ids).logits[0, :-1]
        return torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None])[:, 0]

    before = logprobs(base)
    theirs = logprobs(peft.PeftModel.from_pretrained(base, folder).eval())
    ours = logprobs(AutoModelForCausalLM.from_pretrained(merged).eval())
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    proofs = [e["why"] for e in events if "has proved" in (e.get("why") or "")]
    return {
        "proofs": proofs,
        "checkpoint_bytes": sum(p.stat().st_size for p in folder.glob("*.safetensors")),
        "gap_to_peft": float((ours - theirs).abs().max()),
        "moved_from_the_base": float((ours - before).abs().max()),
        "costs": costs(start),
    }


def costs(model: Path) -> dict[str, dict[str, float]]:
    """What a publish and the optimiser take, with the adapter and for all weights."""
    import torch

    import lora
    from scalerl import Recipe

    torch.set_num_threads(1)
    full = Recipe.load("scalerl", ROOT / "examples" / "smollm2.toml").replace(
        {"model.path": str(model)}
    )
    return {"adapter": lora.costs(full.replace(LORA)), "all weights": lora.costs(full)}


def wrong_adapter(found: dict[str, Any]) -> list[str]:
    out = []
    wanted = 1 + (found["steps"] - 1) // int(LORA["placement.proof_every"])
    if len(found["proofs"]) < wanted:
        out.append(f"{len(found['proofs'])} proofs instead of {wanted}")
    if not found["gap_to_peft"] < MAX_GAP < found["moved_from_the_base"]:
        out.append("the merged model is not the adapter in PEFT, or has not moved")
    return out


def wrong(found: dict[str, Any]) -> list[str]:
    gaps = {k: found[k] for k in ("gate_gap_mean", "gate_gap_max")}
    if found["on_policy_gap_mean"] is not None:
        gaps["on_policy_gap_mean"] = found["on_policy_gap_mean"]
    out = [f"{k} is {v}" for k, v in gaps.items() if v is None or not v < MAX_GAP]
    if not found["finite"]:
        out.append("a loss, gradient or reward is not finite")
    if not any(n > 0 for n in found["grad_norm"]):
        out.append("no step had a gradient: rewards never varied")
    return out


def wrong_weights(found: dict[str, Any]) -> list[str]:
    out = []
    if found["share_of_tensors_changed"] < 1:
        out.append(f"only {found['share_of_tensors_changed']:.0%} of the tensors were trained")
    if "Paris" not in found["checkpoint_says"]:
        out.append(f"the checkpoint says {found['checkpoint_says']!r}")
    return out


def show(found: dict[str, Any]) -> None:
    def cell(value: Any) -> str:
        if isinstance(value, list):
            return "  ".join(map(cell, value))
        return f"{value:.3g}" if isinstance(value, float) else str(value)

    print()
    for name, value in found.items():
        print(f"{name.replace('_', ' '):<28}{cell(value)[:80]}")


if __name__ == "__main__":
    sys.exit(main())
