"""Talking to the crew: everybody is listened to, whoever is waited for; who is gone or has been
silent for too long is replaced, or named."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from scalerl.errors import InputError, PipelineError
from scalerl.pipeline import messages as m
from scalerl.pipeline.checks import Checks, Judged
from scalerl.pipeline.crew import Clock, Crew, Gone, Handle, Lost, number
from scalerl.pipeline.dispatch import Dispatcher, GeneratorState
from scalerl.pipeline.groups import PendingGroup
from scalerl.pipeline.ledger import Ledger
from scalerl.pipeline.memory import less_memory
from scalerl.pipeline.plan import Plan
from scalerl.runs.lines import EventKind, EventLine, Status
from scalerl.runs.listener import Listener
from scalerl.runs.store import RunStore

#: A part that dies so often without having done anything in between is not started again.
MAX_DEATHS = 5
#: Seconds between two looks at who is silent, and between two status files.
WATCH = 1.0
#: Seconds a part may take to start, however short the patience with those that work.
START = 300.0


class Stopped(Exception):
    """Somebody asked the run to end; the reason is its text."""


class Conversation(ABC):
    """The part of the loop that sends, listens and watches; what to do is the loop's affair."""

    def __init__(
        self, plan: Plan, crew: Crew, clock: Clock, store: RunStore, listener: Listener
    ) -> None:
        self.plan, self.crew, self.clock = plan, crew, clock
        #: The plan's, but for the number of generators, which may change.
        self.recipe = plan.recipe
        self.store, self.listener = store, listener
        where = plan.recipe.placement
        self.patience, self.deterministic = where.patience, where.deterministic
        self.version = 0
        self.pending: dict[int, PendingGroup] = {}
        self.dispatcher = Dispatcher(crew.generators, clock, deterministic=where.deterministic)
        self.checks = Checks(plan.task, crew.checkers, where.checkers, where.check_seconds, clock)
        self.ledger = Ledger(
            clock, plan.parameters, len(crew.generators), where.trainers,
            plan.recipe.compute.count_validation,
        )  # fmt: skip
        #: Since when the trainer has had something to do; None while it has not.
        self.trainer_since: float | None = None
        self._trainer_ready = False
        self._answer: m.Done | None = None
        self._stop: str | None = None
        #: Lines worth a warning, from outside; adding one is safe in a signal handler.
        self.notes: list[str] = []
        self._looked = clock.now()
        self._checker_deaths = 0
        self._handlers: dict[type, Callable[[Handle, Any], None]] = {
            m.Ready: self._ready,
            m.Failed: self._failed,
            m.Done: self._answered,
            m.Report: self._heard,
            m.Verdicts: self._checked,
            m.Stepped: self._stepped,
            m.Refused: self._refused,
        }

    # -- what the loop makes of it ----------------------------------------------------------------

    @abstractmethod
    def _heard(self, who: Handle, report: m.Report) -> None: ...

    @abstractmethod
    def _stepped(self, who: Handle, message: m.Stepped) -> None: ...

    @abstractmethod
    def _refused(self, who: Handle, message: m.Refused) -> None: ...

    @abstractmethod
    def _judged(self, judged: Judged) -> None: ...

    @abstractmethod
    def _start_groups(self) -> None: ...

    @abstractmethod
    def _rescale(self) -> None: ...

    @abstractmethod
    def _give_to_others(self, state: GeneratorState) -> int: ...

    @abstractmethod
    def _has_left(self, state: GeneratorState) -> None: ...

    @abstractmethod
    def _never_joined(self, who: Handle) -> None: ...

    # -- listening --------------------------------------------------------------------------------

    def stop(self, reason: str) -> None:
        """Ask the run to end at the next opportunity; safe in a signal handler."""
        self._stop = reason

    def _take_in(self, waits_for: str) -> None:
        """Begin what can be begun meanwhile, then hear what anybody has to say."""
        self._start_groups()
        for event in self.crew.poll(WATCH):
            if not self._present(event.who):  # what came before in this very list has ended it
                continue
            if isinstance(event, Gone):
                self._lost(event.who, event.why)
                continue
            handler = self._handlers.get(type(event.message))
            if handler is None:
                kind = type(event.message).__name__
                raise PipelineError(f"{event.who.name} said {kind!r}, which nobody understands")
            handler(event.who, event.message)
        self._pass_on_notes()
        self._look_around(waits_for)

    def _present(self, who: Handle) -> bool:
        crew = self.crew
        return any(who is part for part in (crew.trainer, *crew.generators, *crew.checkers))

    def _tell_trainer(self, message: Any) -> None:
        self.trainer_since = self.clock.now()
        self.crew.trainer.send(message)

    def _ask_trainer(self, message: Any, what: str) -> m.Done:
        """Something that the trainer, which is idle, answers when it is done."""
        self._answer = None
        self._tell_trainer(message)
        while self._answer is None:
            self._take_in(f"the trainer {what}")
        return self._answer

    def _answered(self, who: Handle, message: m.Done) -> None:
        self._answer, self.trainer_since = message, None

    def _checked(self, who: Handle, message: m.Verdicts) -> None:
        self.ledger.worked("check", message.seconds)
        if message.job is not None:
            self._checker_deaths = 0
        for judged in self.checks.heard(who, message):
            self._judged(judged)

    # -- who is there -----------------------------------------------------------------------------

    def _await_crew(self) -> None:
        """Until the trainer and all generators are up."""
        while True:
            waiting = [s.handle.name for s in self.dispatcher if s.starting]
            waiting += [] if self._trainer_ready else [self.crew.trainer.name]
            if not waiting:
                break
            if self._stop is not None:
                raise Stopped(self._stop)
            names = ", ".join(sorted(waiting))
            self._take_in(f"{names} to start")
            if not self._trainer_ready and self.crew.trainer.silence > max(self.patience, START):
                raise Lost(f"{names} did not start: is the machine short of memory?")
        self.dispatcher.all_at(self.version)

    def _ready(self, who: Handle, message: m.Ready) -> None:
        if any(who is checker for checker in self.crew.checkers):
            self.checks.ready(who)
            return
        self.ledger.placed(who.name, message.device)
        if who is self.crew.trainer:
            self.version, self._trainer_ready = message.version, True
        else:
            self._generator_ready(who, message.version)

    def _generator_ready(self, who: Handle, version: int) -> None:
        """It is given what its predecessor held, if there was one; or it joins the others."""
        if who.name not in self.dispatcher.states:
            self.ledger.joined()
            self.listener.say(f"{who.name} has joined")
        state = self.dispatcher.ready(who, version)
        for p in self.pending.values():
            if p.stage == "writing" and p.generator == who.name:
                p.started_again(version)
        for lane in ("train", "validate"):
            self.dispatcher.hand(state, state.requests(lane), lane, self.version)

    def _failed(self, who: Handle, message: m.Failed) -> None:
        if message.bad_input:
            raise InputError(message.reason)
        if message.no_memory:
            raise PipelineError(
                f"{who.name} ran out of memory ({message.reason}): {less_memory(who.name)}, then "
                "--resume"
            )
        raise PipelineError(f"{who.name}: {message.reason}")

    def _lost(self, who: Handle, why: str) -> None:
        """A new part for one that is gone. What that one held is asked again: of the others, or, if
        there is nobody else, of the new one. A trainer cannot be replaced here, nor, in a
        deterministic run, a generator."""
        if any(who is checker for checker in self.crew.checkers):
            self._lost_checker(who, why)
            return
        lost = Lost(f"{who.name} {why}", trainer=who is self.crew.trainer)
        if who is self.crew.trainer or self.deterministic:
            raise lost
        state = self.dispatcher.states.get(who.name)
        self._note("lost", str(lost))
        if state is None:
            self._never_joined(who)
            return
        begun = sum(lane == "train" for _, lane in state.held.values())
        if state.leaving:
            self.ledger.waste("failed", begun, 0)
            self._has_left(state)
            return
        state.deaths += 1
        if state.deaths > MAX_DEATHS:
            raise PipelineError(
                f"{lost}; it was started {MAX_DEATHS} times and never finished a rollout; if "
                f"memory has run out: {less_memory(who.name)}, then --resume"
            )
        self.ledger.waste("failed", begun, 0)  # what it had written of them, nobody knows
        self.listener.say(f"warning: {lost}: starting another one")
        state.starting, state.behind_since, state.stuck_since = True, None, None
        state.handle = self.crew.replace(who)
        if any(not s.starting for s in self.dispatcher.staying):
            self._give_to_others(state)  # the next one may be minutes in starting

    def _lost_checker(self, who: Handle, why: str) -> None:
        self._checker_deaths += 1
        self._note("checker", f"{who.name} {why}: replaced")
        if self._checker_deaths > MAX_DEATHS * max(len(self.crew.checkers), 1):
            raise PipelineError(
                f"{who.name} {why}; checkers were started {self._checker_deaths - 1} times and "
                "never judged an answer: look at the task's verifier, then --resume"
            )
        for judged in self.checks.lost(who, self.crew.replace(who), why):
            self._judged(judged)

    def _look_around(self, waits_for: str) -> None:
        """Replace who has been silent for too long; leave a status for `scalerl doctor`."""
        now = self.clock.now()
        if now - self._looked < WATCH:
            return
        away, self._looked = now - self._looked, now
        if away > 3 * WATCH + self.patience / 10:
            self._forgive(away)  # we stood still ourselves (Ctrl-Z, a slow disk)
        else:
            self._find_the_silent(waits_for)
        self._rescale()
        self._write_status(waits_for)

    def _find_the_silent(self, waits_for: str) -> None:
        trainer = self.crew.trainer
        if self.trainer_since is not None:
            silence = min(trainer.silence, self.clock.now() - self.trainer_since)
            if silence > self.patience:
                self._lost(trainer, self._silent(silence, waits_for))
        for state in list(self.dispatcher):
            silence = max(state.handle.silence, self.dispatcher.behind(state))
            if silence > (max(self.patience, START) if state.starting else self.patience):
                self._lost(state.handle, self._silent(silence, waits_for))
            elif (stuck := self.dispatcher.stuck(state)) > self.patience:
                many = f"{len(state.held)} rollouts" if len(state.held) > 1 else "one rollout"
                self._lost(state.handle, f"holds {many} and has written nothing for {stuck:.0f} s")
        for checker, why in self.checks.replaceable(self.patience, max(self.patience, START)):
            self._lost(checker, why)

    def _silent(self, seconds: float, waits_for: str) -> str:
        return f"has said nothing for {seconds:.0f} s (the run waits for {waits_for})"

    def _forgive(self, seconds: float) -> None:
        """Nobody could be heard for so long: it is not held against them."""
        if self.trainer_since is not None:
            self.trainer_since += seconds
        for state in self.dispatcher:
            if state.behind_since is not None:
                state.behind_since += seconds
            if state.stuck_since is not None:
                state.stuck_since += seconds
        self.checks.forgive(seconds)

    def _write_status(self, waits_for: str) -> None:
        parts = [self.crew.trainer, *self.crew.generators, *self.crew.checkers]
        stages = [p.stage for p in self.pending.values()]
        self.store.status(
            Status(
                step=self.version,
                waits_for=waits_for,
                pids=self.crew.describe(),
                silent_seconds={p.name: round(p.silence, 1) for p in parts},
                starting=tuple(number(s.handle) for s in self.dispatcher if s.starting),
                stopping=self._stop is not None,
                rollouts=tuple(s.rollouts for s in self.dispatcher),
                under_way=len(stages),
                writing=stages.count("writing"),
                checking=stages.count("checking"),
            )
        )

    # -- the record -------------------------------------------------------------------------------

    def _pass_on_notes(self) -> None:
        for line in self.checks.notes:
            self.listener.say(f"warning: {line}")
            self._note("checker", line)
        self.checks.notes.clear()
        while self.notes:
            self._warn([self.notes.pop(0)])

    def _warn(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.listener.say(f"warning: {line}")
            self._note("warning", line)

    def _note(self, event: EventKind, why: str, **more: Any) -> None:
        line = EventLine(step=self.version, event=event, why=why, **more)
        self.store.append(line)
        self.listener.noted(line)
