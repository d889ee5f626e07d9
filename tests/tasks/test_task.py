"""The interface: held-out prompts, scores as data, mixtures, names."""

import json

import pytest

from scalerl import tasks
from scalerl.errors import InputError
from scalerl.tasks import Answer, AnswerScore, Mixture, Rules, Task, make_prompt, make_task, task_of
from scalerl.tasks.task import DEFAULT_RULES, held_out, normal


class Echo(Task):
    """Right if the answer is the question's number."""

    def __init__(self, dataset="", *, rules=DEFAULT_RULES, size=400, name="echo"):
        super().__init__(name, rules=rules, held_out_share=0.1)
        self.size = size

    def prompts(self):
        return [make_prompt(self.name, f"{self.name} {i}", str(i)) for i in range(self.size)]

    def score(self, prompt, completion):
        if completion == "explode":
            raise ZeroDivisionError("over\nlines")
        if completion == "unclear":
            return None, "cannot tell"
        return completion == prompt.answer, "compared"


def test_no_held_out_prompt_is_ever_trained_on():
    task = Echo()
    held = {p.id for p in task.validation_prompts(30)}
    for seed in range(5):
        train = {p.id for p in task.train_prompts(seed)}
        assert not train & held
        assert len(train) + sum(map(task.is_held_out, task.prompts())) == task.size


def test_the_split_does_not_depend_on_size_or_order():
    small, large = Echo(size=200), Echo(size=400)
    assert {p.id for p in small.train_prompts(0)} <= {p.id for p in large.train_prompts(1)}


def test_spacing_and_unicode_form_do_not_move_a_question_across_the_split():
    assert normal("ﬁve  apples\n") == normal("five apples")
    assert held_out("ﬁve  apples", 0.5) == held_out("five apples", 0.5)


def test_instructions_do_not_move_a_question_across_the_split():
    plain = make_prompt("t", "1+1", "2")
    wrapped = make_prompt("t", "1+1\nThink first.", "2", content="1+1")
    assert plain.id == wrapped.id
    assert plain.rank == wrapped.rank


def test_asking_for_too_many_held_out_prompts_says_how_many_there_are():
    with pytest.raises(InputError, match="holds out"):
        Echo(size=100).validation_prompts(90)


def test_a_checker_that_raises_leaves_an_answer_unscored_with_the_reason():
    task = Echo()
    prompt = task.prompts()[0]
    assert task.check(prompt, "explode") == AnswerScore(None, None, "ZeroDivisionError: over lines")
    assert task.check(prompt, "unclear") == AnswerScore(None, None, "cannot tell")
    assert task.check(prompt, "0") == AnswerScore(True, 1.0, "compared")


def test_rewards_are_those_of_the_rules():
    task = Echo(rules=Rules(reward_correct=5.0, reward_wrong=0.0))
    prompt = task.prompts()[3]
    assert [task.check(prompt, text).reward for text in ("3", "4")] == [5.0, 0.0]


@pytest.mark.parametrize(
    ("question", "completion", "final"),
    [
        ("q", "<think>a</think>b", "b"),
        ("q", "no thought", "no thought"),
        ("q", "<think>never closed", None),
        ("q<think>", "never closed", None),
        ("q", "<think>a</think>b</think>c", "c"),
    ],
)
def test_only_what_follows_the_thought_is_the_answer(question, completion, final):
    assert Rules().final_text(question, completion) == final


def test_a_mixture_keeps_the_shares_and_the_split_of_its_tasks():
    mixture = Mixture([Echo(name="math"), Echo(name="code", size=100)], [3.0, 1.0])
    train = mixture.train_prompts(0)
    counts = {name: sum(p.task == name for p in train) for name in ("math", "code")}
    assert counts["math"] == pytest.approx(3 * counts["code"], abs=3)
    held = mixture.validation_prompts(20)
    assert [sum(p.task == name for p in held) for name in ("math", "code")] == [15, 5]
    assert not {p.id for p in train} & {p.id for p in held}


def test_a_mixture_checks_each_answer_by_its_own_task():
    mixture = Mixture([Echo(name="math"), Echo(name="code")])
    prompts = [p for p in mixture.prompts() if p.answer in ("1", "2")]
    answers = [Answer(p, "1") for p in prompts] + [Answer(prompts[0], "explode")]
    verdicts = mixture.check_all(answers)
    assert verdicts == [mixture.check(a.prompt, a.text) for a in answers]
    assert [v.correct for v in verdicts] == [True, False, True, False, None]
    assert [mixture.member_for(p).name for p in prompts] == ["math", "math", "code", "code"]


def test_a_prompt_of_no_task_in_the_mixture_is_unscored():
    mixture = Mixture([Echo(name="math"), Echo(name="code")])
    stray = make_prompt("art", "q", "a")
    assert mixture.check_all([Answer(stray, "x")])[0].correct is None
    assert not mixture.scores_together(stray)


@pytest.mark.parametrize("weights", [[1.0], [-1.0, 2.0], [0.0, 0.0]])
def test_impossible_weights_are_refused(weights):
    with pytest.raises(InputError):
        Mixture([Echo(name="a"), Echo(name="b")], weights)


def test_the_recipe_of_the_tiny_preset_makes_the_default_task():
    from scalerl.recipe import Recipe

    task = task_of(Recipe.load("scalerl", "tiny").task)
    assert task.name == "running-sums"
    assert len(task.train_prompts(0)) == 4000


def test_a_task_can_be_named_by_import_path():
    assert make_task(f"{__name__}:Echo", options={"size": 7}).size == 7


def test_options_of_a_mixture_reach_the_task_they_are_named_after(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"prompt": "1+1", "answer": "2"}) + "\n")
    mixture = make_task(
        "running-sums+function:math:isqrt",
        weights=(1.0, 1.0),
        options={
            "running-sums": {"items_max": 5},
            "function:math:isqrt": {"dataset": str(path)},
        },
    )
    assert mixture.tasks["running-sums"].items_max == 5
    assert len(mixture.tasks["function:math:isqrt"].prompts()) == 1


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("running-sum", {}, "did you mean"),
        ("running-sums", {"item_max": 3}, "items_max"),
        ("reasoning-gym", {}, "write reasoning-gym:NAME"),
        ("no.such.module:Task", {}, "cannot be imported"),
    ],
)
def test_a_wrong_name_or_option_says_what_to_do(name, options, message):
    with pytest.raises(InputError, match=message):
        make_task(name, options=options)


def test_a_task_that_defines_judge_still_works_and_warns():
    with pytest.warns(DeprecationWarning, match=r"Old\.judge is now called score"):

        class Old(Task):
            def prompts(self):
                return Echo().prompts()

            def judge(self, prompt, completion):
                return completion == "yes", "judged"

        class OlderStill(Old):
            def judge(self, prompt, completion):
                return super().judge(prompt, completion)

    prompt = Echo().prompts()[0]
    assert Old("old").check(prompt, "yes") == AnswerScore(True, 1.0, "judged")
    assert OlderStill("older").check(prompt, "no") == AnswerScore(False, -1.0, "judged")


def test_judge_of_a_task_that_defines_score_is_its_score():
    class Grown(Echo):
        def score(self, prompt, completion):
            with pytest.warns(DeprecationWarning, match="is now called score"):
                return super().judge(prompt, completion)

    task = Grown()
    prompt = task.prompts()[0]
    assert task.check(prompt, "0") == Echo().check(prompt, "0")


def test_the_old_name_of_a_score_still_works():
    with pytest.warns(DeprecationWarning, match=r"scalerl\.tasks\.Checked is now"):
        assert tasks.Checked is AnswerScore
