"""What the crews of all placements share: replacing, adding and removing workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from scalerl.errors import PipelineError
from scalerl.pipeline.crew import Handle, free_generator_name


class BaseCrew(ABC):
    """Generators and checkers by their handles, each with a method `kill`."""

    generators: list[Any]
    checkers: list[Any]

    @abstractmethod
    def _restarted(self, worker: Any) -> Any:
        """End a generator or checker and start another one like it."""

    def _start_generator(self, name: str) -> Any:
        """Start a generator; an evaluation, which has none, need not say how."""
        raise NotImplementedError

    def replace(self, worker: Handle) -> Handle:
        for workers in (self.generators, self.checkers):
            for i, one in enumerate(workers):
                if one is worker:
                    workers[i] = self._restarted(one)
                    return workers[i]  # type: ignore[no-any-return]
        raise PipelineError(f"{worker.name} cannot be replaced")

    def add_generator(self) -> Handle:
        self.generators.append(self._start_generator(free_generator_name(self.generators)))
        return self.generators[-1]  # type: ignore[no-any-return]

    def remove_generator(self, worker: Handle) -> None:
        gone: list[Any] = [g for g in self.generators if g is worker]
        for generator in gone:
            generator.kill()
        self.generators = [g for g in self.generators if g is not worker]
