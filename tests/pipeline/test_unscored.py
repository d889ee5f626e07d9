"""Answers that cannot be scored: who is told why, and what becomes of validations. Whole runs on
the virtual clock, with a verifier that says what it is told to."""

import json
from dataclasses import replace

import pytest

from scalerl import load_run
from scalerl.cli.doctor import describe, diagnose, examine
from scalerl.errors import InputError, PipelineError
from scalerl.pipeline.environment_pool import MAX_REASONS, OTHER_REASONS, UnscoredReasons
from scalerl.pipeline.setup import RunSetup
from scalerl.pipeline.validation import set_score
from scalerl.placement.inline import InlineCrew
from scalerl.placement.world import World
from scalerl.recipe import Recipe
from scalerl.runs.lines import EvalLine, EventLine, StepLine
from scalerl.runs.listener import Listener
from scalerl.runs.store import RunStore
from scalerl.tasks.task import AnswerScore, Task
from scalerl.training import RunAttempts

BASE = [
    "placement.backend=inline", "placement.engine=simulated", "placement.trainer=simulated",
    "batch.prompts=2", "batch.generations=2", "validation.prompts=4", "validation.k=2",
    "validation.also_temperatures=[]", "validation.every=2", "checkpoint.every=30",
    "task.options.prompts=400", "budget.steps=8",
]  # fmt: skip
RIGHT, WRONG = AnswerScore(True, 1.0, "right"), AnswerScore(False, -1.0, "wrong")
BROKEN = AnswerScore.unscored("function:judge raised ConnectionError: the judge is out of order")


class Moody(Task):
    """Questions of another task, and verdicts by a rule: (answer, held out, times asked)."""

    def __init__(self, task, rule):
        super().__init__(task.name, rules=task.rules, held_out_share=task.held_out_share)
        self.task, self.rule = task, rule
        self.asked = {}

    def prompts(self):
        return self.task.prompts()

    def score(self, prompt, completion):
        raise AssertionError("answers are judged by check_all")

    def check_all(self, answers):
        return [self._verdict(a) for a in answers]

    def _verdict(self, answer):
        key = answer.prompt.id, answer.token_ids, answer.step
        self.asked[key] = self.asked.get(key, 0) + 1
        return self.rule(answer, self.is_held_out(answer.prompt), self.asked[key])


class Run:
    """A run whose verifier follows a rule."""

    def __init__(self, out, rule, *changes):
        self.out, self.said, self.tasks = out, [], []
        self.recipe = Recipe.load(
            "scalerl", "tiny", overrides=[*BASE, "validation.also_temperatures=[]", *changes]
        )
        self.store = RunStore(out)
        listener = Listener()
        listener.say = self.said.append

        def begin(recipe, checkpoint):
            setup = RunSetup.from_recipe(recipe)
            setup = replace(setup, task=Moody(setup.task, rule))
            crew = InlineCrew(setup, checkpoint, World())
            self.tasks.append(setup.task)
            return setup, crew, crew.clock

        self.store.write_recipe(self.recipe.to_toml())
        self.attempts = RunAttempts(self.recipe, self.store, None, listener, False, begin)

    def go(self):
        self.end = self.attempts.run()
        return self

    def lines(self, kind):
        return self.store.read(kind)

    def events(self, kind):
        return [e for e in self.lines(EventLine) if e.event == kind]


def by_chance(answer, held_out, times):
    """Right or wrong, by the answer itself."""
    return RIGHT if sum(answer.token_ids) % 2 else WRONG


# -- scores ---------------------------------------------------------------------------------------


def test_unscored_is_not_wrong():
    found = set_score([[RIGHT, BROKEN], [WRONG, WRONG], [BROKEN, BROKEN], [RIGHT, WRONG]], k=2)
    assert found.pass_rate == pytest.approx((1.0 + 0.0 + 0.5) / 3)
    assert found.stderr == pytest.approx(0.5 / 3**0.5)
    assert (found.scored, found.n_prompts, found.k, found.failed) == (5, 4, 2, None)


@pytest.mark.parametrize(
    "verdicts",
    [
        [[BROKEN, BROKEN], [BROKEN, RIGHT], [RIGHT, BROKEN], [BROKEN, BROKEN]],
        [[RIGHT, RIGHT], [BROKEN, BROKEN]],
        [[BROKEN]],
    ],
)
def test_with_too_few_scores_there_is_no_pass_rate(verdicts):
    found = set_score(verdicts, k=2)
    assert (found.pass_rate, found.stderr, found.failed) == (None, None, BROKEN.why)


def test_half_of_the_answers_and_two_prompts_are_enough():
    assert set_score([[RIGHT, BROKEN], [BROKEN, WRONG]], k=2).pass_rate == 0.5
    assert set_score([[RIGHT]], k=1).pass_rate == 1.0


# -- validations ----------------------------------------------------------------------------------


def test_the_size_of_a_validation_is_the_answers_that_were_scored(tmp_path):
    """Every second answer to a held-out prompt has no score."""
    turns = {}

    def rule(answer, held_out, times):
        turns[answer.prompt.id] = turns.get(answer.prompt.id, 0) + 1
        return BROKEN if held_out and turns[answer.prompt.id] % 2 else RIGHT

    run = Run(tmp_path / "run", rule).go()
    for line in run.lines(EvalLine):
        assert (line.pass_rate, line.scored, line.unscored, line.n_eval) == (1.0, 4, 4, 4)
    assert list(load_run(str(run.out)).n_eval) == [4.0] * 5


def test_a_validation_that_fails_is_checked_once_more_and_may_then_be_fine(tmp_path):
    run = Run(
        tmp_path / "run",
        lambda a, held_out, times: (
            BROKEN if held_out and times == 1 and a.step == 4 else by_chance(a, held_out, times)
        ),
    ).go()
    line = next(e for e in run.lines(EvalLine) if e.step == 4)
    assert line.pass_rate is not None and line.scored == 8 and line.failed is None
    (warning,) = [e.why for e in run.events("warning") if "checked again" in e.why]
    assert BROKEN.why in warning
    assert len(run.attempts.curve) == 5


def test_a_validation_that_fails_twice_is_recorded_and_fitted_by_nobody(tmp_path):
    run = Run(
        tmp_path / "run",
        lambda a, held_out, times: (
            BROKEN if held_out and a.step == 4 else by_chance(a, held_out, times)
        ),
    ).go()
    assert run.end.steps == 8, "the run goes on"
    asked = [n for (_, _, step), n in run.tasks[0].asked.items() if step == 4 and n > 1]
    assert asked == [2] * 8, "each answer was judged twice, and not a third time"
    lines = {e.step: e for e in run.lines(EvalLine)}
    assert list(lines) == [0, 2, 4, 6, 8]
    failed = json.loads((run.out / "evals.jsonl").read_text().splitlines()[2])
    assert failed["pass_rate"] is None and failed["stderr"] is None and failed["scored"] == 0
    assert failed["failed"] == BROKEN.why and "failed" not in lines[2].to_dict()
    assert any("is no point of the curve" in e.why for e in run.events("warning"))
    assert list(run.attempts.curve.run.score) == [
        lines[s].pass_rate for s in (0, 2, 6, 8)
    ]  # fmt: skip
    read = load_run(str(run.out))
    assert len(read) == 4
    assert any("1 failed validation left out (step 4): function:judge" in n for n in read.notes)
    said = dict(describe(examine(run.out)))
    assert said["validation"] == f"failed at step 4: {BROKEN.why}"
    assert any("1 validation failed, the latest at step 4" in a
               for a in diagnose(examine(run.out)).advice)  # fmt: skip


def test_alarms_and_stop_rules_do_not_look_at_a_failed_validation(tmp_path):
    """A pass rate of 0 there would be a collapse."""
    run = Run(
        tmp_path / "run", lambda a, held_out, times: BROKEN if held_out and a.step == 4 else RIGHT
    ).go()
    assert not [e for e in run.events("warning") if "the pass rate has fallen" in e.why]


def test_a_run_that_cannot_score_anything_stops_at_its_first_validation(tmp_path):
    run = Run(tmp_path / "run", lambda a, held_out, times: BROKEN)
    with pytest.raises(PipelineError, match="not one of 8 answers") as error:
        run.go()
    assert BROKEN.why in str(error.value) and "repair the verifier" in str(error.value)
    assert run.lines(EvalLine) == [] and run.lines(StepLine) == []
    assert run.events("failed")[-1].why == str(error.value)


def test_a_run_of_failed_validations_has_no_curve_and_says_so(tmp_path):
    run = Run(tmp_path / "run", by_chance)
    line = EvalLine.from_dict({"step": 0, "pass_rate": None, "failed": BROKEN.why})
    run.store.append(line)
    with pytest.raises(InputError, match=r"pass_rate holds no number \(1 failed validation left"):
        load_run(str(run.out))


def test_records_of_earlier_versions_are_read_as_ever():
    old = EvalLine.from_dict({"step": 3, "pass_rate": 0.5, "n_prompts": 10, "k": 4})
    assert (old.n_eval, old.scored, old.failed) == (40, None, None)


# -- reasons --------------------------------------------------------------------------------------


def test_why_rollouts_have_no_reward_is_in_steps_events_view_and_doctor(tmp_path):
    run = Run(
        tmp_path / "run",
        lambda a, held_out, times: by_chance(a, held_out, times) if held_out else BROKEN,
        "budget.steps=12",
    ).go()
    for step in run.lines(StepLine):
        assert step.unscored_why == {BROKEN.why: step.filtered.unscored} == {BROKEN.why: 4}
    told = run.events("checker")
    assert [e.why.split(" could")[0] for e in told] == ["2 answers", "20 answers"]
    assert [e.answers for e in told] == [2, 20] and all(BROKEN.why in e.why for e in told)
    assert sum(line == f"warning: {told[0].why}" for line in run.said) == 1
    warnings = [e.why for e in run.events("warning")]
    assert f"100% of rollouts could not be scored: {BROKEN.why}" in warnings
    assert not [w for w in warnings if "little is left to learn" in w]
    found = examine(run.out)
    assert ("unscored", f"48 of the latest rollouts: {BROKEN.why}") in list(describe(found))
    assert diagnose(found).advice[-1] == (
        f"repair the verifier: 100% of the latest rollouts have no score ({BROKEN.why})"
    )


def test_scored_runs_say_nothing_of_it(tmp_path):
    run = Run(tmp_path / "run", by_chance).go()
    assert all("unscored_why" not in s.to_dict() for s in run.lines(StepLine))
    assert run.events("checker") == []


def test_a_verifier_with_ever_new_words_does_not_fill_the_record():
    unscored = UnscoredReasons()
    lines = [
        line for i in range(5000) for line, _ in unscored.add([AnswerScore.unscored(f"reason {i}")])
    ]
    assert len(lines) < MAX_REASONS + 10
    assert unscored.totals[OTHER_REASONS] == 5000 - MAX_REASONS


def test_refilling_with_answers_that_nobody_can_score_ends_with_the_reason(tmp_path):
    run = Run(tmp_path / "run", lambda a, held_out, times: RIGHT if held_out else BROKEN,
              "filter.zero_variance=refill")  # fmt: skip
    with pytest.raises(PipelineError, match="was scored: function:judge raised Connection"):
        run.go()


def test_what_reward_functions_log_is_in_the_metrics_of_their_step(tmp_path):
    def rule(answer, held_out, times):
        return replace(by_chance(answer, held_out, times), metrics=(("reward/brevity", 0.25),))

    run = Run(tmp_path / "run", rule).go()
    assert all(s.metrics["reward/brevity"] == 0.25 for s in run.lines(StepLine))
