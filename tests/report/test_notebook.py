"""What a notebook shows of each result, and that every result can be drawn and written down."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, fields
from typing import Any
from xml.etree import ElementTree

import pytest
from made_runs import HOSTILE, climbing, declining, known

from scalerl import backtest, compare, forecast


def results() -> dict[str, Any]:
    first, second = known("first"), known("second", seed=1)
    return {
        "fit": first,
        "prediction": first.predict([2e5, 4e5]),
        "forecast": forecast(first, target=[0.6], price=1.0, value=1.0),
        "comparison": compare(first, second),
        "backtest": backtest([climbing()], methods=["no change", "scalerl"]),
    }


@pytest.mark.parametrize("name", list(results()))
def test_every_result_is_frozen_and_has_text_html_json_and_a_picture(name: str) -> None:
    result = results()[name]
    with pytest.raises(FrozenInstanceError):
        setattr(result, fields(result)[0].name, None)
    assert "object at 0x" not in repr(result)
    ElementTree.fromstring(f"<div>{result._repr_html_()}</div>")
    json.dumps(result.to_dict())
    assert result.plot().axes


@pytest.mark.parametrize("name", HOSTILE)
def test_names_cannot_break_out_of_the_html(name: str) -> None:
    fit = known(name)
    for shown in (fit, forecast(fit), fit.predict([1e6]), compare(fit, known("other", seed=1))):
        ElementTree.fromstring(f"<div>{shown._repr_html_()}</div>")


def test_the_html_of_a_fit_says_what_the_text_says() -> None:
    html = known("mine")._repr_html_()
    assert "mine: sigmoid" in html and "it is heading for a ceiling of" in html
    assert "Alarm: declining" in declining()._repr_html_()


def test_long_tables_are_cut() -> None:
    ahead = known().predict(range(1000, 40_000, 1000))
    assert ahead._repr_html_().count("<tr>") == 21
    assert "and 19 more" in ahead._repr_html_()


def test_a_forecast_is_drawn_as_far_as_it_was_asked() -> None:
    fit = known()
    far = forecast(fit, at=[50 * fit.end]).plot().axes[0].get_xlim()[1]
    assert far > 50 * fit.end
