"""Which recipe is better, and in what way: a higher ceiling, a faster climb, or cannot be told yet.

Two verdicts side by side. The paper's works on point estimates: the ceilings differ by more than
0.02, and the higher wins; or both are refitted with A fixed to their mean, and the larger B wins. It
always decides. Ours works on the posterior, and may say that the runs do not decide.

A verdict on *runs* is about these two runs. A verdict on *recipes* allows for the difference that a
mere change of seed makes (about 0.01 in the ceiling), learned from replicates where there are some.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from scalerl.curves.beliefs import sample_quantiles
from scalerl.curves.fit import Fit, fit
from scalerl.curves.forecast import tails
from scalerl.curves.laws import Sigmoid
from scalerl.curves.least_squares import fit_sigmoid
from scalerl.curves.planning import Need, _search, continued
from scalerl.errors import InputError
from scalerl.runs.record import Run

Array = npt.NDArray[np.float64]
Verdict = Literal["higher-ceiling", "faster", "same", "undecided"]

#: The paper's margin on A.
MARGIN = 0.02
#: A side is taken above this probability.
SURE = 0.95
#: Ceilings count as the same when they are within MARGIN with this probability.
SAME = 0.80
#: Two climbs count as alike when they differ by less than this in ln C.
SAME_SPEED = 0.2
#: Seeds alone move the ceiling and the ln C of a climb by about this much (sd).
SEED_SD = 0.01
SEED_LOG_COMPUTE_SD = 0.1
#: Prior observations behind SEED_SD, when replicates say otherwise.
SEED_NU = 6.0
#: Beyond this many recipes only pairs with the leader are worked out.
MAX_ALL_PAIRS = 24
#: Every how many draws are used for the matrix of all pairs.
THIN = 8


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Runs of one recipe (or a single run)."""

    name: str
    fits: tuple[Fit, ...]

    @property
    def end(self) -> float:
        return max(f.end for f in self.fits)

    def ceiling(self) -> Array:
        """Mean ceiling of the runs, per draw."""
        return np.mean([f.belief.parameter("A") for f in self.fits], axis=0)

    def level(self, compute: float) -> Array:
        return np.mean([f.belief.levels(np.array([compute]))[:, 0] for f in self.fits], axis=0)


@dataclass(frozen=True, slots=True)
class Crossing:
    """The run that is behind now overtakes, with this probability, at about this compute."""

    compute: float | None
    probability: float
    overtakes: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "compute": self.compute,
            "probability": self.probability,
            "overtakes": self.overtakes,
        }


@dataclass(frozen=True, slots=True)
class Pair:
    """What can be said of two runs or recipes."""

    a: str
    b: str
    scope: Literal["runs", "recipes"]
    verdict: Verdict
    winner: str | None
    paper_verdict: Literal["higher-ceiling", "faster"]
    paper_winner: str
    #: A_b - A_a: median, interval, probability that it is positive and that it is within MARGIN.
    delta_a: float
    delta_a_interval: tuple[float, float]
    p_b_higher: float
    p_same_ceiling: float
    #: ln of (compute of b / compute of a) to reach a score that both have reached.
    speed: tuple[float, float, float] | None
    speed_score: float | None
    p_b_faster: float | None
    fixed_a: dict[str, float]
    crossing: Crossing | None
    need: Need | None = None
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
            "p_b_higher_ceiling": self.p_b_higher,
            "p_same_ceiling": self.p_same_ceiling,
            "speed": speed,
            "fixed_A": dict(self.fixed_a),
            "crossing": None if self.crossing is None else self.crossing.to_dict(),
            "would_decide": None if self.need is None else self.need.to_dict(),
            "alarm": self.alarm,
        }

    def __str__(self) -> str:
        if self.verdict == "higher-ceiling":
            return f"{self.winner} has the higher ceiling (by {abs(self.delta_a):.3f})"
        if self.verdict == "faster":
            ratio = np.exp(abs(self.speed[1])) if self.speed is not None else float("nan")
            return f"same ceiling; {self.winner} climbs faster (1/{ratio:.2f} of the compute)"
        if self.verdict == "same":
            return f"no difference between {self.a} and {self.b}"
        return f"undecided between {self.a} and {self.b}" + (f": {self.need}" if self.need else "")


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Fits, groups ranked by ceiling, and the pairs among them."""

    fits: tuple[Fit, ...]
    groups: tuple[Group, ...]
    pairs: tuple[Pair, ...]
    scope: Literal["runs", "recipes"]
    #: P(ceiling of row > ceiling of column), groups in order.
    p_higher: Array
    #: Mean of the point ceilings, to which A is fixed in the efficiency re-plot.
    mean_a: float
    seed_sd: float

    def to_dict(self) -> dict[str, Any]:
        return {
            "scope": self.scope,
            "seed_sd": self.seed_sd,
            "mean_A": self.mean_a,
            "ranking": [g.name for g in self.groups],
            "runs": [f.to_dict() for f in self.fits],
            "pairs": [p.to_dict() for p in self.pairs],
        }

    def plot(self, path: str | None = None) -> Any:
        """Draw all runs with their forecasts; returns the matplotlib figure."""
        from scalerl.report.figures import plot_comparison

        return plot_comparison(self, path)


def compare(
    *items: Fit | Run | Iterable[Fit | Run],
    group_by: Literal["recipe"] | None = None,
    seed_sd: float | None = None,
    planning: bool = False,
    **options: Any,
) -> Comparison:
    """Compare runs or fits. With group_by="recipe", runs that share `group` are replicates and the
    verdicts are about recipes: seed variance is allowed for (`seed_sd` overrides what is assumed).
    planning=True also simulates how much compute would decide an undecided pair (0.3 s a pair).

    >>> from scalerl import load_runs
    >>> c = compare(load_runs("example:paper-8b", "example:paper-moe"))
    >>> c.pairs[0].verdict, c.pairs[0].winner
    ('higher-ceiling', 'paper-moe')
    """
    fits = [f if isinstance(f, Fit) else fit(f, **options) for f in _flat(items)]
    if len(fits) < 2:
        raise InputError("compare needs at least two runs")
    kinds = {f.run.x_kind for f in fits}
    if len(kinds) > 1:
        raise InputError(
            f"runs are measured in different kinds of compute ({', '.join(sorted(kinds))}): "
            "choose one with --x"
        )
    scope: Literal["runs", "recipes"] = "recipes" if group_by or seed_sd else "runs"
    groups = _groups(fits, by_recipe=group_by is not None)
    if len(groups) < 2:
        raise InputError("all runs belong to one recipe: nothing to compare (drop --group-by)")
    groups.sort(key=lambda g: -float(np.median(g.ceiling())))
    if scope == "recipes":
        sd = _seed_sd(groups) if seed_sd is None else seed_sd
    else:
        sd = 0.0
    chosen: Sequence[tuple[Group, Group]] = list(combinations(groups, 2))
    if len(groups) > MAX_ALL_PAIRS:
        chosen = [(groups[0], g) for g in groups[1:]]
    points = {f.name: _point(f) for f in fits}
    pairs = tuple(_pair(a, b, sd, scope, points, planning) for a, b in chosen)
    mean_a = float(np.mean([p.A for p in points.values()]))
    return Comparison(tuple(fits), tuple(groups), pairs, scope, _all_pairs(groups, sd), mean_a, sd)


def _flat(items: Iterable[Any]) -> list[Fit | Run]:
    out: list[Fit | Run] = []
    for item in items:
        if isinstance(item, Fit | Run):
            out.append(item)
        else:
            out.extend(_flat(item))
    return out


def _groups(fits: list[Fit], by_recipe: bool) -> list[Group]:
    members: dict[str, list[Fit]] = {}
    for i, f in enumerate(fits):
        name = f.run.group if by_recipe and f.run.group else f.name
        if not by_recipe and name in members:
            name = f"{name} ({i + 1})"
        members.setdefault(name, []).append(f)
    return [Group(name, tuple(fs)) for name, fs in members.items()]


def _seed_sd(groups: list[Group]) -> float:
    """Spread of the ceiling between runs of one recipe: SEED_SD, corrected by the replicates."""
    squares, degrees = 0.0, 0
    for g in groups:
        medians = np.array([np.median(f.belief.parameter("A")) for f in g.fits])
        squares += float(((medians - medians.mean()) ** 2).sum())
        degrees += len(medians) - 1
    return float(np.sqrt((SEED_NU * SEED_SD**2 + squares) / (SEED_NU + degrees)))


def _seed_noise(a: Group, b: Group, sd: float, n: int, stream: int) -> Array:
    """What the seeds of two groups add to the difference of their means."""
    if sd == 0.0:
        return np.zeros(n)
    rng = np.random.default_rng((a.fits[0].seed, b.fits[0].seed, stream))
    scale = sd * np.sqrt(1.0 / len(a.fits) + 1.0 / len(b.fits))
    noise: Array = scale * rng.standard_normal(n)
    return noise


def _all_pairs(groups: list[Group], sd: float) -> Array:
    """P(ceiling of row > ceiling of column); memory and time grow with groups squared."""
    draws = np.stack([g.ceiling()[::THIN] for g in groups])
    rng = np.random.default_rng(31)
    counts = np.array([len(g.fits) for g in groups])
    draws = draws + rng.standard_normal(draws.shape) * (sd / np.sqrt(counts))[:, None]
    p = np.stack([(row[None, :] > draws).mean(axis=1) for row in draws])
    np.fill_diagonal(p, 0.5)
    return p


def _point(f: Fit) -> Sigmoid:
    """The point estimate the paper's rules work on: least squares with R_0 known."""
    if f.method == "paper":
        return Sigmoid(**f.params)
    points = f.points
    r0 = f.params["R_0"] if f.r0_source in ("given", "first") else float(points.score[0])
    law = fit_sigmoid(points.compute, points.score, r0=r0).law
    assert isinstance(law, Sigmoid)
    return law


def _paper_rule(
    a: Group, b: Group, points: dict[str, Sigmoid]
) -> tuple[Literal["higher-ceiling", "faster"], str, dict[str, float]]:
    """|delta A| > MARGIN: the higher ceiling wins. Otherwise refit with A fixed to the mean of the
    two, and the larger B wins."""
    a_mean = float(np.mean([points[f.name].A for f in a.fits]))
    b_mean = float(np.mean([points[f.name].A for f in b.fits]))
    fixed = (a_mean + b_mean) / 2.0
    slopes = []
    for g in (a, b):
        laws = [
            fit_sigmoid(
                f.points.compute, f.points.score, r0=min(points[f.name].R_0, fixed), a=fixed
            ).law
            for f in g.fits
        ]
        slopes.append(float(np.mean([law.params()["B"] for law in laws])))
    result = {"A": fixed, "B_a": slopes[0], "B_b": slopes[1]}
    if abs(a_mean - b_mean) > MARGIN:
        return "higher-ceiling", (a.name if a_mean > b_mean else b.name), result
    return "faster", (a.name if slopes[0] >= slopes[1] else b.name), result


def _speed(a: Group, b: Group) -> tuple[Array, float] | None:
    """Samples of ln(C_b / C_a) to reach the score half-way up what both have climbed."""
    tops = [float(np.mean([np.median(f.forecast(f.end).now) for f in g.fits])) for g in (a, b)]
    starts = [float(np.mean([f.points.score[:2].mean() for f in g.fits])) for g in (a, b)]
    low, high = max(starts), min(tops)
    if high - low < MARGIN:
        return None
    score = (low + high) / 2.0
    when = []
    for g in (a, b):
        logs = [_log_compute_to(f, score) for f in g.fits]
        when.append(np.mean(logs, axis=0))
    return when[1] - when[0], score


def _log_compute_to(f: Fit, score: float) -> Array:
    """ln C at which each draw first passes the score, inside the window."""
    first = f.points.compute[f.points.compute > 0][0]
    knots = np.geomspace(first, f.end, 48)
    levels = np.maximum.accumulate(f.belief.levels(knots), axis=1)
    position = np.log(knots)
    i = np.clip((levels < score).sum(axis=1), 1, len(knots) - 1)
    rows = np.arange(len(levels))
    before, after = levels[rows, i - 1], levels[rows, i]
    share = np.clip((score - before) / np.where(after > before, after - before, 1.0), 0.0, 1.0)
    crossed: Array = position[i - 1] + share * (position[i] - position[i - 1])
    return crossed


def _crossing(a: Group, b: Group, delta: Array) -> Crossing | None:
    """Does the one that is behind at the end of the shorter run end up ahead?"""
    start = min(a.end, b.end)
    now = b.level(start) - a.level(start)
    behind_is_b = float(np.median(now)) < 0.0
    sign = 1.0 if behind_is_b else -1.0
    probability = float((sign * delta > 0.0).mean())
    if probability < 0.5:
        return None
    knots = np.geomspace(start, 100.0 * start, 40)
    gap = np.array([sign * float(np.median(b.level(c) - a.level(c))) for c in knots])
    ahead = np.flatnonzero(gap > 0.0)
    compute = float(knots[ahead[0]]) if len(ahead) else None
    return Crossing(compute, probability, b.name if behind_is_b else a.name)


def _decide(
    a: Group, b: Group, sd: float, recipes: bool
) -> tuple[Verdict, str | None, Array, tuple[Array, float] | None]:
    delta = b.ceiling() - a.ceiling()
    delta = delta + _seed_noise(a, b, sd, len(delta), 41)
    p_higher = float((delta > 0).mean())
    p_same = float((np.abs(delta) < MARGIN).mean())
    speed = _speed(a, b)
    if speed is not None:
        log_sd = SEED_LOG_COMPUTE_SD if recipes else 0.0
        ratio = speed[0] + _seed_noise(a, b, log_sd, len(speed[0]), 42)
        speed = ratio, speed[1]
    if max(p_higher, 1.0 - p_higher) > SURE and p_same < SAME:
        return "higher-ceiling", (b.name if p_higher > 0.5 else a.name), delta, speed
    if p_same >= SAME and speed is not None:
        p_faster = float((speed[0] < 0).mean())
        alike = float((np.abs(speed[0]) < SAME_SPEED).mean())
        if max(p_faster, 1.0 - p_faster) > SURE and alike < SAME:
            return "faster", (b.name if p_faster > 0.5 else a.name), delta, speed
        if alike >= SAME:
            return "same", None, delta, speed
    return "undecided", None, delta, speed


def _pair(
    a: Group,
    b: Group,
    sd: float,
    scope: Literal["runs", "recipes"],
    points: dict[str, Sigmoid],
    planning: bool,
) -> Pair:
    declining = [f for g in (a, b) for f in g.fits if f.alarm is not None]
    verdict, winner, delta, speed = _decide(a, b, sd, scope == "recipes")
    alarm = None
    if declining:
        verdict, winner = "undecided", None
        alarm = f"{declining[0].name} is {declining[0].alarm}"
    level = a.fits[0].level
    low, mid, high = sample_quantiles(delta, (tails(level)[0], 0.5, tails(level)[1]))
    ratio = None
    if speed is not None:
        r = sample_quantiles(speed[0], (tails(level)[0], 0.5, tails(level)[1]))
        ratio = (float(r[0]), float(r[1]), float(r[2]))
    paper_verdict, paper_winner, fixed = _paper_rule(a, b, points)
    need = None
    if verdict == "undecided" and alarm is None and planning:
        need = to_decide(a, b, sd, scope == "recipes")
    return Pair(
        a=a.name,
        b=b.name,
        scope=scope,
        verdict=verdict,
        winner=winner,
        paper_verdict=paper_verdict,
        paper_winner=paper_winner,
        delta_a=float(mid),
        delta_a_interval=(float(low), float(high)),
        p_b_higher=float((delta > 0).mean()),
        p_same_ceiling=float((np.abs(delta) < MARGIN).mean()),
        speed=ratio,
        speed_score=None if speed is None else speed[1],
        p_b_faster=None if speed is None else float((speed[0] < 0).mean()),
        fixed_a=fixed,
        crossing=_crossing(a, b, delta),
        need=need,
        alarm=alarm,
    )


def to_decide(a: Group, b: Group, sd: float, recipes: bool) -> Need:
    """The compute per run that would decide between two groups."""

    def settled(multiple: float, rng: np.random.Generator) -> bool:
        longer = [
            Group(g.name, tuple(fit(continued(f, multiple, rng), r0=f.r0) for f in g.fits))
            for g in (a, b)
        ]
        return _decide(longer[0], longer[1], sd, recipes)[0] != "undecided"

    return _search("decide between them", max(a.end, b.end), settled, a.fits[0].seed)
