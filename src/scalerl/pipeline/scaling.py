"""Changing the number of generators while a run goes on (`scalerl scale RUN --generators N`).

`WorkerWatch` finds the request, records it, and from then on keeps the number of generators at N:

    joins    a generator is started and loads the newest weights by itself; once it is ready, it
             gets groups like the others
    leaves   it gets no new requests and is asked to leave; its last report says what it had
             finished. The rest is written by the others from its beginning, under the same serial
             numbers and seeds: nothing is lost or doubled

A generator that dies while it leaves has left all the same. The recipe of the run is changed too,
so that a resumed run has N generators.
"""

from __future__ import annotations

from scalerl.errors import InputError
from scalerl.pipeline import branches
from scalerl.pipeline.crew import Handle
from scalerl.pipeline.dispatch import GeneratorState
from scalerl.pipeline.supervisor import MAX_DEATHS, START_SECONDS, Supervisor
from scalerl.recipe import Recipe
from scalerl.runs.lines import KnobChange

KEY = "placement.generators"


class Scaling:
    """Keeps the number of generators as it was asked for."""

    def __init__(self, supervisor: Supervisor, recipe: Recipe) -> None:
        self.supervisor, self.crew = supervisor, supervisor.crew
        self.dispatcher, self.recorder = supervisor.dispatcher, supervisor.recorder
        #: The recipe of the run, with the present number of generators.
        self.recipe = recipe
        #: Generators that were asked for; None: as many as there are.
        self._wanted: int | None = None
        #: Generators in a row that were started to join and never got ready.
        self._never_up = 0

    def rescale(self) -> None:
        """Start or dismiss generators until there are as many as were asked for."""
        asked = self.recorder.store.take_generator_request()
        if asked is not None:
            self._accept(asked)
        ready = self.supervisor.learner.ready
        if self._wanted is None or not ready or self.supervisor.state.stop is not None:
            return
        joining = self._joining()
        missing = self._wanted - len(self.dispatcher) - len(joining)
        for _ in range(missing):
            self.recorder.listener.say(f"{self.crew.add_generator().name} is being started")
        for _ in range(-missing):
            if joining:  # it holds nothing yet
                self.crew.remove_generator(joining.pop())
            else:
                # The one that joined last.
                self._dismiss_generator(self.dispatcher.staying[-1])
        for handle in self._joining():
            if handle.silence > max(self.supervisor.patience, START_SECONDS):
                self.supervisor.on_worker_lost(
                    handle, f"did not start within {handle.silence:.0f} s"
                )

    def _accept(self, asked: int) -> None:
        now = self._wanted or len(self.dispatcher)
        try:
            if self.supervisor.deterministic:
                raise InputError("placement.deterministic=true does not allow the number to change")
            recipe = self.recipe.replace({KEY: asked})
        except InputError as error:
            self.recorder.warn([f"the request for {asked} generators is refused: {error}"])
            return
        if asked == now:
            return
        self._wanted, self._never_up = asked, 0
        self.recipe = recipe
        branches.write_recipe(self.recorder.store, recipe)
        change = KnobChange(KEY, str(now), str(asked), False)
        self.recorder.note("scale", f"{KEY} {now} → {asked}", changes=(change,))

    def _joining(self) -> list[Handle]:
        """Generators that were started to join and are not ready yet."""
        return [g for g in self.crew.generators if g.name not in self.dispatcher.states]

    def on_join_failed(self, worker: Handle) -> None:
        """A generator was lost before it joined: try again, up to MAX_DEATHS times."""
        self._never_up += 1
        self.crew.remove_generator(worker)
        if self._never_up >= MAX_DEATHS:
            self._wanted = len(self.dispatcher) + len(self._joining())
            self.recorder.warn(
                [f"{worker.name} never started: the run goes on with {self._wanted} generators; is "
                 "there room for another?"]
            )  # fmt: skip

    def _dismiss_generator(self, state: GeneratorState) -> None:
        self.dispatcher.ask_to_leave(state)
        if state.starting:  # it cannot answer
            self.supervisor.on_generator_left(state)
