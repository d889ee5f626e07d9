"""The loop: prompts out, rollouts in, batches to the trainer, weights back (paper, Figure 4).

                     prompts                 answers                  groups
    curriculum ──────────────► generators ──────────► checkers ──────────────► trainer
        ▲                          ▲                      │                       │
        └────── pass rates ────────┼──────────────────────┘                       │
                                   └───────────── weights, version + 1 ◄──────────┘

What limits each stage:

    generators   get new prompts while the schedule has room (`Schedule.room`)
    checkers     score as soon as answers are written; a group is finished once it is scored
    trainer      takes a batch when the schedule has one (`Schedule.choose`), and waits otherwise
    validation   and checkpoints wait for the trainer; training rollouts are paused meanwhile

The loop is given a crew and a clock and starts no process itself. Before every wait it starts all
work that may start, and during every wait it handles the messages of all workers. A generator or
checker that is lost is replaced, and its requests are submitted again; without the trainer the run
goes back to its last checkpoint (`scalerl.training`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalerl.algorithm.curriculum import OutOfPrompts
from scalerl.algorithm.filters import informative
from scalerl.algorithm.rollout import Group, Rollout
from scalerl.engine.interface import RolloutResult
from scalerl.errors import PipelineError
from scalerl.pipeline import checkpoints, logprob_check, state
from scalerl.pipeline import messages as m
from scalerl.pipeline.alarms import Alarms, EmptyStepWatch
from scalerl.pipeline.crew import Clock, Crew, Handle
from scalerl.pipeline.environment_pool import ScoredAnswers, UnscoredReasons
from scalerl.pipeline.groups import CheckSummary, PendingGroup
from scalerl.pipeline.scaling import Scaling
from scalerl.pipeline.schedule import GroupAge, NextBatch
from scalerl.pipeline.setup import RunSetup
from scalerl.pipeline.step_line import step_line
from scalerl.pipeline.supervisor import WATCH_SECONDS, Stopped
from scalerl.pipeline.validation import Validation
from scalerl.runs.compute import Compute, budget_use
from scalerl.runs.lines import EvalLine
from scalerl.runs.listener import Listener
from scalerl.runs.store import RunStore

#: Batches in a row with a gradient that is not finite, after which the run fails. One may be bad
#: luck; in a row, the weights themselves are going wrong.
MAX_REFUSALS = 3
#: Groups without variance in a row, counted in batches, after which the run fails.
MAX_REFILL = 50
#: Prompts left out that get a warning each.
MAX_NAMED_PROMPTS = 5


@dataclass(frozen=True, slots=True)
class LoopEnd:
    """How a loop ended."""

    reason: str
    steps: int
    compute: Compute


class Loop(Scaling):
    """One run, until its budget is used up, its prompts run out, or it is asked to stop."""

    def __init__(
        self,
        setup: RunSetup,
        crew: Crew,
        clock: Clock,
        store: RunStore,
        listener: Listener,
        *,
        checkpoint: Path | None = None,
        stop_rule: Callable[[EvalLine], str | None] = lambda line: None,
    ) -> None:
        super().__init__(setup, crew, clock, store, listener)
        self.stop_rule = stop_rule
        self.serial = self.published = 0
        #: Groups of a checkpoint that were begun under another recipe: their prompts are submitted
        #: again before any new one.
        self.requeued: deque[PendingGroup] = deque()
        #: The groups of the step that the trainer is taking; empty while it takes none.
        self.batch: tuple[Group, ...] = ()
        #: Reasons and metrics that the checks of that batch returned.
        self.check_summary = CheckSummary()
        self.unscored = UnscoredReasons()
        self.validation_template = Validation.from_setup(setup)
        self.validation: Validation | None = None
        self.last_validation: int | None = None
        self.last_checkpoint: int | None = None
        self.empty_steps = EmptyStepWatch(setup.recipe)
        self.alarms = Alarms.from_recipe(setup.recipe, store.path)
        self.alarms.has_healthy = checkpoints.last_healthy(store.path) is not None
        #: Whether groups may be started: from the first validation on, until the run is over.
        self.started = self.over = False
        self._logprob_rollouts: list[Rollout] = []
        self._out_of_prompts = False
        self._refusals = self._refilled = 0
        self._progress_sent_at = -math.inf
        self._skipped: set[str] = set()
        #: Warnings about the checkpoint that the run was resumed from.
        self.restored: list[str] = []
        if checkpoint is not None:
            state.restore(self, checkpoint)

    def run(self) -> LoopEnd:
        """Run from the first weights to the last validation."""
        try:
            self._await_crew()
            self._warn([*self.setup.warnings, *self.restored])
            self._note("note", self.setup.stop_text)
            # The generators have the weights of the last published version; an off-policy schedule
            # publishes every k steps only.
            phase = 1 if self.setup.schedule.name == "pipeline" else self.setup.schedule.k
            self.published = self.version - self.version % phase
            self._check_mismatch()
            self._resubmit_restored()
            self.ledger.validating(self.last_validation is None)
            self.ledger.start()
            self.started = True
            reason = self.validate() if self.last_validation is None else None
            while reason is None:
                self._raise_if_stopping()
                reason = self._budget_used_up() or self._iterate()
            self.over = True
            if self.last_validation != self.version:
                self._publish()
                self.validate()
        except Stopped as stopped:
            reason = str(stopped)
        return LoopEnd(reason, self.version, self.ledger.compute())

    def _iterate(self) -> str | None:
        """Start all work that may start, then handle one round of events. Returns why the run ends,
        or None."""
        if not self.batch:
            if self._validation_due():
                return self.validate()
            if self._checkpoint_due():
                self.save()
        waits_for = self._start_work()
        if self._out_of_prompts and not self.batch and self._count("ready") == len(self.pending):
            return "every prompt has been retired"
        self._poll_and_dispatch(waits_for)
        return None

    def _start_work(self) -> str:
        """Start groups and the next step until neither can be started; what the run then waits
        for."""
        while True:
            self._start_groups()
            if self.batch:
                return "the trainer"
            choice = self.setup.schedule.choose(self.version, self._ages())
            self.ledger.awaits_checks(self._only_checks_missing(choice))
            if not choice.serials:
                return choice.waits_for or "the generators"
            self._train(choice.serials)

    def _only_checks_missing(self, choice: NextBatch) -> bool:
        """Whether everything that the trainer waits for is written, and only not scored yet."""
        if choice.late is not None:
            return self.pending[choice.late].stage == "checking"
        return 0 < choice.missing <= self._count("checking")

    def _ages(self) -> list[GroupAge]:
        return [p.age for p in self.pending.values()]

    def _count(self, stage: str) -> int:
        return sum(p.stage == stage for p in self.pending.values())

    def _raise_if_stopping(self) -> None:
        if self._stop is not None and not self.batch:
            raise Stopped(self._stop)

    def _budget_used_up(self) -> str | None:
        """Why the run ends, if its budget is used up; never while a step is under way."""
        use = None if self.batch else budget_use(self.setup.recipe.budget, self.ledger.compute())
        return None if use is None else use.reason

    # -- before -----------------------------------------------------------------------------------

    def _check_mismatch(self) -> None:
        """Compare the log-probs of generator and trainer on the same tokens before training."""
        first = self.dispatcher.staying[0]
        self.dispatcher.assign(first, [logprob_check.request(self.setup)], "validate", self.version)
        while len(self._logprob_rollouts) < logprob_check.ROLLOUTS:
            self._raise_if_stopping()
            self._poll_and_dispatch("the first rollouts, to compare log-probs")
        group = logprob_check.group(self.setup, self._logprob_rollouts)
        gaps = self._call_trainer(m.CompareLogprobs((group,)), "to score the first rollouts").gaps
        self.listener.say(logprob_check.check_mismatch(self.setup, gaps))

    def _resubmit_restored(self) -> None:
        """After a resume: submit the restored groups to generators or checkers again."""
        self._submit_groups(p for p in self.pending.values() if p.stage == "writing")
        for p in self.pending.values():
            if p.stage == "checking":
                self.checks.score(p.serial, p.answers(self.setup, self.version))

    # -- writing ----------------------------------------------------------------------------------

    def _start_groups(self) -> None:
        """Submit new prompts to generators, as many as the schedule allows."""
        ending = self.over or self._stop is not None
        if not self.started or ending or (self.validation and self.validation.unwritten):
            return
        most = None
        if self.setup.schedule.name == "pipeline":
            enough = self.setup.recipe.batch.prompts * len(self.dispatcher)
            most = enough - self._count("writing")
            if most <= 0:
                return  # the usual case: returning here avoids sorting all ages at every message
        # The groups of the step under way are no longer pending, so the step counts as taken.
        version = self.version + bool(self.batch)
        room = self.setup.schedule.room(version, self.dispatcher.oldest, self._ages())
        room = room if most is None else min(room, most)
        if room <= 0:
            return
        drawn = [self.requeued.popleft() for _ in range(min(room, len(self.requeued)))]
        try:
            drawn += [
                self._new_group(str(i)) for i in self.setup.curriculum.draw(room - len(drawn))
            ]
        except OutOfPrompts:
            self._out_of_prompts = True
        new = {}
        for p in drawn:
            if not self.setup.fits(p.prompt):
                self._skip_prompt(p.prompt.id)
                continue
            p.started = self.dispatcher.oldest
            new[p.serial] = p
        self.pending |= new
        self._submit_groups(new.values())

    def _new_group(self, prompt_id: str) -> PendingGroup:
        prompt, size = self.setup.prompts[prompt_id], self.setup.recipe.batch.generations
        self.serial += 1
        return PendingGroup(self.serial - 1, prompt, self.setup.tokens_of(prompt), size, 0)

    def _skip_prompt(self, prompt_id: str) -> None:
        """Leave out a prompt that is empty or too long, with a warning for the first few."""
        new = prompt_id not in self._skipped
        self._skipped.add(prompt_id)
        if len(self._skipped) == len(self.setup.prompts):
            raise PipelineError(
                f"all {len(self._skipped)} training prompts are empty or longer than "
                f"{self.setup.recipe.sampling.max_prompt_tokens} tokens: "
                "raise sampling.max_prompt_tokens"
            )
        if new and len(self._skipped) <= MAX_NAMED_PROMPTS:
            last = len(self._skipped) == MAX_NAMED_PROMPTS
            more = " (further ones are not named)" if last else ""
            self._warn([f"prompt {prompt_id} is left out: it is empty or too long{more}"])

    def _submit_groups(self, groups: Iterable[PendingGroup]) -> None:
        """Submit each group, as a whole, to the generator that will have finished first."""
        shares: dict[str, list[PendingGroup]] = {}
        planned = dict.fromkeys(self.dispatcher.states, 0)
        for p in groups:
            chosen = self.dispatcher.choose(planned)
            p.generator = chosen.handle.name
            planned[p.generator] += p.size
            shares.setdefault(p.generator, []).append(p)
        for name, share in shares.items():
            requests = [p.request(self.setup) for p in share]
            generator = self.dispatcher.states[name]
            rollouts = self.dispatcher.assign(generator, requests, "train", self.version)
            self.listener.asked(self.clock.now(), rollouts)

    def _on_report(self, worker: Handle, report: m.GeneratorReport) -> None:
        """Record a generator's rollouts; groups that are complete go to the checkers."""
        generator = self.dispatcher.states.get(worker.name)
        if generator is None or generator.starting:  # its `WorkerReady` was lost
            self._generator_ready(worker, report.version)
            generator = self.dispatcher.states[worker.name]
            generator.number = report.number - 1
        if report.number != generator.number + 1:
            self._on_worker_lost(worker, "has lost a report")
            return
        self.ledger.generated_tokens += report.tokens
        for kind, seconds in report.seconds.items():
            self.ledger.add_work(kind, seconds)
        found = self.dispatcher.on_report(generator, report)
        named = [(f"{w.request}/{w.row}", w.rollout) for w in found if report.lane == "train"]
        self.listener.wrote(self.clock.now(), report.version, named)
        for written in found:
            self._on_rollout(written, report)
        if report.left:
            self.ledger.waste("failed", *report.dropped)
            self._on_generator_left(generator)

    def _on_rollout(self, written: RolloutResult, report: m.GeneratorReport) -> None:
        if written.request == logprob_check.REQUEST_ID:
            self._logprob_rollouts.append(written.rollout)
        elif report.lane == "validate":
            answers = self.validation and self.validation.wrote(written, self.version)
            if answers:
                self.checks.score(written.request, answers)
        else:
            p = self.pending[int(written.request)]
            p.rollouts[written.row] = written.rollout
            if p.stage == "checking":
                self.checks.score(p.serial, p.answers(self.setup, self.version))

    def _on_scored(self, scored: ScoredAnswers) -> None:
        """Record the scores of all answers to a prompt, of a group or of a validation."""
        for line, answers in self.unscored.add(scored.scores):
            self.listener.say(f"warning: {line}")
            self._note("checker", line, answers=answers)
        if not isinstance(scored.key, int):
            if self.validation is not None:
                self.validation.add_scores(str(scored.key), scored.scores)
            return
        p = self.pending[scored.key]
        group = p.apply_rewards(scored.scores, self.setup)
        known = [r for r in group.rollouts if r.correct is not None]
        right = sum(bool(r.correct) for r in known)
        self.setup.curriculum.record(p.prompt.id, right, len(known))
        if self.setup.recipe.filter.zero_variance == "refill":
            self._refill(p, group)

    def _refill(self, p: PendingGroup, group: Group) -> None:
        """Dynamic sampling: drop a group without variance, which makes room for another prompt."""
        if informative(group, self.setup.recipe.filter.truncated):
            self._refilled = 0
            return
        del self.pending[p.serial]
        self._refilled += 1
        self.ledger.samples += len(group.rollouts)
        self.ledger.waste("filtered", len(group.rollouts), group.tokens)
        if self._refilled == self.setup.recipe.batch.prompts:
            self._warn([f"the last {self._refilled} groups, as many as a batch has, had no "
                        'variance and were replaced (filter.zero_variance = "refill"): easier or '
                        "harder prompts would help"])  # fmt: skip
        if self._refilled > MAX_REFILL * self.setup.recipe.batch.prompts:
            if p.check_summary.unscored.total() == p.size:
                raise PipelineError(
                    f"the last {self._refilled} groups had no variance, and no answer of this one "
                    f"was scored: {p.check_summary.unscored.most_common(1)[0][0]}; repair the "
                    "verifier, then --resume"
                )
            raise PipelineError(
                f"the last {self._refilled} groups were all right or all wrong: the task is too "
                'easy or too hard for the model; filter.zero_variance = "drop" would go on'
            )

    # -- training ---------------------------------------------------------------------------------

    def _train(self, serials: Sequence[int]) -> None:
        taken = [self.pending.pop(serial) for serial in serials]
        self.batch = tuple(p.group for p in taken if p.group is not None)
        self.check_summary = CheckSummary.merged(taken)
        self.listener.batch(self.batch)
        self._send_to_trainer(m.TrainStep(self.batch, self._publishes(self.version + 1)))

    def _publishes(self, version: int) -> bool:
        return self.setup.schedule.publishes(version)

    def _on_step_done(self, worker: Handle, message: m.StepDone) -> None:
        batch, self.batch, self.trainer_since = self.batch, (), None
        report, now = message.report, self.clock.now()
        self._refusals = 0
        self.version = report.version
        if self._publishes(self.version):
            self.published = self.version
        rollouts = sum(len(g.rollouts) for g in batch)
        kept = report.filtered.effective_rollouts
        self.ledger.steps = self.version
        self.ledger.samples += rollouts
        self.ledger.trained_tokens += report.forward_tokens
        self.ledger.add_work("train", message.seconds)
        tokens = sum(g.tokens for g in batch)
        self.ledger.waste("filtered", rollouts - kept, tokens - report.kept_tokens)
        line = step_line(
            report, batch, self.check_summary, self.setup.curriculum.retired, self.ledger
        )
        self.store.append(line)
        self.listener.trained(now - message.seconds, now, self.version)
        self.listener.step(line)
        self._warn([*report.notes, *self.alarms.check_step(line)])
        self._warn(self.empty_steps.check_step(line))

    def _on_step_refused(self, worker: Handle, message: m.StepRefused) -> None:
        """Record a batch that the trainer did not learn from; after MAX_REFUSALS in a row the run
        fails."""
        batch, self.batch, self.trainer_since = self.batch, (), None
        self._refusals += 1
        rollouts = sum(len(g.rollouts) for g in batch)
        self.ledger.add_work("train", message.seconds)
        self.ledger.samples += rollouts
        self.ledger.waste("failed", rollouts, sum(g.tokens for g in batch))
        prompts = tuple(g.prompt_id for g in batch)
        self._note("refused", message.reason, prompts=prompts)
        if self._refusals >= MAX_REFUSALS:
            raise PipelineError(
                f"{message.reason}; {self._refusals} batches in a row: lower optimiser.lr or "
                "optimiser.grad_clip and go on from an earlier checkpoint: "
                f"{self.alarms.command('optimiser.lr', back=True)}"
            )
        self.listener.say(f"warning: {message.reason}; the batch is left out")

    def _publish(self) -> None:
        """Publish the present weights, if that has not been done."""
        if self.published != self.version:
            self._call_trainer(m.PublishWeights(), "to publish its weights")
            self.published = self.version

    # -- validation -------------------------------------------------------------------------------

    def _validation_due(self) -> bool:
        """Whether a validation is due, and generators can load this very version."""
        if self.last_validation == self.version or self.published != self.version:
            return False
        return self.version - (self.last_validation or 0) >= self.setup.recipe.validation.every

    def validate(self) -> str | None:
        """Measure mean@k on the held-out prompts at the present version. Training rollouts are
        paused and the trainer waits, so that one set of weights answers all prompts. When all
        answers are written, the generators go on and only the trainer waits for the scores.
        Returns why the run ends, or None."""
        self.ledger.validating(True)
        self.validation = self.validation_template.unanswered()
        self._progress_sent_at = -math.inf
        try:
            requests = [asked.request for asked in self.validation.asked.values()]
            up = self.dispatcher.up
            for i, generator in enumerate(up):
                self.dispatcher.assign(generator, requests[i :: len(up)], "validate", self.version)
            while self.validation.unwritten:
                self._raise_if_stopping()
                self._report_progress(self.validation)
                self._poll_and_dispatch(
                    f"answers to {self.validation.unwritten} validation prompts"
                )
            self.ledger.validating(False)
            compute, spent = self.ledger.compute(), self.ledger.validation_seconds
            self.ledger.awaits_checks(True)
            self._await_scores(self.validation)
            found = self.validation
            if found.main.failed:
                self._warn([f"the validation has failed and is checked again: {found.main.failed}"])
                for key, answers in found.recheck(self.version).items():
                    self.checks.score(key, answers)
                self._await_scores(found)
        finally:
            self.validation = None
            self.ledger.validating(False)
            self.ledger.awaits_checks(False)
        if self.last_validation is None and (why := found.nothing_scored) is not None:
            raise PipelineError(why)
        line = EvalLine(
            step=self.version,
            version=self.version,
            **found.score(),
            compute=compute,
            validation_hours=spent / 3600.0,
        )
        self.last_validation = self.version
        self.store.save_answers(found.answers(self.version))
        self.store.append(line)
        self._warn(self.alarms.check_validation(line))
        return self.stop_rule(line)

    def _await_scores(self, validation: Validation) -> None:
        while validation.missing:
            self._raise_if_stopping()
            self._report_progress(validation)
            self._poll_and_dispatch(f"scores of {validation.missing} validation prompts")

    def _report_progress(self, validation: Validation) -> None:
        """Report the progress of a validation to the listener, at once and then about every second:
        redrawing a view more often would slow the run down."""
        if self.clock.now() - self._progress_sent_at >= WATCH_SECONDS:
            self._progress_sent_at = self.clock.now()
            self.listener.validating(self.version, *validation.progress)

    # -- checkpoints ------------------------------------------------------------------------------

    def _checkpoint_due(self) -> bool:
        every = self.setup.recipe.checkpoint.every
        due = self.version > 0 and self.version % every == 0
        return due and self.last_checkpoint != self.version

    def save(self) -> Path:
        """Write a checkpoint of everything the run needs to be resumed from here."""
        # A step under way changes the weights, and its groups are no longer pending.
        while self.batch:
            self._poll_and_dispatch("the trainer")

        def fill(folder: Path) -> None:
            problem = self._call_trainer(
                m.SaveCheckpoint(str(folder.resolve())), "to write a checkpoint"
            ).problem
            if problem is not None:
                raise OSError(problem)
            state.save(self, folder)

        out, healthy = self.store.path, self.alarms.healthy
        path = checkpoints.write(out, self.version, fill, healthy=healthy)
        self.last_checkpoint = self.version
        self.alarms.has_healthy |= healthy
        checkpoints.prune(out, self.setup.recipe.checkpoint.keep)
        return path
