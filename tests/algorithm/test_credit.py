"""Which rewards a token is credited with: those of its episode, or those from its turn on."""

from dataclasses import replace

import pytest
import torch

from scalerl.algorithm.advantages import NORMALISATIONS
from scalerl.algorithm.credit import CREDITS, Units, rewards_of
from scalerl.algorithm.episode import Episode, Group, TokenRow, Turn
from scalerl.algorithm.filters import informative
from scalerl.algorithm.objective import prepare
from scalerl.algorithm.options import options_from_recipe
from scalerl.errors import InputError
from scalerl.recipe import Recipe

SCALERL = options_from_recipe(Recipe())
CENTRED = replace(SCALERL, normalisation="none", zero_variance="keep")


def episode(final, *turns):
    """A turn is (tokens, reward)."""
    row = TokenRow.from_context([1])
    for tokens, reward in turns:
        row = row.with_turn(Turn.from_lists([2] * tokens)).with_turn_reward(reward)
        row = row.with_context([3])
    return Episode((row,), "stop", final)


def advantages(episodes, options):
    """Of every policy token, episode by episode and turn by turn."""
    batch = prepare([Group("p", tuple(episodes))], options).batch
    found = {}
    for e, turn, a in zip(batch.episode_N.tolist(), batch.turn_N.tolist(),
                          batch.advantages_N.tolist(), strict=True):  # fmt: skip
        if turn >= 0:
            found.setdefault((e, turn), []).append(pytest.approx(a))
        else:
            assert a == 0.0
    return found


#: The worked example of credit.py.
PAIR = [episode(1.0, (1, 0.0), (2, 2.0)), episode(0.0, (3, 1.0), (1, 1.0))]


def test_an_episode_is_credited_with_the_sum_of_its_rewards():
    assert advantages(PAIR, CENTRED) == {
        (0, 0): [0.5], (0, 1): [0.5] * 2, (1, 0): [-0.5] * 3, (1, 1): [-0.5],
    }  # fmt: skip


def test_a_turn_is_credited_with_what_came_from_it_on():
    options = replace(CENTRED, credit="turn")
    assert advantages(PAIR, options) == {
        (0, 0): [0.5], (0, 1): [1.0] * 2, (1, 0): [-0.5] * 3, (1, 1): [-1.0],
    }  # fmt: skip
    # The std of the batch is that of the four turns.
    std = torch.tensor([0.5, 1.0, -0.5, -1.0]).std(correction=0).item()
    batch = replace(options, normalisation="batch", epsilon=0.0, ddof=0)
    assert advantages(PAIR, batch)[0, 1] == [1.0 / std] * 2
    prompt = replace(options, normalisation="prompt", epsilon=0.0, ddof=0)
    assert advantages(PAIR, prompt)[0, 1] == [1.0] * 2


def test_a_turn_that_one_episode_reached_alone_has_no_advantage():
    long = [*PAIR, episode(5.0, (1, 0.0), (1, 0.0), (2, 7.0))]
    found = advantages(long, replace(CENTRED, credit="turn"))
    assert found[2, 2] == [0.0] * 2 and found[2, 0] != [0.0]


@pytest.mark.parametrize("credit", sorted(CREDITS))
def test_without_turn_rewards_single_turns_are_credited_alike(credit):
    single = [episode(r, (2, None)) for r in (1.0, -1.0, 0.25)]
    expected = advantages(single, SCALERL)
    assert advantages(single, replace(SCALERL, credit=credit)) == expected


def test_equal_totals_with_unequal_turns_inform_only_the_credit_by_turn():
    group = Group("p", (episode(0.0, (1, 1.0), (1, 0.0)), episode(0.0, (1, 0.0), (1, 1.0))))
    assert not informative(group, "keep", "episode", [])
    assert informative(group, "keep", "turn", [])
    assert len(prepare([group], SCALERL).batch) == 0
    assert len(prepare([group], replace(SCALERL, credit="turn")).batch) == 2


def test_rewards_are_found_by_turn_over_forks_and_behind_observations():
    fork = TokenRow.from_context([1, 9]).with_turn(Turn.from_lists([2])).with_turn_reward(4.0)
    first = episode(None, (1, None), (1, 2.0)).rows[0].with_turn_reward(1.0)
    found = rewards_of([Episode((first, fork), "stop", 0.5), Episode((), "failed")], [0, 0])
    assert found.turn_T.tolist() == [0.0, 3.0, 4.0] and found.turns_E.tolist() == [3, 0]
    assert found.final_E.isnan().tolist() == [False, True]


def last_only(rewards):
    """A credit rule of a user: the final reward alone."""
    return Units(
        rewards.final_E, torch.arange(len(rewards.final_E)), rewards.prompt_E, rewards.episode_T
    )


def leave_one_out(values_K, cell_K, counted_K, ddof, epsilon):
    """A normalisation of a user, with a baseline of its own (cells of two)."""
    return values_K - values_K.flip(0)


def test_rules_of_ones_own_are_named_by_path():
    options = replace(CENTRED, credit=f"{__name__}:last_only")
    assert advantages(PAIR, options)[0, 0] == [0.5]
    options = replace(CENTRED, normalisation=f"{__name__}:leave_one_out")
    assert advantages(PAIR, options)[1, 0] == [-1.0] * 3
    with pytest.raises(InputError, match="no credit rule 'turns': did you mean 'turn'"):
        CREDITS["turns"]
    assert sorted(NORMALISATIONS) == ["batch", "none", "prompt"]
