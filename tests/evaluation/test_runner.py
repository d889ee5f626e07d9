"""The checkers of an evaluation, as real processes: one that is stopped is replaced."""

import os
import signal
import time

import pytest

from scalerl.evaluation.runner import EvaluationCheckers
from scalerl.pipeline.setup import RunSetup
from scalerl.recipe import Recipe
from scalerl.tasks import Answer

#: Seconds after which the test gives up: far more than it takes on a busy machine.
LIMIT = 300.0


@pytest.fixture
def checking():
    options = ["task.options.prompts=50", "placement.checkers=2", "placement.patience=4",
               "placement.check_seconds=3600"]  # fmt: skip
    setup = RunSetup.from_recipe(Recipe.load("scalerl", "tiny", overrides=options))
    said = []
    found = EvaluationCheckers(setup, said.append)
    yield found, setup, said
    found.close()


def until(checking, done):
    deadline, judged = time.monotonic() + LIMIT, []
    while not done(judged):
        assert time.monotonic() < deadline, judged
        judged += checking.poll_results(0.2)
    return judged


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="processes cannot be stopped here")
def test_a_stopped_checker_is_replaced_after_the_patience_and_its_answers_are_scored(checking):
    checking, setup, said = checking
    states = checking.pool.states
    until(checking, lambda _: not any(s.starting for s in states.values()))
    stopped = checking.crew.checkers[0]
    os.kill(stopped.process.pid, signal.SIGSTOP)
    prompts = list(setup.prompts.values())[:6]
    for prompt in prompts:
        checking.pool.score(prompt.id, [Answer(prompt, "</think>1")] * 2)
    scored = until(checking, lambda found: len(found) == len(prompts))
    assert {one.key for one in scored} == {prompt.id for prompt in prompts}
    assert all(verdict.scored for one in scored for verdict in one.scores)
    (line,) = said
    assert line.startswith(f"{stopped.name} has sent nothing for ")
    assert line.endswith(" s: replaced")
