"""Early warnings of a run that goes wrong, each with the recipe key to change and the command.

Pure functions of the lines of the record. An alarm is reported when it turns on, and again only
after it has been off for WINDOW steps. While a grave alarm is on, `healthy` is False: the last
healthy checkpoint from before it is then kept.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from scalerl.errors import PipelineError
from scalerl.recipe import Recipe
from scalerl.recipe.length import InterruptionLength
from scalerl.runs import commands
from scalerl.runs.compute import DeviceSeconds
from scalerl.runs.lines import EvalLine, StepLine

#: Steps over which noisy shares are averaged.
WINDOW = 5
#: Steps at the beginning of a run that later ones are compared with.
START = 10
#: Smallest effective sample size of a batch that is still nearly on-policy, as a share of its
#: tokens. The largest ratio says less: it passes 50 in a fifth of healthy runs (docs/findings).
MIN_ESS = 0.5
#: Entropy, as a multiple of what it was at the start, above which a policy may unlearn: so in most
#: collapses of docs/findings, and in hardly any healthy run there.
MAX_ENTROPY = 1.1
#: Entropy, as a share of what it was at the start, below which a policy hardly explores.
MIN_ENTROPY = 0.05
#: Validation pass rate from which on a low entropy is no alarm: the policy may be right to be sure.
SURE_PASS_RATE = 0.5
#: Largest norm of the gradient, in multiples of that of the first steps.
MAX_GRADIENT = 50.0
#: Largest share of prompts with rollouts that all earned the same.
MAX_ZERO_VARIANCE = 0.95
#: Largest share of rollouts without a score.
MAX_UNSCORED = 0.1
#: Largest share of its time that the trainer may wait for checks alone.
MAX_CHECK_WAIT = 0.3
#: Fall of the validation pass rate below its best that counts as a collapse ...
FALL = 0.1
#: ... if it is also this many standard errors.
FALL_ERRORS = 4.0
#: The recipe's own limits of truncation, where none are given.
LENGTH = InterruptionLength()


@dataclass
class Alarms:
    """The alarms of one run; `check_step` and `check_validation` see every line of its record."""

    truncation_warn: float = LENGTH.truncation_warn
    truncation_critical: float = LENGTH.truncation_critical
    #: Recipe key that gives rollouts more tokens.
    longer: str = "length.max_tokens"
    #: Directory of the run, for the commands in the warnings.
    out: Path | None = None
    #: For each recipe key an override that would help.
    better: dict[str, str] = field(default_factory=dict)
    #: Whether there is a checkpoint from before any grave alarm.
    has_healthy: bool = False
    #: Alarms that are on, each with the number of calm steps after which it turns off.
    on: dict[str, int] = field(default_factory=dict)
    #: Those among them that make a checkpoint unhealthy.
    grave: set[str] = field(default_factory=set)
    #: Best validation pass rate so far, and its standard error.
    best: tuple[float, float] | None = None
    #: Latest validation pass rate.
    latest: float = 0.0
    _before: DeviceSeconds | None = None
    _recent: dict[str, deque[float]] = field(default_factory=dict)
    _start: dict[str, list[float]] = field(default_factory=dict)

    @staticmethod
    def from_recipe(recipe: Recipe, out: Path | None = None) -> Alarms:
        length, k, cut = recipe.length, recipe.schedule.k, recipe.length.cutting
        better = {
            f"length.{cut}": f"length.{cut}={2 * length.constants[cut]}",
            "optimiser.lr": f"optimiser.lr={recipe.optimiser.lr / 2:g}",
        }
        if recipe.schedule.name in ("pipeline", "lag") and k > 1:
            better["schedule.k"] = f"schedule.k={k // 2}"
        return Alarms(
            length.truncation_warn, length.truncation_critical, f"length.{cut}", out, better
        )

    @property
    def healthy(self) -> bool:
        return not self.grave

    def check_step(self, line: StepLine) -> list[str]:
        """Warnings about alarms that this step has turned on."""
        return [warning for warning in self._step(line) if warning]

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
        lost = self._mean("ess", 1 - r.ess)
        yield self._alarm(
            "ratio", lost > 1 - MIN_ESS,
            f"generator and trainer drift apart (effective sample size {1 - lost:.0%}, largest "
            f"ratio {r.ratio.max:.3g}): lower schedule.k or optimiser.lr"
            f"{self.then('schedule.k', 'optimiser.lr')}")  # fmt: skip
        yield self._alarm(
            "non-finite", bool(r.non_finite),
            f"{r.non_finite} tokens have a log-prob that is not finite and are left out: "
            "check precision and temperature", grave=True)  # fmt: skip
        yield from self._against_start(r)
        missing = self._mean("unscored", r.filtered.unscored / max(r.filtered.rollouts, 1))
        why = next(iter(r.unscored_why or ()), f"see the task's {_scorer(r)}")
        yield self._alarm(
            "unscored", missing > MAX_UNSCORED,
            f"{missing:.0%} of rollouts could not be scored: {why}")  # fmt: skip
        flat = self._mean("zero_variance", r.zero_variance)
        # Groups without scores have no variance either, but say nothing about the prompts.
        yield self._alarm(
            "zero-variance", flat > MAX_ZERO_VARIANCE and missing <= MAX_UNSCORED,
            f"{flat:.0%} of prompts are all right or all wrong: little is left to learn here; "
            "harder (or easier) prompts would help")  # fmt: skip
        waited = self._mean("check_wait", self._check_wait(r.ledger.spent))
        yield self._alarm(
            "checks", waited > MAX_CHECK_WAIT,
            f"the {'checks' if r.play is None else 'environments'} set the pace: the trainer waits "
            f"for them {waited:.0%} of its time; a faster {_scorer(r)}, more "
            f"placement.{'checkers' if r.play is None else 'environment_processes'} or a larger "
            "schedule.k would help")  # fmt: skip

    def _against_start(self, r: StepLine) -> Iterator[str | None]:
        """Alarms that compare entropy and gradient with those of the first steps."""
        entropy, first = r.entropy, self._at_start("entropy", r.entropy)
        if entropy is not None and first:
            yield self._alarm(
                "entropy", entropy < MIN_ENTROPY * first and self.latest < SURE_PASS_RATE,
                f"entropy has fallen to {entropy:.3g} from {first:.3g}: the policy hardly "
                f"explores; lower optimiser.lr, or stop here{self.then('optimiser.lr', back=True)}",
                grave=True)  # fmt: skip
            mean = self._mean("entropy", entropy)
            yield self._alarm(
                "entropy-rises", mean > MAX_ENTROPY * first,
                f"entropy has risen to {mean:.3g} from {first:.3g}: the policy may be unlearning; "
                "if the pass rate falls, lower optimiser.lr or schedule.k"
                f"{self.then('optimiser.lr', back=True)}")  # fmt: skip
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
        """Warnings about alarms that this validation has turned on."""
        if found.pass_rate is None:
            return [f"the validation at step {found.step} has failed and is no point of the curve: "
                    f"{found.failed}"]  # fmt: skip
        rate, error = found.pass_rate, found.stderr or 0.0
        self.latest = rate
        if self.best is None or rate > self.best[0]:
            self.best = (rate, error)
        best, its_error = self.best
        fall = best - rate
        # Both limits: with few held-out prompts chance alone moves the rate by FALL, and with many
        # even a fall that does not matter is some standard errors.
        line = self._alarm(
            "collapse", fall > max(FALL, FALL_ERRORS * math.hypot(error, its_error)),
            f"the pass rate has fallen to {rate:.3f} from {best:.3f}: stop, and go on from the "
            "last healthy checkpoint with a lower optimiser.lr or k"
            f"{self.then('optimiser.lr', back=True)}", grave=True)  # fmt: skip
        return [line] if line else []

    def then(self, *knobs: str, back: bool = False) -> str:
        """The end of a warning: the command to type once the run is stopped."""
        command = self.command(*knobs, back=back)
        return f"; Ctrl-C, then: {command}" if command else ""

    def command(self, *knobs: str, back: bool = False) -> str:
        """A command that resumes the run with the first of these keys that has a better value, from
        the last healthy checkpoint if `back` is set and there is one."""
        helps = next((self.better[knob] for knob in knobs if knob in self.better), None)
        if self.out is None or helps is None:
            return ""
        since = "healthy" if back and self.has_healthy else None
        return commands.resume(self.out, helps, step=since)

    def _alarm(self, name: str, wrong: bool, line: str, grave: bool = False) -> str | None:
        new = wrong and name not in self.on
        # Counted down, so that an alarm that goes on and off is reported once.
        self.on[name] = WINDOW if wrong else self.on.get(name, 0) - 1
        if self.on[name] <= 0:
            del self.on[name]
        (self.grave.add if grave and name in self.on else self.grave.discard)(name)
        return line if new else None

    def _mean(self, name: str, value: float) -> float:
        recent = self._recent.setdefault(name, deque(maxlen=WINDOW))
        recent.append(value)
        # 0 until the window is full: one bad step is no alarm.
        return statistics.fmean(recent) if len(recent) == WINDOW else 0.0

    def _at_start(self, name: str, value: float | None) -> float | None:
        """The median of the first START steps; None until they have been seen."""
        known = self._start.setdefault(name, [])
        if value is not None and len(known) < START:
            known.append(value)
            return None
        return statistics.median(known) if known else None


def _scorer(line: StepLine) -> str:
    """What scores the rollouts of a step."""
    return "verifier" if line.play is None else "environment"


class EmptyStepWatch:
    """Watches for steps that teach nothing: in every group of the batch all rollouts earned the
    same reward, so that no rollout has an advantage.

    The optimiser does not change the weights in such a step (`scalerl.trainer`). The version goes
    up all the same: the step has its line in `steps.jsonl` and counts towards the budget. The first
    of several in a row is a warning; after `filter.empty_steps` in a row the run fails, with what
    to change."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        #: The empty steps in a row up to now.
        self.streak: list[StepLine] = []
        #: Number of the last empty step.
        self._last: int | None = None

    def check_step(self, line: StepLine) -> list[str]:
        """The warning about a step, if any; raises PipelineError after too many in a row."""
        if line.filtered.zero_variance_prompts < line.filtered.prompts:
            self.streak.clear()
            return []
        self.streak.append(line)
        # No second warning soon after one: with a few prompts a batch, some are empty by chance.
        recent = self._last is not None and line.step - self._last <= WINDOW
        self._last = line.step
        limit = self.recipe.filter.empty_steps
        if limit and len(self.streak) >= limit:
            many = "step" if limit == 1 else f"{limit} steps"
            raise PipelineError(
                f"the last {many} taught nothing: {why_empty(self.streak, self.recipe)}, then "
                "--resume; filter.empty_steps sets after how many steps a run ends"
            )
        if recent:
            return []
        after = f"; the run ends after {limit} such steps in a row (filter.empty_steps)"
        return [
            f"step {line.step} taught nothing: {why_empty(self.streak, self.recipe)}"
            + (after if limit else "")
        ]


def why_empty(steps: Iterable[StepLine], recipe: Recipe) -> str:
    """Why the rollouts of each group all earned the same reward, and what to change."""
    lines = list(steps)
    rollouts = sum(line.filtered.rollouts for line in lines)
    if sum(line.filtered.unscored for line in lines) == rollouts:
        scorer = _scorer(lines[-1])
        why = next(iter(lines[-1].unscored_why or ()), f"the {scorer} gives no reward")
        return f"no rollout has a reward ({why}): repair the task's {scorer}"
    cut = sum(line.filtered.truncated for line in lines)
    if cut == rollouts and recipe.filter.truncated == "drop":
        return (
            "every rollout is cut off before its end, and filter.truncated = drop leaves such "
            f"rollouts out: raise length.{recipe.length.cutting}"
        )
    right = sum(line.pass_rate for line in lines) / len(lines)
    size = f"raise batch.generations = {recipe.batch.generations}"
    if right == 0.0:
        return (
            "the pass rate is 0, so the task is too hard for the model, or no answer has the form "
            "that the verifier reads: read some answers in evals/, then take another model, "
            f"easier prompts (task), or {size}"
        )
    if right == 1.0:
        return (
            "the pass rate is 1, so the task is too easy for the model: take harder prompts (task) "
            "or a weaker model"
        )
    return (
        f"the pass rate is {right:.2g}, and the rollouts of each prompt all earned the same: take "
        f"prompts of middling difficulty (task), {size}, or look at filter.truncated"
    )
