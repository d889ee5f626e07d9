"""Rollouts travel between processes: what arrives is what was sent."""

import copy
import pickle

import numpy as np
import pytest

from scalerl.algorithm.rollout import Rollout


def rollout(n, experts=None):
    rng = np.random.default_rng(n)
    return Rollout(
        token_ids=rng.integers(0, 2**40, n),
        logprobs=rng.normal(size=n).astype(np.float32),
        versions=rng.integers(0, 9, n),
        forced=rng.random(n) < 0.3,
        finish="interrupted",
        reward=-1.0,
        correct=False,
        experts=experts,
    )


@pytest.mark.parametrize("travel", [lambda r: pickle.loads(pickle.dumps(r, 5)), copy.deepcopy])
@pytest.mark.parametrize("n", [0, 1, 7, 64])
def test_a_rollout_arrives_as_it_was_sent(n, travel):
    experts = np.arange(n * 6, dtype=np.int16).reshape(n, 3, 2)
    for sent in (rollout(n), rollout(n, experts)):
        found = travel(sent)
        for name in ("token_ids", "logprobs", "versions", "forced"):
            before, after = getattr(sent, name), getattr(found, name)
            assert after.dtype == before.dtype and after.flags.writeable
            np.testing.assert_array_equal(after, before)
        assert (found.finish, found.reward, found.correct) == ("interrupted", -1.0, False)
        assert (found.experts is None) == (sent.experts is None)
        if sent.experts is not None:
            np.testing.assert_array_equal(found.experts, sent.experts)


def test_parts_of_a_packed_array_travel_as_well():
    whole = np.arange(20)
    sent = Rollout(whole[::2], np.zeros(10, np.float32), whole[10:], np.zeros(10, bool), "stop")
    found = pickle.loads(pickle.dumps(sent))
    assert found.token_ids.tolist() == list(range(0, 20, 2))
    assert found.versions.tolist() == list(range(10, 20))
