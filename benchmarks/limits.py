"""How near engine and trainer come to what one core can do, and how their cost grows.

python benchmarks/limits.py [--quick]

FLOP/s are counted as benchmarks/workload.py says, and stand beside those of a square matrix product
of this size measured before and after each run. One thread. Times are CPU time (on an idle machine
the time itself), the best of several.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import workload as w
from record import save
from scalerl.engine.local import LocalEngine

WORDS = 44
#: The default run: 32 prompts x 16 rollouts, 2 layers x 64, prompts of ~21 and answers of ~49.
DEFAULT = {"width": 64, "rows": 512, "prompt": 21, "completion": 49}


def model_of(width: int) -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=WORDS, hidden_size=width, intermediate_size=4 * width, head_dim=32,
            num_hidden_layers=2, num_attention_heads=width // 32, num_key_value_heads=width // 32,
            max_position_embeddings=1024, initializer_range=0.08, bos_token_id=None,
            eos_token_id=None, pad_token_id=None,
        )
    )  # fmt: skip


def measure(width: int, rows: int, prompt: int, completion: int, repeats: int) -> dict[str, Any]:
    """Both sides on `rows` rollouts, 16 to a prompt."""
    model = model_of(width).eval()
    asked = w.requests(rows // 16, 16, prompt, completion, WORDS)
    trainer = w.learner(model_of(width))
    peaks, writing, learning = [w.sgemm()], [], []
    for _ in range(repeats + 1):
        engine = LocalEngine(model, slots=rows, columns=prompt + completion)
        written: list[Any] = []
        writing.append(w.timed(lambda e=engine, out=written: out.extend(w.write(e, asked)))[1])
        peaks.append(w.sgemm())
        batch = w.groups(asked, written)
        reports: list[Any] = []
        learning.append(w.timed(lambda b=batch, out=reports: out.append(w.learn(trainer, b)))[1])
        peaks.append(w.sgemm())
    lengths = [(prompt, completion)] * rows
    peak, computed = max(peaks), reports[-1].forward_tokens
    best_write, best_learn = min(writing[1:]), min(learning[1:])
    generated = w.generator_flop(model, lengths) / best_write
    counted = w.trainer_flop(model, lengths) / best_learn
    really = w.trainer_flop(model, lengths, computed) / best_learn
    return {
        "width": width, "rows": rows, "prompt": prompt, "completion": completion,
        "parameters": w.parameters(model), "peak": peak,
        "generator": {"seconds": best_write, "tokens_per_second": rows * completion / best_write,
                      "flop_per_second": generated, "share": generated / peak},
        "trainer": {"seconds": best_learn,
                    "tokens_per_second": rows * (prompt + completion) / best_learn,
                    "flop_per_second": counted, "share": counted / peak,
                    "computed_share": really / peak, "computed_tokens": computed},
    }  # fmt: skip


def show(row: dict[str, Any]) -> None:
    g, t = row["generator"], row["trainer"]
    cells = [
        f"{row['width']:>5} {row['rows']:>5} {row['prompt']:>4}+{row['completion']:<4}",
        f"{row['peak'] / 1e9:>6.0f} |",
        f"{g['tokens_per_second']:>8.0f}{g['flop_per_second'] / 1e9:>6.1f}{g['share']:>6.0%} |",
        f"{t['tokens_per_second']:>8.0f}{t['flop_per_second'] / 1e9:>6.1f}{t['share']:>6.0%}",
        f"{t['computed_share']:>6.0%}",
    ]
    print("".join(cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="less than a minute")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    repeats = 1 if quick else 5
    changes: list[dict[str, int]] = [{}, {"width": 128}, {"rows": 128}]
    if not quick:
        changes += [{"width": 256}, {"rows": 64}, {"rows": 256}, {"rows": 1024}]
        changes += [{"completion": 100}, {"completion": 200}, {"completion": 400}]
    print(f"{'':>22} GFLOP/s |{'generator':>20} |{'trainer':>26}")
    print("width  rows  tokens   peak |   tok/s   GF  peak |   tok/s   GF  peak  real")
    rows = []
    for change in changes:
        rows.append(measure(**(DEFAULT | change), repeats=repeats))
        show(rows[-1])
    print("peak: share of the peak; real: counting only tokens that went through the model")
    save("limits", {"quick": quick, "default": rows[0], "growth": rows[1:]})


if __name__ == "__main__":
    main()
