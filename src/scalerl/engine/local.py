"""The local engine: continuous batching over any Hugging Face causal LM, on a CPU or one GPU.

Rollouts join and leave between decode steps; weights change between decode steps; the key-value
cache is kept. Each step costs one forward pass of one token per running rollout. The two lanes
share one cache: the rows of a lane that stands still stay where they are, below those that go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from scalerl.engine.decoder import Decoder
from scalerl.engine.interface import EngineSpec, EngineStep, Health, Lane, Request, RolloutResult
from scalerl.engine.rows import Rows, RunningRollout, empty_result
from scalerl.engine.sampling import NonFiniteLogits, draw_from_seeds
from scalerl.errors import InputError
from scalerl.models.cpu.c_decode import NativeDecoder
from scalerl.models.cpu.decode import LlamaDecoder
from scalerl.models.head import use_head_precision
from scalerl.models.load import load_model, non_finite
from scalerl.models.quick import quick_model
from scalerl.models.routing import Experts, Recorder
from scalerl.models.rows import Compaction

#: Reading one prompt costs nearly as much as reading ten. So those that come while others are
#: written are let gather: for so many decode steps, or until they are one row in so many.
GATHER_STEPS, GATHER_SHARE = 8, 4


class _Queue:
    """One lane: the rollouts that are being written, and those that wait for room."""

    def __init__(self, slots: int, columns: int, device: torch.device) -> None:
        self.slots = slots
        self.rows = Rows(slots, columns, device)
        self.waiting: deque[tuple[Request, int]] = deque()
        #: Decode steps for which some have waited though there was room.
        self.waited = 0
        #: Requests that were dropped while the lane stood still.
        self.dropped: set[str] = set()

    @property
    def busy(self) -> bool:
        return bool(self.rows or self.waiting)

    def admits(self) -> int:
        """How many of those that wait are let in now."""
        may = min(len(self.waiting), self.slots - len(self.rows))
        self.waited = self.waited + 1 if may else 0
        gather = self.waited <= GATHER_STEPS and may * GATHER_SHARE < self.slots
        if self.rows and gather:
            return 0
        self.waited = 0
        return may


def _any_decoder(model: nn.Module, rows: int, columns: int) -> Decoder:
    from scalerl.engine.model_decoder import ModelDecoder  # Transformers, which takes seconds

    return ModelDecoder(model, rows, columns)


class LocalEngine:
    """An Engine over a model in this process.

    slots             rollouts that run at once; validation_slots: in the other lane (as many)
    threads           that decode; validation_threads: in the other lane (as many)
    columns           longest prompt plus answer, in tokens
    routing           whether rollouts say which experts of a mixture their tokens were sent to
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
        routing: bool = False,
    ) -> None:
        self.model: Any = model.eval()
        self.device = next(model.parameters()).device
        self.columns = columns
        other = slots if validation_slots is None else validation_slots
        size = (slots + other, columns)
        self.recorder = Recorder(model) if routing else None
        fast = NativeDecoder.of(model, *size) or LlamaDecoder.of(model, *size)
        self.decoder: Decoder = fast or _any_decoder(model, *size)
        self.threads: dict[Lane, int] = {
            "train": threads,
            "validate": threads if validation_threads is None else validation_threads,
        }
        if isinstance(self.decoder, NativeDecoder):
            self.decoder.threads = threads
        self.version = version
        self.lane: Lane = "train"
        self.queues: dict[Lane, _Queue] = {
            "train": _Queue(slots, columns, self.device),
            "validate": _Queue(other, columns, self.device),
        }

    @staticmethod
    def from_spec(spec: EngineSpec) -> LocalEngine:
        """As a recipe describes it."""
        how = {"trust_remote_code": spec.trust_remote_code}
        model = quick_model(spec.model, spec.dtype, spec.device, **how)
        if LlamaDecoder.of(model, 1, spec.columns) is None:  # only its own forward pass will do
            model = load_model(spec.model, spec.dtype, spec.device, **how)
        use_head_precision(model, spec.head)
        return LocalEngine(
            model,
            slots=spec.slots,
            validation_slots=spec.validation_slots,
            columns=spec.columns,
            threads=spec.threads,
            validation_threads=spec.validation_threads,
            routing=spec.routing,
        )

    def submit(self, requests: Iterable[Request], lane: Lane = "train") -> None:
        for request in requests:
            n = len(request.prompt_token_ids)
            if n == 0:
                raise InputError(f"request {request.id}: an empty prompt cannot be continued")
            if n + request.control.max_tokens > self.columns:
                raise InputError(
                    f"request {request.id}: a prompt of {n} tokens and an answer of up to "
                    f"{request.control.max_tokens} do not fit the engine's {self.columns}"
                )
            self.queues[lane].waiting.extend((request, row) for row in request.seeds)

    @torch.inference_mode()
    def step(self) -> EngineStep:
        queue = self._turn()
        written, tokens = self._admit(queue)
        if queue.rows:
            logits_BV = self.decoder.decode(queue.rows.last_tokens())
            if self.recorder is not None:
                for running, experts in zip(
                    queue.rows.running, self.recorder.last()[:, None], strict=True
                ):
                    running.experts.append(experts)
            more, n = self._advance(queue, logits_BV)
            written, tokens = written + more, tokens + n
        return EngineStep(self.lane, tuple(written), tokens)

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        own = dict(self.model.named_parameters())
        own |= {k: v for k, v in self.model.named_buffers() if k in weights}
        missing = own.keys() - weights.keys()
        if missing or weights.keys() - own.keys():
            wrong = sorted(missing | (weights.keys() - own.keys()))
            raise InputError(f"weights do not fit the model: {', '.join(wrong[:3])} ...")
        with torch.no_grad():
            for name, value in weights.items():
                own[name].copy_(value)
        self.version = version

    @torch.inference_mode()
    def abort(self, ids: Sequence[str]) -> list[RolloutResult]:
        gone = set(ids)
        out: list[RolloutResult] = []
        for lane, queue in self.queues.items():
            rows = [i for i, r in enumerate(queue.rows.running) if r.request.id in gone]
            out += [queue.rows.written(i, "aborted") for i in rows]
            queue.waiting = deque(w for w in queue.waiting if w[0].id not in gone)
            if lane == self.lane:
                self._leave(queue, rows)
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

    def _turn(self) -> _Queue:
        """The lane whose turn it is; the rows of the other stand still below it."""
        lane: Lane = "validate" if self.queues["validate"].busy else "train"
        queue = self.queues[lane]
        if lane != self.lane:
            if lane == "validate":
                self.decoder.pause_rows()
            else:
                self.decoder.resume_rows()
            if isinstance(self.decoder, NativeDecoder):
                self.decoder.threads = self.threads[lane]
            self.lane = lane
            running = queue.rows.running
            self._leave(queue, [i for i, r in enumerate(running) if r.request.id in queue.dropped])
            queue.dropped.clear()
        return queue

    def _admit(self, queue: _Queue) -> tuple[list[RolloutResult], int]:
        """Read the prompts of waiting rollouts, as many as there are free rows, and draw their
        first tokens. A prompt is read once for all rollouts of its group that join together."""
        free = queue.admits()
        new: list[RunningRollout] = []
        finished: list[RolloutResult] = []
        while queue.waiting and len(new) < free:
            running = RunningRollout.from_request(*queue.waiting.popleft())
            done = running.next_action()
            if done is None:
                new.append(running)
            else:
                finished.append(empty_result(running, done))
        tokens = 0
        if new:
            first = len(queue.rows)
            prompts = {r.request: r.request.prompt_token_ids for r in new}
            place = {request: i for i, request in enumerate(prompts)}
            which = [place[r.request] for r in new]
            logits_BV = self.decoder.prefill(list(prompts.values()), which)
            if self.recorder is not None:
                self._note_prompts(self.recorder.last(), list(prompts.values()), new, which)
            queue.rows.append_rows(new)
            more, tokens = self._advance(queue, logits_BV, first)
            finished += more
        return finished, tokens

    def _note_prompts(
        self,
        last: Experts,
        prompts: Sequence[tuple[int, ...]],
        new: Sequence[RunningRollout],
        which: Sequence[int],
    ) -> None:
        """Prompts were read with padding on the left, each once for all of its rollouts."""
        each = last.reshape(len(prompts), -1, *last.shape[1:])
        for running, i in zip(new, which, strict=True):
            running.experts.append(each[i, each.shape[1] - len(prompts[i]) :])

    def _advance(
        self, queue: _Queue, logits_BV: Tensor, first: int = 0
    ) -> tuple[list[RolloutResult], int]:
        """One token for each of the rows from `first` on: forced, or drawn."""
        how, seeds_B, positions_B = queue.rows.draw_inputs(first)
        try:
            token_B, logprob_B = draw_from_seeds(logits_BV, how, seeds_B, positions_B)
        except NonFiniteLogits:
            raise NonFiniteLogits(self._cause()) from None
        done = queue.rows.write(first, token_B.cpu().numpy(), logprob_B.cpu().numpy(), self.version)
        out = [queue.rows.written(i, finish.reason) for i, finish in done]
        self._leave(queue, [i for i, _ in done])
        return out, len(token_B)

    def _cause(self) -> str:
        """Why logits are not finite."""
        wrong = non_finite(self.model)
        cause = f"the weight {wrong} is not finite" if wrong else "its weights are finite but huge"
        advice = "lower optimiser.lr, then go on from an earlier checkpoint"
        if self.version == 0:
            advice = "the checkpoint is damaged, or needs model.dtype=float32"
        return f" at version {self.version}: {cause}; {advice}"

    def _leave(self, queue: _Queue, rows: Sequence[int]) -> None:
        if rows:
            gone_B = np.zeros(len(queue.rows), dtype=bool)
            gone_B[list(rows)] = True
            compaction = Compaction.of(gone_B)
            queue.rows.drop_rows(compaction)
            self.decoder.drop_rows(compaction)
