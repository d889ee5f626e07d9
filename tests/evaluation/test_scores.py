"""mean@k, its interval, and pass@k, against truths that are known."""

import itertools

import numpy as np
import pytest

from scalerl.evaluation.scores import interval, pass_at, pass_at_all, sizes


@pytest.mark.parametrize(("n", "right"), [(5, 0), (5, 2), (5, 5), (8, 1), (8, 7)])
def test_pass_at_is_the_share_of_subsets_with_a_right_answer(n, right):
    answers = [True] * right + [False] * (n - right)
    for k in range(1, n + 1):
        subsets = list(itertools.combinations(answers, k))
        assert pass_at(n, right, k) == pytest.approx(np.mean([any(s) for s in subsets]))


def test_pass_at_is_unbiased_where_the_plain_estimate_is_not():
    rng = np.random.default_rng(0)
    right = rng.binomial(8, 0.15, size=40_000)
    truth = 1 - 0.85**4
    ours = np.mean([pass_at(8, r, 4) for r in right])
    plain = np.mean(1 - (1 - right / 8) ** 4)
    assert abs(ours - truth) < 0.005 < abs(plain - truth)


def test_pass_at_leaves_out_prompts_with_too_few_scored_answers():
    found = pass_at_all([(2, 4), (0, 4), (1, 1)], k=4)
    assert list(found) == sizes(4) == [1, 2, 4]
    assert found[1] == pytest.approx((0.5 + 0 + 1) / 3)
    assert found[4] == pytest.approx((1.0 + 0) / 2)


@pytest.mark.parametrize(("spread", "mean"), [(0.2, 0.5), (1.0, 0.9), (5.0, 0.05)])
@pytest.mark.parametrize("prompts", [10, 100])
def test_the_interval_holds_the_mean_over_all_prompts(prompts, mean, spread):
    """Prompts differ (beta-distributed pass rates), k = 8 answers to each: 90 % hold the truth.
    Counting the 8 answers as independent would hold it far less often."""
    rng = np.random.default_rng(1)
    held = naive = 0
    for _ in range(2000):
        rates = rng.beta(mean * spread, (1 - mean) * spread, size=prompts)
        shares = rng.binomial(8, rates) / 8
        m, se = float(shares.mean()), float(shares.std(ddof=1) / np.sqrt(prompts))
        low, high = interval(m, se, prompts, 0.9)
        held += low <= mean <= high
        naive += abs(m - mean) <= 1.645 * np.sqrt(mean * (1 - mean) / (8 * prompts))
    assert 0.85 <= held / 2000 <= 0.995
    assert naive < held


def test_the_interval_stays_inside_and_never_is_a_point():
    for mean, se, prompts in ((0.0, 0.0, 5), (1.0, 0.0, 5), (0.5, None, 1), (0.99, 0.004, 200)):
        low, high = interval(mean, se, prompts, 0.9)
        assert 0.0 <= low < high <= 1.0
        assert low <= mean <= high
