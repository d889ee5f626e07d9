"""Which episodes go through the model together, and which rank takes which."""

import numpy as np
import pytest

from scalerl.algorithm.episode import Episode, TokenRow, Turn
from scalerl.algorithm.packing import pack
from scalerl.trainer.micro import Sizes, flat_rows


def batch(prompts=8, generations=4, longest=12, seed=0, prompt_tokens=None):
    rng = np.random.default_rng(seed)
    episodes = []
    for p in range(prompts):
        prompt = [p] * int(prompt_tokens or rng.integers(1, 7))
        turns = [Turn.from_lists(range(int(rng.integers(0, longest)))) for _ in range(generations)]
        episodes += [Episode.from_turn(prompt, turn) for turn in turns]
    return pack(episodes, np.repeat(range(prompts), generations))


def cut(whole, budget):
    return [whole.take(e) for e in Sizes(whole).cut(range(len(whole)), budget)]


def test_every_token_is_in_one_micro_batch_and_prompts_where_they_are_needed():
    whole = batch()
    seen = np.zeros(len(whole.ids_N), int)
    for part, at_N in cut(whole, 40):
        seen[at_N] += 1
        assert part.ids_N.tolist() == whole.ids_N[at_N].tolist()
        # Every row is behind the prompt of its own group.
        for row, parent in enumerate(part.parent_R.tolist()):
            if parent >= 0:
                group = part.prompt_E[part.episode_R[row]]
                assert set(part.ids_N[part.row_N == parent].tolist()) == {int(group)}
    written = whole.written_N.numpy()
    assert (seen[written] == 1).all() and (seen[~written] >= 1).all()


def test_micro_batches_keep_to_the_budget_and_compute_few_prompts_twice():
    whole = batch()
    parts = cut(whole, 40)
    assert len(parts) > 3 and all(len(part.ids_N) <= 40 for part, _ in parts)
    # Every prompt once, and once more where a micro-batch ends within its group.
    prompts = sum(int((part.parent_R < 0).sum()) for part, _ in parts)
    assert prompts <= 8 + len(parts) - 1


def test_an_episode_beyond_the_budget_goes_alone_and_whole():
    fork = TokenRow.from_context([9, 9]).with_turn(Turn.from_lists([1] * 30))
    first = TokenRow.from_context([1, 2]).with_turn(Turn.from_lists([1] * 30))
    whole = pack([Episode((first, fork), "stop")] * 2, np.zeros(2, int))
    sizes = Sizes(whole)
    assert sizes.longest == 64
    assert [e.tolist() for e in sizes.cut(range(2), 20)] == [[0], [1]]
    assert len(flat_rows(whole.take(np.array([1]))[0]).spans) == 4


def test_no_episodes_make_no_micro_batch():
    assert cut(pack([], np.zeros(0, int)), 40) == []


@pytest.mark.parametrize("prompt_tokens", [2, 300])
def test_ranks_get_whole_groups_where_their_work_is_then_equal(prompt_tokens):
    whole = batch(prompts=16, prompt_tokens=prompt_tokens)
    shares = Sizes(whole).divide(whole.prompt_E.tolist(), 2, width=64)
    assert sorted(e for share in shares for e in share) == list(range(len(whole)))
    prompts = [set(whole.prompt_E[share].tolist()) for share in shares]
    assert not prompts[0] & prompts[1]


def test_few_groups_are_divided_within():
    whole = batch(prompts=1, generations=16, longest=40)
    shares = Sizes(whole).divide(whole.prompt_E.tolist(), 3, width=64)
    tokens = [len(whole.take(np.array(share))[0].ids_N) for share in shares]
    assert max(tokens) < 1.2 * min(tokens)
    lonely = Sizes(batch(prompts=1, generations=1)).divide([0], 3, width=64)
    assert lonely == [[0], [], []]
