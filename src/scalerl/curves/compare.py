"""Compare runs or recipes: which has the higher ceiling, which is faster, or undecided.

Every pair has two verdicts. The paper's rule works on point estimates: if the ceilings differ by
more than 0.02, the higher wins; otherwise both are refitted with A fixed to their mean, and the
larger B wins. It always decides. Ours works on the posterior and may be undecided (decision.py); it
is given only if it would survive to the end of both budgets (survival.py).

A verdict on *runs* is about these two runs. A verdict on *recipes* allows for the effect of the
seed (about 0.01 in the ceiling), learned from replicates where there are some.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from scalerl.curves.arms import MARGIN, Arm, seed_spread, with_family_prior
from scalerl.curves.compute_needed import ComputeNeeded
from scalerl.curves.decision import Crossing, find_crossing, p_same
from scalerl.curves.fit import fit
from scalerl.curves.formula import Array, Sigmoid
from scalerl.curves.least_squares import fit_sigmoid
from scalerl.curves.prediction import sample_quantiles, tails
from scalerl.curves.result import Fit
from scalerl.curves.survival import compute_to_decide, final_verdict
from scalerl.curves.verdict import VerdictName
from scalerl.errors import InputError
from scalerl.renamed import renamed_attributes
from scalerl.runs.planned import planned_end
from scalerl.runs.record import Run

Scope = Literal["runs", "recipes"]

#: With more arms than this only pairs with the leader are compared: all pairs would take minutes.
MAX_ALL_PAIRS = 24
#: The matrix of all pairs uses every MATRIX_THIN-th draw, since its memory grows with arms squared.
MATRIX_THIN = 8
#: Most arms and pairs shown by `repr`.
MAX_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Pair:
    """The comparison of two runs or recipes, a and b; `str` gives the verdict as a sentence.

    >>> from scalerl import compare, load_runs
    >>> pair = compare(load_runs("example:paper-8b", "example:paper-moe")).pairs[0]
    >>> pair.verdict, str(pair)  # doctest: +ELLIPSIS
    ('higher-ceiling', 'paper-moe has the higher ceiling (by 0.06...)')
    """

    a: str
    b: str
    #: Whether the verdict is about these runs or about their recipes.
    scope: Scope
    verdict: VerdictName
    winner: str | None
    #: Verdict and winner by the paper's rule.
    paper_verdict: Literal["higher-ceiling", "faster"]
    paper_winner: str
    #: Median of A_b - A_a.
    delta_a: float
    #: Interval of A_b - A_a.
    delta_a_interval: tuple[float, float]
    #: Probability that a has the higher ceiling. Two ceilings near 1 count for neither side.
    p_a_higher: float
    #: Probability that b has the higher ceiling.
    p_b_higher: float
    #: Probability that the ceilings are within MARGIN.
    p_same_ceiling: float
    #: Lower end, median and upper end of ln(compute of b / compute of a) to reach `speed_score`.
    speed: tuple[float, float, float] | None
    #: A score that both have reached.
    speed_score: float | None
    #: Probability that b needs less compute to reach it.
    p_b_faster: float | None
    #: The paper's rule: A fixed to the mean of both least-squares ceilings, and B of each with it;
    #: None where very many runs are compared and the rule does not need it.
    fixed_a: dict[str, float] | None
    crossing: Crossing | None
    #: Neither ceiling is identified and both may be 1, so no verdict is given.
    both_open: bool
    #: Probability that it is still the verdict at the end of both budgets, if both runs stay
    #: healthy; None where the points give no verdict.
    survives: float | None = None
    #: Of an undecided pair: the verdict and the winner that the points give now, but which would
    #: not survive; None where they give none.
    tentative: tuple[VerdictName, str | None] | None = None
    #: Compute at which a, and b, is taken to end; None where both budgets are spent.
    ends: tuple[float, float] | None = None
    #: Whether `ends` are budgets that were given; otherwise twice the compute so far is assumed.
    budgets_known: bool = False
    #: Share of the compute at which a kept verdict was already given; None where it is not kept.
    decided_at: float | None = None
    #: Compute that would decide an undecided pair, if it was simulated.
    need: ComputeNeeded | None = None
    #: Which run declines, and by how much; None: neither.
    alarm: str | None = None

    def to_dict(self) -> dict[str, Any]:
        speed = None
        if self.speed is not None:
            low, mid, high = (float(np.exp(v)) for v in self.speed)
            speed = {
                "score": self.speed_score,
                "compute_ratio_b_over_a": {"median": mid, "interval": [low, high]},
                "p_b_faster": self.p_b_faster,
            }
        return {
            "a": self.a,
            "b": self.b,
            "scope": self.scope,
            "paper_verdict": self.paper_verdict,
            "paper_winner": self.paper_winner,
            "verdict": self.verdict,
            "winner": self.winner,
            "delta_A": {"median": self.delta_a, "interval": list(self.delta_a_interval)},
            "p_a_higher_ceiling": self.p_a_higher,
            "p_b_higher_ceiling": self.p_b_higher,
            "p_same_ceiling": self.p_same_ceiling,
            "speed": speed,
            "fixed_A": None if self.fixed_a is None else dict(self.fixed_a),
            "crossing": None if self.crossing is None else self.crossing.to_dict(),
            "both_open": self.both_open,
            "survives": self.survives,
            "tentative": None
            if self.tentative is None
            else {"verdict": self.tentative[0], "winner": self.tentative[1]},
            "ends": None if self.ends is None else list(self.ends),
            "budgets_known": self.budgets_known,
            "decided_at": self.decided_at,
            "would_decide": None if self.need is None else self.need.to_dict(),
            "alarm": self.alarm,
        }

    @property
    def kept(self) -> str:
        """A clause that says that the verdict is kept from an earlier look; "" if it is not."""
        if self.decided_at is None:
            return ""
        text = f", kept from {100.0 * self.decided_at:.0f} % of the compute"
        if self.verdict != "higher-ceiling":
            return text
        return f"{text}, with probability {max(self.p_a_higher, self.p_b_higher):.2f} now"

    @property
    def unsettled(self) -> str:
        """A clause that says which verdict is not given because it would not last; "" if none."""
        if self.tentative is None or self.survives is None:
            return ""
        name, winner = self.tentative
        leads = {
            "higher-ceiling": f"{winner} has the higher ceiling",
            "faster": f"{winner} is faster",
        }.get(name, "there is no difference")
        return (
            f": by these points {leads}, but that would be withdrawn by {self.until} with "
            f"probability {1.0 - self.survives:.2f}"
        )

    @property
    def until(self) -> str:
        """The time that `survives` is about: "the end of both budgets"."""
        return "the end of both budgets" if self.budgets_known else "twice the compute so far"

    def __str__(self) -> str:
        if self.verdict == "higher-ceiling":
            return f"{self.winner} has the higher ceiling (by {abs(self.delta_a):.3f}){self.kept}"
        if self.verdict == "faster":
            ratio = np.exp(abs(self.speed[1])) if self.speed is not None else float("nan")
            return (
                f"same ceiling, {self.winner} is faster (1/{ratio:.2f} of the compute){self.kept}"
            )
        if self.verdict == "same":
            return f"no difference between {self.a} and {self.b}{self.kept}"
        why = f": {self.need}" if self.need else self.unsettled
        return f"undecided between {self.a} and {self.b}{why}"


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """The result of `compare`: fits, arms ranked by ceiling, and the pairs of arms.

    >>> from scalerl import compare, load_runs
    >>> compare(load_runs("example:paper-8b", "example:paper-moe"))  # doctest: +ELLIPSIS
    Comparison of 2 runs, by ceiling: paper-moe, paper-8b
      paper-moe has the higher ceiling (by 0.06...)
    """

    fits: tuple[Fit, ...]
    arms: tuple[Arm, ...]
    pairs: tuple[Pair, ...]
    scope: Scope
    #: P(ceiling of one arm > ceiling of another), (arms, arms); ties are in neither.
    p_higher: Array
    #: Mean of the fits' median ceilings, to which A is fixed in the efficiency re-plot.
    mean_a: float
    #: sd of the ceiling between seeds that verdicts allow for; 0 for verdicts on runs.
    seed_sd: float

    if not TYPE_CHECKING:  # type checkers would take any attribute for an old name
        __getattr__ = renamed_attributes({"groups": "arms"}, "0.4")

    def to_dict(self) -> dict[str, Any]:
        return {
            "scope": self.scope,
            "seed_sd": self.seed_sd,
            "mean_A": self.mean_a,
            "ranking": [g.name for g in self.arms],
            "ceilings": [g.to_dict() for g in self.arms],
            "runs": [f.to_dict() for f in self.fits],
            "pairs": [p.to_dict() for p in self.pairs],
        }

    def plot(self, path: str | None = None) -> Any:
        """Draw all runs with their forecasts; returns the matplotlib figure."""
        from scalerl.report.comparison_figures import plot_comparison

        return plot_comparison(self, path)

    def __repr__(self) -> str:
        head = ", ".join(arm.name for arm in self.arms[:MAX_SHOWN])
        more = "" if len(self.arms) <= MAX_SHOWN else ", ..."
        pairs = [f"  {pair}" for pair in self.pairs[:MAX_SHOWN]]
        if len(self.pairs) > MAX_SHOWN:
            pairs.append(f"  ... {len(self.pairs) - MAX_SHOWN} more pairs")
        title = f"Comparison of {len(self.arms)} {self.scope}, by ceiling: {head}{more}"
        return "\n".join([title, *pairs])

    def _repr_html_(self) -> str:
        from scalerl.report.notebook import comparison_html

        return comparison_html(self)


def compare(
    *items: Fit | Run | Iterable[Fit | Run],
    group_by: Literal["recipe"] | None = None,
    seed_sd: float | None = None,
    budget: float | Sequence[float] | None = None,
    planning: bool = False,
    progress: Callable[[float], None] | None = None,
    **options: Any,
) -> Comparison:
    """Compare runs or fits. With group_by="recipe", runs that share `group` are replicates and the
    verdicts are about recipes: seed variance is allowed for (`seed_sd` overrides its estimate).
    A verdict is given if it would survive until the runs end: at the compute `budget` (one for
    all, or one a run; that of a run that has ended is its last compute). By default that is the
    budget of the recipe in the run's record, and for other runs twice their compute so far.
    planning=True also simulates how much compute would decide an undecided pair (1 s a pair).

    >>> from scalerl import load_runs
    >>> c = compare(load_runs("example:paper-8b", "example:paper-moe"))
    >>> c.pairs[0].verdict, c.pairs[0].winner
    ('higher-ceiling', 'paper-moe')
    """
    given = [f if isinstance(f, Fit) else fit(f, **options) for f in _flat(items)]
    _check(given)
    # The paper's procedure has no posterior to compare: such fits are refitted with ours.
    fits = [
        f if f.method != "paper" else fit(f.run, law=f.law, lo=f.window[0], hi=f.end) for f in given
    ]
    points = {id(f): _point(g) for f, g in zip(fits, given, strict=True)}
    arms = _arms(fits, group_by is not None, _budgets(budget, fits))
    if len(arms) < 2:
        raise InputError("all runs belong to one recipe: nothing to compare (drop --group-by)")
    arms.sort(key=lambda g: -float(np.median(g.ceiling)))
    scope: Scope = "recipes" if group_by or seed_sd else "runs"
    sd = seed_sd or 0.0
    if scope == "recipes" and seed_sd is None:
        sd = seed_spread(arms)
    refit = len(arms) <= MAX_ALL_PAIRS
    chosen: Iterable[tuple[Arm, Arm]] = combinations(arms, 2)
    count = len(arms) * (len(arms) - 1) // 2
    if not refit:
        # Fresh arms, one after the other: the paths that arms cache would fill the memory.
        chosen = ((arms[0], Arm(g.name, g.fits, g.prior, g.budget)) for g in arms[1:])
        count = len(arms) - 1
    pairs = []
    for i, (a, b) in enumerate(chosen):
        pairs.append(_pair(a, b, sd, scope, points, planning, refit))
        if progress is not None:
            progress((i + 1) / count)
    mean_a = float(np.mean([f.params["A"] for f in given]))
    matrix = _all_pairs(arms, sd)
    return Comparison(tuple(given), tuple(arms), tuple(pairs), scope, matrix, mean_a, sd)


def compare_arms(a: Arm, others: Sequence[Arm], seed_sd: float) -> list[Pair]:
    """The pairs of one recipe's arm with each of the others."""
    points = {id(f): _point(f) for g in (a, *others) for f in g.fits}
    found = []
    for b in others:
        first, second = sorted((a, b), key=lambda g: -float(np.median(g.ceiling)))
        pair = _pair(first, second, seed_sd, "recipes", points, planning=False, refit=True)
        found.append(pair)
    return found


def _check(fits: list[Fit]) -> None:
    if len(fits) < 2:
        raise InputError("compare needs at least two runs")
    kinds = {f.run.x_kind for f in fits}
    if len(kinds) > 1:
        raise InputError(
            f"runs are measured in different kinds of compute ({', '.join(sorted(kinds))}): "
            "choose one with --x"
        )
    if len({f.law for f in fits}) > 1:
        raise InputError("runs are fitted with different laws: choose one with --law")
    if not fits[0].law.comparable:
        raise InputError(f"fits of the {fits[0].law.title} cannot be ranked: drop --law")


def comparable(fits: Sequence[Fit]) -> bool:
    """Whether `compare` accepts these: several runs, one kind of compute, one comparable law."""
    kinds = {(f.run.x_kind, f.law) for f in fits}
    return len(fits) > 1 and len(kinds) == 1 and fits[0].law.comparable


def _flat(items: Iterable[Any]) -> list[Fit | Run]:
    out: list[Fit | Run] = []
    for item in items:
        if isinstance(item, Fit | Run):
            out.append(item)
        else:
            out.extend(_flat(item))
    return out


def _budgets(budget: float | Sequence[float] | None, fits: list[Fit]) -> Sequence[float | None]:
    """The budget of each run: what was given, or that of its recipe; None: not known."""
    if budget is None:
        return [planned_end(f.run) for f in fits]
    if isinstance(budget, int | float):
        return [budget] * len(fits)
    if len(budget) != len(fits):
        raise InputError(f"{len(budget)} budgets for {len(fits)} runs: give one, or one a run")
    return budget


def _arms(fits: list[Fit], by_recipe: bool, budgets: Sequence[float | None]) -> list[Arm]:
    members: dict[str, list[Fit]] = {}
    planned: dict[str, float | None] = {}
    for i, (f, budget) in enumerate(zip(fits, budgets, strict=True)):
        name = f.run.group if by_recipe and f.run.group else f.name
        # Two runs of one name must not be pooled as replicates.
        if not by_recipe and name in members:
            name = f"{name} ({i + 1})"
        members.setdefault(name, []).append(f)
        planned[name] = None if budget is None else max(budget, planned.get(name) or 0.0)
    return with_family_prior(
        Arm(name, tuple(fs), budget=planned[name]) for name, fs in members.items()
    )


def _all_pairs(arms: list[Arm], sd: float) -> Array:
    """P(ceiling of one arm > ceiling of another); memory and time grow with arms squared."""
    draws = np.stack([g.ceiling[::MATRIX_THIN] for g in arms])
    # A stream of its own: any fixed number gives the same matrix on every call.
    rng = np.random.default_rng(31)
    counts = np.array([g.seeds for g in arms])
    draws = draws + rng.standard_normal(draws.shape) * (sd / np.sqrt(counts))[:, None]
    p = np.stack([(row[None, :] > draws).mean(axis=1) for row in draws])
    # An arm against itself ties in every draw; by convention one half.
    np.fill_diagonal(p, 0.5)
    return np.asarray(p)


def _point(f: Fit) -> Sigmoid:
    """The point estimate the paper's rules work on: least squares with R_0 known."""
    if f.method == "paper":
        return Sigmoid(**f.params)
    return fit_sigmoid(f.points.compute, f.points.score, r0=known_r0(f)).formula


def known_r0(f: Fit) -> float:
    """R_0 for the paper's rule, which takes it as known: the fit's where given, else the first
    score."""
    given = f.r0_source in ("given", "first") or f.method == "paper"
    return f.params["R_0"] if given and "R_0" in f.params else float(f.points.score[0])


def with_ceiling(f: Fit, r0: float, a: float) -> Sigmoid:
    """The run's sigmoid with its ceiling fixed to `a`."""
    return fit_sigmoid(f.points.compute, f.points.score, r0=min(r0, a), a=a).formula


def _paper_rule(
    a: Arm, b: Arm, points: dict[int, Sigmoid], refit: bool
) -> tuple[Literal["higher-ceiling", "faster"], str, dict[str, float] | None]:
    """Verdict, winner and refit by the paper's rule: if |delta A| > MARGIN, the higher ceiling
    wins; otherwise both are refitted with A fixed to their mean, and the larger B wins. `refit`
    refits in either case, for the record."""
    ceilings = [float(np.mean([points[id(f)].A for f in g.fits])) for g in (a, b)]
    differ = abs(ceilings[0] - ceilings[1]) > MARGIN
    higher = a.name if ceilings[0] > ceilings[1] else b.name
    if differ and not refit:
        return "higher-ceiling", higher, None
    fixed = (ceilings[0] + ceilings[1]) / 2.0
    slopes = []
    for g in (a, b):
        refits = [with_ceiling(f, points[id(f)].R_0, fixed) for f in g.fits]
        slopes.append(float(np.mean([refit.B for refit in refits])))
    result = {"A": fixed, "B_a": slopes[0], "B_b": slopes[1]}
    if differ:
        return "higher-ceiling", higher, result
    return "faster", (a.name if slopes[0] >= slopes[1] else b.name), result


def _pair(
    a: Arm,
    b: Arm,
    sd: float,
    scope: Scope,
    points: dict[int, Sigmoid],
    planning: bool,
    refit: bool,
) -> Pair:
    found = final_verdict(a, b, sd)
    declining = [f for g in (a, b) for f in g.fits if f.alarm is not None]
    alarm = f"{declining[0].name} is {declining[0].alarm}" if declining else None
    low, high = tails(a.fits[0].level)
    delta = sample_quantiles(found.delta, (low, 0.5, high))
    speed = None if found.speed is None else sample_quantiles(found.speed, (low, 0.5, high))
    paper_verdict, paper_winner, fixed = _paper_rule(a, b, points, refit)
    need = None
    # A verdict that the points give already but that would not last needs no more compute now.
    if found.name == "undecided" and found.tentative is None and alarm is None and planning:
        need = compute_to_decide(a, b, sd)
    return Pair(
        a=a.name,
        b=b.name,
        scope=scope,
        verdict=found.name,
        winner=found.winner,
        paper_verdict=paper_verdict,
        paper_winner=paper_winner,
        delta_a=float(delta[1]),
        delta_a_interval=(float(delta[0]), float(delta[2])),
        p_a_higher=found.p_higher[0],
        p_b_higher=found.p_higher[1],
        p_same_ceiling=p_same(found.delta),
        speed=None if speed is None else (float(speed[0]), float(speed[1]), float(speed[2])),
        speed_score=found.speed_score,
        p_b_faster=None if found.speed is None else float((found.speed < 0).mean()),
        fixed_a=fixed,
        crossing=find_crossing(a, b, found.p_higher),
        both_open=found.both_open,
        survives=found.survives,
        tentative=found.tentative,
        ends=None if a.spent and b.spent else (a.planned_end, b.planned_end),
        budgets_known=a.budget is not None and b.budget is not None,
        decided_at=found.decided_at,
        need=need,
        alarm=alarm,
    )
