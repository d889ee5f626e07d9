"""Checks by themselves: what is handed to whom, and whom a death or a hang costs what."""

import pytest
from pieces import FakeClock, FakeHandle

from scalerl.errors import PipelineError
from scalerl.pipeline import messages as m
from scalerl.pipeline.environment_pool import GRACE_SECONDS, MAX_FAILURES, EnvironmentPool
from scalerl.tasks.task import Answer, AnswerScore, Task, make_prompt

RIGHT = AnswerScore(True, 1.0, "equal")
HUNG = AnswerScore(None, None, "the verifier has not answered", gave_up=True)
SECONDS, START, PATIENCE = 5.0, 300.0, 40.0


class Judge(Task):
    """Answers are judged one by one, or all of a prompt in one call."""

    def __init__(self, together):
        super().__init__("judge")
        self.together = together

    def prompts(self):
        return []

    def score(self, prompt, completion):
        raise AssertionError("the loop itself never checks")


class Bench:
    """Checks, the checkers they are handed to, and a clock."""

    def __init__(self, checkers=2, places=4, together=False):
        self.clock = FakeClock()
        self.handles = [FakeHandle(f"checker {i}") for i in range(checkers)]
        self.checks = EnvironmentPool(
            Judge(together), self.handles, checkers * places, SECONDS, self.clock
        )
        for handle in self.handles:
            self.checks.on_ready(handle)

    def submit(self, key, count=2):
        prompt = make_prompt("judge", f"question {key}", None)
        self.checks.score(key, [Answer(prompt, f"{key}.{i}") for i in range(count)])

    def texts(self, i):
        """What a checker was sent and has not answered, job by job."""
        name = self.handles[i].name
        jobs = self.checks.states[name].jobs
        return [[a.text for a in x.answers] for x in self.handles[i].sent if x.job in jobs]

    def answer(self, i, *verdicts, hung=0, seconds=0.1):
        """The oldest job of a checker comes back; all right unless said otherwise."""
        job = next(iter(self.checks.states[self.handles[i].name].jobs.values()))
        found = verdicts or (RIGHT,) * len(job.answers)
        return self.checks.on_done(
            self.handles[i], m.WorkDone(job.number, found, seconds=seconds, hung=hung)
        )

    def die(self, i, *, up=True):
        """A checker dies, and another takes its place."""
        old = self.handles[i]
        self.handles[i] = FakeHandle(old.name)
        found = self.checks.on_worker_lost(old, self.handles[i], "died: killed by signal 11")
        if up:
            self.checks.on_ready(self.handles[i])
        return found


def test_the_answers_of_a_prompt_travel_together_and_fill_places_one_by_one():
    bench = Bench(checkers=1, places=4)
    for key in "abc":
        bench.submit(key)
    assert bench.texts(0) == [["a.0", "a.1"], ["b.0", "b.1"]]  # four calls at once: c waits
    (scored,) = bench.answer(0)
    assert (scored.key, scored.scores) == ("a", (RIGHT, RIGHT))
    assert bench.texts(0) == [["b.0", "b.1"], ["c.0", "c.1"]]
    assert bench.checks.pending == 2


def test_quick_checks_are_given_ahead_and_slow_ones_wait_for_a_place():
    bench = Bench(checkers=1, places=2)
    bench.submit("first")
    bench.answer(0, seconds=0.004)  # 2 ms a call: ten calls take 20 ms
    for key in "abcdefg":
        bench.submit(key)
    assert len(bench.texts(0)) == 5
    for _ in range(5):
        bench.answer(0, seconds=20.0)  # no longer quick
    assert bench.texts(0) == [["f.0", "f.1"]]  # g waits


def test_answers_that_are_judged_in_one_call_take_one_place():
    bench = Bench(checkers=1, places=2, together=True)
    for key in "abc":
        bench.submit(key, count=5)
    assert [len(job) for job in bench.texts(0)] == [5, 5]


def test_work_is_shared_by_all_checkers_and_waits_for_those_that_start():
    bench = Bench(checkers=2, places=2)
    bench.die(1, up=False)
    for key in "abcd":
        bench.submit(key)
    assert bench.texts(0) == [["a.0", "a.1"]] and bench.handles[1].sent == []
    bench.checks.on_ready(bench.handles[1])
    assert bench.texts(1) == [["b.0", "b.1"]]


def test_a_death_makes_suspects_that_are_checked_alone():
    bench = Bench(checkers=1, places=8)
    bench.submit("a")
    bench.submit("b")
    assert bench.die(0) == []
    seen = []
    for _ in range(4):
        ((text,),) = bench.texts(0)  # nothing else beside it
        seen.append(text)
        found = bench.answer(0)
    assert seen == ["a.0", "a.1", "b.0", "b.1"]
    (scored,) = found
    assert (scored.key, scored.scores) == ("b", (RIGHT, RIGHT))
    assert bench.checks.pending == 0 and bench.checks.notes == []


def test_nothing_joins_a_suspect_in_its_checker():
    bench = Bench(checkers=2, places=4)
    bench.submit("a", count=1)
    bench.die(0)
    bench.submit("b", count=4)
    bench.submit("c", count=4)
    assert bench.texts(1) == [["a.0"]]  # it was idle
    assert bench.texts(0) == [["b.0", "b.1", "b.2", "b.3"]]  # and c waits
    bench.answer(1)
    assert bench.texts(1) == [["c.0", "c.1", "c.2", "c.3"]]


def test_a_second_death_leaves_that_answer_alone_unscored():
    bench = Bench(checkers=1, places=8)
    bench.submit("a", count=3)
    bench.die(0)
    assert bench.answer(0) == []
    assert bench.texts(0) == [["a.1"]]
    assert bench.die(0) == []
    (scored,) = bench.answer(0)
    first, culprit, last = scored.scores
    assert first == last == RIGHT
    assert not culprit.scored
    assert "ended its checker process (died: killed by signal 11)" in culprit.why
    assert len(bench.checks.notes) == 1 and "1 answer stays unscored" in bench.checks.notes[0]


def test_answers_judged_in_one_call_are_suspect_and_given_up_in_one():
    bench = Bench(checkers=1, places=2, together=True)
    bench.submit("a", count=3)
    bench.submit("b", count=3)
    bench.die(0)
    assert bench.texts(0) == [["a.0", "a.1", "a.2"]]
    (scored,) = bench.die(0)
    assert scored.key == "a" and [v.scored for v in scored.scores] == [False] * 3
    assert bench.texts(0) == [["b.0", "b.1", "b.2"]]
    (scored,) = bench.answer(0)
    assert scored.key == "b" and all(v.scored for v in scored.scores)


def test_an_overdue_checker_is_to_be_replaced_and_not_before():
    bench = Bench(checkers=2, places=2)
    bench.submit("a", count=2)
    bench.clock.time = SECONDS + GRACE_SECONDS
    assert bench.checks.replaceable(PATIENCE, START) == []
    bench.clock.time += 0.1
    ((worker, why),) = bench.checks.replaceable(PATIENCE, START)
    assert worker is bench.handles[0] and why == "has not answered a call for 15 s"


def test_a_job_that_takes_turns_in_its_places_has_time_for_all_of_them():
    bench = Bench(checkers=1, places=2)
    bench.submit("a", count=6)  # three rounds of two
    bench.clock.time = 3 * SECONDS + GRACE_SECONDS
    assert bench.checks.replaceable(PATIENCE, START) == []
    bench.clock.time += 0.1
    assert len(bench.checks.replaceable(PATIENCE, START)) == 1


def test_what_is_sent_later_does_not_move_the_deadline_of_a_check():
    bench = Bench(checkers=1, places=2)
    bench.submit("first")
    bench.answer(0, seconds=0.002)  # quick: more is sent ahead
    bench.submit("a")
    for i in range(1, 4):
        bench.clock.time = 4.0 * i
        bench.submit(f"later {i}")
    assert len(bench.texts(0)) == 4
    bench.clock.time = SECONDS + GRACE_SECONDS + 0.1
    ((_, why),) = bench.checks.replaceable(PATIENCE, START)
    assert why == "has not answered a call for 15 s"


def test_a_checker_without_a_heartbeat_is_replaced_after_the_patience_and_others_get_its_checks():
    """A stopped process: one check of a minute's limit, and a patience of 40 s."""
    bench = Bench(checkers=2, places=4)
    bench.checks.seconds = 60.0
    bench.submit("a", count=4)
    bench.submit("b", count=4)
    bench.answer(1)
    bench.clock.time = bench.handles[0].silence = PATIENCE
    assert bench.checks.replaceable(PATIENCE, START) == []
    bench.clock.time = bench.handles[0].silence = PATIENCE + 1
    ((worker, why),) = bench.checks.replaceable(PATIENCE, START)
    assert worker is bench.handles[0] and why == "has sent nothing for 41 s"
    bench.die(0, up=False)
    seen = []
    for _ in range(4):
        seen += bench.texts(1)
        found = bench.answer(1)
    assert seen == [["a.0"], ["a.1"], ["a.2"], ["a.3"]]
    assert found[0].key == "a" and found[0].scores == (RIGHT,) * 4


def test_an_idle_checker_without_a_heartbeat_is_replaced_too():
    bench = Bench(checkers=1)
    bench.handles[0].silence = PATIENCE + 1
    assert len(bench.checks.replaceable(PATIENCE, START)) == 1


def test_a_checker_in_a_long_call_whose_heartbeat_goes_on_has_the_time_of_the_call():
    bench = Bench(checkers=1)
    bench.checks.seconds = 10 * PATIENCE
    bench.submit("a")
    bench.clock.time, bench.handles[0].silence = 10 * PATIENCE, 0.5
    assert bench.checks.replaceable(PATIENCE, START) == []


def test_a_pause_of_the_loop_is_not_counted_against_a_check():
    bench = Bench(checkers=1)
    bench.submit("a")
    bench.clock.time = 1000.0
    bench.checks.shift_deadlines(990.0)
    assert bench.checks.replaceable(PATIENCE, START) == []


def test_an_idle_checker_is_never_overdue():
    bench = Bench(checkers=1)
    bench.submit("a")
    bench.answer(0)
    bench.clock.time = 1e6
    assert bench.checks.replaceable(PATIENCE, START) == []


def test_a_checker_in_which_calls_hang_gets_nothing_new_and_is_replaced_when_idle():
    bench = Bench(checkers=1, places=4)
    bench.submit("a", count=2)
    bench.submit("b", count=2)
    bench.submit("c", count=2)
    (scored,) = bench.answer(0, HUNG, RIGHT, hung=1)
    assert [v.scored for v in scored.scores] == [False, True]
    assert bench.texts(0) == [["b.0", "b.1"]]  # c is kept for its successor
    assert bench.checks.replaceable(PATIENCE, START) == []
    bench.answer(0, hung=1)
    ((worker, why),) = bench.checks.replaceable(PATIENCE, START)
    assert worker is bench.handles[0] and why == "has 1 call that hangs"
    bench.die(0)
    assert bench.texts(0) == [["c.0", "c.1"]]
    assert bench.checks.replaceable(PATIENCE, START) == []


def test_a_few_hanging_calls_do_not_wear_out_a_large_checker():
    bench = Bench(checkers=1, places=16)
    bench.submit("a", count=2)
    bench.answer(0, HUNG, HUNG, hung=2)
    assert bench.checks.replaceable(PATIENCE, START) == []
    bench.checks.on_done(bench.handles[0], m.WorkDone(None, hung=3))
    assert len(bench.checks.replaceable(PATIENCE, START)) == 1


def test_one_that_does_not_start_is_to_be_replaced_after_the_time_for_it():
    bench = Bench(checkers=2)
    bench.die(1, up=False)
    bench.handles[1].silence = START + 1
    ((worker, why),) = bench.checks.replaceable(PATIENCE, START)
    assert worker is bench.handles[1] and "did not start in 300 s" in why


def test_a_verifier_that_always_hangs_ends_the_run_with_one_line():
    bench = Bench(checkers=1, places=8)
    with pytest.raises(PipelineError, match=r"24 answers in a row: repair the verifier") as error:
        for i in range(100):
            bench.submit(i, count=1)
            bench.answer(0, HUNG)
    assert i + 1 == MAX_FAILURES and "\n" not in str(error.value)


def test_answers_that_are_judged_in_between_forgive_those_that_hang():
    bench = Bench(checkers=1, places=8)
    for i in range(3 * MAX_FAILURES):
        bench.submit(i, count=1)
        bench.answer(0, *([RIGHT] if i % MAX_FAILURES == 7 else [HUNG]))
    assert len(bench.checks.notes) == 3 * MAX_FAILURES - 3


def test_a_verifier_that_always_kills_its_checker_ends_the_run():
    bench = Bench(checkers=1, places=8)
    with pytest.raises(PipelineError, match="repair the verifier"):
        for i in range(100):
            bench.submit(i, count=1)
            bench.die(0)
            bench.die(0)


def test_verdicts_on_what_somebody_else_has_judged_meanwhile_are_an_old_story():
    bench = Bench(checkers=1)
    bench.submit("a")
    job = bench.handles[0].sent[0].job
    bench.answer(0)
    assert bench.checks.on_done(bench.handles[0], m.WorkDone(job, (RIGHT, RIGHT))) == []
    assert bench.checks.on_done(bench.handles[0], m.WorkDone(None)) == []
