"""Verdicts of the points, the thresholds behind them, and their words."""

import subprocess
import sys
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from scalerl import compare, fit
from scalerl.curves import decision
from scalerl.curves.arms import MARGIN, WINNER_PROBABILITY, Arm
from scalerl.curves.decision import current_verdict, decide
from scalerl.curves.survival import SURVIVAL_PROBABILITY
from scalerl.curves.verdict import VERDICT_MEANINGS, VERDICT_WORDS, VerdictName
from scalerl.report import words


def pair(a_top=0.62, b_top=0.70, n=60, end=6.0, seed=0, sd=0.012):
    rng = np.random.default_rng(seed)
    c = np.linspace(0.1, end, n)
    arms = []
    for name, top in (("a", a_top), ("b", b_top)):
        y = 0.2 + (top - 0.2) / (1 + (1.0 / c) ** 1.5) + sd * rng.standard_normal(n)
        arms.append(Arm(name, (fit(c, np.clip(y, 0, 1), name=name),)))
    return arms


def test_two_runs_of_one_law_are_hardly_ever_told_apart():
    wrong = sum(decide(*pair(0.65, 0.65, seed=seed), 0.0).name == "higher-ceiling"
                for seed in range(30))  # fmt: skip
    assert wrong <= 2


def ended(a, b, level=0.9):
    """The pair of a comparison of two arms that were fitted at this level."""
    fits = [fit(arm.fits[0].run, level=level) for arm in (a, b)]
    return compare(*fits, budget=fits[0].end).pairs[0]


def excludes_zero(pair):
    low, high = pair.delta_a_interval
    return low > 0.0 or high < 0.0


#: Pairs near the border, of (ceiling of b, end, seed).
BORDER = [(0.67, 6.0, 24), (0.66, 6.0, 24), (0.66, 4.0, 17), (0.66, 6.0, 8), (0.65, 6.0, 19)]


@pytest.mark.parametrize("top, end, seed", BORDER)
@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
def test_a_verdict_never_contradicts_the_interval_beside_it(top, end, seed, level):
    found = ended(*pair(0.62, top, n=40, end=end, seed=seed), level)
    sure = max(found.p_a_higher, found.p_b_higher)
    if found.verdict == "higher-ceiling":
        assert excludes_zero(found)
        assert sure > (decision.KEEP_PROBABILITY if found.decided_at else WINNER_PROBABILITY)
    assert not (found.verdict == "undecided" and sure > max(WINNER_PROBABILITY, (1 + level) / 2))


def test_a_kept_verdict_says_so_in_every_form():
    """A pair whose sign has a probability of .95 to .97 now, and had more before."""
    found = ended(*pair(0.62, 0.66, n=40, end=6.0, seed=24))
    kept = replace(found, verdict="higher-ceiling", winner="b", decided_at=0.75, p_b_higher=0.961)
    said = "kept from 75 % of the compute, with probability 0.96 now"
    assert said in str(kept) and said in words.verdict(kept)
    assert said in words.verdict_sentence(kept, 0.9)
    assert "kept" not in str(replace(kept, decided_at=None))


def test_a_declining_loser_loses_by_its_points_before_the_alarm_too():
    """A fall can leave the ceiling of the loser open; before it, the loser was clearly lower."""
    a, b = pair(0.4, 0.85, sd=0.006)
    run = a.fits[0].run
    score = run.score.copy()
    score[48:] -= np.linspace(0.1, 0.3, 12)
    fallen = Arm("a", (fit(run.compute, np.clip(score, 0, 1), name="a"),))
    assert fallen.declines and len(fallen.before_alarm.fits[0].points) >= 48
    assert current_verdict(fallen, b, 0.0).winner == "b"
    # As if the fall had left the ceiling open.
    fallen.ceiling = np.linspace(0.3, 1.0, len(b.ceiling))
    assert decide(fallen, b, 0.0).name == "undecided"
    assert current_verdict(fallen, b, 0.0).winner == "b"
    low = Arm("b", (fit(b.fits[0].run.compute, 0.3 * b.fits[0].run.score, name="b"),))
    assert current_verdict(fallen, low, 0.0).name == "undecided"


def test_words_and_meanings_agree_with_the_code():
    assert set(VERDICT_WORDS) == set(VERDICT_MEANINGS) == set(get_args(VerdictName))
    higher = VERDICT_MEANINGS["higher-ceiling"]
    assert f"more than {100 * WINNER_PROBABILITY:.0f} %" in higher
    assert f"with {100 * SURVIVAL_PROBABILITY:.0f} % or more" in higher
    for name in ("faster", "same"):
        assert f"within {MARGIN:g}" in VERDICT_MEANINGS[name]
    assert f"within {100 * decision.SPEED_MARGIN:.0f} %" in VERDICT_MEANINGS["same"]


def test_the_words_import_nothing_heavy():
    code = "import sys, scalerl.curves.verdict; sys.exit('numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
