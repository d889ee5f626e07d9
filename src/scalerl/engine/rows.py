"""The running rollouts as arrays, one row each: appending a token to all rows is one array
operation.

Python code runs for a single row only where its length control must decide: when its budget of
unwatched tokens is used up, or it sampled a stop token or one that may begin an end of thinking.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from scalerl.algorithm.episode import FinishReason, Turn
from scalerl.algorithm.length import Continue, Finish, Force, LengthControl, Progress
from scalerl.engine.interface import Request, TurnResult
from scalerl.engine.sampling import DrawSettings
from scalerl.errors import InputError
from scalerl.models.routing import Experts
from scalerl.models.rows import Compaction


@dataclass(slots=True, eq=False)
class RunningRollout:
    """A rollout that is being generated."""

    request: Request
    #: Number of the rollout within its group.
    row: int
    progress: Progress
    #: Unwatched tokens that may be sampled before the length control must decide again.
    room: int = 0
    #: Forced tokens that are still to be appended.
    forcing: deque[int] = field(default_factory=deque)
    #: Tokens that the length control has observed.
    n_observed: int = 0
    #: Recorded experts of its tokens, pass by pass (mixtures of experts).
    experts: list[Experts] = field(default_factory=list)

    @staticmethod
    def from_request(request: Request, row: int) -> RunningRollout:
        """The empty rollout number `row` of a request."""
        return RunningRollout(request, row, request.control.start(request.seeds[row]))

    def observe(self, token_ids: Sequence[int], *, forced: bool = False) -> None:
        """Update the progress with new tokens."""
        self.progress = self.progress.after(self.request.control, token_ids, forced=forced)
        self.n_observed += len(token_ids)

    def next_action(self) -> Finish | None:
        """Apply the length control's decision; returns it where the rollout is finished."""
        decision = self.request.control.decide(self.progress)
        if isinstance(decision, Finish):
            return decision
        if isinstance(decision, Force):
            self.forcing.extend(decision.token_ids)
            return None
        assert isinstance(decision, Continue)
        self.room = decision.unwatched_budget
        return None


def empty_result(running: RunningRollout, finish: Finish) -> TurnResult:
    """The result of a rollout that may not generate a single token."""
    none = np.zeros(0, dtype=np.int64)
    empty = Turn(none, none.astype(np.float32), none, none.astype(bool), finish.reason)
    return TurnResult(running.request.id, running.row, empty)


class Rows:
    """The running rollouts of a lane. Row i of every array belongs to running[i]."""

    def __init__(self, rows_max: int, columns: int, device: torch.device) -> None:
        self.running: list[RunningRollout] = []
        self.device = device
        self.columns = columns
        width = min(columns, 64)  # grows as needed (`_widen`)
        self.tokens = np.zeros((rows_max, width), dtype=np.int64)
        self.logprobs = np.zeros((rows_max, width), dtype=np.float32)
        self.versions = np.zeros((rows_max, width), dtype=np.int64)
        self.forced = np.zeros((rows_max, width), dtype=bool)
        self.count = np.zeros(rows_max, dtype=np.int64)
        self.room = np.zeros(rows_max, dtype=np.int64)
        self.forcing = np.zeros(rows_max, dtype=bool)
        self.watch = WatchedTokens()
        #: Kind of each row's length control (`WatchedTokens.kind`).
        self.watched = np.zeros(rows_max, dtype=np.int64)
        self.seeds = np.zeros(rows_max, dtype=np.int64)
        self.temperature = np.ones(rows_max, dtype=np.float32)
        self.top_p = np.ones(rows_max, dtype=np.float32)
        self.top_k = np.zeros(rows_max, dtype=np.int64)
        self.noise = np.zeros(rows_max, dtype=np.float32)
        self._how: DrawSettings | None = None
        self._seeds: Tensor | None = None

    def __len__(self) -> int:
        return len(self.running)

    def append_rows(self, new: Sequence[RunningRollout]) -> None:
        """Append rows at the end."""
        first = len(self.running)
        self.running += new
        for i, r in enumerate(new, first):
            how = r.request.sampling
            self.count[i], self.room[i], self.forcing[i] = 0, r.room, bool(r.forcing)
            self.seeds[i] = _signed(r.request.seeds[r.row])
            self.temperature[i], self.top_p[i], self.top_k[i] = (
                how.temperature, how.top_p, how.top_k
            )  # fmt: skip
            self.noise[i] = how.noise
            self.watched[i] = self.watch.kind(r.request.control)
        self._how = self._seeds = None

    def drop_rows(self, compaction: Compaction) -> None:
        """Remove some rows; others move into their places."""
        for array in (self.tokens, self.logprobs, self.versions, self.forced, self.count, self.room,
                      self.forcing, self.watched, self.seeds, self.temperature, self.top_p,
                      self.top_k, self.noise):  # fmt: skip
            compaction.apply(array)
        for into, out_of in zip(compaction.into.tolist(), compaction.out_of.tolist(), strict=True):
            self.running[into] = self.running[out_of]
        del self.running[compaction.rows :]
        self._how = self._seeds = None

    def last_tokens(self) -> Tensor:
        """The newest token of every row, the model's next input."""
        n = len(self.running)
        newest = self.tokens[np.arange(n), self.count[:n] - 1]
        return torch.from_numpy(newest).to(self.device)

    def draw_inputs(self, first: int) -> tuple[DrawSettings, Tensor, Tensor]:
        """(settings, seeds, positions) of the rows from `first` on, for sampling their next
        token."""
        n = len(self.running)
        # Cached: settings and seeds change only with the rows, positions with every token.
        if first == 0 and self._how is not None and self._seeds is not None:
            how, seeds = self._how, self._seeds
        else:
            values = (self.temperature, self.top_p, self.top_k, self.noise)
            how = DrawSettings.from_tensors(*(self._tensor(v[first:n]) for v in values))
            seeds = self._tensor(self.seeds[first:n])
            if first == 0:
                self._how, self._seeds = how, seeds
        return how, seeds, self._tensor(self.count[first:n])

    def write(
        self,
        first: int,
        token_B: npt.NDArray[np.int64],
        logprob_B: npt.NDArray[np.float32],
        version: int,
    ) -> list[tuple[int, Finish]]:
        """Append a token to each row from `first` on: the sampled one, or the next forced one.
        Returns the rows that this finishes, with the reason."""
        rows = np.arange(first, len(self.running))
        part = slice(first, len(self.running))
        at = self.count[part]
        self._widen(int(at.max()) + 1)
        forcing = self.forcing[part].copy()
        if forcing.any():
            # A copy, because the array is a view of a tensor of the sampler.
            token_B, logprob_B = token_B.copy(), np.where(forcing, np.float32(0), logprob_B)
            for i in np.flatnonzero(forcing).tolist():
                token_B[i] = self.running[first + i].forcing.popleft()
        self.tokens[rows, at] = token_B
        self.logprobs[rows, at] = logprob_B
        self.versions[rows, at] = version
        self.forced[rows, at] = forcing
        self.count[part] += 1
        self.room[part] -= 1
        decides = (self.room[part] <= 0) | self.watch.contains(self.watched[part], token_B)
        finished = []
        for i in (first + np.flatnonzero(decides | forcing)).tolist():
            done = self._decide(i)
            if done is not None:
                finished.append((i, done))
        return finished

    def written(self, i: int, finish: FinishReason) -> TurnResult:
        """The result of row i as it is now."""
        n, running = int(self.count[i]), self.running[i]
        turn = Turn(
            token_ids=self.tokens[i, :n].copy(),
            logprobs=self.logprobs[i, :n].copy(),
            versions=self.versions[i, :n].copy(),
            forced=self.forced[i, :n].copy(),
            finish=finish,
            experts=np.concatenate(running.experts) if running.experts else None,
        )
        return TurnResult(running.request.id, running.row, turn)

    def _decide(self, row: int) -> Finish | None:
        """Let a row's length control observe the new tokens and decide. A forced phrase is observed
        as a whole, once its last token is appended."""
        running = self.running[row]
        forced = bool(self.forcing[row])
        if forced and running.forcing:
            return None
        running.observe(
            self.tokens[row, running.n_observed : self.count[row]].tolist(), forced=forced
        )
        done = running.next_action()
        self.room[row] = running.room
        self.forcing[row] = bool(running.forcing)
        return done

    def _tensor(self, values: npt.NDArray[np.generic]) -> Tensor:
        """A copy as a tensor: the array is changed by later steps, while a device may still
        read."""
        return torch.from_numpy(values.copy()).to(self.device)

    def _widen(self, columns: int) -> None:
        """Double the columns as needed: most answers are far shorter than the longest allowed."""
        width = self.tokens.shape[1]
        if columns > width:
            more = ((0, 0), (0, min(max(columns, 2 * width), self.columns) - width))
            self.tokens = np.pad(self.tokens, more)
            self.logprobs = np.pad(self.logprobs, more)
            self.versions = np.pad(self.versions, more)
            self.forced = np.pad(self.forced, more)


class WatchedTokens:
    """The tokens that a row's length control must observe at once: stop tokens, and those that may
    begin an end of thinking.

    >>> from scalerl.algorithm.length import Limit
    >>> watch = WatchedTokens()
    >>> few, none = watch.kind(Limit(9, stop_ids=(3, 1))), watch.kind(Limit(9))
    >>> watch.contains(np.array([few, few, none]), np.array([3, 2, 3])).tolist()
    [True, False, False]
    """

    def __init__(self) -> None:
        self.kinds: dict[tuple[tuple[int, ...], frozenset[int]], int] = {}
        #: (kind, token); the last column stands for all larger token ids, which are not watched.
        self.table = np.zeros((0, 1), dtype=bool)

    def kind(self, control: LengthControl) -> int:
        """The row of the table for a length control."""
        starts: frozenset[int] = frozenset() if control.end is None else control.end.start_ids
        key = (control.stop_ids, starts)
        if key not in self.kinds:
            self.kinds[key] = len(self.kinds)
            ids = sorted({*control.stop_ids, *starts})
            more = max(ids[-1] + 2 - self.table.shape[1], 0) if ids else 0
            self.table = np.pad(self.table, ((0, 1), (0, more)))
            self.table[-1, ids] = True
        return self.kinds[key]

    def contains(
        self, kind_B: npt.NDArray[np.int64], token_B: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """Whether each row's token is watched."""
        found: npt.NDArray[np.bool_] = self.table[
            kind_B, np.minimum(token_B, self.table.shape[1] - 1)
        ]
        return found


def check_fits(request: Request, columns: int) -> None:
    """Raise an InputError for an empty prompt, or one that does not fit the engine with its
    answer."""
    n = len(request.prompt_token_ids)
    if n == 0:
        raise InputError(f"request {request.id}: an empty prompt cannot be continued")
    if n + request.control.max_tokens > columns:
        raise InputError(
            f"request {request.id}: a prompt of {n} tokens and an answer of up to "
            f"{request.control.max_tokens} do not fit the engine's {columns}"
        )


def _signed(seed: int) -> int:
    """Any integer as a signed 64-bit one, which torch's tensors can hold."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)
