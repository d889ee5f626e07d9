"""The watch over workers: once a second, those that are silent are replaced."""

from __future__ import annotations

from scalerl.pipeline.crew import generator_number
from scalerl.pipeline.intake import Intake
from scalerl.pipeline.scaling import Scaling
from scalerl.pipeline.supervisor import Supervisor
from scalerl.runs.lines import Status

#: Seconds between two ticks, each of which writes a status file.
WATCH_SECONDS = 1.0
#: The loop itself stood still (Ctrl-Z, a slow disk) if a tick comes this many intervals late, plus
#: PAUSE_SHARE of the patience.
PAUSE_INTERVALS = 3
PAUSE_SHARE = 0.1


def stood_still(seconds: float, patience: float) -> bool:
    """Whether this long an interval between two ticks was a pause of the loop itself."""
    return seconds > PAUSE_INTERVALS * WATCH_SECONDS + patience * PAUSE_SHARE


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
        if stood_still(away, supervisor.patience):
            # Messages may wait in the pipes: workers are not to blame for a pause of the loop.
            supervisor.shift_deadlines(away)
            self.intake.rollouts.shift_deadlines(away)
        else:
            supervisor.replace_silent(waits_for)
            supervisor.recorder.warn(self.intake.rollouts.end_late_episodes(), "checker")
        self.scaling.rescale()
        self._write_status(waits_for)

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
