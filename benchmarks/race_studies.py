"""Studies with their whole future, for benchmarks/race.py: simulated ones of known truth, and
recorded ones that are looked at as if they grew."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from scalerl import Study
from scalerl.curves.fit import fit
from scalerl.curves.formula import Sigmoid
from scalerl.curves.result import Fit
from scalerl.runs.lines import EvalLine
from scalerl.runs.record import Run
from scalerl.study.members import CHUNKS, FIRST_VALIDATIONS
from scalerl.study.race import RaceCache, Racer
from scalerl.study.stability import assess_lines

SEEDS, POINTS = 3, 24
KINDS = (
    ("same",) * 4 + ("higher",) * 2 + ("lower",) * 2 + ("slower",) * 2 + ("crossing", "unstable")
)
DELTA, SLOWER, CROSSING = 0.03, 1.6, (0.05, 2.0)
SEED_SD, SEED_LOG_SD, NOISE_SD, NOISE_RHO = 0.01, 0.1, 0.01, 0.4
REFERENCE = "reference"

#: A member: its variant and its seed.
Place = tuple[str, int]
#: Validations that each member has had, after the one at its start.
Given = dict[Place, int]


class StudyFuture:
    """What each member of a study will show; what is seen of it is fitted once a length."""

    def __init__(self, reference: str, curves: Mapping[Place, Run]) -> None:
        self.reference, self.curves = reference, curves
        self.cache = RaceCache()
        self._fits: dict[tuple[str, int, int], Fit] = {}
        self._unstable: dict[tuple[str, int, int], bool] = {}

    @property
    def variants(self) -> list[str]:
        return list(dict.fromkeys(name for name, _ in self.curves))

    def none_given(self) -> Given:
        return dict.fromkeys(self.curves, 0)

    def end(self, place: Place) -> int:
        return len(self.curves[place]) - 1

    def chunk(self, place: Place) -> int:
        return max(round(self.end(place) / CHUNKS), 1)

    def after(self, place: Place, points: int) -> int:
        """Validations of a member that had these and gets another chunk (study/racing.py)."""
        goal = max(points + self.chunk(place), FIRST_VALIDATIONS) if points else FIRST_VALIDATIONS
        whole = self.end(place)
        return goal if whole - goal >= self.chunk(place) / 2 else whole

    def spent(self, given: Given) -> float:
        """Of all budgets, which are alike."""
        return sum(n / self.end(place) for place, n in given.items()) / len(given)

    def seen(self, place: Place, points: int) -> Run:
        whole = self.curves[place]
        run = whole.window(None, float(whole.compute[points]))
        return run.replace(name=f"{place[0]}-s{place[1]}", group=place[0])

    def falls(self, place: Place, points: int) -> bool:
        raise NotImplementedError

    def unstable(self, place: Place, points: int) -> bool:
        key = *place, points
        if key not in self._unstable:
            self._unstable[key] = points >= FIRST_VALIDATIONS and self.falls(place, points)
        return self._unstable[key]

    def fit(self, place: Place, points: int) -> Fit | None:
        if points < FIRST_VALIDATIONS or self.unstable(place, points):
            return None
        key = *place, points
        if key not in self._fits:
            self._fits[key] = fit(self.seen(place, points))
        return self._fits[key]

    def racers(self, given: Given) -> list[Racer]:
        """The members as a race sees them, after these numbers of validations."""
        return [
            Racer(
                f"{place[0]}-s{place[1]}", place[0], self.fit(place, n), n / self.end(place),
                FIRST_VALIDATIONS / self.end(place), self.chunk(place) / self.end(place),
                unstable=self.unstable(place, n),
            )
            for place, n in given.items()
        ]  # fmt: skip


class Simulated(StudyFuture):
    """A study of known truth."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng((seed, 1201))
        r0 = rng.uniform(0.1, 0.4)
        base = Sigmoid(R_0=r0, A=rng.uniform(r0 + 0.25, 0.85), B=rng.uniform(1.2, 2.2), C_mid=1.0)
        end = rng.uniform(6.0, 10.0)
        kinds = list(rng.permutation(KINDS))
        self.kinds = {REFERENCE: "same"} | {f"v{i:02d}": str(k) for i, k in enumerate(kinds)}
        self.truth: dict[str, float] = {}
        curves: dict[Place, Run] = {}
        for name, kind in self.kinds.items():
            law = _law(base, kind)
            self.truth[name] = law.A if kind != "unstable" else -1.0
            onset = rng.uniform(0.1, 0.6) * end
            for s in range(SEEDS):
                own = replace(
                    law,
                    A=law.A + SEED_SD * rng.standard_normal(),
                    C_mid=law.C_mid * math.exp(SEED_LOG_SD * rng.standard_normal()),
                )
                curves[name, s] = _curve(own, end, onset if kind == "unstable" else None, rng)
        super().__init__(REFERENCE, curves)

    def falls(self, place: Place, points: int) -> bool:
        """By the rule of study/stability.py that a simulated collapse breaks first."""
        about = {"compute": {}, "stderr": NOISE_SD, "n_prompts": 200, "k": 4}
        lines = [
            EvalLine.from_dict({"step": i, "pass_rate": float(y), **about})
            for i, y in enumerate(self.seen(place, points).score)
        ]
        return assess_lines([], lines).state == "unstable"


def _law(base: Sigmoid, kind: str) -> Sigmoid:
    add, times = {
        "higher": (DELTA, 1.0), "lower": (-DELTA, 1.0), "slower": (0.0, SLOWER),
        "crossing": CROSSING,
    }.get(kind, (0.0, 1.0))  # fmt: skip
    return replace(base, A=base.A + add, C_mid=base.C_mid * times)


def _curve(law: Sigmoid, end: float, onset: float | None, rng: np.random.Generator) -> Run:
    from simulate import noise

    c = np.linspace(0.0, end, POINTS + 1)
    level = np.append(law.R_0, law.value(c[1:]))
    if onset is not None:
        fall = np.clip((c - onset) / (0.1 * end), 0.0, 1.0)
        level = level - fall * (level - law.R_0)
    score = np.clip(level + noise(len(c), NOISE_SD, NOISE_RHO, rng), 0.0, 1.0)
    return Run("run", compute=c, score=score, x_kind="steps")


class Recorded(StudyFuture):
    """A study whose runs are there: what a race would have seen of them."""

    def __init__(self, path: Path) -> None:
        study = Study(path)
        curves, self.fell = {}, dict[Place, int | None]()
        for member in study.members:
            found = study.finding(member)
            if found.run is None or len(found.run) <= FIRST_VALIDATIONS:
                continue
            place = member.variant, member.seed
            curves[place] = found.run
            steps = [line.step for line in study.evals(member) if line.pass_rate is not None]
            broken = found.stability.step if found.stability.state == "unstable" else None
            self.fell[place] = None if broken is None else sum(step < broken for step in steps)
        super().__init__(study.reference, curves)

    def falls(self, place: Place, points: int) -> bool:
        """Where it broke a rule on its way."""
        at = self.fell[place]
        return at is not None and points >= at
