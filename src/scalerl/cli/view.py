"""What `scalerl train` shows: lines for a log, or a live panel on a terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from scalerl.cli.pace import Pace, face, number

if TYPE_CHECKING:
    from scalerl.curves.live import Look
    from scalerl.recipe.schema import Recipe

HINT = "for a live view: pip install 'scalerl[train]' (it needs rich)"


class View(Protocol):
    """A run tells it what happens. Use as a context manager: leaving it frees the terminal."""

    def begin(self, recipe: Recipe, out: Path, resumed_at: int | None) -> None:
        """The run is about to start."""

    def say(self, line: str) -> None:
        """Anything worth a line; also before `begin` and after `end`."""

    def step(self, record: Mapping[str, Any]) -> None:
        """A line of steps.jsonl."""

    def evaluated(self, record: Mapping[str, Any], look: Look | None) -> None:
        """A line of evals.jsonl, and the fit of the points so far once there are enough."""

    def end(self, reason: str) -> None:
        """The run is over."""

    def __enter__(self) -> View: ...

    def __exit__(self, *_: object) -> None: ...


def make_view(plain: bool = False) -> View:
    """The live view where there is a terminal that can show it, else lines."""
    encoding = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "")
    if plain or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb" or encoding != "utf8":
        return PlainView()
    try:
        from scalerl.cli.live_view import LiveView
    except ImportError:
        view = PlainView()
        view.say(HINT)
        return view
    return LiveView()


class PlainView:
    """One line per event, flushed, for logs."""

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream
        self._clock = clock
        self._pace: Pace | None = None
        self._out: Path | None = None
        self._step = 0

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def begin(self, recipe: Recipe, out: Path, resumed_at: int | None) -> None:
        self._pace = Pace(recipe, self._clock)
        self._out = out
        self._step = resumed_at or 0
        self.say(opening(recipe, out, resumed_at))

    def say(self, line: str) -> None:
        stream = self._stream or sys.stdout
        coding = getattr(stream, "encoding", None) or "utf-8"
        print(line.encode(coding, "replace").decode(coding), file=stream, flush=True)

    def step(self, record: Mapping[str, Any]) -> None:
        self._step = int(record["step"])
        speed = ""
        if self._pace is not None:
            self._pace.add(record)
            speed = _speed(self._pace)
        self.say(step_line(record) + speed)

    def evaluated(self, record: Mapping[str, Any], look: Look | None) -> None:
        self.say(validation_line(record))
        if look is not None:
            self.say(f"  forecast: {', '.join(forecast_parts(look))}{alarm(look)}")

    def end(self, reason: str) -> None:
        for line in closing(self._step, reason, self._out):
            self.say(line)


# -- wording --------------------------------------------------------------------------------------


def opening(recipe: Recipe, out: Path, resumed_at: int | None) -> str:
    how = f"{recipe.schedule.name}-{recipe.schedule.k}"
    again = "" if resumed_at is None else f", resumed at step {resumed_at}"
    return f"training {recipe.name} ({how}) into {out}{again}"


def closing(step: int, reason: str, out: Path | None) -> list[str]:
    lines = [f"ended at step {step}: {reason}"]
    if out is not None:
        lines.append(f"scalerl report {out} -o {out}/report   shows it")
    return lines


def step_line(record: Mapping[str, Any]) -> str:
    parts = [f"step {int(record['step']):>5}"]
    for label, path, form in (
        ("reward", ("reward",), "+.3f"),
        ("pass", ("pass_rate",), ".3f"),
        ("truncated", ("truncated",), ".2f"),
        ("stale", ("staleness", "max"), ".0f"),
        ("ratio", ("ratio", "max"), ".2f"),
        ("grad", ("grad_norm",), ".2f"),
    ):
        parts.append(f"{label} {shown(number(record, *path), form)}")
    return "  ".join(parts)


def _speed(pace: Pace) -> str:
    parts = []
    for label, side in (("gen", pace.generators), ("train", pace.trainer)):
        if side.tokens is not None:
            parts.append(f"{label} {amount(side.tokens)} tok/s")
    if pace.left is not None:
        parts.append(f"{face(pace.left)} left")
    return "".join(f"  {part}" for part in parts)


def validation_line(record: Mapping[str, Any]) -> str:
    line = f"validation at step {record['step']}: pass rate {score(record)}"
    other = [f"{name} {score(found)}" for name, found in (record.get("downstream") or {}).items()]
    return line + (f"; downstream {', '.join(other)}" if other else "")


def score(record: Mapping[str, Any]) -> str:
    """A pass rate and its standard error, where it has one."""
    spread = number(record, "stderr")
    rate = shown(number(record, "pass_rate"), ".3f")
    return rate if spread is None else f"{rate} ± {spread:.3f}"


def forecast_parts(look: Look) -> list[str]:
    """What the fit says, piece by piece; of a ceiling that the points do not identify only that,
    and what they allow."""
    n = {name.removeprefix("forecast/"): value for name, value in look.numbers.items()}
    if n["identified"]:
        parts = [f"ceiling {n['A']:.3f} [{n['A_low']:.3f}, {n['A_high']:.3f}]"]
        parts += [f"B {n['B']:.2f}", f"C_mid {amount(n['C_mid'])}"]
    else:
        parts = [f"ceiling not identified yet [{n['A_low']:.2f}, {n['A_high']:.2f}]"]
    if "at_end" in n and look.end is not None and look.end > look.fit.end:
        parts.append(
            f"at the end {n['at_end']:.3f} [{n['at_end_low']:.3f}, {n['at_end_high']:.3f}]"
        )
    return [*parts, f"next doubling {n['next_doubling']:+.3f}"]


def alarm(look: Look) -> str:
    return "" if look.fit.alarm is None else f"; ALARM {look.fit.alarm}"


def shown(value: float | None, form: str) -> str:
    """A number, or a dash where a record has none."""
    return "-" if value is None else format(value, form)


def amount(value: float) -> str:
    """As the rest of the package writes compute; imported late since it brings numpy."""
    from scalerl.report.words import compute

    return compute(value)
