"""A run that was changed under way: what came before informs the fit and does not bind it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from scalerl import Run, fit
from scalerl.curves.breaks import suspected_break
from scalerl.curves.formula import Array
from scalerl.curves.live import LiveCurve
from scalerl.curves.noise import MAX_BINS, bin_curve
from scalerl.curves.prediction import SigmoidPredictive
from scalerl.curves.residual_process import BREAK_BEND, BREAK_JUMP, ResidualCovariance
from scalerl.report.figures import plot_fit
from scalerl.report.terminal_curve import curve as terminal_curve

END = 600.0
AT = 240.0


def law(c: Array) -> Array:
    return np.asarray(0.2 + 0.5 / (1 + (150 / c) ** 1.4))


def changed(jump: float, seed: int = 0, n: int = 30, sd: float = 0.012) -> Run:
    """A curve that follows a law from the break on, and the law plus a jump before it."""
    c = np.linspace(END / n, END, n)
    noise = sd * np.random.default_rng(seed).standard_normal(n)
    return Run("mine", c, np.clip(law(c) + np.where(c <= AT, jump, 0.0) + noise, 0, 1), "steps")


@pytest.mark.parametrize("jump", [-0.15, 0.15])
def test_the_forecast_after_a_break_is_right_with_its_event_and_wrong_without(jump: float) -> None:
    at, seeds = np.array([2 * END]), range(8)
    errors, widths, held = np.zeros((2, len(seeds))), np.zeros((2, len(seeds))), 0
    for i in seeds:
        run = changed(jump, i)
        for k, breaks in enumerate(((AT,), ())):
            ahead = fit(run, breaks=breaks).predict(at)
            (low, high), truth = ahead.interval()[0], float(law(at)[0])
            errors[k, i] = abs(float(ahead.median[0]) - truth)
            widths[k, i] = high - low
            held += k == 0 and low <= truth <= high
    assert held >= len(seeds) - 1
    assert errors[0].mean() < 0.02
    assert errors[1].mean() > 2 * errors[0].mean()
    assert widths[0].mean() < 0.75 * widths[1].mean()


def test_points_before_a_break_still_inform() -> None:
    """Of the curve's slope the points after the break alone say less."""
    run = changed(-0.15)
    broken, after = fit(run, breaks=[AT]), fit(run, lo=AT + 1)
    b = [np.diff(np.log(f.interval("B")))[0] for f in (broken, after)]
    assert b[0] < 0.8 * b[1]


def test_the_jump_does_not_fade_into_the_forecast() -> None:
    """A departure from the law at the end of the window fades; a jump is none."""
    run = changed(-0.15, sd=0.004)
    found = fit(run, breaks=[AT]).predictive
    assert isinstance(found, SigmoidPredictive)
    assert abs(float(np.median(found.posterior.u_end))) < 0.03
    inside = fit(run, breaks=[AT]).predict([AT, AT + 20]).median
    assert inside[1] - inside[0] > 0.1


def test_a_run_without_a_jump_loses_little_by_an_event() -> None:
    run = changed(0.0)
    plain, broken = fit(run).predict([2 * END]), fit(run, breaks=[AT]).predict([2 * END])
    assert abs(float(plain.median[0] - broken.median[0])) < 0.02
    widths = [float(np.diff(p.interval()[0])[0]) for p in (plain, broken)]
    assert widths[1] < 1.5 * widths[0]


def test_the_covariance_of_a_break_is_that_of_its_definition() -> None:
    """Against matrices that are built point by point."""
    run = changed(-0.1, n=12)
    breaks = (150.0, 300.0)
    points = bin_curve(run.compute, run.score, None, breaks)
    plain = dataclasses.replace(points, breaks=np.empty(0))
    tau, cut = np.array([0.02, 0.1]), points.t[[0, 2]]
    found, none = (ResidualCovariance.from_points(each, tau, cut, 0.1) for each in (points, plain))
    n = len(points.t)
    extra = np.zeros((n, n))
    for at in np.log(breaks):
        for i in range(n):
            for j in range(n):
                if points.t[i] <= at and points.t[j] <= at:
                    slopes = (at - points.t[i]) * (at - points.t[j])
                    extra[i, j] += points.scale**2 * (BREAK_JUMP**2 + BREAK_BEND**2 * slopes)
    for k in range(2):
        sigma = [np.linalg.inv(c.whiten[k].T @ c.whiten[k]) for c in (found, none)]
        np.testing.assert_allclose(sigma[0] - sigma[1], extra, atol=1e-9)
        log_det = 0.5 * np.linalg.slogdet(sigma[0])[1]
        np.testing.assert_allclose(found.log_det[k], log_det, rtol=1e-9)
        cov = sigma[0] - np.diag(points.variance)
        expected = cov @ np.linalg.inv(sigma[0])
        weights, variance = found.at(k, points.t)
        np.testing.assert_allclose(weights, expected, atol=1e-7)
        np.testing.assert_allclose(variance, np.diag(cov - expected @ cov), atol=1e-9)
        # The last point lies after both breaks: the jumps reach it through the data only.
        assert cov[-1, 0] == pytest.approx(none._cov(k, points.t[-1:], points.t[:1])[0])


def test_no_bin_holds_points_of_both_sides() -> None:
    c = np.linspace(1, 900, 900)
    y = np.where(c <= 601, 0.2, 0.6)
    points = bin_curve(c, y, None, (601.0,))
    assert set(np.round(points.score, 9)) == {0.2, 0.6}
    assert len(points.t) <= MAX_BINS + 1
    assert np.isclose(points.rise, 0.0)
    assert points.score_variance < 1e-5
    assert bin_curve(c, y, None).score_variance > points.score_variance


def test_a_drop_at_an_event_is_no_decline() -> None:
    run = changed(0.3)
    assert fit(run.window(hi=320)).alarm is not None
    known = fit(run.window(hi=320), breaks=[AT])
    assert known.alarm is None
    assert known.alarms == ()


def test_an_alarm_before_an_event_ends_with_it() -> None:
    c = np.arange(1.0, 41.0)
    y = np.where((c > 10) & (c <= 20), 0.2, 0.6) + 0.003 * (-1.0) ** c
    spans = fit(c, y, breaks=[20]).alarms
    assert [span.cleared for span in spans] == [20.0]


def test_a_jump_without_an_event_is_named_with_the_option() -> None:
    run = changed(-0.15)
    found = suspected_break(run)
    assert found is not None
    assert found.at == AT
    assert found.height == pytest.approx(0.15, abs=0.04)
    (warning,) = [w for w in fit(run).warnings if "--event" in w]
    assert "the curve jumps by +0.1" in warning
    assert f"--event {AT:g}" in warning
    assert not [w for w in fit(run, breaks=[AT]).warnings if "--event" in w]
    assert fit(run).run.breaks == ()


def test_healthy_curves_are_rarely_suspected() -> None:
    assert sum(suspected_break(changed(0.0, seed)) is not None for seed in range(60)) <= 1


def test_other_methods_say_that_they_do_not_re_base() -> None:
    run = changed(-0.15)
    for options in ({"method": "paper"}, {"law": "power"}):
        said = fit(run, breaks=[AT], **options).warnings  # type: ignore[arg-type]
        assert any("does not re-base at 240" in w and "--from 240" in w for w in said)


def test_breaks_without_points_on_either_side_are_left_out() -> None:
    run = changed(0.0).with_breaks([0, 5, 240, 240, END, 900])
    assert run.breaks == (240.0,)
    assert run.window(hi=240).breaks == ()
    assert run.window(lo=250).breaks == ()
    assert run.window(lo=200).breaks == (240.0,)
    assert fit(run).to_dict()["breaks"] == [240.0]
    assert run.to_dict()["breaks"] == [240.0]


def test_pictures_show_a_line_at_each_break() -> None:
    found = fit(changed(-0.15), breaks=[AT, 400])
    axis = plot_fit(found).axes[0]
    upright = [line.get_xdata()[0] for line in axis.lines if len(set(line.get_xdata())) == 1]
    assert {AT, 400.0} <= set(upright)
    assert terminal_curve(found, encoding="utf-8").count("╎") > 8
    assert "! changed" in terminal_curve(found, encoding="ascii")


def test_a_live_curve_knows_the_steps_at_which_it_was_changed() -> None:
    live = LiveCurve("pass_rate", "gpu_hours", changed=(240, 900))
    run = changed(-0.15)
    for c, y in zip(run.compute, run.score, strict=True):
        live.add(int(c), c / 100, y)
    assert live.run.breaks == (2.4,)
