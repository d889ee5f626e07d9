"""How much more compute would settle a question: an answer that does not hang on luck or units."""

import json
from dataclasses import replace

import numpy as np
import pytest
from simulate import PAPER, curve

from scalerl import compare, fit, load_run, load_runs
from scalerl.curves.compute_needed import (
    MULTIPLES,
    TRIALS,
    Continuations,
    compute_to_identify,
    multiple_for_share,
    search_compute,
)

#: One step of the search.
STEP = np.sqrt(2.0) * 1.001


def half_way():
    """A run that ends at C_mid, evaluated at round numbers; its ceiling is not identified."""
    c, y = curve(PAPER, 8000.0, np.random.default_rng(1), n=40)
    return np.round(c, 6), y


def alike(first, second):
    """Two answers within one step of the search, with intervals that overlap for the most part."""
    assert first.multiple / STEP <= second.multiple <= first.multiple * STEP
    a, b = ([np.log(v or 2 * MULTIPLES[-1]) for v in x.interval] for x in (first, second))
    both = min(a[1], b[1]) - max(a[0], b[0])
    either = max(a[1], b[1]) - min(a[0], b[0])
    assert both > 0.6 * either, (first, second)


@pytest.fixture(scope="module")
def answer():
    return compute_to_identify(fit(*half_way()))


@pytest.mark.parametrize("times", [*(1 + 1e-4 * i for i in range(1, 8)), 1000.0, 1 / 3600])
def test_the_answer_is_the_same_in_every_unit_of_compute(answer, times):
    c, y = half_way()
    found = compute_to_identify(fit(c * times, y))
    assert (found.multiple, found.interval) == (answer.multiple, answer.interval)
    assert found.compute == pytest.approx(answer.compute * times)


def test_a_fit_is_the_same_in_every_unit_of_compute():
    """At 1,500 steps an evaluation every 50 lies exactly at 10, 20 and 30 % of the compute, where
    the law may begin."""
    c = np.arange(50.0, 1501.0, 50.0)
    y = PAPER.value(8 * c) + 0.005 * np.random.default_rng(3).standard_normal(len(c))
    first = fit(c, y)
    for times in (1.0001, 1000.0, 1 / 3600):
        again = fit(c * times, y)
        np.testing.assert_allclose(again.predictive.parameter("A"), first.predictive.parameter("A"))
        np.testing.assert_allclose(
            again.predict(2 * times * c).median, first.predict(2 * c).median, rtol=1e-6
        )


def test_the_answer_is_the_same_from_every_file(answer, tmp_path):
    c, y = half_way()
    rows = list(zip(c, y, strict=True))
    (tmp_path / "a.csv").write_text("step,score\n" + "".join(f"{x},{v}\n" for x, v in rows))
    (tmp_path / "b.csv").write_text("step,score\n" + "".join(f"{x:.6g},{v:.6f}\n" for x, v in rows))
    (tmp_path / "c.tsv").write_text(
        "step\tscore\n" + "".join(f"{x:.5g}\t{v:.4f}\n" for x, v in rows)
    )
    lines = (json.dumps({"step": x, "score": v}) + "\n" for x, v in rows)
    (tmp_path / "d.jsonl").write_text("".join(lines))
    for name in ("a.csv", "b.csv", "c.tsv", "d.jsonl"):
        alike(answer, compute_to_identify(fit(load_run(str(tmp_path / name)))))


def test_a_run_that_is_nearly_identified_needs_less_than_one_that_has_hardly_begun():
    rng = np.random.default_rng(2)
    easy = compute_to_identify(fit(*curve(PAPER, 22000.0, rng, n=100)))
    hard = compute_to_identify(fit(*curve(PAPER, 3000.0, rng, n=25, sd=0.01)))
    assert easy.multiple < 2.0 and easy.interval[1] < 4.0
    assert hard.multiple is None or hard.multiple > 4.0
    assert hard.interval[0] > easy.multiple


def test_what_happens_lies_inside_the_interval_mostly():
    """Runs that do go on, fitted again at each multiple: of 12, the interval of 80 % holds 8."""
    held, rng = 0, np.random.default_rng(5)
    for end in np.repeat([4000.0, 8000.0, 12000.0], 4):
        c, y = curve(PAPER, 16 * end, rng, n=480)
        found = compute_to_identify(fit(c[:30], y[:30]))
        cut = [int(30 * m) for m in MULTIPLES]
        first = next((k for k, n in enumerate(cut) if fit(c[:n], y[:n]).identified), len(cut))
        low, high = (v or np.inf for v in found.interval)
        reached = [1.0, *MULTIPLES, np.inf]
        held += low <= reached[first + 1] and high >= reached[first]
    assert held >= 8


def test_a_trial_is_one_path_for_all_multiples():
    continuations = Continuations.simulate(fit(*half_way()))
    short, long = (continuations.refit(3, m).points for m in (2.0, 4.0))
    np.testing.assert_array_equal(long.score[: len(short)], short.score)
    assert short.compute[-1] == pytest.approx(16000.0) and long.compute[-1] == pytest.approx(32000)
    # Evaluated as often as before: 40 evaluations for every 8,000.
    assert (len(short), len(long)) == (80, 160)


def test_the_share_that_is_asked_for_only_raises_the_answer():
    rng = np.random.default_rng(0)
    for _ in range(20):
        first = rng.integers(0, len(MULTIPLES) + 1, TRIALS).tolist()
        found = [multiple_for_share(first, share) or np.inf for share in np.linspace(0.05, 1.0, 20)]
        assert found == sorted(found)


def test_a_question_that_is_never_settled_has_no_compute():
    found = search_compute("decide", 100.0, lambda trial, multiple: trial == 0, trials=4)
    assert found.compute is None and found.multiple is None and found.settled == 0.25
    assert str(found).startswith("more than 16 times the compute so far") and "25 %" in str(found)
    json.dumps(found.to_dict(), allow_nan=False)


def test_the_compute_that_decides_a_pair_is_the_same_in_every_unit_and_file(tmp_path):
    rng = np.random.default_rng(2)
    curves = [curve(replace(PAPER, A=a), 16000.0, rng, n=40) for a in (0.645, 0.70)]

    def needed(times, digits):
        fits = [
            fit(c * times, np.round(y, digits), name=n)
            for n, (c, y) in zip("ab", curves, strict=True)
        ]
        pair = compare(fits, planning=True).pairs[0]
        assert pair.verdict == "undecided"
        return pair.need

    first = needed(1.0, 17)
    for times in (1.0001, 1.0002, 1000.0, 1 / 3600):
        found = needed(times, 17)
        assert (found.multiple, found.interval) == (first.multiple, first.interval)
    for digits in (6, 4):
        alike(first, needed(1.0, digits))


def test_the_answer_in_the_tutorial():
    (run,) = [r for r in load_runs("docs/tutorial/wandb_export.csv") if r.name == "cispo-fp32"]
    assert compute_to_identify(fit(run)).multiple == 2.4


def test_the_quicker_fits_of_trials_agree_with_whole_ones():
    """Fewer draws make an interval rougher, not narrower or wider."""
    continuations = Continuations.simulate(fit(*half_way()))
    ratio, agree = [], []
    for trial in range(10):
        for multiple in (1.5, 3.0, 6.0):
            quick = continuations.refit(trial, multiple)
            whole = fit(quick.run)
            (low, high), (first, last) = quick.interval("A"), whole.interval("A")
            ratio.append((high - low) / (last - first))
            agree.append(quick.identified == whole.identified)
    assert np.mean(ratio) == pytest.approx(1.0, abs=0.03) and np.std(ratio) < 0.1
    assert np.mean(agree) >= 0.9
