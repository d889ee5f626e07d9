"""Cost models: where the rates of a plan come from, and how sure they are.

a recorded run (`--like`), or a short one made for it (`--measure`)   RecordedCosts
peak numbers of an accelerator and the share of them that is used      RooflineCosts
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from scalerl.errors import InputError, PipelineError
from scalerl.planner.accelerators import Accelerator
from scalerl.planner.answer import Slowness
from scalerl.planner.calibrate import MIN_STEPS, Calibration, calibrate, reproduced
from scalerl.planner.lengths import AnswerLengths
from scalerl.planner.model_shape import ModelShape
from scalerl.planner.normal import Interval
from scalerl.planner.placements import MemoryNeed, Placement, memory_need
from scalerl.planner.roofline import PUBLIC_DECODE, PUBLIC_MFU, Utilisation, roofline
from scalerl.planner.simulate import SKIP
from scalerl.planner.world import EnvironmentModel, PassRates, PlannedWorld
from scalerl.recipe import Recipe

#: Draws of the rates.
DRAWS = 2000
#: Longer answers also have more context to read: power of the length in a generator's time.
CONTEXT_POWER = 1.3


class Costs(Protocol):
    """What a search over placements asks."""

    @property
    def lengths(self) -> AnswerLengths: ...

    @property
    def kept(self) -> float:
        """Share of groups that are trained on."""
        ...

    def world(self, recipe: Recipe, placement: Placement, seed: int) -> PlannedWorld:
        """The world of a placement, at the middle of all intervals."""
        ...

    def need(self, recipe: Recipe, placement: Placement) -> MemoryNeed: ...

    def slowness(self, seed: int) -> Slowness:
        """Draws of how far the rates are from the middle."""
        ...

    def lines(self) -> list[str]:
        """Where the numbers are from, for people."""
        ...

    def to_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Workload:
    """What the user says about answers, prompts and environments."""

    mean_length: float | str | Interval | None = None
    spread: float | None = None
    alike: float | None = None
    growth: float = 0.0
    prompt_tokens: int | None = None
    kept: float | None = None
    environment: EnvironmentModel = field(default_factory=EnvironmentModel)
    check_seconds: float | None = None


# -- roofline -------------------------------------------------------------------------------------

#: Coefficient of variation of lengths where it is not given, and the share of the variance between
#: prompts: the middle of public measurements (Qwen3-8B on mathematics and others).
SPREAD = 0.6
ALIKE = 0.7
#: Share of groups with variance where it is not given: about that of the paper's runs.
KEPT = 0.7
#: Tokens of a prompt where they are not given.
PROMPT_TOKENS = 256


@dataclass(frozen=True)
class RooflineCosts:
    """Peak numbers of an accelerator times the share of them that is used."""

    accelerator: Accelerator
    shape: ModelShape
    lengths: AnswerLengths
    mean_length: Interval
    use: Utilisation
    prompt_tokens: int
    kept: float
    environment: EnvironmentModel
    check_seconds: float

    def world(self, recipe: Recipe, placement: Placement, seed: int) -> PlannedWorld:
        generations = recipe.batch.generations
        rates = roofline(
            self.shape, self.accelerator, recipe, trainers=placement.trainers, use=self.use,
            generator_devices=placement.devices_per_generator,
            cached=self.lengths.in_progress + self.prompt_tokens / generations,
        )  # fmt: skip
        return PlannedWorld(
            rates, self.lengths, self.prompt_tokens,
            PassRates.from_kept(self.kept, generations), self.environment, self.check_seconds,
            placement.devices_per_generator, seed,
        )  # fmt: skip

    def need(self, recipe: Recipe, placement: Placement) -> MemoryNeed:
        return memory_need(self.shape, self.accelerator, recipe, placement)

    def slowness(self, seed: int) -> Slowness:
        z = np.random.default_rng(seed).standard_normal((3, DRAWS))
        longer = self.mean_length.draws(z[2]) / self.mean_length.middle
        mfu = self.use.mfu.middle / self.use.mfu.draws(z[0])
        decode = self.use.decode.middle / self.use.decode.draws(z[1])
        return Slowness(decode * longer**CONTEXT_POWER, mfu * longer)

    def lines(self) -> list[str]:
        mean = self.mean_length
        around = "" if mean.high == mean.low else f" (90 %: {mean.low:,.0f}-{mean.high:,.0f})"
        device = self.accelerator
        return [
            f"{self.shape.parameters / 1e9:.3g}B parameters; answers of {mean.middle:,.0f}{around} "
            f"tokens in the mean, 90 % below {self.lengths.quantile(0.9):,.0f}, at most "
            f"{self.lengths.limit:,}; {self.kept:.0%} of groups kept",
            f"rates: roofline of {device.name} ({device.confidence} confidence in its numbers); "
            f"the trainer uses {_share(self.use.mfu)} of the peak, generators "
            f"{_share(self.use.decode)} of the bandwidth",
        ]

    def to_dict(self) -> dict[str, Any]:
        def ends(interval: Interval) -> list[float]:
            return [interval.low, interval.high]

        return {
            "source": "roofline",
            "model": {"name": self.shape.name, "parameters": self.shape.parameters},
            "accelerator": self.accelerator.name,
            "mean_length": ends(self.mean_length),
            "length_spread": self.lengths.spread,
            "length_alike": self.lengths.alike,
            "length_limit": self.lengths.limit,
            "mfu": ends(self.use.mfu),
            "decode": ends(self.use.decode),
            "prompt_tokens": self.prompt_tokens,
            "kept": self.kept,
        }


def roofline_costs(
    recipe: Recipe, accelerator: str | Accelerator | None, more: Path | None, mfu: Any, decode: Any,
    workload: Workload,
) -> RooflineCosts:  # fmt: skip
    """The costs by the roofline; raises InputError over what is missing or impossible."""
    if accelerator is None:
        raise InputError(
            "the kind of device is not known: give --accelerator NAME (--list names them), or "
            "--like RUN"
        )
    if isinstance(accelerator, str):
        accelerator = Accelerator.named(accelerator, more)
    shape = _shape(recipe)
    lengths, mean = _lengths(recipe, workload)
    use = Utilisation(
        _use(mfu, "--mfu", PUBLIC_MFU, "products that the trainer uses (MFU)"),
        _use(decode, "--decode", PUBLIC_DECODE, "bandwidth that generators use"),
    )
    kept = KEPT if workload.kept is None else workload.kept
    if not 0 < kept <= 1:
        raise InputError(f"--kept {kept:g}: give a share above 0, at most 1")
    prompt = PROMPT_TOKENS if workload.prompt_tokens is None else workload.prompt_tokens
    return RooflineCosts(
        accelerator, shape, lengths, mean, use,
        min(prompt, recipe.sampling.max_prompt_tokens),
        1.0 if recipe.filter.zero_variance == "keep" else kept,
        workload.environment, workload.check_seconds or 0.0,
    )  # fmt: skip


def _shape(recipe: Recipe) -> ModelShape:
    from scalerl.models.load import model_path

    shape = ModelShape.named(model_path(recipe.model.path))
    longest = recipe.sampling.max_prompt_tokens + recipe.length.longest
    if longest > shape.context:
        raise InputError(
            f"prompt and answer may have {longest} tokens, and {shape.name} reads {shape.context}: "
            "lower sampling.max_prompt_tokens or the budgets in length"
        )
    return shape


def _lengths(recipe: Recipe, workload: Workload) -> tuple[AnswerLengths, Interval]:
    limit, budgets = workload.environment.limits(recipe)
    if workload.mean_length is None:
        raise InputError(
            "the mean length of answers decides the cost and is not known: give --mean-length "
            f"TOKENS or LOW-HIGH (at most {limit} here), or --like RUN"
        )
    mean = _interval(workload.mean_length, "--mean-length")
    if mean.high > limit:
        raise InputError(
            f"--mean-length {mean.high:g} is above the longest answer, {limit} tokens: lower it, "
            "or raise the budgets in length"
        )
    lengths = AnswerLengths(
        mean.middle,
        SPREAD if workload.spread is None else workload.spread,
        ALIKE if workload.alike is None else workload.alike,
        limit,
        budgets,
        growth=workload.growth,
    )
    return lengths, mean


def _interval(value: Any, option: str) -> Interval:
    return value if isinstance(value, Interval) else Interval.parse(str(value), option)


def _use(value: Any, option: str, public: Interval, what: str) -> Interval:
    if value is None:
        raise InputError(
            f"the share of peak {what} decides the cost and is not known: give {option} LOW-HIGH "
            f"({option} public takes {public.low:g}-{public.high:g}), or --like RUN"
        )
    found = public if value == "public" else _interval(value, option)
    if found.high > 1:
        raise InputError(f"{option} {found.high:g}: a share of the peak is at most 1")
    return found


def _share(interval: Interval) -> str:
    ends = f" (90 %: {interval.low:g}-{interval.high:g})" if interval.high > interval.low else ""
    return f"{interval.middle:.2g}{ends}"


# -- a recorded run -------------------------------------------------------------------------------


@dataclass(frozen=True)
class RecordedCosts:
    """Rates and lengths of a recorded run; memory is not known from it."""

    calibration: Calibration
    lengths: AnswerLengths
    workload: Workload

    @property
    def kept(self) -> float:
        recipe = self.calibration.recipe
        return self.calibration.pass_rates.kept(recipe.batch.generations)

    def world(self, recipe: Recipe, placement: Placement, seed: int) -> PlannedWorld:
        world = self.calibration.world(recipe.replace(placement.changes()), seed)
        environment, check = self.workload.environment, self.workload.check_seconds
        # What is said of lengths on the command line holds for all parts of the run.
        scale = self.lengths.mean / world.lengths.mean
        most = 0.98 * self.lengths.limit
        parts = tuple(
            replace(
                part,
                lengths=replace(
                    self.lengths,
                    mean=min(scale * part.lengths.mean, most),
                    kept_ratio=part.lengths.kept_ratio,
                ),
            )
            for part in world.parts
        )
        return replace(
            world,
            lengths=self.lengths,
            parts=parts,
            environment=environment if environment.turns > 1 else world.environment,
            check_seconds=world.check_seconds if check is None else check,
        )

    def need(self, recipe: Recipe, placement: Placement) -> MemoryNeed:
        return MemoryNeed(0.0, 0.0, float("inf"), None)

    def slowness(self, seed: int) -> Slowness:
        z = np.random.default_rng(seed).standard_normal((2, DRAWS))
        interval = self.calibration.slowness
        return Slowness(interval.draws(z[0]), interval.draws(z[1]))

    def lines(self) -> list[str]:
        c = self.calibration
        return [
            f"answers of {self.lengths.mean:,.0f} tokens in the mean, at most "
            f"{self.lengths.limit:,}; {self.kept:.0%} of groups kept",
            f"rates: {c.steps} recorded steps of {c.path} (90 %: a factor of {c.factor:g} either "
            f"way); its own step took {c.measured['step_seconds']:.3g} s",
            *c.notes,
        ]

    def to_dict(self) -> dict[str, Any]:
        c = self.calibration
        return {
            "source": "record",
            "run": str(c.path),
            "steps": c.steps,
            "factor": c.factor,
            "mean_length": [self.lengths.mean] * 2,
            "length_spread": self.lengths.spread,
            "length_alike": self.lengths.alike,
            "length_limit": self.lengths.limit,
            "prompt_tokens": c.prompt_tokens,
            "kept": self.kept,
            "measured": c.measured,
            "notes": list(c.notes),
        }


def recorded_costs(run: str | Path, recipe: Recipe, workload: Workload) -> RecordedCosts:
    """The costs of a recorded run, for another recipe on the same hardware."""
    found = calibrate(run)
    if found.recipe.model.path != recipe.model.path:
        raise InputError(
            f"--like {run} trained {found.recipe.model.path}, and the recipe {recipe.model.path}: "
            "rates hold for one model; give a run of that model, or --accelerator"
        )
    found = reproduced(found)
    played = workload.environment if workload.environment.turns > 1 else found.environment
    lengths = found.lengths.cut(*played.limits(recipe))
    lengths = replace(lengths, growth=workload.growth)
    if workload.mean_length is not None:
        lengths = replace(lengths, mean=_interval(workload.mean_length, "--mean-length").middle)
    if lengths.mean > lengths.limit:
        lengths = replace(lengths, mean=0.9 * lengths.limit)
    for name in ("spread", "alike"):
        value = getattr(workload, name)
        lengths = lengths if value is None else replace(lengths, **{name: value})
    return RecordedCosts(found, lengths, workload)


def measured_costs(recipe: Recipe, workload: Workload) -> RecordedCosts:
    """The costs of a short run of the recipe on this machine; nothing of that run is kept."""
    try:
        from scalerl.training import train
    except ModuleNotFoundError as error:
        raise InputError(f"measuring needs {error.name}: pip install 'scalerl[train]'") from None
    steps = max(SKIP, recipe.schedule.k + 1) + 2 * MIN_STEPS
    short = recipe.with_decay_fixed().replace(
        {"budget.steps": steps, "validation.every": steps + 1, "checkpoint.every": steps + 1,
         "validation.prompts": min(recipe.validation.prompts, 8)}
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="scalerl-plan-") as folder:
        out = Path(folder) / "run"
        try:
            train(short, out)
        except PipelineError as error:
            raise InputError(f"the measurement failed: {error}") from None
        found = recorded_costs(out, recipe, workload)
    return replace(found, calibration=replace(found.calibration, path=Path("a run just now")))
