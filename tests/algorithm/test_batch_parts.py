"""Advantages, aggregation, filters and diagnostics, with hand-worked numbers and at the edges."""

import numpy as np
import pytest
import torch

from scalerl.algorithm import advantages as advantages_module
from scalerl.algorithm import filters
from scalerl.algorithm.aggregation import aggregation_weights
from scalerl.algorithm.batch import LossBatch
from scalerl.algorithm.diagnostics import diagnose
from scalerl.algorithm.filters import has_variance, informative
from scalerl.algorithm.losses import cispo
from scalerl.algorithm.objective import prepare
from scalerl.algorithm.options import options_from_recipe
from scalerl.algorithm.rollout import Group, Rollout
from scalerl.errors import InputError
from scalerl.recipe import Recipe

#: The options of the default recipe.
SCALERL = options_from_recipe(Recipe())

REWARDS = torch.tensor([1.0, -1.0, -1.0, -1.0, 1.0, 1.0], dtype=torch.float64)
PROMPTS = torch.tensor([0, 0, 0, 0, 1, 1])
NO = torch.zeros(6, dtype=torch.bool)


def advantages(rewards_B, prompt_B, **changes):
    """As the default recipe has them, but for the changes."""
    given = Recipe().advantage.model_dump()
    return advantages_module.advantages(rewards_B, prompt_B, **given | changes)


def filter_rows(rewards_B, prompt_B, truncated_B, **changes):
    given = {"zero_variance": "drop", "truncated": "keep"}
    return filters.filter_rows(rewards_B, prompt_B, truncated_B, **given | changes)


def test_group_centring():
    found = advantages(REWARDS, PROMPTS, normalisation="none")
    assert found.tolist() == [1.5, -0.5, -0.5, -0.5, 0.0, 0.0]


def test_prompt_normalisation_divides_by_the_groups_own_std():
    found = advantages(REWARDS, PROMPTS, normalisation="prompt", epsilon=0.0, ddof=0)
    assert found[0].item() == pytest.approx(1.5 / np.sqrt(0.75))
    with_ddof = advantages(REWARDS, PROMPTS, normalisation="prompt", epsilon=0.0, ddof=1)
    assert with_ddof[0].item() == pytest.approx(1.5)


def test_batch_normalisation_population_and_ddof():
    kept = torch.tensor([True] * 4 + [False] * 2)
    only_kept = advantages(REWARDS, PROMPTS, kept_B=kept, epsilon=0.0)
    assert only_kept[0].item() == pytest.approx(1.5 / np.sqrt(3 / 4))
    everyone = advantages(REWARDS, PROMPTS, kept_B=kept, population="all", epsilon=0.0, ddof=1)
    assert everyone[0].item() == pytest.approx(1.5 / np.sqrt(3 / 5))


@pytest.mark.parametrize("normalisation", ["batch", "prompt", "none"])
@pytest.mark.parametrize("ddof", [0, 1])
def test_groups_of_one_and_equal_rewards_have_no_advantage(normalisation, ddof):
    one = advantages(torch.tensor([1.0]), torch.tensor([0]), normalisation=normalisation, ddof=ddof)
    equal = advantages(torch.ones(4), torch.zeros(4), normalisation=normalisation, ddof=ddof)
    assert one.tolist() == [0.0]
    assert equal.tolist() == [0.0] * 4


def test_advantages_of_nothing_are_nothing_and_nan_is_refused():
    assert advantages(torch.zeros(0), torch.zeros(0)).tolist() == []
    with pytest.raises(InputError, match="finite"):
        advantages(torch.tensor([1.0, float("nan")]), torch.zeros(2))
    with pytest.raises(InputError, match="batch, prompt or none"):
        advantages(torch.ones(2), torch.zeros(2), normalisation="group")


MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]], dtype=torch.bool)
ROWS = torch.tensor([0, 0, 1, 1])


@pytest.mark.parametrize(
    ("kind", "per_row"),
    [
        ("sample", [1 / 16, 1 / 8, 1 / 4, 0]),
        ("prompt", [1 / 12, 1 / 12, 1 / 2, 0]),
        ("token", [1 / 7, 1 / 7, 1 / 7, 0]),
        ("constant", [1 / 40, 1 / 40, 1 / 40, 0]),
    ],
)
def test_aggregation_weights_by_hand(kind, per_row):
    found = aggregation_weights(kind, MASK, ROWS, constant_length=10.0, dtype=torch.float64)
    expected = MASK.double() * torch.tensor(per_row, dtype=torch.float64)[:, None]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("kind", ["sample", "prompt", "token", "constant"])
def test_aggregation_of_nothing(kind):
    for shape in [(0, 4), (2, 0), (2, 3)]:
        found = aggregation_weights(
            kind, torch.zeros(shape, dtype=torch.bool), torch.zeros(shape[0]), constant_length=5.0
        )
        assert found.shape == shape and not found.any()


def test_unknown_aggregation_and_missing_length_are_refused():
    with pytest.raises(InputError, match="did you mean 'prompt'"):
        aggregation_weights("promt", MASK, ROWS)
    with pytest.raises(InputError, match="above 0"):
        aggregation_weights("constant", MASK, ROWS)


def test_zero_variance_prompts_are_dropped_and_counted():
    found = filter_rows(REWARDS, PROMPTS, NO)
    assert found.kept_B.tolist() == [True] * 4 + [False] * 2
    assert (found.prompts, found.zero_variance_prompts, found.effective_prompts) == (2, 1, 1)


def test_keep_and_refill():
    kept = filter_rows(REWARDS, PROMPTS, NO, zero_variance="keep")
    assert kept.kept_B.all() and kept.effective_prompts == 2 and kept.zero_variance_prompts == 1
    refill = filter_rows(REWARDS, PROMPTS, NO, zero_variance="refill")
    assert refill.kept_B.tolist() == [True] * 4 + [False] * 2 and refill.effective_prompts == 1


def test_truncated_rollouts_are_left_out_before_the_variance_is_judged():
    """The only right answer was cut off: without it the group has no variance."""
    cut = torch.tensor([True, False, False, False, False, False])
    found = filter_rows(REWARDS, PROMPTS, cut, truncated="drop")
    assert not found.kept_B.any()
    assert found.truncated == 1 and found.effective_rollouts == 0
    assert filter_rows(REWARDS, PROMPTS, cut).kept_B.sum().item() == 4


def test_unscored_rollouts_are_left_out_and_counted():
    rewards = REWARDS.clone()
    rewards[1] = float("nan")
    found = filter_rows(rewards, PROMPTS, NO)
    assert found.unscored == 1
    assert found.kept_B.tolist() == [True, False, True, True, False, False]


def test_variance_is_judged_within_float_error():
    shaped = torch.tensor([0.1 + 0.2, 0.3], dtype=torch.float64)
    assert not has_variance(shaped, torch.zeros(2)).any()


def rollout(n, reward, finish="stop"):
    zeros = np.zeros(n, dtype=np.int64)
    return Rollout(zeros, np.full(n, -1.0, np.float32), zeros, np.zeros(n, bool), finish, reward)


def test_a_fully_filtered_batch_is_empty_but_whole():
    groups = [Group("p", np.zeros(1, dtype=np.int64), (rollout(3, 1.0), rollout(0, 1.0)))]
    prepared = prepare(groups, SCALERL)
    assert len(prepared.batch) == 0 and prepared.rollouts == ()
    assert prepared.filtered.zero_variance_prompts == 1
    assert len(prepare([], SCALERL).batch) == 0


def test_a_group_informs_only_by_rollouts_that_may_be_learnt_from():
    group = Group("p", np.arange(2), (rollout(3, 1.0), rollout(3, -1.0, "length")))
    assert informative(group, "keep") and not informative(group, "drop")
    assert not informative(Group("p", np.arange(2), (rollout(3, 1.0), rollout(3, None))), "keep")


def test_rewards_of_none_nan_and_inf_are_unscored():
    rewards = (None, float("nan"), float("inf"), 1.0, -1.0)
    groups = [Group("p", np.zeros(1, dtype=np.int64), tuple(rollout(2, r) for r in rewards))]
    prepared = prepare(groups, SCALERL)
    assert prepared.filtered.unscored == 3 and len(prepared.batch) == 2


def test_arrays_of_unequal_length_are_refused():
    zeros = np.zeros(2, dtype=np.int64)
    with pytest.raises(ValueError, match="one length"):
        Rollout(zeros, np.zeros(3, np.float32), zeros, np.zeros(2, bool), "stop", 1.0)


def diagnosed(train, gen, versions, version=5, **kwargs):
    logprobs_BT = torch.tensor([train], dtype=torch.float64)
    shape = logprobs_BT.shape
    batch = LossBatch(
        torch.tensor([gen], dtype=torch.float64),
        torch.ones(1, dtype=torch.float64),
        torch.ones(shape, dtype=torch.bool),
        torch.ones(shape),
        torch.zeros(1, dtype=torch.long),
        torch.tensor([versions]),
    )
    return diagnose(logprobs_BT, batch, cispo(logprobs_BT, batch, ratio_cap=2.0), version, **kwargs)


def test_diagnostics_by_hand():
    found = diagnosed(list(np.log([0.4, 0.3])), list(np.log([0.1, 0.3])), [5, 2],
                      entropy_BT=torch.tensor([[1.0, 3.0]]))  # fmt: skip
    assert found.ratio_mean == pytest.approx(2.5) and found.ratio_max == pytest.approx(4.0)
    assert found.ratio_min == pytest.approx(1.0) and found.ratio_truncated == 0.5
    assert found.ess == pytest.approx(25 / (2 * 17))
    assert found.gap_mean == pytest.approx(np.log(4) / 2) and found.gap_max == pytest.approx(
        np.log(4)
    )
    assert found.kl_gen_train == pytest.approx((3 - np.log(4)) / 2)
    assert found.entropy == 2.0
    assert (found.staleness_mean, found.staleness_max) == (1.5, 3)
    assert found.staleness_histogram == {0: 1, 3: 1}
    assert found.tokens == 2 and found.non_finite == 0


def test_diagnostics_count_what_is_not_finite_and_survive_nothing():
    found = diagnosed([-1.0, float("nan")], [-1.0, -1.0], [5, 5])
    assert found.tokens == 1 and found.non_finite == 1 and found.ratio_mean == 1.0
    nothing = diagnosed([], [], [])
    assert nothing.tokens == 0 and nothing.ess == 1.0 and nothing.ratio_max == 1.0
