"""The whole crew in one process, on a virtual clock: deterministic, and as fast as Python runs.

The loop, the protocols and the workers are the real ones; only time is simulated (`World`). Engines
and trainers may be real, and then really write and learn, or simulated (`placement.engine =
"simulated"`), and then only take time. The clock stands still while Python works, and jumps to the
next entry of the agenda when the loop waits.
"""

from __future__ import annotations

import heapq
import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from scalerl.errors import InputError, PipelineError
from scalerl.pipeline import messages as m
from scalerl.pipeline.crew import MessageReceived, WorkerLost
from scalerl.pipeline.setup import RunSetup
from scalerl.placement.base_crew import BaseCrew, checker_names
from scalerl.placement.connection import SessionFilter
from scalerl.placement.generator_worker import HEARTBEAT_SECONDS, GeneratorWorker
from scalerl.placement.inline_environments import InlineEnvironments, fault_of
from scalerl.placement.specs import Specs
from scalerl.placement.trainer_worker import TrainerWorker
from scalerl.placement.world import Duration, Fault, World
from scalerl.tasks.task import AnswerScore, seed_from

W = TypeVar("W", bound="InlineWorker")


class VirtualClock:
    """A clock that only the agenda moves."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time


class InlineWorker(ABC):
    """A worker and its handle. Messages keep their order in each direction."""

    def __init__(self, name: str, crew: InlineCrew) -> None:
        self.name = name
        self.crew = crew
        self.alive = True
        #: Whether it was replaced or removed: no further event is about it.
        self.gone = False
        self.frozen_since = self.frozen_until = 0.0
        self.delay = 0.0
        self.losing = {"to": 0, "from": 0}
        self._last = {"to": 0.0, "from": 0.0}
        self.session = SessionFilter()
        self._last_heard = crew.clock.now()

    @property
    def silence(self) -> float:
        return self.crew.clock.now() - self._last_heard

    def send(self, message: Any) -> None:
        self._travel("to", lambda: self._deliver(message))

    def send_to_loop(self, message: Any) -> None:
        """Send a message to the loop."""
        self._travel("from", lambda: self._arrive(message))

    def _travel(self, way: str, arrive: Callable[[], None]) -> None:
        if self.losing[way]:
            self.losing[way] -= 1
            return
        crew = self.crew
        at = crew.clock.now() + crew.draw(crew.world.message) + self.delay
        self._last[way] = max(self._last[way], at)
        crew.at(self._last[way], arrive)

    def _arrive(self, message: Any) -> None:
        for current in self.session.current([message]):
            self._last_heard = self.crew.clock.now()
            self.crew.inbox.append(MessageReceived(self, current))

    def _deliver(self, message: Any) -> None:
        if self.alive:
            self._when_thawed(lambda: self.take(message))

    def _when_thawed(self, do: Callable[[], None]) -> None:
        def thawed() -> None:
            if self.alive:
                do()

        if self.frozen_until > self.crew.clock.now():
            self.crew.at(self.frozen_until, thawed)
        else:
            do()

    @abstractmethod
    def start(self) -> None:
        """Send `WorkerReady`, now or as soon as it can."""

    @abstractmethod
    def take(self, message: Any) -> None:
        """Handle a message of the loop."""

    def wake(self) -> None:  # noqa: B027 - most workers watch nothing
        """Look for changes from outside, such as new weights."""

    def kill(self) -> None:
        self.alive, self.gone = False, True

    def die(self, why: str) -> None:
        if self.alive:
            self.alive = False
            crew = self.crew
            crew.after(crew.world.notice, lambda: crew.inbox.append(WorkerLost(self, why)))


class InlineGenerator(InlineWorker):
    """A generator: each turn takes as long as a decode step."""

    def __init__(self, name: str, crew: InlineCrew) -> None:
        super().__init__(name, crew)
        specs, deterministic = crew.specs, crew.setup.recipe.placement.deterministic
        self.worker = GeneratorWorker(
            specs.make_engine(specs.engine), specs.channel.receiver(), crew.clock.now,
            deterministic=deterministic, spec=specs.engine,
        )  # fmt: skip
        self.up = self._turning = False
        self._beat = self._session = 0

    def start(self) -> None:
        ready = self.worker.start()
        if ready is None:  # no weights yet
            self.crew.after(self.crew.world.notice, lambda: self._when_thawed(self.start))
            return
        self.up = True
        self.send_to_loop(replace(ready, session=self._session))
        self.wake()

    def start_session(self) -> None:
        """Start another session: another trainer takes over."""
        self._last_heard = self.crew.clock.now()
        self.send(m.SwitchTrainer(self.crew.specs.channel, self.session.start()))

    def take(self, message: Any) -> None:
        if isinstance(message, m.SwitchTrainer):
            self.worker.reset(message.channel.receiver())
            self._session, self.up = message.session, False
            self.start()
            return
        self.worker.take(message)
        self.wake()

    def wake(self) -> None:
        """Begin a turn, unless one is under way."""
        if not self.up or self._turning or not self.alive:
            return
        self._turning, began, crew = True, self.crew.clock.now(), self.crew
        crew.after(crew.world.decode, lambda: self._when_thawed(lambda: self._turn(began)))

    def forget(self) -> None:
        """Lose all requests without reporting it (fault `forget`)."""
        self.worker.engine.abort(list(self.worker.unfinished))

    def _turn(self, began: float) -> None:
        self._turning = False
        if not self.alive or not self.up:
            return
        for report in self.worker.work(began):
            self.send_to_loop(report)
        if self.worker.busy:
            self.wake()
        else:
            self._beat += 1
            beat = self._beat
            self.crew.at(self.crew.clock.now() + HEARTBEAT_SECONDS, lambda: self._heartbeat(beat))

    def _heartbeat(self, beat: int) -> None:
        if beat == self._beat:
            self.wake()


class InlineTrainer(InlineWorker):
    """A trainer: handles one message after the other."""

    def __init__(self, name: str, crew: InlineCrew) -> None:
        super().__init__(name, crew)
        specs = crew.specs
        self.worker = TrainerWorker(
            specs.make_trainer(specs.trainer), specs.channel.sender(), crew.clock.now,
            specs.trainer.adapter,
        )  # fmt: skip

    def start(self) -> None:
        self.send_to_loop(self.worker.start())

    def take(self, message: Any) -> None:
        began, world = self.crew.clock.now(), self.crew.world
        takes = world.train if isinstance(message, m.TrainStep) else world.other
        self.crew.after(takes, lambda: self._when_thawed(lambda: self._answer(message, began)))

    def _answer(self, message: Any, began: float) -> None:
        if not self.alive:
            return
        self.send_to_loop(self.worker.answer(message, began))
        for generator in self.crew.generators:
            generator.wake()


class InlineChecker(InlineWorker):
    """An environment worker: many calls at once, of which some hang or crash. Environments are real
    objects; what they wait for in real time takes none here."""

    def __init__(self, name: str, crew: InlineCrew) -> None:
        super().__init__(name, crew)
        self.task = crew.setup.task
        self.hung = 0
        self._up = False
        self._free = [0.0] * crew.places
        self._environments = InlineEnvironments(
            self.task, crew.setup.recipe.placement.check_seconds, crew.world
        )

    @property
    def silence(self) -> float:
        # The heartbeats of a checker process are computed here, not sent: each would cost a turn of
        # the loop, and would be the next message that a fault `lose` takes.
        if not self._up:
            return super().silence
        now = self.crew.clock.now()
        return now - self.frozen_since if now < self.frozen_until else 0.0

    def start(self) -> None:
        self._up = True
        self.send_to_loop(m.WorkerReady())

    def take(self, message: Any) -> None:
        if isinstance(message, m.ScoreAnswers):
            self._score(message)
        elif isinstance(message, m.CloseEpisodes):
            self._environments.close(message.episodes)
        elif isinstance(message, m.CallEnvironment):
            self._act(message)
        elif not isinstance(message, m.StopWorker):
            raise PipelineError(f"a checker does not understand {type(message).__name__!r}")

    def kill(self) -> None:
        super().kill()
        self._environments.stop()

    def _act(self, message: m.CallEnvironment) -> None:
        crew, call = self.crew, message.call
        fault = fault_of(crew.world, call)
        takes = sum(crew.draw(crew.world.act) for _ in range(_calls(message)))
        if fault == "crashes":
            crew.at(crew.clock.now() + takes, lambda: self.die("died: killed by signal 11"))
            return
        if fault == "hangs":
            takes = crew.setup.recipe.placement.check_seconds
            self._environments.close([call.episode])
            reply: m.EnvironmentReply | None = m.EnvironmentReply(
                call.episode, call.kind, None, problem="hung", gave_up=True, seconds=takes
            )
        else:
            reply = self._environments.call(message, takes)
        done = m.WorkDone(
            message.job, reply=reply, seconds=takes, hung=self.hung, live=len(self._environments)
        )
        crew.after(Duration(takes), lambda: self._when_thawed(lambda: self.send_to_loop(done)))

    def _score(self, message: m.ScoreAnswers) -> None:
        crew, now = self.crew, self.crew.clock.now()
        together = self.task.scores_together(message.answers[0].prompt)
        calls = [message.answers] if together else [(a,) for a in message.answers]
        scores: list[AnswerScore] = []
        ends, seconds = now, 0.0
        for call in calls:
            # Whether a check hangs or crashes follows from the answer alone, so that a second try
            # in another checker ends the same way.
            rng = random.Random(seed_from(crew.world.seed, [(a.prompt.id, a.text) for a in call]))
            begins = max(heapq.heappop(self._free), now)
            takes, found = self._check(call, rng.random())
            heapq.heappush(self._free, begins + takes)
            ends, seconds = max(ends, begins + takes), seconds + takes
            scores += found
        answer = m.WorkDone(
            message.job, tuple(scores), seconds=seconds, hung=self.hung,
            live=len(self._environments),
        )  # fmt: skip
        crew.at(ends, lambda: self._when_thawed(lambda: self.send_to_loop(answer)))

    def _check(self, call: tuple[Any, ...], draw: float) -> tuple[float, list[AnswerScore]]:
        crew, world = self.crew, self.crew.world
        if draw < world.hangs:
            self.hung += 1
            seconds = crew.setup.recipe.placement.check_seconds
            return seconds, [AnswerScore(None, None, "hung", gave_up=True)] * len(call)
        takes = crew.draw(world.check)
        if draw < world.hangs + world.crashes:
            crew.at(crew.clock.now() + takes, lambda: self.die("died: killed by signal 11"))
            return takes * 2, [AnswerScore.unscored("never sent")] * len(call)
        return takes, self.task.check_all(call)


def _calls(message: m.CallEnvironment) -> int:
    """Calls of an environment that a message takes, with those of a replay."""
    replayed = 0 if message.held is not None else 1 + len(message.call.history)
    return replayed + (message.call.kind != "reset")


class InlineCrew(BaseCrew):
    """A crew with an agenda of future events."""

    def __init__(
        self,
        setup: RunSetup,
        checkpoint: Path | None = None,
        world: World | None = None,
        clock: VirtualClock | None = None,
    ) -> None:
        self.setup = setup
        self.world = world or World()
        self.clock = clock or VirtualClock()
        self.specs = Specs.from_setup(setup, checkpoint, default_channel="direct")
        if self.specs.trainers != 1:
            raise InputError(
                f"placement.trainers={self.specs.trainers} needs several processes, and "
                "placement.backend=inline is one: set placement.trainers=1, or "
                "placement.backend=local"
            )
        self.rng = random.Random(f"world {self.world.seed}")
        self.inbox: list[MessageReceived | WorkerLost] = []
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        where = setup.recipe.placement
        # As on a machine with two cores: what happens must not depend on this one.
        checkers, self.places = checker_names(setup, cores=2)
        self.trainer: InlineTrainer = self._start(InlineTrainer("trainer", self))
        self.generators: list[InlineGenerator] = [
            self._start_generator(f"generator {i}") for i in range(where.generators)
        ]
        self.checkers: list[InlineChecker] = [
            self._start(InlineChecker(name, self)) for name in checkers
        ]
        for fault in self.world.faults:
            self.at(fault.at, partial(self._inject, fault))

    # -- time -------------------------------------------------------------------------------------

    def draw(self, duration: Duration) -> float:
        return duration.draw(self.rng)

    def at(self, time: float, do: Callable[[], None]) -> None:
        """Put a call on the agenda; calls at the same time run in the order of insertion."""
        self._order += 1
        heapq.heappush(self._agenda, (max(time, self.clock.time), self._order, do))

    def after(self, duration: Duration, do: Callable[[], None]) -> None:
        self.at(self.clock.time + self.draw(duration), do)

    # -- crew -------------------------------------------------------------------------------------

    def poll(self, seconds: float) -> list[MessageReceived | WorkerLost]:
        until = self.clock.time + seconds
        while not self.inbox and self._agenda and self._agenda[0][0] <= until:
            self.clock.time, _, do = heapq.heappop(self._agenda)
            do()
        if not self.inbox:
            self.clock.time = until
        found = [
            e for e in self.inbox if not (isinstance(e.worker, InlineWorker) and e.worker.gone)
        ]
        self.inbox.clear()
        return found

    def _restarted(self, worker: InlineWorker) -> InlineWorker:
        worker.kill()
        return self._start(type(worker)(worker.name, self))

    def _start_generator(self, name: str) -> InlineGenerator:
        return self._start(InlineGenerator(name, self))

    def restart_trainer(self, setup: RunSetup, checkpoint: Path | None) -> bool:
        for worker in (self.trainer, *self.checkers):
            worker.kill()
        self.inbox.clear()
        self.setup = setup
        self.specs = Specs.from_setup(setup, checkpoint, default_channel="direct")
        self.trainer = self._start(InlineTrainer("trainer", self))
        wanted = setup.recipe.placement.generators
        for extra in self.generators[wanted:]:
            self.remove_generator(extra)
        for generator in list(self.generators):
            if generator.alive:
                generator.start_session()
            else:
                self.replace(generator)
        while len(self.generators) < wanted:
            self.add_generator()
        self.checkers = [self._start(InlineChecker(c.name, self)) for c in self.checkers]
        return True

    def ask_for(self, generators: int) -> None:
        """Ask the run for so many generators (fault `scale`); for subclasses to pass on."""

    def stop(self, *, at_once: bool = False) -> None:
        self._agenda.clear()
        for checker in self.checkers:
            checker.kill()

    def pids(self) -> dict[str, int]:
        return {}

    def _start(self, worker: W) -> W:
        self.after(self.world.start, lambda: worker._when_thawed(worker.start))
        return worker

    def _inject(self, fault: Fault) -> None:
        if fault.kind == "scale":
            self.ask_for(fault.generators)
            return
        workers: list[InlineWorker] = [self.trainer, *self.generators, *self.checkers]
        for worker in workers:
            if worker.name != fault.worker:
                continue
            if fault.kind == "kill":
                worker.die("died: killed by signal 9")
            elif fault.kind == "freeze":
                worker.frozen_since = self.clock.time
                worker.frozen_until = self.clock.time + fault.seconds
            elif fault.kind == "late":
                worker.delay = fault.seconds
            elif fault.kind == "forget":
                if isinstance(worker, InlineGenerator):  # others hold no requests
                    worker.forget()
            else:
                worker.losing["to" if fault.kind == "lose-to" else "from"] += 1
