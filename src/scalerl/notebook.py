"""A run inside a notebook: `train()` shows there how far it is, in one place that is renewed.

Plain HTML through IPython's own display, without styles or scripts: it looks like the notebook it
is in, light or dark, and needs nothing that a kernel does not have.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from scalerl.runs.compute import BudgetUse, budget_use
from scalerl.runs.listener import Listener

if TYPE_CHECKING:
    from scalerl.curves.live import LiveForecast
    from scalerl.recipe.schema import Recipe
    from scalerl.runs.compute import Compute
    from scalerl.runs.lines import EvalLine, StepLine

#: Seconds between two drawings; what says something new for good is drawn at once.
PAUSE = 0.5
#: Latest validations that are shown.
EVALS = 8
#: Latest messages that are shown.
SAID = 5

Show = Callable[[str], None]


def in_kernel() -> bool:
    """Whether this is code of a notebook: an IPython with a kernel behind it, not its terminal."""
    # Not imported here: code of a notebook runs where IPython is loaded already.
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def default_listener() -> Listener:
    """The listener of a run that was given none: in a notebook a view, elsewhere one that does
    nothing."""
    return NotebookView(_display()) if in_kernel() else Listener()


def _display() -> Show:
    """Puts HTML into the notebook, each time in the place of the last."""
    from IPython.display import HTML, display  # type: ignore[import-not-found, unused-ignore]

    handle = display(HTML(""), display_id=True)
    return lambda html: handle.update(HTML(html))


class NotebookView(Listener):
    """Progress, the latest steps and validations, the forecast, and what was said."""

    def __init__(self, show: Show, clock: Callable[[], float] = time.monotonic) -> None:
        self._show, self._clock = show, clock
        # Long enough ago for the first drawing to be due at once.
        self._drawn = -PAUSE
        self._recipe: Recipe | None = None
        self._title = self._now = self._forecast = self._ended = ""
        self._use: BudgetUse | None = None
        self._evals: list[EvalLine] = []
        self._said: deque[str] = deque(maxlen=SAID)

    def begin(self, recipe: Recipe, out: Path, resumed_at: int | None) -> None:
        self._recipe = recipe
        again = "" if resumed_at is None else f", resumed at step {resumed_at}"
        self._title, self._now = f"training {recipe.name} into {out}{again}", "starting"
        # Validations after the checkpoint will be made again.
        kept = -1 if resumed_at is None else resumed_at
        self._evals = [line for line in self._evals if line.step <= kept]
        self._draw(at_once=True)

    def say(self, line: str) -> None:
        self._said.append(line)
        self._draw(at_once=True)

    def step(self, line: StepLine) -> None:
        reward = "-" if line.reward is None else f"{line.reward:+.3f}"
        self._now = f"step {line.step}: reward {reward}, pass rate {line.pass_rate:.3f} in training"
        self._spent(line.compute)
        self._draw()

    def validating(self, step: int, written: int, checked: int, total: int) -> None:
        self._now = (
            f"validating at step {step}: {written} of {total} answers written, {checked} checked"
        )
        self._draw()

    def evaluated(self, line: EvalLine, look: LiveForecast | None) -> None:
        self._evals.append(line)
        self._now = f"validated at step {line.step}"
        self._spent(line.compute)
        if look is not None:
            self._forecast = _forecast(look)
        self._draw(at_once=True)

    def end(self, reason: str) -> None:
        self._ended = reason
        self._draw(at_once=True)

    def _spent(self, compute: Compute) -> None:
        if self._recipe is not None:
            self._use = budget_use(self._recipe.budget, compute)

    def _draw(self, *, at_once: bool = False) -> None:
        if at_once or self._clock() - self._drawn >= PAUSE:
            self._drawn = self._clock()
            self._show(self.html())

    def html(self) -> str:
        """What is shown now."""
        parts = [f"<b>{text(self._title)}</b>"] if self._title else []
        if self._use is not None:
            share = min(self._use.share, 1.0)
            bar = f'<progress value="{share:.4f}" max="1"></progress>'
            parts.append(f"{bar} {text(self._use.text)} ({share:.0%})")
        parts.append(text(f"ended: {self._ended}" if self._ended else self._now))
        if self._forecast:
            parts.append(text(self._forecast))
        said = "".join(f"<li>{text(line)}</li>" for line in self._said)
        return (
            f"<p>{'<br/>'.join(part for part in parts if part)}</p>"
            + evals_table(self._evals)
            + (f"<ul>{said}</ul>" if said else "")
        )


def evals_table(evals: Sequence[EvalLine]) -> str:
    """The latest validations; nothing where there are none."""
    if not evals:
        return ""
    rows = "".join(
        f"<tr><td>{line.step}</td><td>{_rate(line)}</td>"
        f"<td>{line.compute.device_hours:.3g}</td></tr>"
        for line in evals[-EVALS:]
    )
    head = "<tr><th>step</th><th>pass rate</th><th>device-hours</th></tr>"
    return f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>"


def _rate(line: EvalLine) -> str:
    error = "" if line.stderr is None else f" ± {line.stderr:.3f}"
    return f"{line.pass_rate:.3f}{error}"


def _forecast(look: LiveForecast) -> str:
    n = {name.removeprefix("forecast/"): value for name, value in look.numbers.items()}
    known = f"ceiling {n['A']:.3f}" if n["identified"] else "ceiling not identified yet"
    gain = "" if n["alarm"] else f", next doubling {n['next_doubling']:+.3f}"
    return f"forecast: {known} [{n['A_low']:.3f}, {n['A_high']:.3f}]{gain}"


def text(line: str) -> str:
    """Harmless, whatever is in it."""
    return escape("".join(c if c.isprintable() else "·" for c in line), quote=True)
