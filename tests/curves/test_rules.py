"""Stopping rules: what they read, what they refuse, and when they hold."""

from __future__ import annotations

import numpy as np
import pytest

from scalerl import Fit, InputError, fit
from scalerl.curves.rules import GRAMMAR, parse_rule


def curve(end: float, mid: float = 100.0, sd: float = 0.004, n: int = 40) -> Fit:
    """A run with ceiling 0.6 up to `end`."""
    compute = np.linspace(end / n, end, n)
    noise = np.random.default_rng(7).normal(0, sd, n)
    return fit(compute, 0.1 + 0.5 / (1 + (mid / compute) ** 1.7) + noise)


@pytest.mark.parametrize("line", GRAMMAR)
def test_every_line_of_the_grammar_is_read(line: str) -> None:
    rule = parse_rule(line.replace("NUMBER", "0.25"))
    assert len(rule.conditions) == 1


@pytest.mark.parametrize(
    "text",
    [
        "gain<.01 per doubling",
        "  Gain  <  0.010   per  doubling ",
        "GAIN < 0.01 PER DOUBLING",
    ],
)
def test_spaces_and_case_do_not_matter(text: str) -> None:
    condition = parse_rule(text).conditions[0]
    assert (condition.quantity, condition.bound, condition.quantile) == ("gain", 0.01, 0.95)


def test_or_joins_conditions_in_order() -> None:
    rule = parse_rule("median gain < 0.02 per doubling or P( end>0.6 )<0.05 or alarm")
    assert [c.quantity for c in rule.conditions] == ["gain", "probability", "alarm"]
    assert rule.conditions[0].quantile == 0.5
    assert (rule.conditions[1].score, rule.conditions[1].bound) == (0.6, 0.05)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "or",
        "alarm or",
        "alarm and end < 0.5",
        "gain < 0.01",
        "gain > 0.01 per doubling",
        "gain < -0.01 per doubling",
        "gain < 1e-2 per doubling",
        "P(end < 0.5) < 0.1",
        "loss < 1",
        "__import__('os')",
        None,
    ],
)
def test_what_is_not_in_the_grammar_is_refused_with_the_grammar(text: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_rule(text)
    message = str(refused.value)
    assert "\n" not in message
    assert all(line in message for line in GRAMMAR)


@pytest.mark.parametrize("text", ["end < 50", "gain < 0 per doubling", "P(end > 0.5) < 5"])
def test_numbers_that_are_no_fractions_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"must lie in \(0, 1\]"):
        parse_rule(text)


def test_a_young_run_is_not_stopped_and_a_finished_one_is() -> None:
    rule = parse_rule("gain < 0.03 per doubling")
    assert rule.check(curve(end=150)) is None
    reason = rule.check(curve(end=4000))
    assert reason is not None
    assert reason.startswith(
        "gain < 0.03 per doubling: the gain of the next doubling (to 8000) is "
    )


def test_the_median_gain_stops_before_the_upper_gain_does() -> None:
    f = curve(end=1500)
    assert parse_rule("median gain < 0.007 per doubling").check(f) is not None
    assert parse_rule("gain < 0.007 per doubling").check(f) is None


def test_the_end_is_judged_where_training_ends() -> None:
    f = curve(end=300)
    rule = parse_rule("P(end > 0.54) < 0.5")
    assert "probability of more than 0.54" in (rule.check(f, end=300) or "")
    assert rule.check(f, end=3000) is None


@pytest.mark.parametrize("text", ["end < 1", "median end < 1", "P(end > 0.99) < 1"])
def test_rules_about_the_end_need_to_know_it(text: str) -> None:
    f = curve(end=300)
    assert parse_rule(text).check(f, end=600) is not None
    assert parse_rule(text).check(f, end=None) is None


def test_a_decline_sets_off_the_alarm() -> None:
    compute = np.linspace(10, 400, 40)
    score = 0.1 + 0.4 * np.minimum(compute, 300) / 300 - 0.004 * np.maximum(compute - 300, 0)
    f = fit(compute, np.clip(score, 0, 1))
    assert (parse_rule("alarm").check(f) or "").startswith("alarm: declining")
    assert parse_rule("alarm").check(curve(end=400)) is None


@pytest.mark.parametrize("seed", range(4))
def test_a_slow_start_is_no_plateau_for_the_upper_gain(seed: int) -> None:
    """The median takes it for one: this is why the plain rule compares the upper end."""
    compute = np.arange(10.0, 160.0, 10.0)
    noise = np.random.default_rng(seed).normal(0, 0.01, len(compute))
    score = np.clip(0.1 + 0.5 / (1 + (600 / compute) ** 1.7) + noise, 0, 1)
    rule = parse_rule("gain < 0.02 per doubling")
    assert not any(rule.check(fit(compute[:n], score[:n])) for n in range(6, 16))
