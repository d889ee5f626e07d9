"""The watch over workers: once a second, those that are silent are replaced."""

from __future__ import annotations

from scalerl.pipeline.crew import generator_number
from scalerl.pipeline.intake import Intake
from scalerl.pipeline.scaling import Scaling
from scalerl.pipeline.supervisor import START_SECONDS, Supervisor
from scalerl.runs.lines import Status

#: Seconds between two ticks, each of which writes a status file.
WATCH_SECONDS = 1.0
#: The loop itself stood still (Ctrl-Z, a slow disk) if a tick comes this many intervals late, plus
#: PAUSE_SHARE of the patience.
PAUSE_INTERVALS = 3
PAUSE_SHARE = 0.1


class WorkerWatch:
    """Holds every wait to its deadline."""

    def __init__(self, supervisor: Supervisor, intake: Intake, scaling: Scaling) -> None:
        self.supervisor, self.intake, self.scaling = supervisor, intake, scaling
        self.clock = supervisor.clock
        self._last = self.clock.now()

    def tick(self, waits_for: str) -> None:
        """Once a second: replace workers that are silent, change the number of generators if that
        was asked for, and write the status for `scalerl doctor`."""
        now, supervisor = self.clock.now(), self.supervisor
        supervisor.recorder.drain(supervisor.pool.notes)
        if now - self._last < WATCH_SECONDS:
            return
        away, self._last = now - self._last, now
        if away > PAUSE_INTERVALS * WATCH_SECONDS + supervisor.patience * PAUSE_SHARE:
            # Messages may wait in the pipes: workers are not to blame for a pause of the loop.
            self._shift_deadlines(away)
        else:
            self._replace_silent_workers(waits_for)
            supervisor.recorder.warn(self.intake.rollouts.end_late_episodes(), "checker")
        self.scaling.rescale()
        self._write_status(waits_for)

    def _replace_silent_workers(self, waits_for: str) -> None:
        supervisor, dispatcher = self.supervisor, self.supervisor.dispatcher
        trainer, patience = supervisor.crew.trainer, supervisor.patience
        start = max(patience, START_SECONDS)
        if supervisor.learner.busy_since is not None:
            # An idle trainer sends nothing: what counts is the time since it has had work.
            silence = min(trainer.silence, self.clock.now() - supervisor.learner.busy_since)
            if silence > patience:
                supervisor.on_worker_lost(trainer, _silence_text(silence, waits_for))
        for state in list(dispatcher):
            silence = max(state.handle.silence, dispatcher.seconds_behind(state))
            if silence > (start if state.starting else patience):
                supervisor.on_worker_lost(state.handle, _silence_text(silence, waits_for))
            elif (stuck := dispatcher.seconds_stuck(state)) > patience:
                many = f"{len(state.held)} rollouts" if len(state.held) > 1 else "one rollout"
                supervisor.on_worker_lost(
                    state.handle, f"holds {many} and has written nothing for {stuck:.0f} s"
                )
        for checker, why in supervisor.pool.replaceable(patience, start):
            supervisor.on_worker_lost(checker, why)

    def _shift_deadlines(self, seconds: float) -> None:
        """Move all deadlines by the seconds for which no message could be received."""
        if self.supervisor.learner.busy_since is not None:
            self.supervisor.learner.busy_since += seconds
        for state in self.supervisor.dispatcher:
            if state.behind_since is not None:
                state.behind_since += seconds
            if state.stuck_since is not None:
                state.stuck_since += seconds
        self.supervisor.pool.shift_deadlines(seconds)
        self.intake.rollouts.shift_deadlines(seconds)

    def _write_status(self, waits_for: str) -> None:
        crew, dispatcher = self.supervisor.crew, self.supervisor.dispatcher
        workers = [crew.trainer, *crew.generators, *crew.checkers]
        counts, state = self.intake.rollouts.counts["train"], self.supervisor.state
        self.supervisor.recorder.status(
            Status(
                step=state.version,
                waits_for=waits_for,
                pids=crew.pids(),
                silent_seconds={w.name: round(w.silence, 1) for w in workers},
                starting=tuple(generator_number(s.handle) for s in dispatcher if s.starting),
                stopping=state.stop is not None,
                rollouts=tuple(s.turns for s in dispatcher),
                under_way=len(self.intake.pending),
                writing=counts.writing,
                checking=counts.checking,
            )
        )


def _silence_text(seconds: float, waits_for: str) -> str:
    return f"has sent nothing for {seconds:.0f} s (the run waits for {waits_for})"
