"""Running the members of a study: each a `scalerl train` of its own, several at once.

First every member up to its screening, then those that are not unstable up to the end of their
budget; seed by seed, so that there is something to compare as early as possible. What is to be done
is read from the runs each time, so a study that was killed, or in which members were run elsewhere,
is continued with what is left.

    member ended with           it is
    0                           looked at again: screened, or done
    an error                    reported with its last line, and left for the next start
    a kill (a signal)           started again, unless it got no further since the last start
    another's lock              being written elsewhere: waited for

In a race (race.py) there is no screening: members run a chunk at a time, next the one that is
expected to decide most.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from scalerl.errors import InputError
from scalerl.machine import CORES, cores
from scalerl.processes import stop_signals
from scalerl.runs.lock import RunLock, is_locked
from scalerl.streams import survive_hangup
from scalerl.study.members import (
    Limits,
    Member,
    MemberProgress,
    budget_weight,
    limits_of,
    next_limits,
    read_progress,
)

if TYPE_CHECKING:
    from scalerl.study.race import RaceState
    from scalerl.study.study import Study
    from scalerl.study.table import StudyRow

#: Seconds between two polls of the processes.
POLL_SECONDS = 0.2
#: Seconds between two reads of the records, which are slower than a poll.
READ_SECONDS = 2.0
#: Seconds that members have for their last checkpoint when the study is asked to end.
GRACE = 300.0
#: Share of a study that must be done before the time left is estimated.
MIN_SHARE = 0.001
#: Starts of a killed member without progress, after which it is reported as failed.
MAX_STARTS = 3
PROGRAM = (sys.executable, "-m", "scalerl.study.member_process")


class StudyListener:
    """Receives what happens in a study; this one ignores it."""

    def begin(self, study: Study, jobs: int) -> None:
        """The study starts, or goes on."""

    def say(self, line: str) -> None:
        """Something worth a line."""

    def progress(self, progress: StudyProgress) -> None:
        """About every two seconds."""

    def race(self, state: RaceState) -> None:
        """Whenever a race has chosen."""

    def table(self, rows: list[StudyRow]) -> None:
        """After every member that has come to the end of a stage."""


@dataclass(frozen=True, slots=True)
class StudyProgress:
    """How far a study is."""

    share: float
    #: Seconds since this start, and to the end if it goes on as since; None: not known yet.
    elapsed: float
    left: float | None
    running: tuple[tuple[Member, MemberProgress], ...]
    waiting: int
    failed: int


@dataclass(frozen=True, slots=True)
class StudyEnd:
    """How a start of a study ended: members that failed, with their last lines, and the signal that
    ended it, if one did. What `Study.run` returns.

    >>> StudyEnd({"loo-lp-s0": "no space left on device"}).signal is None
    True
    """

    failed: dict[str, str] = field(default_factory=dict)
    signal: int | None = None


@dataclass(slots=True, eq=False)
class MemberJob:
    member: Member
    limits: Limits
    process: subprocess.Popen[bytes]
    #: Offset of this start's output in the log, in bytes.
    log_offset: int


def run_members(study: Study, jobs: int, listener: StudyListener) -> StudyEnd:
    """Run members until nothing is left to do, or a signal comes."""
    if find_spec("torch") is None:
        raise InputError("training needs torch: pip install 'scalerl[train]'")
    with RunLock(study.path), stop_signals() as caught, survive_hangup():
        runner = Runner(study, jobs, listener)
        # Also after an error or a second Ctrl-C: no member outlives its study.
        try:
            return runner.go(caught)
        finally:
            runner.end_all()


class Runner:
    """The processes of one start of a study."""

    def __init__(self, study: Study, jobs: int, listener: StudyListener) -> None:
        self.study, self.jobs, self.listener = study, jobs, listener
        self.running: list[MemberJob] = []
        self.failed: dict[str, str] = {}
        #: Members that were stopped by a signal: left for the next start.
        self.stopped: set[str] = set()
        self.starts: dict[str, tuple[int, int]] = {}
        self.elsewhere: set[str] = set()
        self.began = time.monotonic()
        self.done_before: float | None = None

    def go(self, caught: list[int]) -> StudyEnd:
        self.listener.begin(self.study, self.jobs)
        self.say_table()
        read_at = -READ_SECONDS
        while not caught:
            ended = self.reap()
            # A fit takes longer than a poll: the table is made when there is something new.
            if ended:
                self.say_table()
            if ended or time.monotonic() - read_at > READ_SECONDS:
                if not self.fill():
                    break
                self.listener.progress(self.progress())
                read_at = time.monotonic()
            time.sleep(POLL_SECONDS)
        if caught:
            self.listener.say("ending: members save a checkpoint and stop")
            self.end_all()
            return StudyEnd(self.failed, caught[0])
        self.listener.progress(self.progress())
        return StudyEnd(self.failed)

    def say_table(self) -> None:
        """Give the listener the table. A force has dozens of variants, each with a comparison that
        would take the cores from its short runs: its numbers are made at the end."""
        if self.study.force is None:
            self.listener.table(self.study.table())

    # -- what next --------------------------------------------------------------------------------

    def fill(self) -> bool:
        """Start members while there is room; returns whether anything is still running."""
        now = {m.name: read_progress(m) for m in self.study.members}
        busy = {job.member.name for job in self.running}
        elsewhere = {name for name, p in now.items() if p.locked and name not in busy}
        for name in sorted(elsewhere - self.elsewhere):
            self.listener.say(f"{name}: is being written by another process: waiting for it")
        self.elsewhere = elsewhere
        if len(self.running) >= self.jobs:
            return True
        for member, limits in self.tasks(now):
            if len(self.running) >= self.jobs:
                return True
            if member.name not in busy:
                self.start(member, limits, now[member.name])
                busy.add(member.name)
        return bool(self.running or self.elsewhere)

    def tasks(self, now: dict[str, MemberProgress]) -> Iterator[tuple[Member, Limits]]:
        """Members that are left with their limits, in the order in which they run."""
        study = self.study
        order = sorted(study.members, key=lambda m: m.seed)
        left = [
            m for m in order
            if m.name not in self.failed | dict.fromkeys(self.stopped | self.elsewhere)
        ]  # fmt: skip
        if study.definition.race:
            yield from self.race_tasks(now, left)
            return
        for member in left:
            if not now[member.name].reached(study.screening(member)):
                yield member, study.screening(member)
        for member in left:
            progress = now[member.name]
            if progress.reached(limits_of(member.recipe)):
                continue
            if progress.reached(study.screening(member)) and (
                study.finding(member).stability.state != "unstable"
            ):
                yield member, limits_of(member.recipe)

    def race_tasks(
        self, now: dict[str, MemberProgress], left: list[Member]
    ) -> Iterator[tuple[Member, Limits]]:
        """First what was interrupted within its chunk, then what the race asks for."""
        busy = {job.member.name for job in self.running}
        waiting = {m.name: m for m in left if m.name not in busy}
        for name, member in list(waiting.items()):
            known = now[name].limits or {}
            limits = {k: known[k] for k in limits_of(member.recipe) if k in known}
            if limits and not now[name].reached(limits):
                del waiting[name]
                yield member, limits
        state = self.study.race(now, {m.name for m in self.study.members} - set(waiting))
        self.listener.race(state)
        for name in state.order:
            member = waiting[name]
            share = now[name].share(member.recipe)
            yield member, next_limits(member, share, self.study.definition.screen)

    def start(self, member: Member, limits: Limits, now: MemberProgress) -> None:
        step, times = self.starts.get(member.name, (-1, 0))
        # A start that got further than the last one counts anew.
        self.starts[member.name] = (now.step, times + 1 if now.step <= step else 1)
        words = member.command(limits, PROGRAM)
        with self.log(member).open("ab") as log:
            log_offset = log.tell()
            # The member ends when its standard input is closed, however this process ends. It has a
            # session of its own, so that Ctrl-C reaches the study alone, which ends its members.
            # Members share the cores: each would otherwise start threads for all of them.
            process = subprocess.Popen(
                [*words, "--plain"], stdin=subprocess.PIPE, stdout=log, stderr=log,
                start_new_session=True, env=os.environ | {CORES: str(max(cores() // self.jobs, 1))},
            )  # fmt: skip
        self.running.append(MemberJob(member, limits, process, log_offset))
        goal = ", ".join(f"{value:g} {key}" for key, value in limits.items())
        since = f" from step {now.step}" if now.step else ""
        self.listener.say(f"{member.name}: started{since}, up to {goal}")

    def log(self, member: Member) -> Path:
        return self.study.path / "logs" / f"{member.name}.log"

    # -- what has ended ---------------------------------------------------------------------------

    def reap(self) -> bool:
        """Handle the members that have ended; returns whether there are any."""
        ended = [job for job in self.running if job.process.poll() is not None]
        for job in ended:
            self.running.remove(job)
            if job.process.stdin is not None:
                job.process.stdin.close()
            self.handle_end(job)
        return bool(ended)

    def handle_end(self, job: MemberJob) -> None:
        member, code = job.member, job.process.returncode
        now, name = read_progress(member), member.name
        if code == 0 and now.reached(job.limits):
            rate = "-" if now.pass_rate is None else f"{now.pass_rate:.3f}"
            status = self.study.status(member, now)
            self.listener.say(f"{name}: {status} at step {now.step}, pass rate {rate}")
            return
        if is_locked(member.path):  # another process started it first
            return
        # `scalerl train` ends with these codes once it has saved a checkpoint.
        if code in (128 + signal.SIGINT, 128 + signal.SIGTERM):
            self.stopped.add(name)
            self.listener.say(f"{name}: was stopped at step {now.step}; the next start goes on")
            return
        if code < 0 and self.starts[name][1] < MAX_STARTS:
            self.listener.say(f"{name}: killed (signal {-code}) at step {now.step}: starting again")
            return
        why = f"killed (signal {-code})" if code < 0 else self.last_error_line(job, now)
        self.failed[name] = why
        self.listener.say(f"{name}: failed at step {now.step}: {why}")

    def last_error_line(self, job: MemberJob, now: MemberProgress) -> str:
        """The last line that says what went wrong."""
        try:
            said = self.log(job.member).read_bytes()[job.log_offset :].decode(errors="replace")
        except OSError:
            said = ""
        lines = [line for line in said.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("scalerl: ")]
        if errors:
            return errors[-1].removeprefix("scalerl: ")
        return now.failed or (lines[-1] if lines else f"exit code {job.process.returncode}")

    # -- how far ----------------------------------------------------------------------------------

    def progress(self) -> StudyProgress:
        study = self.study
        now = {m.name: read_progress(m) for m in study.members}
        weights = {m.name: budget_weight(m.recipe) for m in study.members}
        done = total = 0.0
        for m in study.members:
            share = now[m.name].share(m.recipe)
            # A member that is given up counts as done, so that the study reaches 100 %.
            given_up = m.name in self.failed or study.status(m, now[m.name]) == "unstable"
            done += weights[m.name] * share
            total += weights[m.name] * (share if given_up else 1.0)
        # The time left goes by what this start has done.
        if self.done_before is None:
            self.done_before = done
        elapsed, gained = time.monotonic() - self.began, done - self.done_before
        left = elapsed * (total - done) / gained if gained > MIN_SHARE * total else None
        if study.definition.race:  # its end cannot be known
            left = None
        busy = tuple((job.member, now[job.member.name]) for job in self.running)
        waiting = sum(not p.begun for p in now.values())
        return StudyProgress(
            done / total if total else 1.0, elapsed, left, busy, waiting, len(self.failed)
        )

    def end_all(self) -> None:
        """Ask every member to save and end; those that do not in time are killed."""
        for job in self.running:
            if job.process.poll() is None:
                job.process.terminate()
        limit = time.monotonic() + GRACE
        for job in self.running:
            try:
                # 0.1 s for each, also when the first ones have used up the time.
                job.process.wait(max(limit - time.monotonic(), 0.1))
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                # The whole group: a member has worker processes of its own.
                os.killpg(job.process.pid, signal.SIGKILL)
                job.process.wait()
        self.running.clear()
