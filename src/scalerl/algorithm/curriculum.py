"""The curriculum: which prompts come next. No-Positive-Resampling and uniform sampling (paper,
section 3.7).

No-Positive-Resampling keeps the pass rate of every prompt and removes a prompt *permanently from
later epochs* once that rate reaches 0.9 (an easy prompt stays easy). The prompt stays in the
current epoch. With 16 rollouts per group that means 15 of 16 correct. Uniform sampling draws every
prompt once in every epoch. Between the two, `return_after` brings a prompt back after so many
epochs, to be retired again if it is still easy: with few prompts, training on the hard ones alone
unlearns the easy ones (docs/findings/data.md).

The order of epoch e is a pure function of (seed, e, prompts left at its start): prompts sorted by a
hash of (seed, e, prompt). There is no generator state to save, a removed prompt does not reshuffle
the others, and the order is the same on every platform and version.

>>> prompts = Curriculum(["a", "b", "c"], NoPositiveResampling(), seed=0)
>>> first = prompts.draw(3)
>>> prompts.record("b", n_correct=15, n_rollouts=16)
>>> sorted(prompts.draw(2)), prompts.retired
(['a', 'c'], 1)
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any, Literal, Protocol

from scalerl.errors import InputError
from scalerl.recipe.curriculum import CURRICULUM_NAMES, NoPositiveResamplingCurriculum
from scalerl.registry import Registry

DEFAULTS = NoPositiveResamplingCurriculum()

PromptId = int | str


class OutOfPrompts(InputError):
    """Every prompt is retired and the last epoch is over: there is nothing left to draw."""


@dataclass(frozen=True, slots=True)
class History:
    """The counts of correct rollouts of one prompt: in its latest group, and in all groups."""

    latest_correct: int = 0
    latest_rollouts: int = 0
    correct: int = 0
    rollouts: int = 0

    def plus(self, n_correct: int, n_rollouts: int) -> History:
        return History(n_correct, n_rollouts, self.correct + n_correct, self.rollouts + n_rollouts)

    @property
    def latest(self) -> float:
        """Pass rate of the latest group."""
        return self.latest_correct / self.latest_rollouts

    @property
    def mean(self) -> float:
        """Pass rate over all rollouts so far: a group of 16 weighs twice a group of 8."""
        return self.correct / self.rollouts


class RetirementRule(Protocol):
    """Decides from a prompt's history (at least one rollout) whether it leaves later epochs."""

    def retires(self, history: History) -> bool: ...

    def to_dict(self) -> dict[str, Any]: ...


#: Rules by the names that recipes use. A rule is made from the constants of its section:
#: `CURRICULA[name](**constants)`. To add one, register a class, or name it by its import path.
CURRICULA: Registry[Callable[..., RetirementRule]] = Registry(
    "curriculum", announce=CURRICULUM_NAMES.add
)


@CURRICULA.register("no-positive-resampling")
@dataclass(frozen=True, slots=True)
class NoPositiveResampling:
    """Retire a prompt with a pass rate of at least `threshold`. The paper does not say whether the
    rate is that of the latest group or of all groups: `history` chooses (`latest` | `mean`).
    After `return_after` epochs without it a prompt is drawn again; 0: never."""

    threshold: float = DEFAULTS.threshold
    history: Literal["latest", "mean"] = DEFAULTS.history
    return_after: int = DEFAULTS.return_after

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise InputError(
                f"no-positive-resampling threshold {self.threshold} is not in (0, 1]: "
                "give a pass rate such as 0.9, or choose uniform sampling to keep every prompt"
            )
        if self.history not in ("latest", "mean"):
            raise InputError(f"history rule {self.history!r} is unknown: use 'latest' or 'mean'")
        if self.return_after < 0:
            raise InputError(
                f"return_after {self.return_after} is below 0: give a number of epochs, or 0 to "
                "retire prompts for good"
            )

    def retires(self, history: History) -> bool:
        rate = history.latest if self.history == "latest" else history.mean
        return rate >= self.threshold

    def to_dict(self) -> dict[str, Any]:
        return {"name": "no-positive-resampling", **asdict(self)}


@CURRICULA.register("uniform")
@dataclass(frozen=True, slots=True)
class Uniform:
    """Draw every prompt once an epoch, whatever its pass rate."""

    def retires(self, history: History) -> bool:
        return False

    def to_dict(self) -> dict[str, Any]:
        return {"name": "uniform"}


def epoch_order(seed: int, epoch: int, prompts: Iterable[PromptId]) -> list[PromptId]:
    """The prompts in the order of epoch `epoch`."""

    def key(prompt: PromptId) -> bytes:
        # repr distinguishes the id 1 from the id "1"; sorting by a hash of each prompt makes the
        # order of the others independent of removals.
        return hashlib.blake2b(f"{seed}|{epoch}|{prompt!r}".encode(), digest_size=16).digest()

    return sorted(prompts, key=key)


class Curriculum:
    """Draws prompts epoch by epoch, and leaves out retired ones from the next epoch on.

    Made for an asynchronous pipeline with one owner: a prompt is drawn long before its pass rate is
    known, and the result may arrive after the next epoch has begun. A retirement takes effect with
    the next epoch that begins. A later, worse group does not bring the prompt back: it returns when
    the rule's `return_after` epochs are over, or never.
    """

    def __init__(self, prompts: Sequence[PromptId], rule: RetirementRule, seed: int) -> None:
        self._prompts = list(prompts)
        self._known = set(self._prompts)
        if not self._prompts:
            raise InputError("a curriculum needs at least one prompt: the task gave none")
        if len(self._known) != len(self._prompts):
            twice = next(p for p, n in Counter(self._prompts).items() if n > 1)
            raise InputError(f"prompt {twice!r} is given twice: prompt ids must be unique")
        self._rule = rule
        # A rule of the user need not have one.
        self._return_after = int(getattr(rule, "return_after", 0))
        self._seed = seed
        self._histories: dict[PromptId, History] = {}
        #: Retired prompts, each with the epoch in which it was retired.
        self._retired: dict[PromptId, int] = {}
        self._begin(epoch=0, absent=frozenset())

    def _begin(self, epoch: int, absent: frozenset[PromptId]) -> None:
        self._epoch = epoch
        self._absent = absent
        self._order = epoch_order(self._seed, epoch, (p for p in self._prompts if p not in absent))
        self._position = 0

    @property
    def epoch(self) -> int:
        """The epoch of the latest draw, from 0."""
        return self._epoch

    @property
    def retired(self) -> int:
        """Number of retired prompts, including those that leave when this epoch ends, without those
        that have returned."""
        return len(self._retired)

    @property
    def exhausted(self) -> bool:
        """True when `draw` would raise: this epoch is over and no prompt is left for another."""
        over = self._position == len(self._order)
        return over and not self._return_after and len(self._retired) == len(self._prompts)

    def draw(self, n: int) -> list[PromptId]:
        """The next n prompts: the rest of the epoch, then those of the next one, which begins only
        when a draw needs it. Returns fewer than n when the last prompts are retired, and raises
        `OutOfPrompts` when none is left."""
        if n < 0:
            raise InputError(f"cannot draw {n} prompts: give a number from 0")
        taken: list[PromptId] = []
        while len(taken) < n and not self.exhausted:
            if self._position < len(self._order):
                taken.append(self._order[self._position])
                self._position += 1
            else:
                self._next_epoch()
        if n > 0 and not taken:
            raise OutOfPrompts(
                f"all {len(self._prompts)} prompts are retired after epoch {self._epoch}: "
                "add prompts, raise the threshold, or end the run here"
            )
        return taken

    def _next_epoch(self) -> None:
        if self._return_after:
            self._retired = {
                prompt: epoch
                for prompt, epoch in self._retired.items()
                if self._epoch < epoch + self._return_after
            }
        self._begin(self._epoch + 1, frozenset(self._retired))

    def record(self, prompt: PromptId, n_correct: int, n_rollouts: int) -> None:
        """Record the result of one group. A group without rollouts (all failed) changes nothing."""
        self._check_known(prompt)
        if not 0 <= n_correct <= n_rollouts:
            raise InputError(
                f"prompt {prompt!r}: {n_correct} correct of {n_rollouts} rollouts is impossible: "
                "give 0 <= n_correct <= n_rollouts"
            )
        if n_rollouts == 0:
            return
        history = self._histories.get(prompt, History()).plus(n_correct, n_rollouts)
        self._histories[prompt] = history
        # Not undone by a later group: the time to return counts from the first retirement.
        if self._rule.retires(history):
            self._retired.setdefault(prompt, self._epoch)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue exactly from here, as plain JSON."""
        return {
            "seed": self._seed,
            "rule": self._rule.to_dict(),
            "prompts": self._fingerprint(),
            "epoch": self._epoch,
            "position": self._position,
            "absent": self._in_order(self._absent),
            "retired": self._in_order(self._retired),
            "retired_in": [self._retired[p] for p in self._prompts if p in self._retired],
            "histories": [
                [p, *astuple(self._histories[p])] for p in self._prompts if p in self._histories
            ],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly from where `state_dict` was taken; prompts, rule and seed must be the
        same."""
        # A checkpoint of before a constant existed lacks it; 0 is what was done then.
        rule = {k: v for k, v in self._rule.to_dict().items() if v != 0 or k in state["rule"]}
        own = {"seed": self._seed, "rule": rule, "prompts": self._fingerprint()}
        for name, value in own.items():
            if state[name] != value:
                raise InputError(
                    f"the saved curriculum has other {name} ({state[name]}) than this one "
                    f"({value}): resume with the recipe and task it was saved with"
                )
        self._begin(state["epoch"], frozenset(state["absent"]))
        self._position = state["position"]
        epochs = state.get("retired_in", [0] * len(state["retired"]))
        self._retired = dict(zip(state["retired"], epochs, strict=True))
        self._histories = {prompt: History(*numbers) for prompt, *numbers in state["histories"]}

    def _check_known(self, prompt: PromptId) -> None:
        if prompt not in self._known:
            raise InputError(f"prompt {prompt!r} is not in this curriculum: check the task's ids")

    def _in_order(self, prompts: Iterable[PromptId]) -> list[PromptId]:
        chosen = set(prompts)
        return [p for p in self._prompts if p in chosen]

    def _fingerprint(self) -> str:
        """A digest of the set of prompts, independent of their order."""
        names = sorted(map(repr, self._prompts))
        digest = hashlib.blake2b("\n".join(names).encode(), digest_size=8).hexdigest()
        return f"{len(names)} prompts, {digest}"
