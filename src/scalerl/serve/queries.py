"""Requests for fits, forecasts and comparisons, and their results, cached by content.

A result holds the numbers of `fit --json` and `forecast --json`, the curve to draw, and the
sentences of the report.
"""

from __future__ import annotations

import hashlib
import math
import statistics
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from scalerl.curves.arms import joined
from scalerl.curves.compare import comparable, compare
from scalerl.curves.fit import MIN_POINTS, TooFewPoints, fit
from scalerl.curves.forecast import Forecast, forecast
from scalerl.curves.result import Fit
from scalerl.errors import InputError
from scalerl.report import words
from scalerl.report.json_results import FitExtras, fit_results, forecast_results
from scalerl.report.page import facts
from scalerl.report.payload import amount, scores
from scalerl.report.series import downsample, drawn_until, quick_curve
from scalerl.runs.importers import apply_to_each
from scalerl.runs.record import Run

V = TypeVar("V")

#: Points of a run that are sent to be drawn: about one a pixel.
MAX_POINTS = 1500
#: Responses in the cache. Those of a run that has grown since are never asked for again.
MAX_RESPONSES = 400
#: Bytes of all responses in the cache.
MAX_RESPONSE_BYTES = 3_000_000
#: Fits in the cache: each takes half a megabyte, and more with every point.
MAX_FITS = 24
#: Points of all fits in the cache.
MAX_FIT_POINTS = 20_000
#: Runs in one comparison: the page has as many colours.
MAX_RUNS = 12
#: Runs in one comparison where seeds of a recipe are drawn as one curve.
MAX_POOLED = 24
#: Amounts of compute, or targets, in one query.
MAX_AMOUNTS = 16


@dataclass(frozen=True, slots=True)
class Query:
    """What a page asks about one run or several. Amounts of compute are on `axis`."""

    #: Kind of compute; None for the run's own.
    axis: str | None = None
    #: Start of the fitted window.
    lo: float | None = None
    #: End of the fitted window.
    hi: float | None = None
    #: Points after this compute are treated as not yet measured.
    known: float | None = None
    #: Amounts of compute to forecast at.
    at: tuple[float, ...] = ()
    #: Scores to reach.
    target: tuple[float, ...] = ()
    #: Cost of one unit of compute.
    price: float | None = None
    #: What one point of score is worth, in the unit of `price`.
    value: float | None = None
    #: Probability that intervals hold, 0 to 1.
    level: float = 0.9
    #: Without the slow parts (other windows, compute that would identify the ceiling, past alarms):
    #: asked while the visitor drags a handle.
    quick: bool = False

    @staticmethod
    def from_request(asked: Mapping[str, Any]) -> Query:
        """A query from the fields of a request; InputError names a field that is wrong.

        >>> Query.from_request({"window": [10, None], "budget": "200", "target": [0.5]})
        ... # doctest: +ELLIPSIS
        Query(axis=None, lo=10.0, hi=None, known=None, at=(200.0,), target=(0.5,), ...)
        """
        unknown = asked.keys() - FIELDS
        if unknown:
            raise InputError(
                f"no field {sorted(map(str, unknown))[0][:40]!r} in a query: it has "
                f"{', '.join(sorted(FIELDS))}"
            )
        window = asked.get("window")
        if window is not None and not (isinstance(window, list) and len(window) == 2):
            raise InputError("window is two amounts of compute, [from, to], either may be null")
        lo, hi = window or (asked.get("from"), asked.get("to"))
        axis = asked.get("axis")
        if axis is not None and not (isinstance(axis, str) and 0 < len(axis) <= 200):
            raise InputError("axis is the name of a kind of compute")
        level = _number("level", asked.get("level"))
        return Query(
            axis=axis,
            lo=_amount("from", lo),
            hi=_amount("to", hi),
            known=_amount("known", asked.get("known")),
            at=_numbers("budget", asked.get("budget")),
            target=_numbers("target", asked.get("target")),
            price=_number("price", asked.get("price")),
            value=_number("value", asked.get("value")),
            level=0.9 if level is None else level,
            quick=asked.get("quick") in (True, "1", "true"),
        )

    @property
    def end(self) -> float | None:
        """The last compute that a fit may see."""
        ends = [v for v in (self.hi, self.known) if v is not None]
        return min(ends, default=None)


FIELDS = frozenset(
    {"axis", "window", "from", "to", "known", "budget", "target", "price", "value", "level",
     "quick"}
)  # fmt: skip


def _number(name: str, value: Any) -> float | None:
    if value is None or value == "":
        return None
    try:
        found = float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        found = math.nan
    # bool is a subclass of int: `true` would be the amount 1.
    if not math.isfinite(found) or isinstance(value, bool):
        raise InputError(f"{name} is a number")
    return found


def _amount(name: str, value: Any) -> float | None:
    found = _number(name, value)
    if found is not None and found < 0:
        raise InputError(f"{name} is an amount of compute, 0 or more")
    return found


def _numbers(name: str, value: Any) -> tuple[float, ...]:
    if value is None or value == "":
        return ()
    items = value if isinstance(value, list) else str(value).split(",")
    if len(items) > MAX_AMOUNTS:
        raise InputError(f"{name}: at most {MAX_AMOUNTS} at a time")
    found = [_number(name, each) for each in items]
    return tuple(v for v in found if v is not None)


# -- results --------------------------------------------------------------------------------------


class LruCache(Generic[V]):
    """The most recently used values, by key, shared by threads: at most `most` of them, and at most
    `most_size` of their sizes together."""

    def __init__(
        self, most: int, size: Callable[[V], int] = lambda value: 0, most_size: int = 0
    ) -> None:
        self._most = most
        self._size = size
        self._most_size = most_size
        self._cached: OrderedDict[Hashable, V] = OrderedDict()
        self._lock = threading.Lock()
        self.hits = 0

    def get(self, key: Hashable) -> V | None:
        with self._lock:
            if key not in self._cached:
                return None
            self._cached.move_to_end(key)
            self.hits += 1
            return self._cached[key]

    def put(self, key: Hashable, value: V) -> V:
        """Add a value; returns the one that another thread has added meanwhile, if any."""
        with self._lock:
            found = self._cached.setdefault(key, value)
            self._cached.move_to_end(key)
            # The newest value stays, even where it is too large by itself: it is in use.
            while len(self._cached) > 1 and self._full():
                self._cached.popitem(last=False)
        return found

    def _full(self) -> bool:
        size = sum(map(self._size, self._cached.values()))
        return len(self._cached) > self._most or size > self._most_size


class FitCache(LruCache[Fit]):
    """The last fits, by content: another budget, target or price needs no new fit."""

    def __init__(self) -> None:
        super().__init__(MAX_FITS, lambda each: len(each.run), MAX_FIT_POINTS)

    def fitted(self, run: Run, q: Query) -> Fit:
        """The fit that a query needs."""
        key = content([run], q.lo, q.end, q.level)
        found = self.get(key)
        # The lock is not held meanwhile: a fit takes seconds, and other requests need the cache.
        return found or self.put(key, fit(run, lo=q.lo, hi=q.end, level=q.level))


fitted = FitCache().fitted


def forecast_for(f: Fit, q: Query) -> Forecast:
    """The forecast that a query asks for. Advice on whether to continue needs price and value."""
    both = q.price is not None and q.value is not None
    return forecast(
        f,
        list(q.at) or None,
        q.target,
        price=q.price if both else None,
        value=q.value if both else None,
    )


def forecast_values(run: Run, q: Query) -> dict[str, Any]:
    """Fit and forecast of a run without the parts that take seconds."""
    f = fitted(run, q)
    ahead = forecast_for(f, q)
    said = [*words.headline(ahead), *([words.law_begins(f)] if f.early else [])]
    return {
        "curve": drawn(f, q),
        "facts": [{"name": n, "value": v, "note": note} for n, v, note in facts(ahead)],
        "fit": f.to_dict(),
        "forecast": forecast_results([ahead])[0],
        "words": [s for s in said if s],
    }


def fit_response(run: Run, q: Query) -> dict[str, Any]:
    """Everything that the page shows about one run."""
    try:
        f = fitted(run, q)
    except TooFewPoints as error:
        # A window that is too narrow is for the visitor to widen; a young run only needs time.
        if error.points < len(run) or not len(run):
            raise
        return _young_response(run, q)
    ahead = forecast_for(f, q)
    out: dict[str, Any] = {
        "quick": q.quick,
        "curve": drawn(f, ahead.at.compute.tolist()),
        "facts": [{"name": n, "value": v, "note": note} for n, v, note in facts(ahead)],
        "forecast": forecast_results([ahead])[0],
        "cost": _cost(ahead, q),
    }
    if q.quick:
        low, high = f.interval("A")
        out["fit"] = {
            "run": f.name, "window": list(f.window), "params": dict(f.params),
            "identified": f.identified, "alarm": f.alarm, "level": f.level,
            "n_points": len(f.points), "intervals": {"A": [low, high]},
        }  # fmt: skip
        return out | {"words": words.short_headline(ahead)}
    planned = FitExtras.from_fits([f])
    said = words.headline(ahead)
    said += [words.law_begins(f)] if f.early else []
    need = planned.needs.get(id(f))
    said += [] if need is None else [f"{words.need(need)}."]
    return out | {"fit": fit_results([f], planned)[0], "words": [s for s in said if s]}


def _young_response(run: Run, q: Query) -> dict[str, Any]:
    """The same for a run that has too few points for a fit: its points, and what is missing."""
    count, last = len(run), float(run.compute[-1])
    unit = words.KIND[run.x_kind]
    have = words.so_far(count)
    said = f"{have}: the first forecast comes with the fifth."
    return {
        "quick": q.quick,
        "waiting": {"points": count, "needed": MIN_POINTS},
        "curve": {
            "x": [], "median": [], "low": [], "high": [], "end": last, "breaks": [],
            "window": [float(run.compute[0]), last],
            "used": [run.compute.tolist(), scores(run.score)], "held": [[], []],
            "kind": run.x_kind, "unit": unit,
        },
        "facts": [
            {"name": "Now", "value": words.score(float(run.score[-1])),
             "note": f"the last validation, at {words.compute(last)} {unit}"},
            {"name": "Forecast", "value": have, "note": "the first comes with the fifth"},
        ],
        "forecast": {"targets": [], "recommendation": None},
        "cost": None,
        "fit": {"run": run.name, "n_points": count, "identified": False, "alarm": None,
                "warnings": []},
        "words": [said],
    }  # fmt: skip


def _cost(ahead: Forecast, q: Query) -> dict[str, Any] | None:
    """Cost of continuing: price times the compute that is still to be spent."""
    if q.price is None:
        return None
    end = ahead.fit.end
    budgets = [float(c) for c in ahead.at.compute]
    return {
        "budget": [
            {"compute": c, "cost": q.price * max(c - end, 0.0), "expected_net": net}
            for c, net in zip(budgets, _expected_net(ahead, q), strict=True)
        ],
        "target": [
            {"score": t.score, "cost": q.price * max(t.median - end, 0.0)} for t in ahead.targets
        ],
    }


def _expected_net(ahead: Forecast, q: Query) -> list[float | None]:
    """What going on to each budget is expected to be worth beyond its cost: the advice of a
    forecast is about the best amount, which may be another one. None where no value is given."""
    if q.price is None or q.value is None:
        return [None] * len(ahead.at.compute)
    now = float(np.mean(ahead.at.now))
    gains = [float(np.mean(ahead.fit.predict([c]).samples)) - now for c in ahead.at.compute]
    spent = [max(float(c) - ahead.fit.end, 0.0) for c in ahead.at.compute]
    return [100.0 * q.value * g - q.price * s for g, s in zip(gains, spent, strict=True)]


def drawn(f: Fit, at: Sequence[float], to: float | None = None) -> dict[str, Any]:
    """The curve with its band, and the points: used for the fit, and not. The curve has a knot at
    each amount of `at`."""
    far = max([drawn_until(f), *(1.02 * c for c in at), to or 0.0])
    x, median, band = quick_curve(f, far, at)
    lo, hi = f.window
    outside = (f.run.compute < lo) | (f.run.compute > hi)
    used = downsample(f.points.compute, f.points.score, MAX_POINTS)
    held = downsample(f.run.compute[outside], f.run.score[outside], MAX_POINTS)
    return {
        "x": [amount(v) for v in x],
        "median": scores(median),
        "low": scores(band[:, 0]),
        "high": scores(band[:, 1]),
        "end": hi,
        "breaks": [amount(v) for v in f.run.breaks],
        "window": [lo, hi],
        "used": [used[0].tolist(), scores(used[1])],
        "held": [held[0].tolist(), scores(held[1])],
        "kind": f.run.x_kind,
        "unit": words.KIND[f.run.x_kind],
    }


def compare_runs(runs: Sequence[Run], q: Query) -> dict[str, Any]:
    """Several runs with their forecasts, and the verdicts on them (unless `quick`)."""
    fits, problems = _fits(runs, q)
    found = _compared(fits, q)
    found["words"], found["pairs"] = ([], []) if q.quick else _verdicts(fits, q)
    return found | {"left_out": list(map(_left_out, problems))}


def compare_recipes(runs: Sequence[Run], q: Query) -> dict[str, Any]:
    """Recipes, each as one curve through the points of all its seeds, and the verdicts on them.
    Runs with the same `group` are seeds of one recipe; each result names its `members`."""
    recipes = _recipes(runs)
    pools, problems = _fits([_pooled(name, members) for name, members in recipes.items()], q)
    found = _compared(pools, q)
    for each in found["runs"]:
        members = recipes[each["name"]]
        each["members"] = [run.name for run in members]
        each["seed_sd"] = _seed_sd(members, q)
    found["words"], found["pairs"] = [], []
    if len(pools) > 1 and not q.quick:
        named = [run.replace(group=name) for name, each in recipes.items() for run in each]
        fits, _ = apply_to_each(lambda run: fitted(run, q), named)
        if len({f.run.group for f in fits}) > 1:
            found["words"], found["pairs"] = _verdicts(fits, q, "recipe")
    return found | {"left_out": list(map(_left_out, problems))}


def _recipes(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs by the name of their recipe; recipes of one name are told apart by a number."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.group or run.name, []).append(run)
    found: dict[str, list[Run]] = {}
    for key, members in groups.items():
        name = label = key.partition("\0")[0] if len(members) > 1 else members[0].name
        count = 2
        while label in found:
            label, count = f"{name} #{count}", count + 1
        found[label] = members
    return found


def _pooled(name: str, runs: Sequence[Run]) -> Run:
    """The points of all seeds as one run."""
    return joined(name, runs) if len(runs) > 1 else runs[0].replace(name=name)


def _seed_sd(runs: Sequence[Run], q: Query) -> float | None:
    """Standard deviation between the seeds of their last scores; None for a single run."""
    ends = [run.window(q.lo, q.end).score for run in runs]
    last = [float(each[-1]) for each in ends if len(each)]
    return statistics.stdev(last) if len(last) > 1 else None


def _fits(runs: Sequence[Run], q: Query) -> tuple[list[Fit], list[InputError]]:
    """Those runs that can be fitted, on one kind of compute."""
    fits, problems = apply_to_each(lambda run: fitted(run, q), runs)
    if not fits:
        raise problems[0]
    kinds = {f.run.x_kind for f in fits}
    if len(kinds) > 1:
        raise InputError(
            f"these runs count {' and '.join(sorted(words.KIND[k] for k in kinds))}: choose an "
            "axis that they share"
        )
    return fits, problems


def _verdicts(
    fits: Sequence[Fit], q: Query, group_by: Literal["recipe"] | None = None
) -> tuple[list[str], list[dict[str, Any]]]:
    """The verdicts in words, and in numbers."""
    if not comparable(fits):
        return [], []
    found = compare(fits, group_by=group_by, budget=max(q.at, default=None))
    level = fits[0].level
    said = [words.verdict_sentence(pair, level) for pair in found.pairs[:15]]
    return said, [pair.to_dict() for pair in found.pairs]


def _compared(fits: Sequence[Fit], q: Query) -> dict[str, Any]:
    """The curves and the forecasts of runs that are drawn over each other."""
    far = max(drawn_until(f) for f in fits)
    # All runs are forecast at the same compute, by default twice that of the longest.
    at = list(q.at) or [2.0 * max(f.end for f in fits)]
    return {
        "budget": at,
        "quick": q.quick,
        "runs": [
            {
                "name": f.name,
                # A short run beside long ones: its forecast says nothing at 8 times its compute.
                "curve": drawn(f, q.at, min(max(far, *at), 8.0 * f.end)),
                "facts": [
                    {"name": n, "value": v, "note": note}
                    for n, v, note in facts(forecast(f, at, q.target))
                ],
                "ceiling": words.ceiling_in_words(f),
                "A": f.params["A"] if f.identified else None,
                "alarm": f.alarm,
                "interval": list(f.interval("A")),
            }
            for f in fits
        ],
    }


def unique_name(run: Run, others: Sequence[Run]) -> Run:
    """The run under a name that no other has."""
    names = {other.name for other in others}
    name, count = run.name, 2
    while name in names:
        name, count = f"{run.name} #{count}", count + 1
    return run if name == run.name else run.replace(name=name)


def _left_out(problem: InputError) -> str:
    """Why a run is not in a comparison."""
    if isinstance(problem, TooFewPoints):
        return f"{problem.run} has {words.so_far(problem.points)} that a forecast needs."
    return str(problem)


def content(runs: Sequence[Run], *more: Any) -> bytes:
    """A hash of everything that a response depends on."""
    made = hashlib.sha256(repr(more).encode("utf-8", "surrogatepass"))
    for run in runs:
        made.update(
            repr((run.name, run.x_kind, run.r0, run.group, run.notes)).encode(
                "utf-8", "surrogatepass"
            )
        )
        arrays = [run.compute, run.score, run.n_eval, *(run.signs[k] for k in sorted(run.signs))]
        for each in arrays:
            # A mark for an array that is missing, or its neighbours would change places unnoticed.
            made.update(b"|" if each is None else each.tobytes())
    return made.digest()
