"""The warm start: a tiny Llama-shaped model taught the format of its task by one of the teachers.

Two lessons: the first mostly clean, so that the format sits; the second only as the teacher mostly
is, so that the model goes wrong at a known rate. Held-out questions are never shown.

A seed gives the first weights and all lessons. The last weights may still differ between machines:
the noisy checkpoint, made again elsewhere, came out up to 0.38 apart in a weight, about as good.
That is why checkpoints are shipped.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from scalerl.models.tiny.teachers import TEACHERS
from scalerl.models.tiny.tokenizer import POSITIONS, encode, make_tokenizer

#: What a warm start leaves beside the model: how it was made and where it starts.
CARD = "warmstart.json"
IGNORED = -100
#: Width of an attention head.
HEAD = 32
#: Rows that are padded to one length.
MICRO_BATCH = 16


@dataclass(frozen=True, slots=True)
class WarmStart:
    """Everything the resulting weights depend on."""

    #: A name of TEACHERS.
    teacher: str = "forgetful"
    seed: int = 0
    #: Optimiser steps of the two lessons.
    steps: tuple[int, int] = (700, 250)
    learning_rates: tuple[float, float] = (3e-3, 2e-3)
    #: Share of the first lesson's steps that are clean.
    clean_share: float = 0.6
    warmup_steps: int = 30
    batch: int = 64
    layers: int = 2
    width: int = 64
    heads: int = 2
    feed_forward: int = 256
    init_std: float = 0.08

    def __post_init__(self) -> None:
        if min(self.steps) < 0 or sum(self.steps) < 1 or self.batch < 1:
            raise InputError(
                f"warm start of {self.steps} steps with batch {self.batch}: give at least one each"
            )
        if self.teacher not in TEACHERS:
            raise InputError(f"no teacher is named {self.teacher}: give {' or '.join(TEACHERS)}")
        if self.layers < 1 or self.width < HEAD or self.width % HEAD:
            raise InputError(
                f"{self.layers} layers of width {self.width}: give 1 layer or more, and a width "
                f"that is a multiple of {HEAD}"
            )

    @staticmethod
    def with_size(
        teacher: str, seed: int, steps: tuple[int, int], layers: int, width: int
    ) -> WarmStart:
        """A larger or smaller sister of the default: heads as wide, the rest in proportion."""
        return WarmStart(
            teacher, seed, steps, layers=layers, width=width, heads=max(width // HEAD, 1),
            feed_forward=4 * width,
        )  # fmt: skip

    @property
    def command(self) -> str:
        """How to make it again.

        >>> WarmStart(seed=3, steps=(9, 1)).command
        'scalerl warmstart --teacher forgetful --seed 3 --steps 9 1'
        """
        steps = "" if self.steps == WarmStart().steps else " --steps {} {}".format(*self.steps)
        usual = (self.layers, self.width) == (WarmStart().layers, WarmStart().width)
        size = "" if usual else f" --size {self.layers} {self.width}"
        return f"scalerl warmstart --teacher {self.teacher} --seed {self.seed}{steps}{size}"


def make_model(settings: WarmStart, tokenizer: Any) -> Any:
    """The untrained model, its weights given by the seed."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(settings.seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=settings.width,
            intermediate_size=settings.feed_forward,
            num_hidden_layers=settings.layers,
            num_attention_heads=settings.heads,
            num_key_value_heads=settings.heads,
            max_position_embeddings=POSITIONS,
            initializer_range=settings.init_std,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    ).float()


def teach(
    model: Any,
    tokenizer: Any,
    settings: WarmStart,
    report: Callable[[float], None] = lambda fraction: None,
) -> list[float]:
    """Train in place by both lessons; returns the loss of every step."""
    import torch

    source = random.Random(f"warm start|{settings.seed}")
    total, losses = sum(settings.steps), list[float]()
    model.train()
    for lesson, (steps, rate) in enumerate(
        zip(settings.steps, settings.learning_rates, strict=True)
    ):
        optimiser = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95))
        for step in range(steps):
            clean = lesson == 0 and step < settings.clean_share * steps
            rise = min(1.0, (step + 1) / max(settings.warmup_steps, 1))
            for group in optimiser.param_groups:
                group["lr"] = rate * rise * (1.0 - step / steps)
            lessons = _lessons(settings, source, clean)
            optimiser.zero_grad(set_to_none=True)
            losses.append(_backward(model, lessons, tokenizer.pad_token_id))
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            report(len(losses) / total)
    model.eval()
    return losses


def _lessons(
    settings: WarmStart, source: random.Random, clean: bool
) -> list[tuple[list[int], list[int]]]:
    """Token ids and labels; only what the teacher chose to write is learned."""
    teacher = TEACHERS[settings.teacher]
    rows = []
    for _ in range(settings.batch):
        ids, labels = list[int](), list[int]()
        for text, learned in teacher.lesson(source, clean):
            part = encode(text, teacher.vocabulary)
            ids += part
            labels += part if learned else [IGNORED] * len(part)
        rows.append((ids, labels))
    return rows


def _backward(model: Any, rows: list[tuple[list[int], list[int]]], pad: int) -> float:
    """Gradients of the mean loss per learned token. Rows of like length go together: padded to
    the longest trace, three quarters of the work would be padding."""
    import torch

    n_learned = sum(label != IGNORED for _, labels in rows for label in labels[1:])
    rows = sorted(rows, key=lambda row: len(row[0]))
    total = 0.0
    for start in range(0, len(rows), MICRO_BATCH):
        part = rows[start : start + MICRO_BATCH]
        longest = len(part[-1][0])
        ids = torch.tensor([row + [pad] * (longest - len(row)) for row, _ in part])
        labels = torch.tensor([row + [IGNORED] * (longest - len(row)) for _, row in part])
        # Padding is on the right, where causal attention never looks: no mask is needed.
        logits = model(input_ids=ids).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED, reduction="sum"
        )
        torch.autograd.backward(loss / n_learned)
        total += float(loss.detach())
    return total / n_learned


def warm_start(
    out: Path,
    settings: WarmStart | None = None,
    report: Callable[[float], None] = lambda fraction: None,
    rollouts: int = 400,
) -> dict[str, Any]:
    """Make the model, save it in Hugging Face layout, and return its card (also saved, CARD)."""
    settings = settings or WarmStart()
    teacher = TEACHERS[settings.teacher]
    tokenizer = make_tokenizer(teacher.vocabulary)
    model = make_model(settings, tokenizer)
    # The last 3 % of the progress are the two measurements below.
    losses = teach(model, tokenizer, settings, lambda fraction: report(0.97 * fraction))
    sampled, greedy = (
        teacher.pass_rate(model, tokenizer, rollouts, greedy=greedy) for greedy in (False, True)
    )
    last = losses[-min(50, len(losses)) :]
    card = {
        "command": settings.command,
        "settings": asdict(settings),
        "noise": asdict(teacher),
        "parameters": sum(p.numel() for p in model.parameters()),
        "loss": {"first": round(losses[0], 4), "last": round(sum(last) / len(last), 4)},
        "pass_rate": {"sampled": sampled, "greedy": greedy},
        "rollouts": rollouts,
        **teacher.limits,
    }
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    _name_for_all_versions(out / "tokenizer_config.json")
    _compact(out / "tokenizer.json")
    (out / "model.safetensors").chmod(0o644)
    (out / CARD).write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
    report(1.0)
    return card


def _name_for_all_versions(path: Path) -> None:
    """transformers 5 writes a class name that version 4 does not know; both know the old one."""
    config = json.loads(path.read_text(encoding="utf-8"))
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    config.pop("backend", None)
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _compact(path: Path) -> None:
    """Write a JSON file on one line: tokens one a line make hundreds of lines."""
    content = json.loads(path.read_text(encoding="utf-8"))
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
