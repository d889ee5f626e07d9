"""How each worker is made: engine, trainer and weights channel, by their names in the recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from scalerl.engine.interface import Engine, EngineSpec
from scalerl.engine.registry import ENGINES
from scalerl.errors import InputError, PipelineError
from scalerl.machine import cores
from scalerl.pipeline.setup import RunSetup
from scalerl.placement.saved_adapter import SavedAdapter, spec_for
from scalerl.trainer.interface import RankSpec, Trainer, TrainerSpec
from scalerl.trainer.optimisers import OPTIMISERS
from scalerl.trainer.registry import TRAINERS
from scalerl.weights.interface import Channel, SingleObjectChannel, WeightTarget
from scalerl.weights.registry import CHANNELS

#: Most tokens in a micro-batch of the local trainer.
TOKEN_BUDGET = 12_288
#: Share of `placement.patience` after which a collective fails: less than 1, so that ranks that
#: wait for a hanging one report it before the loop gives up on the whole trainer.
COLLECTIVE_SHARE = 0.8


@dataclass(frozen=True, slots=True, eq=False)
class Specs:
    """How to make each worker."""

    make_engine: Callable[[EngineSpec], Engine]
    engine: EngineSpec
    make_trainer: Callable[[TrainerSpec], Trainer]
    trainer: TrainerSpec
    channel: Channel
    #: Number of ranks of the trainer.
    trainers: int
    #: Seconds until a collective fails that a rank does not join.
    deadline: float

    @staticmethod
    def from_setup(setup: RunSetup, checkpoint: Path | None, *, default_channel: str) -> Specs:
        """The specs of a run. `default_channel` is used for `placement.weights = "auto"`."""
        recipe, where = setup.recipe, setup.recipe.placement
        trainer = where.trainer
        if trainer == "auto":
            trainer = "local" if where.trainers == 1 else "fsdp"
        if trainer in ("local", "simulated") and where.trainers != 1:
            raise InputError(
                f"placement.trainer={trainer} is one device, not placement.trainers="
                f"{where.trainers}: set placement.trainers=1, or placement.trainer=fsdp"
            )
        channel = default_channel if where.weights == "auto" else where.weights
        settings = recipe.with_decay_fixed().optimiser.model_copy(
            update={"lr": recipe.learning_rate}
        )
        OPTIMISERS[settings.name]  # raises over an unknown one before any worker is started
        return Specs(
            make_engine=ENGINES[where.engine],
            engine=engine_spec(setup),
            make_trainer=TRAINERS[trainer],
            trainer=TrainerSpec(
                model=setup.model,
                dtype=recipe.model.dtype,
                head=recipe.precision.trainer_head,
                options=setup.options,
                optimiser=settings,
                temperature=recipe.sampling.temperature,
                token_budget=TOKEN_BUDGET,
                device=setup.device,
                trust_remote_code=recipe.model.trust_remote_code,
                checkpoint=None if checkpoint is None else str(checkpoint),
                recompute=where.activations == "recompute",
                step_threads=_threads(setup, where.trainers),
                replay=recipe.precision.routing == "replay",
                adapter=setup.adapter,
            ),
            channel=CHANNELS[channel](setup.layout),
            trainers=where.trainers,
            deadline=where.patience * COLLECTIVE_SHARE,
        )

    def generator(self, *, deterministic: bool) -> tuple[Any, ...]:
        """The arguments of `serve_generator` after the connection."""
        return self.make_engine, self.engine, self.channel, deterministic

    def ranks(self, host: str, port: int, interface: str | None) -> list[tuple[str, TrainerSpec]]:
        """Name and spec of each rank of the trainer, with the address of their rendezvous."""
        first = RankSpec(0, self.trainers, host, port, interface, self.deadline)
        return [
            (f"trainer rank {i}", replace(self.trainer, ranks=replace(first, rank=i)))
            for i in range(self.trainers)
        ]


def engine_spec(setup: RunSetup) -> EngineSpec:
    """The spec of the engine of a run."""
    recipe = setup.recipe
    return EngineSpec(
        model=setup.model,
        dtype=recipe.model.dtype,
        head=recipe.precision.generator_head,
        slots=setup.slots,
        validation_slots=setup.validation_slots,
        columns=setup.columns,
        validation_threads=_threads(setup, recipe.placement.generators),
        device=setup.device,
        trust_remote_code=recipe.model.trust_remote_code,
        record_routing=recipe.precision.routing == "replay",
        park_turns=not recipe.placement.deterministic,
        adapter=None if recipe.placement.engine == "simulated" else setup.adapter,
        verify_every=recipe.placement.proof_every,
        devices=recipe.placement.devices_per_generator,
        head_parts=recipe.forces.generator_split,
    )


def _threads(setup: RunSetup, workers: int) -> int:
    """Threads for each generator (or trainer rank), given how many of them there are."""
    # On one machine with a single generator and a single trainer, each may use a second thread,
    # because one usually idles while the other works: the trainer during validations, and mostly
    # one of them waits for the other.
    where = setup.recipe.placement
    shared = where.backend == "local" and workers == 1 and where.idle_cores == "help"
    return 2 if shared and cores() > 1 else 1


class LoadedWeights(SingleObjectChannel):
    """The channel of an evaluation: engines have the weights from the start, nothing is sent."""

    across_processes = across_machines = True

    def publish(self, version: int, weights: Mapping[str, Tensor]) -> None:
        raise PipelineError("an evaluation has no trainer that publishes weights")

    def newest(self) -> int:
        return 0

    def into(self, engine: WeightTarget) -> int:
        return 0


def evaluation_generator(setup: RunSetup, weights: str) -> tuple[Any, ...]:
    """The arguments of `serve_generator` after the connection, in an evaluation of these weights,
    which have the shape of the recipe's model."""
    # One slot: the training lane stays empty, all requests go to the validation lane.
    spec = replace(engine_spec(setup), slots=1, record_routing=False)
    spec = spec_for(spec, weights)
    channel = LoadedWeights() if spec.adapter is None else SavedAdapter(weights, spec)
    return ENGINES[setup.recipe.placement.engine], spec, channel, False
