"""Generators that come and go while a run goes on.

Somebody asks (`scalerl scale RUN --generators N`); the loop finds it when it looks around, records
it, and from then on sees to it that there are so many:

    joins    a generator is started and pulls the newest weights by itself; once it says that it is
             up, it is given groups like the others
    leaves   it is asked nothing more and told to go; its last report says what it had finished.
             What it still held is asked of the others from its beginning, under the same serial
             numbers and seeds: nothing is lost or doubled

One that dies on its way out has left all the same. The recipe of the run is changed with it: who
goes on with the run later has as many.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable

from scalerl.errors import InputError
from scalerl.pipeline import branches
from scalerl.pipeline.crew import Handle
from scalerl.pipeline.dispatch import GeneratorState
from scalerl.pipeline.groups import PendingGroup
from scalerl.pipeline.supervisor import MAX_DEATHS, START, CrewSupervisor
from scalerl.runs.lines import KnobChange

KEY = "placement.generators"


class Scaling(CrewSupervisor):
    """The part of the loop that sees to the number of generators."""

    #: As many as were asked for; None: as many as there are.
    _wanted: int | None = None
    #: Generators in a row that were started to join and never came up.
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
                self._dismiss_generator(self.dispatcher.staying[-1])
        self._drop_late_joiners()

    def _accept_scale_request(self, asked: int) -> None:
        now = self._wanted or len(self.dispatcher)
        try:
            if self.deterministic:
                raise InputError("placement.deterministic keeps its generators")
            recipe = self.recipe.replace({KEY: asked})
        except InputError as error:
            self._warn([f"{asked} generators were asked for: {error}"])
            return
        if asked == now:
            return
        self._wanted, self._never_up = asked, 0
        self.recipe = recipe
        branches.write_recipe(self.store, recipe)
        change = KnobChange(KEY, str(now), str(asked), False)
        self._note("scale", f"{KEY} {now} → {asked}", changes=(change,))

    def _joining(self) -> list[Handle]:
        """Started, and not up yet for the first time."""
        return [g for g in self.crew.generators if g.name not in self.dispatcher.states]

    def _drop_late_joiners(self) -> None:
        for handle in self._joining():
            if handle.silence > max(self.patience, START):
                self._on_worker_lost(handle, f"did not start within {handle.silence:.0f} s")

    def _on_join_failed(self, worker: Handle) -> None:
        """One that was about to join is gone: another try, a few times."""
        self._never_up += 1
        self.crew.remove_generator(worker)
        if self._never_up >= MAX_DEATHS:
            self._wanted = len(self.dispatcher) + len(self._joining())
            self._warn([f"{worker.name} never came up: the run goes on with {self._wanted} "
                        "generators; is there room for another?"])  # fmt: skip

    def _dismiss_generator(self, state: GeneratorState) -> None:
        self.dispatcher.ask_to_leave(state)
        if state.starting:  # nobody is there to answer
            self._on_generator_left(state)

    def _on_generator_left(self, state: GeneratorState) -> None:
        """Its last report is in, or it died: what it still held goes to the others."""
        name = state.handle.name
        del self.dispatcher.states[name]
        self.ledger.generator_left(name)
        self.crew.remove_generator(state.handle)
        self.listener.say(f"{name} has left; {self._reassign(state)} groups are given to others")

    def _reassign(self, state: GeneratorState) -> int:
        """What a generator holds is written by the others, from its beginning: so many groups."""
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
