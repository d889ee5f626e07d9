"""The live panel of `scalerl train`. (Only this and that of `scalerl study` import rich.)"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleRenderable, Group, RenderableType
from rich.control import Control
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from scalerl.cli import view as words
from scalerl.cli.throughput import RunThroughput, SideThroughput, ValidationProgress
from scalerl.report.terminal_curve import curve
from scalerl.runs.listener import Listener
from scalerl.text import clock_text

if TYPE_CHECKING:
    from scalerl.curves.live import LiveForecast
    from scalerl.recipe.schema import Recipe
    from scalerl.runs.lines import EvalLine, Staleness, StepLine

#: Widest panel: beyond it, eyes travel too far.
WIDTH = 200
#: Fewest rows of the curve; on a lower terminal it is left out.
MIN_ROWS = 5
#: Most rows of the curve.
MAX_ROWS = 24
#: Lines of the curve's axis and legend.
FRAME = 3
#: Lines of the panel's border, and a line to spare.
BORDER = 3
#: Said lines that stay in the panel; older ones go up into the terminal's history.
SAID = 3
#: Lines above the panel that are printed again after the terminal was resized.
HISTORY = 8
BAR = 10
#: Drawings a second.
REFRESH = 2
SPARKS = "▁▂▃▄▅▆▇█"


class LiveView(Listener):
    """A panel that is redrawn in place, twice a second, until the run ends."""

    def __init__(
        self, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.console = console or Console()
        self._clock = clock
        self._live: Live | None = None
        self._pace: RunThroughput | None = None
        self._out: Path | None = None
        self._title = ""
        self._step: StepLine | None = None
        self._at = 0
        self._evals: list[EvalLine] = []
        self._look: LiveForecast | None = None
        #: The curve as it was last drawn, and for what size.
        self._curve: list[Text] = []
        self._drawn_for: tuple[int, int] | None = None
        self._validation = ValidationProgress(clock)
        self._said: deque[str] = deque()
        # The thread that redraws takes rich's lock, then this one: never print while holding it.
        self._lock = threading.Lock()

    def __exit__(self, *_: object) -> None:
        self._close()

    def begin(self, recipe: Recipe, out: Path, resumed_at: int | None) -> None:
        self._close()  # a run that goes back to its last checkpoint begins again
        self._pace = RunThroughput(recipe, self._clock)
        self._out = out
        self._step, self._at = None, resumed_at or 0
        # Validations after the checkpoint will be made again.
        kept = -1 if resumed_at is None else resumed_at
        self._validation.over()
        self._evals = [line for line in self._evals if line.step <= kept]
        self._title = f"{recipe.name} · {recipe.schedule.name}-{recipe.schedule.k} · {out}"
        if resumed_at is not None:
            self._title += f" · resumed at {resumed_at}"
        self._live = start_live(self.console, self.panel)

    def say(self, line: str) -> None:
        past = line.splitlines() or [""]
        if self._live is not None:
            with self._lock:
                self._said.extend(past)
                past = [self._said.popleft() for _ in range(len(self._said) - SAID)]
        # After the lock is released: printing takes the lock of rich.
        for each in past:
            self._print(each)

    def step(self, line: StepLine) -> None:
        with self._lock:
            self._step, self._at = line, line.step
            if self._pace is not None:
                self._pace.add(line)

    def validating(self, step: int, written: int, checked: int, total: int) -> None:
        with self._lock:
            self._validation.add(step, written, checked, total)

    def evaluated(self, line: EvalLine, look: LiveForecast | None) -> None:
        with self._lock:
            self._validation.over()
            self._evals.append(line)
            if look is not None:
                self._look, self._drawn_for = look, None
            self._at = max(self._at, line.step)
        self.say(words.validation_line(line))

    def end(self, reason: str) -> None:
        self._close()
        for line in words.closing(self._at, reason, self._out):
            self._print(line)

    def _close(self) -> None:
        """Leave the last panel standing, give the terminal back, and repeat the lines that the
        panel had cut."""
        live, self._live = self._live, None
        if live is None:
            return
        live.stop()
        room = self._width - 4
        for line in self._said:
            if Text(line).cell_len > room:
                self._print(line)
        self._said.clear()

    def _print(self, line: str) -> None:
        self.console.print(Text(line, style=_style(line)), soft_wrap=True)

    @property
    def _width(self) -> int:
        return min(WIDTH, self.console.width)

    # -- the panel --------------------------------------------------------------------------------

    def panel(self) -> RenderableType:
        """What is shown now, for a terminal as wide and high as this one."""
        with self._lock:
            width = self._width
            # 4 columns are the frame and its padding at both sides.
            above: list[RenderableType] = [self._progress(), *self._compute(width - 4)]
            above += self._pass_rate()
            below: list[RenderableType] = [*self._forecast(width - 4), *self._health(width - 4)]
            below += self._sides()
            # Room is kept for what comes and goes, so that the curve does not jump.
            rest = BORDER + FRAME + len(above) + len(below) + SAID + 1
            parts = [*above, *self._validating(), *self._draw(width - 4, rest), *below]
            parts += [one_line(Text(line, style=_style(line))) for line in self._said]
            return framed(self._title, parts, width)

    def _progress(self) -> RenderableType:
        pace = self._pace
        if pace is None:
            return Text("")
        if pace.use is None:
            text = f"step {self._at}" if self._step is not None else "starting"
            return Text(f"{text}   {clock_text(pace.elapsed)} so far")
        # The last step may end beyond a budget in hours.
        share = min(pace.use.share, 1.0)
        left = "" if pace.left is None else f" · {clock_text(pace.left)} left"
        done = f"{_share(share)}  {clock_text(pace.elapsed)}{left}"
        return bar(share, done, "cyan", Text(pace.use.text, style="bold"))

    def _compute(self, width: int) -> list[Text]:
        newest = self._step or (self._evals[-1] if self._evals else None)
        if newest is None:
            return []
        compute = newest.compute
        fields = [
            _field(words.amount(value), unit, after=True)
            for value, unit in (
                (compute.device_hours, "device-hours"),
                (compute.generated_tokens, "tokens written"),
                (compute.trained_tokens, "trained"),
                (compute.samples, "rollouts"),
            )
        ]
        return _flow(fields, width)

    def _pass_rate(self) -> list[Text]:
        if not self._evals:
            return [Text("no validation yet", style="dim")]
        last = self._evals[-1]
        line = _field("pass rate", words.score(last))
        line.append(f" at step {last.step}", style="dim")
        heated = {f"at temperature {t}": found for t, found in (last.temperatures or {}).items()}
        for name, found in ((last.downstream or {}) | heated).items():
            line.append("   ").append_text(_field(name, words.score(found)))
        # Once there is a forecast, its curve shows the same.
        if self._look is None:
            line.append(f"   {_spark(e.pass_rate for e in self._evals)}", style="cyan")
        return [one_line(line)]

    def _validating(self) -> list[RenderableType]:
        """How far a validation has come that is under way."""
        if not self._validation.under_way:
            return []
        v = self._validation
        left = "" if v.left is None else f" · {clock_text(v.left)} left"
        note = f"{v.written}/{v.total} written, {v.checked} checked{left}"
        return [bar(v.share, note, "green", Text("validating"))]

    def _draw(self, width: int, rest: int) -> list[Text]:
        """The curve, as high as the rest of the panel allows. Drawn once per validation and size:
        the panel itself is redrawn far more often."""
        rows = min(MAX_ROWS, self.console.height - rest)
        if self._look is None or rows < MIN_ROWS:
            return []
        if self._drawn_for != (width, rows):
            fit, end = self._look.fit, self._look.end
            to = end if end is not None and end > fit.end else None
            picture = curve(fit, width, rows, encoding="utf-8", to=to)
            self._curve = [_coloured(row) for row in picture.splitlines()]
            self._drawn_for = (width, rows)
        return self._curve

    def _forecast(self, width: int) -> list[Text]:
        if self._look is None:
            return [Text("no forecast yet: it needs a few validations", style="dim")]
        first, *rest = words.forecast_parts(self._look)
        style = "bold" if self._look.numbers["forecast/identified"] else "yellow"
        lines = _flow([Text(first, style=style), *map(Text, rest)], width)
        if self._look.fit.alarm is not None:
            lines.append(one_line(Text(f"ALARM {self._look.fit.alarm}", style="bold red")))
        return lines

    def _health(self, width: int) -> list[Text]:
        line = self._step
        if line is None:
            return []
        return _flow(
            [
                _field("reward", words.shown(line.reward, "+.3f")),
                _field("train pass", words.shown(line.pass_rate, ".3f")),
                self._truncated(line.truncated),
                _field("length", words.shown(line.length.mean, ".0f")),
                _field("grad", words.shown(line.grad_norm, ".2f")),
                self._stale(line.staleness),
                _field("mixed", _share(line.mixed_versions)),
                _field("zero variance", _share(line.zero_variance)),
                _field("ratio", words.shown(line.ratio.max, ".2f")),
                *(_field(label, value) for label, value in words.play_fields(line.play)),
            ],
            width,
        )

    def _truncated(self, share: float) -> Text:
        style = ""
        if self._pace is not None:
            length = self._pace.recipe.length
            if share >= length.truncation_critical:
                style = "bold red"
            elif share >= length.truncation_warn:
                style = "yellow"
        return _field("truncated", _share(share, 1), style=style)

    def _stale(self, stale: Staleness) -> Text:
        # A line of a step comes after `begin`, which sets it.
        assert self._pace is not None
        k = self._pace.recipe.schedule.k
        return _field("stale", f"max {stale.max} of {k}, mean {words.shown(stale.mean, '.1f')}")

    def _sides(self) -> list[Text]:
        if self._pace is None or self._step is None:
            return []
        recipe = self._pace.recipe
        writes, trains = self._pace.sides()
        return [
            _side(words.generators(recipe), writes, words.waits(writes, recipe)),
            _side("trainer", trains, words.waits(trains, recipe)),
        ]


# -- pieces ---------------------------------------------------------------------------------------


class ResizableLive(Live):
    """A live panel that survives a resize of the terminal.

    rich moves the cursor up by as many rows as the panel had. A terminal that was resized has
    wrapped or joined those rows, and part of the old panel stays. So a panel of another size starts
    on a clear screen, below the last lines that were printed above the old one.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._drawn_for = self.console.size
        self._past: deque[ConsoleRenderable] = deque(maxlen=HISTORY)

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        again: list[ConsoleRenderable] = []
        size = self.console.size
        if self.console.is_interactive and size != self._drawn_for:
            again = [Control.home(), Control.clear(), *self._past]
        self._drawn_for = size
        self._past.extend(each for each in renderables if not isinstance(each, Control))
        return super().process_renderables([*again, *renderables])


def start_live(
    console: Console, panel: Callable[[], RenderableType], transient: bool = False
) -> Live:
    """Draw what `panel` returns, in place and again and again, until it is stopped."""
    live = ResizableLive(
        console=console,
        get_renderable=panel,
        refresh_per_second=REFRESH,
        transient=transient,
    )
    live.start()
    return live


def framed(title: str, parts: Iterable[RenderableType], width: int) -> Panel:
    """The parts one below another, in a frame with a title."""
    heading = Text(title, style="bold")
    # Leaves room for the corners of the frame and for spaces around the title.
    heading.truncate(width - 8, overflow="ellipsis")
    return Panel(Group(*parts), title=heading, title_align="left", width=width, border_style="dim")


def bar(share: float, note: str, colour: str, *label: Text) -> Table:
    """A label (or none), a bar that takes what width is left, and a note."""
    row = Table.grid(padding=(0, 1), expand=True)
    for _ in label:
        row.add_column(no_wrap=True)
    row.add_column(ratio=1)
    row.add_column(no_wrap=True, justify="right")
    row.add_row(*label, ProgressBar(total=1.0, completed=share, complete_style=colour), note)
    return row


def _coloured(row: str) -> Text:
    """A row of the curve."""
    line = Text(row, style="dim", no_wrap=True)
    line.highlight_regex(r"[⠀-⣿]", "not dim green")
    line.highlight_regex(r"[●○]", "not dim bold cyan")
    return line


def _side(name: str, side: SideThroughput, note: str) -> Text:
    # As wide as the longest name, `generators`, and a space.
    line = Text(f"{name:<11}", style="dim")
    if side.busy is None or side.tokens is None:
        return one_line(line.append("…"))
    full = round(side.busy * BAR)
    line.append("█" * full, style="not dim cyan").append("░" * (BAR - full))
    line.append(f" {_share(side.busy):>5} busy", style="not dim")
    line.append(f"  {words.amount(side.tokens):>6} tok/s", style="not dim")
    if note:
        line.append(f"  {note}", style="not dim yellow")
    return one_line(line)


def _field(label: str, value: str, *, style: str = "", after: bool = False) -> Text:
    """A label and its number; or, with `after`, a number and its unit."""
    if after:
        return Text(label).append(f" {value}", style="dim")
    return Text.assemble((f"{label} ", "dim"), (value, style))


def _flow(fields: Iterable[Text], width: int) -> list[Text]:
    """Fields one after another, as many in a line as fit."""
    lines: list[Text] = []
    for field in fields:
        if lines and lines[-1].cell_len + 3 + field.cell_len <= width:
            lines[-1].append("   ").append_text(field)
        else:
            lines.append(Text().append_text(field))
    return [one_line(line) for line in lines]


def one_line(line: Text) -> Text:
    """The text, cut off with … where the panel is narrower."""
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def _style(line: str) -> str:
    return "yellow" if line.lower().startswith("warning") else ""


def _share(value: float, digits: int = 0) -> str:
    return "-" if math.isnan(value) else f"{100 * value:.{digits}f} %"


def _spark(rates: Iterable[float | None]) -> str:
    known = [rate for rate in rates if rate is not None and not math.isnan(rate)]
    return "".join(SPARKS[min(int(r * len(SPARKS)), len(SPARKS) - 1)] for r in known)
