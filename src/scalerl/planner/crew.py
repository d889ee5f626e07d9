"""The crew of a simulated run: generators, a trainer and a checker that only take time.

The loop is the real one. Its messages are handled at once, on a virtual clock that jumps from one
event to the next: the end of a group, of a step, of a check.
"""

from __future__ import annotations

import heapq
import itertools
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from scalerl.algorithm.diagnostics import Diagnostics
from scalerl.algorithm.episode import Group
from scalerl.algorithm.filters import FilterTally
from scalerl.engine.interface import Lane, Request, TurnResult
from scalerl.errors import PipelineError
from scalerl.pipeline import logprob_check
from scalerl.pipeline import messages as m
from scalerl.pipeline.crew import Handle, MessageReceived, WorkerLost
from scalerl.planner.batching import SimulatedBatching, SimulatedRow
from scalerl.planner.setup import ENTRIES, PlannedSetup, PlannedTurn, score_of
from scalerl.planner.world import PlannedWorld, RunPart
from scalerl.trainer.interface import StepReport

#: Longest answer, over the mean, that an array has entries for; hardly any is longer.
LONGEST = 8.0
_ZEROS = np.zeros(ENTRIES, np.int64)
_ONES = np.ones(ENTRIES, np.int64)
_LOGPROBS = np.zeros(ENTRIES, np.float32)
_FORCED = np.zeros(ENTRIES, np.bool_)


class PlannedClock:
    """Virtual time, in seconds."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time


class PlannedWorker(ABC):
    """A worker and its handle; it is never silent."""

    silence = 0.0

    def __init__(self, name: str, crew: PlannedCrew) -> None:
        self.name, self.crew = name, crew

    @abstractmethod
    def send(self, message: Any) -> None: ...

    def reply(self, message: Any) -> None:
        self.crew.inbox.append(MessageReceived(self, message))


class PlannedGenerator(PlannedWorker):
    """A generator: continuous batching, and the reports of it."""

    def __init__(self, name: str, crew: PlannedCrew) -> None:
        super().__init__(name, crew)
        self.batching = SimulatedBatching(crew.world.rates.generator, crew.pass_on)
        self._unfinished: Counter[str] = Counter()
        self._written: dict[Lane, list[TurnResult]] = {"train": [], "validate": []}
        self._number = self._taken = 0
        #: Number of the latest entry in the agenda: earlier ones are outdated.
        self._entry = 0
        self._loaded = 0.0

    def send(self, message: Any) -> None:
        if not isinstance(message, m.SubmitRequests):
            raise PipelineError(f"a planned generator does not know {type(message).__name__}")
        # The loop sends its messages one after the other.
        arrives = max(self.crew.clock.time, self.crew.loop_free)
        if arrives > self.crew.clock.time:
            self.crew.at(arrives, lambda: self._take(message))
        else:
            self._take(message)

    def _take(self, message: m.SubmitRequests) -> None:
        now = self.crew.clock.time
        self._taken += 1
        self.advance(now)
        for request in message.requests:
            self._unfinished[request.id] += len(request.seeds)
            self.batching.submit(self.crew.rows(request), message.lane, now)
        self.schedule()

    def load(self, version: int) -> None:
        """Load the newest weights."""
        self._loaded += self.crew.world.rates.generator.load
        if self._unfinished:
            self.advance(self.crew.clock.time)
        self.batching.load(version, self.crew.clock.time)
        if self._unfinished:
            self.schedule()

    def schedule(self) -> None:
        """Put the next event of the batching on the agenda."""
        at = self.batching.next_event()
        self._entry += 1
        if at < math.inf:
            entry = self._entry
            self.crew.at(at, lambda: self._wake(entry))

    def _wake(self, entry: int) -> None:
        if entry == self._entry:
            self.advance(self.crew.clock.time)
            self.schedule()

    def advance(self, now: float) -> None:
        """Make the decode steps up to a time, and report groups that are complete."""
        self.batching.advance(now)
        if not self.batching.done:
            return
        complete: set[Lane] = set()
        for row, runs in self.batching.done:
            lane = _lane(row.request)
            self._written[lane].append(self.crew.turn(row, runs))
            self._unfinished[row.request] -= 1
            if not self._unfinished[row.request]:
                del self._unfinished[row.request]
                complete.add(lane)
        self.batching.done.clear()
        for lane in sorted(complete):
            self.report(lane)

    def report(self, lane: Lane = "train") -> None:
        """Send what is finished and the time since the last report."""
        batching = self.batching
        self._number += 1
        seconds: dict[Any, float] = {
            "generate": batching.seconds["train"], "validate": batching.seconds["validate"],
            "hand_over": self._loaded,
        }  # fmt: skip
        whole = int(batching.tokens)
        self.crew.deliver(
            self,
            m.GeneratorReport(
                number=self._number,
                taken=self._taken,
                version=batching.version,
                written=tuple(self._written[lane]),
                lane=lane,
                seconds={kind: s for kind, s in seconds.items() if s},
                tokens=whole,
                read_tokens=batching.read_tokens,
                decoded=tuple(batching.decoded),
            ),
        )
        self._written[lane] = []
        batching.seconds = {"train": 0.0, "validate": 0.0}
        batching.tokens -= whole
        batching.read_tokens = 0
        batching.decoded = m.no_decode_steps()
        self._loaded = 0.0


class PlannedTrainer(PlannedWorker):
    """A trainer of several ranks: counts the staleness of its tokens, and takes time."""

    def __init__(self, name: str, crew: PlannedCrew) -> None:
        super().__init__(name, crew)
        self.version = 0

    def send(self, message: Any) -> None:
        rates = self.crew.world.rates.trainer
        if isinstance(message, m.TrainStep):
            report, seconds = self._step(message.groups)
            publish = rates.publish if message.publish else 0.0
            seconds += publish
            begins = self.crew.loop_works(self.crew.turn_seconds)
            overlap = self.crew.overlap
            if overlap is not None:
                self.crew.at(begins, overlap.step_begins)

            def finish() -> None:
                self.version += 1
                if overlap is not None:
                    overlap.step_ends(seconds)
                self.reply(m.StepDone(report, seconds, publish))
                if message.publish:
                    self.crew.publish(self.version)

            self.crew.at(begins + seconds, finish)
        elif isinstance(message, m.CompareLogprobs):
            self.reply(m.TrainerDone())
        elif isinstance(message, m.PublishWeights):
            self.crew.publish(self.version)
            self.reply(m.TrainerDone())
        else:
            raise PipelineError(f"a planned trainer does not know {type(message).__name__}")

    def _step(self, groups: tuple[Group, ...]) -> tuple[StepReport, float]:
        kept = [g for g in groups if self.crew.keeps_all or _has_variance(g)]
        histogram: Counter[int] = Counter()
        lengths: list[int] = []
        for group in kept:
            for episode in group.episodes:
                runs = episode.rows[0].segments[-1].versions
                for version, entries in runs:
                    histogram[self.version - version] += entries
                lengths.append(len(episode))
        # The longest were cut off at their limit, and are left out.
        lengths.sort()
        del lengths[round(self.crew.world.lengths.trained * len(lengths)) :]
        unit, world = self.crew.unit, self.crew.world
        # The rollouts of a group share their prompt in a packed batch.
        prompt = world.prompt_tokens / self.crew.setup.recipe.batch.generations
        more = prompt + (world.environment.turns - 1) * world.environment.tokens
        tokens = np.asarray(lengths, np.float64) * unit + more
        seconds = world.rates.trainer.seconds(tokens)
        entries = histogram.total()
        written = int(entries * unit)
        episodes = sum(len(g.episodes) for g in groups)
        report = StepReport(
            version=self.version + 1, loss=0.0, kl=0.0, grad_norm=0.0, lr=0.0,
            forward_tokens=int(tokens.sum()), loss_tokens=written, kept_tokens=written,
            micro_batches=1, seconds=seconds,
            diagnostics=Diagnostics(
                tokens=written,
                staleness_mean=sum(age * n for age, n in histogram.items()) / max(entries, 1),
                staleness_max=max(histogram, default=0),
                staleness_histogram=dict(sorted(histogram.items())),
            ),
            filtered=FilterTally(
                prompts=len(groups), rollouts=episodes, unscored=0, truncated=0,
                zero_variance_prompts=len(groups) - len(kept), effective_prompts=len(kept),
                effective_rollouts=len(lengths),
            ),
        )  # fmt: skip
        return report, seconds


class PlannedChecker(PlannedWorker):
    """Scores answers, `places` of them at a time."""

    def __init__(self, name: str, crew: PlannedCrew) -> None:
        super().__init__(name, crew)
        self._free = [0.0] * crew.setup.recipe.placement.checkers

    def send(self, message: Any) -> None:
        if not isinstance(message, m.ScoreAnswers):
            raise PipelineError(f"a planned checker does not know {type(message).__name__}")
        scores = tuple(map(score_of, message.answers))
        crew, takes = self.crew, self.crew.world.check_seconds
        if not takes:
            self.reply(m.WorkDone(message.job, scores))
            return
        ends, spent = crew.clock.time, 0.0
        for seconds in crew.rng.exponential(takes, len(scores)):
            begins = max(heapq.heappop(self._free), crew.clock.time)
            heapq.heappush(self._free, begins + seconds)
            ends, spent = max(ends, begins + seconds), spent + seconds
        done = m.WorkDone(message.job, scores, seconds=spent)
        crew.at(ends, lambda: self.reply(done))


class Overlap:
    """How long generators worked while the trainer did."""

    def __init__(self, crew: PlannedCrew) -> None:
        self.crew = crew
        #: Seconds of the trainer's steps, and of generators during them.
        self.train = 0.0
        self.both = 0.0
        self._before = 0.0

    @property
    def generate(self) -> float:
        """Seconds of work of all generators so far."""
        for generator in self.crew.generators:
            generator.advance(self.crew.clock.time)
        return sum(g.batching.busy for g in self.crew.generators)

    def step_begins(self) -> None:
        self._before = self.generate

    def step_ends(self, seconds: float) -> None:
        self.train += seconds
        self.both += self.generate - self._before


class PlannedCrew:
    """The workers of a simulated run, and its agenda."""

    def __init__(self, setup: PlannedSetup, world: PlannedWorld) -> None:
        self.setup, self.world = setup, world
        self.clock = PlannedClock()
        self.rng = np.random.default_rng(world.seed)
        self.inbox: list[MessageReceived | WorkerLost] = []
        self.keeps_all = setup.recipe.filter.zero_variance == "keep"
        #: Tokens that one entry of an array stands for.
        longest = min(world.lengths.limit, LONGEST * world.lengths.mean)
        self.unit = max(longest / ENTRIES, 1.0)
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        where = setup.recipe.placement
        self.trainer = PlannedTrainer("trainer", self)
        self.generators = [
            PlannedGenerator(f"generator {i}", self) for i in range(where.generators)
        ]
        self.checkers = [PlannedChecker("checker 0", self)]
        #: Time until which the loop works.
        self.loop_free = 0.0
        loop, batch = world.rates.loop, setup.recipe.batch
        share = loop.share(batch.prompts, batch.completions)
        #: Its seconds between two steps, and for a finished turn of a rollout.
        self.turn_seconds = loop.turn * share
        turns = batch.completions * world.environment.turns
        self.rollout_seconds = loop.beside * share / turns
        #: Counted only where workers share cores: it looks at each generator twice a step.
        self.overlap = Overlap(self) if world.rates.shared is not None else None
        for worker in (self.trainer, *self.generators, *self.checkers):
            worker.reply(m.WorkerReady())

    def at(self, time: float, do: Callable[[], None]) -> None:
        """Put a call on the agenda; calls at the same time run in the order of insertion."""
        heapq.heappush(self._agenda, (max(time, self.clock.time), next(self._order), do))

    def poll(self, seconds: float) -> list[MessageReceived | WorkerLost]:
        """The next events, however long that takes: simulated workers have no deadlines."""
        while not self.inbox:
            if not self._agenda:
                raise PipelineError("the simulated run waits for nothing: please report this plan")
            self.clock.time, _, do = heapq.heappop(self._agenda)
            do()
        found, self.inbox = self.inbox, []
        return found

    def deliver(self, worker: PlannedGenerator, report: m.GeneratorReport) -> None:
        """Put a report into the inbox when the loop has come to it: it takes one at a time, and
        each rollout costs it time."""
        written = len(report.written) if report.lane == "train" else 0
        done = self.loop_works(written * self.rollout_seconds)
        if done > self.clock.time:
            self.at(done, lambda: worker.reply(report))
        else:
            worker.reply(report)

    def pass_on(self, at: float) -> float:
        """Let the loop pass a turn on to its environment: it takes one at a time, so that rows
        that end a turn together do not go on together."""
        self.loop_free = max(self.loop_free, at) + self.rollout_seconds
        return self.loop_free

    def loop_works(self, seconds: float) -> float:
        """Let the loop work after what it has begun; the time at which it will be done."""
        self.loop_free = max(self.loop_free, self.clock.time) + seconds
        return self.loop_free

    def publish(self, version: int) -> None:
        """Let all generators load the newest weights; they report it when they have."""
        for generator in self.generators:
            generator.load(version)

        def reports() -> None:
            for generator in self.generators:
                generator.report()

        self.at(self.clock.time + self.world.rates.generator.load, reports)

    def rows(self, request: Request) -> list[SimulatedRow]:
        """The rows of a request: answers to one prompt, of lengths that are alike."""
        world, n, now = self.world, len(request.seeds), self.world.part_at(self.trainer.version)
        if request.id == logprob_check.REQUEST_ID:
            return [SimulatedRow(request.id, row, [1], 0, False) for row in request.seeds]
        right = self.rng.random(n) < now.pass_rates.draw(self.rng, 1)[0]
        mixed = 0 < int(right.sum()) < n
        # Groups with variance are shorter or longer than the mean by this factor.
        ratio = _length_ratios(now, self.setup.recipe.batch.generations)[mixed]
        lengths, cut = now.lengths.draw_scaled(self.rng, n, ratio, self.trainer.version)
        right &= ~cut
        environment = world.environment
        rows = []
        for i, row in enumerate(request.seeds):
            turns = self._split(int(lengths[i]), environment.turns)
            # The rows of a group share the prompt: it is read and cached once.
            prompt = world.prompt_tokens if i == 0 else 0
            one = SimulatedRow(request.id, row, turns, prompt, bool(right[i]))
            if len(turns) > 1:
                one.reply = environment.tokens
                one.waits = [self._wait() for _ in turns[1:]]
            rows.append(one)
        return rows

    def _split(self, length: int, turns: int) -> list[int]:
        """Tokens of each turn, at least one: any way to divide an episode is as likely, so that
        the rows of a group do not end their turns together."""
        turns = min(turns, length)
        if turns == 1:
            return [length]
        cuts = np.sort(self.rng.choice(length - 1, turns - 1, replace=False)) + 1
        return np.diff(cuts, prepend=0, append=length).tolist()  # type: ignore[no-any-return]

    def _wait(self) -> float:
        environment = self.world.environment
        if not environment.seconds:
            return 0.0
        sigma = math.sqrt(math.log1p(environment.spread**2))
        z = float(self.rng.standard_normal())
        return environment.seconds * math.exp(sigma * z - sigma**2 / 2)

    def turn(self, row: SimulatedRow, runs: tuple[tuple[int, int], ...]) -> TurnResult:
        """The result of a row, in entries of `unit` tokens."""
        total = row.length
        n = min(max(round(total / self.unit), 1), ENTRIES)
        runs = _rounded(runs, total, n) if len(runs) > 1 else ((runs[0][0], n),)
        ids = (_ONES if row.right else _ZEROS)[:n]
        turn = PlannedTurn(ids, _LOGPROBS[:n], ids, _FORCED[:n], "stop", None, runs)
        return TurnResult(row.request, row.row, turn)

    # What a crew can do besides, and a simulated run never asks for:

    def replace(self, worker: Handle) -> Handle:
        raise PipelineError(f"{worker.name} is simulated and cannot be lost")

    def add_generator(self) -> Handle:
        raise PipelineError("a simulated run has a fixed number of generators")

    def remove_generator(self, worker: Handle) -> None:
        raise PipelineError("a simulated run has a fixed number of generators")

    def stop(self, *, at_once: bool = False) -> None:
        self._agenda.clear()

    def pids(self) -> dict[str, int]:
        return {}


def _lane(request: str) -> Lane:
    """The lane of a request, by its name."""
    other = "/" in request or request == logprob_check.REQUEST_ID
    return "validate" if other else "train"


def _has_variance(group: Group) -> bool:
    return len({e.reward for e in group.episodes}) > 1


def _rounded(
    runs: tuple[tuple[int, int], ...], total: int, entries: int
) -> tuple[tuple[int, int], ...]:
    """Run-lengths in tokens as run-lengths in entries, rounded at their ends."""
    found, seen, before = [], 0, 0
    for version, tokens in runs:
        seen += tokens
        until = round(seen * entries / total)
        if until > before:
            found.append((version, until - before))
            before = until
    return tuple(found)


@lru_cache
def _length_ratios(now: RunPart, generations: int) -> tuple[float, float]:
    """Factors for groups without and with variance, so that the mean of all stays as it is."""
    ratio = now.lengths.kept_ratio
    kept = now.pass_rates.kept(generations)
    if ratio == 1.0 or not 0 < kept < 1:
        return 1.0, 1.0
    return max((1 - kept * ratio) / (1 - kept), 0.05), ratio
