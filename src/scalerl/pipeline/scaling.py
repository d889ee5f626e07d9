"""Changing the number of generators while a run goes on (`scalerl scale RUN --generators N`).

The watchdog finds the request, records it, and from then on keeps the number of generators at N:

    joins    a generator is started and loads the newest weights by itself; once it is ready, it
             gets groups like the others
    leaves   it gets no new requests and is asked to leave; its last report says what it had
             finished. The rest is written by the others from its beginning, under the same serial
             numbers and seeds: nothing is lost or doubled

A generator that dies while it leaves has left all the same. The recipe of the run is changed too,
so that a resumed run has N generators.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable

from scalerl.errors import InputError
from scalerl.pipeline import branches
from scalerl.pipeline.crew import Handle
from scalerl.pipeline.dispatch import GeneratorState
from scalerl.pipeline.groups import PendingGroup
from scalerl.pipeline.supervisor import MAX_DEATHS, START_SECONDS, CrewSupervisor
from scalerl.runs.lines import KnobChange

KEY = "placement.generators"


class Scaling(CrewSupervisor):
    """The part of the loop that keeps the number of generators as it was asked for."""

    #: Generators that were asked for; None: as many as there are.
    _wanted: int | None = None
    #: Generators in a row that were started to join and never got ready.
    _never_up = 0

    @abstractmethod
    def _submit_groups(self, groups: Iterable[PendingGroup]) -> None: ...

    def _rescale(self) -> None:
        asked = self.store.take_generator_request()
        if asked is not None:
            self._accept_scale_request(asked)
        if self._wanted is None or not self._trainer_ready or self._stop is not None:
            return
        joining = self._joining()
        missing = self._wanted - len(self.dispatcher) - len(joining)
        for _ in range(missing):
            self.listener.say(f"{self.crew.add_generator().name} is being started")
        for _ in range(-missing):
            if joining:  # it holds nothing yet
                self.crew.remove_generator(joining.pop())
            else:
                # The one that joined last.
                self._dismiss_generator(self.dispatcher.staying[-1])
        self._drop_late_joiners()

    def _accept_scale_request(self, asked: int) -> None:
        now = self._wanted or len(self.dispatcher)
        try:
            if self.deterministic:
                raise InputError("placement.deterministic=true does not allow the number to change")
            recipe = self.recipe.replace({KEY: asked})
        except InputError as error:
            self._warn([f"the request for {asked} generators is refused: {error}"])
            return
        if asked == now:
            return
        self._wanted, self._never_up = asked, 0
        self.recipe = recipe
        branches.write_recipe(self.store, recipe)
        change = KnobChange(KEY, str(now), str(asked), False)
        self._note("scale", f"{KEY} {now} → {asked}", changes=(change,))

    def _joining(self) -> list[Handle]:
        """Generators that were started to join and are not ready yet."""
        return [g for g in self.crew.generators if g.name not in self.dispatcher.states]

    def _drop_late_joiners(self) -> None:
        for handle in self._joining():
            if handle.silence > max(self.patience, START_SECONDS):
                self._on_worker_lost(handle, f"did not start within {handle.silence:.0f} s")

    def _on_join_failed(self, worker: Handle) -> None:
        """A generator was lost before it joined: try again, up to MAX_DEATHS times."""
        self._never_up += 1
        self.crew.remove_generator(worker)
        if self._never_up >= MAX_DEATHS:
            self._wanted = len(self.dispatcher) + len(self._joining())
            self._warn([f"{worker.name} never started: the run goes on with {self._wanted} "
                        "generators; is there room for another?"])  # fmt: skip

    def _dismiss_generator(self, state: GeneratorState) -> None:
        self.dispatcher.ask_to_leave(state)
        if state.starting:  # it cannot answer
            self._on_generator_left(state)

    def _on_generator_left(self, state: GeneratorState) -> None:
        """A generator has sent its last report, or died: what it still held goes to the others."""
        name = state.handle.name
        del self.dispatcher.states[name]
        self.ledger.generator_left(name)
        self.crew.remove_generator(state.handle)
        self.listener.say(f"{name} has left; {self._reassign(state)} groups are given to others")

    def _reassign(self, state: GeneratorState) -> int:
        """Let the other generators write what this one holds, from its beginning; the number of
        groups."""
        name = state.handle.name
        back = [p for p in self.pending.values() if p.stage == "writing" and p.generator == name]
        asked = state.requests("validate")
        state.held.clear()
        self._submit_groups(back)
        for p in back:
            p.restart_at(self.dispatcher.states[p.generator].version)
        planned = dict.fromkeys(self.dispatcher.states, 0)
        for request in asked:
            chosen = self.dispatcher.choose(planned)
            self.dispatcher.assign(chosen, [request], "validate", self.version)
        return len(back)
