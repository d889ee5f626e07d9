"""Episodes travel between processes: what arrives is what was sent. Turns are counted over rows."""

import copy
import pickle

import numpy as np
import pytest

from scalerl.algorithm.episode import Episode, TokenRow, Turn, turn_numbers


def turn(n, experts=None):
    rng = np.random.default_rng(n)
    return Turn(
        token_ids=rng.integers(0, 2**40, n),
        logprobs=rng.normal(size=n).astype(np.float32),
        versions=rng.integers(0, 9, n),
        forced=rng.random(n) < 0.3,
        finish="interrupted",
        experts=experts,
    )


@pytest.mark.parametrize("travel", [lambda r: pickle.loads(pickle.dumps(r, 5)), copy.deepcopy])
@pytest.mark.parametrize("n", [0, 1, 7, 64])
def test_a_turn_and_its_episode_arrive_as_they_were_sent(n, travel):
    experts = np.arange(n * 6, dtype=np.int16).reshape(n, 3, 2)
    for sent in (turn(n), turn(n, experts)):
        found = travel(sent)
        for name in ("token_ids", "logprobs", "versions", "forced"):
            before, after = getattr(sent, name), getattr(found, name)
            assert after.dtype == before.dtype and after.flags.writeable
            np.testing.assert_array_equal(after, before)
        assert found.finish == "interrupted" and (found.experts is None) == (sent.experts is None)
        whole = Episode.from_turn([4, 5], sent).with_reward(-1.0, False)
        again = travel(whole)
        assert (again.finish, again.reward, again.correct) == ("interrupted", -1.0, False)
        assert again.rows[0].segments == whole.rows[0].segments
        np.testing.assert_array_equal(again.rows[0].token_ids, whole.rows[0].token_ids)
        np.testing.assert_array_equal(again.rows[0].versions_N[2:], sent.versions)
        np.testing.assert_array_equal(again.rows[0].policy_N[2:], ~sent.forced)
        if sent.experts is not None:
            np.testing.assert_array_equal(again.experts, sent.experts)


def test_parts_of_an_array_travel_as_well():
    whole = np.arange(20)
    sent = Turn(whole[::2], np.zeros(10, np.float32), whole[10:], np.zeros(10, bool), "stop")
    found = pickle.loads(pickle.dumps(sent))
    assert found.token_ids.tolist() == list(range(0, 20, 2))
    assert found.versions.tolist() == list(range(10, 20))


def test_arrays_of_unequal_length_are_refused():
    zeros = np.zeros(2, dtype=np.int64)
    with pytest.raises(ValueError, match="one length"):
        Turn(zeros, np.zeros(3, np.float32), zeros, np.zeros(2, bool), "stop")


def test_turns_are_counted_over_all_rows_and_forced_tokens_do_not_end_one():
    forced = Turn.from_lists([1, 2, 3], forced=[False, True, False])
    plain = Turn.from_lists([4])
    first = TokenRow.from_context([0]).with_turn(forced).with_context([9]).with_turn(plain)
    fork = TokenRow.from_context([0, 8]).with_turn(plain).with_turn_reward(0.5).with_turn(plain)
    assert turn_numbers([first, fork]) == [[-1, 0, 0, 0, -1, 1], [-1, 2, 3]]
    assert first.written_end == 6 and first.with_context([7, 7]).written_end == 6
    assert TokenRow.from_context([1, 2]).written_end == 0
