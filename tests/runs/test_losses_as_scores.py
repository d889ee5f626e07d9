"""Losses and error rates are not taken for scores: not by their names, and not by their range."""

from __future__ import annotations

import pytest

from scalerl.errors import InputError
from scalerl.runs import load_run
from scalerl.runs.score import direction

STEPS = list(range(0, 600, 100))
FALLS = [0.8, 0.6, 0.5, 0.45, 0.42, 0.4]
RISES = [0.2, 0.4, 0.5, 0.55, 0.58, 0.6]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("loss", "loss"), ("eval_loss", "loss"), ("eval/loss", "loss"), ("evalLoss", "loss"),
        ("val_perplexity", "loss"), ("ppl", "loss"), ("nll", "loss"), ("test/rmse", "loss"),
        ("cross_entropy", "loss"), ("bits_per_byte", "loss"), ("val_error", "error"),
        ("error_rate", "error"), ("dev.wer", "error"), ("val_err", "error"),
        ("failure_rate", "error"), ("val_acc", "score"), ("error_analysis/accuracy", "score"),
        ("lossless", "score"), ("acc_std_err", "score"), ("reward", "score"), ("y", "score"),
        ("explosion", "score"),
    ],
)  # fmt: skip
def test_the_name_says_whether_a_metric_falls(name: str, expected: str) -> None:
    assert direction(name) == expected


@pytest.mark.parametrize("scale", [1.0, 4.0])
@pytest.mark.parametrize("asked", [None, "eval_loss"])
def test_a_loss_is_refused_in_any_range(asked: str | None, scale: float) -> None:
    table = {"step": STEPS, "eval_loss": [scale * y for y in FALLS]}
    with pytest.raises(InputError, match="eval_loss is a loss"):
        load_run(table, y=asked)


def test_the_columns_that_could_serve_are_named() -> None:
    table = {"step": STEPS, "eval_loss": FALLS, "eval_accuracy": RISES, "grad_norm": FALLS}
    with pytest.raises(InputError, match=r"choose a score with --y: eval_accuracy$"):
        load_run(table, y="eval_loss")
    assert load_run(table).y_name == "eval_accuracy"


def test_an_error_rate_is_inverted_if_it_is_asked_for_and_that_is_said() -> None:
    table = {"step": STEPS, "val_error": FALLS}
    with pytest.raises(InputError, match="val_error is an error rate: --y val_error reads it as"):
        load_run(table)
    run = load_run(table, y="val_error")
    assert run.score == pytest.approx([1 - y for y in FALLS])
    assert run.y_name == "1 - val_error"
    assert "val_error is an error rate: read as 1 - val_error" in run.notes
    again = load_run(table, y=run.y_name)
    assert again.score.tolist() == run.score.tolist()
    percent = {"step": STEPS, "eval/wer": [100 * y for y in FALLS]}
    assert load_run(percent, y="eval/wer").score == pytest.approx(run.score)
    assert load_run(percent, y="eval/wer").y_name == "1 - `eval/wer`"


def test_a_metric_of_rows_that_is_a_loss_is_refused() -> None:
    table = {"metric": ["loss"] * 6, "step": STEPS, "value": FALLS}
    with pytest.raises(InputError, match="loss is a loss"):
        load_run(table)


def test_what_falls_outside_0_to_1_is_called_a_loss_whatever_its_name_is() -> None:
    table = {"step": STEPS, "quux": [2.5, 2.2, 2.1, 2.0, 1.95, 1.9]}
    with pytest.raises(InputError, match=r"quux falls from 2.5 to 1.9, as a loss does"):
        load_run(table)
    with pytest.raises(InputError, match="or choose --y val_acc"):
        load_run(table | {"val_acc": RISES}, y="quux")


def test_what_an_expression_makes_of_a_loss_is_its_authors() -> None:
    run = load_run({"step": STEPS, "eval_loss": FALLS}, y="1 - eval_loss/2")
    assert run.score == pytest.approx([1 - y / 2 for y in FALLS])
