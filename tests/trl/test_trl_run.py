"""ForecastCallback in real training runs on a CPU: TRL's GRPOTrainer and a plain Trainer."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import plain
import pytest
import tiny
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from scalerl import InputError
from scalerl.callbacks import ForecastCallback

pytestmark = pytest.mark.trl

LOGGED = {
    f"forecast/{name}"
    for name in (
        *("A", "A_low", "A_high", "B", "C_mid", "identified", "next_doubling", "alarm"),
        *("at_end", "at_end_low", "at_end_high"),
    )
}


def forecasts(trainer: Any) -> list[dict[str, Any]]:
    return [r for r in trainer.state.log_history if "forecast/A" in r]


def test_forecasts_of_a_grpo_run_reach_log_history_and_tensorboard(tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path, 14, report_to=["tensorboard"], eval_steps=2)
    callback = ForecastCallback(x="tokens", n_eval=16).attach(trainer)
    trainer.train()

    evaluations = [r for r in trainer.state.log_history if "eval_reward" in r]
    assert callback.run.score.tolist() == [r["eval_reward"] for r in evaluations]
    assert callback.run.compute.tolist() == [r["eval_num_tokens"] for r in evaluations]
    logged = forecasts(trainer)
    assert [r["step"] for r in logged] == [12, 14]  # from the sixth point on
    assert logged[0].keys() >= LOGGED
    assert logged[0]["forecast/at_end_low"] < logged[0]["forecast/at_end"]
    assert logged[-1]["forecast/tokens"] == callback.run.compute[-1]
    assert logged[-1]["forecast/A"] == callback.fit.params["A"]

    events = EventAccumulator(str(next(tmp_path.rglob("events.out.tfevents.*")).parent)).Reload()
    for name in LOGGED:
        scalars = events.Scalars(f"train/{name}")
        assert [s.step for s in scalars] == [12, 14]
        np.testing.assert_allclose([s.value for s in scalars], [r[name] for r in logged], rtol=1e-5)


def test_forecasting_does_not_disturb_what_trl_logs(tmp_path: Path) -> None:
    alone = tiny.trainer(tmp_path / "a", 8)
    alone.train()
    watched = tiny.trainer(tmp_path / "b", 8)
    by_evaluation = ForecastCallback().attach(watched)
    watched.train()
    by_reward = tiny.trainer(tmp_path / "c", 8)
    callback = ForecastCallback("reward").attach(by_reward)
    by_reward.train()

    def rewards(trainer: Any) -> list[tuple[int, float]]:
        return [
            (r["step"], r[key])
            for r in trainer.state.log_history
            for key in ("reward", "eval_reward")
            if key in r
        ]

    assert rewards(alone) == rewards(watched) == rewards(by_reward)
    assert len(by_evaluation.run) == len(callback.run) == 8
    assert [r["step"] for r in forecasts(by_reward)] == [6, 7, 8]


def test_a_rule_stops_the_run_early_and_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = tiny.trainer(tmp_path, 200)
    callback = ForecastCallback(stop_when="alarm or P(end > 0.99) < 0.9", patience=2)
    callback.attach(trainer)
    with caplog.at_level(logging.WARNING, logger="scalerl.callbacks"):
        trainer.train()
    assert trainer.state.global_step < 30
    assert callback.stop_reason is not None
    assert callback.stop_reason.startswith("P(end > 0.99) < 0.9: ")
    assert callback.stop_reason in caplog.text
    assert forecasts(trainer)[-1]["forecast/stop"] == 1.0


@pytest.mark.parametrize("x", ["tokens", "hours"])
def test_a_resumed_run_has_the_same_points_once(tmp_path: Path, x: Any) -> None:
    devices = 4 if x == "hours" else None
    saving = {"save_strategy": "steps", "save_steps": 8}
    first = tiny.trainer(tmp_path, 8, **saving)
    before = ForecastCallback(x=x, devices=devices).attach(first)
    first.train()

    second = tiny.trainer(tmp_path, 11, **saving)
    after = ForecastCallback(x=x, devices=devices).attach(second)
    second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-8"))
    assert len(after.run) == 11
    assert after.run.compute[:8].tolist() == before.run.compute.tolist()
    assert after.run.score[:8].tolist() == before.run.score.tolist()
    assert (np.diff(after.run.compute) > 0).all()
    assert [r["step"] for r in forecasts(second)] == [6, 7, 8, 9, 10, 11]
    assert after.run.x_kind == ("gpu_hours" if x == "hours" else "tokens")


def test_a_plus_minus_one_reward_needs_to_be_declared(tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path / "a", 8, reward=tiny.plus_minus_one)
    ForecastCallback().attach(trainer)
    with pytest.raises(InputError, match=r"eval_reward = -0\.\d+ is not a score.*scale='pm1'"):
        trainer.train()
    assert trainer.state.global_step == 1

    trainer = tiny.trainer(tmp_path / "b", 7, reward=tiny.plus_minus_one)
    callback = ForecastCallback(scale="pm1").attach(trainer)
    trainer.train()
    assert callback.fit is not None
    assert 0 < callback.run.score.min() < 0.5


def test_a_plain_trainer_with_an_accuracy(tmp_path: Path) -> None:
    trainer = plain.trainer(tmp_path, 60, eval_on_start=True)
    callback = ForecastCallback("eval_accuracy", x="samples", n_eval=1024).attach(trainer)
    assert callback.forecast() is None
    trainer.train()
    assert callback.run.compute.tolist() == [160.0 * i for i in range(13)]
    assert callback.fit.r0_source == "measured"
    assert len(forecasts(trainer)) == 8
    middle = forecasts(trainer)[3]
    final = callback.run.score[-1]
    assert middle["forecast/at_end_low"] - 0.05 < final < middle["forecast/at_end_high"] + 0.05
    ahead = callback.forecast()
    assert ahead.at.compute.tolist() == [60 * 32]

    trainer.evaluate()  # after training: no new point, no new record
    assert len(callback.run) == 13 and len(forecasts(trainer)) == 8


def test_without_attach_only_the_log_history_gets_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = plain.trainer(tmp_path, 40)
    trainer.add_callback(ForecastCallback("eval_accuracy"))
    with caplog.at_level(logging.WARNING, logger="scalerl.callbacks"):
        trainer.train()
    assert [r["step"] for r in forecasts(trainer)] == [30, 35, 40]
    assert caplog.text.count("callback.attach(trainer)") == 1


def test_a_missing_metric_is_named_once_with_what_there_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = plain.trainer(tmp_path, 15)
    callback = ForecastCallback().attach(trainer)
    with caplog.at_level(logging.WARNING, logger="scalerl.callbacks"):
        trainer.train()
    assert len(callback.run) == 0
    assert caplog.text.count("no 'eval_reward' to forecast among: ") == 1
    assert "eval_accuracy" in caplog.text


def test_tokens_that_nobody_counts_are_refused_at_the_first_evaluation(tmp_path: Path) -> None:
    trainer = plain.trainer(tmp_path, 40)
    ForecastCallback("eval_accuracy", x="tokens").attach(trainer)
    with pytest.raises(InputError, match="include_num_input_tokens_seen=True"):
        trainer.train()
    assert trainer.state.global_step == 5


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"x": "epochs"}, "x must be one of steps, tokens, samples, hours"),
        ({"devices": 8}, "goes with x='hours'"),
        ({"x": "hours", "devices": 0}, "1 or more"),
        ({"stop_when": "loss < 1"}, r"use gain < NUMBER per doubling; .*; alarm"),
        ({"patience": 0}, "patience must be 1 or more"),
        ({"min_points": 3}, "min_points must be 5 or more"),
        ({"scale": "±1"}, "scale must be None, 'pm1'"),
        ({"metric": "forecast/A"}, "is a forecast itself"),
    ],
)
def test_bad_options_are_refused_at_construction(options: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        ForecastCallback(**options)


def test_attach_needs_a_trainer_and_joins_it_once(tmp_path: Path) -> None:
    callback = ForecastCallback("eval_accuracy")
    with pytest.raises(InputError, match=r"needs a transformers\.Trainer, not dict"):
        callback.attach({})
    trainer = plain.trainer(tmp_path, 5)
    callback.attach(trainer).attach(trainer)
    assert trainer.callback_handler.callbacks.count(callback) == 1


def test_two_processes_stop_at_the_same_step_with_the_same_log(tmp_path: Path) -> None:
    script = Path(__file__).with_name("two_processes.py")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launch, str(script), str(tmp_path)], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:]
    main, other = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert main["step"] == other["step"] < 200
    assert main["reason"] == other["reason"] is not None
    assert (main["fitted"], other["fitted"]) == (True, False)
    assert main["forecasts"] == other["forecasts"]
    assert main["forecasts"][0]["forecast/samples"] == 5 * 32 * 2
