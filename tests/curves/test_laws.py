"""The laws: values, gradients, inverses, limits, and safety at the ends of the compute axis."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulate import PAPER

from scalerl.curves.laws import NoChange, PowerLaw, Sigmoid, logistic

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


@given(laws, st.floats(0.01, 0.99))
def test_inverse_undoes_value(law, fraction):
    c = law.compute_at_fraction(fraction)
    score = law.R_0 + fraction * (law.A - law.R_0)
    assert law.value(c) == pytest.approx(score, abs=1e-9)
    assert law.inverse(score) == pytest.approx(float(c), rel=1e-6)


def test_inverse_is_zero_below_the_start_and_infinite_above_the_ceiling():
    assert PAPER.inverse([0.2, 0.3, 0.645, 0.9]).tolist() == [0.0, 0.0, np.inf, np.inf]
    assert PAPER.compute_at_fraction([0.0, 1.0]).tolist() == [0.0, np.inf]
    assert PAPER.compute_at_fraction(0.9) == pytest.approx(8000 * 9 ** (1 / 1.7))


@pytest.mark.parametrize("law", [PAPER, PowerLaw(A=0.7, D=12.0, B=0.5), NoChange(A=0.4)])
def test_gradient_matches_finite_differences(law):
    c = np.array([300.0, 2000.0, 9000.0, 80000.0])
    analytic = law.gradient(c)
    for i, name in enumerate(law.names):
        params = law.params()
        h = 1e-6 * max(abs(params[name]), 1e-3)
        up, down = params | {name: params[name] + h}, params | {name: params[name] - h}
        numeric = (type(law)(**up).value(c) - type(law)(**down).value(c)) / (2 * h)
        np.testing.assert_allclose(analytic[:, i], numeric, rtol=1e-5, atol=1e-12)


def test_gradient_is_finite_at_the_ends_of_the_axis():
    for law in (PAPER, PowerLaw(A=0.7, D=12.0, B=0.5)):
        assert np.isfinite(law.gradient([0.0, 1e-300, 1e300])).all()


def test_sigmoid_turns_into_its_power_law_at_large_compute():
    limit = PAPER.limit()
    assert pytest.approx((0.645 - 0.30) * 8000**1.7) == limit.D
    far = np.array([1e6, 1e7])
    np.testing.assert_allclose(PAPER.value(far), limit.value(far), atol=2e-6)


def test_power_law_inverse_and_ceiling():
    law = PowerLaw(A=0.7, D=10.0, B=0.5)
    assert law.value(law.inverse(0.6)) == pytest.approx(0.6)
    assert law.inverse([0.7, 0.8]).tolist() == [np.inf, np.inf]
    assert np.isfinite(law.value([0.0, 1e-300, 1e300])).all()


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


def test_starting_values_are_near_the_truth():
    c = np.linspace(500, 60000, 50)
    start = Sigmoid.starting_values(c, PAPER.value(c))
    assert abs(start.A - PAPER.A) < 0.06
    assert 0.3 < start.C_mid / PAPER.C_mid < 3
    assert pytest.approx(0.63, abs=0.02) == NoChange.starting_values(c, PAPER.value(c)).A
