"""Random virtual worlds: the real loop and its parts, real environments, simulated time.

python tests/pipeline/worlds.py SEED    runs one world again, and prints it
"""

import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import torch

from scalerl.algorithm.curriculum import Curriculum, NoPositiveResampling, Uniform, epoch_order
from scalerl.algorithm.length import Limit
from scalerl.algorithm.options import options_from_recipe
from scalerl.engine.interface import Sampling
from scalerl.environments.interface import Environment, Observation, Outcome
from scalerl.environments.parsers import plain
from scalerl.errors import PipelineError
from scalerl.models.chat import Chat
from scalerl.models.turns import TurnRenderer
from scalerl.pipeline.episodes import EpisodeRules
from scalerl.pipeline.schedule import SCHEDULES
from scalerl.pipeline.setup import RunSetup
from scalerl.placement.generator_worker import HEARTBEAT_SECONDS
from scalerl.placement.inline import InlineCrew
from scalerl.placement.world import ActFaults, Duration, Fault, World
from scalerl.recipe import Recipe
from scalerl.runs.lines import EvalLine, EventLine, StepLine
from scalerl.runs.listener import Listener
from scalerl.runs.store import RunStore
from scalerl.tasks.task import AnswerScore, Task, make_prompt, seed_from
from scalerl.training import RunAttempts
from scalerl.weights.interface import Layout

TINY = Recipe.load("scalerl", "tiny")
PROMPTS = 40
#: What goes wrong with environments in rough worlds.
ROUGH_ACTS = ActFaults(hangs=0.01, crashes=0.01, fails=0.02, lies=0.1, huge=0.02)
#: Turns of the loop after which a world counts as stuck.
STUCK = 60_000


class Coins(Task):
    """Answers are right by the toss of a coin that follows from the answer itself."""

    def __init__(self, together: bool) -> None:
        super().__init__("coins", held_out_share=0.2)
        self._together = together
        self._prompts = [make_prompt("coins", f"{i}", None) for i in range(PROMPTS)]

    def prompts(self):
        return self._prompts

    def scores_together(self, prompt):
        return self._together

    def score(self, prompt, completion):
        return seed_from(prompt.id, completion) % 2 == 0, "a coin"


class Dice(Environment):
    """A game of several turns: each turn may end it, by a throw that follows from the actions."""

    def __init__(self, prompt) -> None:
        self.prompt = prompt
        self.thrown = ()

    async def reset(self, prompt, seed):
        self.thrown = (prompt.id, seed)
        return Observation(({"role": "user", "content": f"begin {seed % 10}"},))

    async def step(self, action):
        self.thrown = (*self.thrown, action.text)
        throw = seed_from(*self.thrown)
        if throw % 3 == 0:
            won = throw % 2 == 0
            return Outcome(AnswerScore(won, float(won), "a throw"), reward=0.1)
        reward = 0.05 if throw % 5 == 0 else None
        return Observation(({"role": "user", "content": f"again {throw % 100}"},), reward)


class DiceTask(Coins):
    """Coins of several turns."""

    has_environment = True

    def new_environment(self, prompt):
        return Dice(prompt)


class Letters:
    """The least of a tokenizer: a letter a token."""

    chat_template = None
    eos_token_id = 0
    added_tokens_decoder: dict = {}  # noqa: RUF012

    def __call__(self, text, **options):
        return {"input_ids": [ord(c) for c in text]}

    def decode(self, ids, skip_special_tokens=True):
        return "".join(map(str, ids))

    def convert_ids_to_tokens(self, token):
        return chr(token)

    def save_pretrained(self, folder):
        pass


class RandomWorld:
    """A recipe, a world, and what must hold in it."""

    def __init__(self, seed: int, **changes) -> None:
        r = random.Random(seed)
        self.seed = seed
        pipeline = r.random() < 0.75
        self.generators = r.randint(1, 3)
        self.prompts = r.randint(1, 5)
        # off-policy wants phases that its generators can share
        self.generations = 6 if not pipeline else r.randint(2, 4)
        self.k = r.randint(1, 4)
        deterministic = r.random() < 0.1
        zero = r.choice(["drop", "keep", "refill"] if pipeline else ["drop", "keep"])
        self.uniform = r.random() < 0.6
        self.steps = r.randint(5, 9)
        self.together = r.random() < 0.5
        self.plays = random.Random(f"plays {seed}").random() < 0.4
        values = {
            "seed": seed % 1000,
            "schedule.name": "pipeline" if pipeline else "off-policy",
            "schedule.k": self.k,
            "batch.prompts": self.prompts,
            "batch.generations": self.generations,
            "filter.zero_variance": zero,
            "curriculum.name": "uniform" if self.uniform else "no-positive-resampling",
            "placement.backend": "inline",
            "placement.engine": "simulated",
            "placement.trainer": "simulated",
            "placement.generators": self.generators,
            "placement.checkers": r.randint(1, 6),
            "placement.check_seconds": 3.0,
            "placement.patience": 15.0,
            "placement.deterministic": deterministic,
            "validation.every": r.randint(2, 6),
            "validation.prompts": 2,
            "validation.k": r.randint(1, 2),
            "checkpoint.every": r.randint(1, 4),
            "budget.steps": self.steps,
            "compute.axis": "steps",
        }
        self.recipe = TINY.replace(values | changes)
        self.max_tokens = r.randint(2, 10)
        self.slots = r.randint(1, 40)

        def some(low, high):
            return Duration(low * (high / low) ** r.random(), r.choice([0.0, 0.3, 1.0]))

        # One that has not joined, or has left, is spared.
        names = ["trainer", *(f"generator {i}" for i in range(self.generators + 1)), "checker 0"]
        kinds = ["kill", "freeze", "lose", "lose-to", "late", "scale", "scale"]
        kinds += [] if deterministic else ["forget"]
        faults = tuple(
            Fault(r.uniform(0.0, 12.0), r.choice(kinds), r.choice(names), r.uniform(0.1, 25.0),
                  r.randint(1, 4))
            for _ in range(r.choice([0, 0, 1, 2, 4]))
        )  # fmt: skip
        rough = r.random() < 0.3
        self.world = World(
            seed=seed,
            decode=some(0.002, 0.1),
            train=some(0.02, 1.5),
            check=some(0.0005, 1.0),
            act=Duration(0.001 * 600 ** random.Random(f"act {seed}").random(), 1.0),
            other=some(0.01, 0.3),
            message=some(0.0001, 0.02),
            start=some(0.1, 3.0),
            faults=tuple(f if f.kind != "late" else Fault(f.at, "late", f.worker, f.seconds / 12)
                         for f in faults),
            hangs=0.03 * rough,
            crashes=0.03 * rough,
            act_faults=ROUGH_ACTS if rough else ActFaults(),
        )  # fmt: skip
        self.attempts = self.renewed = 0

    def begin(self, recipe, checkpoint, survivors=None):
        """Setup and crew of one attempt; only the first crew meets the faults."""
        task = (DiceTask if self.plays else Coins)(self.together)
        train = {p.id: p for p in task.train_prompts(recipe.seed)}
        control = Limit(self.max_tokens, (0,))
        self.setup = RunSetup(
            recipe=recipe,
            task=task,
            tokenizer=Letters(),
            chat=Chat(Letters()),
            hidden=frozenset(),
            prompts=train,
            validation=tuple(task.validation_prompts(2)),
            downstream={},
            curriculum=Curriculum(
                list(train), Uniform() if self.uniform else NoPositiveResampling(), recipe.seed
            ),
            schedule=SCHEDULES[recipe.schedule.name](recipe.schedule.k, recipe.batch.prompts),
            control=control,
            validation_control=control,
            sampling=Sampling(),
            validation_sampling=Sampling(),
            model="none",
            device="cpu",
            options=options_from_recipe(recipe),
            layout=Layout((), (), torch.float32),
            parameters=1,
            columns=64,
            slots=self.slots,
            validation_slots=4,
            episodes=None
            if not self.plays
            else EpisodeRules(
                TurnRenderer(Chat(Letters()), (0,)),
                plain,
                lambda ids: "".join(map(str, ids)),
                turns=recipe.environment.turns,
                observation_tokens=20,
                seconds=recipe.environment.seconds,
                columns=64,
                keep_history=False,
            ),
        )
        self.attempts += 1
        if survivors is not None:
            self.renewed += 1
            assert self.crew.restart_trainer(self.setup, checkpoint)
            return self.setup, *survivors
        world = self.world
        if self.attempts > 1:
            # Another fate: who took too long would take as long again.
            other = {"faults": (), "seed": self.seed + 10_000 * self.attempts}
            world = World(**{f: getattr(world, f) for f in world.__slots__} | other)
        self.crew = WatchedCrew(self.setup, checkpoint, world)
        return self.setup, self.crew, self.crew.clock

    def live(self, out: Path, *, resume: bool = False, strict: bool = True):
        """From its beginning to its end, and then all that must hold. `strict`: all episodes have a
        score in a world without rough checks."""
        self.strict = strict
        self.store = RunStore(out, resume=resume)
        self.listener = Witness(self)
        run = RunAttempts(self.recipe, self.store, None, self.listener, resume, self.begin)
        try:
            self.end = run.run()
        except PipelineError as error:
            # A rough world may spoil every answer of the first validation: then that is the end.
            if not (self.world.hangs and "of the first validation could be scored" in str(error)):
                raise
            assert not self.store.read(StepLine)
            self.end = None
            return
        self.check()

    def look_at(self, episode) -> None:
        """Tokens that were sampled are in one row each, between tokens that were given."""
        for row in episode.rows:
            assert [s.source for s in row.segments[::2]] == ["context"] * len(row.segments[::2])
            assert all(s.source == "policy" for s in row.segments[1::2])
        if self.plays and episode.finish == "stop":
            assert episode.facts.turns == len(episode.turn_rewards) or episode.turn_rewards
            assert 1 <= episode.facts.turns <= self.recipe.environment.turns

    def check(self) -> None:
        steps, loop = self.store.read(StepLine), self.crew.loop
        version, intake = loop.state.version, loop.intake
        full = self.end.reason != "every prompt has been retired"
        assert not full or self.end.reason == f"budget of {self.steps} steps", self.end.reason
        # Every step once, in order, each on a whole batch.
        assert [s.step for s in steps] == list(range(1, version + 1))
        assert all(len(s.prompts) == self.prompts for s in steps)
        assert version == self.steps or not full
        # Nothing too old.
        limit = self.k - (self.recipe.schedule.name == "off-policy")
        assert all(s.staleness.max <= limit for s in steps)
        # No prompt lost, none trained twice.
        trained = Counter(p for s in steps for p in s.prompts)
        waiting = Counter(p.prompt.id for p in intake.pending.values())
        refilled = loop.ledger.samples // self.generations - sum(trained.values())
        if not any(e.event == "refused" for e in self.store.read(EventLine)):
            assert trained.total() + waiting.total() + refilled == intake.serial
        if self.uniform and self.recipe.filter.zero_variance != "refill":
            drawn: Counter[str] = Counter()
            left, epoch = intake.serial, 0
            while left > 0:
                order = epoch_order(self.recipe.seed, epoch, self.setup.prompts)[:left]
                drawn.update(map(str, order))
                left, epoch = left - len(order), epoch + 1
            assert trained + waiting == drawn
        # Time adds up.
        ledger = loop.ledger.to_line()
        s = ledger.spent
        parts = s.generate + s.hand_over + s.train + s.generate_wait + s.train_wait
        assert np.isclose(parts, ledger.device_seconds)
        assert s.check_wait <= s.train_wait + 1e-6
        assert self.plays or not ledger.reread_tokens
        evals = [e.step for e in self.store.read(EvalLine)]
        if not self.world.faults:
            # What is reported after the end of a validation may have been done before it.
            longest = self.world.decode.mean * np.exp(4 * self.world.decode.spread)
            slack = len(evals) * self.generators * (longest + HEARTBEAT_SECONDS)
            assert s.generate_wait > -slack and s.train_wait > -1e-6, s
        # Validations when they are due, by one version.
        assert evals[0] == 0 and evals == sorted(set(evals)) and evals[-1] == version
        if not self.world.hangs and self.strict:
            assert all(s.filtered.unscored == 0 for s in steps)


class Witness(Listener):
    """Looks at every batch, before the trainer has it."""

    def __init__(self, world: RandomWorld) -> None:
        self.world = world
        self.said: list[str] = []

    def say(self, line: str) -> None:
        self.said.append(line)

    def batch(self, groups) -> None:
        loop = self.world.crew.loop
        limit = self.world.k - (not loop.setup.schedule.streams)
        for group in groups:
            assert len(group.episodes) == self.world.generations
            for episode in group.episodes:
                versions = [v for row in episode.rows for v in row.versions_N if v >= 0]
                assert (np.diff(versions) >= 0).all(), "weights went backwards"
                if versions:
                    assert loop.state.version - min(versions) <= limit, "too old"
                    assert max(versions) <= loop.state.version, "written with weights to come"
                self.world.look_at(episode)


class WatchedCrew(InlineCrew):
    """Whenever the loop waits, nobody is idle who could do what the schedule allows."""

    loop = None
    polls = 0

    def restart_trainer(self, setup, checkpoint):
        self.loop = None
        return super().restart_trainer(setup, checkpoint)

    def ask_for(self, generators):
        """As `scalerl scale` does."""
        if self.loop is not None:
            self.loop.recorder.store.ask_for(generators)

    def poll(self, seconds):
        self.polls += 1
        assert self.polls < STUCK, "the world is stuck"
        if self.loop is None:
            frame = sys._getframe(1)
            self.loop = frame.f_locals["self"]
        state = self.loop.state
        validating = self.loop.validator.current is not None
        if state.started and not state.over and not validating and state.stop is None:
            self._nobody_is_idle(self.loop)
        return super().poll(seconds)

    def _nobody_is_idle(self, loop):
        pool, intake, learner = loop.supervisor.pool, loop.intake, loop.learner
        for worker in pool.states.values():
            if not worker.starting and not pool._needs_replacement(worker) and not worker.jobs:
                assert not pool._queue and not pool._suspects, "an idle checker"
        # The counts that decide are those of the groups themselves.
        stages = Counter(p.stage for p in intake.pending.values())
        counts = loop.rollouts.counts["train"]
        assert (counts.writing, counts.checking) == (stages["writing"], stages["checking"])
        if loop.recipe.placement.deterministic:
            return
        ages = [p.age for p in intake.pending.values()]
        schedule, dispatcher = loop.setup.schedule, loop.supervisor.dispatcher
        assert dispatcher.oldest == oldest(dispatcher)
        version = loop.state.version
        if learner.busy_since is None:
            assert not schedule.choose(version, ages).serials, "an idle trainer"
        room = schedule.room(
            version + bool(learner.batch), dispatcher.oldest, len(ages), stages["ready"]
        )
        idle = [s for s in dispatcher if not s.held]
        if idle and not intake.out_of_prompts:
            most = loop.setup.recipe.batch.prompts * len(dispatcher)
            assert room <= 0 or counts.writing >= most, f"{idle[0].handle.name} is idle"


def oldest(dispatcher):
    """The oldest version that a generator may write with, found by looking at all of them."""
    writing = [s for s in dispatcher if s.held or not s.starting]
    return min(s.version for s in writing or dispatcher)


def live(seed: int, **changes) -> RandomWorld:
    """One world; its seed is in whatever goes wrong."""
    world = RandomWorld(seed, **changes)
    with tempfile.TemporaryDirectory(dir=memory()) as folder:
        try:
            world.live(Path(folder) / "run")
        except BaseException as error:
            error.add_note(f"world {seed}: python tests/pipeline/worlds.py {seed}")
            raise
    return world


def memory() -> str | None:
    """A disk that costs nothing, where there is one."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


if __name__ == "__main__":
    lived = live(int(sys.argv[1]))
    print(lived.end, lived.world, lived.recipe.to_toml(), sep="\n")
