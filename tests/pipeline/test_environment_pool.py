"""Checks by themselves: what is handed to whom, and whom a death or a hang costs what."""

import pytest
from pieces import FakeClock, FakeHandle

from scalerl.environments.interface import Action, Observation, Outcome
from scalerl.errors import PipelineError
from scalerl.pipeline import messages as m
from scalerl.pipeline.environment_pool import (
    GRACE_SECONDS,
    MAX_CALLS,
    MAX_FAILURES,
    EnvironmentPool,
)
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


# -- environments ---------------------------------------------------------------------------------

PROMPT = make_prompt("game", "play", None)
OVER = Outcome(AnswerScore(True, 1.0, "won"))


class Games(Bench):
    """A bench with calls of environments."""

    def call(self, episode, turns=0, kind="step"):
        history = tuple(Action(f"turn {i}") for i in range(turns))
        shown = () if kind == "reset" else ("r", *(f"s{i}" for i in range(turns)))
        action = Action("now") if kind == "step" else None
        self.checks.call(m.EnvironmentCall(episode, PROMPT, 3, kind, action, history, shown))

    def calls(self, i):
        """Calls that a worker was sent: episode, turns that it is believed to hold, history."""
        calls = [x for x in self.handles[i].sent if isinstance(x, m.CallEnvironment)]
        return [(x.call.episode, x.held, len(x.call.history)) for x in calls]

    def closed(self, i):
        sent = [x for x in self.handles[i].sent if isinstance(x, m.CloseEpisodes)]
        return [episode for x in sent for episode in x.episodes]

    def reply(self, i, episode, reply=OVER, hung=0, **more):
        """A worker replies; None: it does not hold the environment."""
        jobs = self.checks.states[self.handles[i].name].jobs.values()
        (job,) = [job for job in jobs if job.call is not None and job.call.episode == episode]
        if reply is not None:
            reply = m.EnvironmentReply(episode, job.call.kind, reply, "f", **more)
        done = m.WorkDone(job.number, reply=reply, hung=hung)
        return self.checks.on_done(self.handles[i], done)


def observed(i=0):
    return Observation(({"role": "user", "content": str(i)},))


def test_the_worker_that_holds_an_environment_gets_its_calls_without_their_history():
    bench = Games(checkers=2)
    for episode in "abcd":
        bench.call(episode, kind="reset")
    assert bench.calls(0) == [("a", None, 0), ("c", None, 0)]
    assert bench.calls(1) == [("b", None, 0), ("d", None, 0)]
    (found,) = bench.reply(0, "a", observed())
    assert found.episode == "a" and bench.checks.pending == 3
    bench.call("a", turns=2)
    assert bench.calls(0)[-1] == ("a", 2, 0)
    assert bench.handles[0].sent[-1].call.shown == ()


def test_a_worker_without_the_environment_that_it_should_hold_gets_the_history():
    bench = Games(checkers=1)
    bench.call("a", kind="reset")
    bench.reply(0, "a", observed())
    bench.call("a", turns=3)
    assert bench.reply(0, "a", None) == []
    assert bench.calls(0)[1:] == [("a", 3, 0), ("a", None, 3)]
    assert bench.handles[0].sent[-1].call.shown == ("r", "s0", "s1", "s2")
    assert bench.checks.pending == 1


def test_environments_that_wait_take_no_places():
    bench = Games(checkers=1, places=2)
    for i in range(MAX_CALLS + 5):
        bench.call(f"e{i}", kind="reset")
    assert len(bench.calls(0)) == MAX_CALLS
    bench.reply(0, "e0")
    assert bench.calls(0)[-1][0] == f"e{MAX_CALLS}"
    bench.submit("answers", count=2)
    assert isinstance(bench.handles[0].sent[-1], m.ScoreAnswers)


@pytest.mark.parametrize("last", ["outcome", "problem", "cut_off"])
def test_an_environment_is_gone_after_its_last_reply(last):
    bench = Games(checkers=1)
    bench.call("a", kind="reset")
    bench.reply(0, "a", observed())
    bench.call("a", kind="cut_off" if last == "cut_off" else "step")
    if last == "problem":
        bench.checks.on_done(
            bench.handles[0],
            m.WorkDone(2, reply=m.EnvironmentReply("a", "step", None, problem="it raised")),
        )
    else:
        bench.reply(0, "a")
    assert bench.checks.pending == 0
    assert bench.checks.states["checker 0"].held == set()
    bench.checks.close(["a"])
    assert bench.closed(0) == []


def test_what_is_closed_gets_no_reply_and_is_not_sent():
    bench = Games(checkers=1, places=2)
    bench.call("a", kind="reset")
    bench.call("b", kind="reset")
    bench.reply(0, "b", observed())
    bench.die(0, up=False)
    bench.call("b")
    bench.call("c", kind="reset")
    bench.checks.close(["a", "b", "unknown"])
    assert bench.checks.pending == 1
    bench.checks.on_ready(bench.handles[0])
    assert bench.calls(0) == [("c", None, 0)]
    bench.checks.close(["c"])
    assert bench.closed(0) == ["c"]
    job = bench.handles[0].sent[0].job
    late = m.WorkDone(job, reply=m.EnvironmentReply("c", "reset", None, problem="cancelled"))
    assert bench.checks.on_done(bench.handles[0], late) == []
    assert bench.checks.states["checker 0"].jobs == {}


def test_a_death_makes_calls_suspect_and_the_second_names_the_cause():
    bench = Games(checkers=1)
    for episode in "abc":
        bench.call(episode, turns=1)
    bench.submit("x", count=1)
    assert bench.die(0) == []
    assert bench.calls(0) == [("a", None, 1)]
    bench.call("d", kind="reset")
    assert len(bench.calls(0)) == 1, "alone"
    bench.reply(0, "a", observed())
    assert bench.calls(0)[-1] == ("b", None, 1)
    (found,) = bench.die(0)
    assert found.episode == "b" and found.gave_up and found.reply is None
    why = "the environment of task game ended its worker process (died: killed by signal 11)"
    assert found.problem == why
    assert bench.checks.notes == [f"{why}: 1 episode stays unscored"]
    assert bench.calls(0) == [("c", None, 1)]


def test_calls_leave_a_worker_that_is_to_be_replaced_or_has_a_suspect():
    bench = Games(checkers=2, places=4)
    for episode in "abcd":
        bench.call(episode, kind="reset")
        bench.reply("abcd".index(episode) % 2, episode, observed())
    bench.checks.on_done(bench.handles[0], m.WorkDone(None, hung=1))
    bench.call("a", turns=1)
    assert bench.calls(1)[-1] == ("a", None, 1)
    assert bench.closed(0) == ["a"]
    ((worker, why),) = bench.checks.replaceable(PATIENCE, START)
    assert worker is bench.handles[0] and why == "has 1 call that hangs"


def test_a_replay_has_time_for_every_turn():
    bench = Games(checkers=1, places=1)
    bench.call("a", turns=3)
    bench.clock.time = 5 * SECONDS + GRACE_SECONDS
    assert bench.checks.replaceable(PATIENCE, START) == []
    bench.clock.time += 0.1
    assert len(bench.checks.replaceable(PATIENCE, START)) == 1


def test_an_environment_that_always_hangs_ends_the_run_with_one_line():
    bench = Games(checkers=1, places=2)
    with pytest.raises(PipelineError, match="24 episodes in a row: repair the environment"):
        for i in range(100):
            bench.call(str(i), kind="reset")
            bench.reply(0, str(i), OVER, problem="no answer", gave_up=True)
    assert i + 1 == MAX_FAILURES


def test_an_episode_has_one_call_at_a_time():
    bench = Games(checkers=1)
    bench.call("a", kind="reset")
    with pytest.raises(PipelineError, match="episode a waits for its environment already"):
        bench.call("a")
