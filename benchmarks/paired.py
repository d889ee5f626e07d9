"""How often the paired interval of two variants holds the truth, and how much narrower it is than
the unpaired one, in simulated studies.

    python benchmarks/paired.py [--studies 120]

A prompt's difficulty, what a variant does to single prompts, and what a seed does to all of them
are drawn in logits; the truth is the difference of the mean pass rates over all prompts and seeds
there might be. 90 % intervals; a third of the variants are no different from the reference.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt

from record import save
from scalerl.study.paired import SamePrompts, paired, seed_variance

Array = npt.NDArray[np.float64]
#: Variants beside the reference, answers to each prompt.
VARIANTS, K = 8, 4
#: Logits: spread of difficulty, of what a variant does to single prompts; shifts of the variants.
HARD, OWN = 2.0, 0.5
SHIFTS = (0.0, 0.0, 0.0, 0.3, -0.3, 0.1, 0.6, -0.1)
EASY = 0.8
#: Prompts that stand for all there might be.
ALL = 20_000


def probability(logit: Array) -> Array:
    return np.asarray(1.0 / (1.0 + np.exp(-logit)))


def truth(shift: float, seed_sd: float, rng: np.random.Generator) -> float:
    """The mean pass rate of a variant, over prompts and seeds."""
    logits = EASY + shift + np.hypot(OWN, seed_sd) * rng.standard_normal(ALL)
    return float(probability(logits + HARD * rng.standard_normal(ALL)).mean())


def runs(
    shift: float, hard: Array, own: float, seeds: int, seed_sd: float, rng: np.random.Generator
) -> Array:
    """Share of right answers, (seeds, prompts)."""
    logit = EASY + shift + hard + own * rng.standard_normal(len(hard))
    each = logit + seed_sd * rng.standard_normal((seeds, 1))
    return np.asarray(rng.binomial(K, probability(each)) / K)


def covered(seeds: int, prompts: int, seed_sd: float, studies: int) -> dict[str, float]:
    """Of one kind of study. `seed_sd` is in logits; a logit is about .14 of pass rate here."""
    rng = np.random.default_rng((seeds, prompts, round(1000 * seed_sd)))
    known = {s: truth(s, seed_sd, np.random.default_rng(1)) for s in {0.0, *SHIFTS}}
    held, unpaired_held, width, narrower = [], [], [], []
    for _ in range(studies):
        hard = HARD * rng.standard_normal(prompts)
        reference = runs(0.0, hard, OWN, seeds, seed_sd, rng)
        others = [runs(s, hard, OWN, seeds, seed_sd, rng) for s in SHIFTS]
        tau2, freedom = seed_variance([reference, *others])
        for shift, variant in zip(SHIFTS, others, strict=True):
            difference, half, apart = paired(SamePrompts(reference, variant), tau2, freedom)
            off = abs(difference - (known[shift] - known[0.0]))
            held.append(off <= half)
            unpaired_held.append(off <= apart)
            width.append(2 * half)
            narrower.append(apart / half)
    return {
        "seeds": seeds, "prompts": prompts, "seed_sd_logits": seed_sd,
        "coverage": round(float(np.mean(held)), 4),
        "coverage_unpaired": round(float(np.mean(unpaired_held)), 4),
        "width": round(float(np.mean(width)), 4),
        "times_narrower": round(float(np.mean(narrower)), 2),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=120)
    parser.add_argument("-o", "--out", type=Path, help="of the result, as JSON")
    args = parser.parse_args()
    cases = [
        covered(seeds, prompts, seed_sd, args.studies)
        for prompts in (60, 200)
        for seed_sd in (0.0, 0.07, 0.15)
        for seeds in (1, 2, 3, 5)
    ]
    for case in cases:
        print(case)
    save("paired", {"level": 0.9, "studies": args.studies, "cases": cases}, args.out)


if __name__ == "__main__":
    main()
