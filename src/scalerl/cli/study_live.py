"""The live panel of `scalerl study`: its progress, the running members, the table so far."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from scalerl.cli.live_view import bar, framed, one_line, start_live
from scalerl.cli.study_view import PlainStudyView, fitting_columns, size_text
from scalerl.study.columns import worst
from scalerl.study.race import MIN_DECISION_PROBABILITY
from scalerl.study.running import StudyProgress
from scalerl.study.table import StudyRow
from scalerl.text import clock_text

if TYPE_CHECKING:
    from scalerl.study.race import RaceState
    from scalerl.study.study import Study

#: Columns of the widest panel.
WIDTH = 120
#: Latest messages that stay in the panel.
SAID = 4
#: Heading of the column of a race: the probability that the budget closes the verdict.
CHANCE = "to close"
STYLES = {"unstable": "bold red", "undecided": "dim"}


class LiveStudyView(PlainStudyView):
    """A panel that is redrawn in place until the study ends."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        super().__init__(self.console.file)
        self._title, self._rows = "", list[StudyRow]()
        self._race: RaceState | None = None
        self._latest: tuple[float, StudyProgress] | None = None
        self._past: deque[str] = deque(maxlen=SAID)
        # The thread that redraws takes rich's lock, then this one: never print while holding it.
        self._lock = threading.Lock()
        self._live: Live | None = None

    def __exit__(self, *_: object) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def begin(self, study: Study, jobs: int) -> None:
        self._title = f"{study.path.name} · {size_text(study)} · {jobs} at once"
        # Transient: the closing table is printed in the place of the panel.
        self._live = start_live(self.console, self.panel, transient=True)

    def say(self, line: str) -> None:
        with self._lock:
            self._past.append(line)
        if "failed" in line:  # what must not scroll out of the panel
            self.console.print(Text(line, style="red"), soft_wrap=True)

    def progress(self, progress: StudyProgress) -> None:
        with self._lock:
            self._latest = time.monotonic(), progress

    def race(self, state: RaceState) -> None:
        with self._lock:
            self._race = state

    def table(self, rows: list[StudyRow]) -> None:
        with self._lock:
            self._rows = rows

    def panel(self) -> RenderableType:
        """What is shown now."""
        with self._lock:
            past = [one_line(Text(line, style="dim")) for line in self._past]
            parts = [*self._progress(), *self._raced(), self._table(), *past]
        return framed(self._title, parts, self._width)

    @property
    def _width(self) -> int:
        return min(WIDTH, self.console.width)

    def _progress(self) -> list[RenderableType]:
        if self._latest is None:
            return [Text("starting", style="dim")]
        at, progress = self._latest
        # Reports come about every two seconds: the clock goes on between them.
        since = time.monotonic() - at
        done = f"{progress.share:.0%}  {clock_text(progress.elapsed + since)}"
        if progress.left is not None:
            done += f" · {clock_text(max(progress.left - since, 0.0))} left"
        lines: list[RenderableType] = [bar(progress.share, done, "cyan")]
        for member, now in progress.running:
            steps = member.recipe.budget.steps
            goal = "" if steps is None else f" of {steps}"
            rate = "" if now.pass_rate is None else f"   pass rate {now.pass_rate:.3f}"
            lines.append(one_line(Text(f"{member.name}   step {now.step}{goal}{rate}")))
        if progress.failed:
            lines.append(Text(f"{progress.failed} failed", style="red"))
        return lines

    def _raced(self) -> list[RenderableType]:
        """What a race is doing, and why."""
        state = self._race
        if state is None:
            return []
        row = Table.grid(padding=(0, 2))
        row.add_column(style="dim", no_wrap=True)
        row.add_column()
        if state.summary:
            row.add_row("verdicts", state.summary)
        row.add_row("race", f"over: {state.why}" if state.over else state.why)
        if len(state.order) > 1:
            row.add_row("then", one_line(Text(", ".join(state.order[1:4]))))
        return [row]

    def _table(self) -> Table:
        """The rows, with the columns that there is room for."""
        chances = [self._chance(row) for row in self._rows]
        more = {CHANCE: chances} if any(chances) else {}
        # 6 columns are the frame, its padding and the padding of the table.
        head, body = fitting_columns(self._rows, self._width - 6, more)
        table = Table(box=None, padding=(0, 1), expand=False)
        for name in head:
            table.add_column(name, no_wrap=True, header_style="dim")
        for row, line in zip(self._rows, body, strict=True):
            table.add_row(*line, style=STYLES.get(worst(row.stability.values()), ""))
        return table

    def _chance(self, row: StudyRow) -> str:
        """Of a verdict that a race has open: the chance that the budget closes it."""
        chance = None if self._race is None else self._race.chances.get(row.variant)
        if chance is None:
            return ""
        return f"{chance:.0%}" if chance >= MIN_DECISION_PROBABILITY else "no chance"
