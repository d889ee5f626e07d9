"""Episodes become one flat batch: every policy token in the loss once, prompts once a group."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalerl.algorithm.episode import Episode, Group, TokenRow, Turn
from scalerl.algorithm.objective import prepare
from scalerl.algorithm.options import options_from_recipe
from scalerl.algorithm.packing import pack
from scalerl.recipe import Recipe

SCALERL = options_from_recipe(Recipe())


def turn(rng, n):
    return Turn(rng.integers(10, 99, n), rng.normal(-2, 1, n).astype(np.float32),
                np.sort(rng.integers(0, 3, n)), rng.random(n) < 0.2, "stop")  # fmt: skip


@st.composite
def group_episodes(draw):
    """Episodes of one prompt with any number of turns, observations and forks."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    prompt = rng.integers(10, 99, draw(st.integers(1, 4)))
    out = []
    for _ in range(draw(st.integers(1, 4))):
        row, rows = TokenRow.from_context(prompt), []
        for _ in range(draw(st.integers(0, 4))):
            row = row.with_turn(turn(rng, draw(st.integers(0, 4))))
            row = row.with_context(rng.integers(10, 99, draw(st.integers(0, 3))))
            if draw(st.booleans()):
                rows.append(row)
                begin = prompt if draw(st.booleans()) else rng.integers(10, 99, 2)
                row = TokenRow.from_context(np.concatenate([begin, rng.integers(10, 99, 2)]))
        out.append(Episode((*rows, row), "stop", reward=float(rng.normal())))
    return out


def seen(batch, row):
    """What the model sees up to the end of a row: the parent's tokens and its own."""
    parent = int(batch.parent_R[row])
    own = batch.ids_N[batch.row_N == row].tolist()
    return (batch.ids_N[batch.row_N == parent].tolist() if parent >= 0 else []) + own


@settings(max_examples=60, deadline=None)
@given(episodes=group_episodes())
def test_every_row_is_what_the_engine_saw_and_every_written_token_is_there_once(episodes):
    batch = pack(episodes, np.zeros(len(episodes), int))
    rows = [row for e in episodes for row in e.rows]
    first = int((batch.parent_R < 0).sum())
    for i, row in enumerate(rows):
        expected = row.token_ids[: max(row.written_end, len(seen(batch, first + i)))]
        assert seen(batch, first + i) == expected.tolist()
    for name in ("ids", "logprobs", "versions"):
        whole = {"ids": "token_ids", "versions": "versions_N"}.get(name, name)
        expected = np.concatenate([getattr(r, whole)[r.written_N] for r in rows])
        np.testing.assert_array_equal(getattr(batch, f"{name}_N")[batch.written_N], expected)
    policy = np.concatenate([r.policy_N[r.written_N] for r in rows])
    np.testing.assert_array_equal(batch.in_loss_N[batch.written_N], policy)
    assert not batch.in_loss_N[~batch.written_N].any()
    assert (batch.turn_N[batch.written_N] >= 0).all()
    position = [list(range(len(seen(batch, first + i)))) for i in range(len(rows))]
    for i, expected in enumerate(position):
        own = batch.position_N[batch.row_N == first + i].tolist()
        assert own == expected[len(expected) - len(own) :]


@settings(max_examples=30, deadline=None)
@given(episodes=group_episodes())
def test_a_part_is_the_batch_of_its_episodes_alone(episodes):
    whole = pack(episodes, np.zeros(len(episodes), int))
    chosen = np.arange(0, len(episodes), 2)
    part, at_N = whole.take(chosen)
    alone = pack([episodes[i] for i in chosen], np.zeros(len(chosen), int))
    for name in ("ids_N", "position_N", "row_N", "turn_N", "in_loss_N", "parent_R", "episode_R"):
        assert getattr(part, name).tolist() == getattr(alone, name).tolist(), name
    assert part.ids_N.tolist() == whole.ids_N[at_N].tolist()


def test_a_fork_shares_the_prompt_that_it_begins_with():
    first = TokenRow.from_context([1, 2]).with_turn(Turn.from_lists([3]))
    same = TokenRow.from_context([1, 2, 8]).with_turn(Turn.from_lists([4]))
    other = TokenRow.from_context([1, 7, 8]).with_turn(Turn.from_lists([5]))
    batch = pack([Episode((first, same, other), "stop")], np.array([0]))
    assert batch.ids_N.tolist() == [1, 2, 1, 7, 8, 3, 8, 4, 5]
    assert batch.parent_R.tolist() == [-1, -1, 0, 0, 1]
    assert batch.turn_N[batch.written_N].tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="needs a prompt"):
        pack([Episode.from_turn([], Turn.from_lists([3]))], np.array([0]))


def test_prompts_of_groups_are_not_shared_and_other_experts_part_a_prompt():
    def episode(experts=None):
        return replace(Episode.from_turn([1, 2], Turn.from_lists([3, 4])), experts=experts)

    assert pack([episode(), episode()], np.array([0, 1])).parent_R.tolist() == [-1, -1, 0, 1]
    a, b = (np.arange(6, dtype=np.int16).reshape(3, 1, 2) + i for i in (0, 1))
    later = a.copy()
    later[2] += 5
    batch = pack([episode(a), episode(later), episode(b), episode()], np.zeros(4, int))
    assert batch.parent_R.tolist() == [-1, -1, -1, 0, 0, 1, 2]
    rows = [batch.experts_N[batch.row_N == r, 0, 0].tolist() for r in range(7)]
    # The last token of a row is never fed: none are recorded for it.
    assert rows == [[0, 2], [1, 3], [-1, -1], [4, -1], [9, -1], [5, -1], [-1, -1]]


def test_context_never_counts_in_a_length_and_has_no_loss():
    row = TokenRow.from_context([1]).with_turn(Turn.from_lists([2, 3], forced=[False, True]))
    row = row.with_context([5, 5, 5]).with_turn(Turn.from_lists([6]))
    episodes = Episode((row,), "stop", 1.0), Episode((row,), "stop", -1.0)
    for count_forced, length in ((False, 2), (True, 3)):
        options = replace(SCALERL, count_forced=count_forced, aggregation="sample")
        batch = prepare([Group("p", episodes)], options).batch
        assert batch.weights_N[batch.in_loss_N].tolist() == pytest.approx([1 / (2 * length)] * 4)
        assert not batch.weights_N[~batch.in_loss_N].any()
