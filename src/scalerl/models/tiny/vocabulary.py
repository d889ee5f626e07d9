"""A large vocabulary for a tiny model, derived without training: what a head of real size does to
numerical errors, at the cost of a tiny model.

Filler tokens `<f0001>`, `<f0002>` ... get small random embeddings and head rows, so that their
logits lie around 0 ± 2. The head rows of the real tokens move along one direction u of the final
hidden space, fitted by least squares such that h·u lifts the log-sum-exp of their logits to 20 in
every hidden state h of the teacher's lessons:

    logit of a real token     h·w + h·u       the same shift for all of them: softmax ignores it
    logit of a filler token   N(0, 1)         together they have about 1e-4 of the probability

Logits near 20 are of the size that large models have. BF16 rounds them in steps of 1/8, at the tiny
model's own size of 10 in steps of 1/16. `level` is the dose: above 20, all tokens move together
along a direction v with h·v near 1, which softmax ignores whatever the fit leaves over; so the
policy stays exactly as it is, and the rounding errors grow in proportion.
"""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from scalerl.models.load import load_model_fast, model_path
from scalerl.models.tiny.teachers import TEACHERS
from scalerl.models.tiny.tokenizer import encode
from scalerl.models.tiny.warmstart import CARD

#: Log-sum-exp of the real tokens' logits above those of the fillers, in nats: about the largest
#: logit where the model is sure.
LEVEL = 20
#: Standard deviation of a filler token's logit, in nats: nearly all are within ± 2.
SPREAD = 1.0
#: Standard deviation of the embeddings of filler tokens (GPT-2's at its start).
EMBEDDING_STD = 0.02
#: Lessons with the hidden states that u is fitted on: some 8,000 states for 64 coefficients.
LESSONS = 200
EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
WEIGHTS = "model.safetensors"


@dataclass(frozen=True, slots=True)
class LargeVocabulary:
    """Everything the resulting weights depend on."""

    #: Name or directory of a tiny model with a card.
    source: str
    #: Number of tokens, those of the source included.
    size: int
    seed: int = 0
    #: Log-sum-exp of the real tokens' logits, in nats.
    level: int = LEVEL

    @property
    def command(self) -> str:
        """How to make it again.

        >>> LargeVocabulary("tiny", 8192, level=40).command
        'scalerl warmstart --from tiny --vocabulary 8192 --logits 40 --seed 0'
        """
        level = "" if self.level == LEVEL else f" --logits {self.level}"
        words = f"--from {self.source} --vocabulary {self.size}{level} --seed {self.seed}"
        return f"scalerl warmstart {words}"


def widen_vocabulary(out: Path, settings: LargeVocabulary) -> dict[str, Any]:
    """Make the model, save it in Hugging Face layout, and return its card (also saved, CARD)."""
    from safetensors.torch import load_file, save_file

    source = Path(model_path(settings.source))
    if not (source / CARD).exists():
        raise InputError(
            f"{settings.source} is no tiny model with a {CARD}: give tiny, tiny-noisy, or a "
            "directory that scalerl warmstart has made"
        )
    card = json.loads((source / CARD).read_text(encoding="utf-8"))
    weights = load_file(source / WEIGHTS)
    before = len(weights[HEAD])
    if settings.size <= before:
        raise InputError(
            f"--vocabulary {settings.size}: {settings.source} has {before} tokens already; give "
            "more"
        )
    if settings.level < LEVEL:
        raise InputError(
            f"--logits {settings.level}: give {LEVEL} or more; below it the filler tokens would "
            "have probability"
        )
    hidden_ND = _hidden_states(source, card["settings"]["teacher"], settings.seed)
    weights, logits = _widened(weights, hidden_ND, settings)
    out.mkdir(parents=True, exist_ok=True)
    for name in ("generation_config.json", "tokenizer_config.json"):
        if (source / name).exists():
            shutil.copyfile(source / name, out / name)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    _write(out / "config.json", config | {"vocab_size": settings.size}, indent=2)
    _write(out / "tokenizer.json", _tokenizer(source, before, settings.size))
    save_file(weights, out / WEIGHTS, metadata={"format": "pt"})
    card |= {
        "command": settings.command,
        "from": card["command"],
        "vocabulary": settings.size,
        "parameters": sum(w.numel() for w in weights.values()),
        "logits": logits,
    }
    _write(out / CARD, card, indent=2)  # last: a directory with a card is complete
    return card


def _hidden_states(source: Path, teacher_name: str, seed: int) -> Any:
    """Final hidden states, in float64, that predict what the teacher wrote."""
    import torch

    from scalerl.models.head import final_hidden

    model = load_model_fast(str(source), "float32", "cpu")
    teacher, chance = TEACHERS[teacher_name], random.Random(f"vocabulary|{seed}")
    found = []
    for _ in range(LESSONS):
        ids, learned = list[int](), list[bool]()
        for text, is_learned in teacher.lesson(chance, False):
            part = encode(text, teacher.vocabulary)
            ids += part
            learned += [is_learned] * len(part)
        with torch.inference_mode():
            hidden_TD = final_hidden(model, torch.tensor([ids]))[0]
        found.append(hidden_TD[:-1][torch.tensor(learned[1:])])
    return torch.cat(found).double()


def _widened(
    weights: dict[str, Any], hidden_ND: Any, settings: LargeVocabulary
) -> tuple[dict[str, Any], dict[str, float]]:
    """The weights with filler rows and shifted real rows, and what the logits then are."""
    import torch

    head_VD = weights[HEAD].double()
    before = torch.logsumexp(hidden_ND @ head_VD.t(), dim=1)
    u_D = _direction(hidden_ND, LEVEL - before)
    v_D = _direction(hidden_ND, torch.full_like(before, settings.level - LEVEL))
    real_VD = head_VD + u_D + v_D
    chance = torch.Generator().manual_seed(settings.seed)
    more, width = settings.size - len(head_VD), head_VD.shape[1]
    norm = hidden_ND.norm(dim=1).mean()
    filler_VD = torch.randn(more, width, generator=chance, dtype=torch.float64) * SPREAD / norm
    filler_VD += v_D
    embedding_VD = torch.randn(more, width, generator=chance) * EMBEDDING_STD
    real, filler = hidden_ND @ real_VD.t(), hidden_ND @ filler_VD.t()
    total = torch.logsumexp(torch.cat([real, filler], dim=1), dim=1)
    largest = real.amax(dim=1)
    logits = {
        "states": len(hidden_ND),
        "largest": largest.mean(),
        "largest_std": largest.std(),
        "filler": filler.mean(),
        "filler_std": filler.std(dim=1).mean(),
        "filler_mass": (torch.logsumexp(filler, dim=1) - total).exp().mean(),
    }
    return (
        weights
        | {
            HEAD: torch.cat([real_VD, filler_VD]).float(),
            EMBEDDING: torch.cat([weights[EMBEDDING], embedding_VD]),
        },
        {name: float(f"{float(value):.4g}") for name, value in logits.items()},
    )


def _direction(hidden_ND: Any, target_N: Any) -> Any:
    """The d with h·d nearest to a target for each hidden state, by least squares."""
    import torch

    gram = hidden_ND.t() @ hidden_ND
    # The ridge keeps d finite where the states span fewer dimensions than the model has.
    ridge = 1e-6 * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    return torch.linalg.solve(gram + ridge, hidden_ND.t() @ target_N)


def _tokenizer(source: Path, before: int, size: int) -> dict[str, Any]:
    """tokenizer.json with the filler tokens. They are words of the vocabulary and not added tokens:
    no text is ever split into them, and only a token that was sampled is decoded as one."""
    found: dict[str, Any] = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    fillers = {f"<f{i - before + 1:04d}>": i for i in range(before, size)}
    found["model"]["vocab"] |= fillers
    return found


def _write(path: Path, content: dict[str, Any], indent: int | None = None) -> None:
    separators = (",", ":") if indent is None else None
    text = json.dumps(content, indent=indent, separators=separators, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
