"""Advantages, aggregation, filters and diagnostics, with hand-worked numbers and at the edges."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from flat import token_batch

from scalerl.algorithm import advantages as advantages_module
from scalerl.algorithm.aggregation import aggregation_weights
from scalerl.algorithm.diagnostics import diagnose
from scalerl.algorithm.episode import Episode, Group, Turn
from scalerl.algorithm.filters import Candidates, filter_episodes, informative
from scalerl.algorithm.losses import cispo
from scalerl.algorithm.objective import objective, prepare, token_slopes
from scalerl.algorithm.options import options_from_recipe
from scalerl.errors import InputError
from scalerl.recipe import Recipe

#: The options of the default recipe.
SCALERL = options_from_recipe(Recipe())

has_variance = advantages_module.has_variance
REWARDS = torch.tensor([1.0, -1.0, -1.0, -1.0, 1.0, 1.0], dtype=torch.float64)
PROMPTS = torch.tensor([0, 0, 0, 0, 1, 1])


def advantages(values_K, cell_K, **changes):
    """As the default recipe has them, but for the changes."""
    names = ("normalisation", "population", "ddof", "epsilon")
    given = {name: getattr(Recipe().advantage, name) for name in names}
    return advantages_module.advantages(values_K, cell_K, **given | changes)


def filtered(rewards, cut=(), **changes):
    """The first four episodes answer one prompt, the others another; those in `cut` are cut off."""
    made = [episode(2, reward, "length" if i in cut else "stop")
            for i, reward in enumerate(rewards)]  # fmt: skip
    groups = [Group("a", tuple(made[:4])), Group("b", tuple(made[4:]))]
    given = {"zero_variance": "drop", "truncated": "keep", "further": ()}
    return filter_episodes(Candidates.from_groups(groups, "episode"), **given | changes)


def episode(n, reward, finish="stop"):
    turn = Turn.from_lists([0] * n, logprobs=[-1.0] * n, finish=finish)
    return Episode.from_turn([0], turn).with_reward(reward, None)


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
    only_kept = advantages(REWARDS, PROMPTS, kept_K=kept, epsilon=0.0)
    assert only_kept[0].item() == pytest.approx(1.5 / np.sqrt(3 / 4))
    everyone = advantages(REWARDS, PROMPTS, kept_K=kept, population="all", epsilon=0.0, ddof=1)
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
    with pytest.raises(InputError, match="no normalisation 'group'"):
        advantages(torch.ones(2), torch.zeros(2), normalisation="group")


BATCH = token_batch([4, 2, 1, 0], np.zeros(7), [1.0] * 4, prompts=[0, 0, 1, 1])


@pytest.mark.parametrize(
    ("kind", "per_episode"),
    [
        ("sample", [1 / 16, 1 / 8, 1 / 4]),
        ("prompt", [1 / 12, 1 / 12, 1 / 2]),
        ("token", [1 / 7, 1 / 7, 1 / 7]),
        ("constant", [1 / 40, 1 / 40, 1 / 40]),
    ],
)
def test_aggregation_weights_by_hand(kind, per_episode):
    found = aggregation_weights(kind, BATCH, constant_length=10.0, dtype=torch.float64)
    assert found.tolist() == pytest.approx(np.repeat(per_episode, [4, 2, 1]).tolist())


@pytest.mark.parametrize("kind", ["sample", "prompt", "token", "constant"])
def test_aggregation_of_nothing(kind):
    for lengths in ([], [0, 0], [3, 3]):
        n = sum(lengths)
        batch = token_batch(lengths, np.zeros(n), [1.0] * len(lengths), in_loss=[False] * n)
        found = aggregation_weights(kind, batch, constant_length=5.0)
        assert len(found) == n and not found.any()


def test_unknown_aggregation_and_missing_length_are_refused():
    with pytest.raises(InputError, match="did you mean 'prompt'"):
        aggregation_weights("promt", BATCH)
    with pytest.raises(InputError, match="above 0"):
        aggregation_weights("constant", BATCH)


def test_zero_variance_prompts_are_dropped_and_counted():
    found = filtered(REWARDS.tolist())
    assert found.kept_E.tolist() == [True] * 4 + [False] * 2
    assert (found.prompts, found.zero_variance_prompts, found.effective_prompts) == (2, 1, 1)


def test_keep_and_refill():
    kept = filtered(REWARDS.tolist(), zero_variance="keep")
    assert kept.kept_E.all() and kept.effective_prompts == 2 and kept.zero_variance_prompts == 1
    refill = filtered(REWARDS.tolist(), zero_variance="refill")
    assert refill.kept_E.tolist() == [True] * 4 + [False] * 2 and refill.effective_prompts == 1


def test_truncated_episodes_are_left_out_before_the_variance_is_judged():
    """The only right answer was cut off: without it the group has no variance."""
    found = filtered(REWARDS.tolist(), cut=[0], truncated="drop")
    assert not found.kept_E.any()
    assert found.truncated == 1 and found.effective_rollouts == 0
    assert filtered(REWARDS.tolist(), cut=[0]).kept_E.sum().item() == 4


def test_unscored_episodes_are_left_out_and_counted():
    found = filtered([1.0, None, -1.0, -1.0, 1.0, 1.0])
    assert found.unscored == 1
    assert found.kept_E.tolist() == [True, False, True, True, False, False]


def long_enough(candidates):
    """A filter of a user."""
    return torch.tensor([len(e) > 1 for e in candidates.episodes])


def test_a_filter_of_ones_own_comes_before_the_variance_is_judged():
    groups = [Group("a", (episode(2, 1.0), episode(1, -1.0), episode(3, 1.0)))]
    candidates = Candidates.from_groups(groups, "episode")
    given = {"zero_variance": "drop", "truncated": "keep"}
    for choice in (long_enough, f"{__name__}:long_enough"):
        found = filter_episodes(candidates, **given, further=[choice])
        assert not found.kept_E.any() and found.eligible_E.tolist() == [True, False, True]
    assert filter_episodes(candidates, **given, further=[]).kept_E.all()


def test_equal_rewards_do_not_vary_where_their_mean_rounds():
    """Sixteen rewards of 0.1 have a mean in float32 that is not 0.1."""
    rewards, prompt = torch.full((16,), 0.1), torch.zeros(16)
    assert (rewards - rewards.mean()).abs().max() > 0
    assert not has_variance(rewards, prompt).any()
    assert not advantages(rewards, prompt, normalisation="prompt").any()
    rewards[3] = 0.2
    assert has_variance(rewards, prompt).all()


def test_variance_is_judged_within_float_error():
    shaped = torch.tensor([0.1 + 0.2, 0.3], dtype=torch.float64)
    assert not has_variance(shaped, torch.zeros(2)).any()


def test_a_fully_filtered_batch_is_empty_but_whole():
    prepared = prepare([Group("p", (episode(3, 1.0), episode(0, 1.0)))], SCALERL)
    assert len(prepared.batch) == 0 and prepared.episodes == ()
    assert prepared.filtered.zero_variance_prompts == 1
    assert len(prepare([], SCALERL).batch) == 0


def test_a_group_informs_only_by_episodes_that_may_be_learnt_from():
    group = Group("p", (episode(3, 1.0), episode(3, -1.0, "length")))
    assert informative(group, "keep", "episode", []) and not informative(
        group, "drop", "episode", []
    )
    assert not informative(Group("p", (episode(3, 1.0), episode(3, None))), "keep", "episode", [])


def test_rewards_of_none_nan_and_inf_are_unscored():
    rewards = (None, float("nan"), float("inf"), 1.0, -1.0)
    prepared = prepare([Group("p", tuple(episode(2, r) for r in rewards))], SCALERL)
    assert prepared.filtered.unscored == 3 and len(prepared.batch) == 2


def diagnosed(train, gen, versions, version=5, **kwargs):
    logprobs_N = torch.tensor(train, dtype=torch.float64)
    batch = token_batch([len(train)], gen, [1.0], versions=versions)
    return diagnose(logprobs_N, batch, cispo(logprobs_N, batch, ratio_cap=2.0), version, **kwargs)


def test_diagnostics_by_hand():
    found = diagnosed(list(np.log([0.4, 0.3])), list(np.log([0.1, 0.3])), [5, 2],
                      entropy_N=torch.tensor([1.0, 3.0]))  # fmt: skip
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


def test_truncated_tokens_are_counted_by_the_probability_that_they_were_drawn_with():
    drawn = [0.05, 0.05, 0.1, 0.95, 1.0]
    found = diagnosed(list(np.log([0.2, 0.05, 0.3, 0.95, 0.9])), list(np.log(drawn)), [5] * 5)
    assert found.tokens_by_probability == (2, 1, 0, 0, 0, 0, 0, 0, 0, 2)
    assert found.truncated_by_probability == (1, 1, 0, 0, 0, 0, 0, 0, 0, 0)
    assert sum(found.truncated_by_probability) / found.tokens == found.ratio_truncated


def test_the_gap_of_each_staleness_adds_up_to_that_of_the_batch():
    train, gen = np.log([0.2, 0.3, 0.4, 0.9]), np.log([0.1, 0.3, 0.5, 0.7])
    found = diagnosed(list(train), list(gen), [5, 3, 3, 2])
    assert sorted(found.gap_by_staleness) == [0, 2, 3]
    assert found.gap_by_staleness[0].mean == pytest.approx(np.log(2))
    assert found.gap_by_staleness[2].mean == pytest.approx(np.log(5 / 4) / 2)
    for value, whole in (("mean", found.gap_mean), ("kl", found.kl_gen_train)):
        parts = [found.staleness_histogram[age] * getattr(gap, value)
                 for age, gap in found.gap_by_staleness.items()]  # fmt: skip
        assert sum(parts) / found.tokens == pytest.approx(whole)


@pytest.mark.parametrize(
    ("loss", "constants", "share"),
    [
        ("cispo", {"ratio_cap": 3.0}, (3.0 + 0.25) / (3.0 + 0.25 + 1.5)),
        ("dapo", {}, 0.25 / 0.25),  # the clip leaves only the small ratio
        ("reinforce", {}, 2 / 3),
    ],
)
def test_the_gradients_share_from_far_ratios_is_by_what_the_loss_makes_of_them(
    loss, constants, share
):
    """Ratios 4, 1/4 and 1.5, with an advantage of 1."""
    options = replace(SCALERL, loss=loss, constants=constants)
    logprobs_N = torch.tensor(np.log([0.4, 0.1, 0.6]))
    batch = token_batch([3], list(np.log([0.1, 0.4, 0.4])), [1.0], versions=[5] * 3)
    slope_N = token_slopes(logprobs_N, batch, options)
    tokens = objective(logprobs_N, batch, options).tokens
    found = diagnose(logprobs_N, batch, tokens, 5, slope_N=slope_N)
    assert found.far_gradient == pytest.approx(share)
    nothing = diagnose(logprobs_N, batch, tokens, 5, slope_N=torch.zeros(3))
    assert nothing.far_gradient is None


def test_diagnostics_count_what_is_not_finite_and_survive_nothing():
    found = diagnosed([-1.0, float("nan")], [-1.0, -1.0], [5, 5])
    assert found.tokens == 1 and found.non_finite == 1 and found.ratio_mean == 1.0
    nothing = diagnosed([], [], [])
    assert nothing.tokens == 0 and nothing.ess == 1.0 and nothing.ratio_max == 1.0
