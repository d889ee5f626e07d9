"""A checker, with real threads and a real event loop: what hangs costs its own answer."""

import asyncio
import threading
import time

import pytest

from scalerl.errors import PipelineError
from scalerl.pipeline import messages as m
from scalerl.placement.environment_worker import EnvironmentWorker
from scalerl.tasks.task import Answer, Task, make_prompt

PROMPT = make_prompt("judge", "question", None)
#: Calls that take no time need far less; those that hang are given up after it.
SECONDS, LIMIT = 0.2, 20.0


class Unheard(BaseException):
    """Neither an Exception nor anything that Python knows."""


ENDS = {"exit": SystemExit, "interrupt": KeyboardInterrupt, "unheard": Unheard}


class Judge(Task):
    """Does with an answer what the answer says."""

    def __init__(self):
        super().__init__("judge")
        self.release = threading.Event()
        self.meets = threading.Barrier(3)
        self.calls = []

    def prompts(self):
        return []

    def check_all(self, answers):
        self.calls.append(len(answers))
        if any(a.text == "raise" for a in answers):
            raise ZeroDivisionError("no gold answer")
        return super().check_all(answers)

    def score(self, prompt, text):
        if text == "hang":
            self.release.wait(LIMIT)
        elif text in ENDS:
            raise ENDS[text]("no judge today")
        elif text == "meet":  # passes only if as many calls run at once
            self.meets.wait(LIMIT)
        return text != "wrong", text


class AsyncJudge(Judge):
    """The same on an event loop."""

    is_async = True

    def __init__(self):
        super().__init__()
        self.threads = set()
        self.most = self.now = 0
        self.cancelled = 0

    async def check_together(self, answers):
        self.threads.add(threading.current_thread())
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            text = answers[0].text
            if text == "raise":
                raise ZeroDivisionError("no gold answer")
            if text == "block":
                self.release.wait(LIMIT)
            if text == "exit":
                await asyncio.gather(self._exit())
            await asyncio.sleep(LIMIT if text == "hang" else 0.02)
            return [self.rules.score(text != "wrong", text) for _ in answers]
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.now -= 1

    async def _exit(self):
        raise SystemExit("no judge today")


class Bench:
    """A checker, and what it says."""

    def __init__(self, task, places=3, seconds=LIMIT):
        self.task = task
        self.said = {}
        self.part = EnvironmentWorker(task, places, seconds, self._hear)
        self.jobs = 0

    def _hear(self, message):
        self.said[message.job] = message

    def check(self, *texts):
        self.jobs += 1
        self.part.take(m.ScoreAnswers(self.jobs, tuple(Answer(PROMPT, text) for text in texts)))
        return self.jobs

    def answer(self, job):
        """What it says to a job; it is looked after meanwhile, as its process does."""
        deadline = time.monotonic() + LIMIT
        while job not in self.said:
            assert time.monotonic() < deadline, "the checker has not answered"
            self.part.give_up()
            time.sleep(0.005)
        return self.said[job]


@pytest.fixture
def task():
    judge = Judge()
    yield judge
    judge.release.set()


def test_scores_come_in_the_order_of_the_answers(task):
    bench = Bench(task)
    found = bench.answer(bench.check("right", "wrong", "right", "wrong", "wrong"))
    assert [v.correct for v in found.scores] == [True, False, True, False, False]
    assert found.hung == 0 and found.seconds >= 0


def test_calls_run_side_by_side_as_many_as_there_are_places(task):
    """Each of the three waits for the others."""
    bench = Bench(task, places=3)
    assert all(v.scored for v in bench.answer(bench.check("meet", "meet", "meet")).scores)


def test_a_call_that_hangs_is_given_up_and_the_others_go_on(task):
    bench = Bench(task, places=1, seconds=SECONDS)
    hanging = bench.check("hang")
    other = bench.check("right", "wrong")  # waits for the only place
    found = bench.answer(hanging)
    assert [v.gave_up for v in found.scores] == [True] and not found.scores[0].scored
    assert "has not answered for 0.2 s" in found.scores[0].why and found.hung == 1
    assert [v.correct for v in bench.answer(other).scores] == [True, False]
    assert bench.part.hung == 1


def test_only_the_answer_that_hangs_stays_unscored(task):
    bench = Bench(task, places=3, seconds=SECONDS)
    found = bench.answer(bench.check("right", "hang", "wrong"))
    assert [v.correct for v in found.scores] == [True, None, False]
    assert [v.gave_up for v in found.scores] == [False, True, False]


def test_a_call_that_comes_back_late_hangs_no_longer_and_says_nothing(task):
    bench = Bench(task, places=2, seconds=SECONDS)
    job = bench.check("hang")
    late = bench.answer(job)
    task.release.set()
    deadline = time.monotonic() + LIMIT
    while bench.part.hung and time.monotonic() < deadline:
        time.sleep(0.005)
    assert bench.part.hung == 0
    assert bench.said[job] is late


def test_what_a_verifier_raises_is_data(task):
    bench = Bench(task)
    found = bench.answer(bench.check("right", "raise"))
    assert [v.correct for v in found.scores] == [True, None]
    assert "ZeroDivisionError: no gold answer" in found.scores[1].why
    assert not found.scores[1].gave_up


def test_answers_that_are_judged_together_are_one_call(task):
    task.together = True
    bench = Bench(task)
    assert [v.correct for v in bench.answer(bench.check("right", "wrong")).scores] == [
        True,
        False,
    ]
    assert task.calls == [2]


def test_async_calls_are_awaited_on_one_loop_as_many_at_once_as_there_are_places():
    task = AsyncJudge()
    bench = Bench(task, places=3)
    found = bench.answer(bench.check(*["right", "wrong"] * 4))
    assert [v.correct for v in found.scores] == [True, False] * 4
    assert len(task.threads) == 1 and task.calls == []
    assert task.most == 3


def test_an_async_call_is_ended_for_good_at_its_deadline():
    task = AsyncJudge()
    bench = Bench(task, places=2, seconds=SECONDS)
    found = bench.answer(bench.check("right", "hang", "wrong"))
    assert [v.correct for v in found.scores] == [True, None, False]
    assert found.scores[1].gave_up and "has not answered for 0.2 s" in found.scores[1].why
    assert task.cancelled == 1 and task.now == 0
    assert found.hung == 0, "nothing of it is left to hang"


def test_what_an_async_verifier_raises_is_data():
    bench = Bench(AsyncJudge())
    found = bench.answer(bench.check("raise", "right"))
    assert [v.correct for v in found.scores] == [None, True]
    assert "ZeroDivisionError" in found.scores[0].why


def test_what_a_checker_does_not_understand_is_named(task):
    with pytest.raises(PipelineError, match="a checker does not understand 'SaveCheckpoint'"):
        Bench(task).part.take(m.SaveCheckpoint("x"))


@pytest.mark.parametrize("text", ["exit", "interrupt", "unheard"])
def test_whatever_a_verifier_raises_is_a_failed_answer_and_its_checker_goes_on(task, text):
    bench = Bench(task, places=1)
    (verdict,) = bench.answer(bench.check(text)).scores
    assert not verdict.scored and f"{ENDS[text].__name__}: no judge today" in verdict.why
    assert bench.answer(bench.check("fine")).scores[0].correct


def test_an_async_verifier_that_wants_to_exit_fails_its_answer_and_the_loop_goes_on():
    bench = Bench(AsyncJudge(), places=2)
    (verdict,) = bench.answer(bench.check("exit")).scores
    assert not verdict.scored and "SystemExit: no judge today" in verdict.why
    assert bench.answer(bench.check("fine")).scores[0].correct


def test_an_async_verifier_that_blocks_its_event_loop_costs_its_own_answer():
    task = AsyncJudge()
    bench = Bench(task, places=4, seconds=0.2)
    fine, blocked, also = bench.check("fine"), bench.check("block"), bench.check("wrong")
    assert bench.answer(blocked).scores[0].gave_up
    assert bench.answer(fine).scores[0].correct
    assert bench.answer(also).scores[0].correct is False
    assert bench.answer(bench.check("later")).scores[0].correct
    assert bench.part.hung == 1, "its thread is left behind"
    task.release.set()


def test_a_timeout_of_the_verifiers_own_is_told_as_such():
    class Impatient(AsyncJudge):
        async def check_together(self, answers):
            raise TimeoutError("the judge did not answer")

    bench = Bench(Impatient())
    (verdict,) = bench.answer(bench.check("fine")).scores
    assert not verdict.gave_up and verdict.why.endswith("TimeoutError: the judge did not answer")
