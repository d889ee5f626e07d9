"""A recipe with one thing changed: the paper's leave-one-out runs and its forward ablations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from scalerl.recipe.diff import diff
from scalerl.recipe.length import InterruptionLength
from scalerl.recipe.schema import Recipe

Variant = tuple[str, Recipe]


def leave_one_out(recipe: Recipe) -> Iterator[Variant]:
    """The paper's leave-one-out variants (the names of its Fig. 15, and loo-uniform): each puts
    one ingredient of ScaleRL back to what it replaced. Variants that this recipe already is are
    left out.

    >>> [name for name, _ in leave_one_out(Recipe.load("scalerl"))]
    ['loo-plan', 'loo-lp', 'loo-batch', 'loo-8op',
     'loo-fp32', 'loo-savg', 'loo-dapo', 'loo-uniform']
    """
    return _each(
        recipe,
        {
            "loo-plan": {"advantage.normalisation": "prompt"},
            "loo-lp": _length_penalty(recipe),
            "loo-batch": {"filter.zero_variance": "keep"},
            "loo-8op": {"schedule.name": "off-policy"},
            "loo-fp32": _no_fp32(recipe),
            "loo-savg": {"loss.aggregation": "sample"},
            "loo-dapo": {"loss.name": "dapo"},
            "loo-uniform": {"curriculum.name": "uniform"},
        },
    )


def forward(base: Recipe) -> Iterator[Variant]:
    """The paper's single-axis ablations of its baseline. Variants that this recipe already is are
    left out.

    >>> names = [name for name, _ in forward(Recipe.load("base"))]
    >>> names[:4], "forward-fp32" in names
    (['forward-off-policy-1', 'forward-pipeline-8', 'forward-pipeline-4', 'forward-cispo'], True)
    """
    fp32 = {"precision.trainer_head": "fp32", "precision.generator_head": "fp32"}
    return _each(
        base,
        {
            "forward-off-policy-1": {"schedule.name": "off-policy", "schedule.k": 1},
            "forward-off-policy-8": {"schedule.name": "off-policy", "schedule.k": 8},
            "forward-pipeline-8": {"schedule.name": "pipeline", "schedule.k": 8},
            "forward-pipeline-4": {"schedule.name": "pipeline", "schedule.k": 4},
            "forward-cispo": {"loss.name": "cispo", "loss.ratio_cap": 5.0},
            "forward-cispo-4": {"loss.name": "cispo", "loss.ratio_cap": 4.0},
            "forward-cispo-8": {"loss.name": "cispo", "loss.ratio_cap": 8.0},
            "forward-gspo": {"loss.name": "gspo", "loss.clip_low": 3e-3, "loss.clip_high": 5e-3},
            "forward-gspo-4e-3": {
                "loss.name": "gspo",
                "loss.clip_low": 3e-3,
                "loss.clip_high": 4e-3,
            },
            "forward-fp32": fp32,
            "forward-zero-variance": {"filter.zero_variance": "drop"},
            "forward-no-positive-resampling": {"curriculum.name": "no-positive-resampling"},
            "forward-sample-average": {"loss.aggregation": "sample"},
            "forward-prompt-average": {"loss.aggregation": "prompt"},
            "forward-token-average": {"loss.aggregation": "token"},
            "forward-prompt-norm": {"advantage.normalisation": "prompt"},
            "forward-batch-norm": {"advantage.normalisation": "batch"},
            "forward-no-norm": {"advantage.normalisation": "none"},
        },
    )


def _length_penalty(recipe: Recipe) -> dict[str, Any]:
    """The length penalty of Eq. 9 over the tokens that interruption reserves for the answer: 14k
    and 2k in the paper, in proportion for other lengths."""
    length = recipe.length
    if not isinstance(length, InterruptionLength):
        return {}
    return {
        "length.control": "penalty",
        "length.max_tokens": length.longest,
        "length.penalty_max": length.longest,
        "length.penalty_cache": length.answer_tokens,
    }


def _no_fp32(recipe: Recipe) -> dict[str, Any]:
    """Heads in the model's dtype, or with emulated bf16 rounding if that is float32: otherwise the
    variant would be the recipe itself."""
    if recipe.precision.trainer_head != "fp32":
        return {}
    head = "bf16-emulated" if recipe.model.dtype == "float32" else "model"
    return {"precision.trainer_head": head, "precision.generator_head": head}


def _each(recipe: Recipe, variants: dict[str, dict[str, Any]]) -> Iterator[Variant]:
    for name, changes in variants.items():
        variant = recipe.replace({**changes, "name": f"{recipe.name}-{name}"})
        # Otherwise the recipe itself would run a second time under another name.
        if diff(recipe, variant):
            yield name, variant
