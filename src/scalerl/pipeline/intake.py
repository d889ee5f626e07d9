"""The intake: draws prompts as the schedule allows, and keeps groups until they are trained on."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from scalerl.algorithm.curriculum import OutOfPrompts
from scalerl.algorithm.filters import informative
from scalerl.errors import PipelineError
from scalerl.pipeline.dispatch import Dispatcher
from scalerl.pipeline.groups import PendingGroup, Writing
from scalerl.pipeline.ledger import Ledger
from scalerl.pipeline.recorder import Recorder
from scalerl.pipeline.rollouts import Rollouts
from scalerl.pipeline.schedule import NextBatch
from scalerl.pipeline.setup import RunSetup
from scalerl.pipeline.state import RunState

#: Groups without variance in a row, counted in batches, after which the run fails.
MAX_REFILL = 50
#: Prompts left out that get a warning each.
MAX_NAMED_PROMPTS = 5


class Intake:
    """Groups of training prompts, from their draw to their batch."""

    def __init__(
        self, setup: RunSetup, state: RunState, dispatcher: Dispatcher, recorder: Recorder,
        ledger: Ledger,
    ) -> None:  # fmt: skip
        self.setup, self.state, self.dispatcher = setup, state, dispatcher
        self.recorder, self.ledger = recorder, ledger
        #: Set by the loop: the groups that are written and scored, of training and validation.
        self.rollouts: Rollouts
        #: Training groups that no step has taken yet, by serial number.
        self.pending: dict[int, PendingGroup] = {}
        #: Groups of a checkpoint that were begun under another recipe: their prompts are submitted
        #: again before any new one.
        self.requeued: deque[PendingGroup] = deque()
        #: Serial number of the next group.
        self.serial = 0
        self.out_of_prompts = False
        #: The last choice of a batch, and what it was made for (`choose`).
        self._choice = NextBatch((), 1)
        self._chosen_for = (-1, -1, -1)
        self._refilled = 0
        self._skipped: set[str] = set()

    def writing(self, serial: int) -> Writing:
        """How the group of this serial number is written."""
        setup = self.setup
        parts = (setup.recipe.seed, "rollout", serial)
        return Writing("train", setup.control, setup.sampling, parts)

    @property
    def ready(self) -> int:
        """Number of groups that are written and scored."""
        counts = self.rollouts.counts["train"]
        return len(self.pending) - counts.writing - counts.checking

    # -- beginning groups -------------------------------------------------------------------------

    def resubmit(self) -> None:
        """After a resume: write and score the groups of the checkpoint that are not ready."""
        self.rollouts.begin([p for p in self.pending.values() if p.stage != "ready"])

    def start_groups(self, *, training: bool) -> None:
        """Begin new groups, as many as the schedule allows. `training` says whether a step is
        under way: its groups are no longer pending, so the step counts as taken."""
        state, schedule = self.state, self.setup.schedule
        waits = self.rollouts.counts["validate"].writing
        if not state.started or state.over or state.stop is not None or waits:
            return
        most = None
        if schedule.streams:
            enough = self.setup.recipe.batch.prompts * len(self.dispatcher)
            most = enough - self.rollouts.counts["train"].writing
            if most <= 0:
                return
        version = state.version + training
        room = schedule.room(version, self.dispatcher.oldest, len(self.pending), self.ready)
        room = room if most is None else min(room, most)
        if room > 0:
            self._begin(self._draw(room))

    def _draw(self, n: int) -> list[PendingGroup]:
        drawn = [self.requeued.popleft() for _ in range(min(n, len(self.requeued)))]
        try:
            drawn += [self._new_group(str(i)) for i in self.setup.curriculum.draw(n - len(drawn))]
        except OutOfPrompts:
            self.out_of_prompts = True
        return drawn

    def _new_group(self, prompt_id: str) -> PendingGroup:
        prompt, serial = self.setup.prompts[prompt_id], self.serial
        self.serial += 1
        return PendingGroup(
            str(serial), prompt, self.setup.recipe.batch.generations, self.writing(serial),
            self.setup.first_tokens(prompt),
        )  # fmt: skip

    def _begin(self, drawn: Sequence[PendingGroup]) -> None:
        new = []
        for p in drawn:
            if not self.setup.fits(p.prompt):
                self._skip_prompt(p.prompt.id)
                continue
            p.started = self.dispatcher.oldest
            self.pending[p.serial] = p
            new.append(p)
        self.rollouts.begin(new)

    def _skip_prompt(self, prompt_id: str) -> None:
        """Leave out a prompt that is empty or too long, with a warning for the first few."""
        new = prompt_id not in self._skipped
        self._skipped.add(prompt_id)
        if len(self._skipped) == len(self.setup.prompts):
            raise PipelineError(
                f"all {len(self._skipped)} training prompts are empty or longer than "
                f"{self.setup.recipe.sampling.max_prompt_tokens} tokens: "
                "raise sampling.max_prompt_tokens"
            )
        if new and len(self._skipped) <= MAX_NAMED_PROMPTS:
            last = len(self._skipped) == MAX_NAMED_PROMPTS
            more = " (further ones are not named)" if last else ""
            self.recorder.warn([f"prompt {prompt_id} is left out: it is empty or too long{more}"])

    # -- groups that are ready --------------------------------------------------------------------

    def complete(self, p: PendingGroup) -> None:
        """Take a group that is written and scored."""
        assert p.group is not None
        self.recorder.scored(p.scores.values())
        known = [e for e in p.group.episodes if e.correct is not None]
        right = sum(bool(e.correct) for e in known)
        self.setup.curriculum.record(p.prompt.id, right, len(known))
        if self.setup.recipe.filter.zero_variance == "refill":
            self._refill(p)

    def _refill(self, p: PendingGroup) -> None:
        """Dynamic sampling: drop a group without variance, which makes room for another prompt."""
        assert p.group is not None
        options = self.setup.options
        if informative(p.group, options.truncated, options.credit, options.filters):
            self._refilled = 0
            return
        del self.pending[p.serial]
        self._refilled += 1
        self.ledger.samples += p.size
        self.ledger.waste("filtered", p.size, p.group.tokens)
        if self._refilled == self.setup.recipe.batch.prompts:
            self.recorder.warn(
                [f"the last {self._refilled} groups, as many as a batch has, had no variance and "
                 'were replaced (filter.zero_variance = "refill"): easier or harder prompts would '
                 "help"]
            )  # fmt: skip
        if self._refilled > MAX_REFILL * self.setup.recipe.batch.prompts:
            if p.check_summary.unscored.total() == p.size:
                raise PipelineError(
                    f"the last {self._refilled} groups had no variance, and no answer of this one "
                    f"was scored: {p.check_summary.unscored.most_common(1)[0][0]}; repair the "
                    "verifier, then --resume"
                )
            raise PipelineError(
                f"the last {self._refilled} groups were all right or all wrong: the task is too "
                'easy or too hard for the model; filter.zero_variance = "drop" would go on'
            )

    def choose(self) -> NextBatch:
        """The groups for the next step, or what the trainer waits for."""
        schedule, under_way, ready = self.setup.schedule, len(self.pending), self.ready
        early = schedule.too_few(self.state.version, under_way, ready)
        if early is not None:
            return early
        # Choosing sorts all groups; the choice stays the same until one of these changes.
        for_what = (self.state.version, under_way, self.rollouts.age_changes)
        if for_what != self._chosen_for:
            ages = [p.age for p in self.pending.values()]
            self._choice, self._chosen_for = schedule.choose(self.state.version, ages), for_what
        return self._choice

    def take(self, serials: Sequence[int]) -> list[PendingGroup]:
        """The groups of a batch, which are no longer pending."""
        return [self.pending.pop(serial) for serial in serials]

    def only_checks_missing(self, choice: NextBatch) -> bool:
        """Whether everything that the trainer waits for is written, and only not scored yet."""
        if choice.late is not None:
            return self.pending[choice.late].stage == "checking"
        return 0 < choice.missing <= self.rollouts.counts["train"].checking

    @property
    def exhausted(self) -> bool:
        """Whether all prompts are retired and no group is being written or scored."""
        return self.out_of_prompts and self.ready == len(self.pending)
