"""Verdicts that stand: what was decided stays decided while the points keep saying so."""

import numpy as np

from scalerl import fit
from scalerl.curves import standing
from scalerl.curves.arms import Arm
from scalerl.curves.standing import settle
from scalerl.curves.verdict import decide


def pair(a_top=0.62, b_top=0.70, n=60, end=6.0, seed=0, sd=0.012):
    rng = np.random.default_rng(seed)
    c = np.linspace(0.1, end, n)
    arms = []
    for name, top in (("a", a_top), ("b", b_top)):
        y = 0.2 + (top - 0.2) / (1 + (1.0 / c) ** 1.5) + sd * rng.standard_normal(n)
        arms.append(Arm(name, (fit(c, np.clip(y, 0, 1), name=name),)))
    return arms


def test_a_clear_verdict_needs_no_looking_back():
    a, b = pair(0.5, 0.8)
    found = settle(a, b, 0.0)
    assert (found.name, found.winner, found.decided_at) == ("higher-ceiling", "b", None)


def test_a_verdict_that_was_decided_stands_above_the_lower_bar(monkeypatch):
    """The bar for taking a side is raised until the pair is undecided now, but was decided before
    under the bar of then: it stands, and says since when."""
    a, b = pair(0.62, 0.72)
    assert decide(a, b, 0.0).name == "higher-ceiling"

    def as_if(before, now, real=decide):
        def decide_(x, y, sd):
            found = real(x, y, sd)
            p = now if x.end == a.end else before
            return standing.replace(found, name="higher-ceiling" if p > 0.97 else "undecided",
                                    winner="b" if p > 0.97 else None,
                                    p_higher=(1 - p, p), both_open=False)  # fmt: skip

        return decide_

    monkeypatch.setattr(standing, "decide", as_if(before=0.98, now=0.93))
    found = settle(a, b, 0.0)
    assert (found.name, found.winner) == ("higher-ceiling", "b")
    assert found.decided_at == standing.LOOKS[0]
    monkeypatch.setattr(standing, "decide", as_if(before=0.98, now=0.85))
    assert settle(a, b, 0.0).name == "undecided"
    monkeypatch.setattr(standing, "decide", as_if(before=0.96, now=0.93))
    assert settle(a, b, 0.0).name == "undecided"


def test_two_runs_of_one_law_are_hardly_ever_told_apart():
    wrong = sum(settle(*pair(0.65, 0.65, seed=seed), 0.0).name == "higher-ceiling"
                for seed in range(30))  # fmt: skip
    assert wrong <= 2
