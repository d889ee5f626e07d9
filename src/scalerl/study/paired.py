"""The difference in pass rate of two variants, prompt by prompt, on the prompts both were asked.

    D = mean over prompts p of   d_p = mean over seeds of y_vsp  -  mean over seeds of y_rsp

with y the share of right answers that a seed s of the variant v, or of the reference r, gave to a
prompt. What makes a prompt easy or hard is in both terms and cancels. What is left is

    Var(D) = Var_p(d_p) / P  +  tau² (1 / n_v + 1 / n_r)

the first term from the prompts (it holds what a variant does to some prompts only, and the luck of
sampling), the second from the seeds: a random effect, since a run that went well went well on all
prompts. tau is learned from all variants of the study, steadied as the ceilings' is (arms.py),
so that one or two seeds do not pass for none. A bootstrap over seeds and prompts would need neither
formula, but of three seeds it sees two thirds of their variance, and of one none.

    paired      prompts alike for both      Var_p(m_v - m_r) / P
    unpaired    prompts of one's own        Var_p(m_v) / P + Var_p(m_r) / P

Both are given, so that what the pairing is worth can be read off. How often the interval holds the
truth is measured in benchmarks/paired.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from scalerl.curves.arms import SEED_PSEUDO_COUNT, SEED_SD
from scalerl.runs.lines import EvalAnswers
from scalerl.runs.record import Run
from scalerl.runs.store import RunStore

if TYPE_CHECKING:
    from scalerl.study.table import MemberFinding

Array = npt.NDArray[np.float64]
#: Probability of the central interval.
LEVEL = 0.9
#: Prompts that two variants must share: fewer give no useful variance between prompts.
MIN_PROMPTS = 10


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """A variant minus the reference, on the same prompts."""

    difference: float
    interval: tuple[float, float]
    #: The interval if each had been asked prompts of its own.
    unpaired_interval: tuple[float, float]
    #: Kind of compute.
    x_kind: str
    #: Amount of compute that both have reached.
    compute: float
    #: Steps of the validations nearest to it: of the reference's runs, and of the variant's.
    steps: tuple[tuple[int, ...], tuple[int, ...]]
    n_prompts: int
    #: Runs of the reference, and of the variant.
    seeds: tuple[int, int]
    #: Standard deviation between seeds that was allowed for.
    seed_sd: float

    @property
    def narrower(self) -> float:
        """How many times narrower it is than the unpaired interval."""
        low, high = self.interval
        return (self.unpaired_interval[1] - self.unpaired_interval[0]) / max(high - low, 1e-12)

    def to_dict(self) -> dict[str, Any]:
        return {
            "difference": self.difference,
            "interval": list(self.interval),
            "at": {
                "x": self.x_kind,
                "compute": self.compute,
                "steps": {"reference": list(self.steps[0]), "variant": list(self.steps[1])},
            },
            "n_prompts": self.n_prompts,
            "seeds": {"reference": self.seeds[0], "variant": self.seeds[1]},
            "seed_sd": self.seed_sd,
            "unpaired_interval": list(self.unpaired_interval),
            "narrower": self.narrower,
        }

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"{self.difference:+.3f} [{low:+.3f}, {high:+.3f}] on the same {self.n_prompts} "
            f"prompts, {self.narrower:.1f} times narrower than unpaired"
        )


@dataclass(frozen=True, slots=True, eq=False)
class SamePrompts:
    """Two variants on the same prompts: share of right answers, (seeds, prompts) each."""

    reference: Array
    variant: Array


def paired(asked: SamePrompts, seed_variance: float, freedom: float) -> tuple[float, float, float]:
    """Difference and the half-widths of its interval, paired and unpaired. `seed_variance` is
    tau², known with `freedom` degrees of freedom.

    >>> import numpy as np
    >>> hard = np.linspace(0, 1, 50)
    >>> found = paired(SamePrompts(hard[None], hard[None] + 0.1), 0.0, 6.0)
    >>> [round(float(v), 3) for v in found]
    [0.1, 0.0, 0.1]
    """
    of_v, of_r = asked.variant.mean(axis=0), asked.reference.mean(axis=0)
    count = of_v.size
    seeds = seed_variance * (1 / len(asked.variant) + 1 / len(asked.reference))
    each = of_v - of_r
    within = float(each.var(ddof=1)) / count
    apart = float(of_v.var(ddof=1) + of_r.var(ddof=1)) / count
    halves = [_half(prompts, count - 1.0, seeds, freedom) for prompts in (within, apart)]
    return float(each.mean()), halves[0], halves[1]


def _half(prompts: float, prompt_freedom: float, seeds: float, seed_freedom: float) -> float:
    """Half of an interval, by Satterthwaite's degrees of freedom for a sum of two variances."""
    total = prompts + seeds
    if total <= 0:
        return 0.0
    freedom = total**2 / (prompts**2 / prompt_freedom + seeds**2 / seed_freedom)
    return float(stdtrit(freedom, (1 + LEVEL) / 2) * np.sqrt(total))


def seed_variance(tables: Sequence[Array]) -> tuple[float, float]:
    """tau² and its degrees of freedom, from the (seeds, prompts) of all variants: what seeds differ
    by beyond the luck of sampling, estimated from how their difference varies by prompt."""
    squares, freedom = SEED_PSEUDO_COUNT * SEED_SD**2, SEED_PSEUDO_COUNT
    for y in tables:
        n, prompts = y.shape
        if n < 2:
            continue
        means = y.mean(axis=1)
        rest = y - means[:, None] - y.mean(axis=0) + y.mean()
        luck = float((rest * rest).sum()) / ((n - 1) * (prompts - 1)) / prompts
        squares += float(((means - means.mean()) ** 2).sum()) - (n - 1) * luck
        freedom += n - 1
    # Sampling may seem to explain all of the spread between few seeds, and the interval would then
    # be far too narrow: allow for at least a quarter of the usual variance.
    return max(squares / freedom, SEED_SD**2 / 4), freedom


# -- from the records -----------------------------------------------------------------------------


def paired_differences(
    members: Mapping[str, Sequence[MemberFinding]], reference: str
) -> dict[str, PairedDifference]:
    """The paired difference of every variant with answers to prompts that the reference was asked
    as well. `members` are those that enter the numbers, by variant."""
    found = {
        name: made
        for name, mine in members.items()
        if name != reference and (made := _asked(members.get(reference, ()), mine)) is not None
    }
    if not found:
        return {}
    # The seeds of the reference enter once, though every pair has them.
    first = next(iter(found.values()))[0].reference
    tau2, freedom = seed_variance([first, *(asked.variant for asked, *_ in found.values())])
    return {
        name: _row(asked, at, steps, tau2, freedom) for name, (asked, at, steps) in found.items()
    }


#: Kind and amount of compute.
At = tuple[str, float]
Steps = tuple[tuple[int, ...], tuple[int, ...]]


def _row(asked: SamePrompts, at: At, steps: Steps, tau2: float, freedom: float) -> PairedDifference:
    difference, half, apart = paired(asked, tau2, freedom)
    return PairedDifference(
        difference,
        (difference - half, difference + half),
        (difference - apart, difference + apart),
        *at,
        steps,
        asked.variant.shape[1],
        (len(asked.reference), len(asked.variant)),
        tau2**0.5,
    )


def _asked(
    reference: Sequence[MemberFinding], variant: Sequence[MemberFinding]
) -> tuple[SamePrompts, At, Steps] | None:
    """What both were asked when each had spent what all of them have."""
    curves = [(each, each.run) for each in (*reference, *variant) if each.run is not None]
    kinds = {run.x_kind for _, run in curves}
    if not reference or not variant or len(kinds) != 1:
        return None
    common = min(float(run.compute[-1]) for _, run in curves)
    answers = [a for each, run in curves if (a := _nearest(each, run, common)) is not None]
    if len(answers) < len(reference) + len(variant):
        return None
    scores = [_shares(each) for each in answers]
    prompts = sorted(set.intersection(*(set(each) for each in scores)))
    if len(prompts) < MIN_PROMPTS:
        return None
    table = np.array([[each[p] for p in prompts] for each in scores])
    steps, cut = [each.step for each in answers], len(reference)
    asked = SamePrompts(table[:cut], table[cut:])
    return asked, (kinds.pop(), common), (tuple(steps[:cut]), tuple(steps[cut:]))


def _nearest(each: MemberFinding, run: Run, compute: float) -> EvalAnswers | None:
    """The answers of the validation nearest to this compute; None where they were not kept."""
    steps = sorted({line.step for line in each.evals if line.pass_rate is not None})
    if len(steps) != len(run):
        return None  # a curve that is not made of these validations alone
    at = int(np.argmin(np.abs(run.compute - compute)))
    return RunStore(each.member.path, resume=True).read_answers(steps[at])


def _shares(answers: EvalAnswers) -> dict[str, float]:
    """Prompt → share of right answers, of the held-out prompts that could be scored."""
    scores = answers.sets.get("", {})
    return {prompt: s.right / s.scored for prompt, s in scores.items() if s.scored > 0}
