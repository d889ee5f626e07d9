"""Checking answers, with a limit: a verifier that hangs may not hang the run."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence

from scalerl.pipeline.placement import PipelineError
from scalerl.tasks.task import Checked, Prompt, Task

#: Verifiers that hang so often in a row will not come back.
MAX_HANGS = 3


class Checker:
    """Runs a task's checks in a thread of their own and waits for them, but not for ever."""

    def __init__(self, task: Task, patience: float, say: Callable[[str], None]) -> None:
        self.task = task
        self.patience = patience
        self.say = say
        self.hangs = 0

    def check_all(self, answers: Sequence[tuple[Prompt, str]]) -> list[Checked]:
        """Verdicts in order. Answers whose check hangs or raises are unscored, and said so."""
        result: queue.SimpleQueue[list[Checked]] = queue.SimpleQueue()
        work = threading.Thread(target=lambda: result.put(self._checked(answers)), daemon=True)
        work.start()
        try:
            found = result.get(timeout=self.patience)
        except queue.Empty:
            return self._hung(answers)
        self.hangs = 0
        return found

    def _checked(self, answers: Sequence[tuple[Prompt, str]]) -> list[Checked]:
        try:
            return self.task.check_all(answers)
        except Exception as error:  # a verifier of somebody else's: what it raises is data
            why = f"the verifier raised {type(error).__name__}: {error}"
            return [Checked.unscored(why)] * len(answers)

    def _hung(self, answers: Sequence[tuple[Prompt, str]]) -> list[Checked]:
        self.hangs += 1
        why = f"the verifier of task {self.task.name} has not answered for {self.patience:g} s"
        if self.hangs >= MAX_HANGS:
            raise PipelineError(f"{why}, {self.hangs} times in a row: repair it, then --resume")
        self.say(f"warning: {why}: {len(answers)} answers stay unscored")
        return [Checked.unscored(why)] * len(answers)
