"""The four verdicts of a comparison: their values in JSON, their words, and what each means.

This module imports nothing heavy, so that `--help` and the live page can show the words at once.
`decision.py` computes the verdicts.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Literal

VerdictName = Literal["higher-ceiling", "faster", "same", "undecided"]

#: The words a person reads, by the value in JSON (which never changes).
VERDICT_WORDS: MappingProxyType[VerdictName, str] = MappingProxyType(
    {
        "higher-ceiling": "higher ceiling",
        "faster": "same ceiling, faster",
        "same": "no difference",
        "undecided": "undecided",
    }
)

# The probabilities and margins below are those of arms.py, decision.py and survival.py; a test
# compares them.
#: What each verdict means and what to do next, as plain sentences, by the value in JSON.
VERDICT_MEANINGS: MappingProxyType[VerdictName, str] = MappingProxyType(
    {
        "higher-ceiling": (
            "With more than 97 % probability, the winner's pass rate levels off higher than the "
            "other's, and with 90 % or more this will still be the verdict when both runs end. "
            "Prefer the winner for long runs, and look for a crossing before short ones: "
            "the other may be ahead at first."
        ),
        "faster": (
            "Both level off at about the same pass rate (within 0.02), and the winner gets there "
            "with less compute. Prefer the winner, unless the other is cheaper in another way."
        ),
        "same": (
            "Both level off at about the same pass rate (within 0.02) and need about the same "
            "compute to get there (within 20 %). Choose by simplicity or cost: more compute is "
            "unlikely to separate them."
        ),
        "undecided": (
            "The evaluations so far do not show which is better, or not clearly enough to last; "
            "this does not mean that the two are equal. Train longer, evaluate on more prompts, or "
            "add seeds, then compare again."
        ),
    }
)
