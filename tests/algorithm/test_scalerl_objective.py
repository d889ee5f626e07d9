"""The ScaleRL objective of the paper's section 3.1, worked with a pencil.

Three prompts, rewards +1 / -1, two to three rollouts of one to three tokens.

    prompt a   y1 reward +1, 2 tokens    y2 reward -1, 1 token
    prompt b   y1 reward +1, 1 token     y2 reward +1, 2 tokens      no variance: dropped
    prompt c   y1 reward +1, 1 token     y2 reward -1, 3 tokens, two forced    y3 reward -1, 1 token

Centred advantages   a: +1, -1        c: mean is -1/3, so +4/3, -2/3, -2/3
Std over the kept    1, -1, 4/3, -2/3, -2/3: mean 0, squares 1 + 1 + 16/9 + 4/9 + 4/9 = 14/3,
                     A_std = sqrt(14/15) = 0.966092
Normalised           a: +1.035098, -1.035098     c: +1.380131, -0.690066, -0.690066

Tokens in the loss   a: 2 + 1 = 3     c: 1 + 1 + 1 = 3 (forced tokens are out)
Weight of a token    1 / (2 prompts x 3 tokens) = 1/6, for all of them

rho = pi_train / pi_gen, capped at 5:
    a y1: .5/.25 = 2 -> 2      .6/.1 = 6 -> 5          a y2: .2/.4 = .5 -> .5
    c y1: .3/.3 = 1 -> 1       c y2: .4/.2 = 2 -> 2    c y3: .9/.9 = 1 -> 1

loss = 1/6 sum of  - min(rho, 5) A ln pi_train
    a y1  -2 x 1.035098 x ln .5 = +1.434951     -5 x 1.035098 x ln .6 = +2.643774
    a y2  -.5 x -1.035098 x ln .2 = -0.832963
    c y1  -1 x 1.380131 x ln .3 = +1.661640
    c y2  -2 x -.690066 x ln .4 = -1.264601
    c y3  -1 x -.690066 x ln .9 = -0.072706
    sum = 3.570095, divided by 6: 0.595016

Gradient with respect to ln pi_train of a token: - min(rho, 5) A / 6, for instance -5 x 1.035098 / 6
= -0.862582 for the second token of a y1, although its ratio was cut.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from scalerl.algorithm.episode import Episode, Group, Turn
from scalerl.algorithm.objective import objective, prepare
from scalerl.algorithm.options import options_from_recipe
from scalerl.recipe import Recipe

#: The options of the default recipe.
SCALERL = options_from_recipe(Recipe())

BATCH = {
    "a": [(+1, [(0.5, 0.25, False), (0.6, 0.1, False)]), (-1, [(0.2, 0.4, False)])],
    "b": [(+1, [(0.5, 0.5, False)]), (+1, [(0.5, 0.5, False), (0.5, 0.5, False)])],
    "c": [
        (+1, [(0.3, 0.3, False)]),
        (-1, [(0.4, 0.2, False), (0.7, 1.0, True), (0.7, 1.0, True)]),
        (-1, [(0.9, 0.9, False)]),
    ],
}


def groups():
    def episode(reward, tokens):
        turn = Turn.from_lists(
            range(len(tokens)),
            logprobs=np.log([gen for _, gen, _ in tokens]),
            forced=[forced for _, _, forced in tokens],
        )
        return Episode.from_turn([0], turn).with_reward(float(reward), None)

    return [Group(name, tuple(episode(*e) for e in found)) for name, found in BATCH.items()]


def first_of_each(batch, values_N):
    """The value of the first token of each episode."""
    episodes = batch.episode_N
    return [values_N[episodes == e][0].item() for e in range(len(batch))]


def test_from_rewards_to_the_scalar_and_its_gradient():
    options = replace(SCALERL, constants={"ratio_cap": 5.0}, epsilon=0.0)
    prepared = prepare(groups(), options, dtype=torch.float64)

    assert prepared.filtered.zero_variance_prompts == 1
    assert prepared.filtered.effective_prompts == 2
    np.testing.assert_allclose(
        first_of_each(prepared.batch, prepared.batch.advantages_N),
        [1.035098, -1.035098, 1.380131, -0.690066, -0.690066],
        atol=1e-6,
    )
    kept_tokens = prepared.batch.weights_N[prepared.batch.in_loss_N]
    np.testing.assert_allclose(kept_tokens, np.full(6, 1 / 6))

    kept = [tokens for name in ("a", "c") for _, tokens in BATCH[name]]
    written_N = prepared.batch.written_N
    logprobs_N = torch.zeros(len(written_N), dtype=torch.float64)
    logprobs_N[written_N] = (
        torch.tensor([p for tokens in kept for p, _, _ in tokens]).double().log()
    )
    logprobs_N.requires_grad_(True)

    found = objective(logprobs_N, prepared.batch, options)
    found.loss.backward()
    assert found.loss.item() == pytest.approx(0.595016, abs=1e-6)
    gradient = logprobs_N.grad[written_N]
    assert gradient[1].item() == pytest.approx(-0.862582, abs=1e-6)
    assert gradient[4:7].tolist() == pytest.approx([2 * 0.690066 / 6, 0.0, 0.0], abs=1e-6)
    assert found.tokens.truncated_N.sum().item() == 1


def test_keeping_prompts_without_variance_dilutes_the_loss():
    """As the paper's base does: prompt b stays in the denominator and in A_std."""
    options = replace(SCALERL, constants={"ratio_cap": 5.0}, epsilon=0.0, zero_variance="keep")
    prepared = prepare(groups(), options, dtype=torch.float64)
    assert prepared.filtered.effective_prompts == 3
    assert first_of_each(prepared.batch, prepared.batch.weights_N)[0] == pytest.approx(1 / 9)
    found = first_of_each(prepared.batch, prepared.batch.advantages_N)
    assert found[0] == pytest.approx(1 / np.sqrt(14 / 3 / 7))


def test_population_all_counts_dropped_prompts_in_the_std():
    options = replace(SCALERL, epsilon=0.0, population="all")
    prepared = prepare(groups(), options, dtype=torch.float64)
    found = first_of_each(prepared.batch, prepared.batch.advantages_N)
    assert found[0] == pytest.approx(1 / np.sqrt(14 / 3 / 7))
    assert prepared.filtered.effective_prompts == 2


def test_forced_tokens_may_count_as_length():
    options = replace(SCALERL, count_forced=True)
    prepared = prepare(groups(), options, dtype=torch.float64)
    batch = prepared.batch
    assert first_of_each(batch, batch.weights_N)[2] == pytest.approx(1 / (2 * 5))
    assert batch.in_loss_N[batch.episode_N == 3].tolist() == [True, False, False]
