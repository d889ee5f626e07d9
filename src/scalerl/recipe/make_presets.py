"""Write presets/*.toml: every preset complete, from what it changes in ScaleRL.

python -m scalerl.recipe.make_presets            write
python -m scalerl.recipe.make_presets --check    exit 1 if a file is out of date

`scalerl` is the defaults of the schema. Each other preset is a small difference below, with the
mark of every number it changes and the fields about which the paper is silent. `tiny.toml` and
`tiny-noisy.toml` are overlays and kept by hand.
"""

from __future__ import annotations

import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalerl.recipe.problems import fields_of
from scalerl.recipe.schema import IDENTITY, Recipe
from scalerl.recipe.toml import write

PAPER = "arXiv 2510.13786"
FOLDER = Path(__file__).parent / "presets"

#: What the paper does not print about the recipes it compares ScaleRL with.
SILENT = (
    "advantage.normalisation",
    "curriculum.name",
    "curriculum.threshold",
    "length.control",
    "length.phrase",
    "length.think_tokens_min",
    "length.think_tokens_max",
    "length.answer_tokens",
    "loss.kl_coefficient",
    "filter.truncated",
    "budget.gpu_hours",
)


@dataclass(frozen=True)
class Preset:
    """What a preset changes: dotted key → (value, mark)."""

    summary: str
    source: str
    changes: dict[str, tuple[Any, str]] = field(default_factory=dict)
    silent: tuple[str, ...] = ()
    note: str = ""


OFF_POLICY_8 = {"schedule.name": ("off-policy", "paper"), "schedule.k": (8, "paper")}
MODEL_HEADS = {
    "precision.trainer_head": ("model", "not stated: FP32 is not mentioned"),
    "precision.generator_head": ("model", "not stated: FP32 is not mentioned"),
}
DAPO = {
    "loss.name": ("dapo", "paper"),
    "loss.clip_low": (0.2, "paper"),
    "loss.clip_high": (0.26, "paper"),
}
BATCH_1280 = {"batch.prompts": (80, "paper: 1,280 completions")}
RIVAL = (
    "As the ScaleRL authors re-implemented it in their own set-up, not as the lab ran it. "
    "What they do not print (advantage normalisation, curriculum, length control, KL, truncated "
    "rollouts, budget) is kept as in scalerl and marked so."
)
TABLE_1 = f"ScaleRL, {PAPER}, Table 1"
BUDGET = {"budget.gpu_hours": (16000.0, "paper: length of the leave-one-out runs")}


def of_shape(prompts: int, generations: int) -> dict[str, tuple[Any, str]]:
    shape = f"derived: {prompts} x {generations} = {prompts * generations} completions"
    mark = f"paper: {generations} generations per prompt"
    return {"batch.prompts": (prompts, shape), "batch.generations": (generations, mark)}


PRESETS: dict[str, Preset] = {
    "scalerl": Preset(
        "ScaleRL: CISPO, pipeline-8, FP32 heads, batch 48 x 16",
        f"ScaleRL, {PAPER}, sections 3-4 and App. A",
        BUDGET,
        note="The paper does not name its 8B model, nor print temperature, betas, gradient clip, "
        "the CISPO cap of the final runs, or the population, ddof and epsilon of the batch std.",
    ),
    "base": Preset(
        "The paper's baseline, before any of its improvements",
        f"ScaleRL, {PAPER}, section 3",
        {
            "loss.name": ("dapo", "paper: asymmetric clip"),
            "loss.clip_low": (0.2, "not stated: as in the DAPO runs"),
            "loss.clip_high": (0.26, "not stated: as in the DAPO runs"),
            "loss.aggregation": ("sample", "paper"),
            "advantage.normalisation": ("prompt", "paper"),
            "filter.zero_variance": ("keep", "paper"),
            "curriculum.name": ("uniform", "paper"),
            "precision.trainer_head": ("model", "paper"),
            "precision.generator_head": ("model", "paper"),
            "schedule.name": ("off-policy", "not stated: the paper compares 1, 8 and pipeline-8"),
            "schedule.k": (8, "not stated: the paper compares 1, 8 and pipeline-8"),
            "budget.gpu_hours": (4000.0, "paper: 3.5-4k, it destabilises beyond"),
        },
        note="A GRPO-like loss with an asymmetric clip and no KL. Its upper clip and its schedule "
        "are not printed as such.",
    ),
    "deepseek-grpo": Preset(
        "DeepSeek's GRPO as compared in the paper",
        f"ScaleRL, {PAPER}, App. A.16",
        {
            "loss.name": ("grpo", "paper"),
            "loss.clip_low": (0.2, "paper"),
            "loss.clip_high": (0.2, "paper"),
            "loss.aggregation": ("sample", "paper"),
            "filter.zero_variance": ("keep", "not stated: no filter is mentioned"),
            **OFF_POLICY_8,
            **MODEL_HEADS,
        },
        SILENT,
        RIVAL,
    ),
    "qwen-dapo": Preset(
        "Qwen-2.5's DAPO as compared in the paper",
        f"ScaleRL, {PAPER}, App. A.16",
        {**DAPO, **OFF_POLICY_8, **MODEL_HEADS, **BATCH_1280},
        SILENT,
        RIVAL + " Zero-variance prompts are dropped, not refilled as in the DAPO paper.",
    ),
    "magistral": Preset(
        "Magistral as compared in the paper: DAPO on PipelineRL",
        f"ScaleRL, {PAPER}, App. A.16",
        {
            **DAPO,
            "schedule.k": (8, "not stated: as in scalerl"),
            **MODEL_HEADS,
            "batch.prompts": (80, "not stated: read as in DAPO"),
        },
        SILENT,
        RIVAL,
    ),
    "minimax-m1": Preset(
        "MiniMax-M1 as compared in the paper: CISPO off-policy",
        f"ScaleRL, {PAPER}, App. A.16",
        {
            "schedule.name": ("off-policy", "paper"),
            "schedule.k": (8, "not stated: 8 is likely"),
            "loss.ratio_cap": (5.0, "not stated: as in scalerl"),
            **BATCH_1280,
        },
        SILENT,
        RIVAL,
    ),
    "scalerl-32k": Preset(
        "ScaleRL with 32,768 tokens to think",
        TABLE_1,
        {
            "length.think_tokens_min": (30720, "derived: 2,048 below the largest, as in scalerl"),
            "length.think_tokens_max": (32768, "paper: with the answer, the 34k of App. A.15"),
            "budget.gpu_hours": (32000.0, "not stated: the figures show it past 30k"),
        },
    ),
    "scalerl-bs512": Preset(
        "ScaleRL with batches of 512 completions",
        TABLE_1,
        {"batch.prompts": (32, "derived: 512 / 16")},
    ),
    "scalerl-bs2048": Preset(
        "ScaleRL with batches of 2,048: the 100,000 GPU-hour run",
        TABLE_1,
        {
            "batch.prompts": (128, "derived: 2,048 / 16"),
            "budget.gpu_hours": (100000.0, "paper"),
            "budget.steps": (7400, "paper"),
        },
        note="The paper once says 2,048 prompts; its steps and GPU-hours fit only 2,048 "
        "completions.",
    ),
    "scalerl-8gen": Preset(
        "ScaleRL with 8 generations per prompt, 96 prompts", TABLE_1, of_shape(96, 8)
    ),
    "scalerl-24gen": Preset(
        "ScaleRL with 24 generations per prompt, 32 prompts", TABLE_1, of_shape(32, 24)
    ),
    "scalerl-32gen": Preset(
        "ScaleRL with 32 generations per prompt, 24 prompts", TABLE_1, of_shape(24, 32)
    ),
    "scalerl-scout": Preset(
        "ScaleRL on Llama-4 Scout, a 17B x 16 mixture of experts",
        TABLE_1,
        {
            "model.path": (
                "meta-llama/Llama-4-Scout-17B-16E-Instruct",
                "paper: Scout 17Bx16; not stated: which checkpoint",
            ),
            "budget.gpu_hours": (50000.0, "paper"),
            "budget.steps": (7100, "paper"),
        },
        note="Whether its batch and hardware differ from the 8B runs is not stated.",
    ),
}


def text(name: str) -> str:
    """The file of a preset: a header that cites the source, then every field with its mark."""
    preset = PRESETS[name]
    changes = {**PRESETS["scalerl"].changes, **preset.changes}
    recipe = Recipe(name=name, description=preset.summary, source=preset.source).replace(
        {path: value for path, (value, _) in changes.items()}
    )
    marks = {}
    for path, info in fields_of(recipe).items():
        extra = info.json_schema_extra
        if path not in IDENTITY and isinstance(extra, dict):
            marks[path] = str(extra["source"])
    marks |= {path: mark for path, (_, mark) in PRESETS["scalerl"].changes.items()}
    marks |= dict.fromkeys(preset.silent, "not stated: kept as in scalerl")
    marks |= {path: mark for path, (_, mark) in preset.changes.items()}
    header = [preset.summary, f"Source: {preset.source}.", preset.note, LEGEND]
    lines = [line for part in header if part for line in textwrap.wrap(part, 96)]
    return "".join(f"# {line}\n" for line in lines) + "\n" + write(recipe.to_dict(), marks)


LEGEND = (
    "After each number, where it comes from: paper; derived from it; community (other projects' "
    "code); not stated (the paper is silent); ours. Unset fields belong to other choices."
)


def main(arguments: list[str]) -> int:
    """Write the presets, or with --check say which are out of date."""
    stale = []
    for name in PRESETS:
        path = FOLDER / f"{name}.toml"
        wanted = text(name)
        if not path.exists() or path.read_text(encoding="utf-8") != wanted:
            stale.append(name)
            if "--check" not in arguments:
                path.write_text(wanted, encoding="utf-8")
    print(f"out of date: {', '.join(stale)}" if stale else "up to date")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
