"""Forecasts inside the training loop of a Hugging Face `Trainer` or a TRL trainer.

    ForecastCallback(metric="eval_reward", x="tokens").attach(trainer)

How the numbers reach the trackers: Transformers passes no trainer to a callback, and the reporting
callbacks (TensorBoard, W&B, trackio, ...) run before the user's, so changing `logs` in `on_log`
comes too late for them. `attach` therefore keeps the trainer, and a forecast is published by
`Trainer.log`: one record in `state.log_history` and one `on_log` event for every callback. That
event comes back to this callback and is ignored there.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Self

try:
    from transformers import Trainer, TrainerCallback
except ImportError as error:
    raise ImportError(
        "scalerl.callbacks needs transformers: pip install 'scalerl[callbacks]'"
    ) from error

from scalerl.curves.forecast import Forecast, forecast
from scalerl.curves.live import LiveCurve, LiveForecast, Scale
from scalerl.curves.result import Fit
from scalerl.curves.rules import parse_rule
from scalerl.errors import InputError
from scalerl.renamed import renamed_attributes
from scalerl.runs.record import ComputeKind, Run

log = logging.getLogger("scalerl.callbacks")

XName = Literal["steps", "tokens", "samples", "hours"]

_AXES = ("steps", "tokens", "samples", "hours")
#: Ends of the names under which TRL and Transformers log the tokens seen so far.
_TOKEN_KEYS = ("num_tokens", "num_input_tokens_seen")


class ForecastCallback(TrainerCallback):  # type: ignore[misc]
    """Fits the run's own curve after every evaluation, logs the forecast, stops by a rule.

    metric      name of the score. One that starts with "eval_" is read from evaluations, any
                other ("reward") from the training logs.
    x           "steps"; "tokens"; "samples" (rows of the training batches: for GRPO completions);
                "hours" of wall clock, or GPU-hours when `devices` says how many there are.
    scale       how the metric becomes a pass rate in [0, 1]: None (it is one), "pm1" for
                (r + 1) / 2, "percent", or a function of the value.
    n_eval      samples behind each score (prompts x generations), if known.
    min_points  points before the first fit.
    stop_when   a rule of `scalerl.curves.rules`, such as "gain < 0.01 per doubling".
    patience    points in a row at which the rule must hold: with many looks, one holds by chance.

    >>> callback = ForecastCallback(x="tokens", stop_when="gain < 0.01 per doubling or alarm")
    >>> callback.run
    Run('run', no points)
    """

    def __init__(
        self,
        metric: str = "eval_reward",
        *,
        x: XName = "steps",
        devices: int | None = None,
        scale: Scale = None,
        n_eval: int | None = None,
        min_points: int = 6,
        stop_when: str | None = None,
        patience: int = 2,
        name: str = "run",
    ) -> None:
        if metric.startswith("forecast/"):
            raise InputError(f"metric {metric!r} is a forecast itself: name what it should follow")
        if x not in _AXES:
            raise InputError(f"x must be one of {', '.join(_AXES)}, not {x!r}")
        if devices is not None and (x != "hours" or devices < 1):
            raise InputError("devices is a number of 1 or more and goes with x='hours'")
        if patience < 1:
            raise InputError(f"patience must be 1 or more, not {patience}")
        self.metric = metric
        self.x: XName = x
        self.devices = devices
        self.rule = None if stop_when is None else parse_rule(stop_when)
        self.patience = patience
        #: Why the rule stopped the run, or None.
        self.stop_reason: str | None = None
        self._options: dict[str, Any] = {
            "scale": scale,
            "n_eval": n_eval,
            "min_points": min_points,
            "name": name,
        }
        self._curve = self._new_curve()
        self._trainer: Any = None
        self._latest: LiveForecast | None = None
        #: Points in a row at which the stopping rule has held.
        self._streak = 0
        # time.monotonic() at which the run would have begun, had it not been interrupted, so that
        # hours go on after a resume; None outside of training.
        self._zero_hour: float | None = None

    @property
    def run(self) -> Run:
        """The curve so far."""
        return self._curve.run

    @property
    def fit(self) -> Fit | None:
        """The latest fit, on the main process; None before `min_points`."""
        return None if self._latest is None else self._latest.fit

    def forecast(self) -> Forecast | None:
        """The forecast for the end of training and the next doubling; None before the first fit."""
        if self._latest is None:
            return None
        end = self._latest.end
        return forecast(self._latest.fit, at=None if end is None else [end])

    if not TYPE_CHECKING:  # type checkers would take any attribute for an old name
        __getattr__ = renamed_attributes({"outlook": "forecast"}, "0.4")

    def attach(self, trainer: Any) -> Self:
        """Add this callback to a trainer and log to its trackers. Call it before `train()`."""
        if not isinstance(trainer, Trainer):
            raise InputError(f"attach needs a transformers.Trainer, not {type(trainer).__name__}")
        if self not in trainer.callback_handler.callbacks:
            trainer.add_callback(self)
        self._trainer = trainer
        return self

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._curve = self._new_curve()
        self._latest, self.stop_reason, self._streak = None, None, 0
        self._curve.rebuild(state.log_history, lambda record: self._past_compute(args, record))
        self._zero_hour = time.monotonic() - 3600.0 * self._hours_before(state)
        if not state.is_world_process_zero:
            return
        if len(self._curve):
            log.info("forecast resumed with %d points from the log", len(self._curve))
            self._latest = self._curve.forecast(self._curve.end(state.max_steps))
        if self._trainer is None:
            log.warning(
                "forecasts go to trainer.state.log_history only: "
                "callback.attach(trainer) before train() sends them to the trackers too"
            )

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._zero_hour = None

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any
    ) -> None:
        if self.metric.startswith("eval_"):
            self._update(args, state, control, metrics or {})

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        # Training records only: evaluations and this callback's own records have neither key.
        if not self.metric.startswith("eval_") and logs and ("loss" in logs or self.metric in logs):
            self._update(args, state, control, logs)

    def _update(self, args: Any, state: Any, control: Any, record: Mapping[str, Any]) -> None:
        """Add the point of this record, if it has one; then fit, publish, and maybe stop."""
        if self._zero_hour is None:  # trainer.evaluate() was called before or after training
            return
        if self.metric not in record:
            self._warn_missing(record)
            return
        step = int(state.global_step)
        compute = self._compute(args, state, record)
        numbers: dict[str, float] = {}
        reason = None
        # Only the main process fits; the others receive its forecast below.
        if self._curve.add(step, compute, record[self.metric]) and state.is_world_process_zero:
            numbers[self._curve.x_key] = compute
            found = self._curve.forecast(self._curve.end(state.max_steps), self.rule)
            if found is not None:
                self._latest = found
                numbers |= found.numbers
                self._streak = 0 if found.reason is None else self._streak + 1
                reason = found.reason if self._streak >= self.patience else None
        # Collective: every process must reach this line for every point, or the others hang.
        numbers, reason = _from_main_process(numbers, reason)
        if reason is not None:
            numbers["forecast/stop"] = 1.0
        if numbers:
            self._publish(state, numbers)
        if reason is not None and self.stop_reason is None:
            self.stop_reason = reason
            control.should_training_stop = True
            if state.is_world_process_zero:
                log.warning("training stops at step %d: %s", step, reason)

    def _publish(self, state: Any, numbers: dict[str, float]) -> None:
        if self._trainer is not None:
            # The base class's `log`: TRL's own would flush its half-filled averages with it.
            Trainer.log(self._trainer, dict(numbers))
        else:
            state.log_history.append({**numbers, "step": state.global_step})

    def _compute(self, args: Any, state: Any, record: Mapping[str, Any]) -> float:
        if self.x == "steps":
            return float(state.global_step)
        if self.x == "samples":
            return float(state.global_step * _batch(args))
        if self.x == "hours":
            assert self._zero_hour is not None
            return (time.monotonic() - self._zero_hour) / 3600.0 * (self.devices or 1)
        tokens = getattr(state, "num_input_tokens_seen", 0) or _tokens(record)
        if not tokens and state.global_step > 0:
            raise InputError(
                "this trainer counts no tokens: set include_num_input_tokens_seen=True in its "
                "arguments (TRL's GRPOTrainer needs nothing), or use x='steps'"
            )
        return float(tokens or 0)

    def _past_compute(self, args: Any, record: Mapping[str, Any]) -> float | None:
        """Compute of a record of an earlier part of the run, logged without this callback."""
        if self.x == "steps":
            return float(record["step"])
        if self.x == "samples":
            return float(record["step"] * _batch(args))
        return None if self.x == "hours" else _tokens(record)

    def _hours_before(self, state: Any) -> float:
        """Wall-clock hours of the run before the checkpoint that it resumes from."""
        last = self._curve.last
        if self.x != "hours" or last is None:
            return 0.0
        # The checkpoint may be before or after the last point: hours are scaled by steps.
        step, compute = last
        return compute / (self.devices or 1) * (state.global_step / step if step else 1.0)

    def _warn_missing(self, record: Mapping[str, Any]) -> None:
        if len(self._curve) == 0:
            names = ", ".join(sorted(k for k, v in record.items() if isinstance(v, int | float)))
            self._curve.warn_once("metric", f"no {self.metric!r} to forecast among: {names}")

    def _new_curve(self) -> LiveCurve:
        kind: ComputeKind = self.x
        if self.devices is not None:
            kind = "gpu_hours"
        return LiveCurve(self.metric, kind, warn=log.warning, **self._options)


def _batch(args: Any) -> int:
    """Samples per optimiser step, over all devices."""
    return int(args.train_batch_size * args.gradient_accumulation_steps * args.world_size)


def _tokens(record: Mapping[str, Any]) -> float | None:
    for key, value in record.items():
        if key.endswith(_TOKEN_KEYS) and value is not None:
            return float(value)
    return None


def _from_main_process(
    numbers: dict[str, float], reason: str | None
) -> tuple[dict[str, float], str | None]:
    """The main process's forecast on every process: all log it, and all stop at the same step."""
    distributed = importlib.import_module("torch.distributed")
    if not (distributed.is_available() and distributed.is_initialized()):
        return numbers, reason
    box: list[Any] = [numbers, reason]
    distributed.broadcast_object_list(box, src=0)
    return box[0], box[1]
