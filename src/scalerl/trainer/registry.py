"""Trainers by the names that recipes use; a recipe names your own as `package.module:function`."""

from __future__ import annotations

from collections.abc import Callable

from scalerl.registry import Registry
from scalerl.trainer.interface import Trainer, TrainerSpec
from scalerl.trainer.local import local_trainer
from scalerl.trainer.simulated import SimulatedTrainer

TRAINERS: Registry[Callable[[TrainerSpec], Trainer]] = Registry("trainer")
TRAINERS.register("local")(local_trainer)
TRAINERS.register("simulated")(SimulatedTrainer.from_spec)


@TRAINERS.register("fsdp")
def fsdp(spec: TrainerSpec) -> Trainer:
    """One rank of a sharded trainer (FSDP2)."""
    from scalerl.trainer.fsdp import fsdp_trainer  # torch.distributed, only where it is used

    return fsdp_trainer(spec)
