"""The local engine: continuous batching over any Hugging Face causal LM, on a CPU or one GPU.

Rollouts are added and removed between decode steps, and weights change between decode steps; the
key-value cache is kept. A step is one forward pass with one token per running rollout. The two
lanes share one cache: the rows of a paused lane stay where they are, below those of the other. The
turns of episodes in environments are parked in free places of it (parking.py).

Three decoders run the model. `ModelDecoder` (model_decoder.py) runs any Hugging Face causal LM by
its own forward pass. `LlamaDecoder` and `CDecoder` (in `models`) run Llama-shaped models,
several times faster on a CPU; each is used only for models on which it proves to compute the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from scalerl.engine.interface import EngineSpec, EngineStep, Health, Lane, Request, TurnResult
from scalerl.engine.parking import ParkedTurn, Parking, ParkingDecoder
from scalerl.engine.rows import Rows, RunningRollout, check_fits, empty_result
from scalerl.engine.sampling import NonFiniteLogits, draw_from_seeds
from scalerl.errors import InputError
from scalerl.models.adapter import AdapterSpec, EngineAdapter
from scalerl.models.cpu.c_decode import CDecoder
from scalerl.models.cpu.decode import LlamaDecoder
from scalerl.models.head import use_head_precision
from scalerl.models.load import load_model, load_model_fast, non_finite
from scalerl.models.routing import ExpertRecorder, Experts
from scalerl.models.rows import Compaction

#: Prefilling one prompt costs almost as much as prefilling ten. While rows are decoding, new
#: prompts therefore wait for each other, for at most this many decode steps ...
GATHER_STEPS = 8
#: ... or until they would fill 1 / GATHER_SHARE of the lane's slots.
GATHER_SHARE = 4


class Decoder(ParkingDecoder, Protocol):
    """Runs a model over the rows of a key-value cache. New rows are appended at the end."""

    def prefill(self, prompts: Sequence[tuple[int, ...]], which: Sequence[int]) -> Tensor:
        """Append rows: row i gets prompt which[i]. Each prompt is computed once. Returns the logits
        (rows, vocabulary) of the next token."""
        ...

    def decode(self, token_B: Tensor) -> Tensor:
        """Append a token to every row; returns the logits of the next one."""
        ...

    def drop_rows(self, compaction: Compaction) -> None:
        """Remove some rows; others move into their places."""
        ...

    def extend(self, parked: Sequence[int], tokens: Sequence[tuple[int, ...]]) -> Tensor:
        """Append the rows that were parked under these numbers, each with more tokens, which are
        read in one pass; returns the logits of the next token."""
        ...

    def pause_rows(self) -> None:
        """Pause the current rows; new ones are appended behind them."""
        ...

    def resume_rows(self) -> None:
        """Continue with the paused rows; all others must be gone."""
        ...


class _Queue:
    """One lane: its running rollouts, and those that wait for a slot."""

    def __init__(self, slots: int, columns: int, device: torch.device) -> None:
        self.slots = slots
        self.rows = Rows(slots, columns, device)
        self.waiting: deque[tuple[Request, int]] = deque()
        #: Decode steps for which rollouts have waited although there were free slots.
        self.waited = 0
        #: Requests that were aborted while the lane was paused. Their rows can only be dropped once
        #: the lane is active again: the decoder drops rows of the active lane only.
        self.dropped: set[str] = set()

    @property
    def busy(self) -> bool:
        return bool(self.rows or self.waiting)

    def admits(self) -> int:
        """The number of waiting rollouts that start now."""
        may = min(len(self.waiting), self.slots - len(self.rows))
        self.waited = self.waited + 1 if may else 0
        gather = self.waited <= GATHER_STEPS and may * GATHER_SHARE < self.slots
        if self.rows and gather:
            return 0
        self.waited = 0
        return may


def _decoder(model: nn.Module, rows: int, columns: int) -> Decoder:
    """The fastest decoder that computes what the model computes."""
    size = (model, rows, columns)
    fast: Decoder | None = CDecoder.from_model(*size) or LlamaDecoder.from_model(*size)
    if fast is not None:
        return fast
    from scalerl.engine.model_decoder import ModelDecoder  # Transformers takes seconds to import

    return ModelDecoder(model, rows, columns)


class LocalEngine:
    """An Engine over a model in this process.

    slots               rollouts that run at once in the training lane
    validation_slots    the same in the validation lane; None: as many
    columns             longest prompt plus answer, in tokens
    threads             decoding threads in the training lane
    validation_threads  the same in the validation lane; None: as many
    record_routing      whether rollouts record the experts of their tokens (mixtures of experts)
    park_turns          whether the cache of a turn is kept for the next turn of its episode
    adapter             LoRA adapters that `load` is given, instead of all weights
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        slots: int = 64,
        validation_slots: int | None = None,
        columns: int = 2048,
        version: int = 0,
        threads: int = 1,
        validation_threads: int | None = None,
        record_routing: bool = False,
        park_turns: bool = True,
        adapter: AdapterSpec | None = None,
    ) -> None:
        self.model: Any = model.eval()
        self.adapter = None if adapter is None else EngineAdapter(model, adapter)
        self.device = next(model.parameters()).device
        self.columns = columns
        other = slots if validation_slots is None else validation_slots
        size = (slots + other, columns)
        self.recorder = ExpertRecorder(model) if record_routing else None
        self.decoder = _decoder(model, *size)
        #: A decoder of the same kind for `score`, with a cache of its own.
        self._scoring: Decoder | None = None
        # The experts of parked tokens are not recorded again.
        parks = park_turns and not record_routing
        self.parking = Parking(self.decoder, slots + other) if parks else None
        self.threads: dict[Lane, int] = {
            "train": threads,
            "validate": threads if validation_threads is None else validation_threads,
        }
        if isinstance(self.decoder, CDecoder):
            self.decoder.threads = threads
        self.version = version
        self.lane: Lane = "train"
        self.queues: dict[Lane, _Queue] = {
            "train": _Queue(slots, columns, self.device),
            "validate": _Queue(other, columns, self.device),
        }

    @staticmethod
    def from_spec(spec: EngineSpec) -> LocalEngine:
        """The engine "local" of a recipe."""
        how = {"trust_remote_code": spec.trust_remote_code}
        model = load_model_fast(spec.model, spec.dtype, spec.device, **how)
        # The bare model has no forward pass of its own, which every other architecture needs, and a
        # layer with an adapter at its side.
        beside = spec.adapter is not None and not spec.adapter.merged
        if beside or LlamaDecoder.from_model(model, 1, spec.columns) is None:
            model = load_model(spec.model, spec.dtype, spec.device, **how)
        use_head_precision(model, spec.head, spec.head_parts)
        return LocalEngine(
            model,
            slots=spec.slots,
            validation_slots=spec.validation_slots,
            columns=spec.columns,
            threads=spec.threads,
            validation_threads=spec.validation_threads,
            record_routing=spec.record_routing,
            park_turns=spec.park_turns,
            adapter=spec.adapter,
        )

    def submit(self, requests: Iterable[Request], lane: Lane = "train") -> None:
        for request in requests:
            check_fits(request, self.columns)
            self.queues[lane].waiting.extend((request, row) for row in request.seeds)
            if self.parking is not None:
                self.parking.claim(request)

    @torch.inference_mode()
    def step(self) -> EngineStep:
        queue = self._activate_lane()
        written, tokens, read_tokens = self._admit(queue)
        if queue.rows:
            logits_BV = self.decoder.decode(queue.rows.last_tokens())
            if self.recorder is not None:
                for running, experts in zip(
                    queue.rows.running, self.recorder.last()[:, None], strict=True
                ):
                    running.experts.append(experts)
            more, n = self._advance(queue, logits_BV)
            written, tokens = written + more, tokens + n
        return EngineStep(self.lane, tuple(written), tokens, read_tokens)

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        if self.adapter is not None:
            self.adapter.load(weights)
        else:
            self._load_all(weights)
        if self.parking is not None:
            self.parking.on_load(self.version, version)
        self.version = version

    def _load_all(self, weights: Mapping[str, Tensor]) -> None:
        own = dict(self.model.named_parameters())
        own |= {k: v for k, v in self.model.named_buffers() if k in weights}
        # Compared by name, because a missing tensor would keep its old values without an error.
        missing = own.keys() - weights.keys()
        if missing or weights.keys() - own.keys():
            wrong = sorted(missing | (weights.keys() - own.keys()))
            raise InputError(f"weights do not fit the model: {', '.join(wrong[:3])} ...")
        # In place: the decoders refer to these very tensors. Weights that are just arriving are
        # written there as they come (weights/streaming.py).
        write_into = getattr(weights, "write_into", None)
        if write_into is not None:
            write_into(own)
            return
        with torch.no_grad():
            for name, value in weights.items():
                own[name].copy_(value)

    @torch.inference_mode()
    def score(self, tokens: Sequence[int]) -> list[float]:
        if self._scoring is None:
            self._scoring = _decoder(self.model, 1, len(tokens))
        decoder, found = self._scoring, []
        for i, token in enumerate(tokens[:-1]):
            if i == 0:
                logits = decoder.prefill([(token,)], [0])
            else:
                logits = decoder.decode(torch.tensor([token], device=self.device))
            found.append(float(torch.log_softmax(logits[0].float(), -1)[tokens[i + 1]]))
        decoder.drop_rows(Compaction.from_mask(np.ones(1, dtype=bool)))
        return found

    @torch.inference_mode()
    def abort(self, ids: Sequence[str]) -> list[TurnResult]:
        gone = set(ids)
        out: list[TurnResult] = []
        for lane, queue in self.queues.items():
            rows = [i for i, r in enumerate(queue.rows.running) if r.request.id in gone]
            out += [queue.rows.written(i, "aborted") for i in rows]
            if self.parking is not None:
                for request, row in queue.waiting:
                    if request.id in gone:
                        self.parking.release(request, row)
            queue.waiting = deque(w for w in queue.waiting if w[0].id not in gone)
            if lane == self.lane:
                self._drop_rows(queue, rows)
            else:
                queue.dropped |= gone
        return out

    def health(self) -> Health:
        queues = self.queues.values()
        return Health(
            self.version,
            sum(len(q.waiting) for q in queues),
            sum(len(q.rows) for q in queues),
            "validate" if self.queues["validate"].busy else "train",
        )

    def _activate_lane(self) -> _Queue:
        """The queue of the lane that this step works on; pauses or resumes rows if it changes."""
        lane: Lane = "validate" if self.queues["validate"].busy else "train"
        queue = self.queues[lane]
        if lane != self.lane:
            if lane == "validate":
                self.decoder.pause_rows()
            else:
                self.decoder.resume_rows()
            if isinstance(self.decoder, CDecoder):
                self.decoder.threads = self.threads[lane]
            self.lane = lane
            rows = queue.rows.running
            self._drop_rows(queue, [i for i, r in enumerate(rows) if r.request.id in queue.dropped])
            queue.dropped.clear()
        return queue

    def _admit(self, queue: _Queue) -> tuple[list[TurnResult], int, int]:
        """Start waiting rollouts and sample their first tokens; returns what is finished, and the
        tokens generated and read."""
        free = queue.admits()
        new: list[RunningRollout] = []
        parked: list[tuple[RunningRollout, ParkedTurn]] = []
        finished: list[TurnResult] = []
        while queue.waiting and len(new) + len(parked) < free:
            request, row = queue.waiting.popleft()
            running = RunningRollout.from_request(request, row)
            done = running.next_action()
            if done is not None:
                finished.append(empty_result(running, done))
                if self.parking is not None:
                    self.parking.release(request, row)
                continue
            turn = None if self.parking is None else self.parking.take(request, row)
            if turn is None:
                new.append(running)
            else:
                parked.append((running, turn))
        tokens = read_tokens = 0
        if self.parking is not None:
            self.parking.make_room(self._rows_in_cache() + len(new) + len(parked))
        # Parked rows first: their places are in use until they run, which `parking` does not know.
        if parked:
            more, tokens, read_tokens = self._extend(queue, parked)
            finished += more
        if new:
            more, n = self._start(queue, new)
            finished, tokens = finished + more, tokens + n
            again = [r.request for r in new if r.request.continues is not None]
            read_tokens += sum(len(request.prompt_token_ids) for request in again)
        return finished, tokens, read_tokens

    def _start(self, queue: _Queue, new: list[RunningRollout]) -> tuple[list[TurnResult], int]:
        """Prefill prompts, each once for all rollouts of its group that start together."""
        first = len(queue.rows)
        prompts = {r.request: r.request.prompt_token_ids for r in new}
        place = {request: i for i, request in enumerate(prompts)}
        which = [place[r.request] for r in new]
        logits_BV = self.decoder.prefill(list(prompts.values()), which)
        if self.recorder is not None:
            self._record_prompts(self.recorder.last(), list(prompts.values()), new, which)
        queue.rows.append_rows(new)
        return self._advance(queue, logits_BV, first)

    def _extend(
        self, queue: _Queue, parked: list[tuple[RunningRollout, ParkedTurn]]
    ) -> tuple[list[TurnResult], int, int]:
        """Continue parked turns: read only the tokens that are new, all of them in one pass."""
        first = len(queue.rows)
        tokens = [r.request.prompt_token_ids[len(turn.token_ids) :] for r, turn in parked]
        logits_BV = self.decoder.extend([turn.number for _, turn in parked], tokens)
        queue.rows.append_rows([r for r, _ in parked])
        return *self._advance(queue, logits_BV, first), sum(map(len, tokens))

    def _rows_in_cache(self) -> int:
        return sum(len(queue.rows) for queue in self.queues.values())

    def _record_prompts(
        self,
        last: Experts,
        prompts: Sequence[tuple[int, ...]],
        new: Sequence[RunningRollout],
        which: Sequence[int],
    ) -> None:
        """Store the experts of prompt tokens. Prompts are padded on the left, and each is computed
        once for all of its rollouts."""
        each = last.reshape(len(prompts), -1, *last.shape[1:])
        for running, i in zip(new, which, strict=True):
            running.experts.append(each[i, each.shape[1] - len(prompts[i]) :])

    def _advance(
        self, queue: _Queue, logits_BV: Tensor, first: int = 0
    ) -> tuple[list[TurnResult], int]:
        """Append one token, forced or sampled, to each row from `first` on."""
        how, seeds_B, positions_B = queue.rows.draw_inputs(first)
        try:
            token_B, logprob_B = draw_from_seeds(logits_BV, how, seeds_B, positions_B)
        except NonFiniteLogits:
            raise NonFiniteLogits(self._non_finite_cause()) from None
        done = queue.rows.write(first, token_B.cpu().numpy(), logprob_B.cpu().numpy(), self.version)
        out = [queue.rows.written(i, finish.reason) for i, finish in done]
        self._park_or_drop(queue, [i for i, _ in done], out)
        return out, len(token_B)

    def _park_or_drop(
        self, queue: _Queue, rows: Sequence[int], results: Sequence[TurnResult]
    ) -> None:
        """Remove rows with finished turns; those that an environment may reply to are parked."""
        running = queue.rows.running
        if self.parking is None or not any(running[i].request.one_by_one for i in rows):
            self._drop_rows(queue, rows)
            return
        # One by one, because the place of a removed row has room for the next one to be parked; the
        # last first, because the rows behind a removed one may move.
        for i, result in sorted(zip(rows, results, strict=True), reverse=True, key=itemgetter(0)):
            request = running[i].request
            if request.one_by_one:
                # The last token was sampled and not read.
                fed = np.array((*request.prompt_token_ids, *result.turn.token_ids[:-1].tolist()))
                key = (request.id, result.row)
                self.parking.park(key, i, fed, self.lane, self._rows_in_cache())
            self._drop_rows(queue, [i])

    def _non_finite_cause(self) -> str:
        """Why logits are not finite, and what to do."""
        wrong = non_finite(self.model)
        cause = f"the weight {wrong} is not finite" if wrong else "its weights are finite but huge"
        advice = "lower optimiser.lr, then go on from an earlier checkpoint"
        if self.version == 0:
            advice = "the checkpoint is damaged, or needs model.dtype=float32"
        return f" at version {self.version}: {cause}; {advice}"

    def _drop_rows(self, queue: _Queue, rows: Sequence[int]) -> None:
        if rows:
            gone_B = np.zeros(len(queue.rows), dtype=bool)
            gone_B[list(rows)] = True
            compaction = Compaction.from_mask(gone_B)
            queue.rows.drop_rows(compaction)
            self.decoder.drop_rows(compaction)
