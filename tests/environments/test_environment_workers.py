"""Environments in real worker processes: what one of them does costs its own episode."""

import os
import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from fault_environments import WORDS, Notes, fault

from scalerl.environments.interface import Action, Observation, Outcome
from scalerl.pipeline import messages as m
from scalerl.pipeline.crew import MessageReceived
from scalerl.pipeline.environment_pool import EnvironmentPool
from scalerl.placement.environment_worker import run_environments
from scalerl.placement.live_environments import MAX_CHARACTERS
from scalerl.placement.processes import RealClock, WorkerProcesses
from scalerl.tasks import make_task

LIMIT = 120.0
SEED = 7


class Bench:
    """A pool and its workers; and the episodes, as the loop keeps them."""

    def __init__(self, name="Faulty", workers=1, places=4, seconds=LIMIT, **settings):
        self.settings = settings
        self.task = make_task(
            f"environment:fault_environments:{name}", options={"settings": settings}
        )
        self.prompts = self.task.prompts()
        self.crew = WorkerProcesses()
        light = self.task.for_checking()
        self.crew.checkers = [
            self.crew._start(f"checker {i}", run_environments, light, places, seconds)
            for i in range(workers)
        ]
        self.pool = EnvironmentPool(
            self.task, self.crew.checkers, workers * places, seconds, RealClock()
        )
        self.histories, self.shown, self.replies = {}, {}, {}
        #: Number of environments that each worker last reported.
        self.live = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.crew.stop(at_once=True)

    def call(self, episode, kind, text=""):
        action = Action(text) if kind == "step" else None
        history, shown = self.histories.get(episode, ()), self.shown.get(episode, ())
        number = int(episode.partition("/")[0])
        self.pool.call(
            m.EnvironmentCall(episode, self.prompts[number], SEED, kind, action, history, shown)
        )
        if kind == "step":
            self.histories[episode] = (*history, action)

    def poll(self):
        found = []
        for event in self.crew.poll(0.05):
            if not isinstance(event, MessageReceived):
                new = self.crew.replace(event.worker)
                found += self.pool.on_worker_lost(event.worker, new, event.why)
            elif isinstance(event.message, m.WorkerReady):
                self.pool.on_ready(event.worker)
            else:
                assert isinstance(event.message, m.WorkDone), event.message
                self.live[event.worker.name] = event.message.live
                found += self.pool.on_done(event.worker, event.message)
        for handle, why in self.pool.replaceable(LIMIT, LIMIT):
            found += self.pool.on_worker_lost(handle, self.crew.replace(handle), why)
        for reply in found:
            self.shown[reply.episode] = (*self.shown.get(reply.episode, ()), reply.fingerprint)
            self.replies[reply.episode] = reply
        return found

    def until(self, done, what="it"):
        deadline = time.monotonic() + LIMIT
        while not done():
            assert time.monotonic() < deadline, f"{what} did not happen"
            self.poll()

    def ask(self, *episodes, kind="step", text="x"):
        """Call the environments of these episodes at once; their replies."""
        for episode in episodes:
            self.replies.pop(episode, None)
            self.call(episode, kind, text)
        self.until(lambda: all(e in self.replies for e in episodes), f"replies to {episodes}")
        return [self.replies[e] for e in episodes]

    def worker_of(self, episode):
        return next(s.handle for s in self.pool.states.values() if episode in s.held)

    def started(self):
        self.until(lambda: not any(s.starting for s in self.pool.states.values()), "the start")

    def kill(self, worker):
        """Kill a worker, and start another one."""
        os.kill(worker.process.pid, signal.SIGKILL)
        self.until(lambda: worker not in self.crew.checkers, "the replacement")

    def first_fault(self, episode, faults, turns):
        """The first of these faults that an episode meets; empty if it has none."""
        question = self.prompts[int(episode.partition("/")[0])].question
        for turn in range(1, turns + 1):
            found = fault(self.settings, question, SEED, *["x"] * turn)
            if found in faults or found == "ends_early":
                return found if found in faults else ""
        return ""

    def chosen(self, episodes, *texts):
        """The episodes that go wrong in the turn with the last of these texts."""
        questions = {e: self.prompts[int(e.partition("/")[0])].question for e in episodes}
        return {e for e in episodes if fault(self.settings, questions[e], SEED, *texts)}


def said(reply):
    return [message["content"][:20] for message in reply.reply.messages]


def goes_on(reply):
    return isinstance(reply.reply, Observation)


def failed(replies):
    return {r.episode for r in replies if r.problem}


def names(count):
    return [f"{i}/0" for i in range(count)]


def closed(log):
    """Number of environments that were closed; each once."""
    lines = Notes.read(log)
    assert all(x.count("closed") <= 1 for x in lines)
    return sum(x[-1] == "closed" for x in lines if "reset" in x)


def test_an_episode_from_reset_to_its_outcome(tmp_path):
    with Bench(turns=2, log=str(tmp_path)) as bench:
        (reset,) = bench.ask("0/0", kind="reset")
        assert said(reset) == ["begin"] and not reset.problem
        # The other episodes of the group begin with a step: the worker resets and compares.
        bench.shown["0/1"] = (reset.fingerprint,)
        first, other = bench.ask("0/0", "0/1")
        assert said(first) == said(other) == ["no 1"]
        assert first.fingerprint == other.fingerprint != reset.fingerprint
        assert bench.pool.pending == 0
        (last,), (cut,) = bench.ask("0/0"), bench.ask("0/1", kind="cut_off")
        assert isinstance(last.reply, Outcome) and isinstance(cut.reply, Outcome)
        assert cut.reply.score.why == "cut off"
        bench.until(lambda: bench.live["checker 0"] == 0)
        bench.until(lambda: closed(tmp_path) == 2)
        played = [x for x in Notes.read(tmp_path) if "reset" in x]
        assert sorted(played) == [
            ["reset", "turn 1", "closed"],
            ["reset", "turn 1", "turn 2", "closed"],
        ]


def test_environments_wait_side_by_side():
    """63 that wait, in a worker with four places for those that block."""
    with Bench(slow=1.0, slow_seconds=1.0, places=4) as bench:
        bench.ask(*names(63), kind="reset")
        began = time.monotonic()
        replies = bench.ask(*names(63))
        # One after the other would take 63 s, in four places 16 s.
        assert sum(r.seconds for r in replies) > 4 * (time.monotonic() - began)


def test_one_that_hangs_costs_its_own_episode(tmp_path):
    with Bench(hangs=0.2, seconds=4.0, log=str(tmp_path)) as bench:
        episodes = names(40)
        bench.ask(*episodes, kind="reset")
        replies = bench.ask(*episodes)
        hung = bench.chosen(episodes, "x")
        assert failed(replies) == hung and 2 <= len(hung) <= 20
        assert all(r.gave_up and "not answered for 4 s" in r.problem for r in replies if r.problem)
        assert all(said(r) == ["no 1"] for r in replies if not r.problem)
        assert bench.pool.states["checker 0"].hung == 0, "an async call is ended for good"
        bench.until(lambda: closed(tmp_path) == len(hung))
        assert "has not answered for 4 s: 1 episode stays unscored" in bench.pool.notes[0]


@pytest.mark.parametrize("fault", ["blocks", "clings"])
def test_one_that_cannot_be_cancelled_costs_its_own_episode(fault):
    with Bench(seconds=4.0, places=32, **{fault: 0.1}) as bench:
        episodes = names(20)
        bench.ask(*episodes, kind="reset")
        replies = bench.ask(*episodes)
        bad = bench.chosen(episodes, "x")
        assert failed(replies) == bad and 1 <= len(bad) <= 4
        assert all(r.gave_up for r in replies if r.problem)
        assert all(said(r) == ["no 1"] for r in replies if not r.problem)
        assert bench.pool.states["checker 0"].hung == len(bad)


def test_one_that_ends_its_worker_costs_its_own_episode():
    with Bench(workers=2, crashes=0.1) as bench:
        episodes = names(20)
        bench.ask(*episodes, kind="reset")
        replies = bench.ask(*episodes)
        bad = bench.chosen(episodes, "x")
        assert failed(replies) == bad and 1 <= len(bad) <= 4
        why = "ended its worker process (died: exit code 3)"
        assert all(r.gave_up and why in r.problem for r in replies if r.problem)
        assert all(said(r) == ["no 1"] for r in replies if not r.problem)


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("raises", "raised ZeroDivisionError: no game today"),
        ("exits", "raised SystemExit: no game today"),
        ("returns_bytes", "step returned bytes, not an Observation or Outcome"),
        ("nan", "step returned the reward nan, not a finite number"),
    ],
)
def test_a_wrong_reply_is_a_problem_in_one_line(fault, problem, tmp_path):
    with Bench(**{fault: 1.0}, log=str(tmp_path)) as bench:
        bench.ask("0/0", kind="reset")
        worker = bench.crew.checkers[0]
        (reply,) = bench.ask("0/0")
        assert problem in reply.problem and "\n" not in reply.problem
        assert not reply.gave_up and reply.reply is None
        assert said(bench.ask("1/0", kind="reset")[0]) == ["begin"]
        assert bench.crew.checkers[0] is worker
        bench.until(lambda: closed(tmp_path) == 1)


def test_a_huge_observation_is_cut():
    with Bench(talks=1.0) as bench:
        bench.ask("0/0", kind="reset")
        (reply,) = bench.ask("0/0")
        assert len(reply.reply.messages[0]["content"]) == min(MAX_CHARACTERS, 5 * WORDS)


def test_a_killed_worker_costs_a_replay_and_nothing_else(tmp_path):
    with Bench(workers=2, turns=5, log=str(tmp_path)) as bench:
        episodes = names(8)
        bench.started()
        bench.ask(*episodes, kind="reset")
        bench.ask(*episodes)
        bench.ask(*episodes)
        victim = bench.worker_of("0/0")
        lost = set(bench.pool.states[victim.name].held)
        assert len(lost) == 4
        bench.kill(victim)
        assert [said(r) for r in bench.ask(*episodes)] == [["no 3"]] * 8
        played = Counter(tuple(x) for x in Notes.read(tmp_path) if "reset" in x)
        assert played == {
            ("reset", "turn 1", "turn 2"): 4,
            ("reset", "turn 1", "turn 2", "turn 3"): 8,
        }


def test_one_that_cannot_be_replayed_fails_alone():
    with Bench(turns=5, differs=0.5) as bench:
        episodes = names(10)
        bench.ask(*episodes, kind="reset")
        bench.ask(*episodes)
        bench.kill(bench.crew.checkers[0])
        replies = bench.ask(*episodes)
        odd = bench.chosen(episodes, "x")
        assert failed(replies) == odd and 1 <= len(odd) <= 9
        why = "cannot be replayed: it replied to turn 1 otherwise than before"
        assert all(r.problem.endswith(why) and not r.gave_up for r in replies if r.problem)


def test_a_worker_that_lacks_an_environment_gets_its_history():
    with Bench(turns=5) as bench:
        bench.ask("0/0", kind="reset")
        bench.ask("0/0")
        bench.crew.checkers[0].send(m.CloseEpisodes(("0/0",)))
        assert said(bench.ask("0/0")[0]) == ["no 2"]


def test_episodes_that_are_no_longer_needed_are_closed_and_get_no_reply(tmp_path):
    with Bench(hangs=1.0, log=str(tmp_path)) as bench:
        bench.ask("0/0", "1/0", kind="reset")
        bench.call("0/0", "step", "x")
        bench.until(lambda: any("turn 1" in x for x in Notes.read(tmp_path)), "the call")
        bench.pool.close(["0/0", "1/0", "unknown"])
        bench.pool.close(["0/0"])
        assert bench.pool.pending == 0
        bench.until(lambda: not bench.pool.states["checker 0"].jobs, "the end of the call")
        bench.until(lambda: bench.live["checker 0"] == 0)
        bench.until(lambda: closed(tmp_path) == 2)
        assert goes_on(bench.replies["0/0"]), "that to reset: the later one was not passed on"


@pytest.mark.parametrize("fault", ["hangs", "raises", "exits"])
def test_closing_that_goes_wrong_costs_nothing(fault, tmp_path):
    with Bench(turns=1, closing=fault, log=str(tmp_path)) as bench:
        bench.ask("0/0", kind="reset")
        (reply,) = bench.ask("0/0")
        assert isinstance(reply.reply, Outcome)
        assert said(bench.ask("1/0", kind="reset")[0]) == ["begin"]
        worker = bench.crew.checkers[0]
        bench.crew.stop()
        assert worker.process.exitcode is not None
        assert closed(tmp_path) == 2


def test_blocking_environments_take_turns_in_the_places():
    with Bench("BlockingFaulty", slow=1.0, slow_seconds=0.5, places=4, seconds=1.5) as bench:
        bench.ask(*names(16), kind="reset")
        replies = bench.ask(*names(16))  # four rounds of half a second
        assert not any(r.problem for r in replies), "the time in the queue is not counted"
        assert max(r.seconds for r in replies) > 1.5


def test_a_blocking_one_that_hangs_is_abandoned_and_its_worker_replaced():
    with Bench("BlockingFaulty", hangs=0.15, places=4, seconds=4.0) as bench:
        episodes = names(20)
        bench.ask(*episodes, kind="reset")
        first = bench.crew.checkers[0]
        replies = bench.ask(*episodes)
        bad = bench.chosen(episodes, "x")
        assert failed(replies) == bad and 1 <= len(bad) <= 9
        assert all(r.gave_up for r in replies if r.problem)
        bench.until(lambda: bench.crew.checkers[0] is not first, "the replacement")
        good = [e for e in episodes if e not in bad | bench.chosen(episodes, "x", "x")]
        assert [said(r) for r in bench.ask(*good)] == [["no 2"]] * len(good)


def test_nothing_is_left_of_environments_that_are_over(tmp_path):
    """Neither objects nor threads nor open files."""
    with Bench("BlockingFaulty", turns=1, log=str(tmp_path)) as bench:
        worker = Path("/proc", str(bench.crew.checkers[0].process.pid))
        files = []
        for i in range(5):
            episodes = [f"{j}/{i}" for j in range(20)]
            bench.ask(*episodes, kind="reset")
            assert not any(map(goes_on, bench.ask(*episodes)))
            bench.until(lambda: bench.live["checker 0"] == 0, "no environment")
            bench.until(lambda: len([*(worker / "task").iterdir()]) < 10, "the end of the threads")
            files.append(len([*(worker / "fd").iterdir()]))
        assert files[-1] <= files[0]
        # They close in the background, after they are no longer counted.
        bench.until(lambda: closed(tmp_path) == 100, "the end of all of them")


def test_all_environments_are_closed_when_the_worker_stops(tmp_path):
    with Bench(workers=2, log=str(tmp_path), hangs=1.0) as bench:
        bench.ask(*names(10), kind="reset")
        bench.call("0/0", "step", "x")
        bench.until(lambda: any("turn 1" in x for x in Notes.read(tmp_path)), "the call")
        bench.crew.stop()
        assert closed(tmp_path) == 10


def test_programs_that_an_environment_has_started_end_with_its_worker(tmp_path):
    with Bench("Spawns", log=str(tmp_path)) as bench:
        bench.ask("0/0", kind="reset")
        program = Path("/proc", (tmp_path / "pid").read_text(), "stat")
        assert program.exists()
        bench.crew.stop()
        deadline = time.monotonic() + LIMIT
        while program.exists() and program.read_text().split()[2] != "Z":
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_environments_are_spread_over_any_number_of_workers_and_leave_no_threads_here():
    before = threading.active_count()
    with Bench(workers=6) as bench:
        bench.started()
        bench.ask(*names(12), kind="reset")
        assert {len(state.held) for state in bench.pool.states.values()} == {2}
    assert threading.active_count() <= before


def test_hundreds_of_episodes_with_every_fault_at_once(tmp_path):
    """Every episode ends, once, and as its own faults say, while workers are killed."""
    shares = {"slow": 0.1, "hangs": 0.01, "blocks": 0.005, "clings": 0.005, "crashes": 0.01,
              "exits": 0.02, "raises": 0.02, "returns_bytes": 0.02, "nan": 0.02, "talks": 0.02,
              "ends_early": 0.05}  # fmt: skip
    fatal = set(shares) - {"slow", "talks", "ends_early"}
    more = {"slow_seconds": 0.1, "log": str(tmp_path)}
    with Bench(workers=3, places=64, seconds=4.0, **more, **shares) as bench:
        episodes = names(200)
        expected = {e: bench.first_fault(e, fatal, turns=3) for e in episodes}
        assert set(expected.values()) >= {"hangs", "blocks", "clings", "crashes", "raises", ""}
        ended = Counter()
        rng = random.Random(1)
        for episode in episodes:
            bench.call(episode, "reset")
        kills = 0
        while bench.pool.pending:
            for reply in bench.poll():
                if goes_on(reply):
                    bench.call(reply.episode, "step", "x")
                else:
                    ended[reply.episode] += 1
            # Not one with a suspect, which would be taken for the cause.
            busy = [s.handle for s in bench.pool.states.values() if s.jobs and not s.quarantined]
            if len(ended) > 50 * (kills + 1) and kills < 2 and busy:
                kills += 1
                os.kill(rng.choice(busy).process.pid, signal.SIGKILL)
        assert ended == dict.fromkeys(episodes, 1)
        bad = {e for e in episodes if bench.replies[e].problem}
        assert bad == {e for e in episodes if expected[e]}
        bench.until(lambda: not any(bench.live.values()), "the end of all environments")
        bench.crew.stop()
        lines = Notes.read(tmp_path)
        assert all(x.count("closed") <= 1 for x in lines)
