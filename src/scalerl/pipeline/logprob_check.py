"""The log-prob check: before training, generator and trainer must agree on the same tokens.

Losses are computed from the ratio of the trainer's probability to the generator's. If the two
disagree while they have the same weights, every ratio is wrong from the first step on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from scalerl.algorithm.episode import Episode, Group, Turn
from scalerl.engine.interface import Request
from scalerl.errors import PipelineError
from scalerl.pipeline.setup import RunSetup
from scalerl.recipe import Recipe

#: Largest mean |difference of log-probs| per token, in nats: beyond it ratios mean nothing.
MAX_GAP = 0.02
#: Rollouts that are compared.
ROLLOUTS = 4
#: Name of the request for them.
REQUEST_ID = "logprob-check"


def request(setup: RunSetup) -> Request:
    """The request to a generator: a few turns behind one held-out prompt, without the noise that
    training rollouts may have."""
    ids = _prompt_ids(setup)
    sampling = replace(setup.sampling, noise=0.0)
    return Request(REQUEST_ID, tuple(ids), setup.control, {i: i for i in range(ROLLOUTS)}, sampling)


def group(setup: RunSetup, turns: Sequence[Turn]) -> Group:
    """The turns as the group that the trainer computes log-probs of."""
    ids = _prompt_ids(setup)
    written = [Episode.from_turn(ids, turn).with_reward(0.0, None) for turn in turns if len(turn)]
    return Group(REQUEST_ID, tuple(written))


def _prompt_ids(setup: RunSetup) -> list[int]:
    prompt = setup.validation[0]
    if not setup.plays(prompt):
        ids: list[int] = setup.tokens_of(prompt).tolist()
        return ids
    # What the environment will add is not known before its reset. The question alone may be empty,
    # and any text will do.
    messages = setup.messages_of(prompt) or ({"role": "user", "content": "?"},)
    found = setup.episode_rules.opening_ids(messages, ())
    return found[: setup.recipe.sampling.max_prompt_tokens]


def _apart_on_purpose(recipe: Recipe) -> bool:
    """Whether the two heads compute differently because the recipe says so: a gap is then what the
    run measures."""
    heads = recipe.precision
    one_sided = heads.one_sided and heads.generator_head != heads.trainer_head
    return one_sided or recipe.forces.generator_split > 1


def check_mismatch(setup: RunSetup, gaps: Sequence[float]) -> str:
    """A line about the gap; raises PipelineError, with the likely cause, if it is too large."""
    if not gaps:
        return "log-prob gap before training: no tokens to compare"
    mean, most = float(np.mean(gaps)), float(np.max(gaps))
    recipe = setup.recipe
    apart = setup.experts and recipe.precision.routing == "own"
    if mean <= MAX_GAP:
        how = " (a mixture of experts: each side chooses them by itself)" if apart else ""
        return f"log-prob gap before training: mean {mean:.2g}, max {most:.2g}{how}"
    if np.isfinite(mean) and _apart_on_purpose(recipe):
        return (
            f"log-prob gap before training: mean {mean:.2g}, max {most:.2g}, beyond {MAX_GAP} as "
            "the recipe asks (precision.one_sided, [forces])"
        )
    heads = (recipe.precision.generator_head, recipe.precision.trainer_head)
    # Likely causes, the most likely first.
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
        f"would mean nothing. Likely cause: {suspects[0]}"
    )
