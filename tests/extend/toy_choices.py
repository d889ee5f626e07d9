"""Choices of a recipe from outside the package (docs/how-to/add-an-engine.md): one function or
class each, and one line that registers it."""

from collections import Counter
from dataclasses import dataclass

import torch

from scalerl.algorithm.advantages import NORMALISATIONS, centred
from scalerl.algorithm.credit import CREDITS, Units
from scalerl.algorithm.curriculum import CURRICULA
from scalerl.algorithm.filters import FILTERS
from scalerl.algorithm.length import Limit
from scalerl.algorithm.length_controls import LENGTH_CONTROLS
from scalerl.algorithm.losses import KL_ESTIMATORS
from scalerl.pipeline.schedule import SCHEDULES, FinishedFirst

#: Calls of each, in one process: tests count them.
CALLS = Counter()


@NORMALISATIONS.register("toy-sign")
def sign(values_K, cell_K, counted_K, ddof, epsilon):
    """Above or below the mean of the prompt, whatever the distance."""
    CALLS["sign"] += 1
    return centred(values_K, cell_K)[0].sign()


@CREDITS.register("toy-last")
def last(rewards):
    """The final reward alone, without those of turns."""
    CALLS["last"] += 1
    episodes = torch.arange(len(rewards.final_E))
    return Units(rewards.final_E, episodes, rewards.prompt_E, rewards.episode_T)


@FILTERS.register("toy-brief")
def brief(candidates):
    """Episodes of at most ten tokens."""
    CALLS["brief"] += 1
    return torch.tensor([len(episode) <= 10 for episode in candidates.episodes])


@KL_ESTIMATORS.register("toy-distance")
def distance(gap_N):
    """The absolute gap."""
    CALLS["distance"] += 1
    return gap_N.abs()


@CURRICULA.register("toy-few")
@dataclass(frozen=True)
class Few:
    """Each prompt a few times only."""

    rollouts: int

    def retires(self, history):
        CALLS["Few"] += 1
        return history.rollouts >= self.rollouts

    def to_dict(self):
        return {"name": "toy-few", "rollouts": self.rollouts}


@LENGTH_CONTROLS.register("toy-share")
def share(vocabulary, *, max_tokens, percent):
    """A limit of some per cent of max_tokens."""
    CALLS["share"] += 1
    return Limit(max_tokens * percent // 100, vocabulary.stop_ids)


def local(vocabulary, *, max_tokens):
    """A control that cannot be sent to a generator."""

    class Local(Limit):
        pass

    return Local(max_tokens)


@SCHEDULES.register("toy-turns")
class Turns(FinishedFirst):
    """One batch is written, then one step is made with it."""

    streams = False

    def room(self, trainer, generator, under_way, finished):
        CALLS["Turns"] += 1
        return 0 if under_way or generator < trainer else self.prompts

    def publishes(self, version):
        return True
