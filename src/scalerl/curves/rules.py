"""Stopping rules: a small grammar, parsed without eval and checked against a fit.

    gain < NUMBER per doubling           even the upper end of the next doubling's gain is below it
    median gain < NUMBER per doubling    the median gain is below it
    end < NUMBER                         even the upper end of the final score is below it
    median end < NUMBER                  the median of the final score is below it
    P(end > NUMBER) < NUMBER             the probability that the final score exceeds it is small
    alarm                                a decline is in progress

joined with " or ". The upper end is that of the central 90 % interval of the true pass rate, so a
run stops when the data rule out that continuing is worth it, not when there are too few data.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np

from scalerl.curves.prediction import sample_quantiles
from scalerl.curves.result import Fit
from scalerl.errors import InputError

#: Quantile of the upper end of the central 90 % interval.
UPPER = 0.95

#: The conditions a rule may have, as error messages list them.
GRAMMAR = (
    "gain < NUMBER per doubling",
    "median gain < NUMBER per doubling",
    "end < NUMBER",
    "median end < NUMBER",
    "P(end > NUMBER) < NUMBER",
    "alarm",
)

_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"
_GAIN = re.compile(rf"(median )?gain < {_NUMBER} per doubling")
_END = re.compile(rf"(median )?end < {_NUMBER}")
_PROBABILITY = re.compile(rf"p\(end > {_NUMBER}\) < {_NUMBER}")


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition of a rule."""

    text: str
    quantity: Literal["gain", "end", "probability", "alarm"]
    #: What the quantity must stay below.
    bound: float = 0.0
    #: For gain and end: the quantile that is compared.
    quantile: float = UPPER
    #: For probability: the score that the end would have to exceed.
    score: float = 0.0

    def check(self, f: Fit, end: float | None) -> str | None:
        """Why the condition holds; None if it does not, or if it needs `end` and has none."""
        if self.quantity == "alarm":
            return None if f.alarm is None else f"{self.text}: {f.alarm}"
        if self.quantity == "gain":
            ahead = 2.0 * f.end
            levels = f.predictive.levels(np.array([f.end, ahead]))
            what = f"gain of the next doubling (to {_amount(ahead, f)})"
            return self._compare(what, levels[:, 1] - levels[:, 0])
        if end is None:
            return None
        # A run may already be past its planned end.
        final = f.predictive.levels(np.array([max(end, f.end)]))[:, 0]
        if self.quantity == "end":
            return self._compare(f"score at the end ({_amount(end, f)})", final)
        share = float((final > self.score).mean())
        if share >= self.bound:
            return None
        return f"{self.text}: the probability of more than {self.score:g} at the end is {share:.3f}"

    def _compare(
        self, what: str, samples: np.ndarray[tuple[int], np.dtype[np.float64]]
    ) -> str | None:
        median, compared = (float(v) for v in sample_quantiles(samples, [0.5, self.quantile]))
        if compared >= self.bound:
            return None
        at_most = "" if self.quantile == 0.5 else f", at most {compared:.4f} (95th percentile)"
        return f"{self.text}: the {what} is {median:.4f} (median){at_most}"


@dataclass(frozen=True, slots=True)
class StopRule:
    """A stopping rule: it holds when any of its conditions holds.

    >>> rule = parse_rule("gain < 0.01 per doubling or P(end > 0.6) < 0.05")
    >>> len(rule.conditions)
    2
    """

    text: str
    conditions: tuple[Condition, ...]

    def check(self, f: Fit, end: float | None = None) -> str | None:
        """Why to stop; None: do not. `end` is the compute at which training would end by itself;
        conditions about the end never hold without it.

        >>> from scalerl import fit, load_run
        >>> f = fit(load_run("example:paper-8b"))
        >>> parse_rule("end < 0.9").check(f, end=120_000).split(":")[0]
        'end < 0.9'
        >>> parse_rule("end < 0.5 or alarm").check(f, end=120_000) is None
        True
        """
        for condition in self.conditions:
            reason = condition.check(f, end)
            if reason is not None:
                return reason
        return None


def parse_rule(text: str) -> StopRule:
    """Parse a stopping rule; text outside the grammar raises InputError with the grammar.

    >>> parse_rule("alarm").conditions[0].quantity
    'alarm'
    >>> parse_rule("loss < 1")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    scalerl.errors.InputError: cannot read the stopping rule 'loss < 1': ...
    """
    if not isinstance(text, str):
        raise InputError(f"a stopping rule is text, not {type(text).__name__}: {_grammar()}")
    parts = re.split(r"\s+or\s+", text.strip(), flags=re.IGNORECASE)
    return StopRule(text, tuple(_condition(part) for part in parts))


def _condition(text: str) -> Condition:
    words = _normal(text)
    if words == "alarm":
        return Condition(words, "alarm")
    if m := _GAIN.fullmatch(words):
        return Condition(words, "gain", _share(m[2], text), 0.5 if m[1] else UPPER)
    if m := _END.fullmatch(words):
        return Condition(words, "end", _share(m[2], text), 0.5 if m[1] else UPPER)
    if m := _PROBABILITY.fullmatch(words):
        bound = _share(m[2], text)
        return Condition(f"P{words[1:]}", "probability", bound, score=_share(m[1], text))
    raise InputError(f"cannot read the stopping rule {text!r}: {_grammar()}")


def _normal(text: str) -> str:
    """One spelling for the spaces around < and >, and for case."""
    spaced = re.sub(r"\s*([<>])\s*", r" \1 ", text.lower())
    spaced = re.sub(r"p\s*\(\s*", "p(", spaced)
    return re.sub(r"\s+", " ", spaced.replace(" )", ")")).strip()


def _share(number: str, text: str) -> float:
    value = float(number)
    if not 0.0 < value <= 1.0:
        raise InputError(
            f"{number} in the stopping rule {text!r} must lie in (0, 1]: "
            "scores, gains and probabilities are fractions"
        )
    return value


def _amount(compute: float, f: Fit) -> str:
    kind = f.run.x_kind
    return f"{compute:.4g}" if kind == "unknown" else f"{compute:.4g} {kind.replace('_', ' ')}"


def _grammar() -> str:
    return "use " + "; ".join(GRAMMAR) + "; joined with ' or '"
