"""The mismatch gate: the same tokens scored by both sides before anything is learnt.

Ratios of the two sides' probabilities are what the losses are made of. If the two disagree on a
policy that is the same, every ratio is wrong from the first step on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scalerl.algorithm.rollout import Group, Rollout
from scalerl.engine.interface import Request
from scalerl.errors import PipelineError
from scalerl.pipeline.setup import RunSetup

#: Mean gap between the two sides' log-probs beyond which ratios mean nothing.
MAX_GAP = 0.02
ROLLOUTS = 4
ID = "gate"


def request(setup: RunSetup) -> Request:
    """A few rollouts of one held-out prompt."""
    ids = tuple(setup.tokens_of(setup.validation[0]).tolist())
    return Request(ID, ids, setup.control, {i: i for i in range(ROLLOUTS)}, setup.sampling)


def group(setup: RunSetup, rollouts: Sequence[Rollout]) -> Group:
    """What the trainer is asked to score."""
    written = tuple(r.with_reward(0.0, None) for r in rollouts if len(r))
    return Group(ID, setup.tokens_of(setup.validation[0]), written)


def check_mismatch(setup: RunSetup, gaps: Sequence[float]) -> str:
    """A line about the gap; raises where it would poison the ratios, naming the likely culprit."""
    if not gaps:
        return "log-prob gap before training: no tokens to compare"
    mean, most = float(np.mean(gaps)), float(np.max(gaps))
    recipe = setup.recipe
    apart = setup.experts and recipe.precision.routing == "own"
    if mean <= MAX_GAP:
        how = " (a mixture of experts: each side chooses them by itself)" if apart else ""
        return f"log-prob gap before training: mean {mean:.2g}, max {most:.2g}{how}"
    heads = (recipe.precision.generator_head, recipe.precision.trainer_head)
    suspects = []
    if apart:
        suspects.append(
            "tokens that the two sides send to different experts of the mixture: set "
            "precision.routing=replay"
        )
    if heads[0] != heads[1] or "fp32" not in heads or recipe.model.dtype != "float32":
        suspects.append(
            f"the heads' precision ({heads[0]} and {heads[1]} over {recipe.model.dtype}): "
            "set both to fp32"
        )
    if recipe.sampling.top_p < 1 or recipe.sampling.top_k > 0:
        suspects.append(
            "sampling from a truncated distribution (sampling.top_p, sampling.top_k), which the "
            "trainer does not renormalise: switch both off"
        )
    if recipe.sampling.temperature != 1:
        suspects.append(f"a temperature of {recipe.sampling.temperature:g} on one side only")
    suspects.append("different weights or a different chat template on the two sides")
    raise PipelineError(
        f"generator and trainer disagree by {mean:.3f} per token, more than {MAX_GAP}: ratios "
        f"would mean nothing. Likely culprit: {suspects[0]}"
    )
