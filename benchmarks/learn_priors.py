"""Learn the priors of the forecaster (src/scalerl/curves/priors.json) from real curves.

python benchmarks/learn_priors.py DIR [DIR ...]     about ten minutes on one core

DIR holds runs.csv and index.csv. The paper's two runs and our own of known ceilings
(results/learning*.json, games.json) are sources, too. Each curve is cut at random shares of its
compute. What is maximised is the log probability of what came next (the mean score of the last
tenth up to a later share; for runs of known ceiling, the ceiling), minus a penalty for every
constant that leaves its start:

    sum of w log p(y after | y before, constants)  -  sum of ((constant - start) / sd)^2 / 2

A source of n runs weighs sqrt(n), so that no project with many runs decides alone; all weights add
up to the number of runs. Draws are made once, under a broad prior, and reweighted by the prior in
question, so the objective is smooth and its gradient exact.

The constants are learned once from everything, for users, and once without each source, for the
back-test (calibration.py): results/learn_priors.json. Only constants are written down.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from backtest import CONTROLS, cluster, read
from record import RESULTS, save
from scalerl import Run, load_runs
from scalerl.curves.alarm import find_fall
from scalerl.curves.noise import bin_curve, mean_variance
from scalerl.curves.paths import (
    FALL_DEPTHS,
    FALL_RATE,
    GAIN_HORIZON,
    MAX_GAIN_HORIZONS,
    MAX_PLATEAU,
)
from scalerl.curves.posterior import cuts, sample_posterior
from scalerl.curves.priors import FuturePriors, Priors
from scalerl.report.progress import ProgressBar

TABLE = Path(__file__).parent.parent / "src" / "scalerl" / "curves" / "priors.json"
KINDS = ("validation", "training")
DRAWS = 600
#: Cuts of each run, at random shares; every second one ends before the run does.
CUTS = 6
#: Smallest sd of what came next: scores closer than this are as good as right.
FLOOR = 0.02
#: The same for a ceiling, which has no noise.
CEILING_FLOOR = 0.005
#: ln C to the "end" at which a ceiling is judged, for the error of the law.
CEILING_HORIZON = GAIN_HORIZON * MAX_GAIN_HORIZONS
#: What draws are made with: wide enough to hold every prior in question.
BROAD = Priors(
    b_median=1.5, b_log_sd=0.8, shape_log_sd=1.5, flat_weight=0.4, mid_log_sd=2.0, a_step=0.1,
    a_share=0.3, a_sd=0.5, a_sd_share=0.0, no_cut_weight=1.5, tau_weight=(0.25,) * 4,
)  # fmt: skip

#: Constants that are not learned.
FIXED = {
    n: f.default for kind in (Priors, FuturePriors) for n, f in kind.__dataclass_fields__.items()
}


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant to learn: where it starts, how far it may easily go, on which scale, and whether
    each kind of score has its own (then it has two starts)."""

    start: float | tuple[float, ...]
    sd: float
    #: "log", "logit", or "shares" (logs of weights that add up to 1).
    scale: str
    by_kind: bool = False


#: Starts are round numbers, no worse than those of version 0.2 on any class of curves; those by
#: kind are (validation, training).
CONSTANTS = {
    "b_median": Constant(1.5, 0.3, "log"),
    "b_log_sd": Constant(0.6, 0.4, "log"),
    "shape_log_sd": Constant(0.6, 0.4, "log"),
    "mid_log_sd": Constant(1.5, 0.4, "log"),
    "a_sd_share": Constant(0.5, 1.0, "log"),
    "no_cut_weight": Constant(4.0, 0.7, "log"),
    "reversion": Constant(0.3, 0.5, "log"),
    "ceiling_keeps": Constant(0.9, 1.0, "logit"),
    "fall_weight": Constant((0.35, 0.2, 0.2, 0.25), 0.7, "shares"),
    "flat_weight": Constant((0.3, 0.03), 1.0, "logit", by_kind=True),
    "a_step": Constant((0.04, 0.2), 0.7, "log", by_kind=True),
    "a_share": Constant((0.3, 0.3), 0.7, "log", by_kind=True),
    "a_sd": Constant((0.12, 0.35), 0.5, "log", by_kind=True),
    "hazard": Constant((0.03, 0.04), 1.0, "log", by_kind=True),
    "plateau_hazard": Constant((0.15, 0.04), 1.0, "log", by_kind=True),
    "takeoff_probability": Constant((0.05, 0.05), 1.0, "logit", by_kind=True),
}


# -- tasks ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Curve:
    run: Run
    source: str
    kind: str
    #: The ceiling, where it is known by construction.
    ceiling: float | None = None


def curves(folders: Sequence[Path]) -> list[Curve]:
    """The curves of the folders, and our own of known ceilings."""
    runs, kinds = read(folders)
    found = [
        Curve(r, str(r.group), "training" if kinds[r.name] == "training" else "validation")
        for r in runs
        if not r.name.startswith(CONTROLS) and len(r) >= 9
    ]
    found += [
        Curve(r, "scalerl paper", "validation")
        for r in load_runs("example:paper-8b", "example:paper-moe")
    ]
    for name in ("learning", "learning_noisy", "games"):
        for kind, own in json.loads((RESULTS / f"{name}.json").read_text())["runs"].items():
            for i, r in enumerate(own):
                compute, score = (np.array(v) for v in r["curve"])
                run = Run(f"{name}: {kind} {i}", compute, score, x_kind="flops")
                found.append(Curve(run, f"own {name}", "validation", float(r["truth"])))
    return found


def tasks(found: Sequence[Curve]) -> list[dict[str, Any]]:
    """Every curve cut at random shares: draws of its posterior, and what came next."""
    rng = np.random.default_rng(7)
    made = []
    with ProgressBar("drawing") as tick:
        for i, curve in enumerate(found):
            run, end = curve.run, float(curve.run.compute[-1])
            for j in range(CUTS):
                stop = 1.0 if j % 2 == 0 else rng.uniform(0.5, 1.0)
                seen = run.window(None, stop * rng.uniform(0.2, 0.95) * end)
                upto = run.window(None, stop * end * (1 + 1e-9))
                if len(seen) < 6 or len(upto) == len(seen) or (seen.compute > 0).sum() < 5:
                    continue
                last = min(max(1, round(0.1 * len(upto))), len(upto) - len(seen))
                made.append(
                    task(curve, seen, upto.compute[-last:], float(upto.score[-last:].mean()))
                )
            if curve.ceiling is not None:
                for share in (rng.uniform(0.4, 0.6), rng.uniform(0.65, 0.9), 1.0):
                    made.append(task(curve, run.window(None, share * end), None, curve.ceiling))
            tick((i + 1) / len(found))
    return made


def task(curve: Curve, seen: Run, later: np.ndarray | None, truth: float) -> dict[str, Any]:
    points = bin_curve(seen.compute, seen.score, seen.n_eval)
    end = float(np.log(seen.compute[-1]))
    posterior = sample_posterior(points, end, None, np.random.default_rng(1), BROAD, DRAWS)
    draws = posterior.draws
    tau = np.sqrt(posterior.covariance.tau2[draws.hypothesis]) / points.scale
    fall = find_fall(seen.compute, seen.score, points)
    ahead = CEILING_HORIZON if later is None else float(np.log(later).mean()) - end
    last = 1 if later is None else len(later)
    return {
        # One value a draw.
        "draws": {
            "now": draws.law(np.array([end]))[:, 0],
            "then": draws.a if later is None else draws.law(np.log(later)).mean(axis=1),
            "a": draws.a, "u": posterior.u_end, "s2": draws.s2,
            "walk2": draws.s2 * posterior.covariance.tau2[draws.hypothesis],
            "noise2": draws.s2 * points.score_variance * float(mean_variance(last)),
            "log_b": draws.log_b, "mid": draws.log_mid - end, "plateau": posterior.plateau,
            "log_v": np.log(draws.shape), "flat": draws.flat,
            "tau": np.abs(np.log(tau[:, None] / np.array(BROAD.tau))).argmin(axis=1),
            "cut": posterior.covariance.cut[draws.hypothesis] > points.t[0],
        },
        # One value a task.
        "values": {
            "truth": truth, "ahead": ahead, "ceiling": later is None,
            "training": curve.kind == "training", "level": points.level,
            "gained": max(points.level - float(points.score[0]), 0.0),
            "cuts": len(cuts(points, end, BROAD)) - 1,
            "fallen": 0.0 if fall is None else fall.probability,
            "drop": 0.0 if fall is None else max(fall.drop, 0.0),
            "fall_level": 0.0 if fall is None else fall.level,
            "fall_sd": 0.0 if fall is None else fall.level_sd,
        },
        "source": curve.source,
        "run": cluster(curve.run.name),
    }  # fmt: skip


# -- the objective --------------------------------------------------------------------------------


class Objective:
    """The log probability of what came next, as a function of the constants."""

    def __init__(self, made: Sequence[dict[str, Any]]) -> None:
        names = made[0]["draws"], made[0]["values"]
        self.draw = {k: torch.tensor(np.array([t["draws"][k] for t in made])) for k in names[0]}
        self.value = {
            k: torch.tensor(np.array([[float(t["values"][k])] for t in made])) for k in names[1]
        }
        self.source = np.array([t["source"] for t in made])
        self.weight = torch.tensor(_weights(self.source, np.array([t["run"] for t in made])))
        noise = torch.Generator().manual_seed(3)
        self.z = torch.randn(1, DRAWS, generator=noise)
        self.u = torch.rand(5, 1, DRAWS, generator=noise)
        self.start, self.sd = _pack()

    def learn(self, without: str | None = None, start: torch.Tensor | None = None) -> torch.Tensor:
        """The constants that maximise the objective, on all sources but one."""
        rows = torch.tensor(np.flatnonzero(self.source != without))
        x = (self.start if start is None else start).clone().requires_grad_(True)
        best = torch.optim.LBFGS(
            [x], max_iter=60, history_size=20, tolerance_change=1e-4, line_search_fn="strong_wolfe"
        )

        def loss() -> torch.Tensor:
            best.zero_grad()
            penalty = 0.5 * (((x - self.start) / self.sd) ** 2).sum()
            value = penalty - (self.weight[rows] * self.log_score(x, rows)).sum()
            value.backward()
            return value

        best.step(loss)
        return x.detach()

    def log_score(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """ln p(what came next) of every task."""
        v = {k: t[rows] for k, t in self.value.items()}
        d = {k: t[rows] for k, t in self.draw.items()}
        training = v["training"] > 0
        c = {k: torch.where(training, n[1], n[0]) if CONSTANTS[k].by_kind else n
             for k, n in _unpack(x).items()}  # fmt: skip
        weight = self._prior_ratio(c, d, v)
        ceiling = v["ceiling"] > 0
        floor = torch.where(ceiling, CEILING_FLOOR, FLOOR) ** 2
        noise = torch.where(ceiling, 0.0, d["noise2"]) + floor
        each = []
        for log_share, mean, walk2 in self._futures(c, d, v):
            variance = torch.where(ceiling, 0.0, walk2) + noise
            gap = v["truth"] - mean.clamp(0.0, 1.0)
            each.append(log_share - 0.5 * torch.log(variance) - 0.5 * gap * gap / variance)
        inside = torch.logsumexp(torch.stack(each), 0)
        return torch.logsumexp(weight + inside, 1) - torch.logsumexp(weight, 1)

    def _prior_ratio(self, c: Any, d: Any, v: Any) -> torch.Tensor:
        """ln of the prior in question over the broad one, for every draw."""
        flat = d["flat"]
        lnv = torch.log(torch.tensor(BROAD.shapes))
        spread, broad = c["shape_log_sd"], BROAD.shape_log_sd
        rising = -0.5 * d["log_v"] ** 2 * (spread**-2 - broad**-2)
        rising = rising - torch.logsumexp(-0.5 * (lnv / spread) ** 2, 0)
        rising = rising + torch.logsumexp(-0.5 * (lnv / broad) ** 2, 0)
        rising = rising + _normal(d["log_b"], torch.log(c["b_median"]), c["b_log_sd"])
        rising = rising - _normal(d["log_b"], math.log(BROAD.b_median), BROAD.b_log_sd)
        rising = rising + _normal(d["mid"], 0.0, c["mid_log_sd"])
        rising = rising - _normal(d["mid"], 0.0, BROAD.mid_log_sd)
        s = torch.sqrt(d["s2"])
        expected = v["level"] + c["a_step"] + c["a_share"] * v["gained"]
        a_sd = c["a_sd"] + c["a_sd_share"] * v["gained"]
        rising = rising + _normal(d["a"], expected.clamp(max=1.0), a_sd * s)
        expected = v["level"] + BROAD.a_step + BROAD.a_share * v["gained"]
        rising = rising - _normal(d["a"], expected.clamp(max=1.0), BROAD.a_sd * s)
        rising = rising + torch.log1p(-c["flat_weight"]) - math.log1p(-BROAD.flat_weight)
        still = torch.log(c["flat_weight"]) - math.log(BROAD.flat_weight)
        ratio = (
            torch.where(flat, still, rising)
            + torch.log(torch.tensor(FIXED["tau_weight"]))[d["tau"]]
        )
        no_cut = c["no_cut_weight"]
        for weight, sign in ((no_cut, 1.0), (torch.tensor(BROAD.no_cut_weight), -1.0)):
            share = torch.where(d["cut"], 1.0, weight) / (weight + v["cuts"])
            ratio = ratio + sign * torch.log(share)
        return ratio

    def _futures(self, c: Any, d: Any, v: Any) -> list[tuple[Any, Any, Any]]:
        """(ln probability, mean, variance of the walk) of each way that a draw may go on: paths.py,
        as a mixture instead of samples."""
        ahead, ceiling = v["ahead"], v["ceiling"] > 0
        horizon = (ahead / GAIN_HORIZON).clamp(max=MAX_GAIN_HORIZONS)
        gain = (d["then"] - d["now"]) * torch.exp(FIXED["gain_sd"] * torch.sqrt(horizon) * self.z)
        keeps = torch.where(ceiling, c["ceiling_keeps"], torch.exp(-c["reversion"] * ahead))
        law = d["now"] + d["u"] * keeps
        walk2 = d["walk2"] * ahead
        plateau = d["plateau"].clamp(max=MAX_PLATEAU)
        hazard = c["hazard"] + c["plateau_hazard"] * plateau
        falls = torch.where(ceiling, 0.0, 1.0 - torch.exp(-hazard * ahead))
        onset = -torch.log1p(-self.u[0] * falls) / hazard
        takes_off = c["takeoff_probability"] * d["flat"]
        jump, tiny = FIXED["jump_probability"], 1e-12
        stays = torch.log1p(-falls)
        rise = self.u[1] * (1.0 - d["a"]) * (1.0 - torch.exp(-ahead))
        found = [
            (stays + torch.log1p(-takes_off) + math.log1p(-jump), law + gain, walk2),
            (stays + torch.log1p(-takes_off) + math.log(jump), law + gain,
             walk2 * FIXED["jump_size"] ** 2),
            (stays + torch.log(takes_off + tiny), law + gain + rise, walk2),
        ]  # fmt: skip
        done = 1.0 - torch.exp(-FALL_RATE * (ahead - onset).clamp(min=0.0))
        top = law + gain * onset / ahead
        for k, share in enumerate(c["fall_weight"]):
            depth = FALL_DEPTHS[k] + (FALL_DEPTHS[k + 1] - FALL_DEPTHS[k]) * self.u[2]
            found.append(
                (torch.log(falls + tiny) + torch.log(share), top * (1 - depth * done), walk2)
            )
        # A fall that has begun goes on by constants that are not learned.
        begun = torch.where(ceiling, 0.0, v["fallen"])
        lost = -torch.log(self.u[3]) * FIXED["continued_fall_speed"] * v["drop"] * torch.sqrt(ahead)
        back = self.u[2] * v["drop"] * (1.0 - torch.exp(-FIXED["recovery_rate"] * ahead))
        level = v["fall_level"] + v["fall_sd"] * self.z
        level = level - torch.where(self.u[4] < FIXED["fall_continues"], lost, 0.0)
        level = level + torch.where(self.u[4] > 1.0 - FIXED["recovery_probability"], back, 0.0)
        found = [(p + torch.log1p(-begun), mean, var) for p, mean, var in found]
        return [*found, (torch.log(begun + tiny), level, walk2)]


def _weights(source: np.ndarray, run: np.ndarray) -> np.ndarray:
    weight = np.zeros(len(source))
    for s in set(source):
        runs = set(run[source == s])
        for r in runs:
            rows = (source == s) & (run == r)
            weight[rows] = 1.0 / rows.sum() / math.sqrt(len(runs))
    return weight * (len(set(run)) / weight.sum())


def _normal(x: torch.Tensor, mean: Any, sd: Any) -> torch.Tensor:
    sd = torch.as_tensor(sd, dtype=x.dtype)
    return -0.5 * ((x - mean) / sd) ** 2 - torch.log(sd)


def _pack() -> tuple[torch.Tensor, torch.Tensor]:
    """Starts and penalty sds of all constants, on the scales on which they are learned."""
    start, sd = [], []
    for c in CONSTANTS.values():
        value = np.atleast_1d(np.array(c.start, dtype=float))
        scaled = np.log(value / (1.0 - value)) if c.scale == "logit" else np.log(value)
        start += list(scaled)
        sd += [c.sd] * len(value)
    return torch.tensor(start), torch.tensor(sd)


def _unpack(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """The constants; those of each kind have two values."""
    found, at = {}, 0
    for name, c in CONSTANTS.items():
        size = len(np.atleast_1d(c.start))
        part = x[at : at + size]
        at += size
        change = {"log": torch.exp, "logit": torch.sigmoid, "shares": lambda p: torch.softmax(p, 0)}
        found[name] = change[c.scale](part)
    return found


def table(x: torch.Tensor) -> dict[str, dict[str, Any]]:
    """The constants as `priors.json` has them, to two digits: the objective is flat."""
    found: dict[str, dict[str, Any]] = {"both": {}, **{k: {} for k in KINDS}}
    for name, value in _unpack(x).items():
        numbers = [float(f"{float(v):.2g}") for v in value]
        if CONSTANTS[name].by_kind:
            for kind, number in zip(KINDS, numbers, strict=True):
                found[kind][name] = number
        else:
            found["both"][name] = numbers if len(numbers) > 1 else numbers[0]
    return found


def main(folders: Sequence[Path]) -> None:
    torch.set_default_dtype(torch.float64)
    found = curves(folders)
    objective = Objective(tasks(found))
    everything = objective.learn()
    sources = sorted(set(objective.source))
    folds = {}
    with ProgressBar("leaving sources out") as tick:
        for i, source in enumerate(sources):
            folds[source] = table(objective.learn(source, everything))
            tick((i + 1) / len(sources))
    runs = Counter(c.source for c in found)
    learned = {"runs": {s: runs[s] for s in sources}, "priors": table(everything)}
    save("learn_priors", learned, TABLE)
    save("learn_priors", {**learned, "tasks": len(objective.source), "without": folds})
    print(json.dumps(table(everything), indent=1))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main([Path(folder) for folder in sys.argv[1:]])
