"""The tables of the report page."""

from __future__ import annotations

from collections.abc import Sequence

from scalerl.curves.compare import Comparison, Pair
from scalerl.curves.forecast import Forecast
from scalerl.curves.result import Fit
from scalerl.report import words
from scalerl.report.markup import Keyed, ceiling, table, text, with_range
from scalerl.report.series import Series

#: Pairs shown before the rest is folded away.
MAX_PAIRS = 12


def parameters(drawn: Sequence[Series]) -> str:
    level = words.percent(drawn[0].fit.level)
    head = ("Run", "Points", "Window", "Ceiling A", "B", "C_mid", "RMSE", "Power law says")
    rows = []
    for s in drawn:
        f = s.fit
        a, a_range = ceiling(f)
        power = "" if s.power is None else f"{s.power.A:.3f}"
        rows.append(
            (
                text(words.shorten(f.name, 60)),
                str(len(f.points)),
                Keyed(
                    f"{words.compute(f.window[0])} to {words.compute(f.window[1])} "
                    f'<span class="range">{text(words.KIND[f.run.x_kind])}</span>',
                    f.end,
                ),
                Keyed(
                    f'{a} <span class="range">{a_range}</span>',
                    f.params["A"] if f.identified else None,
                ),
                _parameter(f, "B"),
                _parameter(f, "C_mid"),
                f"{f.rmse:.4f}",
                power,
            )
        )
    return table(f"Fitted law, with {level} intervals", head, rows)


def _parameter(f: Fit, name: str) -> str:
    if name not in f.params:
        return ""
    if f.alarm is not None:
        return Keyed('<span class="range">run in decline</span>', None)
    low, high = f.interval(name)
    if name == "C_mid":
        top = "open" if high == float("inf") else words.compute(high)
        shown = with_range(words.compute(f.params[name]), words.compute(low), top)
    else:
        shown = with_range(f"{f.params[name]:.2f}", f"{low:.2f}", f"{high:.2f}")
    return Keyed(shown, f.params[name])


def forecasts(found: Sequence[Forecast]) -> str:
    level = words.percent(found[0].fit.level)
    head = ("Run", "At", "True pass rate", "One evaluation shows", "Next doubling buys")
    rows = []
    for ahead in found:
        unit = text(words.KIND[ahead.fit.run.x_kind])
        seen = ahead.at.interval(observed=True)
        true = ahead.at.interval()
        low, high = (words.signed(v) for v in ahead.next_doubling.interval)
        bought = ahead.next_doubling.median
        gain = with_range(words.signed(bought), low, high)
        for i, c in enumerate(ahead.at.compute):
            rows.append(
                (
                    text(words.shorten(ahead.fit.name, 60)),
                    Keyed(f'{words.compute(float(c))} <span class="range">{unit}</span>', float(c)),
                    Keyed(
                        with_range(f"{ahead.at.median[i]:.3f}", *(f"{v:.3f}" for v in true[i])),
                        float(ahead.at.median[i]),
                    ),
                    " to ".join(f"{v:.3f}" for v in seen[i]),
                    Keyed(gain if i == 0 else "", bought),
                )
            )
    out = table(f"Forecasts, with {level} intervals", head, rows) + _measured(found)
    targets = [(ahead, t) for ahead in found for t in ahead.targets]
    if targets:
        out += table(
            "Targets",
            ("Run", "Score", "Probability", "Compute"),
            [
                (
                    text(words.shorten(ahead.fit.name, 60)),
                    f"{t.score:g}",
                    f"{t.probability:.2f}",
                    Keyed(
                        with_range(
                            words.compute(t.median), *(words.compute(v) for v in t.interval)
                        ),
                        t.median,
                    ),
                )
                for ahead, t in targets
            ],
        )
    return out


def _measured(found: Sequence[Forecast]) -> str:
    """The last evaluation after each window beside its forecast; "" where there is none."""
    level = words.percent(found[0].fit.level)
    head = ("Run", "At", "Measured", "Forecast", "One evaluation shows", "Measured lies")
    rows = []
    for ahead in found:
        end = ahead.measured
        if end is None:
            continue
        unit = text(words.KIND[ahead.fit.run.x_kind])
        sampling = "" if end.sampling is None else f" by samples: {words.to(end.sampling)}"
        rows.append(
            (
                text(words.shorten(ahead.fit.name, 60)),
                Keyed(f'{words.compute(end.compute)} <span class="range">{unit}</span>',
                      end.compute),
                Keyed(f'{words.score(end.score)} <span class="range">{sampling.strip()}</span>'
                      if sampling else words.score(end.score), end.score),
                Keyed(with_range(words.score(end.median), *map(words.score, end.interval)),
                      end.median),
                words.to(end.observed),
                "inside" if end.inside else "<strong>outside</strong>",
            )
        )  # fmt: skip
    title = f"Last evaluation after the fitted window, with {level} intervals"
    return table(title, head, rows) if rows else ""


def comparison(found: Comparison | None) -> str:
    """The pairs and what can be said of them, the first few open and the rest folded."""
    if found is None:
        return ""
    shown = _pairs(found, found.pairs[:MAX_PAIRS])
    rest = found.pairs[MAX_PAIRS:]
    if rest:
        shown += (
            f"<details><summary>{len(rest)} more pairs</summary>{_pairs(found, rest)}</details>"
        )
    if len(found.arms) <= MAX_PAIRS:
        each = ", ".join(
            f"{words.shorten(arm.name, 44)} {words.compared_ceiling(arm)}" for arm in found.arms
        )
        said = f"Ceilings as compared: {each} ({words.COMPARED})."
        shown += f'<p class="small">{text(said)}</p>'
    return f'<section aria-labelledby="compare"><h2 id="compare">Comparison</h2>{shown}</section>'


def _pairs(found: Comparison, pairs: Sequence[Pair]) -> str:
    level = words.percent(found.fits[0].level)
    head = ("Pair", "Verdict", "Second minus first ceiling", "The paper's rule says")
    rows = []
    for p in pairs:
        low, high = (words.signed(v) for v in p.delta_a_interval)
        details = "".join(f"<br><small>{text(line)}</small>" for line in words.pair_details(p))
        rows.append(
            (
                f"{text(words.shorten(p.a, 44))}<br>{text(words.shorten(p.b, 44))}",
                f"<strong>{text(words.verdict(p))}</strong>{details}",
                Keyed(with_range(words.signed(p.delta_a), low, high), p.delta_a),
                text(words.paper_verdict(p)),
            )
        )
    what = "recipes, seeds allowed for" if found.scope == "recipes" else "these runs"
    return table(f"Verdicts on {what}, with {level} intervals", head, rows)
