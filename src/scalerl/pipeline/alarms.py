"""Early signs of a run going wrong, in plain words, each with the knob to turn and the command that
turns it.

Pure: lines of the record in, sentences out. An alarm speaks when it comes on, and again only after
it has been off for some steps.
`healthy` is False while a grave one is on: checkpoints of that time do not push out the last good
one.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from scalerl.recipe import Recipe
from scalerl.recipe.sections_algorithm import LengthSection
from scalerl.runs import commands
from scalerl.runs.compute import DeviceSeconds
from scalerl.runs.lines import EvalLine, StepLine

#: Steps over which noisy shares are averaged.
WINDOW = 5
#: Steps after which the start of the run is known.
START = 10
#: Largest ratio, and smallest effective sample size, of a batch that is still nearly on-policy.
MAX_RATIO = 50.0
MIN_ESS = 0.5
#: Entropy as a share of what it was at the start, and the validation pass rate from which a policy
#: may well be sure of itself.
MIN_ENTROPY = 0.05
SURE = 0.5
MAX_GRADIENT = 50.0
MAX_ZERO_VARIANCE = 0.95
MAX_UNSCORED = 0.1
#: Share of its time that the trainer waits for checks alone.
MAX_CHECK_WAIT = 0.3
#: Fall of the validation pass rate below its best, in points and in standard errors.
FALL, FALL_ERRORS = 0.1, 4.0
#: The recipe's own limits of truncation, where none are given.
LENGTH = LengthSection()


@dataclass
class Alarms:
    """Looks at every step and every validation."""

    truncation_warn: float = LENGTH.truncation_warn
    truncation_critical: float = LENGTH.truncation_critical
    #: Which knob gives rollouts more room.
    longer: str = "length.max_tokens"
    #: Where the run is, and for each knob a value that would help: for commands to type.
    out: Path | None = None
    better: dict[str, str] = field(default_factory=dict)
    #: There is a checkpoint from before the trouble.
    has_healthy: bool = False
    #: Alarms that are on, and for how many calm steps they will stay so.
    on: dict[str, int] = field(default_factory=dict)
    grave: set[str] = field(default_factory=set)
    best: tuple[float, float] | None = None
    latest: float = 0.0
    _before: DeviceSeconds | None = None
    _recent: dict[str, deque[float]] = field(default_factory=dict)
    _start: dict[str, list[float]] = field(default_factory=dict)

    @staticmethod
    def from_recipe(recipe: Recipe, out: Path | None = None) -> Alarms:
        length, k = recipe.length, recipe.schedule.k
        cut = "answer_tokens" if length.control == "interruption" else "max_tokens"
        better = {
            f"length.{cut}": f"length.{cut}={2 * (getattr(length, cut) or 1)}",
            "optimiser.lr": f"optimiser.lr={recipe.optimiser.lr / 2:g}",
        }
        if recipe.schedule.name == "pipeline" and k > 1:
            better["schedule.k"] = f"schedule.k={k // 2}"
        return Alarms(
            length.truncation_warn, length.truncation_critical, f"length.{cut}", out, better
        )

    @property
    def healthy(self) -> bool:
        return not self.grave

    def check_step(self, line: StepLine) -> list[str]:
        """Lines about what has just come on."""
        return [said for said in self._step(line) if said]

    def _step(self, r: StepLine) -> Iterator[str | None]:
        cut = self._mean("truncated", r.truncated)
        critical = cut > self.truncation_critical
        yield self._alarm(
            "truncation-critical", critical,
            f"{cut:.0%} of rollouts are cut off before their end; runs destabilise from 10 %: "
            f"raise {self.longer}{self.then(self.longer)}", grave=True)  # fmt: skip
        yield self._alarm(
            "truncation", cut > self.truncation_warn and not critical,
            f"{cut:.0%} of rollouts are cut off before their end: "
            f"raise {self.longer}{self.then(self.longer)}")  # fmt: skip
        ratio, ess = r.ratio.max, r.ess
        yield self._alarm(
            "ratio", ratio > MAX_RATIO or ess < MIN_ESS,
            f"generator and trainer drift apart (largest ratio {ratio:.3g}, effective sample size "
            f"{ess:.0%}): lower schedule.k or optimiser.lr"
            f"{self.then('schedule.k', 'optimiser.lr')}")  # fmt: skip
        yield self._alarm(
            "non-finite", bool(r.non_finite),
            f"{r.non_finite} tokens have a log-prob that is not finite and are left out: "
            "check precision and temperature", grave=True)  # fmt: skip
        yield from self._against_start(r)
        missing = self._mean("unscored", r.filtered.unscored / max(r.filtered.rollouts, 1))
        why = next(iter(r.unscored_why or ()), "see the task's verifier")
        yield self._alarm(
            "unscored", missing > MAX_UNSCORED,
            f"{missing:.0%} of rollouts could not be scored: {why}")  # fmt: skip
        flat = self._mean("zero_variance", r.zero_variance)
        # Groups without rewards look alike as well: they say nothing about what is left to learn.
        yield self._alarm(
            "zero-variance", flat > MAX_ZERO_VARIANCE and missing <= MAX_UNSCORED,
            f"{flat:.0%} of prompts are all right or all wrong: little is left to learn here; "
            "harder (or easier) prompts would help")  # fmt: skip
        waited = self._mean("check_wait", self._check_wait(r.ledger.spent))
        yield self._alarm(
            "checks", waited > MAX_CHECK_WAIT,
            f"the checks set the pace: the trainer waits for them {waited:.0%} of its time; a "
            "faster verifier, more placement.checkers or a larger schedule.k would "
            "help")  # fmt: skip

    def _against_start(self, r: StepLine) -> Iterator[str | None]:
        """Entropy and gradient against what they were in the first steps."""
        entropy, first = r.entropy, self._at_start("entropy", r.entropy)
        if entropy is not None and first:
            yield self._alarm(
                "entropy", entropy < MIN_ENTROPY * first and self.latest < SURE,
                f"entropy has fallen to {entropy:.3g} from {first:.3g}: it hardly explores; "
                f"lower optimiser.lr, or stop here{self.then('optimiser.lr', back=True)}",
                grave=True)  # fmt: skip
        norm, first = r.grad_norm, self._at_start("grad_norm", r.grad_norm)
        if first:
            yield self._alarm(
                "gradient", norm > MAX_GRADIENT * first,
                f"the gradient's norm is {norm:.3g}, {norm / first:.0f} times that of the first "
                f"steps: lower optimiser.lr{self.then('optimiser.lr', back=True)}",
                grave=True)  # fmt: skip

    def _check_wait(self, spent: DeviceSeconds) -> float:
        """Share of the trainer's time since the last step in which only checks were missing."""
        before, self._before = self._before or DeviceSeconds(), spent
        whole = spent.train + spent.train_wait - before.train - before.train_wait
        return (spent.check_wait - before.check_wait) / whole if whole > 0 else 0.0

    def check_validation(self, found: EvalLine) -> list[str]:
        """Lines about what has just come on."""
        if found.pass_rate is None:
            return [f"the validation at step {found.step} has failed and is no point of the curve: "
                    f"{found.failed}"]  # fmt: skip
        rate, error = found.pass_rate, found.stderr or 0.0
        self.latest = rate
        if self.best is None or rate > self.best[0]:
            self.best = (rate, error)
        best, its_error = self.best
        fall = best - rate
        line = self._alarm(
            "collapse", fall > max(FALL, FALL_ERRORS * math.hypot(error, its_error)),
            f"the pass rate has fallen to {rate:.3f} from {best:.3f}: stop, and go on from the "
            "last healthy checkpoint with a lower optimiser.lr or k"
            f"{self.then('optimiser.lr', back=True)}", grave=True)  # fmt: skip
        return [line] if line else []

    def then(self, *knobs: str, back: bool = False) -> str:
        """What to type, once the run is stopped."""
        command = self.command(*knobs, back=back)
        return f"; Ctrl-C, then: {command}" if command else ""

    def command(self, *knobs: str, back: bool = False) -> str:
        """Turns the first of these knobs that can be turned further, and goes `back` to the last
        healthy checkpoint, if there is one."""
        helps = next((self.better[knob] for knob in knobs if knob in self.better), None)
        if self.out is None or helps is None:
            return ""
        since = "healthy" if back and self.has_healthy else None
        return commands.resume(self.out, helps, step=since)

    def _alarm(self, name: str, wrong: bool, line: str, grave: bool = False) -> str | None:
        new = wrong and name not in self.on
        self.on[name] = WINDOW if wrong else self.on.get(name, 0) - 1
        if self.on[name] <= 0:
            del self.on[name]
        (self.grave.add if grave and name in self.on else self.grave.discard)(name)
        return line if new else None

    def _mean(self, name: str, value: float) -> float:
        recent = self._recent.setdefault(name, deque(maxlen=WINDOW))
        recent.append(value)
        return statistics.fmean(recent) if len(recent) == WINDOW else 0.0

    def _at_start(self, name: str, value: float | None) -> float | None:
        """The median of the first steps; None until they are known."""
        known = self._start.setdefault(name, [])
        if value is not None and len(known) < START:
            known.append(value)
            return None
        return statistics.median(known) if known else None
