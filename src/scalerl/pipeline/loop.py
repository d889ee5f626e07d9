"""The loop: prompts out, rollouts in, batches to the trainer, weights back (paper section 3.11).

It is ignorant of what is behind its parts: generators take requests and give back what they wrote,
the trainer takes groups and gives back a version, a placement holds them. Both schedules run
through here. A generator that dies is replaced and what it held is asked again; without the trainer
the run goes back to its last checkpoint (`scalerl.training`).

In step (`placement.deterministic`) everything happens at fixed points: generators finish a fixed
share of rollouts while the trainer takes a step, then all wait for each other, and weights change.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scalerl.algorithm.curriculum import OutOfPrompts
from scalerl.algorithm.filters import informative
from scalerl.algorithm.rollout import Group
from scalerl.engine.interface import Request, Written
from scalerl.pipeline import gate
from scalerl.pipeline import groups as group_files
from scalerl.pipeline import messages as m
from scalerl.pipeline.alarms import Watch
from scalerl.pipeline.checking import Checker
from scalerl.pipeline.checkpoints import prune, write
from scalerl.pipeline.desk import Desk
from scalerl.pipeline.groups import UnderWay, finished_group
from scalerl.pipeline.ledger import Ledger
from scalerl.pipeline.placement import LocalPlacement, Lost, PipelineError, Worker
from scalerl.pipeline.plan import Plan
from scalerl.pipeline.records import step_record
from scalerl.pipeline.schedule import Ticket
from scalerl.pipeline.validation import Validation
from scalerl.runs.writer import RunWriter
from scalerl.tasks.task import seed_from

#: A generator that dies so often without finishing a rollout in between is not started again.
MAX_DEATHS = 5
#: Batches with a gradient that is not finite, in a row, after which the run is over.
MAX_REFUSALS = 3
#: Batches' worth of groups without variance, in a row, after which refilling is hopeless.
MAX_REFILL = 50
#: Part of a batch that is finished between two weight updates of a run in step. Less than a whole
#: one, so that rollouts are in flight when weights change, as in a run that is not kept in step.
IN_STEP_SHARE = 0.75
#: Seconds between two looks at who is silent, and between two status files.
WATCH = 1.0
#: Seconds a process may take to start, however short the patience with those that work.
START = 300.0
#: Prompts left out that are named one by one.
NAMED = 5


class Stopped(Exception):
    """Somebody asked the run to end; the reason is its text."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    reason: str
    steps: int
    compute: dict[str, float]


@dataclass(slots=True)
class Hooks:
    """What is told to the outside; each may be left alone."""

    #: With the groups of each batch, before it goes to the trainer.
    on_batch: Callable[[tuple[Group, ...]], None] = lambda groups: None
    #: After each optimiser step, with its record.
    on_step: Callable[[dict[str, Any]], None] = lambda record: None
    #: After each validation, with its record; a returned text ends the run for that reason.
    on_eval: Callable[[dict[str, Any]], str | None] = lambda record: None
    #: Anything worth a line.
    say: Callable[[str], None] = lambda line: None


class Loop:
    """One run. Use as a context manager: leaving it ends all processes."""

    def __init__(
        self, plan: Plan, writer: RunWriter, hooks: Hooks, *, checkpoint: Path | None = None
    ) -> None:
        self.plan = plan
        self.writer = writer
        self.hooks = hooks
        self.under_way: dict[int, UnderWay] = {}
        self.serial = 0
        self.version = 0
        self.published = 0
        self.training = False
        self.last_validation: int | None = None
        self.last_checkpoint: int | None = None
        self.validation = Validation(plan)
        length = plan.recipe.length
        self.watch = Watch(length.truncation_warn, length.truncation_critical)
        where = plan.recipe.placement
        self.patience = where.patience
        self.in_step = where.deterministic
        self.checker = Checker(plan.task, where.patience, hooks.say)
        self.ledger = Ledger(
            plan.parameters, where.generators, 1, plan.recipe.compute.count_validation
        )
        spec = plan.trainer
        if checkpoint is not None:
            self._restore(checkpoint)
            spec = replace(spec, checkpoint=str(checkpoint))
        self.placement = LocalPlacement(
            spec, plan.generator, where.generators, plan.layout, where.patience
        )
        self.desk = Desk(where.generators, in_step=self.in_step)
        self.started = False
        self.answers: list[Written] = []
        self._holding: set[int] = set()
        self._later: list[Any] = []
        self._stop: str | None = None
        self._refusals = 0
        self._refilled = 0
        self._left_out: set[str] = set()
        self._told = 0.0

    def __enter__(self) -> Loop:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.placement.stop(at_once=kind is KeyboardInterrupt or not self.started)
        self.plan.task.close()

    def stop(self, reason: str) -> None:
        """Ask the run to end at the next opportunity; safe in a signal handler."""
        self._stop = reason

    def run(self) -> Outcome:
        """Until the budget is used up, the prompts run out, or somebody says stop."""
        try:
            self._await_ready()
            self._check_mismatch()
            self._ask(self.under_way)
            self.ledger.validating(self.last_validation is None)
            self.ledger.start()
            self.started = True
            reason = self._run()
        except Stopped as stopped:
            reason = str(stopped)
        self.ledger.tick()
        return Outcome(reason, self.version, self.ledger.compute())

    def _run(self) -> str:
        reason = None
        if self.last_validation is None:
            reason = self.validate()
        turn = self._turn_in_step if self.in_step else self._turn
        while reason is None:
            if self._stop is not None and not self.training:
                raise Stopped(self._stop)
            reason = self._spent() or turn()
        if self.last_validation != self.version:
            self._publish()
            self.validate()
        return reason

    def _turn(self) -> str | None:
        """Start what may be started, train on what is ready, take in what has come."""
        out_of_prompts = self._start_groups()
        waits_for = "the trainer"
        if not self.training:
            if self._validation_due():
                return self.validate()
            if self._checkpoint_due():
                self.save()
            choice = self.plan.schedule.choose(self.version, self._tickets())
            waits_for = choice.waits_for or waits_for
            if choice.serials:
                self._train(choice.serials)
            elif out_of_prompts and not self._writing():
                return "every prompt has been retired"
        self._take_in(waits_for)
        return None

    def _turn_in_step(self) -> str | None:
        """The same with fixed points: all begin together, and all are waited for."""
        if self._validation_due():
            return self.validate()
        if self._checkpoint_due():
            while self._writing():  # what is in the generators' memory would be lost to a resume
                self._advance()
            self.save()
        choice = self.plan.schedule.choose(self.version, self._tickets())
        if choice.serials:
            self._train(choice.serials)
        out_of_prompts = self._start_groups()
        if out_of_prompts and not choice.serials and not self._writing():
            return "every prompt has been retired"
        self._advance()
        while self.training:
            self._take_in("the trainer")
        if self.plan.schedule.publishes(self.version):
            self._publish()
        return None

    def _advance(self) -> None:
        """Every generator finishes its share of rollouts, or all it has, with the same weights."""
        share = math.ceil(IN_STEP_SHARE * self.plan.recipe.batch.completions / len(self.desk))
        self._holding = {i for i, asked in enumerate(self.desk.asked) if asked}
        for i in self._holding:
            self.placement.generators[i].send(m.Advance(self.published, share))
        while self._holding:
            self._take_in(f"generators {sorted(self._holding)} to do their share")
        for message in self._later:
            self._handle(self.placement.trainer, message)
        self._later.clear()

    def _publish(self) -> None:
        """Hand over the present weights, if that has not been done."""
        if self.published != self.version:
            self._ask_trainer(m.Publish())
            self.published = self.version
            self.desk.all_at(self.version)

    def _spent(self) -> str | None:
        budget, compute = self.plan.recipe.budget, self.ledger.compute()
        if self.training:
            return None
        if budget.steps is not None and self.version >= budget.steps:
            return f"budget of {budget.steps} steps"
        if budget.gpu_hours is not None and compute["device_hours"] >= budget.gpu_hours:
            return f"budget of {budget.gpu_hours:g} device-hours"
        minutes = self.ledger.device_seconds / self.ledger.devices / 60.0
        if budget.minutes is not None and minutes >= budget.minutes:
            return f"budget of {budget.minutes:g} minutes"
        return None

    # -- writing ----------------------------------------------------------------------------------

    def _tickets(self) -> list[Ticket]:
        return [u.ticket(s) for s, u in self.under_way.items()]

    def _writing(self) -> int:
        return sum(u.writing for u in self.under_way.values())

    def _start_groups(self) -> bool:
        """Give generators new prompts, as many as the schedule allows; True if there are none."""
        # The batch that is being trained on has used up its version, and is no longer under way.
        version = self.version + self.training
        room = self.plan.schedule.room(version, self.desk.oldest, self._tickets())
        if self.plan.schedule.name == "pipeline":
            enough = self.plan.recipe.batch.prompts * len(self.desk)
            room = min(room, max(enough - self._writing(), 0))
        if room <= 0:
            return False
        try:
            ids = self.plan.curriculum.draw(room)
        except OutOfPrompts:
            return True
        new = {}
        for prompt_id in ids:
            prompt = self.plan.prompts[str(prompt_id)]
            if not self.plan.fits(prompt):
                self._leave_out(prompt.id)
                continue
            tokens = self.plan.tokens_of(prompt)
            new[self.serial] = UnderWay(prompt, tokens, self.desk.oldest, generator=0)
            self.serial += 1
        self.under_way |= new
        self._ask(new)
        return False

    def _leave_out(self, prompt_id: str) -> None:
        """A prompt that is empty or too long; without any other there is nothing to do."""
        new = prompt_id not in self._left_out
        self._left_out.add(prompt_id)
        if len(self._left_out) == len(self.plan.prompts):
            raise PipelineError(
                f"all {len(self._left_out)} training prompts are empty or longer than "
                f"{self.plan.recipe.sampling.max_prompt_tokens} tokens: "
                "raise sampling.max_prompt_tokens"
            )
        if new and len(self._left_out) <= NAMED:
            more = " (further ones are not named)" if len(self._left_out) == NAMED else ""
            self._warn([f"prompt {prompt_id} is left out: it is empty or too long{more}"])

    def _ask(self, groups: Mapping[int, UnderWay]) -> None:
        """Send the requests of these groups, as far as they are not written."""
        writing = {serial: u for serial, u in groups.items() if u.writing}
        for i, share in enumerate(self.desk.divide(writing, self._requests)):
            self._submit(i, share)

    def _requests(self, serial: int, u: UnderWay) -> list[Request]:
        seed = self.plan.recipe.seed
        return [
            Request(
                f"{serial}/{i}",
                tuple(u.token_ids.tolist()),
                self.plan.control,
                self.plan.sampling,
                seed_from(seed, "rollout", serial, i),
            )
            for i in range(self.plan.recipe.batch.generations)
            if i not in u.written
        ]

    def _submit(self, i: int, requests: Iterable[Request], *, validation: bool = False) -> None:
        new = self.desk.hand(i, requests)
        if new and i not in self.desk.starting:
            try:
                self.placement.generators[i].send(m.Submit(new, validation, self.version))
            except Lost as lost:
                self._revive(lost)

    def _take_in(self, waits_for: str) -> None:
        """Wait for a message from anybody, with a deadline that names who waits for whom."""
        while True:
            talking = self.placement.wait(WATCH)
            for worker in talking:
                try:
                    self._handle(worker, worker.receive())
                except Lost as lost:
                    self._revive(lost)
            self._look_around(waits_for)
            if talking or (self._stop is not None and not self.training):
                return

    def _look_around(self, waits_for: str) -> None:
        """Replace who has been silent for too long; leave a status for `scalerl doctor`."""
        now = time.monotonic()
        if now - self._told < WATCH:
            return
        # While this process stood still itself (Ctrl-Z, a slow disk), nobody listened.
        away, self._told = max(now - self._told - 2 * WATCH, 0.0), now
        for worker in self.placement.workers:
            worker.heard = min(worker.heard + away, now)
            if worker.silence > self._limit(worker):
                said = f"has said nothing for {worker.silence:.0f} s"
                self._revive(Lost(worker, f"{said} (the run waits for {waits_for})"))
        self.writer.status(
            {
                "step": self.version,
                "waits_for": waits_for,
                "pids": self.placement.pids(),
                "silent_seconds": {w.name: round(w.silence, 1) for w in self.placement.workers},
                "starting": sorted(self.desk.starting),
                "stopping": self._stop is not None,
                "rollouts": self.desk.rollouts,
                "under_way": len(self.under_way),
                "writing": self._writing(),
            }
        )

    def _limit(self, worker: Worker) -> float:
        """Seconds of silence after which a process is taken for dead."""
        if worker is self.placement.trainer:
            return self.patience if self.training else math.inf
        starting = self.placement.generators.index(worker) in self.desk.starting
        return max(self.patience, START) if starting else self.patience

    def _revive(self, lost: Lost) -> None:
        """A new generator for one that is gone: it is asked again for what the old one held. A
        trainer cannot be replaced here, and in step nothing can."""
        if lost.worker is self.placement.trainer or self.in_step:
            raise lost
        if lost.worker not in self.placement.generators:
            return  # an old one, replaced already
        i = self.placement.generators.index(lost.worker)
        self.desk.deaths[i] += 1
        self.writer.append("events", {"step": self.version, "event": "lost", "why": str(lost)})
        if self.desk.deaths[i] > MAX_DEATHS:
            raise PipelineError(
                f"{lost}; it was started {MAX_DEATHS} times and never finished a rollout: "
                "look at memory (a smaller batch, shorter answers), then --resume"
            )
        begun = len(self.desk.held(i, validation=False))
        self.ledger.waste("failed", begun, 0)  # what it had written of them, nobody knows
        self.hooks.say(f"warning: {lost}: starting another one")
        self.desk.starting.add(i)
        self.placement.restart(i)

    def _handle(self, worker: Worker, message: Any) -> None:
        if self._holding and worker is self.placement.trainer:
            self._later.append(message)  # in step, the trainer's news waits for the generators'
        elif isinstance(message, m.Stepped):
            self._stepped(message)
        elif isinstance(message, m.Refused):
            self._refused(message)
        elif isinstance(message, m.Finished):
            self._heard(self.placement.generators.index(worker), message)
        elif isinstance(message, m.Ready):
            self._ready_again(self.placement.generators.index(worker), message.version)

    def _ready_again(self, i: int, version: int) -> None:
        """A generator that was replaced is up: give it what its predecessor held."""
        self.desk.starting.discard(i)
        self.desk.versions[i] = version
        for u in self.under_way.values():
            if u.writing and u.generator == i:
                u.started_again(version)
        self._submit(i, self.desk.held(i, validation=False))
        self._submit(i, self.desk.held(i, validation=True), validation=True)

    def _heard(self, i: int, message: m.Finished) -> None:
        self.ledger.generated_tokens += message.tokens
        for kind, seconds in message.seconds.items():
            self.ledger.spent[kind] += seconds
        if message.held:
            self._holding.discard(i)
        for written in self.desk.heard(i, message):
            if message.validation:
                self.answers.append(written)
            else:
                self._finished(written)

    def _finished(self, written: Written) -> None:
        serial, i = (int(part) for part in written.id.split("/"))
        u = self.under_way[serial]
        u.written[i] = written
        if len(u.written) < self.plan.recipe.batch.generations:
            return
        u.group = finished_group(u, self.plan, self.checker)
        u.written = {}
        scored = [r for r in u.group.rollouts if r.correct is not None]
        right = sum(bool(r.correct) for r in scored)
        self.plan.curriculum.record(u.prompt.id, right, len(scored))
        if self.plan.recipe.filter.zero_variance == "refill":
            self._refill(serial, u.group)

    def _refill(self, serial: int, group: Group) -> None:
        """Dynamic sampling: a group without variance makes room for another prompt."""
        if informative(group, self.plan.recipe.filter.truncated):
            self._refilled = 0
            return
        del self.under_way[serial]
        self._refilled += 1
        self.ledger.samples += len(group.rollouts)
        self.ledger.waste("filtered", len(group.rollouts), sum(map(len, group.rollouts)))
        if self._refilled > MAX_REFILL * self.plan.recipe.batch.prompts:
            raise PipelineError(
                f"the last {self._refilled} groups were all right or all wrong: the task is too "
                'easy or too hard for the model; filter.zero_variance = "drop" would go on'
            )

    # -- training ---------------------------------------------------------------------------------

    def _train(self, serials: Sequence[int]) -> None:
        batch = []
        for serial in serials:
            group = self.under_way.pop(serial).group
            assert group is not None
            batch.append(group)
        self._batch = tuple(batch)
        self.hooks.on_batch(self._batch)
        publish = self.plan.schedule.publishes(self.version + 1) and not self.in_step
        self.placement.trainer.send(m.Step(self._batch, publish))
        self.placement.trainer.heard = time.monotonic()
        self.training = True

    def _stepped(self, message: m.Stepped) -> None:
        self.training = False
        self._refusals = 0
        self.version = message.version
        if self.plan.schedule.publishes(self.version) and not self.in_step:
            self.published = self.version
        rollouts = [r for g in self._batch for r in g.rollouts]
        self.ledger.steps = self.version
        self.ledger.samples += len(rollouts)
        self.ledger.trained_tokens += message.forward_tokens
        self.ledger.spent["train"] += message.seconds
        self.ledger.waste(
            "filtered",
            len(rollouts) - message.filtered["effective_rollouts"],
            sum(map(len, rollouts)) - message.kept_tokens,
        )
        record = step_record(message, self._batch) | {
            "retired": self.plan.curriculum.retired,
            "compute": self.ledger.compute(),
            "ledger": self.ledger.to_dict(),
        }
        self.writer.append("steps", record)
        self.hooks.on_step(record)
        self._warn([*message.notes, *self.watch.step(record)])

    def _refused(self, message: m.Refused) -> None:
        """The trainer did not learn from a batch. Once is bad luck; in a row, it is the end."""
        self.training = False
        self._refusals += 1
        rollouts = [r for g in self._batch for r in g.rollouts]
        self.ledger.spent["train"] += message.seconds
        self.ledger.samples += len(rollouts)
        self.ledger.waste("failed", len(rollouts), sum(map(len, rollouts)))
        event = {"step": self.version, "event": "refused", "why": message.reason,
                 "prompts": [g.prompt_id for g in self._batch]}  # fmt: skip
        self.writer.append("events", event)
        if self._refusals >= MAX_REFUSALS:
            raise PipelineError(
                f"{message.reason}; {self._refusals} batches in a row: lower optimiser.lr or "
                "optimiser.grad_clip and go on from an earlier checkpoint"
            )
        self.hooks.say(f"warning: {message.reason}; the batch is left out")

    def _warn(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.hooks.say(f"warning: {line}")
            self.writer.append("events", {"step": self.version, "event": "warning", "why": line})

    # -- validation -------------------------------------------------------------------------------

    def _validation_due(self) -> bool:
        """A validation is due, and the generators have (or may be given) this very version."""
        if self.last_validation == self.version or self.published != self.version:
            return False
        return self.version - (self.last_validation or 0) >= self.plan.recipe.validation.every

    def validate(self) -> str | None:
        """mean@k on the held-out prompts at the present version. Training rollouts stand still, and
        the trainer waits, so that one set of weights answers all."""
        self.ledger.validating(True)
        try:
            requests = self.validation.requests()
            share = len(self.desk)
            for i in range(share):
                self._submit(i, requests[i::share], validation=True)
            answers = self._collect(len(requests))
            scores = self.validation.score(answers, self.checker)
        finally:
            self.ledger.validating(False)
        record = {"step": self.version, "version": self.version, **scores}
        record |= {
            "compute": self.ledger.compute(),
            "validation_hours": self.ledger.validation_seconds / 3600.0,
        }
        self.last_validation = self.version
        self.writer.append("evals", record)
        reason = self.hooks.on_eval(record)
        self._warn(self.watch.evaluated(record))
        return reason

    def _collect(self, count: int) -> list[Written]:
        self.answers = []
        while len(self.answers) < count:
            if self._stop is not None:
                raise Stopped(self._stop)
            self._take_in(f"{count - len(self.answers)} answers of the validation")
        return self.answers

    # -- before and after -------------------------------------------------------------------------

    def _await_ready(self) -> None:
        start = time.monotonic()
        trainer = self.placement.trainer
        waiting = {w.name for w in self.placement.workers}
        while waiting:
            for worker in self.placement.wait(WATCH):
                try:
                    ready = worker.receive()
                except Lost as lost:
                    self._revive(lost)
                    waiting.add(worker.name)
                    continue
                waiting.discard(worker.name)
                if worker is trainer:
                    self.version = ready.version
            if self._stop is not None:
                raise Stopped(self._stop)
            names = ", ".join(sorted(waiting))
            self._look_around(f"{names} to start")
            if trainer.name in waiting and time.monotonic() - start > max(self.patience, START):
                raise PipelineError(f"{names} did not start: is the machine short of memory?")
        self.desk.starting.clear()
        self.desk.all_at(self.version)
        phase = 1 if self.plan.schedule.name == "pipeline" else self.plan.schedule.k
        self.published = self.version - self.version % phase

    def _check_mismatch(self) -> None:
        requests = gate.requests(self.plan)
        self._submit(0, requests, validation=True)
        group = gate.group(self.plan, self._collect(len(requests)))
        self.hooks.say(gate.verdict(self.plan, self._ask_trainer(m.Score((group,))).gaps))

    def _ask_trainer(self, message: Any) -> m.Done:
        """Something that the trainer, which is idle, answers when it is done."""
        trainer = self.placement.trainer
        trainer.send(message)
        if not trainer.conn.poll(self.patience):
            what = type(message).__name__.lower()
            raise Lost(trainer, f"did not answer '{what}' in {self.patience:.0f} s")
        answer = trainer.receive()
        assert isinstance(answer, m.Done)
        return answer

    def _checkpoint_due(self) -> bool:
        every = self.plan.recipe.checkpoint.every
        return self.version > 0 and self.version % every == 0 and (
            self.last_checkpoint != self.version
        )  # fmt: skip

    def save(self) -> Path:
        """A checkpoint of everything the run needs to go on from here."""
        while self.training:
            self._take_in("the trainer")
        path = write(self.writer.path, self.version, self._fill, healthy=self.watch.healthy)
        self.last_checkpoint = self.version
        prune(self.writer.path, self.plan.recipe.checkpoint.keep)
        return path

    def _fill(self, folder: Path) -> None:
        problem = self._ask_trainer(m.Save(str(folder))).problem
        if problem is not None:
            raise OSError(problem)
        group_files.save(folder, self.under_way)
        state = {
            "version": self.version,
            "serial": self.serial,
            "last_validation": self.last_validation,
            "curriculum": self.plan.curriculum.state_dict(),
            "ledger": self.ledger.to_dict(),
        }
        (folder / "run.json").write_text(json.dumps(state))
        self.plan.tokenizer.save_pretrained(folder)

    def _restore(self, path: Path) -> None:
        state = json.loads((path / "run.json").read_text())
        self.version = self.last_checkpoint = int(state["version"])
        self.serial = int(state["serial"])
        self.last_validation = state["last_validation"]
        self.plan.curriculum.load_state_dict(state["curriculum"])
        self.ledger.restore(state["ledger"])
        self.under_way = group_files.load(path, self.plan.prompts, self.plan.tokens_of)
        for u in self.under_way.values():
            if u.writing:  # begun anew, with the weights of the checkpoint
                u.started = self.version
