"""What the runs of a force show: every cell, the verdict of every line, lines against each other.

Only runs that have come to the end of their budget count, so that a study that is still running
says what it knows. Unstable runs are in no level; they count through P(unstable). Low effective
sample sizes and truncation are what a force does, not what comes of it: a run is not called
unstable for them alone (`outcome`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any

import numpy as np

from scalerl.curves.arms import Arm
from scalerl.curves.fit import fit
from scalerl.curves.formula import Array
from scalerl.curves.result import Fit
from scalerl.errors import InputError
from scalerl.pipeline.alarms import FALL
from scalerl.runs.lines import StepLine
from scalerl.runs.reader import RunReader, read_step_health
from scalerl.runs.record import Run
from scalerl.study.dose_draws import (
    DRAWS,
    TAILS,
    CellScores,
    Contrast,
    DoseVerdict,
    Interval,
    LineDraws,
    break_verdict,
    contrast,
    line_verdict,
    spread_of,
    unstable_interval,
)
from scalerl.study.dose_law import CellOutcome, LawVerdict, law_verdict
from scalerl.study.dose_words import best_words, break_words, verdict_words
from scalerl.study.force import DoseCell, ForceDefinition
from scalerl.study.stability import SIGNS, Stability, assess_lines
from scalerl.study.table import MemberFinding

#: Share of a run's validations, at its end, whose mean is its level at the end of the budget.
END_SHARE = 0.2
#: Validations in that mean at least.
END_POINTS = 3
#: Shares of the budget at which the best dose is read.
BUDGETS = (0.25, 0.5, 1.0)
#: Probability of the set of doses that may be best.
BEST_LEVEL = 0.9
#: Step values that are read: means over the steps of a run.
MEASURES = ("ess", "truncated", "entropy", "pass_rate")


@dataclass(frozen=True, slots=True)
class CellResult:
    """One line at one dose."""

    cell: DoseCell
    #: Place of its dose on the axis, from 0 to 1.
    place: float
    #: Runs at the end of their budget.
    runs: int
    unstable: int
    #: Unstable ones, and those that ended more than FALL below the best cell of their line at a
    #: milder dose.
    broken: int
    p_unstable: Interval
    #: Pass rate at the end of the budget: low end, median, high end; None where no run counts.
    end: Interval | None
    #: Ceiling of the pooled fit, seeds allowed for.
    ceiling: Interval | None
    #: Whether the points identify the ceiling.
    identified: bool
    c_mid: Interval | None
    #: Means over all steps of its runs, by name; `gap` is the training pass rate minus the held-out
    #: one at the end.
    measured: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        return {
            "variant": self.cell.name,
            "line": self.cell.line,
            "dose": self.cell.dose.value,
            "label": self.cell.dose.label,
            "known": self.cell.dose.known,
            "runs": self.runs,
            "unstable": self.unstable,
            "broken": self.broken,
            "p_unstable": list(self.p_unstable),
            "end": _list(self.end),
            "ceiling": _list(self.ceiling),
            "identified": self.identified,
            "C_mid": _list(self.c_mid),
            "measured": dict(self.measured),
        }


@dataclass(frozen=True, slots=True)
class BestDose:
    """The best dose at a share of the budget."""

    share: float
    #: Label of the likeliest one, and its probability.
    label: str
    probability: float
    #: Labels of the doses among which the best one is with BEST_LEVEL probability.
    among: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "share": self.share,
            "best": self.label,
            "probability": self.probability,
            "among": list(self.among),
        }


@dataclass(frozen=True, slots=True)
class LineResult:
    """One line over all doses."""

    name: str
    cells: tuple[CellResult, ...]
    #: What its verdict is about: "ceiling" where every cell's is identified, else "end", the pass
    #: rate at the end of the budget.
    kind: str
    #: Where it is asked from which dose on it falls, or before its runs are done: None.
    verdict: DoseVerdict | None
    best: tuple[BestDose, ...]
    words: str

    @property
    def falls_at(self) -> Interval | None:
        """Places on the axis at which it falls: low end, median, high end; None where it is not
        decided that it does."""
        return None if self.verdict is None or self.verdict.verdict != "falls" else self.verdict.at

    def to_dict(self) -> dict[str, Any]:
        said = self.verdict
        return {
            "line": self.name,
            "kind": self.kind,
            "verdict": None if said is None else said.verdict,
            "dose": None if said is None else _list(said.dose),
            "p_falls": None if said is None else said.p_falls,
            "fall_at_the_largest": None if said is None else _list(said.fall),
            "best": [each.to_dict() for each in self.best],
            "words": self.words,
            "cells": [cell.to_dict() for cell in self.cells],
        }


@dataclass(frozen=True, slots=True)
class CellContrast:
    """A cell against another one."""

    variant: str
    other: str
    kind: str
    found: Contrast

    def to_dict(self) -> dict[str, Any]:
        return {
            "variant": self.variant,
            "against": self.other,
            "kind": self.kind,
            "verdict": self.found.verdict,
            "difference": _list(self.found.difference),
            "p_less_stable": self.found.p_less_stable,
        }


@dataclass(frozen=True, slots=True)
class ForceResults:
    """What the runs of a force show so far."""

    force: ForceDefinition
    lines: tuple[LineResult, ...]
    #: Each line against the first one, at the same dose.
    between: tuple[CellContrast, ...]
    #: Each dose against the first one of its line, or against all before it where it is asked what
    #: doses differ in.
    within: tuple[CellContrast, ...]
    law: LawVerdict | None

    def to_dict(self) -> dict[str, Any]:
        force = self.force
        return {
            "name": force.name,
            "question": force.question,
            "claim": force.claim,
            "source": force.source,
            "dose": force.dose_key,
            "asked": force.asked,
            "lines": [line.to_dict() for line in self.lines],
            "between": [each.to_dict() for each in self.between],
            "within": [each.to_dict() for each in self.within],
            "law": None if self.law is None else self.law.to_dict(),
        }


def _list(ends: Interval | None) -> list[float | None] | None:
    # JSON has no inf.
    return None if ends is None else [v if math.isfinite(v) else None for v in ends]


# -- from runs to scores --------------------------------------------------------------------------


@dataclass(frozen=True)
class _Runs:
    """The whole runs of a cell."""

    cell: DoseCell
    found: tuple[MemberFinding, ...]

    @cached_property
    def stable(self) -> list[MemberFinding]:
        return [f for f in self.found if outcome(f).state != "unstable"]

    @property
    def counted(self) -> list[Run]:
        return [f.run for f in self.stable if f.run is not None]

    @property
    def unstable(self) -> int:
        return len(self.found) - len(self.counted)

    def at_the_end(self) -> CellScores:
        return CellScores(tuple(end_level(run) for run in self.counted), self.unstable)

    def pooled(self) -> Fit | None:
        """One curve through the runs that count; None where one of them cannot be fitted."""
        return Arm(self.cell.name, self.fits).pooled_fit if self.fits else None

    @cached_property
    def fits(self) -> tuple[Fit, ...]:
        """The fits of the runs that count; none where one of them cannot be fitted."""
        try:
            return tuple(f.fit or fit(f.run) for f in self.stable if f.run is not None)
        except InputError:
            return ()

    def ceilings(self, pooled: Fit | None) -> CellScores:
        """The ceiling of the pooled fit, with the spread between the runs' own ceilings."""
        if pooled is None:
            return CellScores((), self.unstable)
        own = [f.params["A"] for f in self.fits]
        draws = pooled.predictive.parameter("A")
        return CellScores(tuple(own), self.unstable, np.asarray(draws))


def end_level(run: Run) -> float:
    """Mean of the last validations of a run."""
    count = max(END_POINTS, round(END_SHARE * len(run)))
    return float(run.score[-count:].mean())


def outcome(finding: MemberFinding) -> Stability:
    """The stability of a run by what came of it: the rules about causes are left out."""
    if finding.stability.rule not in SIGNS:
        return finding.stability
    steps = read_step_health(finding.member.path)
    return assess_lines(steps, finding.evals, half=finding.half, signs=False)


def _whole(finding: MemberFinding) -> bool:
    """Whether a run has come to the end of its budget."""
    steps = finding.member.recipe.budget.steps
    return finding.run is not None and (
        steps is None or (bool(finding.evals) and finding.evals[-1].step >= steps)
    )


def force_results(force: ForceDefinition, findings: Sequence[MemberFinding]) -> ForceResults:
    """The results of a force by the findings of its study, of the cells that it has."""
    groups: dict[str, list[MemberFinding]] = {}
    for finding in findings:
        groups.setdefault(finding.member.variant, [])
        if _whole(finding):
            groups[finding.member.variant].append(finding)
    runs: dict[str, list[_Runs]] = {}
    for cell in force.cells():
        if cell.name in groups:
            runs.setdefault(cell.line, []).append(_Runs(cell, tuple(groups[cell.name])))
    axis = tuple(dose.value for dose in force.doses)
    drawn = {name: _LineNumbers(i, cells, axis) for i, (name, cells) in enumerate(runs.items())}
    first = next(iter(drawn.values()))
    return ForceResults(
        force,
        tuple(_line(force, name, numbers) for name, numbers in drawn.items()),
        tuple(
            each
            for numbers in list(drawn.values())[1:]
            for i, j in _same_doses(numbers, first)
            if (each := _against(numbers, first, (i, j))) is not None
        ),
        tuple(
            each
            for numbers in drawn.values()
            for i in range(1, len(numbers.runs))
            for j in range(i if force.asked == "differs" else 1)
            if (each := _against(numbers, numbers, (i, j))) is not None
        ),
        _law(force, drawn),
    )


class _LineNumbers:
    """A line's runs, fits and samples of both kinds of level."""

    def __init__(self, seed: int, runs: Sequence[_Runs], axis: tuple[float, ...]) -> None:
        self.runs = runs
        self.fits = [each.pooled() for each in runs]
        known = [each.cell.dose.known for each in runs]
        self.doses = tuple(each.cell.dose.value for each in runs)
        self.end = LineDraws(
            self.doses, tuple(each.at_the_end() for each in runs),
            tuple(k or 0.0 for k in known), seed, axis,
        )  # fmt: skip
        ceilings = tuple(each.ceilings(f) for each, f in zip(runs, self.fits, strict=True))
        self.ceiling = replace(self.end, cells=ceilings, seed=seed + 1000)
        full = [f for each, f in zip(runs, self.fits, strict=True) if each.counted]
        self.identified = bool(full) and all(f is not None and f.identified for f in full)

    @property
    def kind(self) -> str:
        return "ceiling" if self.identified else "end"

    def of(self, kind: str) -> LineDraws:
        return self.ceiling if kind == "ceiling" else self.end

    @property
    def complete(self) -> bool:
        """Whether there are several doses, each with a run."""
        return len(self.runs) > 1 and all(each.found for each in self.runs)

    def broken(self, i: int) -> int:
        """Runs of a cell that are unstable, or ended far below the best cell of their line at a
        milder dose. (A dose milder than the best one may be slow, as a low learning rate is.)"""
        means = [
            fmean(cell.levels) - k if cell.levels else -math.inf
            for cell, k in zip(self.end.cells, self.end.known, strict=True)
        ]
        best = max(means[: i + 1])
        low = sum(level - self.end.known[i] < best - FALL for level in self.end.cells[i].levels)
        return self.end.cells[i].unstable + low


def _line(force: ForceDefinition, name: str, numbers: _LineNumbers) -> LineResult:
    cells = tuple(_cell(numbers, i) for i in range(len(numbers.runs)))
    verdict: DoseVerdict | None = None
    best: tuple[BestDose, ...] = ()
    words = "not all of its runs are done"
    if numbers.complete:
        if force.asked == "falls" and numbers.doses[0] != numbers.end.axis[0]:
            words = "the first dose, from which falls are counted, was not tried"
        elif force.asked == "falls":
            verdict = line_verdict(numbers.of(numbers.kind))
            words = verdict_words(
                verdict, numbers.runs[-1].cell.dose.label, force.dose_key, numbers.kind
            )
        elif force.asked == "breaks":
            counts = [(cell.broken, cell.runs) for cell in cells]
            verdict = break_verdict(counts, numbers.doses, numbers.end.axis)
            words = break_words(verdict, numbers.runs[-1].cell.dose.label, force.dose_key)
        elif force.asked == "best":
            best = _best(numbers)
            words = best_words(best)
        else:
            words = "each dose is compared with the first"
    return LineResult(name, cells, numbers.kind, verdict, best, words)


def _cell(numbers: _LineNumbers, i: int) -> CellResult:
    runs, pooled = numbers.runs[i], numbers.fits[i]
    scores = numbers.end.cells[i]
    mid = None if pooled is None else _interval(pooled.predictive.parameter("C_mid"))
    end = _interval(numbers.end.levels[:, i]) if scores.levels else None
    measured = _measured(runs.found)
    rate = measured.pop("pass_rate_end", None)
    if rate is not None and scores.levels:
        measured["gap"] = rate - fmean(scores.levels)
    measured.pop("pass_rate", None)
    return CellResult(
        cell=runs.cell,
        place=float(numbers.end.places[i]),
        runs=len(runs.found),
        unstable=scores.unstable,
        broken=numbers.broken(i),
        p_unstable=unstable_interval(scores.unstable, scores.runs),
        end=end,
        ceiling=None if pooled is None else _interval(numbers.ceiling.levels[:, i]),
        identified=pooled is not None and pooled.identified,
        c_mid=mid,
        measured=measured,
    )


def _interval(draws: Array) -> Interval:
    low, middle, high = np.quantile(draws, TAILS)
    return float(low), float(middle), float(high)


def _measured(found: Sequence[MemberFinding]) -> dict[str, float]:
    """Means of step values over the steps of all runs; `pass_rate_end` over the last ones."""
    values: dict[str, list[float]] = {}
    for each in found:
        rows = RunReader(each.member.path).columns(StepLine, *MEASURES)
        for name, column in zip(MEASURES, zip(*rows, strict=True), strict=False):
            known = [float(v) for v in column if v is not None and math.isfinite(v)]
            values.setdefault(name, []).extend(known)
            if name == "pass_rate" and known and outcome(each).state != "unstable":
                last = known[-max(round(END_SHARE * len(known)), 1) :]
                values.setdefault("pass_rate_end", []).append(fmean(last))
    return {name: fmean(v) for name, v in values.items() if v}


def _against(mine: _LineNumbers, other: _LineNumbers, at: tuple[int, int]) -> CellContrast | None:
    """One cell against another, of one line or of two; None where one has no run."""
    i, j = at
    if not mine.runs[i].found or not other.runs[j].found:
        return None
    kind = "ceiling" if mine.kind == other.kind == "ceiling" else "end"
    a, b = mine.of(kind), other.of(kind)
    levels = a.levels[:, i] - a.known[i], b.levels[:, j] - b.known[j]
    found = contrast(*levels, (a.cells[i], b.cells[j]))
    return CellContrast(mine.runs[i].cell.name, other.runs[j].cell.name, kind, found)


def _same_doses(a: _LineNumbers, b: _LineNumbers) -> list[tuple[int, int]]:
    """Indices of the doses that two lines share."""
    return [(i, b.doses.index(dose)) for i, dose in enumerate(a.doses) if dose in b.doses]


def _law(force: ForceDefinition, drawn: Mapping[str, _LineNumbers]) -> LawVerdict | None:
    if (
        force.law is None
        or len(drawn) < 2
        or not all(numbers.complete for numbers in drawn.values())
    ):
        return None
    outcomes = [
        CellOutcome(float(each.cell.changes[force.law.over]), each.cell.dose.value,
                len(each.found), numbers.broken(i))
        for numbers in drawn.values()
        for i, each in enumerate(numbers.runs)
    ]  # fmt: skip
    return law_verdict(outcomes, force.law.over, force.law.slope)


def _best(numbers: _LineNumbers) -> tuple[BestDose, ...]:
    """The best dose at shares of the budget that all cells have, read from the fitted curves."""
    if any(fitted is None for fitted in numbers.fits):
        return ()
    fits = [fitted for fitted in numbers.fits if fitted is not None]
    budget = min(f.end for f in fits)
    spread = spread_of(numbers.end.cells)
    labels = [each.cell.dose.label for each in numbers.runs]
    rng = np.random.default_rng(61)
    # What seeds do to a recipe is the same at all shares of its budget.
    seeds = np.stack(
        [
            spread / math.sqrt(len(each.counted)) * rng.standard_normal(DRAWS)
            for each in numbers.runs
        ],
        axis=1,
    )
    found = []
    for share in BUDGETS:
        levels = [np.resize(f.predictive.levels(np.array([share * budget]))[:, 0], DRAWS)
                  for f in fits]  # fmt: skip
        winners = np.argmax(np.stack(levels, axis=1) + seeds, axis=1)
        p = np.bincount(winners, minlength=len(fits)) / DRAWS
        top = int(np.argmax(p))
        found.append(BestDose(share, labels[top], float(p[top]), _among(p, labels)))
    return tuple(found)


def _among(p: Array, labels: Sequence[str]) -> tuple[str, ...]:
    """The likeliest doses that together are the best one with BEST_LEVEL probability."""
    order = np.argsort(-p, kind="stable")
    enough = int(np.searchsorted(np.cumsum(p[order]), BEST_LEVEL - 1e-12)) + 1
    return tuple(labels[i] for i in sorted(order[:enough].tolist()))
