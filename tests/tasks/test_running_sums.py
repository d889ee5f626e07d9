"""The default task: prompts, checks, and a ceiling that is known by construction."""

import random
from collections import Counter

import pytest

from scalerl.errors import InputError
from scalerl.models.tiny.teacher import CLEAN, Noise, trace
from scalerl.models.tiny.teachers import TEACHERS
from scalerl.tasks.running_sums import (
    PHRASE,
    CarrySums,
    RunningSums,
    Sum,
    ceiling,
    ceiling_of,
    score_answer,
    written,
)


@pytest.mark.parametrize("budgets", [(56, 64), (48, 56), (40, 40), (0, 3), (100, 200)])
def test_the_ceiling_is_the_share_of_cases_that_fit_counted_one_by_one(budgets):
    low, high = budgets
    cases = [
        # A thinker without slips who knows the answer, cut at the budget: the best there is.
        score_answer(
            asked,
            asked.thought + "</think>" + asked.answer
            if len(asked.thought) + 1 <= budget
            else asked.thought[:budget] + PHRASE + asked.answer,
        )[0]
        for n in range(2, 17)
        for asked in [Sum(tuple(random.Random(n).choices(range(10), k=n)))]
        for budget in range(low, high + 1)
    ]
    assert ceiling(low, high) == pytest.approx(sum(cases) / len(cases))


def test_a_tighter_budget_lowers_the_ceiling():
    assert ceiling(48, 56) < ceiling(56, 64) < ceiling(65, 72) == 1.0


def test_the_ceiling_of_a_validation_set_counts_its_own_sizes():
    task = RunningSums()
    prompts = task.validation_prompts(150)  # ten of each size
    assert task.ceiling(prompts, 56, 64) == pytest.approx(ceiling(56, 64))
    assert ceiling_of([15], 56, 64) == pytest.approx(4 / 9)


def test_the_second_task_has_large_digits_the_same_ceiling_and_the_same_split():
    first, second = RunningSums(), CarrySums()
    asked = [Sum.parse(p.question) for p in second.train_prompts(seed=0)]
    assert len(asked) == 4000 and min(min(s.digits) for s in asked) == 5
    held_out = second.validation_prompts(105)
    assert second.ceiling(held_out, 56, 64) == pytest.approx(ceiling(56, 64))
    trained = {p.question for task in (first, second) for p in task.train_prompts(seed=0)}
    assert not trained & {p.question for p in held_out + first.validation_prompts(210)}
    assert {p.task for p in held_out} == {"carry-sums"}
    with pytest.raises(InputError, match="carry-sums makes its own prompts"):
        CarrySums("data.jsonl")


def test_budgets_in_the_wrong_order_are_refused():
    with pytest.raises(InputError, match="smaller first"):
        ceiling(64, 56)


@pytest.mark.parametrize(
    ("completion", "right"),
    [
        ("a770b521</think>21<eos>", True),
        ("a770b521</think>21", True),
        ("a770b521!</think>21<eos>", False),  # interrupted
        ("a990~a770b521</think>21<eos>", True),
        ("a770b521</think>12<eos>", False),  # ones come first
        ("a770b531</think>21<eos>", False),  # the thought says otherwise
        ("a770!</think>21<eos>", False),  # a guess
        ("a770b52!</think>21<eos>", False),  # finished unseen
        ("</think>21<eos>", False),
        ("a770b521", False),
        ("a770b52121<eos>", False),
        ("a770b521</think>210<eos>", False),
        ("a770b521</think></think>21", False),
        ("", False),
    ],
)
def test_an_answer_counts_only_if_it_is_right_and_worked_out(completion, right):
    assert score_answer(Sum((7, 5)), completion)[0] is right


def test_rewards_are_plus_and_minus_one():
    task = RunningSums(prompts=50)
    prompt = task.train_prompts(0)[0]
    thought = Sum.parse(prompt.question).thought
    assert task.check(prompt, f"{thought}</think>{prompt.answer}").reward == 1.0
    assert task.check(prompt, f"{thought}</think>x").reward == -1.0


def test_every_prompt_is_answered_by_the_clean_teacher():
    task = RunningSums(prompts=500)
    for prompt in task.train_prompts(3):
        assert task.check(
            prompt, trace(Sum.parse(prompt.question), CLEAN, random.Random(0)).text
        ).correct


def test_the_noisy_teacher_slips_at_a_steady_rate():
    task, source = RunningSums(prompts=3000), random.Random(0)
    right = [
        task.check(p, trace(Sum.parse(p.question), Noise(), source).text).correct
        for p in task.train_prompts(0)
    ]
    assert 0.15 < sum(right) / len(right) < 0.3


def test_the_forgetful_teacher_mostly_forgets_to_carry_and_never_redoes_that():
    """Where 7 + 5 are added it writes 2, not 12, at the stated rate, slips being left out."""
    source, habit = random.Random(0), TEACHERS["forgetful"].without_slips
    written = [trace(Sum((7, 5)), habit, source).text for _ in range(3000)]
    assert set(written) == {"a770b521</think>21<eos>", "a770b520</think>20<eos>"}
    forgot = written.count("a770b520</think>20<eos>") / len(written)
    assert abs(forgot - 0.65) < 0.03  # standard error 0.009
    # Without a carry there is nothing to forget, and what was forgotten stays in the sum.
    assert trace(Sum((7, 2)), habit, source).text == "a770b290</think>90<eos>"
    always = Noise(forgets_carry=1.0).without_slips
    assert trace(Sum((7, 5, 9, 8)), always, source).thought == "a770b520c910d890</think>"


def test_the_likeliest_answer_of_the_forgetful_teacher_is_wrong_and_of_the_noisy_one_right():
    """Over the tokens that follow the same thought: what a greedy pupil would write."""
    source, asked = random.Random(0), Sum((7, 5))
    likeliest = {
        name: Counter(trace(asked, TEACHERS[name], source).text for _ in range(2000)).most_common(
            1
        )[0][0]
        for name in ("forgetful", "noisy")
    }
    assert score_answer(asked, likeliest["noisy"]) == (True, "right")
    assert likeliest["forgetful"] == "a770b520</think>20<eos>"


def test_a_cut_trace_answers_with_its_last_finished_sum():
    source = random.Random(1)
    for _ in range(50):
        lesson = trace(Sum((1, 2, 3)), Noise(rate=0.0, needless_redo=0.0, cut=1.0), source)
        finished = lesson.thought[: len(lesson.thought) // 4 * 4]
        assert lesson.forced == PHRASE
        assert lesson.answer == finished[-2:] + "<eos>"


def test_training_and_validation_share_no_prompt():
    task = RunningSums(prompts=4000)
    train = {p.id for seed in (0, 1) for p in task.train_prompts(seed)}
    held_out = {p.id for p in task.validation_prompts(1000)}
    assert len(train) == 4000
    assert len(held_out) == 1000
    assert not train & held_out


def test_sizes_take_turns_in_validation():
    sizes = [len(Sum.parse(p.question).digits) for p in RunningSums().validation_prompts(150)]
    assert {sizes.count(n) for n in range(2, 17)} == {10}


def test_prompts_are_the_same_in_every_run():
    one, other = RunningSums(prompts=100), RunningSums(prompts=100)
    assert one.train_prompts(7) == other.train_prompts(7)
    assert one.train_prompts(7) != one.train_prompts(8)
    assert {p.id for p in one.train_prompts(7)} == {p.id for p in one.train_prompts(8)}
    assert one.validation_prompts(20) == other.validation_prompts(30)[:20]
    assert (
        one.validation_prompts(1)[0].id == "running-sums/" + one.validation_prompts(1)[0].id[-16:]
    )


@pytest.mark.parametrize("options", [{"items_min": 1}, {"items_max": 27}, {"prompts": 0}])
def test_impossible_options_are_refused(options):
    with pytest.raises(InputError):
        RunningSums(**options)


def test_more_prompts_than_there_are_questions_are_refused():
    with pytest.raises(InputError, match="only"):
        RunningSums(items_max=2, prompts=101).train_prompts(0)


def test_sums_are_written_ones_first():
    assert [written(n) for n in (0, 9, 10, 99, 100, 144)] == ["00", "90", "01", "99", "00", "44"]
