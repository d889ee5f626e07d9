"""Environments on the virtual clock: real objects, and faults that come again in a second try."""

import threading
from dataclasses import replace

import pytest
from fault_environments import Notes

from scalerl.environments.interface import Action, Observation, Outcome
from scalerl.pipeline import messages as m
from scalerl.pipeline.crew import MessageReceived
from scalerl.pipeline.environment_pool import EnvironmentPool
from scalerl.pipeline.setup import RunSetup
from scalerl.placement.inline import InlineCrew
from scalerl.placement.inline_environments import HUGE_WORDS
from scalerl.placement.live_environments import MAX_CHARACTERS
from scalerl.placement.world import ActFaults, Duration, Fault, World
from scalerl.recipe import Recipe
from scalerl.tasks import make_task

RECIPE = ["task.name=running-sums", "placement.backend=inline", "placement.engine=simulated",
          "placement.trainer=simulated", "placement.check_seconds=30"]  # fmt: skip


def played(episodes=40, turns=3, workers=2, log="", **world):
    """Replies of all episodes, in the order of their turns, and the seconds that it took."""
    count = f"placement.environment_processes={workers}"
    setup = RunSetup.from_recipe(Recipe.load("scalerl", "tiny", overrides=[*RECIPE, count]))
    settings = {"turns": turns, "log": str(log)}
    task = make_task("environment:fault_environments:Faulty", options={"settings": settings})
    setup = replace(setup, task=task)
    crew = InlineCrew(setup, world=World(**world))
    pool = EnvironmentPool(setup.task, crew.checkers, 16, 30.0, crew.clock)
    prompts = setup.task.prompts()
    replies = {f"{i}/0": [] for i in range(episodes)}

    def call(episode):
        past = replies[episode]
        kind = "step" if past else "reset"
        history = tuple(Action("x") for _ in past[1:])
        shown = tuple(r.fingerprint for r in past)
        prompt = prompts[int(episode.partition("/")[0])]
        pool.call(m.EnvironmentCall(episode, prompt, 1, kind, Action("x"), history, shown))

    for episode in replies:
        call(episode)
    while pool.pending:
        assert crew.clock.now() < 1e4, "stuck"
        found = []
        for event in crew.poll(1.0):
            if not isinstance(event, MessageReceived):
                found += pool.on_worker_lost(event.worker, crew.replace(event.worker), event.why)
            elif event.worker not in crew.checkers:
                continue
            elif isinstance(event.message, m.WorkerReady):
                pool.on_ready(event.worker)
            else:
                found += pool.on_done(event.worker, event.message)
        for handle, why in pool.replaceable(60.0, 60.0):
            found += pool.on_worker_lost(handle, crew.replace(handle), why)
        for reply in found:
            replies[reply.episode].append(reply)
            if isinstance(reply.reply, Observation):
                call(reply.episode)
    crew.stop()
    return replies, crew.clock.now()


def problems(replies):
    return {episode: (len(found), found[-1].problem) for episode, found in replies.items()
            if found[-1].problem}  # fmt: skip


def test_every_episode_ends_and_calls_take_the_time_of_the_world(tmp_path):
    before = threading.active_count()
    replies, seconds = played(turns=4, log=tmp_path, act=Duration(2.0), start=Duration(0.0))
    assert all(isinstance(found[-1].reply, Outcome) for found in replies.values())
    assert {len(found) for found in replies.values()} == {5}
    assert 5 * 2.0 <= seconds < 6 * 2.0, "all at once, in two workers"
    assert replies["0/0"][-1].seconds == 2.0
    lines = [x for x in Notes.read(tmp_path) if "reset" in x]
    assert len(lines) == 40 and all(x[-1] == "closed" for x in lines)
    assert threading.active_count() <= before + 2


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("hangs", "hung"),
        ("crashes", "ended its worker process (died: killed by signal 11)"),
        ("fails", "raised RuntimeError: the world is against it"),
    ],
)
def test_a_fault_costs_its_episode_and_comes_again_in_another_try(fault, why):
    first, _ = played(seed=3, act_faults=ActFaults(**{fault: 0.04}))
    again, _ = played(seed=3, act_faults=ActFaults(**{fault: 0.04}), workers=5)
    assert problems(first) == problems(again)
    assert 1 <= len(problems(first)) <= 20
    assert all(text.endswith(why) for _, text in problems(first).values())
    others = [found for e, found in first.items() if e not in problems(first)]
    assert all(isinstance(found[-1].reply, Outcome) for found in others)
    assert problems(first) != problems(played(seed=4, act_faults=ActFaults(**{fault: 0.04}))[0])


def test_a_lie_is_found_in_a_replay_and_only_there():
    lies = ActFaults(lies=0.2)
    calm, seconds = played(seed=1, act_faults=lies, act=Duration(1.0))
    assert problems(calm) == {}
    killed = (Fault(seconds - 1.5, "kill", "checker 0"),)
    replies, _ = played(seed=1, act_faults=lies, act=Duration(1.0), faults=killed)
    assert 1 <= len(problems(replies)) < 40
    assert all("cannot be replayed" in why for _, why in problems(replies).values())


def test_a_huge_observation_is_cut():
    replies, _ = played(episodes=3, act_faults=ActFaults(huge=1.0))
    text = replies["0/0"][0].reply.messages[-1]["content"]
    assert text.startswith("word word") and HUGE_WORDS * 4 < len(text) <= MAX_CHARACTERS


def test_a_killed_worker_costs_time_only():
    calm, _ = played(turns=5, act=Duration(1.0))
    killed = (Fault(4.5, "kill", "checker 0"), Fault(200.0, "kill", "checker 1"))
    rough, _ = played(turns=5, act=Duration(1.0), faults=killed)
    assert {e: [r.fingerprint for r in x] for e, x in calm.items()} == {
        e: [r.fingerprint for r in x] for e, x in rough.items()
    }
