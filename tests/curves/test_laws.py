"""The laws: formulas that are safe at the ends of the compute axis, and how laws are found."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulate import PAPER

from scalerl import InputError, fit
from scalerl.curves.formula import Sigmoid, logistic
from scalerl.curves.laws import LAWS, NO_CHANGE, POWER, SIGMOID
from scalerl.curves.laws.power import PowerLaw, fit_power

laws = st.builds(
    lambda r0, gain, b, mid: Sigmoid(R_0=r0, A=r0 + gain * (1 - r0), B=b, C_mid=10**mid),
    st.floats(0, 0.9),
    st.floats(0.01, 1),
    st.floats(0.2, 6),
    st.floats(-3, 25),
)


def test_sigmoid_gives_the_papers_unit_values():
    assert PAPER.value([2000, 8000, 20000, 50000]).round(4).tolist() == [
        0.3299,
        0.4725,
        0.5850,
        0.6303,
    ]


@given(laws)
def test_sigmoid_is_safe_and_bounded_at_zero_tiny_and_huge_compute(law):
    values = law.value([0.0, 1e-300, 1e-10, law.C_mid, 1e30, 1e300])
    assert np.isfinite(values).all()
    assert values[0] == law.R_0
    assert values[3] == pytest.approx((law.R_0 + law.A) / 2)
    assert (np.diff(values) >= -1e-15).all()
    assert values[-1] == pytest.approx(law.A, abs=1e-6) or law.B < 0.3


def test_power_law_is_the_limit_of_the_sigmoid_at_large_compute():
    limit = PowerLaw(A=PAPER.A, D=(PAPER.A - PAPER.R_0) * PAPER.C_mid**PAPER.B, B=PAPER.B)
    far = np.array([1e6, 1e7])
    np.testing.assert_allclose(PAPER.value(far), limit.value(far), atol=2e-6)


def test_power_law_is_finite_at_the_ends_of_the_axis():
    assert np.isfinite(PowerLaw(A=0.7, D=10.0, B=0.5).value([0.0, 1e-300, 1e300])).all()
    assert PowerLaw(A=0.7, D=0.0, B=0.5).value([0.0, 10.0]).tolist() == [0.7, 0.7]


def test_least_squares_finds_the_power_law_it_was_given():
    c = np.geomspace(100, 50000, 30)
    found = fit_power(c, PowerLaw(A=0.7, D=3.0, B=0.4).value(c))
    assert found.sse < 1e-10
    assert found.formula.params() == pytest.approx({"A": 0.7, "D": 3.0, "B": 0.4}, rel=1e-3)


def test_efficiency_replot_is_a_straight_line_of_slope_b():
    c = np.geomspace(500, 60000, 30)
    log_c, log_f = PAPER.efficiency(c, PAPER.value(c))
    np.testing.assert_allclose(log_f, PAPER.B * log_c, atol=1e-9)


def test_efficiency_replot_drops_points_outside_the_gain():
    log_c, _ = PAPER.efficiency([0, 100, 1000, 10000], [0.35, 0.30, 0.4, 0.645])
    assert np.exp(log_c).round().tolist() == [1000]


@given(st.floats(-1e12, 1e12))
def test_logistic_never_leaves_zero_one(z):
    assert 0.0 <= float(logistic(z)) <= 1.0


def test_no_change_is_the_mean_of_the_last_points():
    c = np.linspace(500, 60000, 50)
    assert fit(c, PAPER.value(c), law="no-change").params["A"] == pytest.approx(0.63, abs=0.02)
    f = fit([1, 2, 3, 4, 5, 6], [0.1, 0.1, 0.2, 0.2, 0.3, 0.4], law="no-change")
    assert f.params == {"A": pytest.approx(0.3)}


@pytest.mark.parametrize("law", [SIGMOID, POWER, NO_CHANGE], ids=lambda law: law.name)
def test_every_law_has_its_own_least_squares(law):
    c = np.geomspace(500, 60000, 40)
    f = fit(c, PAPER.value(c), law=law)
    best = f.least_squares()
    assert set(best.formula.params()) == set(f.params)
    residual = best.formula.value(c) - PAPER.value(c)
    assert best.sse == pytest.approx(float((residual**2).sum()), abs=1e-9)


def test_a_law_is_given_by_name_or_as_it_is():
    c = np.linspace(500, 60000, 20)
    assert LAWS["power"] is POWER
    assert (
        fit(c, PAPER.value(c), law="power").to_dict() == fit(c, PAPER.value(c), law=POWER).to_dict()
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"law": "sigmod"}, "no law 'sigmod': did you mean 'sigmoid'"),
        ({"law": "qqq"}, "no law 'qqq': there are .*no-change, power, sigmoid"),
        ({"law": "no.such.module:LAW"}, "cannot be imported"),
        ({"law": "math:pi"}, "'math:pi' is not a law but a float"),
        ({"law": "power", "method": "paper"}, "the power law has no method 'paper'"),
        ({"method": "bayes"}, "the sigmoid has no method 'bayes', only posterior, paper"),
    ],
)
def test_unknown_laws_and_methods_are_refused_in_one_line(options, message):
    with pytest.raises(InputError, match=message) as refused:
        fit([1, 2, 3, 4, 5], [0.1, 0.2, 0.3, 0.35, 0.4], **options)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("law", ["line", "ensemble"])
def test_rivals_predict_their_own_curves(law):
    """The line goes on as a line, and the ensemble finds a family that it contains."""
    c = np.linspace(10, 1000, 60)
    y = 0.05 + 0.05 * np.log(c) if law == "line" else 0.7 - 0.9 * c**-0.5
    f = fit(c, y + 0.003 * np.random.default_rng(0).standard_normal(60), law=law)
    truth = 0.05 + 0.05 * np.log(4000.0) if law == "line" else 0.7 - 0.9 * 4000.0**-0.5
    assert f.predict([4000.0]).median[0] == pytest.approx(truth, abs=0.015)
    assert not f.identified and f.law.least_squares(c, y, None).sse < 0.01
