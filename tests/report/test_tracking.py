"""How downstream follows validation: coverage and error rates on curves with a known truth."""

import numpy as np
import pytest

from scalerl.report.tracking import downstream_scores, track, trackings
from scalerl.runs.lines import EvalLine


def curves(rng, n, slope, *, wander=0.6, stalls=False, low=0.1, high=0.85, middle=0.3, size=400):
    """A sigmoid and a set that gains `slope` of it, with ups and downs that last (an AR(1) process)
    and evaluations of 840 and `size` answers."""
    x = np.arange(1, n + 1)
    v = low + (high - low) / (1 + (middle * n / x) ** 1.3)
    e = np.zeros(n)
    for i in range(1, n):
        e[i] = wander * e[i - 1] + rng.normal() * np.sqrt(1 - wander**2)
    d = 0.1 + slope * (v - low)
    if stalls:
        d[n - n // 3 :] = d[n - n // 3]
    d = np.clip(d + 0.01 * e, 0, 1)
    return rng.binomial(840, v) / 840, rng.binomial(size, d) / size


def tracked(rng, n, slope, **more):
    v, d = curves(rng, n, slope, **more)
    return track("set", range(n), v, d, [840] * n, [more.get("size", 400)] * n)


@pytest.mark.parametrize("n", [10, 20, 40])
@pytest.mark.parametrize("slope", [0.0, 0.5])
def test_the_interval_holds_the_true_exchange_rate(n, slope):
    rng = np.random.default_rng(n)
    found = [tracked(rng, n, slope) for _ in range(250)]
    held = np.mean([t.interval[0] <= slope <= t.interval[1] for t in found])
    assert held >= 0.8
    follows = np.mean([t.relation == "follows" for t in found])
    assert follows > 0.99 if slope else follows < 0.12


def test_a_set_that_goes_on_as_before_is_hardly_ever_flagged():
    rng = np.random.default_rng(1)
    for slope in (0.0, 0.3, 1.0):
        flagged = [tracked(rng, 30, slope, wander=0.8).stalled for _ in range(200)]
        assert np.mean(flagged) < 0.05


def test_a_set_that_stalls_while_validation_rises_is_flagged_with_its_step():
    rng = np.random.default_rng(2)
    # Half way up when it ends: a validation that has much to rise yet.
    found = [tracked(rng, 40, 0.8, stalls=True, middle=1.0, size=4000) for _ in range(100)]
    assert np.mean([t.stalled for t in found]) > 0.7
    one = next(t for t in found if t.stalled)
    assert one.since == 40 - 40 // 3 and "step 27" in one.why


def test_nothing_is_said_of_a_validation_that_stands_still_or_of_few_points():
    rng = np.random.default_rng(3)
    still = tracked(rng, 30, 0.5, low=0.5, high=0.51)
    assert still.slope is None and still.relation == "unclear" and not still.stalled
    few = tracked(rng, 7, 0.5)
    assert few.slope is None and "7 evaluations" in few.why
    flat = track("x", range(9), [1.0] * 9, [1.0] * 9, [10] * 9, [10] * 9)
    assert flat.relation == "unclear" and flat.to_dict()["verdict"] == "cannot be told"


def test_sets_of_the_record_and_of_further_evaluations_are_joined_by_step():
    def line(step, rate, **more):
        return EvalLine.from_dict(
            {"step": step, "pass_rate": rate, "n_prompts": 100, "k": 4, **more}
        )

    rates = [0.1 + 0.07 * i for i in range(10)]
    score = [{"aime": {"pass_rate": r / 2, "n_prompts": 30, "k": 16}} for r in rates]
    evals = [line(i, r, downstream=s) for i, (r, s) in enumerate(zip(rates, score, strict=True))]
    evals[3] = line(3, None, failed="no verifier")
    other = [line(i, 0.9 - rates[i]) for i in range(10)]
    aime, mine = trackings(evals, downstream_scores(evals, {"mine": other}))
    assert (aime.name, aime.points, round(aime.slope, 1)) == ("aime", 9, 0.5)
    assert (mine.name, mine.relation) == ("mine", "falls")
    assert set(aime.to_dict()) >= {"name", "slope", "interval", "stalled", "since", "verdict"}
