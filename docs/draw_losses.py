"""Draws what each loss makes of a token: the factor of its gradient, by ratio and advantage sign.

python docs/draw_losses.py        needs torch
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scalerl.algorithm.episode import Episode, Turn
from scalerl.algorithm.losses import LOSSES
from scalerl.algorithm.packing import pack
from scalerl.report.theme import drawing, new_figure, save

HERE = Path(__file__).parent
#: Loss, its constants as in the paper's recipes, range of ratios that shows them.
PICTURES: list[tuple[str, dict[str, Any], tuple[float, float]]] = [
    ("cispo", {"ratio_cap": 5.0}, (0.1, 20.0)),
    ("grpo", {"clip_low": 0.2, "clip_high": 0.2}, (0.5, 2.0)),
    ("dapo", {"clip_low": 0.2, "clip_high": 0.26}, (0.5, 2.0)),
    ("gspo", {"clip_low": 3e-3, "clip_high": 5e-3}, (0.99, 1.01)),
    ("dr-grpo", {"clip_low": 0.2, "clip_high": 0.2}, (0.5, 2.0)),
    ("reinforce", {}, (0.1, 20.0)),
    ("sequence-tis", {"ratio_cap": 2.0}, (0.1, 20.0)),
]


def factor(loss: str, constants: dict[str, Any], ratios: np.ndarray, sign: float) -> np.ndarray:
    """-d loss / d log pi_train of a one-token answer, for each ratio."""
    gen = -1.0 - np.log(ratios)
    episodes = [Episode.from_turn([0], Turn.from_lists([1], logprobs=[g])) for g in gen]
    batch = pack(episodes, np.arange(len(ratios)), torch.float64)
    batch = replace(batch, advantages_N=torch.full_like(batch.advantages_N, sign))
    logprobs_N = torch.full_like(batch.logprobs_N, -1.0).requires_grad_()
    LOSSES[loss](logprobs_N, batch, **constants).loss_N.sum().backward()
    assert logprobs_N.grad is not None
    return -logprobs_N.grad[batch.written_N].numpy()


def draw(loss: str, constants: dict[str, Any], span: tuple[float, float]) -> Path:
    ratios = np.geomspace(*span, 2001)
    path = HERE / "images" / f"loss-{loss}.svg"
    with drawing("light") as theme:
        fig, ax = new_figure((5.6, 2.9))
        for i, (sign, label, dash) in enumerate(
            [(1.0, "right answer (A = +1)", "-"), (-1.0, "wrong answer (A = −1)", "--")]
        ):
            y = factor(loss, constants, ratios, sign)
            ax.plot(ratios, y, dash, color=theme.colour(i), lw=2, label=label)
        ax.axvline(1.0, color=theme.colour(7), lw=0.8, ls=":")
        ax.set_xscale("log")
        edges = [1.0 - constants.get("clip_low", 0.0), 1.0, 1.0 + constants.get("clip_high", 0.0)]
        wide = [0.2, 0.5, 1.0, 2.0, 5.0, 10.0]
        ticks = sorted({*span, *(edges if "clip_low" in constants else wide)})
        ax.set_xticks(ticks, [f"{v:g}" for v in ticks])
        ax.minorticks_off()
        name = "sequence ratio" if loss in ("gspo", "sequence-tis") else "ratio"
        ax.set_xlabel(f"{name}: trainer's probability / generator's")
        ax.set_ylabel("factor of ∇ log π")
        shown = ", ".join(f"{k} {v:g}" for k, v in constants.items())
        ax.set_title(f"{loss}   {shown}", loc="left", fontsize=10, fontweight="bold")
        ax.legend(frameon=False, fontsize=8)
        save(fig, path)
    return path


if __name__ == "__main__":
    for picture in PICTURES:
        print(draw(*picture).name)
