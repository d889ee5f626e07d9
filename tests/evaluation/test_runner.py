"""The workers of an evaluation, as real processes: stopped and killed ones are replaced."""

import contextlib
import os
import signal

import pytest

from scalerl.evaluation.runner import EvaluationWorkers
from scalerl.pipeline.setup import RunSetup
from scalerl.pipeline.validation import Validation
from scalerl.recipe import Recipe

OPTIONS = ["task.options.prompts=200", "placement.checkers=2", "placement.patience=4",
           "placement.check_seconds=3600", "placement.generators=2", "validation.prompts=40",
           "validation.k=8", "validation.temperature=1",
           "validation.also_temperatures=[]"]  # fmt: skip


@contextlib.contextmanager
def workers():
    setup = RunSetup.from_recipe(Recipe.load("scalerl", "tiny", overrides=OPTIONS))
    said = []
    with EvaluationWorkers(setup, setup.model, said.append) as found:
        yield found, setup, said


def score_all(found, setup, at_first=lambda: None):
    """The answers to all prompts, in the order of the prompts."""
    questions = Validation.from_setup(setup)
    scored = {}
    for i, (one, _) in enumerate(found.score_answers(questions, 0)):
        if i == 0:
            at_first()
        assert one.prompt.id not in scored, "scored twice"
        scored[one.prompt.id] = [(setup.episode_text(e), v.correct) for e, v in one.answered()]
    return {one.prompt.id: scored[one.prompt.id] for one in questions.asked.values()}


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="processes cannot be stopped here")
def test_stopped_and_killed_workers_are_replaced_and_every_answer_is_the_same():
    with workers() as (found, setup, said):
        expected = score_all(found, setup)
        turns = {s.handle.name: s.turns for s in found.supervisor.dispatcher}
    assert sum(turns.values()) == 40 * 8 and all(turns.values()), "both generators write"
    assert said == []
    with workers() as (found, setup, said):
        checker, generator = found.crew.checkers[0], found.crew.generators[0]

        def strike():
            os.kill(checker.process.pid, signal.SIGSTOP)
            os.kill(generator.process.pid, signal.SIGKILL)

        assert score_all(found, setup, strike) == expected
    assert f"{generator.name} died: killed by signal 9" in said
    (line,) = [line for line in said if line.startswith(checker.name)]
    assert "has sent nothing for " in line and line.endswith(" s: replaced")
