"""What `scalerl train` shows: lines for a log, or a live panel on a terminal."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from scalerl.cli.throughput import RunThroughput, SideThroughput, ValidationProgress
from scalerl.files import to_json
from scalerl.runs import commands
from scalerl.runs.listener import Listener
from scalerl.text import clock_text

if TYPE_CHECKING:
    from scalerl.curves.live import LiveForecast
    from scalerl.recipe.schema import Recipe
    from scalerl.runs.lines import EvalLine, EventLine, Play, SetScore, StepLine
    from scalerl.training import RunEnd

HINT = "for a live view: pip install 'scalerl[train]' (it needs rich)"


def make_view(plain: bool = False) -> Listener:
    """The live view where there is a terminal that can show it, else lines."""
    if plain or not can_draw(sys.stdout):
        return PlainView()
    try:
        from scalerl.cli.live_view import LiveView
    except ImportError:
        view = PlainView()
        view.say(HINT)
        return view
    return LiveView()


def can_draw(stream: TextIO | None) -> bool:
    """Whether the stream is a terminal that can show a live panel."""
    if stream is None or not stream.isatty() or os.environ.get("TERM") == "dumb":
        return False
    # The panel is drawn with characters that other encodings lack.
    return (getattr(stream, "encoding", None) or "").lower().replace("-", "") == "utf8"


class PlainView(Listener):
    """One line per event, flushed, for logs."""

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream
        self._clock = clock
        self._pace: RunThroughput | None = None
        self._validation = ValidationProgress(clock)
        self._out: Path | None = None
        self._step = 0

    def begin(self, recipe: Recipe, out: Path, resumed_at: int | None) -> None:
        self._pace = RunThroughput(recipe, self._clock)
        self._out = out
        self._step = resumed_at or 0
        # A run that goes back to a checkpoint has dropped the validation under way.
        self._validation.over()
        self.say(opening(recipe, out, resumed_at))

    def say(self, line: str) -> None:
        stream = self._stream or sys.stdout
        # Names of runs may hold characters that the terminal's encoding lacks: never fail on them.
        coding = getattr(stream, "encoding", None) or "utf-8"
        print(line.encode(coding, "replace").decode(coding), file=stream, flush=True)

    def step(self, line: StepLine) -> None:
        self._step = line.step
        speed = ""
        if self._pace is not None:
            self._pace.add(line)
            speed = _speed(self._pace)
        self.say(step_line(line) + speed)

    def validating(self, step: int, written: int, checked: int, total: int) -> None:
        self._validation.add(step, written, checked, total)
        if self._validation.due():
            self.say(str(self._validation))

    def evaluated(self, line: EvalLine, look: LiveForecast | None) -> None:
        self._validation.over()
        self.say(validation_line(line))
        if look is not None:
            self.say(f"  forecast: {', '.join(forecast_parts(look))}{alarm(look)}")

    def end(self, reason: str) -> None:
        for line in closing(self._step, reason, self._out):
            self.say(line)


class JsonView(PlainView):
    """Lines of JSON, flushed as they come. The last is an `end`, or `failed`;
    docs/reference/json.md says what each kind holds."""

    def __init__(self) -> None:
        # Words go to stderr, so that every line of stdout is JSON.
        super().__init__(sys.stderr)

    def begin(self, recipe: Recipe, out: Path, resumed_at: int | None) -> None:
        super().begin(recipe, out, resumed_at)
        self._write("begin", {"run": str(out), "recipe": recipe.name, "resumed_at": resumed_at})

    def step(self, line: StepLine) -> None:
        self._write("step", line.to_dict())

    def validating(self, step: int, written: int, checked: int, total: int) -> None:
        self._validation.add(step, written, checked, total)
        if self._validation.due():
            state = {"step": step, "written": written, "checked": checked, "total": total}
            self._write("validating", state)

    def evaluated(self, line: EvalLine, look: LiveForecast | None) -> None:
        self._validation.over()
        numbers = None if look is None else look.numbers
        self._write("validation", line.to_dict() | {"forecast": numbers})

    def noted(self, line: EventLine) -> None:
        self._write("event", line.to_dict())

    def end(self, reason: str) -> None:
        """The line of the end has more to say."""

    def ended(self, end: RunEnd) -> None:
        self._write("end", end.to_dict())

    def failed(self, error: Exception) -> None:
        self._write("failed", {"why": str(error)})

    def _write(self, kind: str, found: dict[str, Any]) -> None:
        print(to_json({"kind": kind, **found}), flush=True)


# -- wording --------------------------------------------------------------------------------------


def opening(recipe: Recipe, out: Path, resumed_at: int | None) -> str:
    how = f"{recipe.schedule.name}-{recipe.schedule.k}"
    again = "" if resumed_at is None else f", resumed at step {resumed_at}"
    return f"training {recipe.name} ({how}) into {out}{again}"


def closing(step: int, reason: str, out: Path | None) -> list[str]:
    lines = [f"ended at step {step}: {reason}"]
    if out is not None:
        lines.append(f"for a report: {commands.report(out)}")
    return lines


def step_line(line: StepLine) -> str:
    parts = [f"step {line.step:>5}"]
    for label, value, form in (
        ("reward", line.reward, "+.3f"),
        ("pass", line.pass_rate, ".3f"),
        ("truncated", line.truncated, ".2f"),
        ("stale", line.staleness.max, ".0f"),
        ("ratio", line.ratio.max, ".2f"),
        ("grad", line.grad_norm, ".2f"),
    ):
        parts.append(f"{label} {shown(value, form)}")
    parts += [f"{label} {value}" for label, value in play_fields(line.play)]
    return "  ".join(parts)


def play_fields(play: Play | None) -> list[tuple[str, str]]:
    """What the episodes did, as means over a batch, with labels; what did not happen is left out.

    >>> from scalerl.runs.lines import EpisodePlay, Play
    >>> play_fields(Play.from_episodes([(EpisodePlay(3, 2, 0, 0, 0.25), "turns")]))
    [('turns', '3.0'), ('tool calls', '2.0'), ('out of turns', '1.00'), ('environment', '0.25 s')]
    """
    if play is None:
        return []
    found = [("turns", shown(play.turns, ".1f"))]
    for label, value, form in (
        ("tool calls", play.tool_calls, ".1f"),
        ("tool failures", play.tool_failures, ".2f"),
        ("forks", play.forks, ".2f"),
        ("out of turns", play.out_of_turns, ".2f"),
        ("failed", play.failed, ".2f"),
    ):
        found += [(label, shown(value, form))] if value > 0 else []
    return [*found, ("environment", f"{shown(play.environment_seconds, '.2g')} s")]


def _speed(pace: RunThroughput) -> str:
    parts = []
    for label, side in zip(("gen", "train"), pace.sides(), strict=True):
        if side.tokens is not None:
            note = waits(side, pace.recipe)
            parts.append(f"{label} {amount(side.tokens)} tok/s" + (f" ({note})" if note else ""))
    if pace.left is not None:
        parts.append(f"{clock_text(pace.left)} left")
    return "".join(f"  {part}" for part in parts)


def generators(recipe: Recipe) -> str:
    """What they are called: one or several."""
    return "generators" if recipe.placement.generators > 1 else "generator"


def waits(side: SideThroughput, recipe: Recipe) -> str:
    """What a side waits for, in words; "" if it does not wait."""
    if side.waits_for is None:
        return ""
    other = generators(recipe) if side.waits_for == "generators" else side.waits_for
    return f"waits for the {other}"


def validation_line(line: EvalLine) -> str:
    said = f"validation at step {line.step}: pass rate {score(line)}"
    if line.pass_rate is not None and line.unscored:
        said += f" ({line.unscored} answers unscored)"
    other = [f"{name} {score(found)}" for name, found in (line.downstream or {}).items()]
    said += f"; downstream {', '.join(other)}" if other else ""
    heated = (line.temperatures or {}).items()
    return said + "".join(f"; at temperature {t}: {score(found)}" for t, found in heated)


def score(of: EvalLine | SetScore) -> str:
    """A pass rate and its standard error, where it has one."""
    if of.failed is not None:
        return "none, it failed"
    rate = shown(of.pass_rate, ".3f")
    return rate if of.stderr is None else f"{rate} ± {of.stderr:.3f}"


def forecast_parts(look: LiveForecast) -> list[str]:
    """What the fit says, piece by piece; of a ceiling that the points do not identify only that,
    and what they allow."""
    n = {name.removeprefix("forecast/"): value for name, value in look.numbers.items()}
    if n["identified"]:
        parts = [f"ceiling {n['A']:.3f} [{n['A_low']:.3f}, {n['A_high']:.3f}]"]
        parts += [f"B {n['B']:.2f}", f"C_mid {amount(n['C_mid'])}"]
    else:
        parts = [f"ceiling not identified yet [{n['A_low']:.2f}, {n['A_high']:.2f}]"]
    # At the end of the budget there is nothing left to forecast.
    if "at_end" in n and look.end is not None and look.end > look.fit.end:
        parts.append(
            f"at the end {n['at_end']:.3f} [{n['at_end_low']:.3f}, {n['at_end_high']:.3f}]"
        )
    # What a collapsed run may recover is not a gain that compute buys.
    if look.fit.alarm is not None:
        return parts
    return [*parts, f"next doubling {n['next_doubling']:+.3f}"]


def alarm(look: LiveForecast) -> str:
    return "" if look.fit.alarm is None else f"; ALARM {look.fit.alarm}"


def shown(value: float | None, form: str) -> str:
    """A number, or a dash where a line has none."""
    return "-" if value is None or math.isnan(value) else format(value, form)


def amount(value: float) -> str:
    """As the rest of the package writes compute; imported late since it brings numpy."""
    from scalerl.report.words import compute

    return compute(value)
