"""How numbers, kinds of compute and verdicts are put into words, the same in every output."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scalerl.curves.arms import Arm
from scalerl.curves.compare import Pair
from scalerl.curves.compute_needed import ComputeNeeded
from scalerl.curves.fit import MIN_POINTS
from scalerl.curves.forecast import Forecast
from scalerl.curves.identified import NO_GAIN
from scalerl.curves.prediction import Prediction
from scalerl.curves.result import Fit
from scalerl.text import listed
from scalerl.text import shorten as shorten

if TYPE_CHECKING:
    from scalerl.study.columns import Column
    from scalerl.study.table import StudyRow

KIND = {
    "gpu_hours": "GPU-hours",
    "hours": "hours",
    "flops": "FLOPs",
    "tokens": "tokens",
    "samples": "samples",
    "steps": "optimizer steps",
    "unknown": "compute (unit unknown)",
}
SHORT_KIND = {
    "gpu_hours": "GPU-h",
    "hours": "hours",
    "flops": "FLOPs",
    "tokens": "tokens",
    "samples": "smpls",
    "steps": "steps",
    "unknown": "?",
}
_SUFFIXES = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")
#: An upper end of the ceiling this close to 1 is set by the scale, not by the data.
OPEN_CEILING = 0.99
#: A lower end that three digits would print as 1.000.
PRINTS_AS_ONE = 0.9995
#: What is said in place of a number about a run in decline: the law describes healthy runs, and
#: what a collapsed run may recover is not a gain that further compute buys.
NO_NUMBER = ("none", "run in decline")
#: Why nothing is said about two ceilings that end at 1.
BOTH_OPEN = "neither ceiling is identified, and both may be perfect"


def compute(value: float) -> str:
    """An amount of compute with three digits and an SI suffix.

    >>> compute(12_345), compute(1.2e6), compute(0.25), compute(float("inf")), compute(3e25)
    ('12.3k', '1.2M', '0.25', 'never', '30Y')
    """
    if math.isnan(value):
        return "?"
    if math.isinf(value):
        return "never"
    if value == 0 or abs(value) < 1e-3:
        return f"{value:.3g}"
    power = min(max(math.floor(math.log10(abs(value)) / 3), 0), len(_SUFFIXES) - 1)
    text = f"{value / 1000.0**power:.3g}"
    # 999.6 rounds to 1000, which is 1 of the next suffix.
    if text == "1e+03" and power + 1 < len(_SUFFIXES):
        power, text = power + 1, "1"
    return text + _SUFFIXES[power]


def score(value: float) -> str:
    return f"{value:.3f}"


def signed(value: float) -> str:
    """A difference of scores, always with its sign.

    >>> signed(0.0123), signed(-0.0004)
    ('+0.012', '-0.000')
    """
    return f"{value:+.3f}"


#: How the numbers of a study's table are written, by the format of their column
#: (`scalerl.study.columns.Format`).
NUMBER_FORMATS: dict[str, Callable[[float], str]] = {
    "count": "{:.0f}".format,
    "score": score,
    "difference": signed,
    "number": "{:.2f}".format,
    "compute": compute,
}


def cell_text(column: Column, row: StudyRow, *, interval: bool = True) -> str:
    """A cell of a study's table in one line: its words or its number, and its interval; "" where it
    is empty."""
    cell = column.shown(row)
    if cell.empty:
        return ""
    show = NUMBER_FORMATS.get(column.format, str)
    text = cell.text or show(cell.number or 0.0)
    if cell.interval is None or not interval:
        return text
    return f"{text} {span(cell.interval, show)}"


def percent(level: float) -> str:
    return f"{100 * level:.3g} %"


def span(interval: Sequence[float], show: Callable[[float], str] = score) -> str:
    """The two ends of an interval, of scores by default, as tables have them.

    >>> span((0.6341, 0.67)), span((0.99962, 0.99998))
    ('[0.634, 0.670]', '[0.9996, 1]')
    """
    if show is score and interval[0] >= PRINTS_AS_ONE:
        return f"[{_below_one(interval[0])}, 1]"
    return f"[{', '.join(map(show, interval))}]"


def to(interval: Sequence[float], show: Callable[[float], str] = score) -> str:
    """The same for sentences.

    >>> to((0.6341, 0.67)), to((0.99962, 0.99998))
    ('0.634 to 0.670', '0.9996 or more')
    """
    if show is score and interval[0] >= PRINTS_AS_ONE:
        return f"{_below_one(interval[0])} or more"
    return " to ".join(map(show, interval))


def _below_one(value: float) -> str:
    """A score near 1, rounded down, with as many digits as tell it from 1.

    >>> _below_one(0.99962), _below_one(0.999997), _below_one(1.0)
    ('0.9996', '0.9999', '0.999999')
    """
    for digits in (4, 5):
        shown = math.floor(value * 10**digits) / 10**digits
        if shown < 1.0:
            return f"{shown:.{digits}f}"
    return "0.999999"


def prediction_rows(prediction: Prediction) -> list[tuple[str, str, str, str]]:
    """Compute, median, and the intervals of the true pass rate and of one evaluation."""
    return [
        (compute(float(c)), score(m), span(true), span(seen))
        for c, m, true, seen in zip(
            prediction.compute,
            prediction.median,
            prediction.interval(),
            prediction.interval(observed=True),
            strict=True,
        )
    ]


def method_cells(row: Mapping[str, Any], no_skill: str) -> tuple[str, ...]:
    """A row of `BacktestResult.summary`: method, tasks, errors, skill, and what intervals hold."""
    return (
        row["method"],
        str(row["tasks"]),
        f"{row['median_error']:.4f}",
        f"{row['crps']:.4f}",
        no_skill if row["skill"] is None else f"{row['skill']:+.2f}",
        f"{row['cover50']:.2f}",
        f"{row['cover90']:.2f}",
    )


def ceiling_range(fit: Fit) -> str:
    """What the data allow the ceiling to be, with an open upper end where they do not bound it."""
    if "A" not in fit.params:
        return "the law has none"
    if not fit.law.identifiable:
        return "no interval"
    low, high = fit.interval("A")
    return f"{_from(low)} or more" if high >= OPEN_CEILING else f"{_from(low)} to {high:.2f}"


def _from(low: float) -> str:
    """The lower end of an open range with two digits, or with as many as tell it from 1.

    >>> _from(0.873), _from(0.9962), _from(0.999997)
    ('0.87', '0.996', '0.9999')
    """
    if low < 0.995:  # what two digits would write as 1.00
        return f"{low:.2f}"
    return score(low) if low < PRINTS_AS_ONE else _below_one(low)


def ceiling_and_range(fit: Fit) -> tuple[str, str]:
    """The ceiling and its interval, or why there is none."""
    if fit.alarm is not None:
        return NO_NUMBER
    if fit.identified:
        return score(fit.params["A"]), to(fit.interval("A"))
    return "not identified", ceiling_range(fit)


def so_far(points: int) -> str:
    """How many of the validations that a fit needs a young run has.

    >>> so_far(1)
    '1 of 5 validations'
    """
    return f"{min(points, MIN_POINTS - 1)} of {MIN_POINTS} validations"


def gain_and_range(forecast: Forecast) -> tuple[str, str]:
    """The gain of the next doubling and its interval, or why there is none."""
    if forecast.fit.alarm is not None:
        return NO_NUMBER
    gain = forecast.next_doubling
    return signed(gain.median), to(gain.interval, signed)


def now_in_words(fit: Fit) -> str:
    """The last validation that was fitted: the fitted pass rate, which the noise of one validation
    does not move, differs from it."""
    return f"the last validation measured {score(float(fit.points.score[-1]))}"


def gain_in_words(forecast: Forecast) -> str:
    """One sentence on the next doubling of compute."""
    if forecast.fit.alarm is not None:
        return "No gain of a further doubling is quoted for a run in decline."
    value, interval = gain_and_range(forecast)
    level = percent(forecast.fit.level)
    return f"The next doubling of compute buys {value} ({level}: {interval})."


def ceiling_in_words(fit: Fit) -> str:
    """One sentence on the ceiling; a number only where the data identify it."""
    if fit.alarm is not None:
        return "No ceiling is quoted for a run in decline."
    if fit.identified:
        return (
            f"If it stays healthy, it is heading for a ceiling of {score(fit.params['A'])} "
            f"({percent(fit.level)}: {to(fit.interval('A'))})."
        )
    if "A" not in fit.params:
        return f"No ceiling is quoted: the {fit.law.title} has none."
    if fit.no_gain >= NO_GAIN:
        return f"No gain is seen; a rise cannot be excluded: the points allow {ceiling_range(fit)}."
    if not fit.law.identifiable:
        return f"Its ceiling is not identified: the {fit.law.title} gives no honest interval."
    return f"Its ceiling is not identified: the points allow {ceiling_range(fit)}."


def law_begins(fit: Fit) -> str:
    """Where the law begins, with probabilities: earlier points are left out of the fit. "" where
    that was not asked.

    >>> from scalerl import fit, load_run
    >>> law_begins(fit(load_run("example:paper-8b"), lo=1500))[:30]
    'The law is fitted from the sta'
    """
    likely = sorted((cut for cut in fit.early if cut[1] >= 0.05), key=lambda cut: -cut[1])
    if not likely:
        return ""
    starts = [
        f"{f'{percent(share)} of the compute' if share else 'the start of the window'} on "
        f"({percent(round(p, 2))} likely)"
        for share, p in likely[:3]
    ]
    return f"The law is fitted from {', or from '.join(starts)}."


def breaks(fit: Fit) -> str:
    """Where the run was changed under way, and what the fit makes of it; "" where it was not.

    >>> from scalerl import fit, load_run
    >>> breaks(fit(load_run("example:paper-8b"), breaks=[20_000]))[:45]
    'paper-8b was changed at 20k: points before in'
    """
    at = fit.points.breaks
    if not at or fit.method != "posterior":
        return ""
    return (
        f"{fit.name} was changed at {listed(map(compute, at))}: points before inform about the "
        "shape and the noise of the curve, and do not fix its level."
    )


def past_alarms(fit: Fit) -> list[str]:
    """Alarms that were raised while the points came in and cleared since."""
    return [
        f"An alarm was raised at {compute(span.raised)} and cleared at {compute(span.cleared)}."
        for span in fit.alarms
        if span.cleared is not None
    ]


def headline(forecast: Forecast, alarm: bool = True) -> list[str]:
    """The answer in a few sentences: where the run is, where it goes, what more compute buys."""
    fit, unit = forecast.fit, KIND[forecast.fit.run.x_kind]
    out = [_now(forecast)]
    if alarm and fit.alarm is not None:
        out.append(f"Alarm: {fit.alarm}.")
    out += past_alarms(fit)
    out += [said for said in [breaks(fit)] if said]
    out.append(ceiling_in_words(fit))
    out += _ahead(forecast)
    out += if_healthy(forecast)
    out.append(gain_in_words(forecast))
    for t in forecast.targets:
        out.append(
            f"It reaches {t.score:g} with probability {t.probability:.2f}"
            + (f", at about {compute(t.median)} {unit}." if math.isfinite(t.median) else ".")
        )
    out += measured(forecast) + held_out(fit)
    advice = forecast.recommendation
    if advice is not None:
        out.append(f"Advice: {advice.action}. {advice.reason}.")
    return out


def short_headline(forecast: Forecast) -> list[str]:
    """The sentences of `headline` that take no time: for a page that follows a drag."""
    return [_now(forecast), ceiling_in_words(forecast.fit), *_ahead(forecast),
            gain_in_words(forecast)]  # fmt: skip


def _now(forecast: Forecast) -> str:
    fit = forecast.fit
    return (
        f"{fit.name} scores {score(forecast.at.median_now)} after {compute(fit.end)} "
        f"{KIND[fit.run.x_kind]} by the fit ({now_in_words(fit)})."
    )


def _ahead(forecast: Forecast) -> list[str]:
    """The forecast at each amount of compute that was asked for."""
    fit, ahead = forecast.fit, forecast.at
    return [
        f"At {compute(float(c))} {KIND[fit.run.x_kind]} the forecast is {score(median)} "
        f"({percent(fit.level)}: {to(ends)})."
        for c, median, ends in zip(ahead.compute, ahead.median, ahead.interval(), strict=True)
    ]


def if_healthy(forecast: Forecast) -> list[str]:
    """The forecast without falls, and how likely a fall is; empty for laws that know no falls.

    >>> from scalerl import forecast, load_run
    >>> if_healthy(forecast(load_run("example:paper-8b"), at=[150_000]))[0][:41]
    'A fall before 150k GPU-hours has probabil'
    """
    falls = forecast.fall_probability
    if falls is None:
        return []
    last, unit = forecast.at.compute.argmax(), KIND[forecast.fit.run.x_kind]
    healthy = forecast.if_healthy
    said = (
        f"A fall before {compute(float(forecast.at.compute[last]))} {unit} has probability "
        f"{falls:.2f} and is included"
    )
    return [
        f"{said}; if the run stays healthy: {score(healthy.median[last])} "
        f"({percent(forecast.fit.level)}: {to(healthy.interval()[last])})."
    ]


def measured(forecast: Forecast) -> list[str]:
    """The last evaluation after the window beside its forecast, where there is one.

    >>> from scalerl import forecast, load_run
    >>> measured(forecast(load_run("example:paper-8b"), hi=50_000))[0][:44]
    'Measured at 89.4k GPU-hours: 0.640. Forecast'
    """
    end = forecast.measured
    if end is None:
        return []
    level = percent(forecast.fit.level)
    return [
        f"Measured at {compute(end.compute)} {KIND[forecast.fit.run.x_kind]}: {score(end.score)}"
        + (f" ({level} by its samples: {to(end.sampling)})" if end.sampling else "")
        + f". Forecast there: {score(end.median)} ({level} of one evaluation: {to(end.observed)}); "
        f"the measured value lies {'inside' if end.inside else 'outside'}."
    ]


def held_out(fit: Fit) -> list[str]:
    """How the points after the window fared, where there are some."""
    after = fit.run.compute > fit.end
    count = int(after.sum())
    if count == 0:
        return []
    low, high = fit.predict(fit.run.compute[after]).interval(observed=True).T
    score = fit.run.score[after]
    inside = int(((low <= score) & (score <= high)).sum())
    points = "the one evaluation" if count == 1 else f"the {count} evaluations"
    return [
        f"Of {points} after the fitted window, {inside} {'lies' if inside == 1 else 'lie'} inside "
        f"the {percent(fit.level)} band."
    ]


def compared_ceiling(arm: Arm) -> str:
    """The ceiling that an arm is compared by, or why there is none."""
    if arm.declines:
        return "in decline"
    return score(arm.fit.params["A"]) if arm.fit.identified else "not identified"


#: Why the ceilings of a comparison are not quite those of the fits.
COMPARED = (
    "compared runs are fitted together, with a shared prior for shape, roughness and B; a fit of "
    "one run alone may differ in the last digits"
)


def verdict(pair: Pair) -> str:
    """Our verdict on a pair in words, for a place that names the pair already."""
    if pair.verdict != "undecided":
        return str(pair) + ("" if pair.alarm is None else "; the other is in decline")
    if pair.tentative is not None:
        return f"undecided{pair.unsettled}"
    if pair.alarm is not None:
        return "undecided: one of them is in decline"
    return f"undecided: {BOTH_OPEN}" if pair.both_open else "undecided"


def verdict_sentence(pair: Pair, level: float) -> str:
    """Our verdict on a pair as a sentence of its own, with the interval of the difference."""
    low, high = pair.delta_a_interval
    if pair.verdict == "higher-ceiling":
        # The interval is that of the second minus the first; the sentence is about the winner.
        if pair.winner == pair.a:
            low, high = -high, -low
        other = pair.a if pair.winner == pair.b else pair.b
        return (
            f"{pair.winner} has a higher ceiling than {other}, by {abs(pair.delta_a):.3f} "
            f"({percent(level)}: {low:.3f} to {high:.3f}){pair.kept}{_lasts(pair)}."
        )
    if pair.verdict != "undecided":
        # It begins with our own words here, not with a name.
        said = verdict(pair)
        return f"{said[0].upper()}{said[1:]}{_lasts(pair)}."
    if pair.tentative is not None:
        return f"No verdict yet on {pair.a} and {pair.b}{pair.unsettled}."
    if pair.alarm is not None:
        return f"No verdict on {pair.a} and {pair.b}: one of them is in decline."
    why = f"the second ceiling minus the first lies between {signed(low)} and {signed(high)}"
    why = BOTH_OPEN if pair.both_open else f"{why} ({percent(level)})"
    return f"The points do not decide between {pair.a} and {pair.b}: {why}." + (
        f" {need(pair.need)}." if pair.need is not None else ""
    )


def _lasts(pair: Pair) -> str:
    """How likely a verdict is to last, as a clause; "" where both runs have ended."""
    if pair.survives is None or pair.ends is None:
        return ""
    return (
        f"; this is still the verdict at {pair.until} with probability {pair.survives:.2f}, if "
        "both runs stay healthy"
    )


def need(found: ComputeNeeded) -> str:
    """How much more compute would settle a question.

    >>> print(need(ComputeNeeded("identify it", 24_000.0, 2.0, (1.4, 5.7), 0.95)))
    About 24k, 2 times the compute so far (80 % of simulated continuations: 1.4 to 5.7 times),
    would identify it
    """
    if found.compute is None:
        text = str(found)
        return text[0].upper() + text[1:]
    return (
        f"About {compute(found.compute)}, {found.multiple:g} times the compute so far "
        f"({found.interval_words}), would {found.question}"
    )


def paper_verdict(pair: Pair) -> str:
    """What the paper's rule, which always decides, says of the pair."""
    what = "higher ceiling" if pair.paper_verdict == "higher-ceiling" else "larger B at equal A"
    return f"{pair.paper_winner}: {what}"


def pair_details(pair: Pair) -> list[str]:
    """How long a verdict lasts, crossing and decision lines of a pair, if any."""
    out = []
    if pair.verdict != "undecided" and _lasts(pair):
        out.append(_lasts(pair).removeprefix("; "))
    if pair.crossing is not None:
        where = "" if pair.crossing.compute is None else f" near {compute(pair.crossing.compute)}"
        out.append(
            f"{pair.crossing.overtakes} overtakes{where} "
            f"with probability {pair.crossing.probability:.2f}"
        )
    if pair.need is not None:
        out.append(need(pair.need))
    if pair.alarm is not None:
        out.append(pair.alarm)
    return out
