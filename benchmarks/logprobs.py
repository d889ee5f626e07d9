"""Chunked log-probs against the unchunked ones: peak memory at 8k tokens × 150k words, and time at
sizes where the whole matrix fits. One thread.

python benchmarks/logprobs.py
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from record import save
from scalerl.models.head import Head
from scalerl.models.logprobs import CPU_CHUNK, KEEP, chunked_logprobs, plain_logprobs

LONG = {"tokens": 8192, "words": 151_936, "width": 64}
#: tokens, words, width: of our tiny models, of Qwen2.5 0.5B, of a Llama 1B, of a Llama 8B.
SIZES = [
    (4096, 4096, 128),
    (2048, 32_000, 256),
    (512, 151_936, 896),
    (512, 32_000, 2048),
    (512, 32_000, 4096),
]
CHUNKS = [(128, 2048), (256, 2048), (512, 2048), (512, 4096), (1024, 8192)]


def problem(
    tokens: int, words: int, width: int, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, Head, torch.Tensor]:
    torch.manual_seed(0)
    module = torch.nn.Linear(width, words, bias=False, dtype=dtype)
    hidden = torch.randn(tokens, width, dtype=dtype, requires_grad=True)
    return hidden, Head(module, "fp32"), torch.randint(words, (tokens,))


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def memory_here(dtype: str) -> None:
    """Runs in a process of its own, since a peak never falls. Prints extra bytes; the gradients
    (weight and hidden states) are among them."""
    torch.set_num_threads(1)
    warm, warm_head, warm_target = problem(64, 4096, LONG["width"])
    chunked_logprobs(warm, warm_head, warm_target)[0].sum().backward()
    hidden, head, target = problem(**LONG, dtype=getattr(torch, dtype))
    before = resident()
    start = time.perf_counter()
    logprobs, _ = chunked_logprobs(hidden, head, target)
    forward = peak()
    logprobs.sum().backward()
    seconds = time.perf_counter() - start
    print(json.dumps({"forward": forward - before, "both": peak() - before, "seconds": seconds}))


def memory(dtype: str) -> dict[str, object]:
    run = subprocess.run(
        [sys.executable, __file__, dtype], capture_output=True, text=True, check=True
    )
    found = json.loads(run.stdout)
    matrix = 4 * LONG["tokens"] * LONG["words"]
    shares = {name: found[name] / matrix for name in ("forward", "both")}
    print(f"{dtype} weight, {LONG['tokens']} tokens × {LONG['words']} words × {LONG['width']}: "
          f"extra {found['both'] / 2**20:.0f} MiB, {shares['both']:.2%} of the matrix "
          f"(forward {shares['forward']:.2%}), {found['seconds']:.1f} s")  # fmt: skip
    return {**LONG, "weight": dtype, "matrix_bytes": matrix, "extra_bytes": found, "share": shares}


def seconds(*works: Callable[[], object], repeats: int = 3) -> list[dict[str, float]]:
    """Best and median of each, taken in turns: other load comes and goes."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(repeats):
        for work, taken in zip(works, times, strict=True):
            start = time.perf_counter()
            work()
            taken.append(time.perf_counter() - start)
    return [{"best": min(t), "median": statistics.median(t), "repeats": repeats} for t in times]


def speed(tokens: int, words: int, width: int) -> dict[str, object]:
    """Forward and backward, entropy included on both sides."""
    hidden, head, target = problem(tokens, words, width)
    upstream = torch.randn(tokens)

    def whole() -> None:
        logprobs, _ = plain_logprobs(head.logits(hidden), target)
        (logprobs * upstream).sum().backward()

    def chunked(keep: int = KEEP) -> None:
        logprobs, _ = chunked_logprobs(hidden, head, target, keep=keep)
        (logprobs * upstream).sum().backward()

    plain, ours, keeping_nothing = seconds(whole, chunked, lambda: chunked(keep=0))
    ratio, ratio_0 = (t["median"] / plain["median"] for t in (ours, keeping_nothing))
    print(f"{tokens} tokens × {words} words × {width}: chunked {ours['median']:.2f} s, "
          f"unchunked {plain['median']:.2f} s: {ratio:.2f} times "
          f"({ratio_0:.2f} with every block computed again)")  # fmt: skip
    return {"tokens": tokens, "words": words, "width": width,
            "chunked": ours, "chunked_keeping_nothing": keeping_nothing, "unchunked": plain,
            "ratio": ratio, "ratio_keeping_nothing": ratio_0}  # fmt: skip


def chunk_sizes() -> list[dict[str, object]]:
    """Which block is fastest here, at two widths."""
    rows: list[dict[str, object]] = []
    for width in (256, 2048):
        hidden, head, target = problem(1024, 32_000, width)

        def run(chunk: tuple[int, int], hidden: torch.Tensor = hidden, head: Head = head,
                target: torch.Tensor = target) -> None:  # fmt: skip
            chunked_logprobs(hidden, head, target, chunk=chunk, keep=0)[0].sum().backward()

        works = [lambda chunk=chunk, run=run: run(chunk) for chunk in CHUNKS]
        for chunk, taken in zip(CHUNKS, seconds(*works), strict=True):
            print(f"width {width}, blocks of {chunk[0]} × {chunk[1]}: {taken['median']:.2f} s")
            rows.append({"width": width, "chunk": chunk, **taken})
    return rows


def main() -> None:
    torch.set_num_threads(1)
    result = {
        "torch": torch.__version__,
        "threads": 1,
        "default_chunk": CPU_CHUNK,
        "default_keep": KEEP,
        "memory": [memory("float32"), memory("bfloat16")],
        "speed": [speed(*size) for size in SIZES],
        "chunks": chunk_sizes(),
    }
    save("logprobs", result)


if __name__ == "__main__":
    memory_here(sys.argv[1]) if len(sys.argv) > 1 else main()
