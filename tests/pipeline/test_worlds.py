"""The invariants of the loop, in thousands of random worlds on the virtual clock: kills, freezes,
late and lost messages, joins, slow, hanging and crashing checks, resume. A failure names its
seed."""

import random
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from worlds import ROUGH_ACTS, RandomWorld, live

from scalerl.pipeline import checkpoints
from scalerl.pipeline.schedule import PipelineSchedule
from scalerl.placement.world import Duration, Fault, World
from scalerl.runs.lines import EvalLine, EventLine, StepLine

#: Worlds of the suite, in parts that can run side by side.
PARTS, EACH = 20, 110


@pytest.mark.parametrize("part", range(PARTS))
def test_the_invariants_hold_in_random_worlds(part):
    for seed in range(part * EACH, (part + 1) * EACH):
        live(seed)


def test_the_invariants_hold_with_a_lag():
    for seed in range(60):
        world = live(seed, **{"schedule.name": "lag"})
        loop = world.crew.loop
        # Prompts that are begun again after a loss, or written again after a resume, are younger.
        if world.end is None or world.world.faults or loop.recipe.placement.deterministic:
            continue
        for step in world.store.read(StepLine):
            assert step.staleness.max == step.staleness.mean == min(world.k, step.step - 1)


def test_the_worlds_are_rough_enough():
    """They meet what they are made for: otherwise the test above proves little."""
    lived = [live(seed) for seed in range(400)]
    assert sum(w.attempts > 1 for w in lived) > 5, "trainers die and runs go on"
    assert sum(w.renewed > 0 for w in lived) > 5, "generators outlive their trainers"
    now = [len(w.crew.loop.supervisor.dispatcher) - w.generators for w in lived]
    assert sum(n > 0 for n in now) > 3, "generators join"
    assert sum(n < 0 for n in now) > 3, "generators leave"
    assert sum(w.crew.loop.ledger.wasted["failed"][0] > 0 for w in lived) > 5, "generators die"
    stuck = sum(any("has written nothing" in line for line in w.listener.said) for w in lived)
    assert stuck > 1, "generators forget what they were asked"
    assert any(w.crew.loop.ledger.check_wait > 0 for w in lived), "checks are waited for"


def test_a_run_goes_on_from_any_checkpoint(tmp_path):
    for seed in range(12):
        world = RandomWorld(seed, **{"checkpoint.every": 1, "checkpoint.keep": 99})
        out = Path(tmp_path) / f"run{seed}"
        world.live(out)
        for path in checkpoints.list_checkpoints(out):
            copy = tmp_path / f"{seed}-{path.name}"
            shutil.copytree(out, copy)
            for later in checkpoints.list_checkpoints(copy):
                if checkpoints.step_of(later) > checkpoints.step_of(path):
                    shutil.rmtree(later)
            again = RandomWorld(seed, **{"checkpoint.every": 1, "checkpoint.keep": 99})
            again.live(copy, resume=True)


def test_a_world_repeats_itself():
    first, second = live(7), live(7)
    assert first.end == second.end
    assert first.crew.clock.time == second.crew.clock.time


def too_greedy(self, trainer, generator, under_way, finished):
    return self.prompts * (self.k + 3) - under_way


def forgets_the_late(self, trainer, rest):
    return None


@pytest.mark.parametrize(
    ("method", "broken"), [("room", too_greedy), ("_too_late_after", forgets_the_late)]
)
def test_a_broken_schedule_is_noticed(monkeypatch, method, broken):
    """The worlds can fail: with a schedule that lets groups get too old, they do."""
    monkeypatch.setattr(PipelineSchedule, method, broken)
    with pytest.raises(AssertionError):
        for seed in range(60):
            live(seed)


def test_a_loop_that_waits_before_it_starts_anew_is_noticed(monkeypatch):
    """As it once was: a batch goes to the trainer, and nothing is started until it answers."""
    from scalerl.pipeline.loop import StreamingPace

    def lazy(self):
        self.start_once()
        if self.learner.batch:
            return "the trainer"
        choice = self.intake.choose()
        if choice.serials:
            self.learner.train(self.intake.take(choice.serials))
        return choice.waits_for or "the trainer"

    monkeypatch.setattr(StreamingPace, "start_once", StreamingPace.before_poll, raising=False)
    monkeypatch.setattr(StreamingPace, "_start_work", lazy)
    monkeypatch.setattr(StreamingPace, "before_poll", lambda self: None)
    with pytest.raises(AssertionError, match="idle"):
        for seed in range(60):
            live(seed)


def test_a_generator_that_takes_its_groups_along_is_noticed(monkeypatch):
    """Leaving hands everything back: with a loop that forgets it, groups are lost."""
    from scalerl.pipeline.supervisor import Supervisor

    def forgets(self, state):
        self.dispatcher.remove(state)
        self.ledger.generator_left(state.handle.name)
        self.crew.remove_generator(state.handle)

    monkeypatch.setattr(Supervisor, "on_generator_left", forgets)
    with pytest.raises(AssertionError):
        for seed in range(60):
            live(seed)


def test_the_time_of_an_episode_is_not_that_of_one_before_it_with_the_same_name(tmp_path):
    """Every validation asks the same prompts again, long after the first one was over."""
    world = RandomWorld(1, **{"environment.seconds": 2.0, "validation.every": 1})
    world.plays, world.world = True, World(act=Duration(0.01), train=Duration(1.0))
    world.live(tmp_path / "run")
    assert world.crew.clock.time > 4.0
    assert all(e.unscored == 0 for e in world.store.read(EvalLine))
    assert all(s.play.failed == 0 for s in world.store.read(StepLine))


def test_an_episode_that_takes_too_long_ends_without_a_score_and_the_run_goes_on(tmp_path):
    world = RandomWorld(1, **{"environment.seconds": 3.0, "validation.every": 99})
    world.plays, world.world = True, World(act=Duration(0.3, 1.5))
    world.live(tmp_path / "run", strict=False)
    steps = world.store.read(StepLine)
    assert any(0 < s.play.failed < 1 for s in steps)
    assert all(s.filtered.unscored / s.filtered.rollouts == s.play.failed for s in steps)


def test_nobody_waits_for_the_replacement_of_a_generator_while_another_is_up(tmp_path):
    changes = {"schedule.name": "pipeline", "schedule.k": 2, "placement.generators": 2,
               "placement.deterministic": False, "batch.generations": 4,
               "filter.zero_variance": "keep"}  # fmt: skip
    world = RandomWorld(1, **changes)
    world.k, world.generations, world.generators, world.plays = 2, 4, 2, False
    kills = (Fault(101.0, "kill", "generator 0"),)
    world.world = World(start=Duration(100.0), decode=Duration(0.05), faults=kills)
    world.live(tmp_path / "run")
    said = world.listener.said
    assert any("generator 0 died" in line for line in said)
    assert world.crew.loop.ledger.wasted["failed"][0] > 0, "it held something"
    assert world.crew.clock.time < 190, "the next one is up at 200"


def test_a_stopped_checker_is_replaced_after_the_patience_and_its_answers_are_scored(tmp_path):
    """Checks may take a minute, the patience is 15 s: the patience decides, and the event says
    how long the checker was silent."""
    world = RandomWorld(1, **{"placement.check_seconds": 60.0, "placement.checkers": 2})
    stop = (Fault(3.0, "freeze", "checker 0", 1e6),)
    world.world = World(check=Duration(0.5), faults=stop)
    world.live(tmp_path / "run")
    events = [e.why for e in world.store.read(EventLine) if e.event == "checker"]
    (why,) = events
    silence = int(re.fullmatch(r"checker 0 has sent nothing for (\d+) s: replaced", why)[1])
    assert 15 <= silence <= 17, "the patience, and the time between two looks"
    assert all(s.filtered.unscored == 0 for s in world.store.read(StepLine))
    assert world.crew.clock.time < 60, "the deadline of a check is not waited for"


def test_ten_hours_in_bad_environments(tmp_path):
    """Environments hang, crash, fail, lie and talk too much, and workers die, for ten hours."""
    rng = random.Random(5)
    faults = tuple(
        Fault(rng.uniform(0, 36_000), "kill", rng.choice(["generator 0", "checker 0", "checker 1"]))
        for _ in range(60)
    )
    world = RandomWorld(
        1,
        **{"schedule.name": "pipeline", "placement.deterministic": False, "budget.minutes": 600.0,
           "budget.steps": None, "validation.every": 20, "checkpoint.every": 20,
           "curriculum.name": "uniform", "filter.empty_steps": 0, "environment.seconds": 300.0,
           "placement.patience": 600.0},
    )  # fmt: skip
    world.plays = world.uniform = True
    world.check = lambda: None  # it ends by time, not by steps
    world.world = World(
        decode=Duration(1.5, 0.5), train=Duration(40.0, 0.5), act=Duration(2.0, 1.5),
        start=Duration(20.0), faults=faults, act_faults=ROUGH_ACTS,
    )  # fmt: skip
    world.live(tmp_path / "run", strict=False)
    assert world.end.reason == "budget of 600 minutes"
    steps = world.store.read(StepLine)
    failed = np.mean([s.play.failed for s in steps])
    assert len(steps) > 300 and 0 < failed < 0.3
    pool, rollouts = world.crew.loop.supervisor.pool, world.crew.loop.rollouts
    held = {e for state in pool.states.values() for e in state.held}
    under_way = {a.name for p in rollouts.groups.values() for a in p.attempts.values()}
    assert held <= under_way, "no environment is kept for an episode that is over"
