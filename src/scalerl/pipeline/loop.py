"""The loop: prompts out, rollouts in, batches to the trainer, weights back (paper section 3.11).

It is ignorant of what is behind its parts: generators take requests and give back what they wrote,
the trainer takes groups and gives back a version. Both schedules run through here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.algorithm.curriculum import OutOfPrompts
from scalerl.algorithm.length import penalised_reward
from scalerl.algorithm.rollout import Group, Rollout
from scalerl.engine.interface import Request, Written
from scalerl.pipeline import messages as m
from scalerl.pipeline.ledger import Ledger
from scalerl.pipeline.placement import PipelineError, Worker, await_any
from scalerl.pipeline.plan import Plan
from scalerl.pipeline.schedule import Ticket
from scalerl.pipeline.weights import Layout, SharedWeights
from scalerl.pipeline.workers import load_model, run_generator, run_trainer
from scalerl.runs.writer import RunWriter
from scalerl.tasks.task import Prompt, seed_from

#: Mean gap between the two sides' log-probs, before training, beyond which ratios mean nothing.
MAX_GAP = 0.02


@dataclass(slots=True, eq=False)
class UnderWay:
    """A group that is being written, or is finished and waits for the trainer."""

    prompt: Prompt
    token_ids: Any
    started: int
    generator: int
    written: dict[int, Written] = field(default_factory=dict)
    group: Group | None = None

    def ticket(self, serial: int) -> Ticket:
        if self.group is None:
            return Ticket(serial, self.started)
        oldest = min((int(r.versions.min()) for r in self.group.rollouts if len(r)), default=None)
        return Ticket(serial, self.started if oldest is None else oldest, finished=True)


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
        self,
        plan: Plan,
        writer: RunWriter,
        hooks: Hooks,
        *,
        deadline: float = 300.0,
        checkpoint: Path | None = None,
    ) -> None:
        self.plan = plan
        self.writer = writer
        self.hooks = hooks
        self.deadline = deadline
        self.under_way: dict[int, UnderWay] = {}
        self.serial = 0
        self.version = 0
        self.training = False
        self.last_validation: int | None = None
        model = load_model(plan.trainer.model, plan.trainer.dtype, "cpu")
        self.shared = SharedWeights(Layout.of(model))
        embedding = model.get_input_embeddings().weight
        head = model.get_output_embeddings().weight
        tied = embedding is head
        size = sum(p.numel() for p in model.parameters()) - (0 if tied else embedding.numel())
        devices = plan.recipe.placement.generators + plan.recipe.placement.trainers
        self.ledger = Ledger(parameters=size, devices=devices)
        spec = plan.trainer
        if checkpoint is not None:
            self._restore(checkpoint)
            spec = m.TrainerSpec(**{f: getattr(spec, f) for f in spec.__dataclass_fields__}
                                 | {"checkpoint": str(checkpoint)})  # fmt: skip
        self.trainer = Worker("trainer", run_trainer, spec, self.shared)
        self.generators = [
            Worker(f"generator {i}", run_generator, plan.generator, self.shared)
            for i in range(plan.recipe.placement.generators)
        ]
        self.generator_version = [0] * len(self.generators)

    def __enter__(self) -> Loop:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in [self.trainer, *self.generators]:
            worker.stop()
        self.plan.task.close()

    def run(self) -> Outcome:
        """Until the budget is used up, the prompts run out, or a hook says stop."""
        self._await_ready()
        self._check_mismatch()
        self.ledger.start()
        if self.version == 0:
            self.validate()
        reason = None
        while reason is None:
            reason = self._spent() or self._turn()
        self.ledger.tick()
        if self.last_validation != self.version:
            if self.shared.version != self.version:  # off-policy, in the middle of a phase
                self._ask_trainer(m.Publish())
            self.validate()
        return Outcome(reason, self.version, self.ledger.compute())

    def _turn(self) -> str | None:
        """Start what may be started, train on what is ready, take in what has come."""
        out_of_prompts = self._start_groups()
        choice = None
        if not self.training:
            if self._due():
                return self.validate()
            choice = self.plan.schedule.choose(self.version, self._tickets())
            if choice.serials:
                self._train(choice.serials)
            elif out_of_prompts and not any(u.group is None for u in self.under_way.values()):
                return "every prompt has been retired"
        waits = "the trainer" if self.training else f"{choice.waits_for if choice else 'nothing'}"
        self._take_in(waits)
        return None

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

    def _start_groups(self) -> bool:
        """Give generators new prompts, as many as the schedule allows; True if there are none."""
        oldest = min(self.generator_version)
        # The batch that is being trained on has used up its version, and is no longer under way.
        room = self.plan.schedule.room(self.version + self.training, oldest, self._tickets())
        if self.plan.schedule.name == "pipeline":
            writing = sum(u.group is None for u in self.under_way.values())
            enough = self.plan.recipe.batch.prompts * len(self.generators)
            room = min(room, max(enough - writing, 0))
        if room <= 0:
            return False
        try:
            ids = self.plan.curriculum.draw(room)
        except OutOfPrompts:
            return True
        for prompt_id in ids:
            self._start_group(self.plan.prompts[str(prompt_id)])
        return False

    def _start_group(self, prompt: Prompt) -> None:
        serial, self.serial = self.serial, self.serial + 1
        counts = [0] * len(self.generators)
        for u in self.under_way.values():
            counts[u.generator] += u.group is None
        generator = int(np.argmin(counts))
        tokens = self.plan.tokens_of(prompt)
        recipe = self.plan.recipe
        self.under_way[serial] = UnderWay(prompt, tokens, min(self.generator_version), generator)
        requests = tuple(
            Request(
                f"{serial}/{i}",
                tuple(tokens.tolist()),
                self.plan.control,
                self.plan.sampling,
                seed_from(recipe.seed, "rollout", serial, i),
            )
            for i in range(recipe.batch.generations)
        )
        self.generators[generator].send(m.Submit(requests))

    def _take_in(self, waits_for: str) -> None:
        """Wait for a message from anybody, with a deadline that names who waits for whom."""
        start = time.monotonic()
        while True:
            talking = await_any([self.trainer, *self.generators], 1.0)
            for worker in talking:
                self._handle(worker, worker.receive())
            if talking:
                return
            waited = time.monotonic() - start
            if waited > self.deadline:
                raise PipelineError(
                    f"nobody has answered for {waited:.0f} s: the loop waits for {waits_for}; "
                    "see whether the machine is out of memory, then --resume"
                )

    def _handle(self, worker: Worker, message: Any) -> None:
        if isinstance(message, m.Stepped):
            self._stepped(message)
        elif isinstance(message, m.Finished):
            i = self.generators.index(worker)
            self.generator_version[i] = message.version
            self.ledger.generated_tokens += message.tokens
            for kind, seconds in message.seconds.items():
                self.ledger.spent[kind] += seconds
            for written in message.written:
                self._finished(written)

    def _finished(self, written: Written) -> None:
        serial, i = (int(part) for part in written.id.split("/"))
        u = self.under_way[serial]
        u.written[i] = written
        if len(u.written) == self.plan.recipe.batch.generations:
            u.group = self._group(u)
            scored = [r for r in u.group.rollouts if r.correct is not None]
            if scored:
                right = sum(bool(r.correct) for r in scored)
                self.plan.curriculum.record(u.prompt.id, right, len(scored))

    def _group(self, u: UnderWay) -> Group:
        written = [u.written[i] for i in sorted(u.written)]
        texts = [self.plan.text_of(w.token_ids) for w in written]
        checked = self.plan.task.check_all([(u.prompt, text) for text in texts])
        rollouts = []
        for w, c in zip(written, checked, strict=True):
            reward = c.reward
            length = self.plan.recipe.length
            if length.control == "penalty" and reward is not None and length.penalty_max:
                reward = penalised_reward(
                    reward,
                    bool(c.correct),
                    len(w.token_ids),
                    length.penalty_max,
                    length.penalty_cache or 1,
                )
            rollouts.append(
                Rollout(
                    w.token_ids,
                    w.logprobs,
                    w.versions,
                    w.forced,
                    w.finish or "failed",
                    reward,
                    c.correct,
                )
            )
        return Group(u.prompt.id, u.token_ids, tuple(rollouts))

    # -- training ---------------------------------------------------------------------------------

    def _train(self, serials: Sequence[int]) -> None:
        groups = []
        for serial in serials:
            group = self.under_way.pop(serial).group
            assert group is not None
            groups.append(group)
        self._batch = tuple(groups)
        self.hooks.on_batch(self._batch)
        publish = self.plan.schedule.publishes(self.version + 1)
        self.trainer.send(m.Step(self._batch, publish))
        self.training = True

    def _stepped(self, message: m.Stepped) -> None:
        self.training = False
        self.version = message.version
        rollouts = [r for g in self._batch for r in g.rollouts]
        rewards = [r.reward for r in rollouts if r.reward is not None]
        self.ledger.steps = self.version
        self.ledger.samples += len(rollouts)
        self.ledger.trained_tokens += message.forward_tokens
        self.ledger.spent["train"] += message.seconds
        self.ledger.wasted["filtered"] += (
            message.filtered["rollouts"] - message.filtered["effective_rollouts"]
        )
        lengths = [len(r) for r in rollouts]
        record = {
            **message.report,
            "step": self.version,
            "reward": float(np.mean(rewards)) if rewards else None,
            "pass_rate": float(np.mean([bool(r.correct) for r in rollouts])),
            "truncated": float(np.mean([r.truncated for r in rollouts])),
            "interrupted": float(np.mean([r.finish == "interrupted" for r in rollouts])),
            "mixed_versions": float(np.mean([len(set(r.versions.tolist())) > 1 for r in rollouts])),
            "prompts": [g.prompt_id for g in self._batch],
            "zero_variance": message.filtered["zero_variance_prompts"] / len(self._batch),
            "length": {"mean": float(np.mean(lengths)), "max": int(max(lengths))},
            "filtered": message.filtered,
            "retired": self.plan.curriculum.retired,
            "compute": self.ledger.compute(),
            "ledger": self.ledger.to_dict(),
        }
        self.writer.append("steps", record)
        self.hooks.on_step(record)

    # -- validation -------------------------------------------------------------------------------

    def _due(self) -> bool:
        """A validation is due, and the generators have (or may be given) this very version."""
        if self.last_validation == self.version or not self.plan.schedule.publishes(self.version):
            return False
        every = self.plan.recipe.validation.every
        return self.version - (self.last_validation or 0) >= every

    def validate(self) -> str | None:
        """mean@k on the held-out prompts at the present version. Training rollouts stand still, and
        the trainer waits, so that one set of weights answers all."""
        self.ledger.validating(True)
        recipe = self.plan.recipe
        k = recipe.validation.k
        prompts = {str(i): p for i, p in enumerate(self.plan.validation)}
        shares: list[list[Request]] = [[] for _ in self.generators]
        for i, prompt in prompts.items():
            tokens = tuple(self.plan.tokens_of(prompt).tolist())
            for j in range(k):
                seed = seed_from(recipe.seed, "validation", prompt.id, j)
                shares[int(i) % len(shares)].append(
                    Request(
                        f"{i}/{j}",
                        tokens,
                        self.plan.validation_control,
                        self.plan.validation_sampling,
                        seed,
                    )
                )
        for worker, share in zip(self.generators, shares, strict=True):
            worker.send(m.Submit(tuple(share), validation=True, version=self.version))
        answers = self._collect_validation(len(prompts) * k)
        record = self._evaluated(prompts, answers, k)
        self.last_validation = self.version
        self.ledger.validating(False)
        self.writer.append("evals", record)
        return self.hooks.on_eval(record)

    def _collect_validation(self, count: int) -> list[Written]:
        answers: list[Written] = []
        start = time.monotonic()
        while len(answers) < count:
            for worker in await_any(self.generators, 1.0):
                message = worker.receive()
                if message.validation:
                    answers += message.written
                    self.generator_version[self.generators.index(worker)] = message.version
                else:
                    self._handle(worker, message)
                start = time.monotonic()
            if time.monotonic() - start > self.deadline:
                raise PipelineError(
                    f"validation waits for {count - len(answers)} answers of the generators"
                )
        return answers

    def _evaluated(
        self, prompts: dict[str, Prompt], answers: list[Written], k: int
    ) -> dict[str, Any]:
        asked = [(prompts[w.id.split("/")[0]], self.plan.text_of(w.token_ids)) for w in answers]
        checked = self.plan.task.check_all(asked)
        right: dict[str, list[float]] = {}
        for w, c in zip(answers, checked, strict=True):
            right.setdefault(w.id.split("/")[0], []).append(float(bool(c.correct)))
        means = np.array([np.mean(v) for v in right.values()])
        tasks: dict[str, list[float]] = {}
        for i, values in right.items():
            tasks.setdefault(prompts[i].task, []).append(float(np.mean(values)))
        spread = float(means.std(ddof=1) / np.sqrt(len(means))) if len(means) > 1 else None
        return {
            "step": self.version,
            "version": self.version,
            "pass_rate": float(means.mean()),
            "stderr": spread,
            "n_prompts": len(means),
            "k": k,
            "tasks": {name: float(np.mean(v)) for name, v in tasks.items()},
            "compute": self.ledger.compute(),
            "validation_hours": self.ledger.validation_seconds / 3600.0,
        }

    # -- before and after -------------------------------------------------------------------------

    def _await_ready(self) -> None:
        for worker in [self.trainer, *self.generators]:
            if not worker.conn.poll(self.deadline):
                raise PipelineError(f"{worker.name} did not start within {self.deadline:.0f} s")
            ready = worker.receive()
            if worker is self.trainer:
                self.version = ready.version

    def _check_mismatch(self) -> None:
        """The gate: the same tokens scored by both sides before anything is learnt."""
        prompt = self.plan.validation[0]
        tokens = self.plan.tokens_of(prompt)
        requests = tuple(
            Request(f"gate/{i}", tuple(tokens.tolist()), self.plan.control, self.plan.sampling, i)
            for i in range(4)
        )
        self.generators[0].send(m.Submit(requests, validation=True, version=self.version))
        written = self._collect_validation(len(requests))
        rollouts = tuple(
            Rollout(w.token_ids, w.logprobs, w.versions, w.forced, w.finish or "failed", 0.0)
            for w in written
            if len(w.token_ids)
        )
        gaps = np.asarray(self._ask_trainer(m.Score((Group("gate", tokens, rollouts),))).gaps)
        if not len(gaps):
            return
        self.hooks.say(
            f"log-prob gap before training: mean {gaps.mean():.2g}, max {gaps.max():.2g}"
        )
        if gaps.mean() > MAX_GAP:
            raise PipelineError(
                f"generator and trainer disagree by {gaps.mean():.3f} per token: compare their "
                "head precision, temperature and chat template"
            )

    def _ask_trainer(self, message: Any) -> m.Done:
        """Something that the trainer, which is idle, answers when it is done."""
        self.trainer.send(message)
        if not self.trainer.conn.poll(self.deadline):
            what = type(message).__name__.lower()
            raise PipelineError(f"the trainer did not answer '{what}' in {self.deadline:.0f} s")
        answer = self.trainer.receive()
        assert isinstance(answer, m.Done)
        return answer

    def save(self, path: Path) -> None:
        """A checkpoint: written to a temporary name, then renamed."""
        temporary = path.with_name(path.name + ".tmp")
        while self.training:
            self._take_in("the trainer")
        self._ask_trainer(m.Save(str(temporary)))
        # Prompts that are under way are asked again: nothing of them has been learnt yet.
        curriculum = self.plan.curriculum
        pending = [u.prompt.id for u in self.under_way.values()]
        state = {
            "version": self.version,
            "serial": self.serial,
            "last_validation": self.last_validation,
            "curriculum": curriculum.state_dict(),
            "pending": pending,
            "ledger": self.ledger.to_dict(),
        }
        (temporary / "run.json").write_text(json.dumps(state))
        self.plan.tokenizer.save_pretrained(temporary)
        temporary.rename(path)

    def _restore(self, path: Path) -> None:
        state = json.loads((path / "run.json").read_text())
        self.version = int(state["version"])
        self.serial = int(state["serial"])
        self.last_validation = state["last_validation"]
        self.plan.curriculum.load_state_dict(state["curriculum"])
        self.plan.curriculum.give_back(state["pending"])
        self.ledger.restore(state["ledger"])
